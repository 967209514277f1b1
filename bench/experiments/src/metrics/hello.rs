//! `hello` with metrics beside `hello` without, on both drivers, and twice without: what differs
//! there is the error. Must not know how a pair is measured.

use crate::{
    run::{Run, Target},
    table::Table,
};
use runner::{
    beside::{Hello, Pairs, Who},
    row::{Row, Target as Bound},
};
use xtask::shell::Outcome;

/// The most it may cost.
const COST: Bound = Bound::AtMost(1.02);

const SERVERS: [&str; 2] = ["onrush-io_uring", "onrush-epoll"];

pub(super) fn measure(run: &Run) -> Outcome<Vec<Target>> {
    let mut pairs = Pairs::new(run.effort.of(3, 15, 15), run.interrupted.clone())?;
    let head = ["server", "beside", "ratio", "low", "high", "rounds"];
    let mut table = Table::new("metrics · CPU per request of hello, 64 connections", &head);
    let mut targets = Vec::new();
    for peer in SERVERS {
        let who = |label: &str, environment| Who {
            peer,
            label: format!("{peer}{label}"),
            environment,
        };
        let plain = who("", Vec::new());
        let again = who(" again", Vec::new());
        let counted = who(", metrics", vec![("APP_METRICS", "on")]);
        for (server, bound) in [(&again, None), (&counted, Some(COST))] {
            run.go_on()?;
            let hello = Hello {
                name: "64 connections".to_owned(),
                connections: 64,
                depth: 1,
            };
            let row = pairs.hello(&hello, (server, &plain), bound)?;
            table.row(cells(&server.label, &plain.label, &row));
            if let Some(bound) = bound {
                let ratio = row.ratio();
                let found = ratio.map_or_else(
                    || "no round counts".to_owned(),
                    |ratio| format!("{:.3}, {:.3}–{:.3}", ratio.median, ratio.low, ratio.high),
                );
                targets.push(Target {
                    what: format!("{peer}: metrics cost {} on hello", bound.shown()),
                    found,
                    holds: row.holds(),
                });
            }
        }
    }
    run.show("metrics-hello", &table)?;
    Ok(targets)
}

fn cells(server: &str, reference: &str, row: &Row) -> Vec<String> {
    let mut cells = vec![server.to_owned(), reference.to_owned()];
    match row.ratio() {
        Some(ratio) => {
            let metrics = [ratio.median, ratio.low, ratio.high];
            cells.extend(metrics.map(|figure| format!("{figure:.3}")));
        }
        None => cells.extend([String::new(), String::new(), String::new()]),
    }
    cells.push(row.count().to_string());
    cells
}
