//! `hello` with metrics, compared with `hello` without, on both drivers. A comparison of two
//! servers without metrics shows the measurement error.

use crate::{
    run::{Run, Target},
    table::{Table, ratio_cells, ratio_text},
};
use runner::{
    beside::{Pairs, Who},
    row::Target as Bound,
};
use xtask::shell::Outcome;

/// The highest permitted cost of metrics.
const COST: Bound = Bound::AtMost(1.02);

const CONNECTIONS: u32 = 64;

const SERVERS: [&str; 2] = ["onrush-io_uring", "onrush-epoll"];

pub(super) fn measure(run: &Run) -> Outcome<Vec<Target>> {
    let mut pairs = Pairs::new(run.effort.of(3, 15, 15), run.interrupted.clone())?;
    let head = ["server", "reference", "ratio", "low", "high", "rounds"];
    let mut table = Table::new("metrics · CPU per request of hello, 64 connections", &head);
    let mut targets = Vec::new();
    for peer in SERVERS {
        let variant = |label: &str, environment| Who {
            peer,
            label: format!("{peer}{label}"),
            environment,
        };
        let plain = variant("", Vec::new());
        let again = variant(" again", Vec::new());
        let counted = variant(", metrics", vec![("APP_METRICS", "on")]);
        for (server, bound) in [(&again, None), (&counted, Some(COST))] {
            run.check_interrupt()?;
            let row = pairs.hello(CONNECTIONS, (server, &plain), bound)?;
            let labels = [server.label.clone(), plain.label.clone()];
            let cells = labels.into_iter().chain(ratio_cells(row.ratio()));
            table.row(cells.chain([row.count().to_string()]));
            if let Some(bound) = bound {
                targets.push(Target {
                    what: format!("{peer}: metrics cost {} on hello", bound.shown()),
                    found: ratio_text(row.ratio()),
                    holds: row.holds(),
                });
            }
        }
    }
    run.show("metrics-hello", &table)?;
    Ok(targets)
}
