//! The reports of a run: tables, CSV files, charts, and the description of the machine.
//!
//! Modules: `table` and `csv` (of rows), `chart` (drawing), `svg` (the chart of a CSV file),
//! `machine`.

pub mod chart;
pub(crate) mod csv;
pub mod machine;
pub(crate) mod svg;
pub(crate) mod table;

/// The mark of a server that omits work.
const MARK: &str = "†";

/// `number` with three significant digits or more. Empty if it is not finite.
fn short(number: f64) -> String {
    match number.abs() {
        _ if !number.is_finite() => String::new(),
        0.0..10.0 => format!("{number:.2}"),
        10.0..100.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_or_more() {
        let all = [1.234, 12.34, 123.4, 1234.5, f64::NAN].map(short);
        assert_eq!(all, ["1.23", "12.3", "123", "1234", ""]);
    }
}
