//! Peers in Rust: small programs in `bench/peers/rust` that use the libraries.

use super::{Kind, Launch, Peer, Role, Setup};
use std::{fs, path::PathBuf, process::Command};
use xtask::shell::{Outcome, cargo, run};

const ROLES: &[Role] = &[Role::Hello, Role::Json, Role::Echo];

/// In the order of the tables.
pub(crate) const PEERS: &[Peer] = &[HYPER, AXUM, AXUM_SERVE, ONRUSH_AXUM, MAY_MINIHTTP];

const HYPER: Peer = Peer {
    name: "hyper",
    kind: Kind::Peer,
    driver: None,
    roles: &[
        Role::Hello,
        Role::Json,
        Role::Echo,
        Role::Mixed,
        Role::TlsHello,
        Role::TlsPut,
        Role::H2Hello,
        Role::H2TlsHello,
        Role::H2Sink,
        Role::H2Echo,
    ],
    configuration: "hyper's HTTP/1 on one thread of tokio (`current_thread`) with \
        `pipeline_flush`, no timer; TCP_NODELAY, deferred accept, backlog 4096. Files in memory \
        are read and written on that thread. TLS by tokio-rustls with aws-lc-rs and two stateless \
        tickets. With `--http2`, hyper's HTTP/2 instead, with its defaults; a PUT is received and \
        discarded.",
    omits: &[
        "no time limits",
        "accepts a missing or second Host",
        "mixed: files have no date, no ETag, no preconditions and no ranges",
        "put: ignores preconditions",
    ],
    install: |setup| build(setup, "peer-hyper"),
    version: |setup| locked(setup, "hyper"),
    launch: |setup, launch| start(setup, "peer-hyper", launch),
};

const AXUM: Peer = Peer {
    name: "axum",
    kind: Kind::Peer,
    driver: None,
    roles: ROLES,
    configuration: "axum's router and extractors, served by hyper with the settings of `hyper`.",
    omits: &["no time limits", "accepts a missing or second Host"],
    install: |setup| build(setup, "peer-axum"),
    version: |setup| locked(setup, "axum"),
    launch: |setup, launch| start(setup, "peer-axum", launch),
};

const AXUM_SERVE: Peer = Peer {
    name: "axum-serve",
    kind: Kind::Peer,
    driver: None,
    roles: &[Role::Axum],
    configuration: "The router of `axum` on `axum::serve`, with one thread of tokio \
        (`current_thread`); TCP_NODELAY, deferred accept, backlog 4096.",
    omits: &["no time limits", "accepts a missing or second Host"],
    install: |setup| build(setup, "peer-axum-serve"),
    version: |setup| locked(setup, "axum"),
    launch: |setup, launch| start(setup, "peer-axum-serve", launch),
};

const ONRUSH_AXUM: Peer = Peer {
    name: "onrush-axum",
    kind: Kind::Peer,
    driver: None,
    roles: &[Role::Axum],
    configuration: "The router of `axum` on Onrush by `onrush-tower`, with one worker.",
    omits: &[],
    install: |setup| build(setup, "peer-onrush-axum"),
    version: |setup| locked(setup, "axum"),
    launch: |setup, launch| start(setup, "peer-onrush-axum", launch),
};

const MAY_MINIHTTP: Peer = Peer {
    name: "may_minihttp",
    kind: Kind::Peer,
    driver: None,
    roles: ROLES,
    configuration: "may's scheduler with one worker. Its listener is not accessible, so \
        TCP_NODELAY and the backlog cannot be set.",
    omits: &[
        "no time limits",
        "ignores Connection: close and HTTP/1.0",
        "accepts at most 16 fields",
        "ignores Transfer-Encoding and a second Content-Length; an invalid one ends the process",
        "accepts a missing or second Host",
        "echo: does not copy Content-Type",
    ],
    install: |setup| build(setup, "peer-may-minihttp"),
    version: |setup| locked(setup, "may_minihttp"),
    launch: |setup, launch| start(setup, "peer-may-minihttp", launch),
};

/// The workspace of these programs.
fn sources(setup: &Setup) -> PathBuf {
    setup.sources().join("rust")
}

/// Builds one program. The first build also compiles the dependencies of all.
fn build(setup: &Setup, program: &str) -> Outcome {
    let mut command = cargo("build --profile=dist --locked --quiet --bin");
    command
        .arg(program)
        .current_dir(sources(setup))
        .env("CARGO_TARGET_DIR", &setup.target);
    run(&mut command)
}

fn start(setup: &Setup, program: &str, launch: &Launch) -> Outcome<Command> {
    let mut command = Command::new(setup.built(program));
    command.arg(launch.port.to_string());
    if matches!(launch.role, Role::Mixed | Role::TlsPut) {
        command.arg(&launch.folder);
    }
    setup.add_certificate(launch.role, &mut command)?;
    if launch.role.is_http2() {
        command.arg("--http2");
    }
    Ok(command)
}

/// The version of `package` in the lock file of the programs.
fn locked(setup: &Setup, package: &str) -> Outcome<String> {
    let file = sources(setup).join("Cargo.lock");
    let text = fs::read_to_string(&file)
        .map_err(|error| format!("cannot read {}: {error}", file.display()))?;
    version_in(&text, package)
        .map(str::to_owned)
        .ok_or_else(|| format!("{} has no package {package}", file.display()))
}

/// Finds the line `version` after the line `name`. The last of several versions is the newest,
/// which the programs use.
fn version_in<'a>(lock: &'a str, package: &str) -> Option<&'a str> {
    let name = format!("name = \"{package}\"");
    let mut lines = lock.lines();
    let mut newest = None;
    while lines.by_ref().any(|line| line == name) {
        let version = lines.next()?.strip_prefix("version = \"")?;
        newest = Some(version.strip_suffix('"')?);
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"mio\"\nversion = \"1.2.4\"\n\n\
        [[package]]\nname = \"may\"\nversion = \"0.3.51\"\ndependencies = [\n \"mio\",\n]\n\n\
        [[package]]\nname = \"may_queue\"\nversion = \"0.1.24\"\n";

    #[test]
    fn versions_are_found_by_the_complete_name() {
        assert_eq!(version_in(LOCK, "mio"), Some("1.2.4"));
        assert_eq!(version_in(LOCK, "may"), Some("0.3.51"));
        assert_eq!(version_in(LOCK, "queue"), None);
    }

    #[test]
    fn the_newest_of_several_versions_counts() {
        let lock = format!("{LOCK}\n[[package]]\nname = \"mio\"\nversion = \"2.0.0\"\n");
        assert_eq!(version_in(&lock, "mio"), Some("2.0.0"));
    }

    #[test]
    fn every_peer_has_a_version_in_the_committed_lock() {
        let setup = Setup::of_repository();
        for peer in PEERS {
            let version = (peer.version)(&setup);
            assert!(
                version.is_ok_and(|text| text.contains('.')),
                "{}",
                peer.name
            );
        }
    }
}
