//! The order of the entries of an HTML page: `?sort=name`, `size` or `time`, with a minus in front
//! for the opposite order. Folders come first.
//!
//! The store returns pages in the order of names. So a folder that needs several pages is sorted
//! page by page.

use onrush_store::{Entry, Kind};
use std::cmp::Ordering;
use std::fmt;

/// What the entries are sorted by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::files) enum Column {
    #[default]
    Name,
    Size,
    Time,
}

/// A column and a direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::files) struct Sorting {
    pub(in crate::files) column: Column,
    pub(in crate::files) descending: bool,
}

impl Sorting {
    /// The value of `sort`. `None` if it is not one.
    pub(in crate::files) fn parse(value: &str) -> Option<Sorting> {
        let column = match value.strip_prefix('-').unwrap_or(value) {
            "name" => Column::Name,
            "size" => Column::Size,
            "time" => Column::Time,
            _ => return None,
        };
        let descending = value.starts_with('-');
        Some(Sorting { column, descending })
    }

    /// Sorts a page, which is in the order of names.
    pub(in crate::files) fn sort(self, entries: &mut [Entry]) {
        entries.sort_by(|one, other| {
            let is_file = |entry: &Entry| entry.kind == Kind::File;
            is_file(one)
                .cmp(&is_file(other))
                .then_with(|| self.compare(one, other))
        });
    }

    fn compare(self, one: &Entry, other: &Entry) -> Ordering {
        let order = match self.column {
            Column::Name => one.name.cmp(&other.name),
            Column::Size => one.size.cmp(&other.size),
            Column::Time => one.modified_ns.cmp(&other.modified_ns),
        };
        match self.descending {
            true => order.reverse(),
            false => order,
        }
    }
}

impl fmt::Display for Sorting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.column {
            Column::Name => "name",
            Column::Size => "size",
            Column::Time => "time",
        };
        write!(f, "{}{name}", if self.descending { "-" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onrush_store::Version;

    #[test]
    fn folders_come_first_and_equal_entries_keep_the_order_of_names() {
        let entry = |name: &str, kind, size, modified_ns| Entry {
            name: name.into(),
            kind,
            size,
            modified_ns,
            version: Version::parse(b"x").expect("a version"),
        };
        let all = [
            entry("a", Kind::File, 5, 1),
            entry("b", Kind::Directory, 0, 9),
            entry("c", Kind::File, 2, 3),
            entry("d", Kind::Directory, 0, 4),
            entry("e", Kind::File, 5, 2),
        ];
        for (value, expected) in [
            ("name", "bdace"),
            ("-name", "dbeca"),
            ("size", "bdcae"),
            ("-size", "bdaec"),
            ("time", "dbaec"),
            ("-time", "bdcea"),
        ] {
            let sorting = Sorting::parse(value).expect(value);
            let mut entries = all.to_vec();
            sorting.sort(&mut entries);
            let names: Vec<u8> = entries
                .iter()
                .flat_map(|entry| entry.name.clone())
                .collect();
            assert_eq!(String::from_utf8_lossy(&names), expected, "{value}");
            assert_eq!(sorting.to_string(), value);
        }
        for wrong in ["", "-", "--name", "Name", "etag"] {
            assert_eq!(Sorting::parse(wrong), None, "{wrong}");
        }
    }
}
