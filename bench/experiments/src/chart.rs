//! Charts: bars with what they varied by, and lines over time. Must not know what they are of.

use runner::report::svg::{STYLE, WIDTH, escape, text, whisker};
use std::fmt::Write;

/// Where bars begin, behind their names.
const LEFT: f64 = 300.0;
/// Room for the number behind a bar.
const RIGHT: f64 = 150.0;
const LINE: f64 = 24.0;
const BAR: f64 = 14.0;

/// Lines and their places, by worker or by series; to be read on white and on black.
const COLOURS: [&str; 8] = [
    "#e8590c", "#5c8fc7", "#2f9e44", "#ae3ec9", "#f08c00", "#1098ad", "#8b949e", "#d6336c",
];

/// One bar: its name, whether it is ours, and the figures that were measured.
#[derive(Clone, Debug)]
pub(crate) struct Bar {
    pub(crate) name: String,
    pub(crate) ours: bool,
    pub(crate) values: Vec<f64>,
}

/// Bars of medians, with whiskers from the least to the greatest; a dashed line at `target`.
pub(crate) fn bars(title: &str, note: &str, target: Option<f64>, bars: &[Bar]) -> String {
    let values = bars.iter().flat_map(|bar| bar.values.iter().copied());
    let most = values.chain(target).fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - LEFT - RIGHT) / most;
    let height = 76.0 + bars.len() as f64 * LINE;
    let mut svg = head(title, note, height);
    let mut y = 64.0;
    for bar in bars {
        let middle = y + BAR / 2.0;
        text(&mut svg, LEFT - 10.0, middle + 4.5, "b", "end", &bar.name);
        let sorted = runner::stats::sorted(bar.values.iter().copied());
        let median = runner::stats::median(bar.values.iter().copied());
        let (Some(&min), Some(&max)) = (sorted.first(), sorted.last()) else {
            y += LINE;
            continue;
        };
        let class = if bar.ours { "o" } else { "p" };
        let _ = writeln!(
            svg,
            "<rect class=\"{class}\" x=\"{LEFT}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{BAR}\" \
             rx=\"2\"/>",
            median * scale
        );
        if max > min {
            whisker(&mut svg, LEFT + min * scale, LEFT + max * scale, middle);
        }
        let end = LEFT + max * scale + 8.0;
        text(&mut svg, end, middle + 4.5, "n", "start", &short(median));
        y += LINE;
    }
    if let Some(target) = target {
        let x = LEFT + target * scale;
        let _ = writeln!(
            svg,
            "<line class=\"r\" x1=\"{x:.1}\" y1=\"58\" x2=\"{x:.1}\" y2=\"{:.1}\"/>",
            y - LINE + BAR + 6.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// One line: its name and its points.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// One panel of lines over the same time.
#[derive(Clone, Debug)]
pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) series: Vec<Series>,
}

const PANEL: f64 = 170.0;
const AXIS: f64 = 60.0;

/// Panels one below the other, all with the axes `x` (its unit in `x_unit`) and `y`.
pub(crate) fn lines(title: &str, note: &str, x_unit: &str, panels: &[Panel]) -> String {
    let points = || panels.iter().flat_map(|panel| &panel.series);
    let points = || points().flat_map(|series| series.points.iter());
    let x_max = points().map(|point| point.0).fold(1e-9, f64::max);
    let y_max = points().map(|point| point.1).fold(1e-9, f64::max) * 1.05;
    let height = 70.0 + panels.len() as f64 * (PANEL + 58.0);
    let mut svg = head(title, note, height);
    let mut top = 70.0;
    let width = WIDTH - AXIS - 30.0;
    for panel in panels {
        text(&mut svg, 12.0, top + 4.0, "g", "start", &panel.title);
        let (y0, y1) = (top + 16.0 + PANEL, top + 16.0);
        for part in 0..=4 {
            let share = f64::from(part) / 4.0;
            let y = y0 - PANEL * share;
            let _ = writeln!(
                svg,
                "<line class=\"w\" x1=\"{AXIS}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\" \
                 opacity=\"0.25\"/>",
                AXIS + width
            );
            let label = short(y_max * share);
            text(&mut svg, AXIS - 8.0, y + 4.0, "n", "end", &label);
            let x = AXIS + width * share;
            let label = format!("{} {x_unit}", short(x_max * share));
            text(&mut svg, x, y0 + 16.0, "n", "middle", &label);
        }
        for (at, series) in panel.series.iter().enumerate() {
            let colour = COLOURS[at % COLOURS.len()];
            let place = |&(x, y): &(f64, f64)| {
                let x = AXIS + width * x / x_max;
                format!("{x:.1},{:.1}", y0 - (y0 - y1) * y / y_max)
            };
            let all: Vec<String> = series.points.iter().map(place).collect();
            let _ = writeln!(
                svg,
                "<polyline fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\" points=\"{}\">\
                 <title>{}</title></polyline>",
                all.join(" "),
                escape(&series.name)
            );
        }
        top += PANEL + 58.0;
    }
    svg.push_str("</svg>\n");
    svg
}

fn head(title: &str, note: &str, height: f64) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<title>{}</title>\n\
         <style>{STYLE}</style>\n",
        escape(title)
    );
    text(&mut svg, 12.0, 24.0, "t", "start", title);
    text(&mut svg, 12.0, 44.0, "n", "start", note);
    svg
}

fn short(number: f64) -> String {
    match number.abs() {
        0.0..10.0 => format!("{number:.2}"),
        10.0..100.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_and_line_is_there_and_names_are_escaped() {
        let one = |name: &str| Bar {
            name: name.to_owned(),
            ours: true,
            values: vec![1.0, 2.0, 4.0],
        };
        let svg = bars("a < b", "", Some(1.1), &[one("x & y"), one("z")]);
        assert!(
            svg.contains("a &lt; b") && svg.contains("x &amp; y"),
            "{svg}"
        );
        assert_eq!(svg.matches("<rect ").count(), 2);
        assert!(svg.ends_with("</svg>\n"));
        let panel = Panel {
            title: "p".to_owned(),
            series: vec![Series {
                name: "s".to_owned(),
                points: vec![(0.0, 0.0), (1.0, 2.0)],
            }],
        };
        let svg = lines("t", "n", "s", &[panel.clone(), panel]);
        assert_eq!(svg.matches("<polyline ").count(), 2);
        assert!(!svg.contains("NaN"), "{svg}");
    }

    #[test]
    fn nothing_measured_draws_no_bar() {
        let empty = Bar {
            name: "x".to_owned(),
            ours: false,
            values: Vec::new(),
        };
        let svg = bars("t", "n", None, &[empty]);
        assert_eq!(svg.matches("<rect ").count(), 0);
    }
}
