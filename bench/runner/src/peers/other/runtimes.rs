//! Servers on runtimes with a garbage collector: Go's net/http and fasthttp, node and Rapidoid.
//! Must not know what is measured of them.

use super::{
    super::{Kind, Launch, Peer, Role, Setup},
    absolute, asked, binaries, make_folder, toolchain,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::SystemTime,
};
use xtask::shell::{Outcome, capture, run};

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
    ],
    configuration: "net/http with GOMAXPROCS=1 and its defaults, connections accepted with data; \
        encoding/json for each answer, files by `http.FileServer`, uploads by `io.Copy`.",
    omits: &[
        "no Server field",
        "no time limits",
        "lenient framing: Content-Length with Transfer-Encoding, bare LF, obs-fold",
        "files: no ETag",
    ],
    install: install_go,
    version: |setup| go_version(setup, "peer-go"),
    launch: |setup, launch| launch_go(setup, launch, "peer-go"),
};

pub(super) const FASTHTTP: Peer = Peer {
    name: "fasthttp",
    kind: Kind::Peer,
    driver: None,
    roles: &[Role::Hello, Role::Json, Role::Echo, Role::Files],
    configuration: "GOMAXPROCS=1 and its defaults, connections accepted with data; encoding/json for each \
        answer, files by `fasthttp.FS` with byte ranges on, which looks at a file again after \
        10 s.",
    omits: &[
        "no time limits",
        "lenient framing: Content-Length with Transfer-Encoding, obs-fold, any version",
        "files: no ETag, If-Match is not looked at, one range only",
    ],
    install: install_go,
    version: |setup| go_version(setup, "peer-fasthttp"),
    launch: |setup, launch| launch_go(setup, launch, "peer-fasthttp"),
};

/// Builds both programs. Go itself knows whether there is anything to do.
fn install_go(setup: &Setup) -> Outcome {
    let go = toolchain("go", "the peers in Go")?;
    let out = binaries(setup);
    make_folder(&out)?;
    let mut build = Command::new(go);
    build
        .args(["build", "-trimpath", "-buildvcs=false", "-o"])
        .arg(out)
        .args(["./peer-go", "./peer-fasthttp"])
        .current_dir(setup.sources().join("go"))
        .env_remove("GOFLAGS");
    run(&mut build)
}

/// As the program tells it: it knows both its library and its runtime.
fn go_version(setup: &Setup, name: &str) -> Outcome<String> {
    told_by(Command::new(binaries(setup).join(name)).arg("--version"))
}

fn launch_go(setup: &Setup, launch: &Launch, name: &str) -> Outcome<Command> {
    let mut command = Command::new(binaries(setup).join(name));
    command.arg(launch.port.to_string()).env("GOMAXPROCS", "1");
    if matches!(launch.role, Role::Files | Role::Mixed) {
        command.arg(&launch.folder);
    }
    Ok(command)
}

pub(super) const NODE: Peer = Peer {
    name: "node",
    kind: Kind::Peer,
    driver: None,
    roles: &[Role::Hello, Role::Json, Role::Echo],
    configuration: "node:http in one process, idle connections kept for 75 s, other defaults; \
        JSON.stringify for each answer.",
    omits: &[
        "no Server field",
        "Host is not checked, only that there is one",
    ],
    install: |_| toolchain("node", "the peer in JavaScript").map(drop),
    version: |_| asked(Command::new(toolchain("node", "the peer")?).arg("--version")),
    launch: |setup, launch| {
        let mut command = Command::new(toolchain("node", "the peer in JavaScript")?);
        command
            .arg(setup.sources().join("node/server.mjs"))
            .arg(launch.port.to_string());
        Ok(command)
    },
};

pub(super) const RAPIDOID: Peer = Peer {
    name: "rapidoid",
    kind: Kind::Peer,
    driver: None,
    roles: &[Role::Hello, Role::Json, Role::Echo],
    configuration: "Its low-level HTTP (rapidoid-http-fast) with one worker thread, 512 MiB of heap, \
        as much buffer memory as it asks for and the serial collector; its own JSON serialiser \
        for each answer.",
    omits: &[
        "Host is not looked at",
        "lenient framing: two lengths, bare LF, obs-fold, NUL, any version",
        "chunked bodies and the bodies of a GET are not read",
        "no limit on the time of a whole head",
    ],
    install: install_rapidoid,
    version: |setup| told_by(rapidoid(setup, 0)?.arg("--version")),
    launch: |setup, launch| {
        let mut command = rapidoid(setup, launch.connections)?;
        // It looks for configuration where it is started.
        command
            .arg(launch.port.to_string())
            .current_dir(&launch.scratch);
        Ok(command)
    },
};

/// Where Maven puts what it builds and the libraries it fetches.
fn rapidoid_folder(setup: &Setup) -> PathBuf {
    setup.target.join("bench/rapidoid")
}

fn rapidoid_jar(setup: &Setup) -> PathBuf {
    rapidoid_folder(setup).join("peer-rapidoid.jar")
}

fn install_rapidoid(setup: &Setup) -> Outcome {
    toolchain("java", "rapidoid")?;
    let maven = toolchain("mvn", "rapidoid")?;
    let sources = setup.sources().join("rapidoid");
    let project = sources.join("pom.xml");
    let made_of = [
        project.clone(),
        sources.join("src/main/java/peer/Main.java"),
    ];
    if is_current(&rapidoid_jar(setup), &made_of) {
        return Ok(());
    }
    println!("Building rapidoid, once.");
    let out = absolute(&rapidoid_folder(setup))?;
    let mut build = Command::new(maven);
    build.args(["-q", "-B", "-f"]).arg(project);
    build.arg(format!("-Dbench.out={}", out.display()));
    run(build.arg("package"))
}

/// What the buffers of one connection may take, and those of the rest, in MiB. It gives none back.
const RAPIDOID_BUFFERS_MIB: (u32, u32) = (1, 512);

/// The virtual machine and its program, without arguments for it.
fn rapidoid(setup: &Setup, connections: u32) -> Outcome<Command> {
    let mut path = absolute(&rapidoid_jar(setup))?.into_os_string();
    path.push(":");
    path.push(absolute(&rapidoid_folder(setup))?.join("lib"));
    path.push("/*");
    let mut command = Command::new(toolchain("java", "rapidoid")?);
    let (each, rest) = RAPIDOID_BUFFERS_MIB;
    let buffers_mib = rest + each * connections;
    command
        .args(["-Xmx512m", "-XX:+UseSerialGC"])
        .arg(format!("-XX:MaxDirectMemorySize={buffers_mib}m"))
        .arg("-cp")
        .arg(path)
        .arg("peer.Main");
    Ok(command)
}

/// The one line a program of ours prints about itself.
fn told_by(command: &mut Command) -> Outcome<String> {
    let (ok, text) = capture(command)?;
    match ok {
        true => Ok(text.trim().to_owned()),
        false => Err(format!("it tells no version, but: {}", text.trim())),
    }
}

/// Whether `made` is there and no older than any of what it is made of.
fn is_current(made: &Path, of: &[PathBuf]) -> bool {
    let changed = |file: &Path| -> Option<SystemTime> { fs::metadata(file).ok()?.modified().ok() };
    let made = changed(made);
    made.is_some() && of.iter().all(|file| changed(file) <= made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_not_current() {
        let here = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let discard_buffer = here.join("nowhere");
        assert!(is_current(&here, std::slice::from_ref(&here)));
        assert!(!is_current(&discard_buffer, &[here]));
        assert!(!is_current(&discard_buffer, &[]));
    }
}
