//! File servers: caddy, dufs and static-web-server.

use super::{
    super::{Certificate, Kind, Launch, Peer, Role, Setup},
    absolute, asked, binaries, program,
    template::{fill, quotable},
    write,
};
use std::{fs, path::PathBuf, process::Command};
use xtask::{
    packages::need,
    shell::{Outcome, cargo, run},
};

const CADDYFILE: &str = include_str!("../../../../peers/conf/Caddyfile");

pub(super) const CADDY: Peer = Peer {
    name: "caddy",
    kind: Kind::Peer,
    driver: None,
    roles: &[
        Role::Hello,
        Role::Json,
        Role::Files,
        Role::TlsHello,
        Role::TlsFiles,
    ],
    configuration: "GOMAXPROCS=1, HTTP/1.1 only, no access log, no admin listener; `respond` \
        serves / and /json, `file_server` serves files, and `tls` loads the certificate.",
    omits: &[
        "json: the text is constant, not serialised",
        "no time limit for heads",
        "lenient framing: Content-Length with Transfer-Encoding, bare LF, obs-fold",
    ],
    install: |_| need(&[("caddy", "caddy")]),
    version: |_| asked(Command::new(program("caddy")?).arg("version")),
    launch: launch_caddy,
};

fn launch_caddy(setup: &Setup, launch: &Launch) -> Outcome<Command> {
    let file = absolute(&launch.scratch)?.join("Caddyfile");
    write(&file, &caddyfile(setup, launch)?)?;
    let mut command = Command::new(program("caddy")?);
    command.args(["run", "--adapter", "caddyfile", "--config"]);
    command.arg(file).env("GOMAXPROCS", "1");
    for name in ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"] {
        command.env(name, &launch.scratch);
    }
    Ok(command)
}

fn caddyfile(setup: &Setup, launch: &Launch) -> Outcome<String> {
    let tls = match setup.certificate(launch.role)? {
        None => String::new(),
        Some(Certificate { chain, key }) => {
            format!("\ttls \"{}\" \"{}\"", quotable(&chain)?, quotable(&key)?)
        }
    };
    let handlers = match launch.role.plain() {
        Role::Hello => "\trespond \"Hello, World!\"".to_owned(),
        Role::Json => "\theader Content-Type application/json\n\
            \trespond `{\"message\":\"Hello, World!\"}`"
            .to_owned(),
        _ => format!("\troot * \"{}\"\n\tfile_server", quotable(&launch.folder)?),
    };
    let values = [
        ("scheme", launch.role.protocol().scheme()),
        ("port", &*launch.port.to_string()),
        ("tls", &tls),
        ("handlers", &handlers),
    ];
    fill(CADDYFILE, &values)
}

/// A program from crates.io, in one release.
struct Tool {
    name: &'static str,
    version: &'static str,
}

/// The latest release.
const DUFS_TOOL: Tool = Tool {
    name: "dufs",
    version: "0.47.0",
};

/// The latest release that is not a preview.
const STATIC_WEB_SERVER_TOOL: Tool = Tool {
    name: "static-web-server",
    version: "2.44.1",
};

impl Tool {
    fn file(&self, setup: &Setup) -> PathBuf {
        binaries(setup).join(self.name)
    }

    /// The version that the program prints.
    fn version(&self, setup: &Setup) -> Outcome<String> {
        asked(Command::new(self.file(setup)).arg("--version"))
    }

    /// Builds it without its default features (TLS, compression, users and pages), which are not
    /// used here.
    fn install(&self, setup: &Setup) -> Outcome {
        if self.version(setup).is_ok_and(|found| found == self.version) {
            return Ok(());
        }
        let tools = setup.tools();
        println!("Building {} {}, once.", self.name, self.version);
        let build = tools.join("build").join(self.name);
        let mut install = cargo("install --locked --force --quiet --no-default-features");
        install
            .args([self.name, "--version", self.version, "--root"])
            .arg(&tools)
            .env("CARGO_TARGET_DIR", &build)
            .env_remove("RUSTFLAGS");
        // From outside the workspace, whose settings and lock file do not apply.
        run(install.current_dir("/"))?;
        // These 500 MB are not needed again.
        let _ = fs::remove_dir_all(&build);
        Ok(())
    }
}

pub(super) const DUFS: Peer = Peer {
    name: "dufs",
    kind: Kind::Peer,
    driver: None,
    roles: &[Role::Files, Role::Put],
    configuration: "Built without TLS, one tokio worker, no access log; for PUT, uploads and \
        deletions are allowed, because it replaces no file without the latter. It sends head and \
        content separately and with Nagle's algorithm, so a small file waits for an \
        acknowledgement.",
    omits: &[
        "no Server field",
        "no time limits",
        "Host is not checked",
        "lenient framing: Content-Length with Transfer-Encoding, bare LF",
        "put: writes the file in place, so readers see incomplete files",
        "put: ignores preconditions",
    ],
    install: |setup| DUFS_TOOL.install(setup),
    version: |setup| DUFS_TOOL.version(setup),
    launch: |setup, launch| {
        let mut command = Command::new(DUFS_TOOL.file(setup));
        command
            .arg(&launch.folder)
            .args(["--bind", "127.0.0.1", "--log-format", "", "--port"])
            .arg(launch.port.to_string())
            .env("TOKIO_WORKER_THREADS", "1");
        if launch.role == Role::Put {
            command.args(["--allow-upload", "--allow-delete"]);
        }
        Ok(command)
    },
};

pub(super) const STATIC_WEB_SERVER: Peer = Peer {
    name: "static-web-server",
    kind: Kind::Peer,
    driver: None,
    roles: &[Role::Files],
    configuration: "Built without its default features, one tokio worker for its only core, no \
        access log.",
    omits: &[
        "no Server field",
        "no time limits",
        "Host is not checked",
        "lenient framing: Content-Length with Transfer-Encoding, bare LF",
        "files: no ETag, ignores a second range",
    ],
    install: |setup| STATIC_WEB_SERVER_TOOL.install(setup),
    version: |setup| STATIC_WEB_SERVER_TOOL.version(setup),
    launch: |setup, launch| {
        let mut command = Command::new(STATIC_WEB_SERVER_TOOL.file(setup));
        command
            .args(["--host", "127.0.0.1", "--threads-multiplier", "1"])
            .args(["--log-level", "error", "--port"])
            .arg(launch.port.to_string())
            .arg("--root")
            .arg(absolute(&launch.folder)?)
            // It reads a configuration file in the current folder, and this one has none.
            .current_dir(&launch.scratch);
        Ok(command)
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_of_caddy_has_a_complete_configuration() {
        for role in CADDY.roles {
            let launch = Launch {
                role: *role,
                port: 40_123,
                folder: "/srv/the files".into(),
                scratch: "/srv/scratch".into(),
                connections: 64,
            };
            let text = caddyfile(&Setup::of_repository(), &launch).unwrap();
            let is_tls = role != &role.plain();
            let scheme = if is_tls { "https" } else { "http" };
            assert!(text.contains(&format!("{scheme}://:40123 {{")), "{text}");
            assert_eq!(text.contains("key.pem\""), is_tls, "{text}");
            let root = text.contains("root * \"/srv/the files\"");
            assert_eq!(root, role.plain() == Role::Files, "{text}");
        }
    }
}
