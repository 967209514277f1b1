//! `/-/dashboard`: a page for operators that shows what the metrics say.
//!
//! There is no second bookkeeping: this module and the script of the page read the text of
//! [`Metrics`], by the same list of values. The page that is sent has the totals since the start,
//! so it is useful without its script. With it, the page shows the change in the last two seconds.

mod values;

use crate::files::{nonce, page_policy};
use onrush::metrics::Format;
use onrush::{Metrics, Request, Response, Router};
use std::collections::BTreeMap;
use std::fmt::Write;
use values::{COLUMNS, GROUPS, Show, Unit, Value};

const TEMPLATE: &str = include_str!("../../assets/dashboard.html");
const SCRIPT: &str = include_str!("../../assets/dashboard.js");
const STYLE: &str = concat!(
    include_str!("../../assets/page.css"),
    include_str!("../../assets/dashboard.css"),
);

/// The response to a path of the admin pages that does not exist: 404 (RFC 9110 §15.5.5), with a
/// line that lists them. A handler of a [`Router`], for any request.
pub async fn admin_not_found(_: Request) -> Response {
    let text = "not found; see /-/dashboard, /-/metrics, /-/health and /-/ready\n";
    Response::text(text)
        .with_status(404)
        .with_header("Cache-Control", "no-store")
}

/// Adds the dashboard of `metrics` to the routes of [`Admin`](onrush::Admin), and
/// [`admin_not_found`] for all other paths under `/-/`. Add the routes of `Admin` after it.
///
/// The script of the page reads `/-/metrics`, so both need the same rights.
///
/// ```no_run
/// use onrush::{Admin, Metrics, Router, Server};
///
/// let metrics = Metrics::new();
/// let router = onrush_files::add_dashboard(Router::new(), &metrics);
/// let admin = Admin::new(&metrics).add_to(router);
/// Server::bind("127.0.0.1:9090").serve(admin)?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn add_dashboard(router: Router, metrics: &Metrics) -> Router {
    let metrics = metrics.clone();
    router
        .get("/-/dashboard", move |_: Request| {
            std::future::ready(page(&metrics))
        })
        .get("/-/dashboard.css", async |_: Request| {
            asset(STYLE, "text/css; charset=utf-8")
        })
        .get("/-/dashboard.mjs", async |_: Request| {
            asset(SCRIPT, "text/javascript; charset=utf-8")
        })
        .get("/-/", admin_not_found)
        .get("/-/{*rest}", admin_not_found)
}

fn asset(content: &'static str, content_type: &'static str) -> Response {
    Response::with_body(content)
        .content_type(content_type)
        .with_header("Cache-Control", "no-cache")
        .with_header("X-Content-Type-Options", "nosniff")
}

fn page(metrics: &Metrics) -> Response {
    let nonce = match nonce() {
        Ok(nonce) => nonce,
        Err(_) => return Response::new(500),
    };
    let body = render(&metrics.render(Format::Prometheus), &nonce);
    Response::with_body(body)
        .content_type("text/html; charset=utf-8")
        .with_header("Content-Security-Policy", page_policy(Some(&nonce)))
        .with_header("Cache-Control", "no-store")
        .with_header("Referrer-Policy", "same-origin")
        .with_header("X-Content-Type-Options", "nosniff")
}

/// A line of the metrics.
struct Sample<'m> {
    name: &'m str,
    /// As written, without the braces.
    labels: &'m str,
    value: f64,
}

fn samples(text: &str) -> Vec<Sample<'_>> {
    let sample = |line| {
        let (series, value) = str::rsplit_once(line, ' ')?;
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        Some(Sample {
            name,
            labels: labels.strip_suffix('}')?,
            value: value.parse().ok()?,
        })
    };
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(sample).collect()
}

impl Value {
    /// The name of the samples: those of a histogram are its buckets.
    fn sample_name(&self) -> String {
        match self.show {
            Show::Total | Show::Now => self.metric.to_owned(),
            Show::Quantile(_) => format!("{}_bucket", self.metric),
        }
    }

