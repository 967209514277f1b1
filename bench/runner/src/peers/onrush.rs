//! Onrush and the limits: minimal programs that do one thing.

use super::{Certificate, Driver, Kind, Launch, Peer, Role, Setup, is_there};
use std::{fs, path::Path, process::Command};
use xtask::{
    packages,
    shell::{Outcome, capture, cargo, run},
};

/// Number of workers of every server.
const WORKERS: &str = "1";

/// The only file that `limit-sendfile` serves.
const FILE: &str = "file";

/// The store in C, and its source.
const STORE: &str = "limit-store";
const STORE_SOURCE: &str = "bench/limits/c/store.c";

const PREBUILT: &[&str] = &[
    "prebuilt response with a constant date",
    "no size limits, no time limits",
    "requests are parsed but not evaluated",
];
const CLOSING: &[&str] = &[
    "prebuilt response with a constant date",
    "no size limits, no time limits",
    "closes after each response, whether requested or not",
];

const ASKED: &[&str] = &[
    "prebuilt response with a constant date",
    "no size limits, no time limits",
    "requests are parsed and searched for `close`, but not evaluated",
];

/// The limits, including the file store in C.
pub(crate) const LIMITS: &[Peer] = &[
    Peer {
        name: "limit-epoll",
        kind: Kind::Limit,
        driver: Some(Driver::Epoll),
        roles: &[Role::Hello],
        configuration: "port",
        omits: PREBUILT,
        install: limits,
        version: own_version,
        launch: |setup, launch| Ok(bare(setup, "limit-epoll", launch)),
    },
    Peer {
        name: "limit-uring",
        kind: Kind::Limit,
        driver: Some(Driver::Uring),
        roles: &[Role::Hello],
        configuration: "port",
        omits: PREBUILT,
        install: limits,
        version: own_version,
        launch: |setup, launch| Ok(bare(setup, "limit-uring", launch)),
    },
    Peer {
        name: "limit-epoll-close",
        kind: Kind::Limit,
        driver: Some(Driver::Epoll),
        roles: &[Role::Hello],
        configuration: "port, close",
        omits: CLOSING,
        install: limits,
        version: own_version,
        launch: |setup, launch| Ok(closing(setup, "limit-epoll", launch, "close")),
    },
    Peer {
        name: "limit-epoll-asked",
        kind: Kind::Limit,
        driver: Some(Driver::Epoll),
        roles: &[Role::Hello],
        configuration: "port, close-asked",
        omits: ASKED,
        install: limits,
        version: own_version,
        launch: |setup, launch| Ok(closing(setup, "limit-epoll", launch, "close-asked")),
    },
    Peer {
        name: "limit-uring-close",
        kind: Kind::Limit,
        driver: Some(Driver::Uring),
        roles: &[Role::Hello],
        configuration: "port, close",
        omits: CLOSING,
        install: limits,
        version: own_version,
        launch: |setup, launch| Ok(closing(setup, "limit-uring", launch, "close")),
    },
    Peer {
        name: "limit-uring-asked",
        kind: Kind::Limit,
        driver: Some(Driver::Uring),
        roles: &[Role::Hello],
        configuration: "port, close-asked",
        omits: ASKED,
        install: limits,
        version: own_version,
        launch: |setup, launch| Ok(closing(setup, "limit-uring", launch, "close-asked")),
    },
    Peer {
        name: "limit-sendfile",
        kind: Kind::Limit,
        driver: None,
        roles: &[Role::Files],
        configuration: "port, and its only file",
        omits: &[
            "prebuilt head",
            "the file is opened at the start",
            "no ranges, no conditions, no time limits",
        ],
        install: limits,
        version: own_version,
        launch: |setup, launch| {
            let mut command = bare(setup, "limit-sendfile", launch);
            command.arg(launch.folder.join(FILE));
            Ok(command)
        },
    },
    Peer {
        name: "limit-drain",
        kind: Kind::Limit,
        driver: None,
        roles: &[Role::Sink],
        configuration: "port",
        omits: &["prebuilt response", "no size limits, no time limits"],
        install: limits,
        version: own_version,
        launch: |setup, launch| Ok(bare(setup, "limit-drain", launch)),
    },
    Peer {
        name: "limit-tls",
        kind: Kind::Limit,
        driver: None,
        roles: &[Role::TlsHello],
        configuration: "port, certificate, hello; rustls with aws-lc-rs, two stateless tickets",
        omits: PREBUILT,
        install: limits,
        version: own_version,
        launch: |setup, launch| bare_tls(setup, launch, "hello"),
    },
    Peer {
        name: "limit-tls-close",
        kind: Kind::Limit,
        driver: None,
        roles: &[Role::TlsHello],
        configuration: "port, certificate, close; rustls with aws-lc-rs, two stateless tickets",
        omits: CLOSING,
        install: limits,
        version: own_version,
        launch: |setup, launch| bare_tls(setup, launch, "close"),
    },
    Peer {
        name: "limit-tls-file",
        kind: Kind::Limit,
        driver: None,
        roles: &[Role::TlsFiles],
        configuration: "port, certificate, and its only file; rustls with aws-lc-rs",
        omits: &[
            "prebuilt head",
            "the file is read once, at the start",
            "no ranges, no conditions, no time limits",
        ],
        install: limits,
        version: own_version,
        launch: |setup, launch| bare_tls_file(setup, launch, "file"),
    },
    Peer {
        name: "limit-tls-read",
        kind: Kind::Limit,
        driver: None,
        roles: &[Role::TlsFiles],
        configuration: "port, certificate, and its only file; rustls with aws-lc-rs",
        omits: &[
            "prebuilt head",
            "the file stays open",
            "no ranges, no conditions, no time limits",
        ],
        install: limits,
        version: own_version,
        launch: |setup, launch| bare_tls_file(setup, launch, "read"),
    },
    Peer {
        name: STORE,
        kind: Kind::Limit,
        driver: None,
        roles: &[Role::Files, Role::Put, Role::PutDurable, Role::Sink],
        configuration: "-t 1, and -d for durable uploads",
        omits: &[
            "no size limits, no time limits",
            "no preconditions, no ranges, creates no folders",
        ],
        install: store,
        version: own_version,
        launch: |setup, launch| {
            let mut command = Command::new(setup.target.join("bench").join(STORE));
            command.args(["-t", WORKERS, "-p", &launch.port.to_string()]);
            match launch.role {
                Role::PutDurable => _ = command.arg("-d"),
                Role::Sink => _ = command.arg("-s"),
                _ => {}
            }
            command.arg(&launch.folder);
            Ok(command)
        },
    },
];

