//! Time of the first page of a large folder, hot, while small objects are fetched: the promise is
//! that it comes within 100 ms, in bounded memory, and without blocking other requests.

use super::{
    Driver,
    cost::{median, sorted},
    server::{Program, Server, ask_for},
};
use crate::{Failure, Options, shell::Outcome};
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

const ENTRIES: u64 = 100_000;
/// Pages of each form.
const PAGES: usize = 20;
/// Entries of a page, when a client asks for no number.
const PAGE_ENTRIES: u64 = 1000;
/// The median of either form, at most.
const LIMIT_MS: f64 = 100.0;
/// Small GETs with nothing beside them, to compare with.
const ALONE: Duration = Duration::from_secs(1);
/// Connections with one small GET after the other.
const READERS: usize = 2;

pub(crate) fn main(mut options: Options) -> Result<(), Failure> {
    let drivers = Driver::chosen(&mut options)?;
    let entries = options.number("--entries", ENTRIES)?;
    let report_only = options.flag("--report-only");
    options.end()?;

    let folder = Folder::new(entries)?;
    println!("milliseconds of the first page of {entries} entries, {PAGES} times each form,");
    println!("and p99 of small GETs at the same time and alone; peak memory of the server");
    println!(
        "{:9} {:>9} {:>7} {:>9} {:>7} {:>6}  {:>7} {:>7}  {:>9}",
        "driver", "JSON", "max", "HTML", "max", "limit", "GETs", "alone", "peak MiB"
    );
    let mut over = false;
    for driver in drivers {
        let server = Program::onrush(driver, &folder.0)?.start()?;
        let (_, alone) = beside(&server, || {
            thread::sleep(ALONE);
            Ok(())
        })?;
        let ((json, html), gets) = beside(&server, || {
            let json = pages(&server, "application/json", entries)?;
            Ok((json, pages(&server, "text/html", entries)?))
        })?;
        let fits = median(&json) <= LIMIT_MS && median(&html) <= LIMIT_MS;
        println!(
            "{:9} {:9.1} {:7.1} {:9.1} {:7.1} {LIMIT_MS:6}  {:7.2} {:7.2}  {:9.1}{}",
            driver.name(),
            median(&json),
            largest(&json),
            median(&html),
            largest(&html),
            gets,
            alone,
            server.peak()? as f64 / f64::from(1 << 20),
            if fits { "" } else { "  OVER" },
        );
        over |= !fits;
    }
    match over && !report_only {
        true => Err(Failure::Because("the limit was passed".to_owned())),
        false => Ok(()),
    }
}

/// Does `act` while small objects are fetched; gives the 99th percentile of these in milliseconds.
fn beside<T>(server: &Server, act: impl FnOnce() -> Outcome<T>) -> Outcome<(T, f64)> {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS)
            .map(|_| scope.spawn(|| read_small(server, &over)))
            .collect();
        let done = act();
        over.store(true, Ordering::Relaxed);
        let mut times = Vec::new();
        for reader in readers {
            let read = reader.join().map_err(|_| "a reader panicked".to_owned())?;
            times.extend(read?);
        }
        Ok((done?, percentile_99(&sorted(times.into_iter()))))
    })
}

/// GETs of a small object until it is `over`; milliseconds of each.
fn read_small(server: &Server, over: &AtomicBool) -> Outcome<Vec<f64>> {
    let mut stream = TcpStream::connect(server.address).map_err(|error| error.to_string())?;
    let mut times = Vec::new();
    while !over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        ask_for(&mut stream, b"GET /small HTTP/1.1\r\nHost: x\r\n\r\n")?;
        times.push(ms(begun));
    }
    Ok(times)
}

/// First pages, one after the other; milliseconds of each, in order of size.
fn pages(server: &Server, form: &str, entries: u64) -> Outcome<Vec<f64>> {
    // One more: the first one warms the caches of the file system.
    let times: Outcome<Vec<f64>> = (0..=PAGES).map(|_| page(server, form, entries)).collect();
    Ok(sorted(times?.into_iter().skip(1)))
}

fn page(server: &Server, form: &str, entries: u64) -> Outcome<f64> {
    let failed = |error: std::io::Error| format!("a page was not answered: {error}");
    let request =
        format!("GET /many/ HTTP/1.1\r\nHost: x\r\nAccept: {form}\r\nConnection: close\r\n\r\n");
    let begun = Instant::now();
    let mut stream = TcpStream::connect(server.address).map_err(failed)?;
    stream.write_all(request.as_bytes()).map_err(failed)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(failed)?;
    let time = ms(begun);
    let text = String::from_utf8_lossy(&answer);
    let last = name(entries.min(PAGE_ENTRIES) - 1);
    let whole = text.starts_with("HTTP/1.1 200 ") && text.contains(&last);
    match whole && text.contains(form) {
        true => Ok(time),
        false => Err(format!(
            "no page up to {last}: {}",
            &text[..text.len().min(200)]
        )),
    }
}

fn ms(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

/// Of values in order, at least one.
fn largest(values: &[f64]) -> f64 {
    values[values.len() - 1]
}

/// Of values in order.
fn percentile_99(values: &[f64]) -> f64 {
    let at = (values.len() * 99 / 100).min(values.len().saturating_sub(1));
    values.get(at).copied().unwrap_or(f64::NAN)
}

fn name(at: u64) -> String {
    format!("entry-{at:06}.txt")
}

/// A folder with many entries, and a small object beside it; gone with this.
struct Folder(PathBuf);

impl Folder {
    fn new(entries: u64) -> Outcome<Folder> {
        let path = std::env::temp_dir().join(format!("onrush-list-{}", std::process::id()));
        let folder = Folder(path);
        let failed = |error: std::io::Error| format!("{}: {error}", folder.0.display());
        let many = folder.0.join("many");
        fs::create_dir_all(&many).map_err(failed)?;
        fs::write(folder.0.join("small"), "small").map_err(failed)?;
        for at in 0..entries {
            write_entry(&many, at).map_err(failed)?;
        }
        Ok(folder)
    }
}

fn write_entry(into: &Path, at: u64) -> std::io::Result<()> {
    fs::write(into.join(name(at)), "")
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_99th_percentile_leaves_one_of_a_hundred_out() {
        let values: Vec<f64> = (0..200).map(f64::from).collect();
        assert_eq!(percentile_99(&values), 198.0);
        assert_eq!(percentile_99(&[1.0]), 1.0);
        assert!(percentile_99(&[]).is_nan());
    }

    #[test]
    fn a_folder_is_made_and_is_gone() {
        let folder = Folder::new(3).expect("made");
        let path = folder.0.clone();
        assert!(path.join("many/entry-000002.txt").exists());
        drop(folder);
        assert!(!path.exists());
    }
}
