//! Tables: aligned for people, as CSV for programs. Must not know what stands in them.

use std::{fmt::Write, path::Path};
use xtask::shell::Outcome;

/// Rows of text under a head; the first column is a name.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    title: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(title: &str, head: &[&str]) -> Table {
        Table {
            title: title.to_owned(),
            head: head.iter().map(|&cell| cell.to_owned()).collect(),
            rows: Vec::new(),
        }
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// Names to the left, all else to the right.
    pub(crate) fn shown(&self) -> String {
        let mut text = format!("{}\n", self.title);
        let lines = || std::iter::once(&self.head).chain(&self.rows);
        let width = |at: usize| {
            let cells = lines().filter_map(|line| line.get(at));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        for line in lines() {
            let mut shown = String::new();
            for (at, (cell, &width)) in line.iter().zip(&widths).enumerate() {
                let _ = match at {
                    0 => write!(shown, "{cell:width$}"),
                    _ => write!(shown, "  {cell:>width$}"),
                };
            }
            let _ = writeln!(text, "  {}", shown.trim_end());
        }
        text
    }

    /// A line a row, the date before it.
    pub(crate) fn write_csv(&self, file: &Path, date: &str) -> Outcome {
        let failed = |error: csv::Error| format!("{}: {error}", file.display());
        let mut writer = csv::Writer::from_path(file).map_err(failed)?;
        let line = |first: &str, cells: &[String]| {
            let first = std::iter::once(first.to_owned());
            first.chain(cells.iter().cloned()).collect::<Vec<_>>()
        };
        writer
            .write_record(line("date", &self.head))
            .map_err(failed)?;
        for row in &self.rows {
            writer.write_record(line(date, row)).map_err(failed)?;
        }
        writer
            .flush()
            .map_err(|error| format!("{}: {error}", file.display()))
    }
}

/// The median of some figures and how far they are apart: `1.23 (1.10–1.40)`, or one figure alone.
pub(crate) fn spread(values: &[f64], digits: usize) -> String {
    let sorted = runner::stats::sorted(values.iter().copied());
    let median = runner::stats::median(values.iter().copied());
    match (sorted.first(), sorted.last()) {
        (Some(min), Some(max)) if sorted.len() > 1 => {
            format!("{median:.digits$} ({min:.digits$}–{max:.digits$})")
        }
        (Some(_), _) => format!("{median:.digits$}"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new("t", &["who", "n"]);
        table.row(["a".to_owned(), "10".to_owned()]);
        table.row(["long".to_owned(), "9".to_owned()]);
        assert_eq!(table.shown(), "t\n  who    n\n  a     10\n  long   9\n");
    }

    #[test]
    fn spreads_have_their_ends() {
        assert_eq!(spread(&[2.0, 1.0, 4.0], 1), "2.0 (1.0–4.0)");
        assert_eq!(spread(&[2.0], 2), "2.00");
        assert_eq!(spread(&[], 2), "");
    }
}