/// The name of Onrush with a cache in front of a bucket or a folder.
pub(crate) const EDGE: &str = "onrush-edge";

/// Onrush, once for each driver, and with a cache.
pub(crate) const OURS: &[Peer] = &[
    Peer {
        name: "onrush-io_uring",
        kind: Kind::Onrush,
        driver: Some(Driver::Uring),
        roles: ROLES,
        configuration: CONFIGURATION,
        omits: &[],
        install: ours,
        version: own_version,
        launch: |setup, launch| onrush(setup, launch, Driver::Uring),
    },
    Peer {
        name: "onrush-epoll",
        kind: Kind::Onrush,
        driver: Some(Driver::Epoll),
        roles: ROLES,
        configuration: CONFIGURATION,
        omits: &[],
        install: ours,
        version: own_version,
        launch: |setup, launch| onrush(setup, launch, Driver::Epoll),
    },
    Peer {
        name: EDGE,
        kind: Kind::Onrush,
        driver: Some(Driver::Uring),
        roles: &[Role::Remote, Role::Files],
        configuration: "as onrush-io_uring, with a cache of 8 GiB that is empty at first",
        omits: &[],
        install: ours,
        version: own_version,
        launch: |setup, launch| {
            let mut command = onrush(setup, launch, Driver::Uring)?;
            let cache = launch.scratch.join("edge");
            _ = fs::remove_dir_all(&cache);
            command.arg("--edge").arg(cache);
            command.args(["--edge-size", "8GiB"]);
            Ok(command)
        },
    },
];

const ROLES: &[Role] = &[
    Role::Hello,
    Role::Json,
    Role::Echo,
    Role::Files,
    Role::Put,
    Role::PutDurable,
    Role::Sink,
    Role::Mixed,
    Role::TlsHello,
    Role::TlsFiles,
    Role::TlsPut,
    Role::H2Hello,
    Role::H2TlsHello,
    Role::H2Files,
    Role::H2Sink,
    Role::H2Echo,
    Role::Remote,
    Role::RemotePut,
];

const CONFIGURATION: &str = "one worker, the driver, permission to write and durability; \
    otherwise defaults";

fn limits(_: &Setup) -> Outcome {
    let build = "build --profile=dist --quiet -p limits";
    run(&mut cargo(build))
}

