//! One line of a result: what was compared, and every round of it. Must not know how it was
//! measured, nor how it is shown.

use crate::stats::{Summary, median};

/// What is promised of a ratio.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

impl Target {
    /// Whether `ratio` is as promised.
    pub fn holds(self, ratio: f64) -> bool {
        match self {
            Target::AtMost(most) => ratio <= most,
            Target::AtLeast(least) => ratio >= least,
        }
    }

    /// As it stands in tables.
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
    pub(crate) told: String,
    pub(crate) skips: Vec<String>,
    /// The kernel interface, when it is one of ours.
    pub(crate) driver: &'static str,
    /// System calls of a request, when they could be counted.
    pub(crate) calls: Option<f64>,
    /// The most memory that was resident, in bytes.
    pub(crate) peak_bytes: Option<u64>,
}

impl Side {
    /// What is no server, such as a bound.
    pub(crate) fn named(name: &str) -> Side {
        Side {
            name: name.to_owned(),
            ..Side::default()
        }
    }
}

/// What one round gave for one side. What was not measured is not a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Metrics {
    /// In the unit of the row; the ratio is of these.
    pub(crate) value: f64,
    pub(crate) requests_per_s: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) p999_us: f64,
}

impl Metrics {
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

/// Both sides at the same moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Round {
    pub(crate) server: Metrics,
    pub(crate) reference: Metrics,
}

/// What a row is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// Ours against the least it could cost: above 1 by what ours adds.
    Limit,
    /// Ours against ours on the other driver.
    Driver,
    /// The same twice: what differs from 1 is the error of the others.
    Control,
    /// Somebody else's against ours: above 1 where ours needs less.
    Peer,
    /// Ours with something switched on against ours without.
    Feature,
    /// Ours against a figure that was promised.
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

/// A row of a table. Its ratio is the server's value by the reference's.
#[derive(Clone, Debug)]
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
    /// Why rounds count for nothing; a reason each.
    pub(crate) voids: Vec<String>,
    /// Anything else that must be known to read it.
    pub(crate) note: String,
    /// Bytes that a request moves, where CPU by volume says more.
    pub(crate) volume_bytes: Option<u64>,
}

impl Row {
    /// The ratio of both, over all rounds that count; `None` when none does.
    pub fn ratio(&self) -> Option<Summary> {
        let ratio = |round: &Round| round.server.value / round.reference.value;
        Summary::of(self.rounds.iter().map(ratio).filter(|r| r.is_finite()))
    }

    /// Rounds that count.
    pub fn count(&self) -> usize {
        self.rounds.len()
    }

    /// Whether what is promised holds; `None` when nothing is, or not enough was measured: more
    /// rounds are void than not.
    pub fn holds(&self) -> Option<bool> {
        let ratio = self.ratio()?.median;
        let enough = self.rounds.len() >= self.voids.len();
        self.target
            .filter(|_| enough)
            .map(|target| target.holds(ratio))
    }

    /// Whether that could be otherwise, as far as the interval tells.
    pub fn is_close(&self) -> bool {
        let Some((target, ratio)) = self.target.zip(self.ratio()) else {
            return false;
        };
        target.holds(ratio.low) != target.holds(ratio.high)
    }

    /// The median of a figure of the server; of none, not a number.
    pub(crate) fn of_server(&self, figure: fn(&Metrics) -> f64) -> f64 {
        median(self.rounds.iter().map(|round| figure(&round.server)))
    }

    pub(crate) fn of_reference(&self, figure: fn(&Metrics) -> f64) -> f64 {
        median(self.rounds.iter().map(|round| figure(&round.reference)))
    }

    /// Work that one of both leaves out, with whose it is.
    pub(crate) fn skips(&self) -> Vec<String> {
        let of = |side: &Side| match side.skips.is_empty() {
            true => None,
            false => Some(format!("{}: {}", side.name, side.skips.join("; "))),
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
            durability: "",
            access_log: "off",
            target: Some(Target::AtLeast(1.0)),
            rounds: values.iter().map(round).collect(),
            voids: Vec::new(),
            note: String::new(),
            volume_bytes: None,
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
    fn nothing_measured_holds_nothing() {
        let mut empty = row(&[]);
        assert_eq!((empty.ratio(), empty.holds()), (None, None));
        empty.rounds = row(&[(1.1, 1.0)]).rounds;
        empty.target = Some(Target::AtMost(1.05));
        assert_eq!(empty.holds(), Some(false));
        assert!(!empty.is_close());
        empty.voids = vec!["answered 404".to_owned(); 2];
        assert_eq!(empty.holds(), None, "most of it is void");
        empty.voids.clear();
        empty.target = None;
        assert_eq!(empty.holds(), None);
        let mut close = row(&[(1.0, 1.0), (1.02, 1.0), (1.1, 1.0)]);
        close.target = Some(Target::AtMost(1.05));
        assert!(close.holds() == Some(true) && close.is_close());
    }

    #[test]
    fn skips_say_whose_they_are() {
        let mut row = row(&[]);
        assert!(row.skips().is_empty());
        row.server.skips = vec!["no date".to_owned(), "no limits".to_owned()];
        assert_eq!(row.skips(), ["peer: no date; no limits"]);
    }
}
