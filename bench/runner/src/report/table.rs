//! Tables of rows for the terminal, one for each scenario.

use super::{MARK, short};
use crate::row::{About, Row, Side};
use std::fmt::Write;

/// The columns. From `value` on, a cell has two numbers: that of the server and, after a slash,
/// that of the reference.
const HEAD: [&str; 13] = [
    "",
    "reference",
    "ratio",
    "95 %",
    "min",
    "max",
    "value",
    "req/s",
    "p50 µs",
    "p99 µs",
    "p99.9 µs",
    "calls",
    "MiB",
];

/// All rows of one profile, followed by the explanation of the marks.
pub(crate) fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let mut scenarios: Vec<&str> = Vec::new();
    for row in rows {
        if !scenarios.contains(&row.scenario.as_str()) {
            scenarios.push(&row.scenario);
        }
    }
    for scenario in scenarios {
        let of = |row: &&Row| row.scenario == scenario;
        let mut group: Vec<&Row> = rows.iter().filter(of).collect();
        group.sort_by(|a, b| {
            order(a)
                .partial_cmp(&order(b))
                .unwrap_or(std::cmp::Ordering::Equal)
        });
        text.push_str(&one(&group));
    }
    text.push_str(&notes(rows));
    text
}

/// Sorts limits first, then Onrush, then peers by their ratio.
fn order(row: &Row) -> (u8, f64) {
    let ratio = row.ratio().map_or(f64::INFINITY, |ratio| ratio.median);
    match row.about {
        About::Limit | About::Bound => (0, 0.0),
        About::Control => (1, 0.0),
        About::Driver => (2, 0.0),
        About::Feature | About::Peer => (3, ratio),
    }
}

