//! Caddy, from Debian's package.

use super::{
    super::{Certificate, Kind, Launch, Peer, Role, Setup},
    absolute, asked, program,
    template::{fill, quotable},
    write,
};
use std::process::Command;
use xtask::{packages::need, shell::Outcome};

const CONF: &str = include_str!("../../../../peers/conf/caddy.conf");

pub(super) const CADDY: Peer = Peer {
    name: "caddy",
    kind: Kind::Peer,
    driver: None,
    roles: &[Role::H2Hello, Role::H2TlsHello, Role::H2Files],
    configuration: "GOMAXPROCS=1, no access log, no administration endpoint; `respond` serves /, \
        `file_server` serves files, `protocols h1 h2c` for HTTP/2 without TLS. TLS by Go's \
        crypto/tls.",
    omits: &["no time limit for complete heads"],
    install: |_| need(&[("caddy", "caddy")]),
    version: |_| asked(Command::new(program("caddy")?).arg("version")),
    launch,
};

fn launch(setup: &Setup, launch: &Launch) -> Outcome<Command> {
    let scratch = absolute(&launch.scratch)?;
    let file = scratch.join("caddy.conf");
    write(&file, &conf(setup, launch)?)?;
    let mut command = Command::new(program("caddy")?);
    command.args(["run", "--adapter", "caddyfile", "--config"]);
    command.arg(file).env("GOMAXPROCS", "1");
    // It keeps its configuration there.
    for name in ["HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"] {
        command.env(name, &scratch);
    }
    Ok(command)
}

fn conf(setup: &Setup, launch: &Launch) -> Outcome<String> {
    let (protocols, tls) = match setup.certificate(launch.role)? {
        None => ("h1 h2c", String::new()),
        Some(Certificate { chain, key }) => {
            let (chain, key) = (quotable(&chain)?, quotable(&key)?);
            let tls = format!("tls \"{chain}\" \"{key}\" {{\n\t\tprotocols tls1.3\n\t}}");
            ("h1 h2", tls)
        }
    };
    let handler = match launch.role.plain() {
        Role::Hello => "respond \"Hello, World!\"".to_owned(),
        _ => format!("root * \"{}\"\n\tfile_server", quotable(&launch.folder)?),
    };
    let values = [
        ("protocols", protocols),
        ("scheme", launch.role.protocol().scheme()),
        ("port", &launch.port.to_string()),
        ("tls", &tls),
        ("handler", &handler),
    ];
    fill(CONF, &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Protocol;

    #[test]
    fn every_role_has_a_complete_configuration() {
        let setup = Setup::of_repository();
        for &role in CADDY.roles {
            let launch = Launch {
                role,
                port: 40_123,
                folder: "/srv/the files".into(),
                scratch: "/srv/scratch".into(),
                connections: 16,
            };
            let text = conf(&setup, &launch).expect("complete");
            let is_tls = role.protocol() == Protocol::Https;
            assert!(text.contains(&format!("{}://:40123 {{", role.protocol().scheme())));
            assert_eq!(text.contains("/key.pem\" {"), is_tls, "{text}");
            assert_eq!(text.contains("protocols h1 h2c\n"), !is_tls, "{text}");
            let reads = role.plain() == Role::Files;
            assert_eq!(
                text.contains("root * \"/srv/the files\"\n"),
                reads,
                "{text}"
            );
        }
    }
}
