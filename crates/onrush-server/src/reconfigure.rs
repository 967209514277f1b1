//! New settings for the running server, on SIGHUP: the configuration file is read again, and so are
//! the files of users and of rules. It applies what can change, and says what needs a restart.
//!
//! All new settings are checked and prepared before the first is applied: after a mistake, all that
//! are in use remain. Then the application is replaced as a whole ([`Replaceable`]), so a request
//! is decided by the rights, limits and pages of one configuration. The engine takes its settings
//! as a whole, too (`onrush::RunningSettings`). No request takes a lock for this.

use crate::access_control::{self, UserSource};
use crate::cli;
use crate::config::{CertificateSource, Settings};
use crate::failure::{self, Failure, one_line};
use crate::logging;
use crate::memory;
use crate::options::Options;
use crate::reload::{Reload, Requests, Wake};
use crate::replaceable::Replaceable;
use crate::serving::{Parts, Plan};
use crate::site_rules::{self, RuleWatch};
use crate::storage::Stores;
use crate::tls::SharedCertificates;
use onrush::{Address, Handle};
use onrush_server::{AccessControl, Files, FilesOptions, RuleSource, Rules, Users};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// The options that need a restart, in the order of `--help`. All others apply to a running server.
/// docs/service.md gives the reasons.
const NEED_RESTART: &[&str] = &[
    "dir",
    "edge",
    "durability",
    "port",
    "bind",
    "proxy_protocol",
    "admin",
    "acme",
    "acme_email",
    "acme_directory",
    "acme_ca",
    "bind_plain",
    "http_redirect",
    "workers",
    "file_threads",
    "receive_memory",
    "driver",
    "placement",
    "defer_accept",
    "backlog",
    "ring_buffers",
    "ring_buffer_size",
];

/// Options that apply only while the server has what they concern, before and after the change.
const OF_EDGE: &[&str] = &["edge_size", "edge_fresh", "edge_stale"];
const OF_TLS: &[&str] = &["tls_client_ca", "tls_client_optional", "https_port", "hsts"];
const OF_CERTIFICATES: &[&str] = &["tls_cert", "tls_key", "tls_ocsp", "tls_self_signed"];

/// The running server, and the options and settings that it has.
pub(crate) struct Reconfiguration {
    /// The command line, which names the file.
    pub(crate) arguments: Vec<OsString>,
    pub(crate) options: Options,
    /// With the addresses where the server listens.
    pub(crate) settings: Settings,
    /// As they were opened, with the values that depend on this machine.
    pub(crate) files_options: FilesOptions,
    pub(crate) plan: Plan,
    pub(crate) parts: Parts,
    pub(crate) stores: Stores,
    pub(crate) sources: Sources,
    pub(crate) server: Handle,
    /// Where `server` listens.
    pub(crate) addresses: Vec<Address>,
    /// What `server` serves.
    pub(crate) application: Replaceable,
    /// What the server of the admin pages serves, if there is one.
    pub(crate) admin: Option<Replaceable>,
}

/// Where everything is loaded from that has a file of its own. `None`: the settings have none.
#[derive(Default)]
pub(crate) struct Sources {
    pub(crate) users: Option<UserSource>,
    pub(crate) rules: Option<RuleWatch>,
    pub(crate) certificates: Option<SharedCertificates>,
}

/// What has been loaded for new settings and is not in use yet.
struct Loaded {
    /// `None`: the settings for users have not changed.
    users: Option<Option<(UserSource, Users)>>,
    /// `None`: the settings for rules have not changed.
    rules: Option<Option<(RuleWatch, Rules)>>,
}

impl Reconfiguration {
    /// Starts the thread that reads the files again; `None` without any.
    pub(crate) fn watch(mut self) -> Result<Option<Reload>, Failure> {
        let users = self.sources.users.as_ref();
        let has_users = users.is_some_and(UserSource::has_file);
        if !(cli::has_file(&self.arguments) || has_users || self.sources.rules.is_some()) {
            return Ok(None);
        }
        let run = move |requests: &Requests| self.run(requests);
        Reload::start("configuration", "onrush-config", run).map(Some)
    }

    fn run(&mut self, requests: &Requests) {
        loop {
            let limit = match &self.sources.rules {
                Some(_) => site_rules::CHECK_INTERVAL,
                None => Duration::MAX,
            };
            match requests.wait(limit) {
                Wake::Requested(_requests) => self.reload(),
                Wake::TimedOut => self.reload_rules(false),
                Wake::Ended => return,
            }
        }
    }

