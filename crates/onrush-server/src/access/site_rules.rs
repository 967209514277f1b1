//! The rules of a site of the running server: where they are loaded from, and whether the files
//! have changed.

use crate::access::path_rules::{self, Origin, RulesInUse};
use crate::config::Settings;
use crate::config::trusted_files::TrustedFiles;
use crate::process::failure::{Failure, one_line};
use onrush_files::{RuleFiles, RuleSource, Rules};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often the files are looked at.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_secs(3);

/// What changes when a file does: device, inode, size, and the time of modification. `None`: the
/// file cannot be found.
type FileState = Option<[i64; 5]>;

/// The files of rules.
pub(crate) struct RuleWatch {
    files: RuleFiles,
    /// The state of the files before they were last read.
    states: Vec<FileState>,
    trusted_files: TrustedFiles,
    /// Where rules are for paths of a file system.
    folder: Option<PathBuf>,
}

impl RuleWatch {
    /// `None` if these settings have no rules.
    fn new(settings: &Settings) -> Option<RuleWatch> {
        let files = settings.rules.clone();
        files.files().next()?;
        Some(RuleWatch {
            files,
            states: Vec::new(),
            trusted_files: settings.trusted_files.clone(),
            folder: path_rules::folder(settings).map(Path::to_owned),
        })
    }

    /// Loads the rules of these settings, if they have any. An error is [`Failure::Usage`].
    pub(crate) fn open(settings: &Settings) -> Result<Option<(RuleWatch, Rules)>, Failure> {
        let Some(mut watch) = RuleWatch::new(settings) else {
            return Ok(None);
        };
        let rules = watch.load().map_err(Failure::usage)?;
        Ok(Some((watch, rules)))
    }

    /// Loads the rules. An error is one line.
    fn load(&mut self) -> Result<Rules, String> {
        self.states = self.states(); // Before they are read, so that no later change is missed.
        self.trusted_files.check_of(&["redirects", "headers"])?;
        let rules = self.files.load()?;
        if let Some(folder) = &self.folder {
            path_rules::check(folder, &path_rules::of_site(&rules), false)?;
        }
        Ok(rules)
    }

    /// Loads the rules again, with `always` also if no file has changed. An error is logged, and
    /// the rules in use remain.
    pub(crate) fn reload(&mut self, source: &RuleSource, always: bool, path_rules: &RulesInUse) {
        if !always && self.states() == self.states {
            return;
        }
        match self.load() {
            Ok(rules) => {
                let (redirects, headers) = rules.counts();
                path_rules.set(Origin::Site, path_rules::of_site(&rules));
                source.replace(rules);
                tracing::info!(redirects, headers, "rules of the site loaded");
            }
            Err(error) => tracing::error!("{}; the rules in use remain", one_line(&error)),
        }
    }

    fn states(&self) -> Vec<FileState> {
        let state = |path: &Path| {
            let found = fs::metadata(path).ok()?;
            let (device, inode) = (found.dev() as i64, found.ino() as i64);
            let size = found.size() as i64;
            Some([device, inode, size, found.mtime(), found.mtime_nsec()])
        };
        self.files.files().map(|(_, path)| state(path)).collect()
    }
}
