//! The servers that are no Rust programs of ours: what they are told, and how they are had and
//! started. Must not know what is measured of them.
//!
//! A skip that begins with a role's name and a colon, such as `json: `, is about that role only.

mod files;
mod runtimes;
mod template;
mod web;

use super::{Launch, Peer, Setup};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
};
use xtask::shell::{Outcome, capture, is_executable, shown, which};

/// In the order of the tables.
pub(crate) const PEERS: &[Peer] = &[
    runtimes::GO,
    runtimes::FASTHTTP,
    runtimes::NODE,
    runtimes::RAPIDOID,
    web::NGINX,
    web::H2O,
    web::LIGHTTPD,
    files::CADDY,
    files::DUFS,
    files::STATIC_WEB_SERVER,
];

/// A program that is installed. Servers are often where only root's `PATH` looks.
fn program(name: &str) -> Outcome<PathBuf> {
    let beside = || Some(Path::new("/usr/sbin").join(name)).filter(|file| is_executable(file));
    which(name)
        .or_else(beside)
        .ok_or_else(|| format!("{name} is not installed"))
}

/// Fails with the toolchain's name and what it is wanted for.
fn toolchain(name: &str, builds: &str) -> Outcome<PathBuf> {
    which(name).ok_or_else(|| format!("{builds} needs `{name}`, which is not on the PATH"))
}

/// The version that a program prints when it is called so.
fn asked(command: &mut Command) -> Outcome<String> {
    let (ok, text) = capture(command)?;
    version_in(&text)
        .filter(|_| ok)
        .map(str::to_owned)
        .ok_or_else(|| format!("`{}` tells no version", shown(command)))
}

/// The first thing in `text` that looks like a version: digits, dots and what may follow.
fn version_in(text: &str) -> Option<&str> {
    let words = text.split(|c: char| c.is_whitespace() || "\"/(),".contains(c));
    words
        .map(|word| word.trim_start_matches(|c: char| c.is_ascii_lowercase()))
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'))
}

/// Whether this is root, who must tell some servers to stay so: they would become somebody who
/// may not read the files.
fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// Descriptors for as many connections and some 20,000 open files, or what this process may have.
fn descriptors(launch: &Launch) -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let wanted = u64::from(launch.connections) + 21_000;
    hard_limit(&limits).map_or(wanted, |most| wanted.min(most))
}

/// The most open files that a process with these limits may ask for; none if unlimited.
fn hard_limit(limits: &str) -> Option<u64> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// For servers that take a path to be beneath something else than the current folder.
fn absolute(path: &Path) -> Outcome<PathBuf> {
    std::path::absolute(path).map_err(|error| format!("no current folder: {error}"))
}

/// What `mkdir -p` does, with an error in one sentence.
fn make_folder(folder: &Path) -> Outcome {
    fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))
}

/// Writes one file of a server's own folder.
fn write(file: &Path, text: &str) -> Outcome {
    fs::write(file, text).map_err(|error| format!("cannot write {}: {error}", file.display()))
}

/// Where peers that are built here are put: where `cargo install` puts those that it builds.
fn binaries(setup: &Setup) -> PathBuf {
    setup.tools().join("bin")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::{Kind, Role};
    use std::collections::HashSet;

    #[test]
    fn every_peer_says_what_it_was_told() {
        let mut names = HashSet::new();
        for peer in PEERS {
            assert!(names.insert(peer.name), "{} is there twice", peer.name);
            assert_eq!((peer.kind, peer.driver), (Kind::Peer, None));
            assert!(!peer.roles.is_empty());
            let told = peer.configuration;
            assert!(told.ends_with('.') && told.contains(' '), "{told}");
            assert!(!told.contains("  "), "{told}");
            for skip in peer.omits {
                assert!(!skip.ends_with('.') && !skip.contains("  "), "{skip}");
            }
        }
    }

    #[test]
    fn a_skip_of_one_role_is_about_a_role_that_the_peer_has() {
        for peer in PEERS {
            for skip in peer.omits {
                let role = match skip.split(": ").next() {
                    Some("json") => Role::Json,
                    Some("echo") => Role::Echo,
                    Some("files") => Role::Files,
                    Some("put") => Role::Put,
                    Some("mixed") => Role::Mixed,
                    _ => continue,
                };
                assert!(peer.roles.contains(&role), "{}: {skip}", peer.name);
            }
        }
    }

    #[test]
    fn versions_are_found_in_what_programs_print() {
        let printed = [
            ("nginx version: nginx/1.22.1\n", "1.22.1"),
            ("h2o version 2.2.5\nOpenSSL: OpenSSL 3.0.19\n", "2.2.5"),
            ("lighttpd/1.4.69 (ssl) - a light server", "1.4.69"),
            ("2.6.2\n", "2.6.2"),
            ("v20.20.2\n", "20.20.2"),
            ("go1.26.8\n", "1.26.8"),
            ("dufs 0.47.0\n", "0.47.0"),
            ("Version:      2.44.1\nPlatform: x", "2.44.1"),
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
