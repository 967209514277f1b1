//! The web servers in C: nginx, h2o and lighttpd, from Debian's packages.

use super::{
    super::{Certificate, Kind, Launch, Peer, Role, Setup},
    absolute, asked, descriptors, is_root, make_folder, program,
    template::{fill, quotable},
    write,
};
use std::{path::Path, process::Command};
use xtask::{
    packages::need,
    shell::{Outcome, capture, run},
};

const NGINX_CONF: &str = include_str!("../../../../peers/conf/nginx.conf");
const H2O_CONF: &str = include_str!("../../../../peers/conf/h2o.conf");
const LIGHTTPD_CONF: &str = include_str!("../../../../peers/conf/lighttpd.conf");

/// Minimum number of connections that a server permits in addition to those of the load.
const SPARE_CONNECTIONS_MIN: u32 = 256;

const HELLO: &str = "Hello, World!";
/// The folder of the only file, in the scratch folder.
const HELLO_FOLDER: &str = "hello";

pub(in crate::peers) const NGINX: Peer = Peer {
    name: "nginx",
    kind: Kind::Peer,
    driver: None,
    roles: &[
        Role::Hello,
        Role::Json,
        Role::Files,
        Role::Put,
        Role::PutDurable,
        Role::Mixed,
        Role::TlsHello,
        Role::TlsFiles,
        Role::TlsPut,
        Role::H2Hello,
        Role::H2TlsHello,
        Role::H2Files,
    ],
    configuration: "One worker, no access log, deferred accept, unlimited requests per connection; \
        `return` serves / and /json, sendfile with tcp_nopush and an open_file_cache that checks \
        again after 30 s serves files, and the DAV module, which renames a temporary file into \
        place without a sync, stores PUT. It has no option to sync, so for durable uploads its \
        folders have the attributes S and D (chattr), with which the kernel syncs each write and \
        each rename; /stream is a long sparse file that is read into buffers. \
        TLS by OpenSSL with the defaults of both. `http2` in `listen` for HTTP/2.",
    omits: &[
        "json: the text is constant, not serialised",
        "put: ignores preconditions",
        "accepts a bare LF as line end",
    ],
    install: |_| need(&[("nginx", "nginx-light"), ("chattr", "e2fsprogs")]),
    version: |_| asked(Command::new(program("nginx")?).arg("-v")),
    launch: launch_nginx,
};

/// Makes the kernel sync each change of a folder, and of files that are created in it. A folder in
/// memory has nothing to sync.
fn make_synchronous(folder: &Path) -> Outcome {
    let (_, kind) = capture(Command::new("stat").args(["-f", "-c", "%T"]).arg(folder))?;
    match kind.trim() {
        "tmpfs" => Ok(()),
        // It reports what it cannot do.
        _ => run(Command::new(program("chattr")?).arg("+SD").arg(folder)),
    }
}

fn launch_nginx(setup: &Setup, launch: &Launch) -> Outcome<Command> {
    if launch.role == Role::PutDurable {
        // Uploads are written in the scratch folder, and renamed.
        make_synchronous(&launch.folder)?;
        make_synchronous(&launch.scratch)?;
    }
    let file = absolute(&launch.scratch)?.join("nginx.conf");
    write(&file, &nginx_conf(setup, launch)?)?;
    let mut command = Command::new(program("nginx")?);
    // Errors before it has read its configuration go to standard error, too.
    command
        .args(["-e", "stderr", "-p"])
        .arg(absolute(&launch.scratch)?);
    command.arg("-c").arg(file);
    Ok(command)
}

fn nginx_conf(setup: &Setup, launch: &Launch) -> Outcome<String> {
    // If it is started as root, it stays root. Otherwise it could not read the folder.
    let user = if is_root() { "user root;" } else { "" };
    let writes = matches!(
        launch.role.plain(),
        Role::Put | Role::PutDurable | Role::Mixed
    );
    let certificate = setup.certificate(launch.role)?;
    let tls = if certificate.is_some() { " ssl" } else { "" };
    let protocol = match launch.role.is_http2() {
        true => " http2",
        false => "",
    };
    let certificate = match certificate {
        None => String::new(),
        Some(Certificate { chain, key }) => format!(
            "        ssl_certificate \"{}\";\n        ssl_certificate_key \"{}\";\n        \
             ssl_protocols TLSv1.3;",
            quotable(&chain)?,
            quotable(&key)?
        ),
    };
    let values = [
        ("port", &*launch.port.to_string()),
        ("scratch", &quotable(&launch.scratch)?),
        ("folder", &quotable(&launch.folder)?),
        ("descriptors", &descriptors(launch).to_string()),
        ("connections", &places(launch).to_string()),
        ("user", user),
        ("tls", tls),
        ("protocol", protocol),
        ("certificate", &certificate),
        ("methods", if writes { "PUT DELETE" } else { "off" }),
    ];
    fill(NGINX_CONF, &values)
}

