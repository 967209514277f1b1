//! All measured servers: their configuration, the work that they omit, and how to install and start
//! them.

mod certificate;
pub(crate) mod onrush;
pub(crate) mod other;
pub(crate) mod rust;

pub(crate) use certificate::Certificate;

use crate::{backend::Service, client::Protocol};
use std::{
    path::{Path, PathBuf},
    process::Command,
};
use xtask::shell::{self, Outcome};

/// The role in which a server is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// `GET /` → `Hello, World!`, text/plain. One worker.
    Hello,
    /// `GET /json` → `{"message":"Hello, World!"}`, serialised for each response.
    Json,
    /// `POST /echo` → the request's body, of at most 1 MiB.
    Echo,
    /// The router of the programs on axum: [`Role::Hello`], and `POST /json` → the JSON of the
    /// body.
    Axum,
    /// `GET /NAME` → the file of that name in the folder.
    Files,
    /// `PUT /NAME` stores the body as that file in the folder, so that it outlives the process.
    Put,
    /// As [`Role::Put`], but the file and its name are on the disk before the response is sent.
    PutDurable,
    /// `PUT /NAME` receives the body and discards it.
    Sink,
    /// [`Role::Files`] and [`Role::Put`] in one process. In addition, `GET /stream` has an endless
    /// body, which is generated piece by piece, or read from a file that is too long to be sent
    /// completely.
    Mixed,
    /// [`Role::Hello`] over TLS 1.3. Sessions can be resumed.
    TlsHello,
    /// [`Role::Files`] over TLS 1.3.
    TlsFiles,
    /// [`Role::Put`] over TLS 1.3.
    TlsPut,
    /// [`Role::Hello`] over HTTP/2 without TLS, by prior knowledge.
    H2Hello,
    /// [`Role::TlsHello`] over HTTP/2.
    H2TlsHello,
    /// [`Role::Files`] over HTTP/2 without TLS.
    H2Files,
    /// [`Role::Sink`] over HTTP/2 without TLS.
    H2Sink,
    /// [`Role::Echo`] over HTTP/2 without TLS.
    H2Echo,
    /// `GET /NAME` → the object of that name in the bucket and folder that [`Launch::folder`] is.
    Remote,
    /// `PUT /NAME` stores the body as that object.
    RemotePut,
}

impl Role {
    /// The same role over HTTP/1.1 without TLS.
    pub(crate) fn plain(self) -> Role {
        match self {
            Role::TlsHello | Role::H2Hello | Role::H2TlsHello => Role::Hello,
            Role::TlsFiles | Role::H2Files => Role::Files,
            Role::TlsPut => Role::Put,
            Role::H2Sink => Role::Sink,
            Role::H2Echo => Role::Echo,
            plain => plain,
        }
    }

    /// Whether its clients speak HTTP/2.
    pub(crate) fn is_http2(self) -> bool {
        matches!(
            self,
            Role::H2Hello | Role::H2TlsHello | Role::H2Files | Role::H2Sink | Role::H2Echo
        )
    }

    /// Whether the objects are in a bucket of a service.
    pub(crate) fn is_remote(self) -> bool {
        matches!(self, Role::Remote | Role::RemotePut)
    }

    pub(crate) fn protocol(self) -> Protocol {
        match self {
            Role::TlsHello | Role::TlsFiles | Role::TlsPut | Role::H2TlsHello => Protocol::Https,
            _ => Protocol::Http,
        }
    }
}

/// Whether a server is a lower bound, Onrush, or another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Limit,
    Onrush,
    Peer,
}

/// The kernel interface of Onrush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Driver {
    Epoll,
    Uring,
}

impl Driver {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Driver::Epoll => "epoll",
            Driver::Uring => "io_uring",
        }
    }
}

