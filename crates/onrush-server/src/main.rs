//! The program `onrush`: it serves a folder over HTTP.
//!
//! Layers, lowest first: `process` · `options` · `stores` · `config` · `logging` · `acme` ·
//! `certificates` · `access` · `commands` · `restart` · `serving` · this file, which combines them.

#![forbid(unsafe_code)]
#![recursion_limit = "256"] // `options!` takes two steps for each option.

mod access;
mod acme;
mod certificates;
mod commands;
mod config;
mod logging;
mod options;
mod process;
mod restart;
mod serving;
mod stores;

use access::path_rules::{Origin, RulesInUse};
use access::site_rules::RuleWatch;
use access::users::{SharedUsers, UserSource};
use certificates::Certificates;
use commands::{cli, pages};
use config::{CertificateSource, Settings};
use onrush::{Admin, Metrics};
use onrush_files::{AccessControl, FilesOptions, HttpChallenges, RuleSource};
use onrush_store::HandedOver;
use options::Options;
use options::values::LogFormat;
use process::failure::Failure;
use process::service_manager::ServiceManager;
use restart::Restart;
use restart::inherited::Inherited;
use serving::announcement::Announcement;
use serving::reconfigure::{Reconfiguration, Sources};
use serving::{Parts, Sizes};
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use stores::build_cache::BuildCacheCollector;
use stores::edge::EdgeCollector;
use stores::quotas::Quotas;
use stores::storage::Opened;

/// How long the end of the process waits for the thread that orders certificates. It only writes a
/// file.
const ORDER_END_WAIT: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let command = arguments.get(1).and_then(|word| word.to_str());
    let done = match command {
        Some("check") => check(arguments),
        Some("health") => commands::health::main(&arguments[1..]),
        Some("scrub") => commands::scrub::main(&arguments[1..]),
        Some("sign") => commands::sign::main(&arguments[1..]),
        Some("sweep") => commands::sweep::main(&arguments[1..]),
        Some("user") => commands::user::main(&arguments[1..]),
        _ => return main_of_server(arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(false),
    }
}

/// The options of a command line and their settings. `None`: a page was printed instead.
fn settings(arguments: Vec<OsString>) -> Result<Option<(Options, Settings)>, Failure> {
    match cli::read(arguments)? {
        cli::Action::Serve(options) => {
            let settings = Settings::new(
                (*options).clone(),
                process::memory::limit_bytes(Path::new("/")),
            )?;
            settings.trusted_files.check().map_err(Failure::usage)?;
            Ok(Some((*options, settings)))
        }
        cli::Action::Print(page) => cli::print(&page).map(|()| None),
        cli::Action::Completions(shell) => cli::print(&pages::completions(shell)).map(|()| None),
        cli::Action::Manual => cli::print(&pages::manual()?).map(|()| None),
        cli::Action::Manuals(folder) => pages::write_manuals(&folder).map(|()| None),
    }
}

/// The command `onrush check`, which has the options of the server.
fn check(mut arguments: Vec<OsString>) -> Result<(), Failure> {
    arguments.remove(1);
    match settings(arguments)? {
        Some((_, settings)) => cli::print(commands::check::report(&settings)?.as_bytes()),
        None => Ok(()),
    }
}

fn main_of_server(arguments: Vec<OsString>) -> ExitCode {
    let (options, settings) = match settings(arguments.clone()) {
        Ok(Some(read)) => read,
        Ok(None) => return ExitCode::SUCCESS,
        Err(failure) => return failure.report(false),
    };
    let json = settings.log.format == LogFormat::Json;
    match serve(arguments, options, settings) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}

