//! Renders metrics as text: in the Prometheus format 0.0.4 and in OpenMetrics 1.0.

use super::cell::HistogramSnapshot;
use std::fmt::{Display, Write};

/// The text format of metrics.
///
/// # Examples
/// ```
/// use onrush::metrics::{Format, Metrics};
///
/// let metrics = Metrics::new();
/// assert!(metrics.render(Format::Prometheus).starts_with("# HELP onrush_build_info "));
/// assert!(metrics.render(Format::OpenMetrics).ends_with("# EOF\n"));
/// assert!(Format::OpenMetrics.content_type().starts_with("application/openmetrics-text;"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// The Prometheus text format 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0. Prometheus requests it by `Accept`.
    OpenMetrics,
}

impl Format {
    /// The media type, for `Content-Type`.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The type of a metric family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// A number that only increases. The name of its samples ends with `_total`.
    Counter,
    /// A number that can decrease.
    Gauge,
    /// Numbers of values, by size.
    Histogram,
    /// Labels without a value. The name of its samples ends with `_info`.
    Info,
}

/// A label and its value.
pub type Label<'l> = (&'static str, &'l str);

/// A text under construction.
///
/// # Examples
/// ```
/// use onrush::metrics::{Collector, Format, MetricType, Metrics, TextWriter};
/// use std::sync::Arc;
///
/// #[derive(Debug)]
/// struct Queue;
///
/// impl Collector for Queue {
///     fn collect(&self, text: &mut TextWriter) {
///         text.family("queue_length", MetricType::Gauge, "Jobs that wait.");
///         text.sample(&[("kind", "mail")], 3);
///     }
/// }
///
/// let metrics = Metrics::new();
/// metrics.add_collector(Arc::new(Queue));
/// assert!(metrics.render(Format::Prometheus).contains("queue_length{kind=\"mail\"} 3\n"));
/// ```
#[derive(Debug)]
pub struct TextWriter {
    out: String,
    format: Format,
    /// The name of the present family.
    name: &'static str,
    kind: MetricType,
}

impl TextWriter {
    pub(crate) fn new(format: Format) -> TextWriter {
        TextWriter {
            out: String::new(),
            format,
            name: "",
            kind: MetricType::Gauge,
        }
    }

    /// Begins a family. `name` has no suffix; the type determines it.
    pub fn family(&mut self, name: &'static str, kind: MetricType, help: &str) {
        (self.name, self.kind) = (name, kind);
        let open = self.format == Format::OpenMetrics;
        let (ending, kind) = match kind {
            MetricType::Counter => (if open { "" } else { "_total" }, "counter"),
            MetricType::Gauge => ("", "gauge"),
            MetricType::Histogram => ("", "histogram"),
            MetricType::Info if open => ("", "info"),
            MetricType::Info => ("_info", "gauge"),
        };
        let _ = writeln!(self.out, "# HELP {name}{ending} {help}");
        let _ = writeln!(self.out, "# TYPE {name}{ending} {kind}");
    }

    /// Adds a sample of the present family.
    pub fn sample(&mut self, labels: &[Label<'_>], value: impl Display) {
        let ending = match self.kind {
            MetricType::Counter => "_total",
            MetricType::Info => "_info",
            MetricType::Gauge | MetricType::Histogram => "",
        };
        self.line(ending, labels, None, value);
    }

    /// Adds a histogram of the present family. `bounds` are the upper bounds of all buckets but the
    /// last. The sum is multiplied by `unit`.
    pub(crate) fn histogram<const BUCKETS: usize>(
        &mut self,
        labels: &[Label<'_>],
        bounds: impl Iterator<Item = String>,
        histogram: &HistogramSnapshot<BUCKETS>,
        unit: f64,
    ) {
        let bounds = bounds.chain(["+Inf".to_owned()]);
        let mut count = 0;
        for (bound, count_of_bucket) in bounds.zip(histogram.counts) {
            count += count_of_bucket;
            self.line("_bucket", labels, Some(&bound), count);
        }
        self.line("_sum", labels, None, histogram.sum as f64 * unit);
        self.line("_count", labels, None, count);
    }

    /// Adds a histogram of the present family: the upper bounds of all buckets but the last, the
    /// number of values in each bucket, and the sum of all values.
    pub fn buckets(&mut self, labels: &[Label<'_>], bounds: &[f64], counts: &[u64], sum: f64) {
        let bounds = bounds.iter().map(ToString::to_string);
        let mut count = 0;
        for (bound, count_of_bucket) in bounds.chain(["+Inf".to_owned()]).zip(counts) {
            count += count_of_bucket;
            self.line("_bucket", labels, Some(&bound), count);
        }
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, count);
    }

    fn line(
        &mut self,
        ending: &str,
        labels: &[Label<'_>],
        bound: Option<&str>,
        value: impl Display,
    ) {
        let _ = write!(self.out, "{}{ending}", self.name);
        let bound = bound.map(|bound| ("le", bound));
        let mut before = '{';
        for (name, value) in labels.iter().copied().chain(bound) {
            let _ = write!(self.out, "{before}{name}=\"");
            for c in value.chars() {
                match c {
                    '\\' => self.out.push_str("\\\\"),
                    '"' => self.out.push_str("\\\""),
                    '\n' => self.out.push_str("\\n"),
                    c => self.out.push(c),
                }
            }
            self.out.push('"');
            before = ',';
        }
        let end = if before == ',' { "}" } else { "" };
        let _ = writeln!(self.out, "{end} {value}");
    }

    /// Returns the complete text.
    pub(crate) fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.out.push_str("# EOF\n");
        }
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(format: Format) -> String {
        let mut text = TextWriter::new(format);
        text.family("a_done", MetricType::Counter, "What is done.");
        text.sample(&[("worker", "0"), ("path", "a\"\\\n")], 7);
        text.family("a_build", MetricType::Info, "What it is.");
        text.sample(&[], 1);
        text.family("a_seconds", MetricType::Histogram, "How long.");
        let histogram = HistogramSnapshot {
            counts: [1, 0, 2],
            sum: 1_500_000_000,
        };
        let bounds = ["0.5", "1"].into_iter().map(str::to_owned);
        text.histogram(&[("m", "GET")], bounds, &histogram, 1e-9);
        text.finish()
    }

    #[test]
    fn renders_both_formats() {
        let rest = "a_seconds_bucket{m=\"GET\",le=\"0.5\"} 1\n\
                    a_seconds_bucket{m=\"GET\",le=\"1\"} 1\n\
                    a_seconds_bucket{m=\"GET\",le=\"+Inf\"} 3\n\
                    a_seconds_sum{m=\"GET\"} 1.5\na_seconds_count{m=\"GET\"} 3\n";
        let labels = "{worker=\"0\",path=\"a\\\"\\\\\\n\"}";
        assert_eq!(
            render(Format::Prometheus),
            format!(
                "# HELP a_done_total What is done.\n# TYPE a_done_total counter\n\
                 a_done_total{labels} 7\n\
                 # HELP a_build_info What it is.\n# TYPE a_build_info gauge\na_build_info 1\n\
                 # HELP a_seconds How long.\n# TYPE a_seconds histogram\n{rest}"
            )
        );
        assert_eq!(
            render(Format::OpenMetrics),
            format!(
                "# HELP a_done What is done.\n# TYPE a_done counter\na_done_total{labels} 7\n\
                 # HELP a_build What it is.\n# TYPE a_build info\na_build_info 1\n\
                 # HELP a_seconds How long.\n# TYPE a_seconds histogram\n{rest}# EOF\n"
            )
        );
    }
}
