//! New settings for the running server, on SIGHUP: the configuration file is read again, and so are
//! the files of users and of rules.
//!
//! A configuration applies as a whole or not at all. If an option has changed that needs a restart,
//! none applies: rights that are meant for another folder or address must not apply to the one in
//! use. All new settings are checked and prepared before the first is applied: after a mistake, all
//! that are in use remain. First comes what may fail and can be changed back, then what may fail
//! and cannot, and then what cannot fail.
//!
//! The application is replaced as a whole ([`Replaceable`]), so a request is decided by the rights
//! and pages of one configuration. The engine takes its settings as a whole, too
//! (`onrush::RunningSettings`). No request takes a lock for this.

use crate::access::path_rules::{self, Origin, RulesInUse};
use crate::access::site_rules::{self, RuleWatch};
use crate::access::users::{self, SharedUsers, UserSource, UsersInUse};
use crate::certificates::SharedCertificates;
use crate::commands::cli;
use crate::config::{CertificateSource, Settings};
use crate::logging;
use crate::options::{Definition, Effect, Options};
use crate::process::failure::{self, Failure, one_line};
use crate::process::memory;
use crate::process::reload::{Reload, Requests, Wake};
use crate::serving::announcement;
use crate::serving::replaceable::Replaceable;
use crate::serving::{Parts, Sizes};
use crate::stores::storage::Stores;
use onrush::{Address, Handle};
use onrush_files::{AccessControl, Files, FilesOptions, RuleSource, Rules, Users};
use onrush_store::PreparedOptions;
use std::collections::HashSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::MutexGuard;
use std::time::Duration;

/// The running server, and the options and settings that it has.
pub(crate) struct Reconfiguration {
    /// The command line, which names the file.
    pub(crate) arguments: Vec<OsString>,
    pub(crate) options: Options,
    /// With the addresses where the server listens.
    pub(crate) settings: Settings,
    /// As they were opened, with the values that depend on this machine.
    pub(crate) files_options: FilesOptions,
    pub(crate) sizes: Sizes,
    pub(crate) parts: Parts,
    pub(crate) stores: Stores,
    pub(crate) path_rules: RulesInUse,
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
pub(crate) struct Sources {
    pub(crate) users: SharedUsers,
    pub(crate) rules: Option<RuleWatch>,
    pub(crate) certificates: Option<SharedCertificates>,
}

/// What has been loaded for new settings and is not in use yet.
struct Loaded {
    /// `None`: the settings for users have not changed.
    users: Option<Option<(UserSource, Users)>>,
    /// `None`: the settings for rules have not changed.
    rules: Option<Option<(RuleWatch, Rules)>>,
    /// `None`: the store is no folder.
    folder: Option<PreparedOptions>,
    warnings: Vec<String>,
}

/// The names of users who are removed by new settings, and of those who are there.
struct Former {
    removed: Vec<String>,
    present: HashSet<String>,
}

impl Reconfiguration {
    /// Starts the threads that read the files again; none without any.
    pub(crate) fn watch(self) -> Result<Vec<Reload>, Failure> {
        let users = self.sources.users.clone();
        let mut reloads = Vec::new();
        let has_file = cli::has_file(&self.arguments);
        if has_file || users.has_file() {
            reloads.push(users.watch()?);
        }
        if has_file || self.sources.rules.is_some() {
            let run = move |requests: &Requests| self.run(requests);
            reloads.push(Reload::start("configuration", "onrush-config", run)?);
        }
        Ok(reloads)
    }

    fn run(self, requests: &Requests) {
        let limit = |this: &Self| match &this.sources.rules {
            Some(_) => site_rules::CHECK_INTERVAL,
            None => Duration::MAX,
        };
        requests.serve(self, limit, |this, wake| match wake {
            Wake::Requested => this.reload(),
            Wake::TimedOut => this.reload_rules(false),
        });
    }

    fn reload(&mut self) {
        if cli::has_file(&self.arguments)
            && let Err(Failure::Usage(why) | Failure::Run(why)) = self.read()
        {
            tracing::error!("{}; the configuration in use remains", one_line(&why));
        }
        self.reload_rules(true);
    }

    /// With `always`, also if no file has changed.
    fn reload_rules(&mut self, always: bool) {
        if let Some((watch, rules)) = self.sources.rules.as_mut().zip(self.parts.rules.as_ref()) {
            watch.reload(rules, always, &self.path_rules);
        }
    }

