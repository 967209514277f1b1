//! Servers with several workers: started, each worker's threads found and held to an equal share of
//! CPU, and what each worker did. Must not know how they are loaded.

use crate::{
    quota::{Groups, Quota},
    run::Run,
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

/// Longest wait for workers to be there.
const PATIENCE: Duration = Duration::from_secs(10);

/// A server, and how its connections are placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    /// The placement by its name, and whether live connections are handed over.
    Onrush(&'static str, bool),
    /// The store in C: a listener for each thread.
    Store,
    /// A listener for each process.
    Nginx,
}

impl Who {
    pub(crate) fn name(self) -> String {
        match self {
            Who::Onrush(placement, false) => format!("onrush {placement}"),
            Who::Onrush(placement, true) => format!("onrush {placement}, rebalance"),
            Who::Store => "store in C".to_owned(),
            Who::Nginx => "nginx".to_owned(),
        }
    }
}

/// What is wanted of a server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) who: Who,
    pub(crate) workers: usize,
    /// CPU that `GET /work` takes of Onrush.
    pub(crate) work_us: u32,
    /// The cores all of it runs on, such as `0`.
    pub(crate) cores: &'static str,
    /// Of each worker.
    pub(crate) quota: Option<Quota>,
}

/// A server at work.
pub(crate) struct Workers {
    who: Who,
    // Before the groups, which outlive what is in them.
    pub(crate) server: Server,
    /// Their threads, in their own order.
    pub(crate) threads: Vec<u32>,
    folder: PathBuf,
    _groups: Option<Groups>,
}

/// What one worker did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) connections: u64,
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
}

impl Workers {
    pub(crate) fn start(run: &Run, wanted: &Wanted) -> Outcome<Workers> {
        let folder = run.folder("server")?;
        let port = free_port()?;
        let command = command(wanted, port, &folder)?;
        let out = folder.join("out");
        let out = File::create(&out).map_err(|error| format!("{}: {error}", out.display()))?;
        let server = Server::start_on(&command, port, wanted.cores, Stdio::from(out))?;
        let threads = found(wanted, &server)?;
        let groups = wanted
            .quota
            .map(|quota| Groups::new(server.processes()[0], &threads, quota));
        Ok(Workers {
            who: wanted.who,
            server,
            threads,
            folder,
            _groups: groups.transpose()?,
        })
    }

    /// CPU of each worker so far, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> Vec<u64> {
        self.threads.iter().map(|&thread| cpu_ns(thread)).collect()
    }

    /// The sum over all workers of one of Onrush's figures.
    pub(crate) fn figure(&self, name: &str) -> Outcome<u64> {
        let text = self.get("/metrics")?;
        Ok(by_worker(&text, name).iter().map(|(_, count)| count).sum())
    }

    /// What a path of Onrush answers.
    pub(crate) fn get(&self, path: &str) -> Outcome<String> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        let response = probe(self.server.address, request.as_bytes())?;
        match response.status {
            200 => Ok(String::from_utf8_lossy(&response.body).into_owned()),
            status => Err(format!("{path} was answered {status}")),
        }
    }

    /// What each worker did of `uploads`, all of which were answered. Ends it.
    pub(crate) fn end(self, uploads: u64) -> Outcome<Vec<Done>> {
        let name = self.who.name();
        let mut done = vec![Done::default(); self.threads.len()];
        match self.who {
            Who::Onrush(..) => read_told(&self.get("/workers")?, &mut done),
            Who::Store => {
                let out = self.folder.join("out");
                if !self.server.end() {
                    return Err("the store does not end".to_owned());
                }
                read_told(&fs::read_to_string(out).unwrap_or_default(), &mut done);
            }
            Who::Nginx => {
                let log = self.folder.join("access.log");
                let begun = Instant::now();
                // It answers before it has dropped all of a body, and logs after that.
                while sum(&done) < uploads && begun.elapsed() < PATIENCE {
                    thread::sleep(Duration::from_millis(20));
                    done.fill(Done::default());
                    let log = fs::read_to_string(&log).unwrap_or_default();
                    read_log(&log, &self.threads, &mut done);
                }
            }
        }
        match sum(&done) {
            told if told == uploads => Ok(done),
            told => Err(format!(
                "{name}: its workers know of {told} uploads, not {uploads}"
            )),
        }
    }
}

fn sum(done: &[Done]) -> u64 {
    done.iter().map(|done| done.requests).sum()
}

