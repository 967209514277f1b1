//! Rules for paths on a file system that does not distinguish names by case: another spelling of a
//! path would reach the same object without the rule. The server refuses such rules, unless they
//! are for the whole folder.

use crate::config::Settings;
use crate::process::failure::Failure;
use crate::stores::quotas;
use onrush_files::{Rules, Users};
use onrush_store::{Folder, Key, Quota, folds_names};
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A rule for a path beneath the top folder.
#[derive(Debug)]
pub(crate) struct PathRule {
    /// As in `the rule of ann for /a`.
    shown: String,
    /// The decoded path, without a slash at its ends. Empty: names in the top folder.
    path: Vec<u8>,
}

/// Where rules are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Origin {
    Users,
    Quotas,
    Site,
}

/// The rules in use, for a folder that takes the place of the served one. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct RulesInUse(Arc<Mutex<HashMap<Origin, Vec<PathRule>>>>);

impl RulesInUse {
    fn lock(&self) -> MutexGuard<'_, HashMap<Origin, Vec<PathRule>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// To be called before they are in use.
    pub(crate) fn set(&self, origin: Origin, rules: Vec<PathRule>) {
        self.lock().insert(origin, rules);
    }

    /// As [`check`], of all.
    pub(crate) fn check(&self, folder: &Path, may_write: bool) -> Result<(), String> {
        let rules = self.lock();
        (rules.values()).try_for_each(|rules| check(folder, rules, may_write))
    }

    /// Refuses each later folder at the path of the served one which does not meet the rules.
    pub(crate) fn watch(&self, folder: &Folder) {
        let (rules, refused) = (self.clone(), Mutex::new(String::new()));
        folder.check_swaps(move |path, may_write| {
            let checked = rules.check(path, may_write);
            let mut refused = refused.lock().unwrap_or_else(PoisonError::into_inner);
            let Err(why) = checked else {
                refused.clear();
                return Ok(());
            };
            if *refused != why {
                tracing::error!("{why}; requests get 503");
                *refused = why;
            }
            Err(ErrorKind::Unsupported.into())
        });
    }
}

/// The served folder, if its names are those of a file system.
pub(crate) fn folder(settings: &Settings) -> Option<&Path> {
    let folder = settings.storage.folder();
    folder.filter(|_| settings.cache.is_none()) // A cache has names of its own.
}

/// The rules of users, and of clients that do not log in.
pub(crate) fn of_users(users: &Users) -> Vec<PathRule> {
    let anonymous = users.anonymous_rules();
    let anonymous = anonymous.map(|(path, _)| ("anonymous".to_owned(), path));
    let named = users.all().flat_map(|user| {
        let rules: Vec<_> = user.rights().rules().collect();
        let name = user.name().to_owned();
        rules.into_iter().map(move |(path, _)| (name.clone(), path))
    });
    anonymous
        .chain(named)
        .filter(|(_, path)| path != "/")
        .map(|(name, path)| PathRule {
            shown: format!("the rule of {name} for {path}"),
            path: path.trim_matches('/').into(),
        })
        .collect()
}

/// The quotas of folders.
pub(crate) fn of_quotas(quotas: &[Quota]) -> Vec<PathRule> {
    let folders = quotas.iter().filter_map(|quota| {
        let path = quota.prefix.as_ref().map(Key::as_bytes)?;
        Some(PathRule {
            shown: format!("the quota of {}", quotas::prefix(quota)),
            path: path.to_vec(),
        })
    });
    folders.collect()
}

/// The rules of a site.
pub(crate) fn of_site(rules: &Rules) -> Vec<PathRule> {
    let narrow = rules.narrow_paths().map(|(option, path)| PathRule {
        shown: format!("the path /{} of --{option}", String::from_utf8_lossy(&path)),
        path,
    });
    narrow.collect()
}

/// Refuses quotas that another spelling of a path would bypass.
pub(crate) fn check_quotas(settings: &Settings) -> Result<(), Failure> {
    match folder(settings) {
        Some(folder) => check(folder, &of_quotas(&settings.quotas), false).map_err(Failure::usage),
        None => Ok(()),
    }
}

