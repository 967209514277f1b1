//! The program `onrush`: it serves a folder over HTTP.
//!
//! Layers, lowest first: `units`, `toml_values`, `failure`, `memory`, `key_files`, `redaction` ·
//! `values`, `tls_values`, `acme_values`, `access_values`, `quota_values`, `reload` · `options`
//! (their list) · `edge` (the cache before the store), `build_cache` · `quotas` · `storage` (where
//! the objects are) · `config` (the file and the resulting settings) · `secret_files` · `cli` ·
//! `combined`, `self_signed` · `tls` (certificates), `acme` (their orders) · `access_control`
//! (users) · `site_rules` · `commands`, `terminal` · `sweep`, `scrub`, `check_command`,
//! `sign_command`, `user_command` (commands of their own) · `logging`, `signals`,
//! `descriptors` (the process) · `announcement` · this file, which combines them and serves.

#![forbid(unsafe_code)]

mod access_control;
mod access_values;
mod acme;
mod acme_values;
mod announcement;
mod build_cache;
mod check_command;
mod cli;
mod combined;
mod commands;
mod config;
mod descriptors;
mod edge;
mod failure;
mod key_files;
mod logging;
mod memory;
mod options;
mod quota_values;
mod quotas;
mod redaction;
mod reload;
mod scrub;
mod secret_files;
mod self_signed;
mod sign_command;
mod signals;
mod site_rules;
mod storage;
mod sweep;
mod terminal;
mod tls;
mod tls_values;
mod toml_values;
mod units;
mod user_command;
mod values;

use announcement::Announcement;
use build_cache::BuildCacheCollector;
use config::{CertificateSource, Settings};
use edge::EdgeCollector;
use failure::Failure;
use onrush::handler::Service;
use onrush::tls::TlsConfig;
use onrush::{Admin, Application, Metrics, Router, Running, Server, WorkerHandle};
use onrush_rt::descriptors::Descriptors;
use onrush_rt::net::Address;
use onrush_rt::worker::affinity;
use onrush_server::{
    Access, AccessControl, BodyLimit, Files, FilesOptions, Forwarding, Guard, Hosts,
    HttpChallenges, Https, ListenAddress, PAGE_PATHS, Redirect, RuleSource, SiteRules, Upkeep,
    add_dashboard, https_port,
};
use std::ffi::OsString;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use storage::Opened;
use tls::Certificates;
use values::{AdminAt, LogFormat};

/// The maximum number of connections to the admin address over its limit. Each stays open until it
/// has received a 503.
const ADMIN_OVER_LIMIT: usize = 4;

/// How long the end of the process waits for the thread that orders certificates. It only writes a
/// file.
const ORDER_END_WAIT: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let command = arguments.get(1).and_then(|word| word.to_str());
    let done = match command {
        Some("check") => check(arguments),
        Some("scrub") => scrub::main(&arguments[1..]),
        Some("sign") => sign_command::main(&arguments[1..]),
        Some("sweep") => sweep::main(&arguments[1..]),
        Some("user") => user_command::main(&arguments[1..]),
        _ => return main_of_server(arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(false),
    }
}

/// The settings of a command line. `None`: a page was printed instead.
fn settings(arguments: Vec<OsString>) -> Result<Option<Settings>, Failure> {
    match cli::read(arguments)? {
        cli::Action::Serve(options) => {
            Settings::new(*options, memory::limit_bytes(Path::new("/"))).map(Some)
        }
        cli::Action::Print(page) => cli::print(&page).map(|()| None),
    }
}

/// The command `onrush check`, which has the options of the server.
fn check(mut arguments: Vec<OsString>) -> Result<(), Failure> {
    arguments.remove(1);
    match settings(arguments)? {
        Some(settings) => cli::print(check_command::report(&settings)?.as_bytes()),
        None => Ok(()),
    }
}

