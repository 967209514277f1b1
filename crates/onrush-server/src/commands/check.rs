//! `onrush check`: prints who may do what under a configuration. It starts nothing.

use crate::access::path_rules;
use crate::access::site_rules::RuleWatch;
use crate::access::users::{self, Exposure};
use crate::config::{CertificateSource, Settings};
use crate::options::values::AdminAt;
use crate::process::failure::{Failure, one_line};
use crate::stores::quotas;
use onrush_files::{ListenAddress, PathRights, Rights, Users};
use onrush_store::folds_names;
use std::fmt::Write;
use std::io;

/// The report about a configuration. An error is a configuration that does not start.
pub(crate) fn report(settings: &Settings) -> Result<String, Failure> {
    let mut users = users::users(settings)?;
    users::check(settings, users.as_mut())?;
    RuleWatch::open(settings)?;
    path_rules::check_quotas(settings)?;
    let mut text = String::new();
    let mut line = |what: &str, value: &str| {
        let _ = writeln!(text, "{what:<12} {}", one_line(value)); // Writing to a String succeeds.
    };
    line("serves", &settings.storage.to_string());
    if let Some(cache) = settings.cache {
        line("cache", &format!("of {} bytes", cache.bytes_max));
    }
    let folder = path_rules::folder(settings);
    if folder.is_some_and(|folder| folds_names(folder, b"", false).unwrap_or(false)) {
        let names = "upper and lower case are the same, so there are no rules for paths and no \
                     locks";
        line("names", names);
    }
    for exposure in users::exposures(settings) {
        line("address", &describe(&exposure, settings));
    }
    if let Some(admin) = &settings.admin {
        line("admin", &describe_admin(admin));
    }
    let options = options(settings);
    if !options.is_empty() {
        line("options", &options.join(" "));
    }
    for quota in &settings.quotas {
        let prefix = quotas::prefix(quota);
        line("quota", &format!("{prefix} {} bytes", quota.bytes_max));
    }
    let proxies = settings.trusted_proxies.networks().iter();
    let proxies: Vec<String> = proxies.map(ToString::to_string).collect();
    if settings.options.proxy_protocol() || !proxies.is_empty() {
        let list = match proxies.is_empty() {
            true => "none".to_owned(),
            false => proxies.join(", "),
        };
        let note = match settings.options.proxy_protocol() {
            true => " (PROXY protocol required)",
            false => "",
        };
        line("proxies", &format!("{list}{note}"));
    }
    let permitted = users::permitted(settings.files.allow, settings.files.sink);
    let allow = settings.files.allow;
    line(
        "permits",
        &match allow.delete && allow.delete_folders {
            true => format!("{permitted}, at most; folders are deleted with everything in them"),
            false => format!("{permitted}, at most"),
        },
    );
    let mut show = |who: &str, logins: &str, rights: &PathRights| {
        let mut is_empty = true;
        for (at, rights) in rights.rules() {
            is_empty = false;
            let rights = rights.intersection(permitted);
            line(who, &format!("{logins}{at} {}", describe_rights(rights)));
        }
        if is_empty {
            line(who, &format!("{logins}/ none"));
        }
    };
    show("anonymous", "", &users::anonymous(settings, users.as_mut()));
    for user in users.iter().flat_map(Users::all) {
        show(
            "user",
            &format!("{} ({}): ", user.name(), user.logins()),
            user.rights(),
        );
    }
    for warning in users::warnings(settings, users.as_ref()) {
        line("warning", &warning);
    }
    if let Some(AdminAt::Own(address)) = &settings.admin
        && !ListenAddress::resolve(address).is_local()
    {
        let warning = format!(
            "everyone who can reach {address} sees the metrics and the dashboard; use a loopback \
             address for --admin"
        );
        line("warning", &warning);
    }
    if let Some(warning) = folder_warning(settings) {
        line("warning", &warning);
    }
    Ok(text)
}

/// Where the admin pages are, and who may see them.
fn describe_admin(admin: &AdminAt) -> String {
    match admin {
        AdminAt::Same => "beneath /-/ at each address".to_owned(),
        AdminAt::Own(address) => {
            let reach = reach(!ListenAddress::resolve(address).is_local());
            format!("{address} (without login and encryption, {reach})")
        }
    }
}

/// The options that change what clients may see and do, besides the rights.
fn options(settings: &Settings) -> Vec<String> {
    let switches = [
        ("--webdav", settings.files.webdav),
        ("--site", settings.files.site),
    ];
    let switches = switches.into_iter().filter(|(_, is_on)| *is_on);
    let switches = switches.map(|(name, _)| name.to_owned());
    let origins = settings.cors.origins();
    switches
        .chain(origins.map(|origin| format!("--cors {origin}")))
        .collect()
}

fn reach(is_public: bool) -> &'static str {
    match is_public {
        true => "reachable from other machines",
        false => "this machine only",
    }
}

/// What is wrong with the folder, so that the server would not start now. It is no failure: the
/// configuration may be for another machine, or for a folder that is made later. One that this user
/// may not see is not judged, because the server may run as another user.
fn folder_warning(settings: &Settings) -> Option<String> {
    let dir = settings.storage.folder()?;
    let options = &settings.files;
    let is_written = options.allow.delete || (options.allow.put && !options.sink);
    let is_created = is_written || settings.cache.is_some();
    let what = match dir.metadata() {
        Ok(found) if !found.is_dir() => "is not a folder",
        Err(error) if error.kind() == io::ErrorKind::NotFound && !is_created => "does not exist",
        _ => return None,
    };
    let shown = dir.display();
    Some(format!(
        "{shown} {what}; the server does not start without it"
    ))
}

/// Rights, with a word about what `create` without `write` means.
fn describe_rights(rights: Rights) -> String {
    let creates_only = rights.contains(Rights::CREATE) && !rights.contains(Rights::WRITE);
    let note = if creates_only {
        " (does not replace)"
    } else {
        ""
    };
    format!("{rights}{note}")
}

fn describe(exposure: &Exposure, settings: &Settings) -> String {
    let source = settings.tls.as_ref().map(|tls| match &tls.source {
        CertificateSource::Files(_) => "HTTPS, certificate of --tls-cert",
        CertificateSource::SelfSigned(_) => "HTTPS, self-signed certificate",
        CertificateSource::Acme(_) => "HTTPS, certificate of --acme",
    });
    let protocol = source
        .filter(|_| exposure.is_encrypted)
        .unwrap_or("HTTP, not encrypted");
    let reach = reach(exposure.is_public);
    let certificate = match exposure.needs_certificate {
        true => ", client certificate required",
        false => "",
    };
    format!("{} ({protocol}, {reach}{certificate})", exposure.address)
}
