//! Tables: aligned text for people, and CSV for programs.

use runner::stats::{Summary, median, sorted};
use std::{fmt::Write, path::Path};
use xtask::shell::Outcome;

/// Rows of text with column titles. The first column is a name.
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

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text. The first column is aligned to the left, the others to the right.
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

    /// Writes one line for each row, with the date as its first field.
    pub(crate) fn write_csv(&self, file: &Path, date: &str) -> Outcome {
        let write = || -> csv::Result<()> {
            let mut writer = csv::Writer::from_path(file)?;
            let heads = [("date", &self.head)];
            for (first, cells) in heads
                .into_iter()
                .chain(self.rows.iter().map(|row| (date, row)))
            {
                writer.write_record([first].into_iter().chain(cells.iter().map(String::as_str)))?;
            }
            Ok(writer.flush()?)
        };
        write().map_err(|error| format!("{}: {error}", file.display()))
    }
}

/// The median and the range of values, as `1.23 (1.10–1.40)`, or a single value alone.
pub(crate) fn median_and_range(values: &[f64], digits: usize) -> String {
    let sorted = sorted(values.iter().copied());
    let median = median(values.iter().copied());
    match (sorted.first(), sorted.last()) {
        (Some(min), Some(max)) if sorted.len() > 1 => {
            format!("{median:.digits$} ({min:.digits$}–{max:.digits$})")
        }
        (Some(_), _) => format!("{median:.digits$}"),
        _ => String::new(),
    }
}

/// The cells of a ratio: its median and its interval. Empty without a valid round.
pub(crate) fn ratio_cells(ratio: Option<Summary>) -> [String; 3] {
    let cells = |ratio: Summary| [ratio.median, ratio.low, ratio.high].map(|n| format!("{n:.3}"));
    ratio.map(cells).unwrap_or_default()
}

/// A ratio as the result of a target.
pub(crate) fn ratio_text(ratio: Option<Summary>) -> String {
    match ratio {
        Some(ratio) => format!("{:.3}, {:.3}–{:.3}", ratio.median, ratio.low, ratio.high),
        None => "no valid round".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new("t", &["name", "n"]);
        table.row(["a".to_owned(), "10".to_owned()]);
        table.row(["longer".to_owned(), "9".to_owned()]);
        assert_eq!(
            table.shown(),
            "t\n  name     n\n  a       10\n  longer   9\n"
        );
    }

    #[test]
    fn csv_lines_begin_with_the_date() {
        let name = format!("onrush-table-{}.csv", std::process::id());
        let file = std::env::temp_dir().join(name);
        let mut table = Table::new("t", &["name", "n"]);
        table.row(["a, b".to_owned(), "10".to_owned()]);
        table.write_csv(&file, "2026-11-21").expect("written");
        let text = std::fs::read_to_string(&file).expect("read");
        assert_eq!(text, "date,name,n\n2026-11-21,\"a, b\",10\n");
        std::fs::remove_file(file).expect("removed");
    }

    #[test]
    fn ranges_have_both_ends() {
        assert_eq!(median_and_range(&[2.0, 1.0, 4.0], 1), "2.0 (1.0–4.0)");
        assert_eq!(median_and_range(&[2.0], 2), "2.00");
        assert_eq!(median_and_range(&[], 2), "");
    }

    #[test]
    fn ratios_have_a_median_and_an_interval() {
        let ratio = Summary::of([1.0, 1.1, 1.2]);
        assert_eq!(ratio_cells(ratio), ["1.100", "1.000", "1.200"]);
        assert_eq!(ratio_text(ratio), "1.100, 1.000–1.200");
        assert_eq!(ratio_cells(None), ["", "", ""]);
        assert_eq!(ratio_text(None), "no valid round");
    }
}
