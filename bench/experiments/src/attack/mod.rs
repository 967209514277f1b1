//! Denial of service: how long an established and a new connection wait for a response while
//! thousands of clients take as much as the server lets them, and after they are gone.
//!
//! The server is the binary, with one worker and its defaults; all clients share the other core.
//! Each attack meets a server that was started for it. Must not know how the server defends itself.

mod clients;
mod probe;

use crate::{
    run::{Effort, Run, Target},
    table::Table,
};
use clients::{Attack, Done};
use probe::Seen;
use runner::server::{CLIENT_CORE, SERVER_CORE, Server, free_port};
use rustix::{
    process::setpriority_process,
    thread::{CpuSet, sched_setaffinity},
};
use std::{
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};
use xtask::shell::{Outcome, cargo};

/// A response within this was promised; of clients that do not read, the shorter one.
const RESPONSE_MAX_MS: f64 = 1000.0;
const UNREAD_RESPONSE_MAX_MS: f64 = 100.0;
/// A quick run has one of so many clients, and no bound on time: it may run an unoptimised server.
const QUICK_PART: usize = 20;
/// The longest that attackers may take to connect.
const ASSEMBLY_MAX: Duration = Duration::from_secs(20);
/// Attackers leave the core to the probes, whose times would be their own otherwise.
const ATTACKER_NICE: i32 = 10;
/// The real-time priority of the probes, where one is permitted.
const PROBE_PRIORITY: &str = "10";

const DRIVERS: [&str; 2] = ["io_uring", "epoll"];

/// One attack at full size.
#[derive(Debug)]
struct Case {
    name: &'static str,
    attack: Attack,
    clients: usize,
    /// What the server is told beside its defaults.
    told: &'static [&'static str],
    response_max_ms: f64,
}

const CASES: [Case; 7] = [
    Case {
        name: "partial heads of 30 KB",
        attack: Attack::PartialHeads,
        clients: 5_000,
        told: &[],
        response_max_ms: RESPONSE_MAX_MS,
    },
    Case {
        name: "the same, --receive-memory 8MiB",
        attack: Attack::PartialHeads,
        clients: 5_000,
        told: &["--receive-memory", "8MiB"],
        response_max_ms: RESPONSE_MAX_MS,
    },
    Case {
        name: "slow PUTs",
        attack: Attack::SlowPuts,
        clients: 9_800,
        told: &[],
        response_max_ms: RESPONSE_MAX_MS,
    },
    Case {
        name: "GETs of distinct large files, unread",
        attack: Attack::DistinctFiles,
        clients: 12_000,
        told: &[],
        response_max_ms: RESPONSE_MAX_MS,
    },
    Case {
        name: "clients that do not read",
        attack: Attack::Unread,
        clients: 9_000,
        told: &[],
        response_max_ms: UNREAD_RESPONSE_MAX_MS,
    },
    Case {
        name: "pipelines that are not read",
        attack: Attack::UnreadPipelines,
        clients: 400,
        told: &[],
        response_max_ms: UNREAD_RESPONSE_MAX_MS,
    },
    Case {
        name: "deep PUTs (new connection: a PUT)",
        attack: Attack::DeepPuts,
        clients: 40,
        told: &[],
        response_max_ms: RESPONSE_MAX_MS,
    },
];

/// What was seen of one attack.
#[derive(Debug)]
struct Outlook {
    /// Attackers' connections that were made; requests, where those are repeated.
    made: u64,
    established: Seen,
    fresh: Seen,
    /// When all attackers were there, and when they had gone.
    whole: Instant,
    gone: Instant,
}

impl Outlook {
    /// In which phase the longest response came.
    fn phase(&self, seen: &Seen) -> &'static str {
        match seen.longest_end {
            Some(end) if end <= self.whole => "they come",
            Some(end) if end <= self.gone => "they stay",
            Some(_) => "they are gone",
            None => "",
        }
    }

    fn longest_ms(&self) -> f64 {
        self.established.longest_ms().max(self.fresh.longest_ms())
    }

    fn lost(&self) -> u64 {
        self.established.lost + self.fresh.lost
    }
}