    fn reload(&mut self) {
        if cli::has_file(&self.arguments)
            && let Err(Failure::Usage(why) | Failure::Run(why)) = self.read()
        {
            tracing::error!("{}; the configuration in use remains", one_line(&why));
        }
        if let Some((users, control)) = self.sources.users.as_ref().zip(self.parts.control.as_ref())
            && users.has_file()
        {
            users.reload(control);
        }
        self.reload_rules(true);
    }

    /// With `always`, also if no file has changed.
    fn reload_rules(&mut self, always: bool) {
        if let Some((watch, rules)) = self.sources.rules.as_mut().zip(self.parts.rules.as_ref()) {
            watch.reload(rules, always);
        }
    }

    /// Reads the configuration file again, and applies what has changed.
    fn read(&mut self) -> Result<(), Failure> {
        let cli::Action::Serve(read) = cli::read(self.arguments.clone())? else {
            return Ok(());
        };
        let memory_bytes = memory::limit_bytes(Path::new("/"));
        let settings = Settings::new((*read).clone(), memory_bytes)?;
        let changed = self.options.differences(&read);
        let is_applicable = |name: &&str| is_applicable(name, &self.settings, &settings);
        let (applied, others): (Vec<_>, Vec<_>) = changed.into_iter().partition(is_applicable);
        if !applied.is_empty() {
            let mut options = self.options.clone();
            options.take(*read, &applied);
            let settings = match others.is_empty() {
                true => settings,
                // Such as an option for a site, with another option that needs a restart.
                false => Settings::new(options.clone(), memory_bytes)
                    .map_err(|failure| with_hint(failure, &others))?,
            };
            self.apply(&applied, settings)?;
            self.options = options;
        }
        tracing::info!(applied = keys(&applied), "configuration loaded");
        if !others.is_empty() {
            let options = keys(&others);
            tracing::warn!(
                options,
                "these options need a restart; SIGUSR2 does it without a pause"
            );
        }
        Ok(())
    }

    /// Applies the options `applied` of `new`. After an error, nothing has changed.
    fn apply(&mut self, applied: &[&str], mut new: Settings) -> Result<(), Failure> {
        keep_addresses(&mut new, &self.settings);
        let loaded = self.load(&new)?;
        // What the tests of these may refuse comes first, and the certificates last: they cannot
        // be changed back.
        change_stores(&self.stores, &self.settings, &new)?;
        if let Err(failure) = self.change_certificates(applied, &new) {
            change_stores(&self.stores, &new, &self.settings)?;
            return Err(failure);
        }
        self.take_loaded(loaded);
        let options = self.files_options(&new);
        let retired = (options != self.files_options).then(|| {
            let files = self.parts.files.with_options(options.clone());
            std::mem::replace(&mut self.parts.files, files)
        });
        if new.files.webdav && !self.settings.files.webdav {
            new.storage.report_webdav(&**self.parts.files.store());
        }
        self.files_options = options;
        self.settings = new;
        self.plan.change(&self.settings);
        logging::change(self.settings.log);
        let running = self.server.settings();
        let running = self.plan.running_settings(&self.settings, running);
        self.server.set_settings(running);
        let application = (self.parts).application_at(&self.settings, &self.addresses);
        self.application.replace(application);
        if let Some((admin, pages)) = self.admin.as_ref().zip(self.parts.admin_at(&self.settings)) {
            admin.replace(pages);
        }
        if let Some(files) = retired {
            files.retire();
        }
        Ok(())
    }

    /// Loads the users and rules of new settings, and checks who may make changes.
    fn load(&self, new: &Settings) -> Result<Loaded, Failure> {
        let current = &self.settings;
        let source = UserSource::new(new)?;
        let mut users = match &source {
            Some(source) => Some(source.load().map_err(Failure::usage)?),
            None => None,
        };
        access_control::check(new, users.as_mut())?;
        for warning in access_control::warnings(new, users.as_ref()) {
            tracing::warn!("{warning}");
        }
        let has_other_users = current.access != new.access;
        let has_other_rules = current.rules != new.rules || current.files.allow != new.files.allow;
        Ok(Loaded {
            users: has_other_users.then(|| source.zip(users)),
            rules: match has_other_rules {
                true => Some(RuleWatch::open(new)?),
                false => None,
            },
        })
    }

