//! Servers with several workers: starts them, finds the thread of each worker, limits each to an
//! equal share of CPU, and reads how much each worker did.

use crate::{
    quota::{Groups, Quota},
    run::Run,
    scrape,
};
use runner::{
    probe::probe,
    server::{Server, free_port, threads},
};
use std::{
    collections::HashSet,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use xtask::shell::{Outcome, is_executable, which};

/// Longest wait for the threads of all workers, and for the last lines of a log.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server program, and how it places connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    /// The name of the placement, and whether live connections are migrated.
    Onrush(&'static str, bool),
    /// The store in C: one listener for each thread.
    Store,
    /// One listener for each process.
    Nginx,
}

impl ServerKind {
    pub(crate) fn name(self) -> String {
        match self {
            ServerKind::Onrush(placement, false) => format!("onrush {placement}"),
            ServerKind::Onrush(placement, true) => format!("onrush {placement}, rebalance"),
            ServerKind::Store => "store in C".to_owned(),
            ServerKind::Nginx => "nginx".to_owned(),
        }
    }
}

/// How a server is started.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) kind: ServerKind,
    pub(crate) workers: usize,
    /// Microseconds of CPU that `GET /work` of Onrush takes.
    pub(crate) work_us: u32,
    /// The cores of the server, such as `0`.
    pub(crate) cores: &'static str,
    /// The quota of each worker.
    pub(crate) quota: Option<Quota>,
}

/// A running server.
pub(crate) struct Workers {
    kind: ServerKind,
    // Declared before the groups, so that it is dropped before them.
    pub(crate) server: Server,
    /// The threads of the workers, in the order of the workers.
    threads: Vec<u32>,
    folder: PathBuf,
    _groups: Option<Groups>,
}

/// What one worker served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Served {
    pub(crate) connections: u64,
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
}

impl Workers {
    pub(crate) fn start(run: &Run, settings: &Settings) -> Outcome<Workers> {
        let folder = run.folder("server")?;
        let port = free_port()?;
        let command = command(settings, port, &folder)?;
        let out = folder.join("out");
        let out = File::create(&out).map_err(|error| format!("{}: {error}", out.display()))?;
        let server = Server::start_on(&command, port, settings.cores, Stdio::from(out))?;
        let threads = worker_threads(settings, &server)?;
        let groups = settings
            .quota
            .map(|quota| Groups::new(server.processes()[0], &threads, quota));
        Ok(Workers {
            kind: settings.kind,
            server,
            threads,
            folder,
            _groups: groups.transpose()?,
        })
    }

    /// CPU that each worker has used so far, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> Vec<u64> {
        self.threads.iter().map(|&thread| cpu_ns(thread)).collect()
    }

    /// The sum of a metric of Onrush over all workers.
    pub(crate) fn metric(&self, name: &str) -> Outcome<u64> {
        Ok(scrape::sum(&get(&self.server, "/metrics")?, name))
    }

    /// Ends the server. Returns what each worker served of `uploads` requests of `body_bytes` each.
    /// All of them have a response.
    pub(crate) fn end(self, uploads: u64, body_bytes: u64) -> Outcome<Vec<Served>> {
        let name = self.kind.name();
        let mut served = vec![Served::default(); self.threads.len()];
        match self.kind {
            ServerKind::Onrush(..) => read_counts(&get(&self.server, "/workers")?, &mut served),
            ServerKind::Store => {
                let out = self.folder.join("out");
                if !self.server.end() {
                    return Err("the store does not end".to_owned());
                }
                read_counts(&fs::read_to_string(out).unwrap_or_default(), &mut served);
            }
            ServerKind::Nginx => {
                let log = self.folder.join("access.log");
                let begun = Instant::now();
                // nginx responds before it has discarded the whole body, and logs after that.
                while requests(&served) < uploads && begun.elapsed() < PATIENCE {
                    thread::sleep(Duration::from_millis(20));
                    served.fill(Served::default());
                    let log = fs::read_to_string(&log).unwrap_or_default();
                    read_log(&log, &self.threads, body_bytes, &mut served);
                }
            }
        }
        match requests(&served) {
            counted if counted == uploads => Ok(served),
            counted => Err(format!(
                "{name}: its workers counted {counted} uploads, not {uploads}"
            )),
        }
    }
}