/// Refuses rules that another spelling of a path would bypass. An error is one line. `may_write`: a
/// file may be made for a moment to find out. Blocks.
pub(crate) fn check(folder: &Path, rules: &[PathRule], may_write: bool) -> Result<(), String> {
    let decide = |path: &[u8]| folds_names(folder, path, may_write);
    check_by(folder, rules, decide)
}

fn check_by(
    folder: &Path,
    rules: &[PathRule],
    decide: impl Fn(&[u8]) -> io::Result<bool>,
) -> Result<(), String> {
    let mut decided = HashMap::new();
    for rule in rules {
        let folds: &Result<bool, String> = decided.entry(&rule.path).or_insert_with(|| {
            match decide(&rule.path) {
                // Nor can the server reach it, or it has refused the folder already.
                Err(error) if is_unreachable(&error) => Ok(false),
                folds => folds.map_err(|error| error.to_string()),
            }
        });
        let shown = folder.display();
        match folds {
            Ok(false) => {}
            Ok(true) => {
                return Err(format!(
                    "{shown} does not distinguish names by case (or by the form of a letter), so \
                     another spelling bypasses {}; serve a folder that does, or remove all rules \
                     but those for /",
                    rule.shown
                ));
            }
            Err(error) => {
                return Err(format!(
                    "whether {shown} distinguishes names by case is not known, so {} may be \
                     bypassed: {error}",
                    rule.shown
                ));
            }
        }
    }
    Ok(())
}

fn is_unreachable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::NotFound | ErrorKind::NotADirectory | ErrorKind::PermissionDenied
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use onrush_files::RuleFiles;
    use testing::TempDir;

    #[test]
    fn rules_for_paths_are_refused_where_names_are_folded() {
        let text = "[users.ann]\nrights = { '/' = ['read'], '/Own/' = ['all'] }\n";
        let of_ann = of_users(&Users::parse(text).expect("users"));
        let quota = |prefix: &str| {
            let prefix = Key::parse(prefix.as_bytes()).ok();
            let bytes_max = 1;
            Quota { prefix, bytes_max }
        };
        let of_folder = of_quotas(&[quota(""), quota("a/B")]);
        let check = |rules: &[PathRule], folded: &'static [u8]| {
            check_by(Path::new("/srv"), rules, |path| match path {
                b"gone" => Err(ErrorKind::NotFound.into()),
                path => Ok(path.starts_with(folded)),
            })
        };
        for (rules, shown) in [
            (&of_ann, "the rule of ann for /Own"),
            (&of_folder, "the quota of /a/B"),
        ] {
            assert_eq!(rules.len(), 1, "those for the whole folder are not narrow");
            let refused = check(rules, b"").expect_err("refused");
            assert!(
                refused.contains(shown) && refused.contains("/srv does not"),
                "{refused}"
            );
            assert_eq!(check(rules, b"other"), Ok(()));
        }
        let everywhere = Users::parse("[users.ann]\nrights = { '/' = ['all'] }\n");
        assert!(of_users(&everywhere.expect("users")).is_empty());
        let anonymous = Users::parse("[anonymous]\nrights = { '/pub' = ['read'] }\n");
        let anonymous = of_users(&anonymous.expect("users"));
        assert!(check(&anonymous, b"").is_err_and(|why| why.contains("anonymous for /pub")));
        let failing = check_by(Path::new("/srv"), &of_ann, |_| {
            Err(ErrorKind::TimedOut.into())
        });
        assert!(failing.is_err_and(|why| why.contains("is not known")));
    }

    #[test]
    fn rules_of_a_site_are_for_paths() {
        let folder = TempDir::new();
        let file = folder.path().join("rules");
        let text =
            "/*\n  X-A: b\n/Docs/*\n  X-A: b\n/a/b*\n  X-A: b\n/c/D\n  X-A: b\n/*.js\n  X-A: b\n";
        std::fs::write(&file, text).expect("written");
        let rules = RuleFiles {
            redirects: None,
            headers: Some(file),
        };
        let loaded = rules.load().expect("rules");
        let mut paths: Vec<Vec<u8>> = of_site(&loaded).into_iter().map(|rule| rule.path).collect();
        paths.sort();
        let expected: [&[u8]; 4] = [b"", b"Docs", b"a", b"c/D"];
        assert_eq!(paths, expected);
    }
}
