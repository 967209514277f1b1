//! Peers that are not written in Rust, and complete servers: their configuration, installation and
//! start.

mod caddy;
mod canned;
mod go;
mod remote;
mod template;
mod web;

pub(super) use web::NGINX;

use super::{Launch, Peer};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};
use xtask::shell::{Outcome, capture, is_executable, shown, which};

/// In the order of the tables.
pub(crate) const PEERS: &[Peer] = &[
    go::GO,
    NGINX,
    web::H2O,
    canned::H2O_CANNED,
    caddy::CADDY,
    web::LIGHTTPD,
    remote::NGINX_PROXY,
    remote::RCLONE,
];

/// The path of an installed program. Servers are often in a folder that only root's `PATH`
/// contains.
fn program(name: &str) -> Outcome<PathBuf> {
    let beside = || Some(Path::new("/usr/sbin").join(name)).filter(|file| is_executable(file));
    which(name)
        .or_else(beside)
        .ok_or_else(|| format!("{name} is not installed"))
}

/// The version that a command prints.
fn asked(command: &mut Command) -> Outcome<String> {
    let (ok, text) = capture(command)?;
    version_in(&text)
        .filter(|_| ok)
        .map(str::to_owned)
        .ok_or_else(|| format!("`{}` prints no version", shown(command)))
}

/// The first word in `text` that looks like a version: a digit first, and a dot.
fn version_in(text: &str) -> Option<&str> {
    let words = text.split(|c: char| c.is_whitespace() || "\"/(),".contains(c));
    words
        .map(|word| word.trim_start_matches(|c: char| c.is_ascii_lowercase()))
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
}

/// Whether this process is root. Some servers must then be configured to stay root, because another
/// user may not read the files.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Descriptors for all connections and 20,000 open files, up to the limit of this process.
fn descriptors(launch: &Launch) -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let wanted = u64::from(launch.connections) + 21_000;
    hard_limit(&limits).map_or(wanted, |most| wanted.min(most))
}

/// The hard limit of open files. `None` if unlimited.
fn hard_limit(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The absolute path, for servers that do not resolve paths against the current folder.
fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).map_err(|error| format!("no current folder: {error}"))
}

/// Creates a folder and its parents.
fn make_folder(folder: &Path) -> Outcome {
    fs::create_dir_all(folder)
        .map_err(|error| format!("cannot create {}: {error}", folder.display()))
}

/// Writes a configuration file.
fn write(file: &Path, text: &str) -> Outcome {
    fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{Kind, Role};
    use std::collections::HashSet;

    #[test]
    fn every_peer_describes_its_configuration() {
        let mut names = HashSet::new();
        for peer in PEERS {
            assert!(names.insert(peer.name), "{} occurs twice", peer.name);
            assert_eq!((peer.kind, peer.driver), (Kind::Peer, None));
            assert!(!peer.roles.is_empty());
            let text = peer.configuration;
            assert!(text.ends_with('.') && text.contains(' '), "{text}");
            assert!(!text.contains("  "), "{text}");
            for omitted in peer.omits {
                assert!(
                    !omitted.ends_with('.') && !omitted.contains("  "),
                    "{omitted}"
                );
            }
        }
    }

    #[test]
    fn omitted_work_belongs_to_a_role_of_the_peer() {
        for peer in PEERS {
            for omitted in peer.omits {
                let role = match omitted.split(": ").next() {
                    Some("json") => Role::Json,
                    Some("echo") => Role::Echo,
                    Some("files") => Role::Files,
                    Some("put") => Role::Put,
                    Some("mixed") => Role::Mixed,
                    _ => continue,
                };
                let is_put = |own: Role| role == Role::Put && own.plain() == Role::Sink;
                let has = |own: &Role| own.plain() == role || is_put(*own);
                let has = peer.roles.iter().any(has);
                assert!(has, "{}: {omitted}", peer.name);
            }
        }
    }

    #[test]
    fn versions_are_found_in_the_output_of_programs() {
        let printed = [
            ("nginx version: nginx/1.22.1\n", "1.22.1"),
            ("h2o version 2.2.5\nOpenSSL: OpenSSL 3.0.19\n", "2.2.5"),
            ("lighttpd/1.4.69 (ssl) - a light server", "1.4.69"),
            ("rclone v1.60.1-DEV\n- os/version: debian", "1.60.1-DEV"),
            ("go1.26.8\n", "1.26.8"),
            (
                "v2.6.2 h1:wKoFIxpmOJLGl3QXoo6PNbYvGW4xLEgo32GPBEjWL8o=\n",
                "2.6.2",
            ),
        ];
        for (text, version) in printed {
            assert_eq!(version_in(text), Some(version), "{text}");
        }
        assert_eq!(version_in("no version. At all 7"), None);
    }

    #[test]
    fn the_hard_limit_is_the_second_number() {
        let text = "Limit  Soft Hard\nMax open files            1024    20000   files\n";
        assert_eq!(hard_limit(text), Some(20_000));
        assert_eq!(hard_limit("Max open files 1024 unlimited files"), None);
        assert_eq!(hard_limit(""), None);
    }
}
