//! One trial: starts a server, measures its latency without and with the background load, and stops
//! it.

use super::super::latency::{Asked, CONNECTIONS, Priority, Window};
use crate::{
    bench::Bench,
    peers::{Launch, Role, Setup},
    plan::Subject,
    probe::probe,
    server::{CLIENT_CORE, Server, free_port, pinned},
    work::Place,
};
use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    sync::mpsc::{self, Receiver},
    thread,
    time::Duration,
};
use xtask::shell::{Outcome, cannot_run};

/// The small GETs.
const ASKED: Asked = Asked {
    path: "/small",
    length: SMALL_BYTES,
};

const SMALL_BYTES: u64 = 1024;

/// Length of the file that replaces the endless response of servers that have none.
const STREAM_BYTES: u64 = 1 << 42;

/// Longest wait for a line of the background load, which may run only while its core is idle.
const PATIENCE: Duration = Duration::from_secs(20);

/// Estimated time for the start and the stop.
const OVERHEAD: Duration = Duration::from_secs(3);

/// Numbers of clients of the background load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mix {
    pub(super) uploads: u32,
    pub(super) streams: u32,
    pub(super) downloads: u32,
    pub(super) pipelines: u32,
}

impl Mix {
    pub(super) const NONE: Mix = Mix {
        uploads: 0,
        streams: 0,
        downloads: 0,
        pipelines: 0,
    };
}

/// The parameters of a trial.
pub(super) struct Trial {
    pub(super) mix: Mix,
    /// Duration of the window without the background.
    pub(super) alone: Duration,
    /// Duration of the window with the background.
    pub(super) loaded: Duration,
    /// Length of downloads and uploads.
    pub(super) large_bytes: u64,
}

/// The result of a trial.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) alone: Window,
    pub(super) loaded: Window,
    /// Throughput of the background.
    pub(super) moved: Moved,
    /// CPU of the server, as a share of a core.
    pub(super) cpu_alone: f64,
    pub(super) cpu_loaded: f64,
    /// The part of the mix that the server does not support.
    pub(super) without: Option<String>,
}

impl Sample {
    /// Whether the generator delayed requests. Such a sample does not describe the server.
    pub(super) fn is_late(&self) -> bool {
        self.alone.is_late || self.loaded.is_late
    }

    /// Delay of the generator (99th percentile) in the worse of the two windows.
    pub(super) fn late_us(&self) -> f64 {
        self.alone.late_us.max(self.loaded.late_us)
    }
}

/// Throughput of the background.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Moved {
    pub(super) uploaded_bytes_per_s: f64,
    pub(super) streamed_bytes_per_s: f64,
    pub(super) downloaded_bytes_per_s: f64,
    pub(super) pipelined_per_s: f64,
    /// The number of failed transfers, and the reason of the last failure.
    pub(super) failures: f64,
    pub(super) failure: String,
    pub(super) clients_without_progress: f64,
}

impl Moved {
    /// The throughput between two snapshots.
    fn between(first: &Value, last: &Value) -> Moved {
        let of = |snapshot: &Value, name: &str| snapshot[name].as_f64().unwrap_or(f64::NAN);
        let grown = |name: &str| of(last, name) - of(first, name);
        let seconds = grown("seconds");
        Moved {
            uploaded_bytes_per_s: grown("uploaded_bytes") / seconds,
            streamed_bytes_per_s: grown("streamed_bytes") / seconds,
            downloaded_bytes_per_s: grown("downloaded_bytes") / seconds,
            pipelined_per_s: grown("pipelined_requests") / seconds,
            failures: of(last, "failures"),
            failure: last["failure"].as_str().unwrap_or_default().to_owned(),
            clients_without_progress: of(last, "clients_without_progress"),
        }
    }

    /// Content of all transfers together, in MB per second.
    pub(super) fn mb_per_s(&self) -> f64 {
        let bytes = self.uploaded_bytes_per_s
            + self.streamed_bytes_per_s
            + self.downloaded_bytes_per_s
            + self.pipelined_per_s * SMALL_BYTES as f64;
        bytes / 1e6
    }
}

impl Trial {
    /// Estimated duration of a trial.
    pub(super) fn time(&self) -> Duration {
        self.alone + self.loaded + OVERHEAD
    }

