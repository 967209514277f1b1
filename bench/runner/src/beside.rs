//! Pairs for the experiments: `hello` of one program beside that of another, as the profiles do it.
//! Must not know which experiments there are.

use crate::{
    bench::{Bench, Clock, Effort},
    pair,
    peers::{self, Driver, Role, Setup},
    plan::{Field, Load, Pairing, Scenario, Subject},
    profiles::slope,
    report,
    row::{About, Row, Target},
    work::Work,
    wrk::Requests,
};
use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicBool},
};
use xtask::shell::Outcome;

/// One of two that are compared.
#[derive(Clone, Debug)]
pub struct Who {
    /// The server's name, as `cargo xtask bench --list` has it, or `example-` and that of one.
    pub peer: &'static str,
    /// Its name in tables.
    pub label: String,
    /// What is set for it beside what the bench sets.
    pub environment: Vec<(&'static str, &'static str)>,
}

/// What a pair is put under.
#[derive(Clone, Debug)]
pub struct Hello {
    /// Of the row.
    pub name: String,
    /// Connections of each of the two.
    pub connections: u32,
    /// Requests sent at once on each.
    pub depth: u32,
}

/// Measures pairs, `rounds` of a second each.
pub struct Pairs {
    bench: Bench,
}

impl Pairs {
    /// Nothing is built yet. `interrupted` is set from outside, and ends what is under way.
    pub fn new(rounds: u32, interrupted: Arc<AtomicBool>) -> Outcome<Pairs> {
        let setup = Setup::of_repository();
        let effort = Effort {
            rounds,
            seconds: 1,
            quick: false,
            full: false,
        };
        Ok(Pairs {
            bench: Bench {
                work: Work::new(&setup.target)?,
                setup,
                before: None,
                field: Field {
                    all: [peers::all(), peers::onrush::EXAMPLES.iter().collect()].concat(),
                    drivers: vec![Driver::Epoll, Driver::Uring],
                    beside: vec![Driver::Uring],
                    chosen: Vec::new(),
                },
                effort,
                clock: Clock::new(interrupted, None),
                counter: None,
                calls: HashMap::new(),
                missing: HashMap::new(),
                versions: HashMap::new(),
            },
        })
    }

    /// Compares CPU per request of both. What cannot be measured is in the row as a reason.
    ///
    /// # Errors
    /// No server has such a name, or it can neither be built nor installed.
    pub fn hello(
        &mut self,
        hello: &Hello,
        (server, reference): (&Who, &Who),
        target: Option<Target>,
    ) -> Outcome<Row> {
        let load = match hello.depth {
            1 => Load::get(hello.connections, "/"),
            depth => {
                let target = "/";
                Load::requests(hello.connections, Requests::Get { target, depth })
            }
        };
        let scenario = Scenario::new("experiment", &hello.name, Role::Hello, load);
        let is_same = server.peer == reference.peer && server.environment == reference.environment;
        let pairing = Pairing {
            about: if is_same { About::Control } else { About::Peer },
            server: self.subject(server)?,
            reference: self.subject(reference)?,
            target,
        };
        Ok(pair::measure(&mut self.bench, &scenario, &pairing))
    }

    /// Bytes of resident memory for one more connection that was answered once and is idle: the
    /// slope from 5,000 to 15,000 of them.
    pub fn idle_bytes(&mut self, who: &Who) -> Outcome<f64> {
        let subject = self.subject(who)?;
        let (slope, _) = slope(&mut self.bench, &subject)?;
        Ok(slope)
    }

    fn subject(&mut self, who: &Who) -> Outcome<Subject> {
        let peer = self.bench.field.peer(who.peer);
        let peer = peer.ok_or_else(|| format!("no server is named '{}'", who.peer))?;
        self.bench.have(peer, true)?;
        Ok(Subject {
            peer,
            label: who.label.clone(),
            environment: who.environment.clone(),
        })
    }
}

/// Rows as the bench prints them.
pub fn table(rows: &[Row]) -> String {
    report::table::table(rows)
}

/// Builds our servers and the limits, the store in C among them. `nginx` too, where it can be had;
/// why not is the value.
pub fn have_servers() -> Outcome<Option<String>> {
    let interrupted = Arc::<AtomicBool>::default();
    let mut pairs = Pairs::new(1, interrupted)?;
    for name in ["onrush-io_uring", "limit-store"] {
        let peer = pairs.bench.field.peer(name);
        let peer = peer.ok_or_else(|| format!("no server is named '{name}'"))?;
        pairs.bench.have(peer, true)?;
    }
    let nginx = pairs.bench.field.peer("nginx");
    let nginx = nginx.ok_or("no server is named 'nginx'")?;
    // The tests run experiments with what is there.
    Ok(pairs
        .bench
        .have(nginx, !xtask::shell::is_unoptimised())
        .err())
}
