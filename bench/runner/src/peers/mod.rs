//! Every server that is measured: what it is told to do, what it leaves out, how it is had and how
//! it is started. Must not know what is measured of it.

pub(crate) mod onrush;
pub(crate) mod other;
pub(crate) mod rust;

use std::{
    path::{Path, PathBuf},
    process::Command,
};
use xtask::shell::{self, Outcome};

/// What a server is started as.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Role {
    /// `GET /` → `Hello, World!`, text/plain. One worker.
    Hello,
    /// `GET /json` → `{"message":"Hello, World!"}`, serialised for each answer.
    Json,
    /// `POST /echo` → the request's body, of at most 1 MiB.
    Echo,
    /// `GET /NAME` → the file of that name in the folder.
    Files,
    /// `PUT /NAME` stores the body as that file in the folder, so that it outlives the process.
    Put,
    /// As [`Role::Put`], and the answer comes after the file and its name are on the disk.
    PutDurable,
    /// `PUT /NAME` is read to its end and thrown away.
    Sink,
    /// As [`Role::Files`] and [`Role::Put`] in one process; beside them `GET /stream` has a body
    /// that never ends (or a file that is too long to be sent whole), made or read piece by piece.
    Mixed,
}

/// Whether a server is a lower bound, the product, or somebody else's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Limit,
    Onrush,
    Peer,
}

/// The kernel interface of our own servers.
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
    /// As it is chosen by `--peers` and shown, such as `nginx`.
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    /// The driver it has, when it is one of ours.
    pub(crate) driver: Option<Driver>,
    pub(crate) roles: &'static [Role],
    /// What it was told to do, in a sentence, with what differs from its defaults.
    pub(crate) configuration: &'static str,
    /// Work that Onrush does for the same request and this does not; a row with any is marked.
    pub(crate) omits: &'static [&'static str],
    /// Sees to it that it can be started: builds it, or installs it when run as root.
    pub(crate) install: fn(&Setup) -> Outcome,
    /// The version that is installed, for the description of a run.
    pub(crate) version: fn(&Setup) -> Outcome<String>,
    /// The command that starts it in the foreground. It is run pinned to the server's core.
    pub(crate) launch: fn(&Setup, &Launch) -> Outcome<Command>,
}

/// Where things are.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    /// The repository.
    pub(crate) root: PathBuf,
    /// What is built goes here; its `bench/` may be used for anything else a peer needs.
    pub(crate) target: PathBuf,
    /// The folder of `target` that holds the programs: `release` or `debug`.
    pub(crate) profile: &'static str,
}

/// One start of a server.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    pub(crate) role: Role,
    /// To listen on, at 127.0.0.1.
    pub(crate) port: u16,
    /// The folder of the files, when the role has one.
    pub(crate) folder: PathBuf,
    /// An empty folder of its own, for configuration and temporary files. On the same file system
    /// as `folder`, so that a finished upload can be renamed into place.
    pub(crate) scratch: PathBuf,
    /// Connections it must carry at once.
    pub(crate) connections: u32,
}

impl Setup {
    /// Of this repository.
    pub(crate) fn of_repository() -> Setup {
        Setup {
            root: shell::root(),
            target: shell::target(),
            profile: if shell::is_unoptimised() {
                "debug"
            } else {
                "release"
            },
        }
    }

    /// A program that cargo built from a workspace of ours.
    pub(crate) fn built(&self, name: &str) -> PathBuf {
        self.target.join(self.profile).join(name)
    }

    /// Where tools and peers that are no part of our workspaces are installed.
    pub(crate) fn tools(&self) -> PathBuf {
        self.target.join("bench/tools")
    }

    pub(crate) fn sources(&self) -> PathBuf {
        self.root.join("bench/peers")
    }
}

/// All of them: limits first, then ours, then the peers.
pub(crate) fn all() -> Vec<&'static Peer> {
    let lists = [onrush::LIMITS, onrush::OURS, rust::PEERS, other::PEERS];
    lists.into_iter().flatten().collect()
}

/// Whether `path` is a file; for `install`, to see that it is done.
pub(crate) fn is_there(path: &Path) -> bool {
    path.is_file()
}
