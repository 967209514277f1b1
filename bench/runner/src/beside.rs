//! Pairs of servers for the experiments, measured with the load `hello` as in the profiles.

use crate::{
    bench::{Bench, Clock, Effort},
    pair,
    peers::{self, Driver, Role, Setup},
    plan::{Field, Load, Pairing, Scenario, Subject},
    report,
    row::{About, Row, Target},
    work::Work,
};
use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicBool},
};
use xtask::shell::Outcome;

/// One of the two servers of a pair.
#[derive(Clone, Debug)]
pub struct Who {
    /// The server's name in `cargo xtask bench --list`.
    pub peer: &'static str,
    /// Its name in tables.
    pub label: String,
    /// Environment variables in addition to those that the bench sets.
    pub environment: Vec<(&'static str, &'static str)>,
}

/// Measures pairs in rounds of one second.
pub struct Pairs {
    bench: Bench,
}

impl Pairs {
    /// Prepares to measure with `rounds` per row, and builds nothing yet. The caller sets
    /// `interrupted` to end a measurement.
    pub fn new(rounds: u32, interrupted: Arc<AtomicBool>) -> Outcome<Pairs> {
        let setup = Setup::of_repository();
        let effort = Effort {
            rounds,
            seconds: 1,
            quick: false,
        };
        Ok(Pairs {
            bench: Bench {
                backend: None,
                work: Work::new(&setup.target)?,
                setup,
                before: None,
                field: Field {
                    all: peers::all(),
                    drivers: vec![Driver::Epoll, Driver::Uring],
                    bases: vec![Driver::Uring],
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

    /// Compares the CPU per request of both servers, with `connections` to each. If it cannot be
    /// measured, the row contains the reason.
    ///
    /// # Errors
    /// A server is not known, or cannot be built or installed.
    pub fn hello(
        &mut self,
        connections: u32,
        (server, reference): (&Who, &Who),
        target: Option<Target>,
    ) -> Outcome<Row> {
        let name = format!("{connections} connections");
        let load = Load::get(connections, "/");
        let scenario = Scenario::new("experiment", &name, Role::Hello, load);
        let is_same = server.peer == reference.peer && server.environment == reference.environment;
        let pairing = Pairing {
            about: if is_same { About::Control } else { About::Peer },
            server: self.subject(server)?,
            reference: self.subject(reference)?,
            target,
        };
        Ok(pair::measure(&mut self.bench, &scenario, &pairing))
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

/// The table of the rows, as the bench prints it.
pub fn table(rows: &[Row]) -> String {
    report::table::table(rows)
}

/// Builds Onrush and the limits, including the store in C, and installs nginx. Returns the reason
/// if nginx is not available.
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
    // The tests install nothing.
    Ok(pairs
        .bench
        .have(nginx, !xtask::shell::is_unoptimised())
        .err())
}
