//! Go's net/http.

use super::{
    super::{Kind, Launch, Peer, Role, Setup},
    asked, make_folder,
};
use std::{path::PathBuf, process::Command};
use xtask::shell::{Outcome, run, which};

pub(super) const GO: Peer = Peer {
    name: "go",
    kind: Kind::Peer,
    driver: None,
    roles: &[
        Role::Hello,
        Role::Json,
        Role::Echo,
        Role::Files,
        Role::Mixed,
        Role::TlsHello,
        Role::TlsFiles,
        Role::TlsPut,
        Role::H2Hello,
        Role::H2TlsHello,
        Role::H2Files,
        Role::H2Echo,
    ],
    configuration: "net/http with GOMAXPROCS=1 and its defaults, deferred accept; encoding/json \
        for each response, files by `http.FileServer`, uploads by `io.Copy`, TLS by crypto/tls; \
        also HTTP/2 without TLS by prior knowledge.",
    omits: &[
        "no Server field",
        "no time limits",
        "lenient framing: Content-Length with Transfer-Encoding, bare LF, obs-fold",
        "files: no ETag",
        "put: ignores preconditions",
    ],
    install,
    version: |setup| asked(Command::new(program(setup)).arg("--version")),
    launch,
};

/// The folder of the program, which is built here.
fn folder(setup: &Setup) -> PathBuf {
    setup.target.join("bench/tools/bin")
}

fn program(setup: &Setup) -> PathBuf {
    folder(setup).join("peer-go")
}

/// Builds the program. Go itself detects whether it is up to date.
fn install(setup: &Setup) -> Outcome {
    let go = which("go").ok_or("the peer in Go needs `go`, which is not on the PATH")?;
    let out = folder(setup);
    make_folder(&out)?;
    let mut build = Command::new(go);
    build
        .args(["build", "-trimpath", "-buildvcs=false", "-o"])
        .arg(out)
        .arg("./peer-go")
        .current_dir(setup.sources().join("go"))
        .env_remove("GOFLAGS");
    run(&mut build)
}

fn launch(setup: &Setup, launch: &Launch) -> Outcome<Command> {
    let mut command = Command::new(program(setup));
    setup.add_certificate(launch.role, &mut command)?;
    command.arg(launch.port.to_string()).env("GOMAXPROCS", "1");
    let role = launch.role.plain();
    if matches!(role, Role::Files | Role::Put | Role::Mixed) {
        command.arg(&launch.folder);
    }
    Ok(command)
}
