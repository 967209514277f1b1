//! What is made of rows: a table, a file for programs, a chart, and a word on the machine. Must not
//! know how anything was measured.

pub(crate) mod csv;
pub mod machine;
pub mod svg;
pub(crate) mod table;

/// The mark of a row in which somebody leaves work out.
const MARK: &str = "†";

/// `number` with as many digits as are worth reading; nothing when it is not a number.
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
