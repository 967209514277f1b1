//! Handlers that read and write as if they blocked: what they cost beside `async fn`, beside the
//! same library on threads, and beside somebody else's coroutines; and what memory one takes that
//! waits. Must not know how a pair is measured.

use crate::{
    chart::{Bar, bars},
    run::{Reach, Run},
    table::Table,
};
use runner::{
    beside::{Hello, Pairs, Who},
    row::{Reach as Bound, Row},
};
use xtask::shell::Outcome;

/// As many as there were originally.
const CONNECTIONS: u32 = 200;

/// Bytes that a coroutine may take which waits.
const WAITING_BYTES_MAX: f64 = 8.0 * 1024.0;

const ASYNC: &str = "example-hello";
const HANDLER: &str = "example-coroutine";
const PORTED: &str = "example-http_coroutines";
const THREADS: &str = "example-http_threads";
const MAY: &str = "may_minihttp";

/// Who is measured beside `async fn` on the same driver, and what was promised.
const BESIDE: [(&str, &str, Option<Bound>); 7] = [
    (ASYNC, "io_uring", None),
    (HANDLER, "io_uring", Some(Bound::AtMost(1.05))),
    (PORTED, "io_uring", None),
    (ASYNC, "epoll", None),
    (HANDLER, "epoll", Some(Bound::AtMost(1.05))),
    (PORTED, "epoll", None),
    (THREADS, "epoll", None),
];

pub(crate) fn experiment(run: &Run) -> Outcome<Vec<Reach>> {
    runner::progress("coroutine · building what takes part");
    let mut pairs = Pairs::new(run.effort.of(3, 15, 15), run.interrupted.clone())?;
    let title = format!("coroutine · CPU per request of hello, {CONNECTIONS} connections");
    let head = [
        "server", "driver", "beside", "ratio", "low", "high", "rounds",
    ];
    let mut table = Table::new(&title, &head);
    let (mut reaches, mut drawn) = (Vec::new(), Vec::new());
    for (peer, driver, bound) in BESIDE {
        let row = pair(run, &mut pairs, (peer, ASYNC), driver, bound)?;
        note(&mut table, &mut drawn, (peer, ASYNC), driver, &row);
        reaches.extend(bound.map(|bound| {
            let what = format!("{peer} on {driver}: {} of an async fn", bound.shown());
            reach(what, &row)
        }));
    }
    let ahead = Bound::AtLeast(1.0);
    let row = pair(run, &mut pairs, (MAY, HANDLER), "io_uring", Some(ahead))?;
    note(&mut table, &mut drawn, (MAY, HANDLER), "io_uring", &row);
    let what = format!("{MAY} beside {HANDLER}: {}", ahead.shown());
    reaches.push(reach(what, &row));
    run.show("coroutine", &table)?;
    let title = format!("coroutine: hello over {CONNECTIONS} connections");
    let note = "CPU by that of an async fn on the same driver; shorter is better";
    run.write("coroutine.svg", &bars(&title, note, Some(1.0), &drawn))?;
    reaches.extend(memory(run, &mut pairs)?);
    Ok(reaches)
}

fn who(peer: &'static str, driver: &'static str) -> Who {
    Who {
        peer,
        label: format!("{peer}, {driver}"),
        environment: vec![("ONRUSH_DRIVER", driver)],
    }
}

fn pair(
    run: &Run,
    pairs: &mut Pairs,
    (server, reference): (&'static str, &'static str),
    driver: &'static str,
    bound: Option<Bound>,
) -> Outcome<Row> {
    run.go_on()?;
    let hello = Hello {
        name: format!("{CONNECTIONS} connections"),
        connections: CONNECTIONS,
        depth: 1,
    };
    pairs.hello(
        &hello,
        (&who(server, driver), &who(reference, driver)),
        bound,
    )
}

fn note(
    table: &mut Table,
    drawn: &mut Vec<Bar>,
    (server, reference): (&str, &str),
    driver: &str,
    row: &Row,
) {
    let ratio = row.ratio();
    let figure = |figure: Option<f64>| figure.map_or_else(String::new, |f| format!("{f:.3}"));
    table.row([
        server.to_owned(),
        driver.to_owned(),
        reference.to_owned(),
        figure(ratio.map(|ratio| ratio.median)),
        figure(ratio.map(|ratio| ratio.low)),
        figure(ratio.map(|ratio| ratio.high)),
        row.count().to_string(),
    ]);
    if let Some(ratio) = ratio.filter(|_| reference == ASYNC) {
        drawn.push(Bar {
            name: format!("{}, {driver}", server.trim_start_matches("example-")),
            ours: server != THREADS,
            values: vec![ratio.low, ratio.median, ratio.high],
        });
    }
}

fn reach(what: String, row: &Row) -> Reach {
    let found = row.ratio().map_or_else(
        || "no round counts".to_owned(),
        |ratio| format!("{:.3}, {:.3}–{:.3}", ratio.median, ratio.low, ratio.high),
    );
    Reach {
        what,
        found,
        holds: row.holds(),
    }
}

/// What one takes that waits for its client: of a library that has one for each connection.
fn memory(run: &Run, pairs: &mut Pairs) -> Outcome<Vec<Reach>> {
    let title = "coroutine · bytes of memory for each of 15,000 that wait";
    let mut table = Table::new(title, &["server", "bytes"]);
    let mut found = Vec::new();
    for peer in [PORTED, MAY] {
        run.go_on()?;
        runner::progress(&format!("coroutine · {peer}, 15,000 connections"));
        let bytes = pairs.idle_bytes(&who(peer, "io_uring"))?;
        table.row([peer.to_owned(), format!("{bytes:.0}")]);
        found.push(bytes);
    }
    run.show("coroutine-memory", &table)?;
    Ok(vec![
        Reach {
            what: "a coroutine that waits takes at most 8 KiB".to_owned(),
            found: format!("{:.0} bytes", found[0]),
            holds: Some(found[0] <= WAITING_BYTES_MAX),
        },
        Reach {
            what: format!("less memory than {MAY}"),
            found: format!("{:.0} and {:.0} bytes", found[0], found[1]),
            holds: Some(found[0] < found[1]),
        },
    ])
}