    /// Measures `subject`, from the build in the folder `target` if that is given.
    pub(super) fn sample(
        &self,
        bench: &mut Bench,
        subject: &Subject,
        target: Option<&Path>,
    ) -> Outcome<Sample> {
        let mut setup = bench.setup.clone();
        if let Some(target) = target {
            setup.target = target.to_owned();
        }
        let folder = bench.work.mixed(self.large_bytes, STREAM_BYTES)?;
        let scratch = bench.work.empty(Place::Memory)?;
        let sampled = self.sample_in(bench, &setup, subject, &folder, &scratch);
        // The folders contain gigabytes of memory, including incomplete uploads.
        for folder in [folder, scratch] {
            let removed = fs::remove_dir_all(&folder);
            removed.map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        sampled.map_err(|reason| format!("{}: {reason}", subject.label))
    }

    fn sample_in(
        &self,
        bench: &Bench,
        setup: &Setup,
        subject: &Subject,
        folder: &Path,
        scratch: &Path,
    ) -> Outcome<Sample> {
        let launch = Launch {
            role: Role::Mixed,
            port: free_port()?,
            folder: folder.to_owned(),
            scratch: scratch.to_owned(),
            connections: CONNECTIONS + 64,
        };
        let command = (subject.peer.launch)(setup, &launch)?;
        let server = Server::start(&command, launch.port)?;
        let priority = Priority::permitted();
        let (mix, without) = self.possible(&server)?;
        let tools = &bench.setup;
        let (alone, cpu_alone) = ASKED.measure(tools, &server, priority, self.alone)?;
        let mut background =
            Background::start(tools, server.address, priority, mix, self.large_bytes)?;
        let first = background.snapshot()?;
        let (loaded, cpu_loaded) = ASKED.measure(tools, &server, priority, self.loaded)?;
        let last = background.snapshot()?;
        Ok(Sample {
            alone,
            loaded,
            moved: Moved::between(&first, &last),
            cpu_alone,
            cpu_loaded,
            without,
        })
    }

    /// The part of the mix that the server supports, and a text about the rest.
    fn possible(&self, server: &Server) -> Outcome<(Mix, Option<String>)> {
        let small = probe(
            server.address,
            b"GET /small HTTP/1.1\r\nHost: localhost\r\n\r\n",
        )?;
        if (small.status, small.body.len() as u64) != (200, SMALL_BYTES) {
            let length = small.body.len();
            return Err(format!(
                "GET /small: status {} with {length} bytes",
                small.status
            ));
        }
        let put = b"PUT /upload-0 HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx";
        let refused = match self.mix.uploads {
            0 => None,
            _ => Some(probe(server.address, put)?.status).filter(|status| status / 100 != 2),
        };
        match refused {
            None => Ok((self.mix, None)),
            Some(status) => {
                let mix = Mix {
                    uploads: 0,
                    ..self.mix
                };
                let reason = format!("PUT has status {status}");
                match mix == Mix::NONE {
                    true => Err(reason),
                    false => Ok((mix, Some(format!("without uploads: {reason}")))),
                }
            }
        }
    }
}

/// The background load. It is killed when this is dropped.
struct Background {
    child: Child,
    requests: ChildStdin,
    lines: Receiver<String>,
}

impl Background {
    /// Starts it and waits until all transfers have begun.
    fn start(
        tools: &Setup,
        address: SocketAddr,
        priority: Priority,
        mix: Mix,
        upload_bytes: u64,
    ) -> Outcome<Background> {
        let mut command = Command::new(tools.built("background-load"));
        command.arg(address.to_string());
        for (name, value) in [
            ("--uploads", u64::from(mix.uploads)),
            ("--upload-bytes", upload_bytes),
            ("--streams", mix.streams.into()),
            ("--downloads", mix.downloads.into()),
            ("--pipelines", mix.pipelines.into()),
        ] {
            command.args([name, &value.to_string()]);
        }
        let mut command = pinned(&priority.background(command), CLIENT_CORE);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|error| cannot_run(&command, &error))?;
        let requests = child.stdin.take().ok_or("no pipe")?;
        let out = BufReader::new(child.stdout.take().ok_or("no pipe")?);
        let (send, lines) = mpsc::channel();
        // The thread ends with the pipe.
        thread::spawn(move || {
            let lines = out.lines().map_while(Result::ok);
            lines
                .map(|line| send.send(line))
                .take_while(Result::is_ok)
                .for_each(drop);
        });
        let background = Background {
            child,
            requests,
            lines,
        };
        match background.line()?.as_str() {
            "ready" => Ok(background),
            line => Err(format!("the background load printed '{line}'")),
        }
    }

    fn line(&self) -> Outcome<String> {
        let line = self.lines.recv_timeout(PATIENCE);
        line.map_err(|error| format!("the background load prints nothing: {error}"))
    }

    /// The totals so far.
    fn snapshot(&mut self) -> Outcome<Value> {
        let sent = self.requests.write_all(b"\n");
        sent.map_err(|error| format!("the background load ended: {error}"))?;
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|error| format!("{error}: {line}"))
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn throughput_is_the_growth_between_two_snapshots() {
        let snapshot = |seconds: f64, bytes: u64, requests: u64| {
            json!({
                "seconds": seconds, "uploaded_bytes": bytes, "streamed_bytes": 0,
                "downloaded_bytes": 2 * bytes, "pipelined_requests": requests,
                "failures": 1, "failure": "closed", "clients_without_progress": 2,
            })
        };
        let moved = Moved::between(
            &snapshot(1.0, 1_000_000, 0),
            &snapshot(3.0, 5_000_000, 25_000),
        );
        assert_eq!(moved.uploaded_bytes_per_s, 2e6);
        assert_eq!(moved.pipelined_per_s, 12_500.0);
        assert!((moved.mb_per_s() - 18.8).abs() < 1e-9);
        assert_eq!((moved.failures, moved.clients_without_progress), (1.0, 2.0));
        assert_eq!(moved.failure, "closed");
    }
}
