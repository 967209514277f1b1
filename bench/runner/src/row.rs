//! A row of the results: the two servers that are compared, and the measurements of every round.

use crate::{
    stats::{Summary, median},
    wrk::Report,
};

/// The target for a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// The ratio must not exceed this.
    AtMost(f64),
    /// The ratio must not be below this.
    AtLeast(f64),
}

impl Target {
    /// Whether `ratio` meets the target.
    pub fn holds(self, ratio: f64) -> bool {
        match self {
            Target::AtMost(most) => ratio <= most,
            Target::AtLeast(least) => ratio >= least,
        }
    }

    /// The text for tables.
    pub fn shown(self) -> String {
        match self {
            Target::AtMost(most) => format!("≤ {most:.2}"),
            Target::AtLeast(least) => format!("≥ {least:.2}"),
        }
    }
}

/// One of the two servers of a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Side {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) configuration: String,
    pub(crate) omits: Vec<String>,
    /// The driver, if the server is Onrush.
    pub(crate) driver: &'static str,
    /// System calls per request, if they could be counted.
    pub(crate) calls: Option<f64>,
    /// Peak resident memory in bytes.
    pub(crate) peak_bytes: Option<u64>,
}

impl Side {
    /// A reference that is not a server, such as a bound.
    pub(crate) fn named(name: &str) -> Side {
        Side {
            name: name.to_owned(),
            ..Side::default()
        }
    }
}

/// The measurements of one server in one round. Metrics that were not measured are NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Metrics {
    /// In the unit of the row. The row's ratio compares these values.
    pub(crate) value: f64,
    pub(crate) requests_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
}

impl Metrics {
    /// All of them, in the order of the columns of reports.
    pub(crate) const COLUMNS: [fn(&Metrics) -> f64; 5] = [
        |metrics| metrics.value,
        |metrics| metrics.requests_per_s,
        |metrics| metrics.p50_us,
        |metrics| metrics.p99_us,
        |metrics| metrics.p999_us,
    ];

    /// Those of a load that has received `requests` responses.
    pub(crate) fn of(report: &Report, requests: f64, value: f64) -> Metrics {
        Metrics {
            value,
            requests_per_s: requests / report.us * 1e6,
            p50_us: report.p50_us,
            p99_us: report.p99_us,
            p999_us: report.p999_us,
        }
    }

    pub(crate) fn only(value: f64) -> Metrics {
        Metrics {
            value,
            requests_per_s: f64::NAN,
            p50_us: f64::NAN,
            p99_us: f64::NAN,
            p999_us: f64::NAN,
        }
    }
}

/// The measurements of both servers at the same time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Round {
    pub(crate) server: Metrics,
    pub(crate) reference: Metrics,
}

/// The purpose of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum About {
    /// Onrush compared with a lower bound. The ratio is above 1 by what Onrush adds.
    Limit,
    /// Onrush on one driver compared with the other driver.
    Driver,
    /// A server compared with itself. The difference from 1 shows the error of the other rows.
    Control,
    /// Another server compared with Onrush. The ratio is above 1 if Onrush needs less.
    #[default]
    Peer,
    /// Onrush with a feature compared with Onrush without it.
    Feature,
    /// Onrush compared with a constant.
    Bound,
}

impl About {
    pub(crate) fn name(self) -> &'static str {
        match self {
            About::Limit => "limit",
            About::Driver => "driver",
            About::Control => "control",
            About::Peer => "peer",
            About::Feature => "feature",
            About::Bound => "bound",
        }
    }
}

/// The unit of most rows.
pub(crate) const CPU: &str = "CPU µs/request";

/// A row of a table. Its ratio is the server's value divided by the reference's value.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub(crate) profile: &'static str,
    pub(crate) scenario: String,
    pub(crate) about: About,
    pub(crate) unit: &'static str,
    pub(crate) server: Side,
    pub(crate) reference: Side,
    pub(crate) durability: &'static str,
    pub(crate) access_log: &'static str,
    pub(crate) target: Option<Target>,
    pub(crate) rounds: Vec<Round>,
    /// The reason of each void round.
    pub(crate) voids: Vec<String>,
    /// Other information that a reader needs.
    pub(crate) note: String,
    /// Bytes that a request transfers, if CPU per volume is shown.
    pub(crate) volume_bytes: Option<u64>,
}