pub(super) const H2O: Peer = Peer {
    name: "h2o",
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
        Role::H2Hello,
        Role::H2TlsHello,
        Role::H2Files,
        Role::H2Echo,
    ],
    configuration: "One thread, no access log, keep-alive 75 s; / is a file of 13 bytes \
        (`file.file`, which needs less CPU than mruby; there are no constant responses), /json and \
        /echo are mruby handlers, files are `file.dir` with its open file cache; /stream is a long \
        sparse file. TLS by OpenSSL in the same process (`neverbleed: OFF`).",
    omits: &[
        "Host is not checked",
        "lenient framing: Content-Length with Transfer-Encoding, two lengths, bare LF, obs-fold",
        "files: ignores If-Match",
        "mixed: no uploads, because it stores no objects",
    ],
    install: |_| need(&[("h2o", "h2o")]),
    version: |_| asked(Command::new(program("h2o")?).arg("--version")),
    launch: launch_h2o,
};

/// Ruby for the two roles that need a handler.
const H2O_JSON: &str = r#"        mruby.handler: |
          lambda do |env|
            body = JSON.generate({"message" => "Hello, World!"})
            [200, {"content-type" => "application/json"}, [body]]
          end"#;
const H2O_ECHO: &str = r#"        mruby.handler: |
          lambda do |env|
            input = env["rack.input"]
            body = input.nil? ? "" : input.read
            [200, {"content-type" => "application/octet-stream"}, [body]]
          end"#;

fn launch_h2o(setup: &Setup, launch: &Launch) -> Outcome<Command> {
    if launch.role.plain() == Role::Hello {
        write_hello(&launch.scratch)?;
    }
    let file = absolute(&launch.scratch)?.join("h2o.conf");
    write(&file, &h2o_conf(setup, launch)?)?;
    let mut command = Command::new(program("h2o")?);
    command.arg("-c").arg(file);
    Ok(command)
}

fn h2o_conf(setup: &Setup, launch: &Launch) -> Outcome<String> {
    let tls = match setup.certificate(launch.role)? {
        None => String::new(),
        Some(Certificate { chain, key }) => format!(
            "  ssl:\n    certificate-file: \"{}\"\n    key-file: \"{}\"\n    \
             neverbleed: OFF",
            quotable(&chain)?,
            quotable(&key)?
        ),
    };
    let handler = match launch.role.plain() {
        Role::Json => H2O_JSON.to_owned(),
        Role::Echo => H2O_ECHO.to_owned(),
        Role::Hello => {
            let file = absolute(&launch.scratch)?.join("hello.txt");
            format!("        file.file: \"{}\"", quotable(&file)?)
        }
        _ => format!("        file.dir: \"{}\"", quotable(&launch.folder)?),
    };
    let values = [
        ("port", &*launch.port.to_string()),
        ("scratch", &quotable(&launch.scratch)?),
        ("connections", &places(launch).to_string()),
        ("user", if is_root() { "user: root" } else { "" }),
        ("tls", &tls),
        ("handler", &handler),
    ];
    fill(H2O_CONF, &values)
}

pub(super) const LIGHTTPD: Peer = Peer {
    name: "lighttpd",
    kind: Kind::Peer,
    driver: None,
    roles: &[
        Role::Hello,
        Role::Files,
        Role::Put,
        Role::TlsHello,
        Role::TlsFiles,
        Role::TlsPut,
    ],
    configuration: "One process, no access log, epoll and sendfile, deferred accept, keep-alive 75 \
        s and 65,535 requests, its maximum; / is a file of 13 bytes, files are checked again after \
        inotify events, and mod_webdav without locks, which renames a temporary file into place \
        without a sync, stores PUT. TLS by mod_openssl.",
    omits: &[
        "lenient framing: obs-fold",
        "no time limit for complete heads",
        "files: ignores If-Match and a second range",
        "put: creates no missing folders",
    ],
    install: |_| {
        need(&[
            ("lighttpd", "lighttpd"),
            ("/usr/lib/lighttpd/mod_webdav.so", "lighttpd-mod-webdav"),
            ("/usr/lib/lighttpd/mod_openssl.so", "lighttpd-mod-openssl"),
        ])
    },
    version: |_| asked(Command::new(program("lighttpd")?).arg("-v")),
    launch: launch_lighttpd,
};