fn store(setup: &Setup) -> Outcome {
    packages::need(&[("cc", "gcc"), ("/usr/include/stdio.h", "libc6-dev")])?;
    let folder = setup.target.join("bench");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut compile = Command::new("cc");
    compile.args(["-std=c17", "-O3", "-Wall", "-Wextra", "-pthread", "-o"]);
    compile
        .arg(folder.join(STORE))
        .arg(setup.root.join(STORE_SOURCE));
    run(&mut compile)
}

/// Builds the programs with routes, and the one that serves folders.
fn ours(_: &Setup) -> Outcome {
    let app = "build --profile=dist --quiet -p app --bins";
    run(&mut cargo(app))?;
    run(&mut cargo(
        "build --profile=dist --quiet -p onrush-server --bin onrush",
    ))
}

/// The version of the repository. The commit would be more precise, but results are measured before
/// they are committed.
fn own_version(setup: &Setup) -> Outcome<String> {
    let onrush = setup.built("onrush");
    if is_there(&onrush) {
        let (_, text) = capture(Command::new(&onrush).arg("--version"))?;
        let version = text.split_whitespace().last().unwrap_or_default();
        return Ok(version.to_owned());
    }
    let manifest = setup.root.join("Cargo.toml");
    let text = fs::read_to_string(&manifest).map_err(|error| error.to_string())?;
    let version = text
        .lines()
        .find_map(|line| line.strip_prefix("version = "));
    version
        .map(|version| version.trim_matches('"').to_owned())
        .ok_or_else(|| "the workspace has no version".to_owned())
}

fn bare(setup: &Setup, name: &str, launch: &Launch) -> Command {
    let mut command = Command::new(setup.built(name));
    command.arg(launch.port.to_string());
    command
}

fn closing(setup: &Setup, name: &str, launch: &Launch, when: &str) -> Command {
    let mut command = bare(setup, name, launch);
    command.arg(when);
    command
}

/// The bare TLS loop with a response.
fn bare_tls(setup: &Setup, launch: &Launch, response: &str) -> Outcome<Command> {
    let mut command = bare(setup, "limit-tls", launch);
    let Certificate { chain, key } = Certificate::of(setup)?;
    command.arg(chain).arg(key).arg(response);
    Ok(command)
}

/// The bare TLS loop with the file of the load as its response: `how` is `file` or `read`.
fn bare_tls_file(setup: &Setup, launch: &Launch, how: &str) -> Outcome<Command> {
    let mut command = bare_tls(setup, launch, how)?;
    command.arg(launch.folder.join(FILE));
    Ok(command)
}

fn onrush(setup: &Setup, launch: &Launch, driver: Driver) -> Outcome<Command> {
    let port = launch.port.to_string();
    let folder = |place: &Path| {
        let mut command = Command::new(setup.built("onrush"));
        command.arg(place).args(["--port", &port]);
        command.args(["--workers", WORKERS, "--driver", driver.name()]);
        command
    };
    let bucket = || {
        let service = setup.service()?;
        let mut command = folder(Path::new(&format!("s3://{}", launch.folder.display())));
        command
            .env("AWS_ENDPOINT_URL", service.url())
            .env("AWS_ACCESS_KEY_ID", &service.key_id)
            .env("AWS_SECRET_ACCESS_KEY", &service.secret);
        Outcome::Ok(command)
    };
    let program = |name: &str| {
        let mut command = Command::new(setup.built(name));
        command
            .arg(&port)
            .env("ONRUSH_WORKERS", WORKERS)
            .env("ONRUSH_DRIVER", driver.name());
        command
    };
    let mut command = match launch.role.plain() {
        Role::Hello | Role::Json | Role::Echo => program("onrush-app"),
        Role::Mixed => {
            let mut command = program("onrush-mixed");
            command.arg(&launch.folder);
            command
        }
        Role::Remote | Role::RemotePut => bucket()?,
        _ => folder(&launch.folder),
    };
    match launch.role.plain() {
        Role::RemotePut => _ = command.args(["--allow", "put,delete"]),
        Role::Put => _ = command.args(["--allow", "put,delete", "--durability", "none"]),
        Role::PutDurable => _ = command.args(["--allow", "put,delete", "--durability", "full"]),
        Role::Sink => _ = command.args(["--allow", "put,delete", "--sink"]),
        _ => {}
    }
    setup.add_certificate(launch.role, &mut command)?;
    Ok(command)
}
