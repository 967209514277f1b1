//! The program `onrush`: it serves a folder over HTTP.
//!
//! Layers, lowest first: `units`, `toml_values`, `failure`, `memory`, `key_files` · `values`,
//! `tls_values`, `acme_values` · `options` (their list) · `edge` (the cache before the store) ·
//! `storage` (where the objects are) · `config` (the file and the resulting settings) · `cli` ·
//! `combined`, `self_signed` · `tls` (certificates), `acme` (their orders) · `sweep` (a command of
//! its own) · `logging`, `signals`, `descriptors` (the process) · this file, which combines them
//! and serves.

#![forbid(unsafe_code)]

mod acme;
mod acme_values;
mod cli;
mod combined;
mod config;
mod descriptors;
mod edge;
mod failure;
mod key_files;
mod logging;
mod memory;
mod options;
mod self_signed;
mod signals;
mod storage;
mod sweep;
mod tls;
mod tls_values;
mod toml_values;
mod units;
mod values;

use config::{CertificateSource, Settings};
use edge::EdgeCollector;
use failure::Failure;
use onrush::tls::TlsConfig;
use onrush::{Admin, Application, Metrics, Router, Running, Server};
use onrush_rt::descriptors::Descriptors;
use onrush_rt::net::Address;
use onrush_rt::worker::affinity;
use onrush_server::{
    Files, FilesOptions, Guard, Hosts, HttpChallenges, Https, ListenAddress, Redirect, https_port,
};
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use storage::Opened;
use tls::Certificates;
use values::{AdminAt, LogFormat};

