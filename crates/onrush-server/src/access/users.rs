//! The users of the running server: where they are loaded from, and whether a configuration lets
//! strangers make changes.

use crate::access::path_rules::{self, Origin, RulesInUse};
use crate::config::trusted_files::TrustedFiles;
use crate::config::{AccessSettings, Settings};
use crate::process::failure::{Failure, one_line};
use crate::process::reload::Reload;
use onrush_files::access::PasswordHash;
use onrush_files::{AccessControl, Allow, Files, ListenAddress, PathRights, Rights, Users};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Where the users are loaded from.
#[derive(Clone, Debug)]
pub(crate) struct UserSource {
    settings: AccessSettings,
    trusted_files: TrustedFiles,
    /// Where rules are for paths of a file system.
    folder: Option<PathBuf>,
    /// The user of `--auth`.
    single: Option<(String, PasswordHash)>,
}

impl UserSource {
    /// For these settings. `None` without access control. An error is [`Failure::Usage`].
    pub(crate) fn new(settings: &Settings) -> Result<Option<UserSource>, Failure> {
        let Some(access) = &settings.access else {
            return Ok(None);
        };
        let single = access.user.as_ref().map(|user| user.parts()).transpose();
        let single = single.map_err(|error| Failure::usage(format!("--auth: {error}")))?;
        Ok(Some(UserSource {
            settings: access.clone(),
            trusted_files: settings.trusted_files.clone(),
            folder: path_rules::folder(settings).map(Path::to_owned),
            single,
        }))
    }

    /// Whether the users can change without other settings.
    fn has_file(&self) -> bool {
        self.settings.file.is_some()
    }

    /// Loads the users. An error is one line.
    pub(crate) fn load(&self) -> Result<Users, String> {
        let settings = &self.settings;
        let mut users = match &settings.file {
            Some(path) => {
                self.trusted_files.check_of(&["auth_file"])?;
                Users::read(path)?
            }
            None => Users::default(),
        };
        if let Some((name, hash)) = &self.single {
            let rights = PathRights::everywhere(Rights::ALL);
            let added = users.add(name.clone(), Some(hash.clone()), rights);
            added.map_err(|error| format!("--auth: {error}"))?;
        }
        let public = match (settings.public_read, settings.upload_only) {
            (true, _) => Rights::READ.union(Rights::LIST),
            (_, true) => Rights::CREATE,
            _ => Rights::NONE,
        };
        if public != Rights::NONE {
            users.anonymous_rights().add_everywhere(public);
        }
        if let Some(folder) = &self.folder {
            path_rules::check(folder, &path_rules::of_users(&users), false)?;
        }
        Ok(users)
    }

    /// Loads the users again. An error is logged, and the users in use remain. What `files` has of
    /// those who have been removed ends.
    fn reload(&self, control: &AccessControl, files: &Files, path_rules: &RulesInUse) {
        let loaded = self.load();
        control.count_reload(loaded.is_ok());
        match loaded {
            Ok(users) => {
                let count = users.len();
                let removed = control.names_without(&users);
                let names: HashSet<String> = names(&users).collect();
                path_rules.set(Origin::Users, path_rules::of_users(&users));
                control.replace(users);
                files.forget_users(&removed, |name| names.contains(name));
                tracing::info!(users = count, "users loaded");
            }
            Err(error) => tracing::error!("{}; the users in use remain", one_line(&error)),
        }
    }
}

/// Where the users in use are from, and what has them. `None` without access control.
pub(crate) type UsersInUse = Option<(UserSource, AccessControl)>;

/// The users of the running server. They are loaded again on a thread of their own, because a user
/// who is removed must not wait for anything else, such as for a count of objects. That thread has
/// the lock while it loads, and so has a change of the settings. So users that were loaded earlier
/// never replace those that were loaded later.
#[derive(Clone)]
pub(crate) struct SharedUsers {
    in_use: Arc<Mutex<UsersInUse>>,
    /// Its open streams end when rights change.
    files: Files,
    path_rules: RulesInUse,
}

