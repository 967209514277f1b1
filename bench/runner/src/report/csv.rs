//! Rows for programs to read: everything there is, a line a row. Must not know what is drawn of it.

use super::table::per_gb;
use crate::row::{Metrics, Row, Side};
use std::path::Path;
use xtask::shell::Outcome;

/// The first line. Programs know columns by these names: they stay, and new ones come at the end.
const COLUMNS: [&str; 43] = [
    "date",
    "profile",
    "scenario",
    "about",
    "unit",
    "driver",
    "reference",
    "reference_version",
    "reference_told",
    "reference_skips",
    "server",
    "version",
    "told",
    "skips",
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
    "reach",
    "holds",
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

/// Writes `rows` to `file`, replacing it.
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
    let skips = |side: &Side| side.skips.join("; ");
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
        &row.reference.told,
        &skips(&row.reference),
        &row.server.name,
        &row.server.version,
        &row.server.told,
        &skips(&row.server),
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
    let metrics: [fn(&Metrics) -> f64; 5] = [
        |metrics| metrics.value,
        |metrics| metrics.requests_per_s,
        |metrics| metrics.p50_us,
        |metrics| metrics.p99_us,
        |metrics| metrics.p999_us,
    ];
    for figure in metrics {
        record.push(number(row.of_server(figure)));
        record.push(number(row.of_reference(figure)));
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

/// Four digits behind the point; nothing when it is not a number.
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
    fn the_first_line_stays_as_it_is() {
        let head = text("2026-01-01", &[]).expect("written");
        let head = String::from_utf8(head).expect("text");
        let known = "date,profile,scenario,about,unit,driver,reference,reference_version,\
            reference_told,reference_skips,server,version,told,skips,durability,access_log,\
            rounds,rounds_void,ratio,ci_low,ci_high,ci_coverage,min,max,reach,holds,value,\
            reference_value,requests_per_s,reference_requests_per_s,p50_us,reference_p50_us,\
            p99_us,reference_p99_us,p999_us,reference_p999_us,calls,reference_calls,peak_bytes,\
            reference_peak_bytes,cpu_s_per_gb,void_reasons,note";
        assert_eq!(head.trim_end(), known);
    }

    #[test]
    fn each_row_fills_every_column() {
        let mut full = row(&[(2.0, 1.0), (2.2, 1.1), (1.9, 1.0)]);
        full.server.told = "one worker, \"quoted\"".to_owned();
        full.volume_bytes = Some(1000);
        let mut void = row(&[]);
        void.voids = vec!["answered\n404".to_owned()];
        for row in [full, void] {
            assert_eq!(record("2026-01-01", &row).len(), COLUMNS.len());
            let bytes = text("2026-01-01", &[row]).expect("written");
            assert_eq!(bytes.iter().filter(|&&byte| byte == b'\n').count(), 2);
        }
    }
}