    /// Reads the configuration file again, and applies what has changed, unless a part of that
    /// needs a restart.
    fn read(&mut self) -> Result<(), Failure> {
        let cli::Action::Serve(read) = cli::read(self.arguments.clone())? else {
            return Ok(());
        };
        let settings = Settings::new((*read).clone(), memory::limit_bytes(Path::new("/")))?;
        settings.trusted_files.check().map_err(Failure::usage)?;
        let changed = self.options.differences(&read);
        let others = (changed.iter().copied())
            .filter(|option| !is_applicable(option.effect, &self.settings, &settings));
        let others: Vec<_> = others.collect();
        if !others.is_empty() {
            let options = keys(&others);
            tracing::error!(
                options,
                "these options need a restart, so the configuration in use remains; SIGUSR2 \
                 applies all of the file"
            );
            return Ok(());
        }
        if !changed.is_empty() {
            self.apply(&changed, settings)?;
            self.options = *read;
        }
        let allowed = announcement::allowed(&self.settings.files);
        tracing::info!(applied = keys(&changed), allowed, "configuration loaded");
        Ok(())
    }

    /// Applies the options `changed` of `new`. After an error, nothing has changed.
    fn apply(&mut self, changed: &[&Definition], mut new: Settings) -> Result<(), Failure> {
        keep_addresses(&mut new, &self.settings);
        let mut loaded = self.load(&new)?;
        change_quotas(&self.stores, &self.settings, &new)?;
        let shared = self.sources.users.clone();
        let mut users = match self.prepare(&shared, &mut loaded, changed, &new) {
            Ok(users) => users,
            Err(failure) => {
                let changed_back = change_quotas(&self.stores, &new, &self.settings);
                log_rollback(changed_back);
                return Err(failure);
            }
        };
        for warning in &loaded.warnings {
            tracing::warn!("{warning}");
        }
        let former = self.take_loaded(loaded, &mut users);
        self.sizes.change(&new);
        let options = self.files_options(&new);
        let retired = (options != self.files_options).then(|| {
            let files = self.parts.files.with_options(options.clone());
            std::mem::replace(&mut self.parts.files, files)
        });
        if new.files.webdav && !self.settings.files.webdav {
            new.storage.report_webdav(&**self.parts.files.store());
        }
        let of_quotas = path_rules::of_quotas(&new.quotas);
        self.path_rules.set(Origin::Quotas, of_quotas);
        self.files_options = options;
        self.settings = new;
        logging::change(self.settings.log);
        let running = self.server.settings();
        let running = self.sizes.running_settings(&self.settings, running);
        self.server.set_settings(running);
        let application = (self.parts).application_at(&self.settings, &self.addresses);
        self.application.replace(application);
        self.parts.files.end_watches();
        if let Some(Former { removed, present }) = former {
            (self.parts.files).forget_users(&removed, |name| present.contains(name));
        }
        drop(users);
        if let Some((admin, pages)) = self.admin.as_ref().zip(self.parts.admin_at(&self.settings)) {
            admin.replace(pages);
        }
        if let Some(files) = retired {
            files.retire();
        }
        limit_caches(&self.stores, &self.settings);
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
        users::check(new, users.as_mut())?;
        path_rules::check_quotas(new)?;
        let warnings = users::warnings(new, users.as_ref());
        let has_other_users = current.access != new.access;
        let has_other_rules = current.rules != new.rules || current.files.allow != new.files.allow;
        Ok(Loaded {
            users: has_other_users.then(|| source.zip(users)),
            rules: match has_other_rules {
                true => Some(RuleWatch::open(new)?),
                false => None,
            },
            folder: prepare_folder(&self.stores, new)?,
            warnings,
        })
    }

