//! Who takes part: built, and started for what will be asked. Must not know how they are loaded.

use runner::server::{Server, free_port};
use std::process::{Command, Stdio};
use xtask::shell::{Outcome, cargo, root};

/// The program with all ways of writing a handler, and its target in the bench's workspace.
const APP: &str = "experiment-coroutine-app";
const MAY: &str = "peer-may-minihttp";

/// How the server is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Async,
    Handler,
    /// A library for threads, on coroutines.
    Coroutines,
    /// The same on threads.
    Threads,
    May,
}

/// What is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ask {
    Hello,
    Call,
    Sleep,
}

impl Ask {
    pub(super) fn path(self) -> &'static str {
        match self {
            Ask::Hello => "/",
            Ask::Call => "/call",
            Ask::Sleep => "/sleep",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Ask::Hello => "hello",
            Ask::Call => "call",
            Ask::Sleep => "sleep",
        }
    }
}

/// One server under measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Who {
    pub(super) way: Way,
    /// Empty where there is no choice.
    pub(super) driver: &'static str,
    pub(super) workers: u32,
}

impl Who {
    pub(super) fn name(self) -> &'static str {
        match self.way {
            Way::Async => "async fn",
            Way::Handler => "coroutine handler",
            Way::Coroutines => "library, coroutines",
            Way::Threads => "library, threads",
            Way::May => "may_minihttp",
        }
    }

    /// Of threads and of may's nothing is to be chosen.
    pub(super) fn driver(self) -> &'static str {
        match self.way {
            Way::Threads | Way::May => "",
            _ => self.driver,
        }
    }

    /// One worker has a core of its own; more have all, and share them with the clients.
    pub(super) fn cores(self) -> &'static str {
        match self.workers {
            1 => runner::server::SERVER_CORE,
            _ => "0-1",
        }
    }

    /// Starts it. `behind` is the port of the server that `/call` asks.
    pub(super) fn start(self, ask: Ask, behind: Option<u16>) -> Outcome<Server> {
        let port = free_port()?;
        let built = |name: &str| Command::new(xtask::shell::built().join(name));
        let app = |mode: &str| {
            let mut app = built(APP);
            app.arg(mode).arg(port.to_string());
            app.args(behind.map(|port| port.to_string()));
            app
        };
        // The library proper is that of the examples; it makes no calls.
        let mut command = match (self.way, ask) {
            (Way::Async, _) => app("async"),
            (Way::Handler, _) => app("handler"),
            (Way::Coroutines, Ask::Hello) => built("examples/http_coroutines"),
            (Way::Threads, Ask::Hello) => built("examples/http_threads"),
            (Way::Coroutines, _) => app("coroutines"),
            (Way::Threads, _) => app("threads"),
            (Way::May, _) => built(MAY),
        };
        if command.get_args().next().is_none() {
            command.arg(port.to_string());
        }
        command.env("ONRUSH_WORKERS", self.workers.to_string());
        command.env("ONRUSH_DRIVER", self.driver);
        if ask == Ask::Sleep {
            command.env("APP_METRICS", "on");
        }
        Server::start_on(&command, port, self.cores(), Stdio::null())
            .map_err(|reason| format!("{}: {reason}", self.name()))
    }
}

/// The server behind, on the clients' core: only the CPU of who asks it counts.
pub(super) fn behind() -> Outcome<Server> {
    let port = free_port()?;
    let mut app = Command::new(xtask::shell::built().join(APP));
    app.args(["async", &port.to_string()]);
    app.env("ONRUSH_WORKERS", "1").env("ONRUSH_DRIVER", "epoll");
    Server::start_on(&app, port, runner::server::CLIENT_CORE, Stdio::null())
}

pub(super) fn build() -> Outcome {
    let bench = "build --release --quiet --manifest-path bench/Cargo.toml -p experiments --bin ";
    xtask::shell::run(&mut cargo(&format!("{bench}{APP}")))?;
    let examples = "build --release --quiet -p onrush --example http_coroutines \
        --example http_threads";
    xtask::shell::run(&mut cargo(examples))?;
    let mut may = cargo("build --release --locked --quiet --bin");
    xtask::shell::run(may.arg(MAY).current_dir(root().join("bench/peers/rust")))
}