    /// The application that is made next has these users and rules. The one in use keeps its own.
    fn take_loaded(&mut self, loaded: Loaded) {
        let parts = &mut self.parts;
        if let Some(users) = loaded.users {
            let (source, users) = users.unzip();
            self.sources.users = source;
            if let Some(users) = users {
                let control = match &parts.control {
                    Some(control) => control.with_users(users),
                    None => {
                        let control = AccessControl::new(users);
                        parts.metrics.add_collector(control.collector());
                        control
                    }
                };
                parts.control = Some(control);
            }
        }
        if let Some(rules) = loaded.rules {
            let (watch, rules) = rules.unzip();
            self.sources.rules = watch;
            parts.rules = rules.map(RuleSource::new);
        }
    }

    fn change_certificates(&self, applied: &[&str], new: &Settings) -> Result<(), Failure> {
        let names = OF_CERTIFICATES.iter().chain(OF_TLS);
        let have_changed = names.into_iter().any(|name| applied.contains(name));
        match self.sources.certificates.as_ref().zip(new.tls.as_ref()) {
            Some((certificates, tls)) if have_changed => {
                let dir = new.storage.folder().unwrap_or(Path::new("."));
                certificates.change(tls, dir)
            }
            _ => Ok(()),
        }
    }

    /// The options of the handler for new settings.
    fn files_options(&self, new: &Settings) -> FilesOptions {
        FilesOptions {
            cache_files_max: self.files_options.cache_files_max,
            blocking_threads: self.files_options.blocking_threads,
            descriptors: self.files_options.descriptors.clone(),
            ..new.files.clone()
        }
    }
}

/// Whether an option applies to the server that has `current`.
fn is_applicable(name: &str, current: &Settings, new: &Settings) -> bool {
    let with_tls = current.tls.as_ref().zip(new.tls.as_ref());
    let is_ordered = |source: &CertificateSource| matches!(source, CertificateSource::Acme(_));
    match name {
        "cache" => current.cache.is_some() && new.cache.is_some(),
        name if OF_EDGE.contains(&name) => current.edge.is_some() && new.edge.is_some(),
        name if OF_TLS.contains(&name) => with_tls.is_some(),
        name if OF_CERTIFICATES.contains(&name) => with_tls
            .is_some_and(|(current, new)| !is_ordered(&current.source) && !is_ordered(&new.source)),
        name => !NEED_RESTART.contains(&name),
    }
}

/// Where the server listens does not change, also where a service manager has decided it.
fn keep_addresses(new: &mut Settings, current: &Settings) {
    new.addresses.clone_from(&current.addresses);
    new.admin.clone_from(&current.admin);
    if let Some((new, current)) = new.tls.as_mut().zip(current.tls.as_ref()) {
        new.plain.clone_from(&current.plain);
        new.redirect.clone_from(&current.redirect);
    }
}

/// Applies what can change of `new` to stores that have `current`. Blocks. After an error, they
/// have `current`.
fn change_stores(stores: &Stores, current: &Settings, new: &Settings) -> Result<(), Failure> {
    if let Some(((folder, quotas), path)) = stores.folder.as_ref().zip(new.storage.folder()) {
        let set = |settings: &Settings| {
            let set = Files::set_folder_options(folder, path, &settings.files);
            set.map_err(|error| Failure::run(failure::error_text(&error)))
        };
        set(new)?;
        if current.quotas != new.quotas
            && let Err(failure) = quotas.set(&new.quotas)
        {
            set(current)?;
            return Err(failure);
        }
    }
    if let Some((edge, settings)) = stores.edge.as_ref().zip(new.edge.as_ref()) {
        edge.set_limits(settings.bytes_max, settings.fresh, settings.stale);
    }
    if let Some((cache, settings)) = stores.build_cache.as_ref().zip(new.cache.as_ref()) {
        cache.set_limit(settings.bytes_max);
    }
    Ok(())
}

/// A failure of settings that exist only until a restart.
fn with_hint(failure: Failure, others: &[&str]) -> Failure {
    let (Failure::Usage(why) | Failure::Run(why)) = failure;
    let options = keys(others);
    Failure::usage(format!(
        "{why} (without {options}, which need a restart; SIGUSR2 applies all of the file)"
    ))
}

/// The keys of options in the configuration file.
fn keys(names: &[&str]) -> String {
    names.join(", ").replace('_', "-")
}

#[cfg(test)]
mod tests;
