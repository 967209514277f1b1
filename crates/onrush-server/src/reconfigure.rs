//! Reading the configuration file again while the server runs (SIGHUP): applies what can change,
//! and says what needs a restart.

use crate::cli;
use crate::config::Settings;
use crate::failure::{Failure, one_line};
use crate::logging;
use crate::memory;
use crate::options::Options;
use crate::reload::{Reload, Wake};
use crate::replaceable::Replaceable;
use crate::serving::Parts;
use onrush::{Address, Handle};
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// The options that apply to a running server.
const APPLICABLE: &[&str] = &[
    "body_timeout",
    "cors",
    "header_timeout",
    "host",
    "hsts",
    "idle_timeout",
    "log_level",
    "min_rate",
    "total_timeout",
    "trusted_proxy",
    "write_timeout",
];

/// The running server, and the options and settings that it has.
pub(crate) struct Reconfiguration {
    /// The command line, which names the file.
    pub(crate) arguments: Vec<OsString>,
    pub(crate) options: Options,
    pub(crate) settings: Settings,
    pub(crate) parts: Parts,
    pub(crate) server: Handle,
    /// Where `server` listens.
    pub(crate) addresses: Vec<Address>,
    /// What `server` serves.
    pub(crate) application: Replaceable,
    /// What the server of the admin pages serves, if there is one.
    pub(crate) admin: Option<Replaceable>,
}

impl Reconfiguration {
    /// Starts the thread that reads the configuration file again; `None` without a file.
    pub(crate) fn watch(mut self) -> Result<Option<Reload>, Failure> {
        if !cli::has_file(&self.arguments) {
            return Ok(None);
        }
        let reload = Reload::start("configuration", "onrush-config", move |requests| {
            while let Wake::Requested(_requests) = requests.wait(Duration::MAX) {
                if let Err(Failure::Usage(why) | Failure::Run(why)) = self.read() {
                    tracing::error!("{}; the configuration in use remains", one_line(&why));
                }
            }
        });
        reload.map(Some)
    }

    /// Reads the file again, and applies what has changed.
    fn read(&mut self) -> Result<(), Failure> {
        let cli::Action::Serve(read) = cli::read(self.arguments.clone())? else {
            return Ok(());
        };
        let settings = Settings::new((*read).clone(), memory::limit_bytes(Path::new("/")))?;
        let is_applicable = |name: &&str| {
            // The engine knows the proxies that may begin a connection.
            APPLICABLE.contains(name) && !(*name == "trusted_proxy" && settings.proxy_protocol)
        };
        let changed = self.options.differences(&read);
        let (applied, others): (Vec<_>, Vec<_>) = changed.into_iter().partition(is_applicable);
        self.options.take(*read, &applied);
        if !applied.is_empty() {
            self.apply(&applied, settings);
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

    fn apply(&mut self, applied: &[&str], new: Settings) {
        let current = &mut self.settings;
        if applied.contains(&"trusted_proxy") {
            current.trusted_proxies = new.trusted_proxies;
        }
        current.cors = new.cors;
        current.hosts = new.hosts;
        current.limits = new.limits;
        current.log.level = new.log.level;
        if let (Some(current), Some(new)) = (&mut current.tls, new.tls) {
            current.hsts_s = new.hsts_s;
        }
        logging::set_level(self.settings.log.level);
        self.server.set_limits(self.settings.limits);
        let application = (self.parts).application_at(&self.settings, &self.addresses);
        self.application.replace(application);
        if let Some((admin, pages)) = self.admin.as_ref().zip(self.parts.admin_at(&self.settings)) {
            admin.replace(pages);
        }
    }
}

/// The keys of options in the configuration file.
fn keys(names: &[&str]) -> String {
    names.join(", ").replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn applicable_options_exist() {
        for name in APPLICABLE {
            assert!(Options::NAMES.contains(name), "{name}");
        }
    }
}
