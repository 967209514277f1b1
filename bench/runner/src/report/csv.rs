//! The CSV files: one line for each row, with all results. Charts are made from these files, so
//! that they can be drawn again without a measurement.

use super::table::per_gb;
use crate::row::{Metrics, Row, Side};
use std::{fs::File, path::Path};
use xtask::shell::Outcome;

/// The first line. Other programs use these names, so new columns are added at the end.
const COLUMNS: [&str; 43] = [
    "date",
    "profile",
    "scenario",
    "about",
    "unit",
    "driver",
    "reference",
    "reference_version",
    "reference_configuration",
    "reference_omits",
    "server",
    "version",
    "configuration",
    "omits",
    "durability",
    "access_log",
    "rounds",
    "rounds_void",
    "ratio",
    "ci_low",
    "ci_high",
    "ci_coverage",
    "min",
    "max",
    "target",
    "met",
    "value",
    "reference_value",
    "requests_per_s",
    "reference_requests_per_s",
    "p50_us",
    "reference_p50_us",
    "p99_us",
    "reference_p99_us",
    "p999_us",
    "reference_p999_us",
    "calls",
    "reference_calls",
    "peak_bytes",
    "reference_peak_bytes",
    "cpu_s_per_gb",
    "void_reasons",
    "note",
];

/// What a chart needs of one line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Line {
    pub(crate) scenario: String,
    /// See [`crate::row::About::name`].
    pub(crate) about: String,
    pub(crate) unit: String,
    pub(crate) server: String,
    pub(crate) reference: String,
    /// Work that the server omits.
    pub(crate) omits: String,
    pub(crate) reference_omits: String,
    /// Median and interval. `None` if no round was valid.
    pub(crate) ratio: Option<(f64, f64, f64)>,
}

/// Reads the lines of a file that [`write`] wrote.
///
/// # Errors
/// The file cannot be read, or has no such column.
pub(crate) fn read(file: &Path) -> Outcome<Vec<Line>> {
    let open = File::open(file).map_err(|error| format!("{}: {error}", file.display()))?;
    lines(open).map_err(|error| format!("{}: {error}", file.display()))
}

fn lines(text: impl std::io::Read) -> Outcome<Vec<Line>> {
    let mut reader = csv::Reader::from_reader(text);
    let head = reader.headers().map_err(|error| error.to_string())?.clone();
    let column = |name: &str| {
        let at = head.iter().position(|column| column == name);
        at.ok_or_else(|| format!("no column '{name}'"))
    };
    let texts = [
        "scenario",
        "about",
        "unit",
        "server",
        "reference",
        "omits",
        "reference_omits",
    ];
    let texts = texts.map(column).into_iter().collect::<Outcome<Vec<_>>>()?;
    let numbers = ["ratio", "ci_low", "ci_high"].map(column);
    let numbers = numbers.into_iter().collect::<Outcome<Vec<_>>>()?;
    let mut lines = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|error| error.to_string())?;
        let text = |at: usize| record.get(texts[at]).unwrap_or_default().to_owned();
        let number = |at: usize| record.get(numbers[at])?.parse::<f64>().ok();
        let ratio = || Some((number(0)?, number(1)?, number(2)?));
        lines.push(Line {
            scenario: text(0),
            about: text(1),
            unit: text(2),
            server: text(3),
            reference: text(4),
            omits: text(5),
            reference_omits: text(6),
            ratio: ratio(),
        });
    }
    Ok(lines)
}

/// Writes `rows` to `file` and replaces it.
pub(crate) fn write(file: &Path, date: &str, rows: &[Row]) -> Outcome {
    let text = text(date, rows)?;
    std::fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()))
}

fn text(date: &str, rows: &[Row]) -> Outcome<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let failed = |error: csv::Error| error.to_string();
    writer.write_record(COLUMNS).map_err(failed)?;
    for row in rows {
        writer.write_record(record(date, row)).map_err(failed)?;
    }
    writer.into_inner().map_err(|error| error.to_string())
}

