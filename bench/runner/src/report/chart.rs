//! SVG charts, drawn by `plotters`: horizontal bars with intervals, and lines. The profiles and the
//! experiments share this module; it depends on no module that measures.

use super::short;
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use std::error::Error;

/// The errors of `plotters` have several types. They are errors of the backend, which writes to a
/// string.
type Drawn = Result<(), Box<dyn Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Sizes in pixels.
const WIDTH: u32 = 860;
const HEAD: u32 = 54;
const GROUP_TITLE: u32 = 24;
const BAR: u32 = 24;
const PANEL: u32 = 240;
/// Height below a panel for the values and the description of the axis.
const AXIS: u32 = 40;
/// Width to the left of a panel of lines, for the values of the axis.
const VALUES: u32 = 60;
/// Width for the names of lines.
const LEGEND: u32 = 130;
const MARGIN: i32 = 12;
/// Average width of a character of a name, and the largest width for names.
const CHARACTER: u32 = 7;
const NAMES_MAX: u32 = 400;

const FONT: &str = "sans-serif";
/// The axis ends at this multiple of the longest bar, so that its value fits behind it.
const ROOM: f64 = 1.15;

const REFERENCE: RGBColor = RGBColor(0xe8, 0x59, 0x0c);
const COLOURS: [RGBColor; 8] = [
    REFERENCE,
    RGBColor(0x5c, 0x8f, 0xc7),
    RGBColor(0x2f, 0x9e, 0x44),
    RGBColor(0xae, 0x3e, 0xc9),
    RGBColor(0xf0, 0x8c, 0x00),
    RGBColor(0x10, 0x98, 0xad),
    RGBColor(0x8b, 0x94, 0x9e),
    RGBColor(0xd6, 0x33, 0x6c),
];

/// What a bar shows. It determines the colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Onrush.
    Onrush,
    /// Another server, or a variant to compare with.
    Peer,
    /// A lower bound.
    Limit,
}

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Written to the left of the bar.
    pub name: String,
    /// Determines the colour.
    pub kind: Kind,
    /// Length of the bar.
    pub median: f64,
    /// Lower end of the error bar. There is none if both ends are equal.
    pub low: f64,
    /// Upper end of the error bar.
    pub high: f64,
}

/// Bars below a title.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// Such as the name of a scenario.
    pub title: String,
    /// From top to bottom.
    pub bars: Vec<Bar>,
}

/// A chart of horizontal bars.
#[derive(Clone, Debug)]
pub struct Bars<'a> {
    /// The first line.
    pub title: &'a str,
    /// The second line, for example what the error bars mean.
    pub note: &'a str,
    /// Description of the axis, with the unit.
    pub axis: &'a str,
    /// A vertical line at this value.
    pub reference: Option<f64>,
    /// Longer bars end here, so that one slow server does not shorten all others. Their values are
    /// marked with `»`.
    pub cap: f64,
    /// Drawn below each other, on the same scale.
    pub groups: &'a [Group],
}

