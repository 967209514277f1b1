//! The web servers in C: nginx, h2o and lighttpd, from Debian's packages.

use super::{
    super::{Kind, Launch, Peer, Role, Setup},
    absolute, asked, descriptors, is_root, make_folder, program,
    template::{fill, quotable},
    write,
};
use std::{path::Path, process::Command};
use xtask::{packages::need, shell::Outcome};

const NGINX_CONF: &str = include_str!("../../../../peers/conf/nginx.conf");
const H2O_CONF: &str = include_str!("../../../../peers/conf/h2o.conf");
const LIGHTTPD_CONF: &str = include_str!("../../../../peers/conf/lighttpd.conf");

/// Minimum number of connections that a server permits in addition to those of the load.
const SPARE_CONNECTIONS_MIN: u32 = 256;

const HELLO: &str = "Hello, World!";
/// The folder of the only file, in the scratch folder.
const HELLO_FOLDER: &str = "hello";

pub(super) const NGINX: Peer = Peer {
    name: "nginx",
    kind: Kind::Peer,
    driver: None,
    roles: &[Role::Hello, Role::Json, Role::Files, Role::Put, Role::Mixed],
    configuration: "One worker, no access log, deferred accept, unlimited requests per connection; \
        `return` serves / and /json, sendfile with tcp_nopush and an open_file_cache that checks \
        again after 30 s serves files, and the DAV module, which renames a temporary file into \
        place without a sync, stores PUT; /stream is a long sparse file that is read into buffers.",
    omits: &[
        "json: the text is constant, not serialised",
        "put: ignores preconditions",
        "accepts a bare LF as line end",
    ],
    install: |_| need(&[("nginx", "nginx-light")]),
    version: |_| asked(Command::new(program("nginx")?).arg("-v")),
    launch: launch_nginx,
};

fn launch_nginx(_: &Setup, launch: &Launch) -> Outcome<Command> {
    let file = absolute(&launch.scratch)?.join("nginx.conf");
    write(&file, &nginx_conf(launch)?)?;
    let mut command = Command::new(program("nginx")?);
    // Errors before it has read its configuration go to standard error, too.
    command
        .args(["-e", "stderr", "-p"])
        .arg(absolute(&launch.scratch)?);
    command.arg("-c").arg(file);
    Ok(command)
}

fn nginx_conf(launch: &Launch) -> Outcome<String> {
    // If it is started as root, it stays root. Otherwise it could not read the folder.
    let user = if is_root() { "user root;" } else { "" };
    let writes = matches!(launch.role, Role::Put | Role::Mixed);
    let values = [
        ("port", &*launch.port.to_string()),
        ("scratch", &quotable(&launch.scratch)?),
        ("folder", &quotable(&launch.folder)?),
        ("descriptors", &descriptors(launch).to_string()),
        ("connections", &places(launch)),
        ("user", user),
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
    ],
    configuration: "One thread, no access log, keep-alive 75 s; / is a file of 13 bytes \
        (`file.file`, which needs less CPU than mruby; there are no constant responses), /json and \
        /echo are mruby handlers, files are `file.dir` with its open file cache; /stream is a long \
        sparse file.",
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
            body = env["rack.input"].read
            [200, {"content-type" => "application/octet-stream"}, [body]]
          end"#;

fn launch_h2o(_: &Setup, launch: &Launch) -> Outcome<Command> {
    if launch.role == Role::Hello {
        write_hello(&launch.scratch)?;
    }
    let file = absolute(&launch.scratch)?.join("h2o.conf");
    write(&file, &h2o_conf(launch)?)?;
    let mut command = Command::new(program("h2o")?);
    command.arg("-c").arg(file);
    Ok(command)
}

fn h2o_conf(launch: &Launch) -> Outcome<String> {
    let handler = match launch.role {
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
        ("connections", &places(launch)),
        ("user", if is_root() { "user: root" } else { "" }),
        ("handler", &handler),
    ];
    fill(H2O_CONF, &values)
}

pub(super) const LIGHTTPD: Peer = Peer {
    name: "lighttpd",
    kind: Kind::Peer,
    driver: None,
    roles: &[Role::Hello, Role::Files, Role::Put],
    configuration: "One process, no access log, epoll and sendfile, deferred accept, keep-alive 75 \
        s and 65,535 requests, its maximum; / is a file of 13 bytes, files are checked again after \
        inotify events, and mod_webdav without locks, which renames a temporary file into place \
        without a sync, stores PUT.",
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
        ])
    },
    version: |_| asked(Command::new(program("lighttpd")?).arg("-v")),
    launch: launch_lighttpd,
};

