//! The committed results, and their comparison with measured ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{self, Write};
use toml::{Table, Value};

/// Growth beyond this fails.
const GROWTH_MAX_PERCENT: f64 = 3.0;

/// Instructions and system calls of the server per request, by trace, and the build that they
/// belong to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Results {
    pub(crate) made_with: MadeWith,
    pub(crate) instructions: BTreeMap<String, f64>,
    pub(crate) calls: BTreeMap<String, f64>,
}

/// External factors that affect the instruction counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MadeWith {
    /// The compiler's version.
    pub(crate) rustc: String,
    /// The C library, which provides `malloc` and `memcpy`.
    pub(crate) libc: String,
    /// The architecture, such as `x86_64`.
    pub(crate) arch: String,
}

impl Results {
    /// Parses the text of a file. Fails with a description of the error.
    pub(crate) fn parse(text: &str) -> Result<Results, String> {
        let table: Table = text.parse().map_err(|error| format!("{error}"))?;
        let word = |name: &str| {
            let value = table.get(name).and_then(Value::as_str);
            value
                .map(str::to_owned)
                .ok_or_else(|| format!("{name} is missing"))
        };
        let numbers = |table_name: &str| -> Result<BTreeMap<String, f64>, String> {
            let rows = table.get(table_name).and_then(Value::as_table);
            let rows = rows.ok_or_else(|| format!("{table_name} are missing"))?;
            let number = |(name, value): (&String, &Value)| {
                let number = value.as_float().filter(|number| *number > 0.0);
                let number = number.ok_or_else(|| format!("{name} is not a number such as 1234.5"));
                Ok((name.clone(), number?))
            };
            rows.iter().map(number).collect()
        };
        Ok(Results {
            made_with: MadeWith {
                rustc: word("rustc")?,
                libc: word("libc")?,
                arch: word("arch")?,
            },
            instructions: numbers("instructions")?,
            calls: numbers("calls")?,
        })
    }

    /// Renders the text of a file.
    pub(crate) fn text(&self) -> String {
        let MadeWith { rustc, libc, arch } = &self.made_with;
        let mut text = format!(
            "# User-space instructions per request, without those of the simulator, and what \
             would be\n\
             # system calls: calls of the driver and operations of the disk. Sending a file is \
             both.\n\
             # `cargo xtask bench --gate --record` writes this file; `cargo xtask bench --gate` \
             checks it.\n\
             rustc = \"{rustc}\"\nlibc = \"{libc}\"\narch = \"{arch}\"\n\n[instructions]\n"
        );
        for (name, number) in &self.instructions {
            let _ = writeln!(text, "{name} = {number:.1}"); // Writing to a string does not fail.
        }
        text.push_str("\n[calls]\n");
        for (name, number) in &self.calls {
            let _ = writeln!(text, "{name} = {number:.3}");
        }
        text
    }

    /// Compares these recorded results with `now`.
    pub(crate) fn compare(&self, now: &Results) -> Comparison {
        let rows_of = |what, before: &BTreeMap<String, f64>, now: &BTreeMap<String, f64>| {
            let names: BTreeSet<_> = before.keys().chain(now.keys()).cloned().collect();
            let row = |name: String| Row {
                before: before.get(&name).copied(),
                now: now.get(&name).copied(),
                what,
                name,
            };
            names.into_iter().map(row).collect::<Vec<_>>()
        };
        let mut rows = rows_of("instructions", &self.instructions, &now.instructions);
        rows.extend(rows_of("calls", &self.calls, &now.calls));
        let (before, with) = (&self.made_with, &now.made_with);
        let pairs = [
            (&before.rustc, &with.rustc, "rustc "),
            (&before.libc, &with.libc, ""),
        ];
        let differs = pairs.into_iter().filter(|(before, now, _)| before != now);
        let note = |(before, now, what): (&String, &String, &str)| {
            format!("recorded with {what}{before}, measured with {what}{now}")
        };
        Comparison {
            rows,
            notes: differs.map(note).collect(),
        }
    }
}

/// Recorded and current results, side by side.
#[derive(Debug)]
pub(crate) struct Comparison {
    pub(crate) rows: Vec<Row>,
    /// Differences of the builds other than the program.
    notes: Vec<String>,
}

/// One number of a trace.
#[derive(Debug)]
pub(crate) struct Row {
    what: &'static str,
    pub(crate) name: String,
    before: Option<f64>,
    now: Option<f64>,
}

impl Row {
    fn change_percent(&self) -> Option<f64> {
        Some((self.now? / self.before? - 1.0) * 100.0)
    }

