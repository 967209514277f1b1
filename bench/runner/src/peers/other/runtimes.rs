//! Servers on runtimes with a garbage collector: Go's net/http and fasthttp, node and Rapidoid.

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
        Role::TlsHello,
        Role::TlsFiles,
        Role::TlsPut,
    ],
    configuration: "net/http with GOMAXPROCS=1 and its defaults, deferred accept; encoding/json \
        for each response, files by `http.FileServer`, uploads by `io.Copy`, TLS by crypto/tls.",
    omits: &[
        "no Server field",
        "no time limits",
        "lenient framing: Content-Length with Transfer-Encoding, bare LF, obs-fold",
        "files: no ETag",
        "put: ignores preconditions",
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
    configuration: "GOMAXPROCS=1 and its defaults, deferred accept; encoding/json for each \
        response, files by `fasthttp.FS` with byte ranges, which checks a file again after 10 s.",
    omits: &[
        "no time limits",
        "lenient framing: Content-Length with Transfer-Encoding, obs-fold, any version",
        "files: no ETag, ignores If-Match, one range only",
    ],
    install: install_go,
    version: |setup| go_version(setup, "peer-fasthttp"),
    launch: |setup, launch| launch_go(setup, launch, "peer-fasthttp"),
};

/// Builds both programs. Go itself detects whether they are up to date.
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

/// The version that the program prints: that of its library and that of its runtime.
fn go_version(setup: &Setup, name: &str) -> Outcome<String> {
    printed_by(Command::new(binaries(setup).join(name)).arg("--version"))
}

fn launch_go(setup: &Setup, launch: &Launch, name: &str) -> Outcome<Command> {
    let mut command = Command::new(binaries(setup).join(name));
    setup.add_certificate(launch.role, &mut command)?;
    command.arg(launch.port.to_string()).env("GOMAXPROCS", "1");
    let role = launch.role.plain();
    if matches!(role, Role::Files | Role::Put | Role::Mixed) {
        command.arg(&launch.folder);
    }
    Ok(command)
}

pub(super) const NODE: Peer = Peer {
    name: "node",
    kind: Kind::Peer,
    driver: None,
    roles: &[Role::Hello, Role::Json, Role::Echo],
    configuration: "node:http in one process, keep-alive 75 s, otherwise defaults; JSON.stringify \
        for each response.",
    omits: &["no Server field", "the value of Host is not checked"],
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
    configuration: "Its low-level HTTP (rapidoid-http-fast) with one worker thread, 512 MiB of \
        heap, as much buffer memory as it requests, and the serial collector; its own JSON \
        serialiser for each response.",
    omits: &[
        "Host is not checked",
        "lenient framing: two lengths, bare LF, obs-fold, NUL, any version",
        "reads no chunked bodies and no bodies of GET",
        "no time limit for complete heads",
    ],
    install: install_rapidoid,
    version: |setup| printed_by(rapidoid(setup, 0)?.arg("--version")),
    launch: |setup, launch| {
        let mut command = rapidoid(setup, launch.connections)?;
        // It reads configuration from the current folder.
        command
            .arg(launch.port.to_string())
            .current_dir(&launch.scratch);
        Ok(command)
    },
};

/// The folder for the program that Maven builds, and for its libraries.
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
    let inputs = [
        project.clone(),
        sources.join("src/main/java/peer/Main.java"),
    ];
    if is_current(&rapidoid_jar(setup), &inputs) {
        return Ok(());
    }
    println!("Building rapidoid, once.");
    let out = absolute(&rapidoid_folder(setup))?;
    let mut build = Command::new(maven);
    build.args(["-q", "-B", "-f"]).arg(project);
    build.arg(format!("-Dbench.out={}", out.display()));
    run(build.arg("package"))
}

/// Memory for the buffers of one connection, and for all other buffers, in MiB. Rapidoid releases
/// no buffers.
const RAPIDOID_BUFFERS_MIB: (u32, u32) = (1, 512);

/// The virtual machine with the program, without the program's arguments.
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

/// The line that one of the programs in `bench/peers` prints about itself.
fn printed_by(command: &mut Command) -> Outcome<String> {
    let (ok, text) = capture(command)?;
    match ok {
        true => Ok(text.trim().to_owned()),
        false => Err(format!("it prints no version, but: {}", text.trim())),
    }
}

/// Whether `output` exists and is not older than any of its `inputs`.
fn is_current(output: &Path, inputs: &[PathBuf]) -> bool {
    let changed = |file: &Path| -> Option<SystemTime> { fs::metadata(file).ok()?.modified().ok() };
    let built = changed(output);
    built.is_some() && inputs.iter().all(|file| changed(file) <= built)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_file_is_not_current() {
        let here = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let missing = here.join("missing");
        assert!(is_current(&here, std::slice::from_ref(&here)));
        assert!(!is_current(&missing, &[here]));
        assert!(!is_current(&missing, &[]));
    }
}
