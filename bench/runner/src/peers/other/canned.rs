//! `h2o-canned`: a small program in C on libh2o, the library of h2o.

use super::{
    super::{Certificate, Kind, Launch, Peer, Role, Setup},
    asked,
};
use std::{path::PathBuf, process::Command};
use xtask::{
    packages::need,
    shell::{Outcome, run},
};

const NAME: &str = "h2o-canned";
const SOURCE: &str = "h2o-canned/canned.c";

/// Of libh2o and of what it calls.
const LIBRARIES: [&str; 7] = [
    "-lh2o-evloop",
    "-lssl",
    "-lcrypto",
    "-lz",
    "-lwslay",
    "-lm",
    "-lpthread",
];

pub(super) const H2O_CANNED: Peer = Peer {
    name: NAME,
    kind: Kind::Peer,
    driver: None,
    roles: &[Role::H2Hello, Role::H2TlsHello, Role::H2Sink, Role::H2Echo],
    configuration: "libh2o on its own event loop, one thread, backlog 4096, idle time 75 s; one \
        handler sends a constant response in memory to every request; bodies are collected in \
        memory. TLS by OpenSSL.",
    omits: &[
        "the response does not depend on the request",
        "put: no names, no conditions",
    ],
    install,
    version: |setup| asked(Command::new(program(setup)).arg("--version")),
    launch: |setup, launch| start(setup, launch),
};

fn program(setup: &Setup) -> PathBuf {
    setup.target.join("bench").join(NAME)
}

fn install(setup: &Setup) -> Outcome {
    need(&[
        ("cc", "gcc"),
        ("/usr/include/stdio.h", "libc6-dev"),
        ("/usr/include/h2o.h", "libh2o-evloop-dev"),
        (
            "/usr/share/doc/libh2o-evloop-dev/copyright",
            "libh2o-evloop-dev",
        ),
        ("/usr/include/wslay/wslay.h", "libwslay-dev"),
        ("/usr/include/openssl/ssl.h", "libssl-dev"),
        ("/usr/include/zlib.h", "zlib1g-dev"),
    ])?;
    let program = program(setup);
    if let Some(folder) = program.parent() {
        super::make_folder(folder)?;
    }
    let mut compile = Command::new("cc");
    compile.args(["-std=gnu17", "-O3", "-Wall", "-Wextra", "-o"]);
    compile.arg(program).arg(setup.sources().join(SOURCE));
    compile.args(LIBRARIES);
    run(&mut compile)
}

fn start(setup: &Setup, launch: &Launch) -> Outcome<Command> {
    let mut command = Command::new(program(setup));
    command.arg(launch.port.to_string());
    if let Some(Certificate { chain, key }) = setup.certificate(launch.role)? {
        command.arg(chain).arg(key);
    }
    Ok(command)
}