    /// What may fail and cannot be changed back. Returns the lock of the users, who are loaded
    /// again: since [`Reconfiguration::load`], another SIGHUP may have removed one of them.
    fn prepare<'u>(
        &self,
        users: &'u SharedUsers,
        loaded: &mut Loaded,
        changed: &[&Definition],
        new: &Settings,
    ) -> Result<MutexGuard<'u, UsersInUse>, Failure> {
        let locked = users.lock();
        if let Some(Some((source, users))) = &mut loaded.users {
            *users = source.load().map_err(Failure::usage)?;
        }
        self.change_certificates(changed, new)?;
        Ok(locked)
    }

    /// The application that is made next has these users and rules. The one in use keeps its own.
    /// Returns what other users change for what is stored.
    fn take_loaded(&mut self, loaded: Loaded, in_use: &mut UsersInUse) -> Option<Former> {
        let parts = &mut self.parts;
        let mut former = None;
        if let Some(users) = loaded.users {
            let (source, users) = users.unzip();
            let of_users = users.iter().flat_map(path_rules::of_users).collect();
            self.path_rules.set(Origin::Users, of_users);
            if let Some(users) = users {
                let removed = parts.control.as_ref();
                former = Some(Former {
                    removed: removed.map_or(Vec::new(), |control| control.names_without(&users)),
                    present: users::names(&users).collect(),
                });
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
            *in_use = source.zip(parts.control.clone());
        }
        if let Some(rules) = loaded.rules {
            let (watch, rules) = rules.unzip();
            let of_site = rules.iter().flat_map(path_rules::of_site).collect();
            self.path_rules.set(Origin::Site, of_site);
            self.sources.rules = watch;
            parts.rules = rules.map(RuleSource::new);
        }
        if let Some(folder) = loaded.folder {
            folder.apply();
        }
        former
    }

    fn change_certificates(&self, changed: &[&Definition], new: &Settings) -> Result<(), Failure> {
        let mut effects = changed.iter().map(|option| option.effect);
        let have_changed = effects.any(|effect| effect == Effect::OfCertificates);
        match self.sources.certificates.as_ref().zip(new.tls.as_ref()) {
            Some((certificates, tls)) if have_changed => {
                let dir = new.storage.folder().unwrap_or(Path::new("."));
                certificates.change(tls, dir, &new.trusted_files)
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
            watchers_max: self.sizes.watchers_max(new),
            ..new.files.clone()
        }
    }
}

/// Whether a change with this effect applies to the server that has `current`.
fn is_applicable(effect: Effect, current: &Settings, new: &Settings) -> bool {
    let with_tls = current.tls.as_ref().zip(new.tls.as_ref());
    let is_ordered = |source: &CertificateSource| matches!(source, CertificateSource::Acme(_));
    match effect {
        Effect::AtOnce => true,
        Effect::Restart => false,
        Effect::OfCache => current.cache.is_some() && new.cache.is_some(),
        Effect::OfEdge => current.edge.is_some() && new.edge.is_some(),
        Effect::OfTls => with_tls.is_some(),
        Effect::OfCertificates => with_tls
            .is_some_and(|(current, new)| !is_ordered(&current.source) && !is_ordered(&new.source)),
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

/// Prepares what can change of a folder. A folder that is writable stays so, so nothing may fail
/// when it becomes writable.
fn prepare_folder(stores: &Stores, new: &Settings) -> Result<Option<PreparedOptions>, Failure> {
    let Some(((folder, _), path)) = stores.folder.as_ref().zip(new.storage.folder()) else {
        return Ok(None);
    };
    let prepared = Files::prepare_folder_options(folder, path, &new.files);
    let prepared = prepared.map_err(|error| Failure::run(failure::error_text(&error)))?;
    Ok(Some(prepared))
}

/// Sets the quotas of a folder that has the settings `current`. Blocks: objects are counted for new
/// quotas. After an error, it has those of `current`.
fn change_quotas(stores: &Stores, current: &Settings, new: &Settings) -> Result<(), Failure> {
    match &stores.folder {
        Some((_, quotas)) if current.quotas != new.quotas => quotas.set(&new.quotas),
        _ => Ok(()),
    }
}

/// A failure to change something back follows another failure, which is the one to report.
fn log_rollback(changed_back: Result<(), Failure>) {
    if let Err(Failure::Usage(why) | Failure::Run(why)) = changed_back {
        let why = one_line(&why);
        tracing::error!("{why}; a part of the new configuration stays in use");
    }
}

/// Sets the limits of caches, and removes what is too much. Blocks.
fn limit_caches(stores: &Stores, settings: &Settings) {
    if let Some((edge, settings)) = stores.edge.as_ref().zip(settings.edge.as_ref()) {
        edge.set_limits(settings.bytes_max, settings.fresh, settings.stale);
    }
    if let Some((cache, settings)) = stores.build_cache.as_ref().zip(settings.cache.as_ref()) {
        cache.set_limit(settings.bytes_max);
    }
}

/// The keys of options in the configuration file.
fn keys(options: &[&Definition]) -> String {
    let names: Vec<_> = options.iter().map(|option| option.name).collect();
    names.join(", ").replace('_', "-")
}

#[cfg(test)]
mod tests;