    /// The value now, of the samples that also have the labels `also`. `None`: there are no such
    /// samples.
    fn of(&self, samples: &[Sample<'_>], also: &str) -> Option<f64> {
        let name = self.sample_name();
        let matches = |sample: &&Sample<'_>| {
            sample.name == name
                && sample.labels.contains(self.labels)
                && sample.labels.contains(also)
        };
        let mut found = samples.iter().filter(matches).peekable();
        found.peek()?;
        Some(match self.show {
            Show::Total | Show::Now => found.map(|sample| sample.value).sum(),
            Show::Quantile(part) => quantile(found, part),
        })
    }

    /// The attributes that tell the script what an element shows.
    fn add_attributes(&self, out: &mut String, also: &str) {
        let show = match self.show {
            Show::Total => "total".to_owned(),
            Show::Now => "now".to_owned(),
            Show::Quantile(part) => part.to_string(),
        };
        let unit = match self.unit {
            Unit::Count => "count",
            Unit::Bytes => "bytes",
            Unit::Seconds => "seconds",
            Unit::Share => "share",
        };
        let labels = [self.labels, also].concat().replace('"', "&quot;");
        // Writing to a String does not fail.
        let _ = write!(
            out,
            " data-show=\"{show}\" data-of=\"{}\" data-where=\"{labels}\" data-unit=\"{unit}\"",
            self.metric
        );
    }
}

/// A quantile of the values in these buckets, as if they were spread evenly within each one. NaN:
/// there are no values.
fn quantile<'s>(buckets: impl Iterator<Item = &'s Sample<'s>>, part: f64) -> f64 {
    let mut counts: BTreeMap<u64, f64> = BTreeMap::new();
    for sample in buckets {
        let bound = sample.labels.split_once("le=\"");
        let bound = bound.and_then(|(_, rest)| rest.split('"').next()?.parse::<f64>().ok());
        // The order of positive numbers is that of their bits.
        *counts
            .entry(bound.unwrap_or(f64::INFINITY).to_bits())
            .or_default() += sample.value;
    }
    let wanted = counts.values().last().copied().unwrap_or_default() * part;
    let (mut lower, mut below) = (0.0, 0.0);
    for (bound, count) in counts {
        let bound = f64::from_bits(bound);
        if count >= wanted && count > 0.0 {
            return match bound.is_finite() {
                true => lower + (bound - lower) * ((wanted - below) / (count - below)),
                false => bound,
            };
        }
        (lower, below) = (bound, count);
    }
    f64::NAN
}

fn in_unit(value: f64, unit: Unit) -> String {
    match unit {
        _ if value.is_nan() => "\u{2013}".to_owned(),
        Unit::Count => format!("{value:.0}"),
        Unit::Share => format!("{:.0} %", value * 100.0),
        Unit::Seconds if value.is_infinite() => "> 10 s".to_owned(),
        Unit::Seconds if value >= 1.0 => format!("{value:.2} s"),
        Unit::Seconds if value >= 0.001 => format!("{:.1} ms", value * 1e3),
        Unit::Seconds => format!("{:.0} µs", value * 1e6),
        Unit::Bytes => {
            const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
            let (mut value, mut at) = (value, 0);
            while value >= 1024.0 && at < UNITS.len() - 1 {
                (value, at) = (value / 1024.0, at + 1);
            }
            let digits = usize::from(at > 0);
            format!("{value:.digits$} {}", UNITS[at])
        }
    }
}

fn render(metrics: &str, nonce: &str) -> String {
    let samples = samples(metrics);
    TEMPLATE
        .replace("{{nonce}}", nonce)
        .replace("{{groups}}", &groups(&samples, &families(metrics)))
        .replace("{{columns}}", &columns())
        .replace("{{workers}}", &workers(&samples))
}

/// The names of all families, also of those without samples so far.
fn families(metrics: &str) -> Vec<&str> {
    let name = |line| str::strip_prefix(line, "# TYPE ")?.split(' ').next();
    metrics.lines().filter_map(name).collect()
}