    /// Why this fails the gate, if it does.
    fn fault(&self) -> Option<&'static str> {
        match (self.change_percent(), self.before) {
            (Some(percent), _) if percent > GROWTH_MAX_PERCENT => Some("has grown too much"),
            (Some(_), _) => None,
            (None, None) => Some("has no recorded result"),
            (None, Some(_)) => Some("is recorded, but no such trace was run"),
        }
    }

    /// Whether this fails the gate.
    pub(crate) fn fails(&self) -> bool {
        self.fault().is_some()
    }
}

impl Comparison {
    pub(crate) fn fails(&self) -> bool {
        self.rows.iter().any(Row::fails)
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:12} {:10} {:>10} {:>10} {:>9}",
            "", "trace", "recorded", "now", "change"
        )?;
        let number = |number: Option<f64>| number.map_or("-".to_owned(), |n| format!("{n:.2}"));
        for row in &self.rows {
            let change = row
                .change_percent()
                .map_or("-".to_owned(), |p| format!("{p:+.2} %"));
            let (before, now) = (number(row.before), number(row.now));
            let (what, name) = (row.what, &row.name);
            write!(f, "{what:12} {name:10} {before:>10} {now:>10} {change:>9}")?;
            let shrunk = row
                .change_percent()
                .is_some_and(|percent| percent < -GROWTH_MAX_PERCENT);
            match row.fault() {
                Some(fault) => writeln!(f, "  {fault}")?,
                None if shrunk => writeln!(f, "  lower: record it to keep the gain")?,
                None => writeln!(f)?,
            }
        }
        self.notes
            .iter()
            .try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(rows: &[(&str, f64)]) -> Results {
        Results {
            made_with: MadeWith {
                rustc: "1.90.0".to_owned(),
                libc: "glibc 2.41".to_owned(),
                arch: "x86_64".to_owned(),
            },
            instructions: rows.iter().map(|&(name, n)| (name.to_owned(), n)).collect(),
            calls: [("other".to_owned(), 2.125)].into(),
        }
    }

    #[test]
    fn three_percent_is_the_limit() {
        let recorded = results(&[("hello", 1000.0)]);
        let fails = |now: f64| recorded.compare(&results(&[("hello", now)])).fails();
        assert!(!fails(1029.0));
        assert!(fails(1031.0));
        assert!(!fails(500.0));
    }

    #[test]
    fn calls_are_compared_as_well() {
        let recorded = results(&[("hello", 1000.0)]);
        let mut now = recorded.clone();
        now.calls.insert("other".to_owned(), 2.2);
        let comparison = recorded.compare(&now);
        assert!(comparison.fails() && comparison.to_string().contains("+3.53 %  has grown"));
    }

    #[test]
    fn a_lower_result_should_be_recorded() {
        let recorded = results(&[("hello", 1000.0)]);
        let shown = |now: f64| recorded.compare(&results(&[("hello", now)])).to_string();
        assert!(shown(969.0).contains("record it"));
        assert!(!shown(971.0).contains("record it"));
        assert!(shown(1031.0).contains("+3.10 %  has grown"));
    }

    #[test]
    fn traces_must_be_the_same_on_both_sides() {
        let both = results(&[("hello", 1.0), ("get", 2.0)]);
        let one = results(&[("hello", 1.0)]);
        assert!(!both.compare(&both).fails());
        let missing = one.compare(&both);
        assert!(missing.fails() && missing.to_string().contains("no recorded result"));
        let unknown = both.compare(&one);
        assert!(unknown.fails() && unknown.to_string().contains("no such trace"));
    }

    #[test]
    fn another_compiler_is_noted_and_compared() {
        let recorded = results(&[("hello", 1.0)]);
        let mut now = recorded.clone();
        now.made_with.rustc = "1.91.0".to_owned();
        let comparison = recorded.compare(&now);
        assert!(!comparison.fails());
        let note = "recorded with rustc 1.90.0, measured with rustc 1.91.0";
        assert!(comparison.to_string().contains(note));
        now.instructions.insert("hello".to_owned(), 2.0);
        assert!(recorded.compare(&now).fails());
    }

    #[test]
    fn written_results_can_be_parsed() {
        let some = results(&[("hello", 1234.5), ("get", 2.0)]);
        assert_eq!(Results::parse(&some.text()), Ok(some.clone()));
        let without = |line: &str| Results::parse(&some.text().replace(line, "")).unwrap_err();
        assert!(without("rustc = \"1.90.0\"").contains("rustc"));
        assert!(without("[instructions]").contains("instructions"));
        assert!(without("[calls]").contains("calls"));
        let wrong = |number: &str| Results::parse(&some.text().replace("1234.5", number));
        assert!(wrong("\"many\"").unwrap_err().contains("hello"));
        assert!(wrong("-1.0").is_err());
        assert!(wrong("").is_err());
    }
}