/// Serves until a signal ends the server.
fn serve(
    arguments: Vec<OsString>,
    options: Options,
    mut settings: Settings,
) -> Result<(), Failure> {
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
    let shutdown = restart::signals::watch().map_err(|error| {
        Failure::run(format!(
            "cannot handle signals: {}",
            process::failure::error_text(&error)
        ))
    })?;
    let manager = ServiceManager::from_environment();
    let (predecessor, mut inherited) = match restart::predecessor()? {
        Some((predecessor, inherited)) => (Some(predecessor), inherited),
        None => (None, Inherited::activated(settings.tls.is_some())?),
    };
    inherited.replace_addresses(&mut settings)?;
    let user_source = UserSource::new(&settings)?;
    let users = user_source.as_ref().map(UserSource::load).transpose();
    let mut users = users.map_err(Failure::usage)?;
    access::users::check(&settings, users.as_mut())?;
    for warning in access::users::warnings(&settings, users.as_ref()) {
        tracing::warn!("{warning}");
    }
    let path_rules = RulesInUse::default();
    path_rules.set(
        Origin::Quotas,
        access::path_rules::of_quotas(&settings.quotas),
    );
    let of_users = users
        .iter()
        .flat_map(access::path_rules::of_users)
        .collect();
    path_rules.set(Origin::Users, of_users);
    let control = users.map(AccessControl::new);
    let (rule_watch, rules) = RuleWatch::open(&settings)?.unzip();
    let of_site = rules.iter().flat_map(access::path_rules::of_site).collect();
    path_rules.set(Origin::Site, of_site);
    let rules = rules.map(RuleSource::new);
    let descriptors = process::descriptors::raise_limit();
    let sizes = Sizes::new(&settings, descriptors);
    let files_options = FilesOptions {
        cache_files_max: process::descriptors::cached_files_max(descriptors),
        blocking_threads: sizes.file_threads,
        descriptors: sizes.descriptors.clone(),
        watchers_max: sizes.watchers_max(&settings),
        ..settings.files.clone()
    };
    let open = |known: &[HandedOver]| {
        let (edge, options) = (settings.edge.as_ref(), files_options.clone());
        let quotas = (&settings.quotas[..], known, &manager);
        (settings.storage).open(options, quotas, edge, settings.cache)
    };
    let Opened {
        files,
        remote,
        stores,
    } = match &predecessor {
        // The folder of a cache belongs to one process.
        Some(predecessor) if settings.edge.is_some() || settings.cache.is_some() => {
            predecessor.wait_for_end(&manager);
            restart::retry(|| open(&[]))?
        }
        Some(predecessor) if !settings.quotas.is_empty() => open(&predecessor.quotas())?,
        _ => open(&[])?,
    };
    // The folder may be new, and a file may now be made in it to find out.
    if let Some(folder) = access::path_rules::folder(&settings) {
        let allow = settings.files.allow;
        let may_write = allow.delete || (allow.put && !settings.files.sink);
        let checked = path_rules.check(folder, may_write);
        checked.map_err(Failure::usage)?;
    }
    if let Some((folder, _)) = &stores.folder {
        path_rules.watch(folder);
    }
    // Only certificates that are kept in a folder need it, and a check has ensured that it is one.
    let dir = settings.storage.folder().unwrap_or(Path::new("."));
    let certificates = match &settings.tls {
        Some(tls) => Some(Certificates::open(tls, dir, &settings.trusted_files)?),
        None => None,
    };
    let fingerprint = certificates.as_ref().and_then(Certificates::fingerprint);
    let tls = certificates.as_ref().map(Certificates::config);
    let metrics = Metrics::new();
    let mut admin = Admin::new(&metrics);
    if let Some(store) = remote {
        metrics.add_collector(stores::storage::collector(&store));
        let has_edge = stores.edge.is_some();
        admin = admin.ready_if(move || stores::storage::not_ready(&store, has_edge));
    }
    metrics.add_collector(files.collector());
    if let Some((folder, quotas)) = &stores.folder {
        let folder = folder.clone();
        admin = admin.ready_if(move || stores::storage::folder_not_ready(&folder));
        metrics.add_collector(Arc::new(quotas.clone()));
    }
    if let Some(edge) = &stores.edge {
        metrics.add_collector(Arc::new(EdgeCollector(edge.metrics())));
    }
    if let Some(cache) = &stores.build_cache {
        metrics.add_collector(Arc::new(BuildCacheCollector(cache.clone())));
    }
    if let Some(certificates) = &certificates {
        metrics.add_collector(certificates.collector());
    }
    if let Some(control) = &control {
        metrics.add_collector(control.collector());
    }
    let challenges = HttpChallenges::new();
    let parts = Parts {
        control: control.clone(),
        rules,
        files,
        admin,
        metrics,
        challenges: challenges.clone(),
    };
    // The admin server starts first, so that its failure needs no cleanup, and stops last, so that
    // `/-/ready` reports the shutdown.
    let admin_server = parts.start_admin(&settings, &sizes, &mut inherited)?;
    let (running, application) = parts.start(&settings, &sizes, tls, &mut inherited)?;
    drop(inherited); // The settings may have fewer addresses than the earlier process.
    parts.admin.watch(running.handle());
    shutdown.attach(running.handle());
    let mut orders = None;
    let mut shared_certificates = None;
    if let Some((certificates, tls)) = certificates.zip(settings.tls.as_ref()) {
        let config = certificates.config();
        let (reload, shared) = certificates.watch()?;
        shared_certificates = Some(shared);
        if let CertificateSource::Acme(acme) = &tls.source {
            let challenges = (!tls.redirect.is_empty()).then_some(challenges);
            let started = acme::start(acme, dir, config, challenges, reload.clone())?;
            shutdown.attach_orders(started.clone());
            orders = Some(started);
        }
        shutdown.on_hangup(reload);
    }
    let connections_max = sizes.connections_max();
    let agreement = restart::agreement(&settings);
    let quotas = stores.folder.as_ref().map(|(_, quotas)| quotas.clone());
    let admin_handle = admin_server.as_ref().map(|(running, _)| running.handle());
    shutdown.attach_restart(Restart::new(restart::Running {
        arguments: arguments.clone(),
        manager: manager.clone(),
        server: running.handle(),
        purposes: restart::inherited::purposes(&settings),
        admin: admin_handle,
        agreement: agreement.clone(),
        quotas: quotas.clone(),
    }));
    let watched = parts.files.clone();
    let reconfiguration = Reconfiguration {
        arguments,
        options,
        settings: settings.clone(),
        files_options,
        sizes,
        parts,
        stores: stores.clone(),
        path_rules: path_rules.clone(),
        sources: Sources {
            users: SharedUsers::new(user_source, control, watched, path_rules),
            rules: rule_watch,
            certificates: shared_certificates,
        },
        server: running.handle(),
        addresses: running.addresses().to_vec(),
        application,
        admin: admin_server
            .as_ref()
            .map(|(_, application)| application.clone()),
    };
    for reload in reconfiguration.watch()? {
        shutdown.on_hangup(reload);
    }
    manager.watch(running.handle()).map_err(|error| {
        let why = process::failure::error_text(&error);
        Failure::run(format!("cannot start the thread for the watchdog: {why}"))
    })?;
    shutdown.attach_manager(manager.clone());
    // Last: signals that follow it have their effect.
    let announcement = Announcement {
        running: &running,
        admin: admin_server.as_ref().map(|(running, _)| running),
        fingerprint,
    };
    announcement.make(&settings, connections_max);
    manager.ready();
    if let Some(predecessor) = predecessor {
        predecessor.ready(&agreement, running.handle(), move || {
            quotas.iter().for_each(Quotas::end_sharing);
        });
    }
    let ended = running.wait();
    if let Some(orders) = orders {
        orders.stop();
        orders.join(ORDER_END_WAIT);
    }
    if let Some((admin_server, _)) = admin_server {
        admin_server.handle().shutdown_now();
        let _ = admin_server.wait(); // The exit code does not depend on it.
    }
    if let Some(edge) = stores.edge {
        edge.close();
    }
    if let Some(cache) = stores.build_cache {
        cache.close();
    }
    ended.map_err(|error| {
        Failure::run(format!(
            "a worker failed: {}",
            process::failure::error_text(&error)
        ))
    })?;
    if shutdown.was_forced() {
        return Err(Failure::run("stopped at once by a second signal"));
    }
    tracing::info!("stopped");
    Ok(())
}
