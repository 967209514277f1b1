//! Denial of service: how long an established and a new connection wait for a response while
//! thousands of clients use as many resources as the server permits, and after they have closed.
//!
//! The server is the binary `onrush` with one worker and its defaults. All clients share the other
//! core. Each attack has its own server. The attacks do not depend on the defences of the server.

mod clients;
mod probe;

use crate::{
    client::pin_to_client_core,
    run::{Effort, Run, Target},
    table::Table,
};
use clients::{Attack, Progress};
use probe::Times;
use runner::server::{SERVER_CORE, Server, free_port};
use rustix::process::setpriority_process;
use std::{
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};
use xtask::shell::{Outcome, cargo};

/// The targets for the longest response. The shorter one is for clients that do not read.
const RESPONSE_MAX_MS: f64 = 1000.0;
const UNREAD_RESPONSE_MAX_MS: f64 = 100.0;
/// A quick run divides the number of clients by this, and has no target for the time: its server
/// may be built without optimisation.
const QUICK_PART: usize = 20;
/// Longest wait until all attackers are connected.
const CONNECT_MAX: Duration = Duration::from_secs(20);
/// The nice value of the attackers. They yield the core to the probes, which would otherwise
/// measure the wait for their own core.
const ATTACKER_NICE: i32 = 10;
/// The real-time priority of the probes, if permitted.
const PROBE_PRIORITY: &str = "10";

const DRIVERS: [&str; 2] = ["io_uring", "epoll"];
/// The other server that is attacked, for comparison. It has no targets.
const NGINX: &str = "nginx";

/// One attack in full size.
#[derive(Debug)]
struct Case {
    name: &'static str,
    attack: Attack,
    clients: usize,
    /// Arguments of the server, in addition to its defaults.
    arguments: &'static [&'static str],
    response_max_ms: f64,
}

const CASES: [Case; 7] = [
    Case {
        name: "partial heads of 30 KB",
        attack: Attack::PartialHeads,
        clients: 5_000,
        arguments: &[],
        response_max_ms: RESPONSE_MAX_MS,
    },
    Case {
        name: "the same, --receive-memory 8MiB",
        attack: Attack::PartialHeads,
        clients: 5_000,
        arguments: &["--receive-memory", "8MiB"],
        response_max_ms: RESPONSE_MAX_MS,
    },
    Case {
        name: "slow PUTs",
        attack: Attack::SlowPuts,
        clients: 9_800,
        arguments: &[],
        response_max_ms: RESPONSE_MAX_MS,
    },
    Case {
        name: "GETs of distinct large files, unread",
        attack: Attack::DistinctFiles,
        clients: 12_000,
        arguments: &[],
        response_max_ms: RESPONSE_MAX_MS,
    },
    Case {
        name: "clients that do not read",
        attack: Attack::Unread,
        clients: 9_000,
        arguments: &[],
        response_max_ms: UNREAD_RESPONSE_MAX_MS,
    },
    Case {
        name: "pipelines that are not read",
        attack: Attack::UnreadPipelines,
        clients: 400,
        arguments: &[],
        response_max_ms: UNREAD_RESPONSE_MAX_MS,
    },
    Case {
        name: "deep PUTs (new connection: a PUT)",
        attack: Attack::DeepPuts,
        clients: 40,
        arguments: &[],
        response_max_ms: RESPONSE_MAX_MS,
    },
];

/// The results of one attack.
#[derive(Debug)]
struct AttackResults {
    /// Connections that the attackers opened, or requests if they repeat those.
    made: u64,
    established: Times,
    new: Times,
    /// When all attackers were connected, and when all had closed.
    connected: Instant,
    closed: Instant,
}

impl AttackResults {
    /// The phase of the attack in which the longest response ended.
    fn phase(&self, times: &Times) -> &'static str {
        match times.longest_end {
            Some(end) if end <= self.connected => "connecting",
            Some(end) if end <= self.closed => "connected",
            Some(_) => "closed",
            None => "",
        }
    }

    fn longest_ms(&self) -> f64 {
        self.established.longest_ms().max(self.new.longest_ms())
    }

    fn lost(&self) -> u64 {
        self.established.lost + self.new.lost
    }
}