impl SharedUsers {
    pub(crate) fn new(
        source: Option<UserSource>,
        control: Option<AccessControl>,
        files: Files,
        path_rules: RulesInUse,
    ) -> SharedUsers {
        SharedUsers {
            in_use: Arc::new(Mutex::new(source.zip(control))),
            files,
            path_rules,
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, UsersInUse> {
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the users can change without other settings.
    pub(crate) fn has_file(&self) -> bool {
        self.lock()
            .as_ref()
            .is_some_and(|(source, _)| source.has_file())
    }

    /// Starts the thread that loads the users again.
    pub(crate) fn watch(self) -> Result<Reload, Failure> {
        Reload::start("users", "onrush-users", move |requests| {
            requests.serve(self, |_| Duration::MAX, |users, _| users.reload());
        })
    }

    fn reload(&self) {
        if let Some((source, control)) = &*self.lock()
            && source.has_file()
        {
            source.reload(control, &self.files, &self.path_rules);
            self.files.end_watches();
        }
    }
}

/// The users of these settings. `None` without access control. An error is [`Failure::Usage`].
pub(crate) fn users(settings: &Settings) -> Result<Option<Users>, Failure> {
    let source = UserSource::new(settings)?;
    let users = source.map(|source| source.load()).transpose();
    users.map_err(Failure::usage)
}

/// The names of all users.
pub(crate) fn names(users: &Users) -> impl Iterator<Item = String> {
    users.all().map(|user| user.name().to_owned())
}

/// The rights that the server permits at all.
pub(crate) fn permitted(allow: Allow, sink: bool) -> Rights {
    let put = if allow.put || sink {
        Rights::WRITE
    } else {
        Rights::NONE
    };
    let delete = if allow.delete {
        Rights::DELETE
    } else {
        Rights::NONE
    };
    Rights::READ.union(Rights::LIST).union(put).union(delete)
}

/// The rights of clients that do not log in.
pub(crate) fn anonymous(settings: &Settings, users: Option<&mut Users>) -> PathRights {
    match users {
        Some(users) => users.anonymous_rights().clone(),
        None => PathRights::everywhere(permitted(settings.files.allow, settings.files.sink)),
    }
}

/// An address that serves objects.
#[derive(Debug)]
pub(crate) struct Exposure {
    pub(crate) address: String,
    pub(crate) is_encrypted: bool,
    /// Other machines can connect.
    pub(crate) is_public: bool,
    /// Each client has a certificate.
    pub(crate) needs_certificate: bool,
}

/// The addresses that serve objects. This may look up host names.
pub(crate) fn exposures(settings: &Settings) -> Vec<Exposure> {
    let tls = settings.tls.as_ref();
    let needs_certificate =
        tls.is_some_and(|tls| !tls.client_ca.is_empty() && !tls.is_client_optional);
    let of = |address: &String, is_encrypted: bool| Exposure {
        address: address.clone(),
        is_encrypted,
        is_public: !ListenAddress::resolve(address).is_local(),
        needs_certificate: is_encrypted && needs_certificate,
    };
    let first = settings
        .addresses
        .iter()
        .map(|address| of(address, tls.is_some()));
    let plain = tls.into_iter().flat_map(|tls| &tls.plain);
    first
        .chain(plain.map(|address| of(address, false)))
        .collect()
}

/// Refuses a configuration that lets everyone who can connect make changes, unless
/// `--insecure-writes` is given.
pub(crate) fn check(settings: &Settings, users: Option<&mut Users>) -> Result<(), Failure> {
    let has_users = users.as_ref().is_some_and(|users| !users.is_empty());
    let anonymous = anonymous(settings, users).any();
    let sink = settings.files.sink; // It stores nothing.
    let changes = match sink {
        true => Rights::DELETE,
        false => Rights::WRITE.union(Rights::DELETE),
    };
    let changes = changes.intersection(permitted(settings.files.allow, sink));
    if has_users || settings.options.insecure_writes() || !anonymous.intersects(changes) {
        return Ok(());
    }
    let exposures = exposures(settings);
    let open = exposures
        .iter()
        .find(|at| at.is_public && !at.needs_certificate);
    match open {
        None => Ok(()),
        Some(open) => Err(Failure::usage(format!(
            "everyone who can reach {} could make changes: add users (onrush user add NAME \
             --auth-file FILE, then --auth-file FILE), or --insecure-writes if that is intended",
            open.address
        ))),
    }
}

/// Warnings about rules that keep a user from what every stranger may do.
fn void_rules(users: &Users) -> impl Iterator<Item = String> {
    let anonymous = users.anonymous();
    let reads = [(Rights::READ, "read"), (Rights::LIST, "list")];
    users.all().flat_map(move |user| {
        let rules = user.rights().rules().collect::<Vec<_>>().into_iter();
        let (name, anonymous) = (user.name().to_owned(), anonymous.clone());
        rules.filter_map(move |(prefix, rights)| {
            let key = prefix.trim_start_matches('/');
            let of_all = anonymous.rights_at(key.as_bytes());
            let is_void = |right: Rights| of_all.contains(right) && !rights.contains(right);
            let void = reads.iter().filter(|(right, _)| is_void(*right));
            let void: Vec<&str> = void.map(|(_, name)| *name).collect();
            (!void.is_empty()).then(|| {
                format!(
                    "the rule of {name} for {prefix} withholds {}, but with --public-read everyone \
                     has it without logging in; only a rule of anonymous for {prefix} withholds it",
                    void.join(",")
                )
            })
        })
    })
}

/// Warnings about a configuration, one line each.
pub(crate) fn warnings(settings: &Settings, users: Option<&Users>) -> Vec<String> {
    let mut warnings = Vec::new();
    if settings.options.proxy_protocol() && settings.trusted_proxies.is_empty() {
        warnings.push(
            "--proxy-protocol without --trusted-proxy refuses every connection; add the address \
             of the load balancer"
                .to_owned(),
        );
    }
    if settings
        .access
        .as_ref()
        .is_some_and(|access| access.public_read)
        && let Some(users) = users
    {
        warnings.extend(void_rules(users));
    }
    for exposure in exposures(settings) {
        let has_users = users.is_some_and(|users| !users.is_empty());
        if has_users && exposure.is_public && !exposure.is_encrypted {
            warnings.push(format!(
                "passwords and tokens are not encrypted at {}; use --tls-self-signed, --acme or \
                 --tls-cert",
                exposure.address
            ));
        }
    }
    warnings
}