fn command(wanted: &Wanted, port: u16, folder: &Path) -> Outcome<Command> {
    let workers = wanted.workers.to_string();
    Ok(match wanted.who {
        Who::Onrush(placement, rebalance) => {
            let mut app = Command::new(xtask::shell::built().join("experiment-app"));
            app.arg(port.to_string()).arg(folder);
            app.env("ONRUSH_WORKERS", workers)
                .env("APP_PLACEMENT", placement)
                .env("APP_REBALANCE", if rebalance { "on" } else { "off" })
                .env("APP_WORK_US", wanted.work_us.to_string());
            app
        }
        Who::Store => {
            let mut store = Command::new(xtask::shell::target().join("bench/limit-store"));
            store.args(["-s", "-t", &workers, "-p", &port.to_string()]);
            store.arg(folder);
            store
        }
        Who::Nginx => {
            let conf = folder.join("nginx.conf");
            fs::write(&conf, nginx_conf(folder, port, wanted.workers))
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

/// It reads bodies and drops them (`return` does), 4 KiB at a time, as it always does with what
/// nobody wants; the log tells which process served which connection.
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

/// The threads of the workers, once all are there.
fn found(wanted: &Wanted, server: &Server) -> Outcome<Vec<u32>> {
    let begun = Instant::now();
    loop {
        let processes = server.processes();
        let of_first = threads(processes[0]);
        let all: Vec<u32> = match wanted.who {
            Who::Onrush(..) => {
                let named = |&thread: &u32| {
                    let file = format!("/proc/{}/task/{thread}/comm", processes[0]);
                    Some((thread, fs::read_to_string(file).ok()?))
                };
                in_order(processes[0], of_first.iter().filter_map(named))
            }
            Who::Store => {
                let mut all = of_first;
                all.retain(|&thread| thread != processes[0]);
                all.sort_unstable();
                all
            }
            Who::Nginx => processes[1..].to_vec(),
        };
        if all.len() == wanted.workers {
            return Ok(all);
        }
        if begun.elapsed() > PATIENCE {
            let (name, found) = (wanted.who.name(), all.len());
            return Err(format!(
                "{name} has {found} workers, not {}",
                wanted.workers
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

/// CPU that a thread has used, by the scheduler's account, in nanoseconds; 0 when it has ended.
pub(crate) fn cpu_ns(thread: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{thread}/schedstat")).unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Samples `NAME{…worker="N"…} COUNT` of a Prometheus text.
pub(crate) fn by_worker(text: &str, name: &str) -> Vec<(usize, u64)> {
    let sample = |line: &str| {
        let (labels, count) = line
            .strip_prefix(name)?
            .strip_prefix('{')?
            .split_once("} ")?;
        let (_, rest) = labels.split_once("worker=\"")?;
        let (worker, _) = rest.split_once('"')?;
        Some((worker.parse().ok()?, count.parse().ok()?))
    };
    text.lines().filter_map(sample).collect()
}

/// Lines `worker NUMBER CONNECTIONS UPLOADS BYTES`.
fn read_told(text: &str, done: &mut [Done]) {
    for line in text.lines().filter_map(|line| line.strip_prefix("worker ")) {
        let numbers: Vec<u64> = line.split(' ').filter_map(|n| n.parse().ok()).collect();
        let [worker, connections, requests, bytes] = numbers[..] else {
            continue;
        };
        if let Some(done) = done.get_mut(worker as usize) {
            *done = Done {
                connections,
                requests,
                bytes,
            };
        }
    }
}

/// Lines `PROCESS CONNECTION STATUS`; every upload has as many bytes as every other.
fn read_log(text: &str, processes: &[u32], done: &mut [Done]) {
    let mut seen = HashSet::new();
    for line in text.lines().filter_map(|line| line.strip_suffix(" 204")) {
        let place = line.split_once(' ').and_then(|(process, connection)| {
            let process: u32 = process.parse().ok()?;
            let at = processes.iter().position(|&known| known == process)?;
            Some((at, connection))
        });
        if let Some((at, connection)) = place {
            done[at].requests += 1;
            done[at].bytes += crate::balance::BODY_BYTES;
            done[at].connections += u64::from(seen.insert((at, connection)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_main_thread_is_worker_0_and_others_go_by_their_names() {
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
    fn what_workers_tell_is_read() {
        let mut done = vec![Done::default(); 2];
        read_told("worker 1 4 20 800\nworker 9 1 1 1\nelse\n", &mut done);
        let second = Done {
            connections: 4,
            requests: 20,
            bytes: 800,
        };
        assert_eq!(done, [Done::default(), second]);
        let text = "x{worker=\"0\"} 3\nx_total{worker=\"1\"} 4\n\
            x_total{reason=\"end\",worker=\"12\"} 5\n";
        assert_eq!(by_worker(text, "x_total"), [(1, 4), (12, 5)]);
    }

    #[test]
    fn a_log_is_counted_by_process_and_connection() {
        let mut done = vec![Done::default(); 2];
        let log = "7 1 204\n7 1 204\n7 3 204\n8 2 204\n8 2 400\n9 5 204\n";
        read_log(log, &[7, 8], &mut done);
        assert_eq!((done[0].connections, done[0].requests), (2, 3));
        assert_eq!((done[1].connections, done[1].requests), (1, 1));
    }

    #[test]
    fn nginx_is_told_its_place_and_port() {
        let conf = nginx_conf(Path::new("/srv/x"), 40_123, 8);
        assert!(
            conf.contains("worker_processes 8;") && conf.contains(":40123 "),
            "{conf}"
        );
        assert_eq!(conf.matches('{').count(), conf.matches('}').count());
    }
}