/// The maximum number of connections to the admin address over its limit. Each stays open until it
/// has received a 503.
const ADMIN_OVER_LIMIT: usize = 4;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    if let Some(words) = sweep::arguments(&arguments) {
        return match sweep::main(words) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.report(false),
        };
    }
    let settings = match cli::read(arguments) {
        Ok(cli::Action::Serve(options)) => {
            Settings::new(*options, memory::limit_bytes(Path::new("/")))
        }
        Ok(cli::Action::Print(page)) => match cli::print(&page) {
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

/// Serves until a signal ends the server.
fn serve(settings: Settings) -> Result<(), Failure> {
    logging::start(settings.log);
    tracing::debug!(?settings, "settings");
    for variable in cli::unknown_variables() {
        tracing::warn!(
            variable,
            "unknown environment variable; onrush --help lists the options"
        );
    }
    if let Some(reduced_defaults) = settings.reduced_defaults {
        reduced_defaults.log();
    }
    let shutdown = signals::watch().map_err(|error| {
        Failure::run(format!(
            "cannot handle signals: {}",
            failure::error_text(&error)
        ))
    })?;
    let descriptors = descriptors::raise_limit();
    let plan = Plan::new(&settings, descriptors);
    let options = FilesOptions {
        cache_files_max: descriptors::cached_files_max(descriptors),
        blocking_threads: plan.file_threads,
        descriptors: plan.descriptors.clone(),
        ..settings.files.clone()
    };
    let opened = settings.storage.open(options, settings.edge.as_ref())?;
    let Opened {
        files,
        remote,
        edge,
    } = opened;
    // Only certificates that are kept in a folder need it, and a check has ensured that it is one.
    let dir = settings.storage.folder().unwrap_or(Path::new("."));
    let certificates = match &settings.tls {
        Some(tls) => Some(Certificates::open(tls, dir)?),
        None => None,
    };
    let fingerprint = certificates.as_ref().and_then(Certificates::fingerprint);
    let tls = certificates.as_ref().map(Certificates::config);
    let metrics = Metrics::new();
    let mut admin = Admin::new(&metrics);
    if let Some(store) = remote {
        metrics.add_collector(storage::collector(&store));
        // With an edge, copies are served while the store cannot be reached.
        if edge.is_none() {
            admin = admin.ready_if(move || storage::not_ready(&store));
        }
    }
    if let Some(edge) = &edge {
        metrics.add_collector(Arc::new(EdgeCollector(edge.metrics())));
    }
    // The admin server starts first, so that its failure needs no cleanup, and stops last, so that
    // `/-/ready` reports the shutdown.
    let admin_server = start_admin(&settings, &plan, &admin)?;
    let challenges = HttpChallenges::new();
    let running = start(&settings, &plan, tls, &files, &admin, &metrics, &challenges)?;
    admin.watch(running.handle());
    shutdown.attach(running.handle());
    if let Some((certificates, tls)) = certificates.zip(settings.tls.as_ref()) {
        let config = certificates.config();
        let reload = certificates.watch()?;
        if let CertificateSource::Acme(acme) = &tls.source {
            let challenges = (!tls.redirect.is_empty()).then_some(challenges);
            acme::start(acme, dir, config, challenges, reload.clone())?;
        }
        shutdown.on_hangup(reload);
    }
    let announcement = Announcement {
        running: &running,
        admin: admin_server.as_ref(),
        fingerprint,
    };
    announcement.make(&settings, &plan);
    let ended = running.wait();
    if let Some(admin_server) = admin_server {
        admin_server.handle().shutdown_now();
        let _ = admin_server.wait(); // The exit code does not depend on it.
    }
    if let Some(edge) = edge {
        edge.flush();
    }
    ended.map_err(|error| {
        Failure::run(format!("a worker failed: {}", failure::error_text(&error)))
    })?;
    if shutdown.was_forced() {
        return Err(Failure::run("stopped at once by a second signal"));
    }
    tracing::info!("stopped");
    Ok(())
}

/// Sizes that depend on the settings and on the limits of this machine.
struct Plan {
    workers: usize,
    file_threads: usize,
    connections_max: usize,
    admin_connections_max: usize,
    /// The budget for connections and files.
    descriptors: Descriptors,
}

impl Plan {
    /// `descriptors`: the limit on open files of this process; `None` if there is no limit.
    fn new(settings: &Settings, descriptors: Option<u64>) -> Plan {
        let listeners = settings.all_addresses().len();
        let workers = settings.workers.unwrap_or_else(|| {
            let max = descriptors::workers_max(descriptors, listeners);
            affinity().len().min(max)
        });
        let file_threads = descriptors::file_threads(descriptors, settings.files.blocking_threads);
        let admin_connections_max = descriptors::admin_connections_max(descriptors);
        let other = match settings.admin {
            Some(AdminAt::Own(_)) => {
                admin_connections_max + ADMIN_OVER_LIMIT + descriptors::per_worker(1) as usize
            }
            _ => 0,
        };
        let own = descriptors::ProcessUse {
            workers,
            listeners,
            file_threads,
            other,
        };
        let budget = descriptors::budget(descriptors, own);
        let possible = budget.connections_max();
        let wanted = settings.connections_max.unwrap_or(possible);
        if wanted > possible {
            tracing::warn!(
                connections_max = wanted,
                possible,
                "connections-max exceeds what the limit on open files (ulimit -n) permits"
            );
        }
        Plan {
            workers,
            file_threads,
            connections_max: wanted.min(possible),
            admin_connections_max,
            descriptors: budget,
        }
    }
}

/// Starts the workers.
fn start(
    settings: &Settings,
    plan: &Plan,
    tls: Option<TlsConfig>,
    files: &Files,
    admin: &Admin,
    metrics: &Metrics,
    challenges: &HttpChallenges,
) -> Result<Running, Failure> {
    let addresses: Vec<ListenAddress> = (settings.all_addresses().iter())
        .map(|address| ListenAddress::resolve(address))
        .collect();
    let server = configure_server(settings, &addresses, plan);
    let mut server = server.blocking_pool(files.pool().clone());
    if settings.admin.is_some() {
        server = server.metrics(metrics);
    }
    if let Some(tls) = tls {
        server = server.tls(tls);
    }
    let hosts = Hosts::for_listeners(&addresses, &settings.hosts);
    let body_bytes_max = settings.body_bytes_max;
    match settings.admin {
        None | Some(AdminAt::Own(_)) => {
            let guarded = Guard::new(hosts.clone(), files.clone()).body_bytes_max(body_bytes_max);
            start_with(server, guarded, settings, hosts, challenges)
        }
        Some(AdminAt::Same) => {
            let router = admin.add_to(Router::new().fallback(files.clone()));
            let guarded = Guard::new(hosts.clone(), router).body_bytes_max(body_bytes_max);
            start_with(server, guarded, settings, hosts, challenges)
        }
    }
}

/// Starts the server with redirections and headers if it has HTTPS.
fn start_with(
    server: Server,
    application: impl Application,
    settings: &Settings,
    hosts: Hosts,
    challenges: &HttpChallenges,
) -> Result<Running, Failure> {
    let fail = |error: io::Error| start_failure(&error, &settings.all_addresses());
    let Some(tls) = &settings.tls else {
        return server.start(application).map_err(fail);
    };
    let redirect = Redirect::new(hosts, settings.admin == Some(AdminAt::Same));
    let redirect = redirect.challenges(challenges);
    let mut application = Https::new(application);
    if !tls.redirect.is_empty() {
        application = application.redirect(&redirect);
    }
    if let Some(max_age_s) = tls.hsts_s {
        application = application.hsts(max_age_s);
    }
    let running = server.start(application).map_err(fail)?;
    let (encrypted, others) = running.addresses().split_at(settings.addresses.len());
    let (plain, redirecting) = others.split_at(tls.plain.len());
    let to = |address: &Address| {
        let port = (tls.https_port).or_else(|| https_port(address, encrypted));
        port.map(|port| (address.clone(), port))
    };
    let redirecting: Vec<_> = redirecting.iter().filter_map(to).collect();
    redirect.set_listeners(plain, &redirecting);
    Ok(running)
}

/// Starts the server for metrics and health if it has its own address.
fn start_admin(
    settings: &Settings,
    plan: &Plan,
    admin: &Admin,
) -> Result<Option<Running>, Failure> {
    let Some(AdminAt::Own(address)) = &settings.admin else {
        return Ok(None);
    };
    let address = ListenAddress::resolve(address);
    let hosts = Hosts::for_listener(&address, &settings.hosts);
    let server = Server::bind(address.to_bind())
        .workers(1)
        .pinned(false)
        .driver(settings.driver)
        .connections_max(plan.admin_connections_max)
        .start(Guard::new(hosts, admin.router()));
    let running = server.map_err(|error| match start_failure(&error, &[]) {
        Failure::Usage(message) => Failure::usage(format!("--admin: {message}")),
        Failure::Run(message) => Failure::run(format!("--admin: {message}")),
    })?;
    tracing::info!(address = %running.address(), "serving admin");
    Ok(Some(running))
}

/// The failure of a server that did not start on `addresses`. An address that is not one, or whose
/// name is unknown, is wrong usage.
fn start_failure(error: &io::Error, addresses: &[String]) -> Failure {
    let reason = failure::error_text(error);
    if reason.starts_with("io_uring is refused") {
        return Failure::run(format!("{reason}; --driver auto uses epoll instead"));
    }
    match error.kind() {
        io::ErrorKind::InvalidInput => Failure::usage(reason),
        io::ErrorKind::AddrInUse => match addresses.iter().find(|path| is_no_socket(path)) {
            Some(path) => Failure::run(format!("{path} exists and is not a socket")),
            None => Failure::run(reason),
        },
        _ => Failure::run(reason),
    }
}

/// Whether the address is a Unix socket and its file exists and is something else. Such a file is
/// not replaced.
fn is_no_socket(address: &str) -> bool {
    let found = address.strip_prefix("unix:").map(std::fs::symlink_metadata);
    found.is_some_and(|found| found.is_ok_and(|found| !found.file_type().is_socket()))
}

/// The server for `addresses`, which are [`Settings::all_addresses`].
fn configure_server(settings: &Settings, addresses: &[ListenAddress], plan: &Plan) -> Server {
    let (first, plain) = addresses.split_at(settings.addresses.len());
    let mut first = first.iter().map(ListenAddress::to_bind);
    let server = Server::bind(first.next().unwrap_or_default());
    let server = first.fold(server, Server::also_bind);
    let plain = plain.iter().map(ListenAddress::to_bind);
    let server = plain.fold(server, Server::also_bind_plain);
    server
        .backlog(settings.backlog)
        .defer_accept(settings.defer_accept)
        .driver(settings.driver)
        .workers(plan.workers)
        .placement(settings.placement)
        .rebalance(settings.rebalance)
        .connections_max(plan.connections_max)
        .descriptors(&plan.descriptors)
        .driver_config(settings.driver_config(plan.workers))
        .limits(settings.limits.clone())
        .drain_timeout(settings.drain_timeout)
        .access_log(settings.access_log)
}

/// What the program logs and prints when it is ready.
struct Announcement<'r> {
    running: &'r Running,
    admin: Option<&'r Running>,
    /// Of a self-signed certificate.
    fingerprint: Option<String>,
}

impl Announcement<'_> {
    /// Logs the addresses with other properties of the server, and prints the addresses to stdout:
    /// those of the objects, then those that redirect, that of the admin server, and the
    /// fingerprint.
    fn make(&self, settings: &Settings, plan: &Plan) {
        let shown = |address: &Address, scheme: &str| match address {
            Address::Tcp(address) => format!("{scheme}://{address}"),
            unix @ Address::Unix(_) => failure::one_line(&unix.to_string()),
        };
        let (first, others) = (self.running.addresses()).split_at(settings.addresses.len());
        let plain = settings.tls.as_ref().map_or(0, |tls| tls.plain.len());
        let (plain, redirecting) = others.split_at(plain);
        let scheme = if settings.tls.is_some() {
            "https"
        } else {
            "http"
        };
        let first = first.iter().map(|address| shown(address, scheme));
        let plain = plain.iter().map(|address| shown(address, "http"));
        let addresses: Vec<String> = first.chain(plain).collect();
        let redirecting: Vec<String> = (redirecting.iter())
            .map(|address| shown(address, "http"))
            .collect();
        // Which features of io_uring are in use is in the debug log. Why epoll is used is shown
        // here.
        let driver = self.running.driver();
        let reason = (driver.name() != "io_uring").then(|| driver.reason());
        let edge = settings.edge.as_ref().map(|edge| edge.dir.display());
        let edge = edge.map(|dir| failure::one_line(&dir.to_string()));
        tracing::info!(
            address = addresses.join(" "),
            redirect = (!redirecting.is_empty()).then(|| redirecting.join(" ")),
            certificate_sha256 = self.fingerprint,
            store = %settings.storage,
            edge,
            allowed = allowed(&settings.files),
            driver = driver.name(),
            reason,
            connections_max = plan.connections_max,
            workers = self.running.workers(),
            "serving"
        );
        let mut lines = addresses.join("\n") + "\n";
        for address in redirecting {
            lines += &format!("redirect {address}\n");
        }
        if let Some(admin) = self.admin {
            lines += &format!("admin {}/-/\n", shown(admin.address(), "http"));
        }
        if let Some(fingerprint) = &self.fingerprint {
            lines += &format!("certificate sha256 {fingerprint}\n");
        }
        // stdout may be closed.
        let mut out = io::stdout().lock();
        let _ = out.write_all(lines.as_bytes()).and_then(|()| out.flush());
    }
}

/// The permitted operations, for the log.
fn allowed(files: &FilesOptions) -> &'static str {
    match (files.sink, files.allow.put, files.allow.delete) {
        (true, _, false) => "get, put (discarded)",
        (true, _, true) => "get, put (discarded), delete",
        (false, false, false) => "get",
        (false, true, false) => "get, put",
        (false, false, true) => "get, delete",
        (false, true, true) => "get, put, delete",
    }
}