pub(crate) fn experiment(run: &Run) -> Outcome<Vec<Target>> {
    runner::progress("attack · building the server");
    let server = "build --profile=dist --quiet -p onrush-server --bin onrush";
    xtask::shell::run(&mut cargo(server))?;
    let mut table = Table::new(
        "attack · longest response in ms, from before the attack until a second after it",
        &[
            "attack",
            "clients",
            "server",
            "made",
            "established",
            "phase",
            "new",
            "phase",
            "target",
            "requests",
            "lost",
        ],
    );
    let mut targets = Vec::new();
    for case in &CASES {
        for driver in DRIVERS.into_iter().chain([NGINX]) {
            // nginx has no limit for the receive memory of all connections.
            if driver == NGINX && (!case.arguments.is_empty() || run.effort == Effort::Quick) {
                continue;
            }
            if !run.includes(&format!("{}, {driver}", case.name)) {
                continue;
            }
            runner::progress(&format!("attack · {}, {driver}", case.name));
            let results = one(run, case, driver)?;
            let requests = results.established.times_ms.len() + results.new.times_ms.len();
            table.row([
                case.name.to_owned(),
                clients(run, case).to_string(),
                driver.to_owned(),
                results.made.to_string(),
                format!("{:.1}", results.established.longest_ms()),
                results.phase(&results.established).to_owned(),
                format!("{:.1}", results.new.longest_ms()),
                results.phase(&results.new).to_owned(),
                match driver {
                    NGINX => String::new(),
                    _ => format!("{:.0}", case.response_max_ms),
                },
                requests.to_string(),
                results.lost().to_string(),
            ]);
            if driver != NGINX {
                targets.push(target(case, driver, run.effort, &results));
            }
        }
    }
    if table.is_empty() {
        return Err(format!("no attack matches {}", run.only.join(" and ")));
    }
    run.show("attack", &table)?;
    Ok(targets)
}

fn clients(run: &Run, case: &Case) -> usize {
    match run.effort {
        Effort::Quick => (case.clients / QUICK_PART).max(2),
        _ => case.clients,
    }
}

fn target(case: &Case, driver: &str, effort: Effort, results: &AttackResults) -> Target {
    let (longest, lost) = (results.longest_ms(), results.lost());
    let bound = case.response_max_ms;
    let in_time = lost == 0 && longest <= bound;
    Target {
        what: format!(
            "{}, {driver}: every response within {bound:.0} ms",
            case.name
        ),
        found: format!("{longest:.1} ms, {lost} lost"),
        // Without responses there is no verdict. A quick run judges only lost responses.
        holds: (longest.is_finite() && (effort != Effort::Quick || lost > 0)).then_some(in_time),
    }
}

/// Starts a server and attacks it.
fn one(run: &Run, case: &Case, driver: &str) -> Outcome<AttackResults> {
    let folder = run.folder("attack")?;
    let clients = clients(run, case);
    clients::prepare(case.attack, clients, &folder)?;
    let port = free_port()?;
    let command = match driver {
        NGINX => {
            // `Run::folder` returns an empty folder.
            let scratch = run.folder("attack-nginx")?;
            runner::nginx(&folder, &scratch, port, clients as u32)?
        }
        _ => {
            let mut command = Command::new(xtask::shell::built().join("onrush"));
            command.arg(&folder).args(["--port", &port.to_string()]);
            command.args(["--allow", "put", "--workers", "1", "--driver", driver]);
            command.args(case.arguments);
            command
        }
    };
    let server = Server::start_on(&command, port, SERVER_CORE, Stdio::null())?;
    attack(run, case, clients, &server)
}

