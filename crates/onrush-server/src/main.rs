//! The program `onrush`: a folder, served over HTTP.
//!
//! `units`, `failure` · `options` (each option, once) · `config` (the file, and what all options
//! come to) · `cli` · `logging`, `signals`, `descriptors` (what a process has to do with) · this
//! file, which puts them together and serves.

#![forbid(unsafe_code)]

mod cli;
mod config;
mod descriptors;
mod failure;
mod logging;
mod options;
mod signals;
mod units;

use config::Settings;
use failure::Failure;
use onrush::{Running, Server};
use onrush_rt::net::Address;
use onrush_server::{Files, FilesOptions};
use options::LogFormat;
use std::io::{self, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let settings = match cli::read(std::env::args_os().collect()) {
        Ok(cli::Request::Serve(options)) => Settings::new(*options),
        Ok(cli::Request::Print(page)) => match cli::print(&page) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(failure) => Err(failure),
        },
        Err(failure) => Err(failure),
    };
    let settings = match settings {
        Ok(settings) => settings,
        Err(failure) => return failure.report(false),
    };
    let json = settings.log.format == LogFormat::Json;
    match serve(settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}

/// Serves until a signal ends it.
fn serve(settings: Settings) -> Result<(), Failure> {
    logging::start(settings.log);
    let ending = signals::watch().map_err(|error| {
        Failure::run(format!(
            "signals cannot be caught: {}",
            failure::reason(&error)
        ))
    })?;
    descriptors::raise();
    let files = Files::open(&settings.dir, settings.files.clone()).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::NotFound => " (--allow put)",
            _ => "",
        };
        Failure::run(failure::reason(&error) + hint)
    })?;
    let running = start(&settings, &files)?;
    ending.serve(running.handle());
    announce(&running, &settings);
    running
        .wait()
        .map_err(|error| Failure::run(format!("a worker failed: {}", failure::reason(&error))))?;
    if ending.was_cut() {
        return Err(Failure::run("ended at once, by a second signal"));
    }
    tracing::info!("ended");
    Ok(())
}

/// Starts the workers.
fn start(settings: &Settings, files: &Files) -> Result<Running, Failure> {
    server(settings).start(files.clone()).map_err(|error| {
        let reason = failure::reason(&error);
        let hint = match reason.starts_with("io_uring is refused") {
            true => "; --driver auto takes epoll instead",
            false => "",
        };
        Failure::run(format!("{reason}{hint}"))
    })
}

fn server(settings: &Settings) -> Server {
    let mut server = Server::bind(settings.address.as_str())
        .backlog(settings.backlog)
        .driver(settings.driver)
        .driver_config(settings.driver_config.clone())
        .limits(settings.limits.clone())
        .drain_timeout(settings.drain_timeout)
        .blocking_threads(settings.files.blocking_threads)
        .access_log(settings.access_log);
    if let Some(workers) = settings.workers {
        server = server.workers(workers);
    }
    if let Some(connections) = settings.connections_max {
        server = server.connections_max(connections);
    }
    server
}

/// Tells people on stderr and programs on stdout where it serves.
fn announce(running: &Running, settings: &Settings) {
    let address = match running.address() {
        Address::Tcp(address) => format!("http://{address}"),
        unix @ Address::Unix(_) => failure::one_line(&unix.to_string()),
    };
    tracing::info!(
        address,
        dir = %settings.dir.display(),
        allowed = allowed(&settings.files),
        driver = running.driver().name(),
        reason = running.driver().reason(),
        workers = running.workers(),
        "serving"
    );
    // Whoever started it may have closed its end.
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{address}").and_then(|()| out.flush());
}

/// What clients may do, in a word or two.
fn allowed(files: &FilesOptions) -> &'static str {
    match (files.sink, files.allow.put, files.allow.delete) {
        (true, _, false) => "get, put (thrown away)",
        (true, _, true) => "get, put (thrown away), delete",
        (false, false, false) => "get",
        (false, true, false) => "get, put",
        (false, false, true) => "get, delete",
        (false, true, true) => "get, put, delete",
    }
}