/// One server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// The name for `--peers` and in tables, such as `nginx`.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// The driver, for Onrush and for limits of one driver.
    pub(crate) driver: Option<Driver>,
    pub(crate) roles: &'static [Role],
    /// Its configuration in one sentence, with all differences from its defaults.
    pub(crate) configuration: &'static str,
    /// Work that Onrush does for the same request and this server does not. Tables mark such
    /// servers. A text that begins with a role's name and a colon, such as `echo: `, applies to
    /// that role only.
    pub(crate) omits: &'static [&'static str],
    /// Builds it, or installs it if run as root.
    pub(crate) install: fn(&Setup) -> Outcome,
    /// The installed version, for the description of a run.
    pub(crate) version: fn(&Setup) -> Outcome<String>,
    /// The command that starts it in the foreground.
    pub(crate) launch: fn(&Setup, &Launch) -> Outcome<Command>,
}

/// The folders of the repository.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The repository.
    pub(crate) root: PathBuf,
    /// The target folder. Its `bench/` is for other files of peers.
    pub(crate) target: PathBuf,
    /// The folder of `target` with the programs: `release` or `debug`.
    pub(crate) profile: &'static str,
    /// The service of [`Role::Remote`], while it runs.
    pub(crate) service: Option<Service>,
}

/// The parameters of a server's start.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) role: Role,
    /// The port to listen on, at 127.0.0.1.
    pub(crate) port: u16,
    /// The folder of the files, if the role has one; a bucket and a folder for remote roles.
    pub(crate) folder: PathBuf,
    /// An empty folder for configuration and temporary files. It is on the same file system as
    /// `folder`, so that a complete upload can be renamed into place.
    pub(crate) scratch: PathBuf,
    /// Number of simultaneous connections.
    pub(crate) connections: u32,
}

impl Setup {
    /// The folders of this repository.
    pub(crate) fn of_repository() -> Setup {
        Setup {
            root: shell::root(),
            target: shell::target(),
            profile: if shell::is_unoptimised() {
                "debug"
            } else {
                "dist"
            },
            service: None,
        }
    }

    /// The running service.
    pub(crate) fn service(&self) -> Outcome<&Service> {
        let service = self.service.as_ref();
        service.ok_or_else(|| "no service of objects runs".to_owned())
    }

    /// A program that cargo built from a workspace of this repository.
    pub(crate) fn built(&self, name: &str) -> PathBuf {
        self.target.join(self.profile).join(name)
    }

    /// The certificate of a server in `role`. `None` without TLS.
    pub(crate) fn certificate(&self, role: Role) -> Outcome<Option<Certificate>> {
        match role.protocol() {
            Protocol::Http => Ok(None),
            Protocol::Https => Certificate::of(self).map(Some),
        }
    }

    /// Adds `--tls-cert FILE --tls-key FILE` to `command` if `role` has TLS.
    pub(crate) fn add_certificate(&self, role: Role, command: &mut Command) -> Outcome {
        if let Some(Certificate { chain, key }) = self.certificate(role)? {
            command.arg("--tls-cert").arg(chain);
            command.arg("--tls-key").arg(key);
        }
        Ok(())
    }

    pub(crate) fn sources(&self) -> PathBuf {
        self.root.join("bench/peers")
    }
}

/// All servers: limits, Onrush, peers.
pub(crate) fn all() -> Vec<&'static Peer> {
    let lists = [onrush::LIMITS, onrush::OURS, rust::PEERS, other::PEERS];
    lists.into_iter().flatten().collect()
}

/// The command that starts nginx, which is installed first if needed. It serves `folder`, stores
/// PUTs there, and keeps its own files in the empty folder `scratch`.
pub fn nginx(folder: &Path, scratch: &Path, port: u16, connections: u32) -> Outcome<Command> {
    let setup = Setup::of_repository();
    (other::NGINX.install)(&setup)?;
    let launch = Launch {
        role: Role::Mixed,
        port,
        folder: folder.to_owned(),
        scratch: scratch.to_owned(),
        connections,
    };
    (other::NGINX.launch)(&setup, &launch)
}

/// Whether `path` is a file.
pub(crate) fn is_there(path: &Path) -> bool {
    path.is_file()
}
