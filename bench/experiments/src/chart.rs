//! Charts of the experiments: bars of medians with the range of the values, and lines. The runner
//! draws them.

use runner::{
    report::chart::{self, Bars, Group, Kind},
    stats::Summary,
};

pub(crate) use runner::report::chart::{Panel, Series, lines};

/// One bar.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) name: String,
    /// Whether it shows Onrush, which determines the colour.
    pub(crate) ours: bool,
    /// The measured values. Without values there is no bar.
    pub(crate) values: Vec<f64>,
}

/// Draws bars of medians, with error bars from the lowest to the highest value, and a vertical line
/// at `target`. `note` names the unit.
pub(crate) fn bars(title: &str, note: &str, target: Option<f64>, bars: &[Bar]) -> String {
    let drawn = |bar: &Bar| {
        let summary = Summary::of(bar.values.iter().copied())?;
        Some(chart::Bar {
            name: bar.name.clone(),
            kind: if bar.ours { Kind::Onrush } else { Kind::Peer },
            median: summary.median,
            low: summary.min,
            high: summary.max,
        })
    };
    let group = Group {
        title: String::new(),
        bars: bars.iter().filter_map(drawn).collect(),
    };
    let chart = Bars {
        title,
        note,
        axis: "",
        reference: target,
        cap: f64::INFINITY,
        groups: &[group],
    };
    chart.svg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_measured_bars_are_drawn() {
        let bar = |name: &str, values: &[f64]| Bar {
            name: name.to_owned(),
            ours: true,
            values: values.to_vec(),
        };
        let drawn = [bar("measured", &[1.0, 2.0, 4.0]), bar("not measured", &[])];
        let svg = bars("t", "n", Some(1.1), &drawn);
        assert!(
            svg.contains("measured") && !svg.contains("not measured"),
            "{svg}"
        );
        assert!(svg.contains("2.00"), "{svg}");
    }
}