/// The content that `server` sends for `path`.
pub(crate) fn get(server: &Server, path: &str) -> Outcome<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    let response = probe(server.address, request.as_bytes())?;
    match response.status {
        200 => Ok(String::from_utf8_lossy(&response.body).into_owned()),
        status => Err(format!("{path}: status {status}")),
    }
}

fn requests(served: &[Served]) -> u64 {
    served.iter().map(|served| served.requests).sum()
}

fn command(settings: &Settings, port: u16, folder: &Path) -> Outcome<Command> {
    let workers = settings.workers.to_string();
    Ok(match settings.kind {
        ServerKind::Onrush(placement, rebalance) => {
            let mut app = Command::new(xtask::shell::built().join("experiment-app"));
            app.arg(port.to_string()).arg(folder);
            app.env("ONRUSH_WORKERS", workers)
                .env("APP_PLACEMENT", placement)
                .env("APP_REBALANCE", if rebalance { "on" } else { "off" })
                .env("APP_WORK_US", settings.work_us.to_string());
            app
        }
        ServerKind::Store => {
            let mut store = Command::new(xtask::shell::target().join("bench/limit-store"));
            store.args(["-s", "-t", &workers, "-p", &port.to_string()]);
            store.arg(folder);
            store
        }
        ServerKind::Nginx => {
            let conf = folder.join("nginx.conf");
            fs::write(&conf, nginx_conf(folder, port, settings.workers))
                .map_err(|error| format!("{}: {error}", conf.display()))?;
            let sbin = || Some(PathBuf::from("/usr/sbin/nginx")).filter(|file| is_executable(file));
            let nginx = which("nginx").or_else(sbin);
            let mut nginx = Command::new(nginx.ok_or("nginx is not installed")?);
            nginx.args(["-e", "stderr", "-p"]).arg(folder);
            nginx.arg("-c").arg(conf);
            nginx
        }
    })
}

/// A configuration that discards bodies, 4 KiB at a time, as `return` does. The log states which
/// process served which connection.
fn nginx_conf(folder: &Path, port: u16, workers: usize) -> String {
    let folder = folder.display();
    format!(
        "daemon off;\nworker_processes {workers};\npid \"{folder}/pid\";\nerror_log stderr crit;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n\
           log_format by_worker '$pid $connection $status';\n\
           access_log \"{folder}/access.log\" by_worker;\n\
           client_body_temp_path \"{folder}/body\";\n\
           proxy_temp_path \"{folder}/proxy\";\n\
           fastcgi_temp_path \"{folder}/fastcgi\";\n\
           uwsgi_temp_path \"{folder}/uwsgi\";\n\
           scgi_temp_path \"{folder}/scgi\";\n\
           client_max_body_size 0;\n\
           keepalive_requests 1000000;\n\
           lingering_time 1h;\n\
           lingering_timeout 1m;\n\
           server {{\n\
             listen 127.0.0.1:{port} backlog=4096 reuseport;\n\
             location / {{ return 204; }}\n\
           }}\n\
         }}\n"
    )
}

