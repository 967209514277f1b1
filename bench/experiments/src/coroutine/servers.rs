//! Builds the servers of this experiment, and starts them for an endpoint.

use runner::server::{Server, free_port};
use std::process::{Command, Stdio};
use xtask::shell::{Outcome, cargo, root};

/// The program with all styles of handlers.
const APP: &str = "experiment-coroutine-app";
const MAY: &str = "peer-may-minihttp";

/// How the handlers of a server are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// `async fn`.
    Async,
    /// Plain functions that are coroutines.
    Handler,
    /// A library for threads, on coroutines.
    Coroutines,
    /// The same library on threads.
    Threads,
    /// may_minihttp.
    May,
}

/// The resource that clients request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Hello,
    Call,
    Sleep,
}

impl Endpoint {
    pub(super) fn path(self) -> &'static str {
        match self {
            Endpoint::Hello => "/",
            Endpoint::Call => "/call",
            Endpoint::Sleep => "/sleep",
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Endpoint::Hello => "hello",
            Endpoint::Call => "call",
            Endpoint::Sleep => "sleep",
        }
    }
}

/// One server under measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Subject {
    pub(super) style: Style,
    pub(super) driver: &'static str,
    pub(super) workers: u32,
}

impl Subject {
    pub(super) fn name(self) -> &'static str {
        match self.style {
            Style::Async => "async fn",
            Style::Handler => "coroutine handler",
            Style::Coroutines => "library, coroutines",
            Style::Threads => "library, threads",
            Style::May => "may_minihttp",
        }
    }

    /// The driver. Empty for a server without one.
    pub(super) fn driver(self) -> &'static str {
        match self.style {
            Style::Threads | Style::May => "",
            Style::Async | Style::Handler | Style::Coroutines => self.driver,
        }
    }

    /// The cores: one for one worker; otherwise both, which the clients use, too.
    pub(super) fn cores(self) -> &'static str {
        match self.workers {
            1 => runner::server::SERVER_CORE,
            _ => "0-1",
        }
    }

    /// Starts the server. `backend` is the port to which `/call` sends its requests.
    pub(super) fn start(self, endpoint: Endpoint, backend: Option<u16>) -> Outcome<Server> {
        let port = free_port()?;
        let built = |name: &str| Command::new(xtask::shell::built().join(name));
        let app = |mode: &str| {
            let mut app = built(APP);
            app.arg(mode).arg(port.to_string());
            app.args(backend.map(|port| port.to_string()));
            app
        };
        // For hello the library is that of the examples, which makes no calls.
        let mut command = match (self.style, endpoint) {
            (Style::Async, _) => app("async"),
            (Style::Handler, _) => app("handler"),
            (Style::Coroutines, Endpoint::Hello) => built("examples/http_coroutines"),
            (Style::Threads, Endpoint::Hello) => built("examples/http_threads"),
            (Style::Coroutines, _) => app("coroutines"),
            (Style::Threads, _) => app("threads"),
            (Style::May, _) => built(MAY),
        };
        if command.get_args().next().is_none() {
            command.arg(port.to_string());
        }
        command.env("ONRUSH_WORKERS", self.workers.to_string());
        command.env("ONRUSH_DRIVER", self.driver);
        if endpoint == Endpoint::Sleep {
            command.env("APP_METRICS", "on");
        }
        Server::start_on(&command, port, self.cores(), Stdio::null())
            .map_err(|reason| format!("{}: {reason}", self.name()))
    }
}

/// Starts the server that `/call` uses, on the clients' core. Its CPU does not count.
pub(super) fn start_backend() -> Outcome<Server> {
    let port = free_port()?;
    let mut app = Command::new(xtask::shell::built().join(APP));
    app.args(["async", &port.to_string()]);
    app.env("ONRUSH_WORKERS", "1").env("ONRUSH_DRIVER", "epoll");
    Server::start_on(&app, port, runner::server::CLIENT_CORE, Stdio::null())
}

pub(super) fn build() -> Outcome {
    let bench = "build --profile=dist --quiet -p experiments --bin ";
    xtask::shell::run(&mut cargo(&format!("{bench}{APP}")))?;
    let examples = "build --profile=dist --quiet -p onrush --features coroutine \
        --example http_coroutines --example http_threads";
    xtask::shell::run(&mut cargo(examples))?;
    let mut may = cargo("build --profile=dist --locked --quiet --bin");
    xtask::shell::run(may.arg(MAY).current_dir(root().join("bench/peers/rust")))
}