impl Bars<'_> {
    /// Draws the chart and returns the SVG document.
    pub fn svg(&self) -> String {
        let heights = self.groups.iter().map(height);
        document(HEAD + heights.sum::<u32>(), |root| self.draw(&root))
    }

    fn draw(&self, root: &Area) -> Drawn {
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        let ends = bars().map(|bar| bar.high.max(bar.median));
        let longest = ends.chain(self.reference).filter(|end| end.is_finite());
        let end = longest.fold(1e-9, f64::max).min(self.cap) * ROOM;
        let names = bars().map(|bar| bar.name.chars().count()).max();
        let names = (names.unwrap_or(0) as u32 * CHARACTER + 24).min(NAMES_MAX);
        let mut rest = head(root, self.title, self.note)?;
        for group in self.groups {
            let (area, below) = rest.split_vertically(height(group));
            self.draw_group(&area, group, end, names)?;
            rest = below;
        }
        Ok(())
    }

    fn draw_group(&self, area: &Area, group: &Group, end: f64, names: u32) -> Drawn {
        area.draw_text(&group.title, &bold(15), (MARGIN, 4))?;
        // A range of length 0 has no scale.
        let count = group.bars.len().max(1) as f64;
        let mut chart = ChartBuilder::on(area)
            .margin_top(GROUP_TITLE)
            .margin_right(MARGIN)
            .x_label_area_size(AXIS)
            .y_label_area_size(names)
            // The first bar is at the top.
            .build_cartesian_2d(0.0..end, count..0.0)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .x_max_light_lines(1)
            .y_labels(0)
            .x_label_formatter(&|value| short(*value))
            .x_desc(self.axis)
            .label_style(text(13))
            .axis_desc_style(text(13))
            .draw()?;
        let reference = self.reference.map(|at| vec![(at, 0.0), (at, count)]);
        chart.draw_series(reference.map(|line| PathElement::new(line, REFERENCE)))?;
        let at = |row: usize, share: f64| row as f64 + share;
        let rows = || group.bars.iter().enumerate();
        chart.draw_series(rows().map(|(row, bar)| {
            let to = bar.median.min(self.cap);
            let colour = match bar.kind {
                Kind::Onrush => REFERENCE,
                Kind::Peer => COLOURS[1],
                Kind::Limit => COLOURS[6],
            };
            Rectangle::new([(0.0, at(row, 0.2)), (to, at(row, 0.8))], colour.filled())
        }))?;
        let with_interval = rows().filter(|(_, bar)| bar.high > bar.low && bar.median <= self.cap);
        chart.draw_series(with_interval.map(|(row, bar)| {
            let (low, high) = (bar.low, bar.high.min(end));
            ErrorBar::new_horizontal(at(row, 0.5), low, bar.median, high, BLACK.filled(), 8)
        }))?;
        chart.draw_series(rows().map(|(row, bar)| {
            let style = text(14).pos(Pos::new(HPos::Right, VPos::Center));
            EmptyElement::at((0.0, at(row, 0.5))) + Text::new(bar.name.clone(), (-8, 0), style)
        }))?;
        chart.draw_series(rows().map(|(row, bar)| {
            let (behind, value) = match bar.median > self.cap {
                true => (self.cap, format!("» {}", short(bar.median))),
                false => (bar.high.max(bar.median).min(self.cap), short(bar.median)),
            };
            let style = text(13).pos(Pos::new(HPos::Left, VPos::Center));
            EmptyElement::at((behind, at(row, 0.5))) + Text::new(value, (8, 0), style)
        }))?;
        Ok(())
    }
}

/// Height of a group in pixels.
fn height(group: &Group) -> u32 {
    GROUP_TITLE + group.bars.len() as u32 * BAR + AXIS
}

/// One line.
#[derive(Clone, Debug)]
pub struct Series {
    /// Shown in the legend.
    pub name: String,
    /// In the order in which they are connected.
    pub points: Vec<(f64, f64)>,
}

/// Lines over the same axis.
#[derive(Clone, Debug)]
pub struct Panel {
    /// Written above the lines.
    pub title: String,
    /// Each has a colour of its own.
    pub series: Vec<Series>,
}

/// Draws panels of lines below each other, on the same scales, and returns the SVG document.
/// `axis` describes the horizontal axis.
pub fn lines(title: &str, note: &str, axis: &str, panels: &[Panel]) -> String {
    let series = || panels.iter().flat_map(|panel| &panel.series);
    let points = || series().flat_map(|series| &series.points);
    let x_end = points().map(|point| point.0).fold(1e-9, f64::max);
    let y_end = points().map(|point| point.1).fold(1e-9, f64::max) * 1.05;
    let height = HEAD + panels.len() as u32 * PANEL;
    document(height, |root| {
        let mut rest = head(&root, title, note)?;
        for panel in panels {
            let (area, below) = rest.split_vertically(PANEL);
            draw_panel(&area, axis, panel, (x_end, y_end))?;
            rest = below;
        }
        Ok(())
    })
}