fn attack(run: &Run, case: &Case, clients: usize, server: &Server) -> Outcome<AttackResults> {
    let calm = Duration::from_millis(run.effort.of(100, 500, 500));
    let hold = Duration::from_millis(run.effort.of(300, 4_000, 20_000));
    let after = Duration::from_millis(run.effort.of(300, 1_000, 1_000));
    let address = server.address;
    let warm_up = || -> Outcome<_> {
        let mut stream = probe::connect(address).map_err(|error| error.to_string())?;
        probe::exchange(&mut stream, &clients::get(clients::SMALL))?;
        Ok(stream)
    };
    let stream = warm_up().map_err(|error| format!("no response before the attack: {error}"))?;
    let flags = [const { AtomicBool::new(false) }; 3];
    let [all_connected, attack_ends, probes_end] = &flags;
    let puts = case.attack == Attack::DeepPuts;
    let progress = Progress::default();
    // Where pinning is not permitted, the threads run on any core.
    let pin = || drop(pin_to_client_core());
    let (established, new, connected, closed) = thread::scope(|scope| {
        let established = scope.spawn(move || {
            pin();
            take_precedence();
            probe::probe_established(stream, address, probes_end)
        });
        let new = scope.spawn(move || {
            pin();
            take_precedence();
            probe::probe_new(address, puts, probes_end)
        });
        let phases = || -> Outcome<(Instant, Instant)> {
            run.sleep(calm)?;
            let attack = scope.spawn(|| {
                pin();
                let _ = setpriority_process(None, ATTACKER_NICE); // Of this thread.
                clients::run(
                    case.attack,
                    clients,
                    address,
                    all_connected,
                    attack_ends,
                    &progress,
                );
            });
            let begun = Instant::now();
            while !all_connected.load(Ordering::Acquire) && begun.elapsed() < CONNECT_MAX {
                run.sleep(Duration::from_millis(20))?;
            }
            let connected = Instant::now();
            run.sleep(hold)?;
            attack_ends.store(true, Ordering::Release);
            let ended = attack.join();
            ended.map_err(|_| "an attacker panicked".to_owned())?;
            let closed = Instant::now();
            run.sleep(after)?;
            Ok((connected, closed))
        };
        let phases = phases();
        // After an interrupt, too: the scope waits for all threads.
        attack_ends.store(true, Ordering::Release);
        probes_end.store(true, Ordering::Release);
        let panicked = |_| "a probe panicked".to_owned();
        let (established, new) = (established.join(), new.join());
        let (connected, closed) = phases?;
        let (established, new) = (established.map_err(panicked)?, new.map_err(panicked)?);
        Ok::<_, String>((established, new, connected, closed))
    })?;
    Ok(AttackResults {
        made: progress.made.into_inner(),
        established,
        new,
        connected,
        closed,
    })
}

/// Gives this thread a real-time priority (`SCHED_FIFO`, sched(7)), like the generator of
/// `bench mixed`. The attackers share its core, and a probe that waits for them would measure its
/// own client. Without the privilege (`CAP_SYS_NICE`), the attackers only have a lower priority.
fn take_precedence() {
    let thread = rustix::thread::gettid().to_string();
    let mut command = Command::new("chrt");
    command.args(["--fifo", "--pid", PROBE_PRIORITY, &thread]);
    let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(established_ms: &[f64], new_ms: &[f64], lost: u64) -> AttackResults {
        let times = |times: &[f64], lost| Times {
            times_ms: times.to_vec(),
            lost,
            longest_end: None,
        };
        let now = Instant::now();
        AttackResults {
            made: 1,
            established: times(established_ms, lost),
            new: times(new_ms, 0),
            connected: now,
            closed: now,
        }
    }

    #[test]
    fn the_slower_connection_decides_and_no_response_may_be_lost() {
        let verdict = |results, effort| target(&CASES[0], "epoll", effort, &results).holds;
        let usual = |results| verdict(results, Effort::Usual);
        assert_eq!(usual(results(&[1.0, 999.0], &[2.0], 0)), Some(true));
        assert_eq!(usual(results(&[1.0], &[2.0, 1001.0], 0)), Some(false));
        assert_eq!(usual(results(&[1.0], &[2.0], 1)), Some(false));
        assert_eq!(usual(results(&[], &[], 0)), None);
        let quick = |results| verdict(results, Effort::Quick);
        assert_eq!(quick(results(&[1.0], &[2.0], 0)), None);
        assert_eq!(quick(results(&[1.0], &[2.0], 1)), Some(false));
    }
}