fn record(date: &str, row: &Row) -> Vec<String> {
    let ratio = row.ratio();
    let of_ratio = |get: fn(&crate::stats::Summary) -> f64| {
        ratio
            .as_ref()
            .map_or(String::new(), |ratio| number(get(ratio)))
    };
    let count = |count: Option<u64>| count.map_or(String::new(), |count| count.to_string());
    let omits = |side: &Side| side.omits.join("; ");
    let driver = match row.server.driver {
        "" => row.reference.driver,
        driver => driver,
    };
    let mut record: Vec<String> = [
        date,
        row.profile,
        &row.scenario,
        row.about.name(),
        row.unit,
        driver,
        &row.reference.name,
        &row.reference.version,
        &row.reference.configuration,
        &omits(&row.reference),
        &row.server.name,
        &row.server.version,
        &row.server.configuration,
        &omits(&row.server),
        row.durability,
        row.access_log,
    ]
    .map(str::to_owned)
    .to_vec();
    record.extend([
        row.rounds.len().to_string(),
        row.voids.len().to_string(),
        of_ratio(|ratio| ratio.median),
        of_ratio(|ratio| ratio.low),
        of_ratio(|ratio| ratio.high),
        of_ratio(|ratio| ratio.coverage),
        of_ratio(|ratio| ratio.min),
        of_ratio(|ratio| ratio.max),
        row.target.map_or(String::new(), |target| target.shown()),
        row.holds().map_or(String::new(), |holds| holds.to_string()),
    ]);
    for metric in Metrics::COLUMNS {
        record.push(number(row.of_server(metric)));
        record.push(number(row.of_reference(metric)));
    }
    let calls = |side: &Side| side.calls.map_or(String::new(), number);
    record.extend([
        calls(&row.server),
        calls(&row.reference),
        count(row.server.peak_bytes),
        count(row.reference.peak_bytes),
        per_gb(row).map_or(String::new(), |(server, _)| number(server)),
        row.voids.join("; ").replace('\n', " "),
        row.note.clone(),
    ]);
    record
}

/// Four digits after the decimal point, or an empty text if `number` is not finite.
fn number(number: f64) -> String {
    match number.is_finite() {
        true => format!("{number:.4}"),
        false => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::tests::row;

    #[test]
    fn the_columns_have_their_documented_names() {
        let head = text("2026-01-01", &[]).expect("written");
        let head = String::from_utf8(head).expect("text");
        let known = "date,profile,scenario,about,unit,driver,reference,reference_version,\
            reference_configuration,reference_omits,server,version,configuration,omits,durability,\
            access_log,rounds,rounds_void,ratio,ci_low,ci_high,ci_coverage,min,max,target,met,\
            value,reference_value,requests_per_s,reference_requests_per_s,p50_us,reference_p50_us,\
            p99_us,reference_p99_us,p999_us,reference_p999_us,calls,reference_calls,peak_bytes,\
            reference_peak_bytes,cpu_s_per_gb,void_reasons,note";
        assert_eq!(head.trim_end(), known);
    }

    #[test]
    fn each_row_fills_every_column() {
        let mut full = row(&[(2.0, 1.0), (2.2, 1.1), (1.9, 1.0)]);
        full.server.configuration = "one worker, \"quoted\"".to_owned();
        full.volume_bytes = Some(1000);
        let mut void = row(&[]);
        void.voids = vec!["status\n404".to_owned()];
        for row in [full, void] {
            assert_eq!(record("2026-01-01", &row).len(), COLUMNS.len());
            let bytes = text("2026-01-01", std::slice::from_ref(&row)).expect("written");
            assert_eq!(bytes.iter().filter(|&&byte| byte == b'\n').count(), 2);
            let read = lines(&*bytes).expect("read");
            let ratio = row
                .ratio()
                .map(|ratio| (ratio.median, ratio.low, ratio.high));
            assert_eq!(read[0].ratio, ratio);
            assert_eq!((&*read[0].server, &*read[0].about), ("peer", "peer"));
        }
        assert!(lines(&b"date,profile\n"[..]).is_err_and(|error| error.contains("scenario")));
    }
}
