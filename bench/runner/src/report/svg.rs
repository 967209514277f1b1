//! The chart of a profile, made from the CSV file of its rows: CPU or latency of each server as a
//! ratio to Onrush. `chart` draws it.

use super::{
    MARK,
    chart::{Bar, Bars, Group, Kind},
    csv::Line,
};
use crate::row::About;

/// Longer bars are cut here.
const RATIO_MAX: f64 = 6.0;

/// The chart of one profile, relative to the server `base`. `None` if there is nothing to draw.
pub(crate) fn chart(profile: &str, what: &str, base: &str, lines: &[Line]) -> Option<String> {
    let groups = groups(base, lines);
    if groups.is_empty() {
        return None;
    }
    let mut bars = groups.iter().flat_map(|group| &group.bars);
    let omits = match bars.any(|bar| bar.name.ends_with(MARK)) {
        true => format!("; {MARK} omits work that Onrush does"),
        false => String::new(),
    };
    let unit = lines.first().map_or("", |line| &line.unit);
    let chart = Bars {
        title: &format!("{profile}: {what}"),
        note: &format!("less is better; error bars: interval of the median{omits}"),
        axis: &format!("{unit}, relative to {base}"),
        reference: Some(1.0),
        cap: RATIO_MAX,
        groups: &groups,
    };
    Some(chart.svg())
}

/// What can be shown relative to `base`: the servers compared with it, and its lower bound. Each
/// group is a scenario, lowest ratio first.
fn groups(base: &str, lines: &[Line]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for line in lines {
        let Some((median, low, high)) = line.ratio else {
            continue;
        };
        let marked = |name: &str, omits: &str| match omits.is_empty() {
            true => name.to_owned(),
            false => format!("{name}{MARK}"),
        };
        let direct = |kind| Bar {
            name: marked(&line.server, &line.omits),
            kind,
            median,
            low,
            high,
        };
        let is_compared = line.reference == base;
        let is_bound = line.about == About::Bound.name();
        let bar = match line.about.as_str() {
            "peer" if is_compared => direct(Kind::Peer),
            "driver" | "feature" if is_compared => direct(Kind::Onrush),
            "limit" if line.server == base => Bar {
                name: marked(&line.reference, &line.reference_omits),
                kind: Kind::Limit,
                median: 1.0 / median,
                low: 1.0 / high,
                high: 1.0 / low,
            },
            _ if is_bound => direct(Kind::Onrush),
            _ => continue,
        };
        let title = match is_bound {
            true => format!("{} ({} = 1)", line.scenario, line.reference),
            false => line.scenario.clone(),
        };
        let at = groups.iter().position(|group| group.title == title);
        let at = at.unwrap_or_else(|| {
            let own = Bar {
                name: base.to_owned(),
                kind: Kind::Onrush,
                median: 1.0,
                low: 1.0,
                high: 1.0,
            };
            let bars = if is_bound { Vec::new() } else { vec![own] };
            groups.push(Group { title, bars });
            groups.len() - 1
        });
        groups[at].bars.push(bar);
    }
    for group in &mut groups {
        group.bars.sort_by(|a, b| a.median.total_cmp(&b.median));
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(about: About, server: &str, reference: &str, ratio: f64) -> Line {
        Line {
            scenario: "64 connections".to_owned(),
            about: about.name().to_owned(),
            unit: "CPU µs/request".to_owned(),
            server: server.to_owned(),
            reference: reference.to_owned(),
            omits: String::new(),
            reference_omits: String::new(),
            ratio: Some((ratio, ratio, ratio)),
        }
    }

    #[test]
    fn bars_are_relative_to_the_base_and_sorted() {
        let base = "onrush-io_uring";
        let peer = line(About::Peer, "peer", base, 2.0);
        let limit = line(About::Limit, base, "limit-uring", 1.25);
        let other_base = line(About::Peer, "peer", "onrush-epoll", 3.0);
        let void = Line {
            ratio: None,
            ..peer.clone()
        };
        let groups = groups(base, &[peer.clone(), limit, other_base.clone(), void]);
        let bars: Vec<(&str, f64)> = groups[0]
            .bars
            .iter()
            .map(|bar| (bar.name.as_str(), bar.median))
            .collect();
        let expected = [("limit-uring", 0.8), (base, 1.0), ("peer", 2.0)];
        assert_eq!((bars.as_slice(), groups.len()), (&expected[..], 1));
        assert_eq!(chart("p", "w", base, &[other_base]), None);
        let svg = chart("p", "w", base, &[peer]);
        assert!(svg.is_some_and(|svg| svg.contains("peer")));
    }

    #[test]
    fn a_server_that_omits_work_is_marked() {
        let mut lean = line(About::Peer, "lean", "onrush-io_uring", 2.0);
        lean.omits = "no Date field".to_owned();
        let svg = chart("p", "w", "onrush-io_uring", &[lean]).expect("a bar");
        assert!(
            svg.contains("lean†") && svg.contains("† omits work"),
            "{svg}"
        );
    }

    #[test]
    fn a_bound_has_its_own_group() {
        let bound = line(About::Bound, "onrush-epoll", "target", 0.5);
        let groups = groups("onrush-io_uring", &[bound]);
        assert_eq!(groups[0].title, "64 connections (target = 1)");
        assert_eq!(groups[0].bars.len(), 1);
    }
}
