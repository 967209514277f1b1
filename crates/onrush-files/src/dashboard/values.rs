//! The list of what the dashboard shows.

/// How a value is made of a metric.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Show {
    /// The sum of counters. The script shows the increase per second.
    Total,
    /// The sum of gauges.
    Now,
    /// This part of the values of a histogram is smaller.
    Quantile(f64),
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum Unit {
    Count,
    Bytes,
    Seconds,
    /// From 0 to 1.
    Share,
}

/// A value of the page.
pub(super) struct Value {
    pub(super) label: &'static str,
    pub(super) show: Show,
    pub(super) metric: &'static str,
    /// A part of the labels of the samples that count.
    pub(super) labels: &'static str,
    pub(super) unit: Unit,
}

const fn value(label: &'static str, show: Show, metric: &'static str, unit: Unit) -> Value {
    Value {
        label,
        show,
        metric,
        labels: "",
        unit,
    }
}

const DURATION: &str = "http_server_request_duration_seconds";
const REQUESTS: &str = "http_server_request_duration_seconds_count";
const OPENED: &str = "onrush_edge_opened_total";

/// The values by group. One whose metric the server does not have is left out.
pub(super) const GROUPS: &[(&str, &[Value])] = &[
    (
        "Requests",
        &[
            value("Requests", Show::Total, REQUESTS, Unit::Count),
            value(
                "In progress",
                Show::Now,
                "http_server_active_requests",
                Unit::Count,
            ),
            value(
                "Median latency",
                Show::Quantile(0.5),
                DURATION,
                Unit::Seconds,
            ),
            value(
                "99 % are faster than",
                Show::Quantile(0.99),
                DURATION,
                Unit::Seconds,
            ),
            Value {
                labels: "http_response_status_code=\"5",
                ..value("Errors of the server", Show::Total, REQUESTS, Unit::Count)
            },
            Value {
                labels: "http_response_status_code=\"4",
                ..value("Errors of clients", Show::Total, REQUESTS, Unit::Count)
            },
            value(
                "Received",
                Show::Total,
                "http_server_request_body_size_bytes_sum",
                Unit::Bytes,
            ),
            value(
                "Sent",
                Show::Total,
                "http_server_response_body_size_bytes_sum",
                Unit::Bytes,
            ),
        ],
    ),
    (
        "Connections and memory",
        &[
            value("Open", Show::Now, "onrush_connections_open", Unit::Count),
            value(
                "New",
                Show::Total,
                "onrush_connections_accepted_total",
                Unit::Count,
            ),
            value(
                "Refused",
                Show::Total,
                "onrush_connections_refused_total",
                Unit::Count,
            ),
            value(
                "Time limits exceeded",
                Show::Total,
                "onrush_timeouts_total",
                Unit::Count,
            ),
            value(
                "Receive memory",
                Show::Now,
                "onrush_receive_buffer_bytes",
                Unit::Bytes,
            ),
            value(
                "Memory of the process",
                Show::Now,
                "process_resident_memory_bytes",
                Unit::Bytes,
            ),
            value(
                "Open descriptors",
                Show::Now,
                "process_open_fds",
                Unit::Count,
            ),
        ],
    ),
    (
        "CPU jobs",
        &[
            value(
                "Waiting",
                Show::Now,
                "onrush_offload_queue_depth",
                Unit::Count,
            ),
            value("Running", Show::Now, "onrush_offload_running", Unit::Count),
            value(
                "Done",
                Show::Total,
                "onrush_offload_done_total",
                Unit::Count,
            ),
            value(
                "Refused",
                Show::Total,
                "onrush_offload_shed_total",
                Unit::Count,
            ),
            value(
                "99 % wait less than",
                Show::Quantile(0.99),
                "onrush_offload_wait_seconds",
                Unit::Seconds,
            ),
        ],
    ),
    (
        "Cache of the edge",
        &[
            Value {
                labels: "result=\"hit\"",
                ..value("Found", Show::Total, OPENED, Unit::Count)
            },
            Value {
                labels: "result=\"miss\"",
                ..value("Not found", Show::Total, OPENED, Unit::Count)
            },
            value(
                "Fetched",
                Show::Total,
                "onrush_edge_fetched_bytes_total",
                Unit::Bytes,
            ),
            value(
                "Used space",
                Show::Now,
                "onrush_edge_used_bytes",
                Unit::Bytes,
            ),
            value(
                "Evictions",
                Show::Total,
                "onrush_edge_evictions_total",
                Unit::Count,
            ),
        ],
    ),
];

/// The columns of the table of workers, by the label `worker`.
pub(super) const COLUMNS: &[Value] = &[
    value("Load", Show::Now, "onrush_worker_busy_ratio", Unit::Share),
    value(
        "Open connections",
        Show::Now,
        "onrush_connections_open",
        Unit::Count,
    ),
    value(
        "New connections",
        Show::Total,
        "onrush_connections_accepted_total",
        Unit::Count,
    ),
    value(
        "Blocked",
        Show::Total,
        "onrush_worker_blocked_total",
        Unit::Count,
    ),
];
