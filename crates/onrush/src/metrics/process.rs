//! Metrics of the process, with the names that Prometheus client libraries use. They come from
//! proc(5); a metric that cannot be read is left out.

use super::text::{MetricType, TextWriter};
use std::fs;

pub(super) fn write(text: &mut TextWriter) {
    let mut write_value = |name, family, help, value: Option<f64>| {
        if let Some(value) = value {
            text.family(name, family, help);
            text.sample(&[], value);
        }
    };
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let stat = Stat::parse(&stat);
    let of = |read: fn(&Stat) -> f64| stat.as_ref().map(read);
    write_value(
        "process_cpu_seconds",
        MetricType::Counter,
        "CPU time used in user space and in the kernel.",
        of(|stat| stat.cpu_seconds),
    );
    write_value(
        "process_resident_memory_bytes",
        MetricType::Gauge,
        "Resident memory.",
        of(|stat| stat.resident_bytes),
    );
    write_value(
        "process_virtual_memory_bytes",
        MetricType::Gauge,
        "Virtual memory.",
        of(|stat| stat.virtual_bytes),
    );
    write_value(
        "process_threads",
        MetricType::Gauge,
        "Threads.",
        of(|stat| stat.threads),
    );
    let start = stat.as_ref().zip(boot_seconds());
    write_value(
        "process_start_time_seconds",
        MetricType::Gauge,
        "Start time of the process, in seconds since 1970.",
        start.map(|(stat, boot)| boot + stat.start_seconds),
    );
    write_value(
        "process_open_fds",
        MetricType::Gauge,
        "Open descriptors.",
        open_descriptors(),
    );
    write_value(
        "process_max_fds",
        MetricType::Gauge,
        "Maximum number of open descriptors.",
        descriptors_max(),
    );
}

/// The used fields of proc_pid_stat(5).
#[derive(Debug, PartialEq)]
struct Stat {
    cpu_seconds: f64,
    /// Since the system booted.
    start_seconds: f64,
    threads: f64,
    virtual_bytes: f64,
    resident_bytes: f64,
}

impl Stat {
    fn parse(line: &str) -> Option<Stat> {
        // The name before this may contain spaces and parentheses.
        let (_, fields) = line.rsplit_once(')')?;
        let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
        // The first field after the name is field 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let ticks = onrush_rt::worker::ticks_per_second() as f64;
        Some(Stat {
            cpu_seconds: (field(14)? + field(15)?) / ticks,
            start_seconds: field(22)? / ticks,
            threads: field(20)?,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * onrush_rt::worker::page_bytes() as f64,
        })
    }
}

fn boot_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let line = stat.lines().find_map(|line| line.strip_prefix("btime "))?;
    line.trim().parse().ok()
}

fn open_descriptors() -> Option<f64> {
    // Since Linux 6.2 the size of the directory is their number. Counting thousands takes time.
    match fs::metadata("/proc/self/fd").ok()?.len() {
        0 => Some(fs::read_dir("/proc/self/fd").ok()?.count() as f64),
        count => Some(count as f64),
    }
}

fn descriptors_max() -> Option<f64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let mut lines = limits.lines();
    let soft = lines.find_map(|line| line.strip_prefix("Max open files"))?;
    soft.split_ascii_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::text::Format;

    #[test]
    fn a_name_with_parentheses_does_not_shift_the_fields() {
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        let line = format!("1 (a) b (c)) {}", fields.join(" "));
        let stat = Stat::parse(&line).unwrap();
        assert_eq!((stat.threads, stat.virtual_bytes), (20.0, 23.0));
        assert_eq!(Stat::parse("1 (x) 3 4"), None);
    }

    #[test]
    fn this_process_has_all_of_them() {
        let mut text = TextWriter::new(Format::Prometheus);
        write(&mut text);
        let page = text.finish();
        for name in [
            "process_cpu_seconds_total",
            "process_resident_memory_bytes",
            "process_virtual_memory_bytes",
            "process_threads",
            "process_start_time_seconds",
            "process_open_fds",
            "process_max_fds",
        ] {
            let value = page
                .lines()
                .find_map(|line| line.strip_prefix(&format!("{name} ")));
            let value: f64 = value.expect(name).parse().unwrap();
            assert!(value >= 0.0 && value.is_finite(), "{name}");
        }
    }
}
