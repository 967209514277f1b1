//! The rules of a site of the running server: loaded at start, on SIGHUP, and after a change of
//! their files.

use crate::config::Settings;
use crate::failure::{Failure, one_line};
use crate::reload::{Reload, Requests, Wake};
use crate::secret_files;
use onrush_server::{Allow, RuleFiles, RuleSource, Rules};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often the files are looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// The files of rules, and the folder that they must not be in.
struct Watched {
    files: RuleFiles,
    /// The served folder, if clients may change it.
    writable: Option<PathBuf>,
}

impl Watched {
    fn load(&self) -> Result<Rules, String> {
        for (option, path) in self.files.files() {
            if let Some(served) = &self.writable {
                secret_files::check(option, path, served)?;
            }
        }
        self.files.load()
    }

    /// What changes when a file does.
    fn states(&self) -> Vec<Option<[i64; 5]>> {
        let state = |path: &Path| {
            let found = fs::metadata(path).ok()?;
            let (device, inode) = (found.dev() as i64, found.ino() as i64);
            let size = found.size() as i64;
            Some([device, inode, size, found.mtime(), found.mtime_nsec()])
        };
        self.files.files().map(|(_, path)| state(path)).collect()
    }

    /// Loads the rules on requests, and when a file has changed.
    fn run(&self, source: &RuleSource, requests: &Requests) {
        let mut states = self.states();
        loop {
            let _requested = match requests.wait(CHECK_INTERVAL) {
                Wake::TimedOut if self.states() == states => continue,
                Wake::Ended => return,
                wake => wake,
            };
            states = self.states(); // Before they are read, so that no later change is missed.
            match self.load() {
                Ok(rules) => {
                    let (redirects, headers) = rules.counts();
                    source.replace(rules);
                    tracing::info!(redirects, headers, "rules of the site loaded");
                }
                Err(error) => tracing::error!("{}; the rules in use remain", one_line(&error)),
            }
        }
    }
}

fn watched(settings: &Settings) -> Option<Watched> {
    let files = settings.rules.clone();
    files.files().next()?;
    let may_write = settings.files.allow != Allow::default();
    Some(Watched {
        files,
        writable: settings
            .storage
            .folder()
            .filter(|_| may_write)
            .map(Path::to_owned),
    })
}

/// The rules of these settings; `None` without any. An error is [`Failure::Usage`].
pub(crate) fn load(settings: &Settings) -> Result<Option<RuleSource>, Failure> {
    let rules = watched(settings).map(|watched| watched.load()).transpose();
    Ok(rules.map_err(Failure::usage)?.map(RuleSource::new))
}

/// Starts the thread that loads the rules again, if there are any.
pub(crate) fn watch(
    settings: &Settings,
    source: Option<&RuleSource>,
) -> Result<Option<Reload>, Failure> {
    let Some((watched, source)) = watched(settings).zip(source.cloned()) else {
        return Ok(None);
    };
    let run = move |requests: &Requests| watched.run(&source, requests);
    Reload::start("rules of the site", "onrush-rules", run).map(Some)
}