pub(crate) fn experiment(run: &Run) -> Outcome<Vec<Target>> {
    runner::progress("attack · building the server");
    let server = "build --release --quiet -p onrush-server --bin onrush";
    xtask::shell::run(&mut cargo(server))?;
    let mut table = Table::new(
        "attack · longest response in ms, from before the attack until a second after it",
        &[
            "attack",
            "clients",
            "driver",
            "made",
            "established",
            "while",
            "new",
            "while",
            "target",
            "requests",
            "lost",
        ],
    );
    let mut targets = Vec::new();
    for case in &CASES {
        for driver in DRIVERS {
            if !run.includes(&format!("{}, {driver}", case.name)) {
                continue;
            }
            runner::progress(&format!("attack · {}, {driver}", case.name));
            let outlook = one(run, case, driver)?;
            let requests = outlook.established.times_ms.len() + outlook.fresh.times_ms.len();
            table.row([
                case.name.to_owned(),
                clients(run, case).to_string(),
                driver.to_owned(),
                outlook.made.to_string(),
                format!("{:.1}", outlook.established.longest_ms()),
                outlook.phase(&outlook.established).to_owned(),
                format!("{:.1}", outlook.fresh.longest_ms()),
                outlook.phase(&outlook.fresh).to_owned(),
                format!("{:.0}", case.response_max_ms),
                requests.to_string(),
                outlook.lost().to_string(),
            ]);
            targets.push(target(case, driver, run.effort, &outlook));
        }
    }
    if targets.is_empty() {
        return Err(format!("no attack is named {}", run.only.join(" and ")));
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

fn target(case: &Case, driver: &str, effort: Effort, outlook: &Outlook) -> Target {
    let (longest, lost) = (outlook.longest_ms(), outlook.lost());
    let bound = case.response_max_ms;
    let in_time = lost == 0 && longest <= bound;
    Target {
        what: format!(
            "{}, {driver}: every response within {bound:.0} ms",
            case.name
        ),
        found: format!("{longest:.1} ms, {lost} lost"),
        // Without responses there is nothing to judge, and a quick run only shows that all works.
        holds: (longest.is_finite() && (effort != Effort::Quick || lost > 0)).then_some(in_time),
    }
}

/// One attack on a server of its own.
fn one(run: &Run, case: &Case, driver: &str) -> Outcome<Outlook> {
    let folder = run.folder("attack")?;
    let clients = clients(run, case);
    clients::prepare(case.attack, clients, &folder)?;
    let port = free_port()?;
    let mut command = Command::new(xtask::shell::built().join("onrush"));
    command.arg(&folder).args(["--port", &port.to_string()]);
    command.args(["--allow", "put", "--workers", "1", "--driver", driver]);
    command.args(case.told);
    let server = Server::start_on(&command, port, SERVER_CORE, Stdio::null())?;
    let outlook = attacked(run, case, clients, &server)?;
    drop(server); // Before its folder goes.
    Ok(outlook)
}

fn attacked(run: &Run, case: &Case, clients: usize, server: &Server) -> Outcome<Outlook> {
    let calm = Duration::from_millis(run.effort.of(100, 500, 500));
    let hold = Duration::from_millis(run.effort.of(300, 4_000, 20_000));
    let after = Duration::from_millis(run.effort.of(300, 1_000, 1_000));
    let address = server.address;
    let warm = || {
        let mut stream = probe::connect(address)?;
        probe::exchange(&mut stream, &clients::get(clients::SMALL), "200").map(|()| stream)
    };
    let stream = warm().map_err(|error| format!("no response before the attack: {error}"))?;
    let flags = [const { AtomicBool::new(false) }; 3];
    let [is_whole, attack_ends, probes_end] = &flags;
    let puts = case.attack == Attack::DeepPuts;
    let done = Done::default();
    let (established, fresh, whole, gone) = thread::scope(|scope| {
        let established = scope.spawn(move || {
            pin();
            take_precedence();
            probe::established(stream, address, probes_end)
        });
        let fresh = scope.spawn(move || {
            pin();
            take_precedence();
            probe::fresh(address, puts, probes_end)
        });
        let phases = || -> Outcome<(Instant, Instant)> {
            run.sleep(calm)?;
            let attack = scope.spawn(|| {
                pin();
                let _ = setpriority_process(None, ATTACKER_NICE); // Of this thread.
                clients::run(case.attack, clients, address, is_whole, attack_ends, &done);
            });
            let begun = Instant::now();
            while !is_whole.load(Ordering::Acquire) && begun.elapsed() < ASSEMBLY_MAX {
                run.sleep(Duration::from_millis(20))?;
            }
            let whole = Instant::now();
            run.sleep(hold)?;
            attack_ends.store(true, Ordering::Release);
            let ended = attack.join();
            ended.map_err(|_| "an attacker panicked".to_owned())?;
            let gone = Instant::now();
            run.sleep(after)?;
            Ok((whole, gone))
        };
        let phases = phases();
        // Also when the phases were interrupted: the scope waits for all of them.
        attack_ends.store(true, Ordering::Release);
        probes_end.store(true, Ordering::Release);
        let panicked = |_| "a probe panicked".to_owned();
        let (established, fresh) = (established.join(), fresh.join());
        let (whole, gone) = phases?;
        let (established, fresh) = (established.map_err(panicked)?, fresh.map_err(panicked)?);
        Ok::<_, String>((established, fresh, whole, gone))
    })?;
    Ok(Outlook {
        made: done.made.into_inner(),
        established,
        fresh,
        whole,
        gone,
    })
}

/// Keeps this thread, and those it starts, on the core of the clients. Where that is not permitted
/// they run where they may.
fn pin() {
    let mut cores = CpuSet::new();
    if let Ok(core) = CLIENT_CORE.parse() {
        cores.set(core);
        let _ = sched_setaffinity(None, &cores);
    }
}

/// Gives this thread a real-time priority (`SCHED_FIFO`, sched(7)), as the generator of
/// `bench mixed` has one. The attackers share its core, and a probe that waits for them would
/// measure its own client. Where that is not permitted (`CAP_SYS_NICE`), the attackers' lower
/// priority has to do.
fn take_precedence() {
    let thread = rustix::thread::gettid().to_string();
    let mut command = Command::new("chrt");
    command.args(["--fifo", "--pid", PROBE_PRIORITY, &thread]);
    let _ = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outlook(established_ms: &[f64], fresh_ms: &[f64], lost: u64) -> Outlook {
        let seen = |times: &[f64], lost| Seen {
            times_ms: times.to_vec(),
            lost,
            longest_end: None,
        };
        let now = Instant::now();
        Outlook {
            made: 1,
            established: seen(established_ms, lost),
            fresh: seen(fresh_ms, 0),
            whole: now,
            gone: now,
        }
    }

    #[test]
    fn the_slower_connection_decides_and_nothing_may_be_lost() {
        let judge = |outlook, effort| target(&CASES[0], "epoll", effort, &outlook).holds;
        let usual = |outlook| judge(outlook, Effort::Usual);
        assert_eq!(usual(outlook(&[1.0, 999.0], &[2.0], 0)), Some(true));
        assert_eq!(usual(outlook(&[1.0], &[2.0, 1001.0], 0)), Some(false));
        assert_eq!(usual(outlook(&[1.0], &[2.0], 1)), Some(false));
        assert_eq!(usual(outlook(&[], &[], 0)), None);
        let quick = |outlook| judge(outlook, Effort::Quick);
        assert_eq!(quick(outlook(&[1.0], &[2.0], 0)), None);
        assert_eq!(quick(outlook(&[1.0], &[2.0], 1)), Some(false));
    }
}