fn main_of_server(arguments: Vec<OsString>) -> ExitCode {
    let settings = match settings(arguments) {
        Ok(Some(settings)) => settings,
        Ok(None) => return ExitCode::SUCCESS,
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
    let mut users = access_control::users(&settings)?;
    access_control::check(&settings, users.as_mut())?;
    for warning in access_control::warnings(&settings, users.as_ref()) {
        tracing::warn!("{warning}");
    }
    let control = users.map(AccessControl::new);
    let rules = site_rules::load(&settings)?;
    let descriptors = descriptors::raise_limit();
    let plan = Plan::new(&settings, descriptors);
    let options = FilesOptions {
        cache_files_max: descriptors::cached_files_max(descriptors),
        blocking_threads: plan.file_threads,
        descriptors: plan.descriptors.clone(),
        ..settings.files.clone()
    };
    let opened = settings.storage.open(
        options,
        &settings.quotas,
        settings.edge.as_ref(),
        settings.cache,
    )?;
    let Opened {
        files,
        remote,
        edge,
        quotas,
        build_cache,
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
        let has_edge = edge.is_some();
        admin = admin.ready_if(move || storage::not_ready(&store, has_edge));
    }
    if let Some(quotas) = quotas {
        metrics.add_collector(quotas);
    }
    if let Some(edge) = &edge {
        metrics.add_collector(Arc::new(EdgeCollector(edge.metrics())));
    }
    if let Some(cache) = &build_cache {
        metrics.add_collector(Arc::new(BuildCacheCollector(cache.clone())));
    }
    if let Some(certificates) = &certificates {
        metrics.add_collector(certificates.collector());
    }
    if let Some(control) = &control {
        metrics.add_collector(control.collector());
    }
    // The admin server starts first, so that its failure needs no cleanup, and stops last, so that
    // `/-/ready` reports the shutdown.
    let admin_server = start_admin(&settings, &plan, &admin, &metrics)?;
    let challenges = HttpChallenges::new();
    let objects = objects(
        &settings,
        control.as_ref(),
        rules.as_ref(),
        &files,
        &admin,
        &metrics,
    );
    let server = Serving {
        tls,
        objects,
        challenges: &challenges,
        metrics: &metrics,
    };
    let running = server.start(&settings, &plan, &files)?;
    admin.watch(running.handle());
    shutdown.attach(running.handle());
    let mut orders = None;
    if let Some((certificates, tls)) = certificates.zip(settings.tls.as_ref()) {
        let config = certificates.config();
        let reload = certificates.watch()?;
        if let CertificateSource::Acme(acme) = &tls.source {
            let challenges = (!tls.redirect.is_empty()).then_some(challenges);
            let started = acme::start(acme, dir, config, challenges, reload.clone())?;
            shutdown.attach_orders(started.clone());
            orders = Some(started);
        }
        shutdown.on_hangup(reload);
    }
    if let Some(control) = &control
        && let Some(reload) = access_control::watch(&settings, control)?
    {
        shutdown.on_hangup(reload);
    }
    if let Some(reload) = site_rules::watch(&settings, rules.as_ref())? {
        shutdown.on_hangup(reload);
    }
    let announcement = Announcement {
        running: &running,
        admin: admin_server.as_ref(),
        fingerprint,
    };
    announcement.make(&settings, plan.connections_max);
    let ended = running.wait();
    if let Some(orders) = orders {
        orders.stop();
        orders.join(ORDER_END_WAIT);
    }
    if let Some(admin_server) = admin_server {
        admin_server.handle().shutdown_now();
        let _ = admin_server.wait(); // The exit code does not depend on it.
    }
    if let Some(edge) = edge {
        edge.flush();
    }
    if let Some(cache) = build_cache {
        cache.flush();
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

/// An application whose type is known at run time only. A request costs no more for it.
struct Boxed(Box<dyn Application>);

impl Application for Boxed {
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
        self.0.instantiate(worker)
    }
}

/// The paths of the admin pages that load balancers read without logging in, and of the style and
/// the script of the page.
const OPEN_PATHS: &[&str] = &["/-/health", "/-/ready", PAGE_PATHS[0], PAGE_PATHS[1]];

/// What is served: objects, perhaps with the admin pages, perhaps behind access control.
fn objects(
    settings: &Settings,
    control: Option<&AccessControl>,
    rules: Option<&RuleSource>,
    files: &Files,
    admin: &Admin,
    metrics: &Metrics,
) -> Boxed {
    let is_shared = settings.admin == Some(AdminAt::Same);
    let objects: Box<dyn Application> = match is_shared {
        true => {
            let page = |router: Router, path: &&str| router.get(path, files.clone());
            let router = PAGE_PATHS.iter().fold(Router::new(), page);
            let router = add_dashboard(router.fallback(files.clone()), metrics);
            Box::new(admin.add_to(router))
        }
        false => Box::new(files.clone()),
    };
    let objects: Box<dyn Application> = match rules {
        Some(rules) => Box::new(SiteRules::new(rules, Boxed(objects))),
        None => objects,
    };
    let objects = Box::new(Upkeep::new(files, Boxed(objects)));
    // The limit of the body is checked after access control: a client without the right to write
    // gets 401 or 403, whatever the size.
    let bytes_max = settings.body_bytes_max;
    let Some(control) = control else {
        return Boxed(objects);
    };
    let objects = BodyLimit::new(bytes_max, Boxed(objects));
    let open_paths = if is_shared { OPEN_PATHS } else { PAGE_PATHS };
    let access = Access::new(control, objects)
        .site(settings.files.site)
        .upload_forms(true);
    Boxed(Box::new(access.open_paths(open_paths)))
}

/// What the workers serve, besides the settings.
struct Serving<'s> {
    tls: Option<TlsConfig>,
    objects: Boxed,
    challenges: &'s HttpChallenges,
    metrics: &'s Metrics,
}

impl Serving<'_> {
    /// Starts the workers.
    fn start(self, settings: &Settings, plan: &Plan, files: &Files) -> Result<Running, Failure> {
        let addresses: Vec<ListenAddress> = (settings.all_addresses().iter())
            .map(|address| ListenAddress::resolve(address))
            .collect();
        let server = configure_server(settings, &addresses, plan);
        let mut server = server.blocking_pool(files.pool().clone());
        if settings.admin.is_some() {
            server = server.metrics(self.metrics);
        }
        if let Some(tls) = self.tls {
            server = server.tls(tls);
        }
        let hosts = Hosts::for_listeners(&addresses, &settings.hosts);
        let mut guarded = Guard::new(hosts.clone(), self.objects).cors(&settings.cors);
        if settings.access.is_none() {
            guarded = guarded.body_bytes_max(settings.body_bytes_max);
        }
        start_with(server, guarded, settings, hosts, self.challenges)
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
    let forwarding = |application: Boxed| match settings.trusted_proxies.is_empty() {
        true => application,
        false => Boxed(Box::new(Forwarding::new(
            application,
            settings.trusted_proxies.clone(),
        ))),
    };
    let Some(tls) = &settings.tls else {
        let application = forwarding(Boxed(Box::new(application)));
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
    let application = forwarding(Boxed(Box::new(application)));
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
    metrics: &Metrics,
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
        .start(Guard::new(
            hosts,
            admin.add_to(add_dashboard(Router::new(), metrics)),
        ));
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
    let server = server
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
        .access_log(settings.access_log);
    match settings.proxy_protocol {
        true => server.proxy_protocol(settings.trusted_proxies.clone()),
        false => server,
    }
}