impl Row {
    /// The ratio of both servers over all valid rounds. `None` if there is no valid round.
    pub fn ratio(&self) -> Option<Summary> {
        let ratio = |round: &Round| round.server.value / round.reference.value;
        Summary::of(self.rounds.iter().map(ratio).filter(|r| r.is_finite()))
    }

    /// The number of valid rounds.
    pub fn count(&self) -> usize {
        self.rounds.len()
    }

    /// Whether the target is met. `None` if there is no target, or if more rounds are void than
    /// valid.
    pub fn holds(&self) -> Option<bool> {
        let ratio = self.ratio()?.median;
        let enough = self.rounds.len() >= self.voids.len();
        self.target
            .filter(|_| enough)
            .map(|target| target.holds(ratio))
    }

    /// Whether the target is within the interval, so that the result is not certain.
    pub fn is_close(&self) -> bool {
        let Some((target, ratio)) = self.target.zip(self.ratio()) else {
            return false;
        };
        target.holds(ratio.low) != target.holds(ratio.high)
    }

    /// The median of a metric of the server; NaN if there is no valid round.
    pub(crate) fn of_server(&self, metric: fn(&Metrics) -> f64) -> f64 {
        median(self.rounds.iter().map(|round| metric(&round.server)))
    }

    /// As [`Row::of_server`], of the reference.
    pub(crate) fn of_reference(&self, metric: fn(&Metrics) -> f64) -> f64 {
        median(self.rounds.iter().map(|round| metric(&round.reference)))
    }

    /// The work that each of the two servers omits, after its name.
    pub(crate) fn omits(&self) -> Vec<String> {
        let of = |side: &Side| match side.omits.is_empty() {
            true => None,
            false => Some(format!("{}: {}", side.name, side.omits.join("; "))),
        };
        [of(&self.server), of(&self.reference)]
            .into_iter()
            .flatten()
            .collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A row with these values of the server and of the reference.
    pub(crate) fn row(values: &[(f64, f64)]) -> Row {
        let round = |&(server, reference): &(f64, f64)| Round {
            server: Metrics::only(server),
            reference: Metrics::only(reference),
        };
        Row {
            profile: "plaintext",
            scenario: "64 connections".to_owned(),
            about: About::Peer,
            unit: CPU,
            server: Side::named("peer"),
            reference: Side::named("onrush-io_uring"),
            access_log: "off",
            target: Some(Target::AtLeast(1.0)),
            rounds: values.iter().map(round).collect(),
            ..Row::default()
        }
    }

    #[test]
    fn the_ratio_is_of_each_round_and_not_of_the_medians() {
        let row = row(&[(2.0, 1.0), (30.0, 10.0), (400.0, 100.0)]);
        let ratio = row.ratio().expect("rounds");
        assert_eq!((ratio.median, ratio.min, ratio.max), (3.0, 2.0, 4.0));
        assert_eq!(row.of_server(|metrics| metrics.value), 30.0);
        assert_eq!(row.of_reference(|metrics| metrics.value), 10.0);
        assert_eq!(row.holds(), Some(true));
    }

    #[test]
    fn a_target_is_undecided_without_enough_rounds() {
        let mut empty = row(&[]);
        assert_eq!((empty.ratio(), empty.holds()), (None, None));
        empty.rounds = row(&[(1.1, 1.0)]).rounds;
        empty.target = Some(Target::AtMost(1.05));
        assert_eq!(empty.holds(), Some(false));
        assert!(!empty.is_close());
        empty.voids = vec!["status 404".to_owned(); 2];
        assert_eq!(empty.holds(), None, "most rounds are void");
        empty.voids.clear();
        empty.target = None;
        assert_eq!(empty.holds(), None);
        let mut close = row(&[(1.0, 1.0), (1.02, 1.0), (1.1, 1.0)]);
        close.target = Some(Target::AtMost(1.05));
        assert!(close.holds() == Some(true) && close.is_close());
    }

    #[test]
    fn omitted_work_has_the_name_of_its_server() {
        let mut row = row(&[]);
        assert!(row.omits().is_empty());
        row.server.omits = vec!["no date".to_owned(), "no limits".to_owned()];
        assert_eq!(row.omits(), ["peer: no date; no limits"]);
    }
}