fn groups(samples: &[Sample<'_>], families: &[&str]) -> String {
    let mut out = String::new();
    for (title, values) in GROUPS {
        let mut items = String::new();
        for value in *values {
            // The samples of a histogram have longer names.
            if !families.iter().any(|name| value.metric.starts_with(name)) {
                continue;
            }
            let now = value.of(samples, "").unwrap_or(match value.show {
                Show::Total | Show::Now => 0.0,
                Show::Quantile(_) => f64::NAN,
            });
            let _ = write!(items, "<div><dt>{}</dt><dd><span", value.label);
            value.add_attributes(&mut items, "");
            let _ = writeln!(items, ">{}</span></dd></div>", in_unit(now, value.unit));
        }
        if !items.is_empty() {
            let _ = writeln!(
                out,
                "<section>\n<h2>{title}</h2>\n<dl class=\"values\">\n{items}</dl>\n</section>"
            );
        }
    }
    out
}

fn columns() -> String {
    let column = |value: &Value| format!("<th scope=\"col\" class=\"n\">{}</th>", value.label);
    COLUMNS.iter().map(column).collect()
}

fn workers(samples: &[Sample<'_>]) -> String {
    let mut out = String::new();
    for index in 0.. {
        let label = format!("worker=\"{index}\"");
        let values: Vec<_> = COLUMNS
            .iter()
            .map(|value| value.of(samples, &label))
            .collect();
        if values.iter().all(Option::is_none) {
            break;
        }
        let _ = write!(out, "<tr><th scope=\"row\">{index}</th>");
        for (value, now) in COLUMNS.iter().zip(values) {
            out.push_str("<td class=\"n\"");
            value.add_attributes(&mut out, &label);
            let _ = write!(
                out,
                ">{}</td>",
                in_unit(now.unwrap_or_default(), value.unit)
            );
        }
        out.push_str("</tr>\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# HELP http_server_request_duration_seconds A text.\n\
        # TYPE http_server_request_duration_seconds histogram\n\
        # TYPE http_server_active_requests gauge\n\
        # TYPE onrush_offload_wait_seconds histogram\n\
        # TYPE process_resident_memory_bytes gauge\n\
        http_server_request_duration_seconds_bucket{m=\"GET\",le=\"0.1\"} 10\n\
        http_server_request_duration_seconds_bucket{m=\"GET\",le=\"0.2\"} 90\n\
        http_server_request_duration_seconds_bucket{m=\"GET\",le=\"+Inf\"} 100\n\
        http_server_request_duration_seconds_bucket{m=\"PUT\",le=\"0.1\"} 0\n\
        http_server_request_duration_seconds_bucket{m=\"PUT\",le=\"0.2\"} 100\n\
        http_server_request_duration_seconds_bucket{m=\"PUT\",le=\"+Inf\"} 100\n\
        http_server_request_duration_seconds_count{http_response_status_code=\"200\"} 150\n\
        http_server_request_duration_seconds_count{http_response_status_code=\"503\"} 50\n\
        onrush_worker_busy_ratio{worker=\"0\"} 0.25\n\
        onrush_worker_busy_ratio{worker=\"1\"} 1\n\
        process_resident_memory_bytes 1572864\n";

    #[test]
    fn values_are_those_of_the_metrics() {
        let page = render(TEXT, "abc");
        assert!(!page.contains("{{") && page.contains("nonce=\"abc\""));
        let shows = |label: &str, text: &str| {
            let (_, rest) = page.split_once(&format!("<dt>{label}</dt>")).expect(label);
            let (value, _) = rest.split_once("</span>").expect("a value");
            assert!(value.ends_with(&format!(">{text}")), "{label}: {value}");
        };
        shows("Requests", "200");
        shows("Errors of the server", "50");
        shows("Memory of the process", "1.5 MiB");
        // 190 of 200 are within 0.2 s: the median is 90 of the 180 between 0.1 and 0.2.
        shows("Median latency", "150.0 ms");
        shows("99 % are faster than", "> 10 s");
        shows("In progress", "0");
        shows("99 % wait less than", "\u{2013}");
        assert!(page.contains("<th scope=\"row\">1</th>") && page.contains(">100 %</td>"));
        assert!(!page.contains("<th scope=\"row\">2</th>"));
        assert!(!page.contains("Cache of the edge"));
    }

    #[test]
    fn a_server_without_requests_has_no_latency() {
        assert!(quantile([].into_iter(), 0.5).is_nan());
        assert_eq!(in_unit(f64::NAN, Unit::Seconds), "\u{2013}");
        assert_eq!(in_unit(0.000_25, Unit::Seconds), "250 µs");
        assert_eq!(in_unit(512.0, Unit::Bytes), "512 B");
    }
}