fn launch_lighttpd(setup: &Setup, launch: &Launch) -> Outcome<Command> {
    if launch.role.plain() == Role::Hello {
        let folder = launch.scratch.join(HELLO_FOLDER);
        make_folder(&folder)?;
        write_hello(&folder)?;
    }
    let file = absolute(&launch.scratch)?.join("lighttpd.conf");
    write(&file, &lighttpd_conf(setup, launch)?)?;
    let mut command = Command::new(program("lighttpd")?);
    command.arg("-D").arg("-f").arg(file);
    Ok(command)
}

fn lighttpd_conf(setup: &Setup, launch: &Launch) -> Outcome<String> {
    let folder = match launch.role.plain() {
        Role::Hello => launch.scratch.join(HELLO_FOLDER),
        _ => launch.folder.clone(),
    };
    let mut modules = Vec::new();
    let mut writing = "";
    if launch.role.plain() == Role::Put {
        modules.push("\"mod_webdav\"");
        writing = "webdav.activate = \"enable\"";
    }
    let tls = match setup.certificate(launch.role)? {
        None => String::new(),
        Some(Certificate { chain, key }) => {
            modules.push("\"mod_openssl\"");
            format!(
                "ssl.engine = \"enable\"\nssl.pemfile = \"{}\"\nssl.privkey = \"{}\"",
                quotable(&chain)?,
                quotable(&key)?
            )
        }
    };
    let values = [
        ("port", &*launch.port.to_string()),
        ("scratch", &quotable(&launch.scratch)?),
        ("folder", &quotable(&folder)?),
        ("descriptors", &descriptors(launch).to_string()),
        ("connections", &places(launch).to_string()),
        ("modules", &modules.join(", ")),
        ("writing", writing),
        ("tls", &tls),
    ];
    fill(LIGHTTPD_CONF, &values)
}

/// The response of servers that can only send a file.
fn write_hello(folder: &Path) -> Outcome {
    write(&folder.join("hello.txt"), HELLO)
}

/// The connections that a server permits. There must be spare ones: nginx begins to close idle
/// connections when a sixteenth is left.
pub(super) fn places(launch: &Launch) -> u32 {
    let spare = (launch.connections / 4).max(SPARE_CONNECTIONS_MIN);
    launch.connections + spare
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Protocol;

    fn launch(role: Role) -> Launch {
        Launch {
            role,
            port: 40_123,
            folder: "/srv/the files".into(),
            scratch: "/srv/scratch".into(),
            connections: 5_000,
        }
    }

    /// [`fill`] fails if a template and its values do not match.
    #[test]
    fn every_role_has_a_complete_configuration() {
        type Conf = fn(&Setup, &Launch) -> Outcome<String>;
        let setup = Setup::of_repository();
        let confs: [(&Peer, Conf); 3] = [
            (&NGINX, nginx_conf),
            (&H2O, h2o_conf),
            (&LIGHTTPD, lighttpd_conf),
        ];
        for (peer, conf) in confs {
            for role in peer.roles {
                let text = conf(&setup, &launch(*role)).unwrap();
                assert!(text.contains("40123") && text.contains("6250"), "{text}");
                let reads = matches!(role.plain(), Role::Files | Role::Put | Role::Mixed);
                let names_folder = text.contains("\"/srv/the files\"");
                assert!(!reads || names_folder, "{text}");
                let is_tls = role.protocol() == Protocol::Https;
                assert_eq!(text.contains("/key.pem\""), is_tls, "{text}");
            }
        }
    }

    #[test]
    fn only_the_role_that_writes_may_write() {
        let setup = Setup::of_repository();
        let nginx = |role| nginx_conf(&setup, &launch(role)).unwrap();
        for role in [Role::Put, Role::PutDurable] {
            assert!(nginx(role).contains("dav_methods PUT"));
        }
        assert!(nginx(Role::Files).contains("dav_methods off"));
        let lighttpd = |role| lighttpd_conf(&setup, &launch(role)).unwrap();
        assert!(lighttpd(Role::Put).contains("mod_webdav"));
        assert!(!lighttpd(Role::Files).contains("webdav"));
    }

    #[test]
    fn a_path_with_special_characters_is_rejected() {
        let mut odd = launch(Role::Files);
        odd.folder = "/srv/a\"; root /etc; #".into();
        let setup = Setup::of_repository();
        for conf in [nginx_conf, h2o_conf, lighttpd_conf] {
            assert!(conf(&setup, &odd).is_err());
        }
    }

    #[test]
    fn servers_permit_spare_connections() {
        assert_eq!(places(&launch(Role::Hello)), 6250);
        let few = Launch {
            connections: 1,
            ..launch(Role::Hello)
        };
        assert_eq!(places(&few), 257);
    }
}