/// Waits until all workers have started, and returns their threads.
fn worker_threads(settings: &Settings, server: &Server) -> Outcome<Vec<u32>> {
    let begun = Instant::now();
    loop {
        let processes = server.processes();
        let of_first = threads(processes[0]);
        let all: Vec<u32> = match settings.kind {
            ServerKind::Onrush(..) => {
                let named = |&thread: &u32| {
                    let file = format!("/proc/{}/task/{thread}/comm", processes[0]);
                    Some((thread, fs::read_to_string(file).ok()?))
                };
                in_order(processes[0], of_first.iter().filter_map(named))
            }
            ServerKind::Store => {
                let mut all = of_first;
                all.retain(|&thread| thread != processes[0]);
                all.sort_unstable();
                all
            }
            ServerKind::Nginx => processes[1..].to_vec(),
        };
        if all.len() == settings.workers {
            return Ok(all);
        }
        if begun.elapsed() > PATIENCE {
            let (name, found) = (settings.kind.name(), all.len());
            return Err(format!(
                "{name} has {found} workers, not {}",
                settings.workers
            ));
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The threads of Onrush's workers, in the order of the workers. `named` is each thread of the
/// process `process` with its name (`/proc/PID/task/TID/comm`, proc(5)).
///
/// The thread that calls `serve` is worker 0. Here that is the main thread, which has the number
/// and the name of the process. Each other worker N has a thread named `onrush-N`.
fn in_order(process: u32, named: impl Iterator<Item = (u32, String)>) -> Vec<u32> {
    let number = |(thread, name): (u32, String)| match thread == process {
        true => Some((0, thread)),
        false => {
            let number = name.trim_end().strip_prefix("onrush-")?.parse().ok()?;
            Some((number, thread))
        }
    };
    let mut numbered: Vec<(usize, u32)> = named.filter_map(number).collect();
    numbered.sort_unstable();
    numbered.into_iter().map(|(_, thread)| thread).collect()
}

/// CPU that a thread has used, in nanoseconds, from `/proc/TID/schedstat`. 0 after it has ended.
pub(crate) fn cpu_ns(thread: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Reads lines `worker NUMBER CONNECTIONS UPLOADS BYTES`.
fn read_counts(text: &str, all: &mut [Served]) {
    for line in text.lines().filter_map(|line| line.strip_prefix("worker ")) {
        let numbers: Vec<u64> = line.split(' ').filter_map(|n| n.parse().ok()).collect();
        let [worker, connections, requests, bytes] = numbers[..] else {
            continue;
        };
        if let Some(served) = all.get_mut(worker as usize) {
            *served = Served {
                connections,
                requests,
                bytes,
            };
        }
    }
}

/// Counts lines `PROCESS CONNECTION STATUS` of uploads of `body_bytes` each.
fn read_log(text: &str, processes: &[u32], body_bytes: u64, all: &mut [Served]) {
    let mut seen = HashSet::new();
    for line in text.lines().filter_map(|line| line.strip_suffix(" 204")) {
        let place = line.split_once(' ').and_then(|(process, connection)| {
            let process: u32 = process.parse().ok()?;
            let at = processes.iter().position(|&known| known == process)?;
            Some((at, connection))
        });
        if let Some((at, connection)) = place {
            all[at].requests += 1;
            all[at].bytes += body_bytes;
            all[at].connections += u64::from(seen.insert((at, connection)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_thread_is_worker_0_and_names_number_the_others() {
        let named = [
            (70, "onrush-2\n"),
            (40, "experiment-app\n"),
            (71, "onrush-blocking\n"),
            (42, "onrush-1\n"),
            (41, "other\n"),
        ];
        let named = named.map(|(thread, name)| (thread, name.to_owned()));
        assert_eq!(in_order(40, named.into_iter()), [40, 42, 70]);
    }

    #[test]
    fn counts_of_workers_are_read() {
        let mut served = vec![Served::default(); 2];
        read_counts("worker 1 4 20 800\nworker 9 1 1 1\nelse\n", &mut served);
        let second = Served {
            connections: 4,
            requests: 20,
            bytes: 800,
        };
        assert_eq!(served, [Served::default(), second]);
    }

    #[test]
    fn a_log_is_counted_by_process_and_connection() {
        let mut served = vec![Served::default(); 2];
        let log = "7 1 204\n7 1 204\n7 3 204\n8 2 204\n8 2 400\n9 5 204\n";
        read_log(log, &[7, 8], 10, &mut served);
        assert_eq!((served[0].connections, served[0].requests), (2, 3));
        assert_eq!((served[1].connections, served[1].requests), (1, 1));
        assert_eq!((served[0].bytes, served[1].bytes), (30, 10));
    }

    #[test]
    fn the_configuration_has_workers_and_port() {
        let conf = nginx_conf(Path::new("/srv/x"), 40_123, 8);
        assert!(
            conf.contains("worker_processes 8;") && conf.contains(":40123 "),
            "{conf}"
        );
        assert_eq!(conf.matches('{').count(), conf.matches('}').count());
    }
}