fn one(group: &[&Row]) -> String {
    let mut text = String::new();
    let Some(first) = group.first() else {
        return text;
    };
    let _ = write!(
        text,
        "\n{} · {} · {}",
        first.profile, first.scenario, first.unit
    );
    if !first.durability.is_empty() {
        let _ = write!(text, " · durability: {}", first.durability);
        let _ = write!(text, " · access log: {}", first.access_log);
    }
    text.push('\n');
    let mut lines: Vec<Vec<String>> = vec![HEAD.map(str::to_owned).to_vec()];
    lines[0].push("target".to_owned());
    lines.extend(group.iter().map(|row| cells(row)));
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |at: usize| {
        let of = |line: &Vec<String>| line.get(at).map_or(0, |cell| cell.chars().count());
        lines.iter().map(of).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for (line, row) in lines
        .iter()
        .zip(std::iter::once(None).chain(group.iter().map(Some)))
    {
        let mut shown = String::new();
        for (at, (cell, &width)) in line.iter().zip(&widths).enumerate() {
            match at {
                // Names are aligned to the left, numbers to the right.
                0 | 1 | 13 => drop(write!(shown, "{cell:width$}  ")),
                _ if width > 0 => drop(write!(shown, "{cell:>width$}  ")),
                _ => {}
            }
        }
        let _ = writeln!(text, "  {}", shown.trim_end());
        for reason in row.into_iter().flat_map(|row| reasons(row)) {
            let _ = writeln!(text, "    {reason}");
        }
    }
    text
}

/// The reasons of void rounds, each once with its count, and the note of the row.
fn reasons(row: &Row) -> Vec<String> {
    let mut all: Vec<(&str, usize)> = Vec::new();
    for reason in &row.voids {
        match all.iter_mut().find(|(known, _)| known == reason) {
            Some((_, count)) => *count += 1,
            None => all.push((reason, 1)),
        }
    }
    let void = if row.rounds.is_empty() {
        "void"
    } else {
        "void rounds"
    };
    let mut texts: Vec<String> = all
        .into_iter()
        .map(|(reason, count)| format!("{void} ({count}): {}", reason.replace('\n', " ")))
        .collect();
    if !row.note.is_empty() {
        texts.push(row.note.clone());
    }
    texts
}

fn cells(row: &Row) -> Vec<String> {
    let marked = |side: &Side| match side.omits.is_empty() {
        true => side.name.clone(),
        false => format!("{}{MARK}", side.name),
    };
    let mut cells = vec![marked(&row.server), marked(&row.reference)];
    let Some(ratio) = row.ratio() else {
        return cells;
    };
    let exact = |number: f64| format!("{number:.3}");
    cells.push(exact(ratio.median));
    // With few rounds the coverage of the interval is less than the column's title says.
    cells.push(match ratio.coverage >= 0.95 {
        true => format!("{:.3}–{:.3}", ratio.low, ratio.high),
        false => format!("({:.0} %)", ratio.coverage * 100.0),
    });
    cells.extend([exact(ratio.min), exact(ratio.max)]);
    let both = |server: String, reference: String| match (server.is_empty(), reference.is_empty()) {
        (true, true) => String::new(),
        (false, true) => server,
        _ => format!("{server} / {reference}"),
    };
    for metric in crate::row::Metrics::COLUMNS {
        cells.push(both(
            short(row.of_server(metric)),
            short(row.of_reference(metric)),
        ));
    }
    let calls = |calls: Option<f64>| calls.map_or(String::new(), short);
    cells.push(both(calls(row.server.calls), calls(row.reference.calls)));
    let mib = |bytes: Option<u64>| bytes.map_or(String::new(), |b| short(b as f64 / 1_048_576.0));
    cells.push(both(
        mib(row.server.peak_bytes),
        mib(row.reference.peak_bytes),
    ));
    let verdict = row.target.map_or(String::new(), |target| {
        let met = match row.holds() {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "?",
        };
        let close = if row.is_close() { " (close)" } else { "" };
        format!("{} {met}{close}", target.shown())
    });
    cells.push(verdict);
    if let Some((server, reference)) = per_gb(row) {
        let last = cells.len() - 1;
        let volume = format!("CPU s/GB {}", both(short(server), short(reference)));
        cells[last] = format!("{} {volume}", cells[last]).trim().to_owned();
    }
    cells
}

/// CPU seconds per 10⁹ bytes of both servers, for rows that show CPU per volume.
pub(super) fn per_gb(row: &Row) -> Option<(f64, f64)> {
    let bytes = row.volume_bytes? as f64;
    let of = |us: f64| us / 1e6 / bytes * 1e9;
    let server = of(row.of_server(|metrics| metrics.value));
    Some((server, of(row.of_reference(|metrics| metrics.value))))
}

fn notes(rows: &[Row]) -> String {
    let mut omits: Vec<String> = rows.iter().flat_map(Row::omits).collect();
    omits.sort();
    omits.dedup();
    let mut text = String::new();
    if !omits.is_empty() {
        let _ = writeln!(text, "\n{MARK} omits work that Onrush does:");
        for omitted in omits {
            let _ = writeln!(text, "  {omitted}");
        }
    }
    text
}

/// One line with the number of targets that are met, and one for each missed target.
pub(crate) fn verdict(rows: &[Row]) -> String {
    let with_target: Vec<&Row> = rows.iter().filter(|row| row.target.is_some()).collect();
    let count = |met| with_target.iter().filter(|row| row.holds() == met).count();
    let mut text = format!(
        "targets: {} met, {} missed, {} not measured\n",
        count(Some(true)),
        count(Some(false)),
        count(None)
    );
    let met = with_target.iter().filter(|row| row.holds() == Some(true));
    let close = met.filter(|row| row.is_close()).count();
    if close > 0 {
        let _ = writeln!(text, "  {close} of the met targets are within the interval");
    }
    let missed = with_target.iter().filter(|row| row.holds() == Some(false));
    for row in missed {
        let (Some(target), Some(ratio)) = (row.target, row.ratio()) else {
            continue;
        };
        let _ = writeln!(
            text,
            "  missed: {} · {}: {} / {}: {:.3}, {}{}",
            row.profile,
            row.scenario,
            row.server.name,
            row.reference.name,
            ratio.median,
            target.shown(),
            if row.is_close() {
                " (within the interval)"
            } else {
                ""
            }
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{Target, tests::row};

    #[test]
    fn void_rows_are_printed_with_their_reason() {
        let mut void = row(&[]);
        void.voids = vec!["status 404".to_owned(), "status 404".to_owned()];
        let text = table(&[void]);
        assert!(text.contains("void (2): status 404"), "{text}");
    }

    #[test]
    fn marks_are_explained_and_rows_sorted() {
        let slow = row(&[(3.0, 1.0)]);
        let mut fast = row(&[(2.0, 1.0)]);
        fast.server.name = "fast".to_owned();
        fast.server.omits = vec!["no date".to_owned()];
        let text = table(&[slow, fast]);
        assert!(
            text.find("fast†").unwrap() < text.find("peer ").unwrap(),
            "{text}"
        );
        assert!(text.contains("  fast: no date"), "{text}");
    }

    #[test]
    fn missed_targets_are_named() {
        let met = row(&[(2.0, 1.0)]);
        let mut missed = row(&[(1.2, 1.0); 15]);
        missed.target = Some(Target::AtMost(1.1));
        let text = verdict(&[met, missed, row(&[])]);
        assert!(
            text.starts_with("targets: 1 met, 1 missed, 1 not measured\n"),
            "{text}"
        );
        assert!(text.contains("1.200, ≤ 1.10\n"), "{text}");
    }

    #[test]
    fn volume_is_in_seconds_per_gigabyte() {
        let mut large = row(&[(20_000.0, 10_000.0)]);
        assert_eq!(per_gb(&large), None);
        large.volume_bytes = Some(40_000_000);
        assert_eq!(per_gb(&large), Some((0.5, 0.25)));
    }
}
