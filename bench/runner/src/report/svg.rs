//! A chart of a profile: bars of what each server needs of what ours needs. Must not know how rows
//! came to be.
//!
//! Colours are chosen to be read on white and on black; where the viewer says which it has, text
//! takes the stronger tone.

use super::MARK;
use crate::row::{About, Row};
use std::fmt::Write;

/// Of every chart.
pub const WIDTH: f64 = 860.0;
/// Where bars begin, behind their names.
const LEFT: f64 = 230.0;
/// Room for the number behind a bar.
const RIGHT: f64 = 130.0;
/// Room that a number takes with what is before it.
const NUMBER: f64 = 44.0;
const LINE: f64 = 24.0;
const BAR: f64 = 14.0;
/// Bars end here, broken, so that one slow server does not squeeze all others.
const RATIO_MAX: f64 = 6.0;

/// Classes: `t` title, `g` heading, `n` note, `o` ours, `p` peers, `l` limits, `w` thin lines, `r`
/// the line of a reach.
pub const STYLE: &str = "\
text{font:13px system-ui,sans-serif;fill:#6e7781}.t{font-weight:600;font-size:15px}\
.g{font-weight:600}.n{font-size:12px}.o{fill:#e8590c}.p{fill:#5c8fc7}.l{fill:#8b949e}\
.w{stroke:#6e7781;stroke-width:1.5}.r{stroke:#e8590c;stroke-width:1;stroke-dasharray:4 3}\
@media (prefers-color-scheme:dark){text{fill:#c9d1d9}.w{stroke:#c9d1d9}}\
@media (prefers-color-scheme:light){text{fill:#24292f}.w{stroke:#24292f}}";

/// One bar.
#[derive(Clone, Debug, PartialEq)]
struct Bar {
    name: String,
    class: &'static str,
    ratio: f64,
    low: f64,
    high: f64,
}

/// Bars of one scenario, least first.
struct Group {
    title: String,
    bars: Vec<Bar>,
}