fn draw_panel(area: &Area, axis: &str, panel: &Panel, (x_end, y_end): (f64, f64)) -> Drawn {
    area.draw_text(&panel.title, &bold(15), (MARGIN, 4))?;
    let (area, legend) = area.split_horizontally(WIDTH - LEGEND);
    let mut chart = ChartBuilder::on(&area)
        .margin_top(GROUP_TITLE)
        .x_label_area_size(AXIS)
        .y_label_area_size(VALUES)
        .build_cartesian_2d(0.0..x_end, 0.0..y_end)?;
    chart
        .configure_mesh()
        .x_max_light_lines(1)
        .y_max_light_lines(1)
        .y_labels(6)
        .x_label_formatter(&|value| short(*value))
        .y_label_formatter(&|value| short(*value))
        .x_desc(axis)
        .label_style(text(13))
        .axis_desc_style(text(13))
        .draw()?;
    for (number, series) in panel.series.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let style = colour.stroke_width(2);
        chart.draw_series(LineSeries::new(series.points.iter().copied(), style))?;
        let y = (GROUP_TITLE + number as u32 * 18) as i32 + 8;
        legend.draw(&PathElement::new([(10, y), (28, y)], style))?;
        let style = text(13).pos(Pos::new(HPos::Left, VPos::Center));
        legend.draw_text(&series.name, &style, (34, y))?;
    }
    Ok(())
}

/// A document of this height, drawn by `draw` on a white background.
fn document(height: u32, draw: impl FnOnce(Area) -> Drawn) -> String {
    let mut svg = String::new();
    let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
    let drawn = || -> Drawn {
        root.fill(&WHITE)?;
        draw(root.clone())?;
        root.present()?;
        Ok(())
    };
    drawn().expect("writing to a string does not fail");
    drop(root);
    svg
}

/// Draws the first two lines of text. Returns the area below them.
fn head<'a>(root: &Area<'a>, title: &str, note: &str) -> Result<Area<'a>, Box<dyn Error>> {
    root.draw_text(title, &bold(18), (MARGIN, 8))?;
    root.draw_text(note, &text(14), (MARGIN, 32))?;
    Ok(root.split_vertically(HEAD).1)
}

fn text(size: u32) -> TextStyle<'static> {
    TextStyle::from((FONT, size).into_font())
}

fn bold(size: u32) -> TextStyle<'static> {
    TextStyle::from((FONT, size, FontStyle::Bold).into_font())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(name: &str, median: f64) -> Bar {
        Bar {
            name: name.to_owned(),
            kind: Kind::Peer,
            median,
            low: median * 0.9,
            high: median * 1.1,
        }
    }

    fn bars(groups: &[Group]) -> String {
        let chart = Bars {
            title: "a < b",
            note: "a note",
            axis: "CPU µs/request",
            reference: Some(1.0),
            cap: 6.0,
            groups,
        };
        chart.svg()
    }

    #[test]
    fn bars_have_names_values_and_intervals() {
        let group = Group {
            title: "64 connections".to_owned(),
            bars: vec![bar("x & y", 1.25), bar("slow", 20.0)],
        };
        let one = bars(std::slice::from_ref(&group));
        for text in [
            "a &lt; b",
            "x &amp; y",
            "CPU µs/request",
            "64 connections",
            "1.25",
        ] {
            assert!(one.contains(text), "{text}: {one}");
        }
        // A bar beyond the cap has its value and no interval.
        assert!(one.contains("» 20.0"), "{one}");
        assert_eq!(one.matches("<circle ").count(), 1);
        // The background and the bars.
        assert_eq!(one.matches("<rect ").count(), 3);
        assert!(one.trim_end().ends_with("</svg>"));
        let two = bars(&[group.clone(), group]);
        assert_eq!(two.matches("<rect ").count(), 5);
    }

    #[test]
    fn bars_without_values_still_give_a_document() {
        let empty = bars(&[]);
        assert!(
            empty.contains("a note") && !empty.contains("NaN"),
            "{empty}"
        );
    }

    #[test]
    fn every_line_is_drawn_and_named() {
        let panel = Panel {
            title: "p".to_owned(),
            series: vec![Series {
                name: "worker 0".to_owned(),
                points: vec![(0.0, 0.0), (1.0, 2.0), (2.0, 1.0)],
            }],
        };
        let svg = lines("t", "n", "s", &[panel.clone(), panel]);
        assert_eq!(svg.matches("worker 0").count(), 2);
        assert!(svg.matches("<polyline ").count() >= 2);
        assert!(!svg.contains("NaN"), "{svg}");
    }
}