fn launch_lighttpd(_: &Setup, launch: &Launch) -> Outcome<Command> {
    if launch.role == Role::Hello {
        let folder = launch.scratch.join(HELLO_FOLDER);
        make_folder(&folder)?;
        write_hello(&folder)?;
    }
    let file = absolute(&launch.scratch)?.join("lighttpd.conf");
    write(&file, &lighttpd_conf(launch)?)?;
    let mut command = Command::new(program("lighttpd")?);
    command.arg("-D").arg("-f").arg(file);
    Ok(command)
}

fn lighttpd_conf(launch: &Launch) -> Outcome<String> {
    let folder = match launch.role {
        Role::Hello => launch.scratch.join(HELLO_FOLDER),
        _ => launch.folder.clone(),
    };
    let (modules, writing) = match launch.role {
        Role::Put => ("\"mod_webdav\"", "webdav.activate = \"enable\""),
        _ => ("", ""),
    };
    let values = [
        ("port", &*launch.port.to_string()),
        ("scratch", &quotable(&launch.scratch)?),
        ("folder", &quotable(&folder)?),
        ("descriptors", &descriptors(launch).to_string()),
        ("connections", &places(launch)),
        ("modules", modules),
        ("writing", writing),
    ];
    fill(LIGHTTPD_CONF, &values)
}

/// The response of servers that can only send a file.
fn write_hello(folder: &Path) -> Outcome {
    write(&folder.join("hello.txt"), HELLO)
}

/// The connections that a server permits. There must be spare ones: nginx begins to close idle
/// connections when a sixteenth is left.
fn places(launch: &Launch) -> String {
    let spare = (launch.connections / 4).max(SPARE_CONNECTIONS_MIN);
    (launch.connections + spare).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

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
        type Conf = fn(&Launch) -> Outcome<String>;
        let confs: [(&Peer, Conf); 3] = [
            (&NGINX, nginx_conf),
            (&H2O, h2o_conf),
            (&LIGHTTPD, lighttpd_conf),
        ];
        for (peer, conf) in confs {
            for role in peer.roles {
                let text = conf(&launch(*role)).unwrap();
                assert!(text.contains("40123") && text.contains("6250"), "{text}");
                let reads = matches!(role, Role::Files | Role::Put | Role::Mixed);
                let names_folder = text.contains("\"/srv/the files\"");
                assert!(!reads || names_folder, "{text}");
            }
        }
    }

    #[test]
    fn only_the_role_that_writes_may_write() {
        let nginx = |role| nginx_conf(&launch(role)).unwrap();
        assert!(nginx(Role::Put).contains("dav_methods PUT"));
        assert!(nginx(Role::Files).contains("dav_methods off"));
        let lighttpd = |role| lighttpd_conf(&launch(role)).unwrap();
        assert!(lighttpd(Role::Put).contains("mod_webdav"));
        assert!(!lighttpd(Role::Files).contains("webdav"));
    }

    #[test]
    fn a_path_with_special_characters_is_rejected() {
        let mut odd = launch(Role::Files);
        odd.folder = "/srv/a\"; root /etc; #".into();
        assert!(nginx_conf(&odd).is_err() && lighttpd_conf(&odd).is_err());
        assert!(h2o_conf(&odd).is_err());
    }

    #[test]
    fn servers_permit_spare_connections() {
        assert_eq!(places(&launch(Role::Hello)), "6250");
        let few = Launch {
            connections: 1,
            ..launch(Role::Hello)
        };
        assert_eq!(places(&few), "257");
    }
}