/// The chart of one profile beside `base`; `None` when there is nothing to draw.
pub(crate) fn chart(profile: &str, what: &str, base: &str, rows: &[Row]) -> Option<String> {
    let groups = groups(base, rows);
    let lines: usize = groups.iter().map(|group| group.bars.len() + 2).sum();
    let first = groups.first()?;
    let most = groups.iter().flat_map(|group| &group.bars);
    let most = most.map(|bar| bar.high.max(bar.ratio)).fold(1.2, f64::max);
    let scale = (WIDTH - LEFT - RIGHT) / most.min(RATIO_MAX);
    let has_marks = groups
        .iter()
        .flat_map(|g| &g.bars)
        .any(|bar| bar.name.ends_with(MARK));
    let height = 64.0 + lines as f64 * LINE + if has_marks { LINE } else { 0.0 };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<title>{}</title>\n\
         <style>{STYLE}</style>\n",
        escape(&format!("{profile}: {}", first.title))
    );
    let unit = rows.first().map_or("", |row| row.unit);
    text(
        &mut svg,
        12.0,
        24.0,
        "t",
        "start",
        &format!("{profile}: {what}"),
    );
    let told = format!("{unit}, {base} = 1.00; shorter is better; whiskers: 95 % interval");
    text(&mut svg, 12.0, 44.0, "n", "start", &told);
    let mut y = 64.0;
    for group in &groups {
        draw(&mut svg, group, scale, &mut y);
    }
    if has_marks {
        let told = format!("{MARK} leaves work out that Onrush does for the same request");
        text(&mut svg, 12.0, y + 8.0, "n", "start", &told);
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

/// What can be said relative to `base`: others beside it, and the limit that it was beside.
fn groups(base: &str, rows: &[Row]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for row in rows {
        let Some(ratio) = row.ratio() else {
            continue;
        };
        let mark = |skips: &[String]| if skips.is_empty() { "" } else { MARK };
        let direct = |class| Bar {
            name: format!("{}{}", row.server.name, mark(&row.server.skips)),
            class,
            ratio: ratio.median,
            low: ratio.low,
            high: ratio.high,
        };
        let is_beside = row.reference.name == base;
        let bar = match row.about {
            About::Peer if is_beside => direct("p"),
            About::Driver | About::Feature if is_beside => direct("o"),
            About::Bound => direct("o"),
            About::Limit if row.server.name == base => Bar {
                name: format!("{}{}", row.reference.name, mark(&row.reference.skips)),
                class: "l",
                ratio: 1.0 / ratio.median,
                low: 1.0 / ratio.high,
                high: 1.0 / ratio.low,
            },
            _ => continue,
        };
        let is_bound = row.about == About::Bound;
        let title = match is_bound {
            true => format!("{} ({} = 1.00)", row.scenario, row.reference.name),
            false => row.scenario.clone(),
        };
        let at = groups.iter().position(|group| group.title == title);
        let at = at.unwrap_or_else(|| {
            let own = Bar {
                name: base.to_owned(),
                class: "o",
                ratio: 1.0,
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
        group.bars.sort_by(|a, b| a.ratio.total_cmp(&b.ratio));
    }
    groups
}

fn draw(svg: &mut String, group: &Group, scale: f64, y: &mut f64) {
    *y += LINE * 0.75;
    text(svg, 12.0, *y, "g", "start", &group.title);
    *y += LINE * 0.5;
    let top = *y - 4.0;
    for bar in &group.bars {
        let middle = *y + BAR / 2.0;
        text(svg, LEFT - 10.0, middle + 4.5, "b", "end", &bar.name);
        let end = bar.ratio.min(RATIO_MAX) * scale;
        let _ = writeln!(
            svg,
            "<rect class=\"{}\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{end:.1}\" height=\"{BAR}\" \
             rx=\"2\"/>",
            bar.class, *y
        );
        let mut behind = LEFT + end;
        let broken = bar.ratio > RATIO_MAX;
        if !broken && bar.high > bar.low {
            let (low, high) = (bar.low * scale, bar.high.min(RATIO_MAX) * scale);
            whisker(svg, LEFT + low, LEFT + high, middle);
            behind = behind.max(LEFT + high);
        }
        // A number across the line of 1.00 could not be read.
        let line = LEFT + scale;
        if behind < line && behind + NUMBER > line {
            behind = line;
        }
        let shown = match broken {
            true => format!("» {:.2}", bar.ratio),
            false => format!("{:.2}", bar.ratio),
        };
        text(svg, behind + 8.0, middle + 4.5, "n", "start", &shown);
        *y += LINE;
    }
    let x = LEFT + scale;
    let _ = writeln!(
        svg,
        "<line class=\"r\" x1=\"{x:.1}\" y1=\"{top:.1}\" x2=\"{x:.1}\" y2=\"{:.1}\"/>",
        *y - LINE + BAR + 4.0
    );
    *y += LINE * 0.75;
}

/// A line from `low` to `high`, with ends.
pub fn whisker(svg: &mut String, low: f64, high: f64, y: f64) {
    let mut line = |x1: f64, y1: f64, x2: f64, y2: f64| {
        let _ = writeln!(
            svg,
            "<line class=\"w\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    };
    line(low, y, high, y);
    line(low, y - 4.0, low, y + 4.0);
    line(high, y - 4.0, high, y + 4.0);
}

/// One line of text.
pub fn text(svg: &mut String, x: f64, y: f64, class: &str, anchor: &str, what: &str) {
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>",
        escape(what)
    );
}

/// As XML wants it between tags and in attributes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '&' => escaped.push_str("&amp;"),
            '"' => escaped.push_str("&quot;"),
            char => escaped.push(char),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::row;

    #[test]
    fn names_are_escaped_and_tags_closed() {
        let mut odd = row(&[(2.0, 1.0)]);
        odd.server.name = "<a & \"b\">".to_owned();
        odd.server.skips = vec!["no date".to_owned()];
        let svg = chart("plain", "a < b", "onrush-io_uring", &[odd]).expect("a bar");
        assert!(svg.contains("&lt;a &amp; &quot;b&quot;&gt;†"), "{svg}");
        for tag in ["text", "title", "style", "svg"] {
            let opened =
                svg.matches(&format!("<{tag} ")).count() + svg.matches(&format!("<{tag}>")).count();
            assert_eq!(opened, svg.matches(&format!("</{tag}>")).count(), "{tag}");
        }
        for tag in ["rect", "line"] {
            let opened = svg
                .lines()
                .filter(|line| line.starts_with(&format!("<{tag} ")));
            assert!(opened.clone().count() > 0);
            assert!(opened.clone().all(|line| line.ends_with("/>")));
        }
    }

    #[test]
    fn bars_are_of_the_base_least_first() {
        let mut limit = row(&[(1.25, 1.0)]);
        limit.about = About::Limit;
        limit.server.name = "onrush-io_uring".to_owned();
        limit.reference.name = "limit-uring".to_owned();
        let mut elsewhere = row(&[(3.0, 1.0)]);
        elsewhere.reference.name = "onrush-epoll".to_owned();
        let rows = [row(&[(2.0, 1.0)]), limit, elsewhere, row(&[])];
        let groups = groups("onrush-io_uring", &rows);
        let shown: Vec<(&str, f64)> = groups[0]
            .bars
            .iter()
            .map(|bar| (bar.name.as_str(), bar.ratio))
            .collect();
        assert_eq!(
            shown,
            [
                ("limit-uring", 0.8),
                ("onrush-io_uring", 1.0),
                ("peer", 2.0)
            ]
        );
        assert_eq!(groups.len(), 1);
        assert_eq!(chart("p", "w", "other", &rows[..1]), None);
    }

    #[test]
    fn a_bar_beyond_the_scale_is_broken() {
        let svg = chart("p", "w", "onrush-io_uring", &[row(&[(20.0, 1.0)])]).expect("a bar");
        assert!(svg.contains("» 20.00"), "{svg}");
    }
}
