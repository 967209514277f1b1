//! Front ends of a bucket: nginx as a proxy, and rclone.

use super::{
    super::{Kind, Launch, Peer, Role, Setup},
    absolute, asked, descriptors, is_root, program,
    template::{fill, quotable},
    web::{NGINX, places},
    write,
};
use std::process::Command;
use xtask::{packages::need, shell::Outcome};

const PROXY_CONF: &str = include_str!("../../../../peers/conf/nginx-proxy.conf");

pub(super) const NGINX_PROXY: Peer = Peer {
    name: "nginx-proxy",
    kind: Kind::Peer,
    driver: None,
    roles: &[Role::Remote, Role::RemotePut],
    configuration: "nginx with one worker, no access log, deferred accept, kept-alive connections \
        to the gateway, bodies passed on as they arrive.",
    omits: &[
        "no signature: the bucket is open to everybody",
        "no digests, no ranges of its own, no metadata, no 201 for a new object",
    ],
    install: NGINX.install,
    version: NGINX.version,
    launch: launch_proxy,
};

fn launch_proxy(setup: &Setup, launch: &Launch) -> Outcome<Command> {
    let scratch = absolute(&launch.scratch)?;
    let file = scratch.join("nginx.conf");
    write(&file, &proxy_conf(setup, launch)?)?;
    let mut command = Command::new(program("nginx")?);
    command.args(["-e", "stderr", "-p"]).arg(scratch);
    command.arg("-c").arg(file);
    Ok(command)
}

fn proxy_conf(setup: &Setup, launch: &Launch) -> Outcome<String> {
    let values = [
        ("port", &*launch.port.to_string()),
        ("scratch", &quotable(&launch.scratch)?),
        ("descriptors", &descriptors(launch).to_string()),
        // Each connection of a client has one to the gateway.
        ("connections", &(2 * places(launch)).to_string()),
        ("user", if is_root() { "user root;" } else { "" }),
        ("gateway", &setup.service()?.gateway.to_string()),
        ("folder", &launch.folder.to_string_lossy()),
    ];
    fill(PROXY_CONF, &values)
}

pub(super) const RCLONE: Peer = Peer {
    name: "rclone",
    kind: Kind::Peer,
    driver: None,
    roles: &[Role::Remote, Role::RemotePut],
    configuration: "`rclone serve http` for GET and `rclone serve webdav` for PUT, without cached \
        files, without a request for the modification time of each object.",
    omits: &["keeps the list of objects for five minutes, so changes by others appear late"],
    install: |_| need(&[("rclone", "rclone")]),
    version: |_| asked(Command::new(program("rclone")?).arg("version")),
    launch: launch_rclone,
};

fn launch_rclone(setup: &Setup, launch: &Launch) -> Outcome<Command> {
    let service = setup.service()?;
    let mut command = Command::new(program("rclone")?);
    match launch.role {
        Role::RemotePut => _ = command.args(["serve", "webdav"]),
        _ => _ = command.args(["serve", "http", "--read-only"]),
    }
    command
        .arg(format!(":s3:{}", launch.folder.display()))
        .args(["--addr", &format!("127.0.0.1:{}", launch.port)])
        .args(["--s3-provider", "Ceph", "--s3-endpoint", &service.url()])
        .args(["--s3-access-key-id", &service.key_id])
        .args(["--s3-secret-access-key", &service.secret])
        .args(["--no-modtime", "--config", "/dev/null"])
        // It refuses to start with a certificate that it does not need.
        .env_remove("AWS_CA_BUNDLE");
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Service;
    use xtask::shell::shown;

    fn setup() -> Setup {
        let mut setup = Setup::of_repository();
        setup.service = Some(Service {
            gateway: ([127, 0, 0, 1], 29_123).into(),
            key_id: "id".to_owned(),
            secret: "secret".to_owned(),
        });
        setup
    }

    fn launch(role: Role) -> Launch {
        Launch {
            role,
            port: 40_123,
            folder: "bucket/a".into(),
            scratch: "/srv/scratch".into(),
            connections: 1_000,
        }
    }

    #[test]
    fn front_ends_know_their_port_the_gateway_and_the_bucket() {
        let text = proxy_conf(&setup(), &launch(Role::Remote)).expect("complete");
        for part in [
            "127.0.0.1:40123",
            "127.0.0.1:29123",
            "service/bucket/a/;",
            " 2512;",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        if program("rclone").is_ok() {
            let command = launch_rclone(&setup(), &launch(Role::RemotePut)).expect("a command");
            let line = shown(&command);
            assert!(
                line.starts_with("rclone serve webdav :s3:bucket/a"),
                "{line}"
            );
            assert!(line.contains("http://127.0.0.1:29123"), "{line}");
        }
    }

    #[test]
    fn without_a_service_nothing_is_started() {
        let none = Setup::of_repository();
        assert!(proxy_conf(&none, &launch(Role::Remote)).is_err());
    }
}
