//! Compares the counters of the server with what its clients counted.

use crate::{
    run::{Run, Target},
    scrape,
    table::Table,
    workers::{ServerKind, Settings, Workers, get},
};
use runner::probe::receive;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    net::{SocketAddr, TcpStream},
    thread,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

const CLIENTS: u64 = 8;
/// Consecutive connections of each client.
const CONNECTIONS: u64 = 10;

/// Method, path and body of the requests of each connection.
const REQUESTS: [(&str, &str, &str); 4] = [
    ("GET", "/work", ""),
    ("GET", "/nothing", ""),
    ("PUT", "/object", "five."),
    ("BREW", "/coffee", ""),
];

/// Longest wait until the server has counted all closed connections.
const PATIENCE: Duration = Duration::from_secs(10);

/// Requests by the labels of method and status.
type Counts = BTreeMap<(String, u16), u64>;

/// The counters of the server at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counters {
    requests: Counts,
    accepted: u64,
    done: u64,
}

pub(super) fn measure(run: &Run) -> Outcome<Vec<Target>> {
    let settings = Settings {
        kind: ServerKind::Onrush("least-loaded", true),
        workers: 4,
        work_us: 0,
        cores: runner::server::SERVER_CORE,
        quota: None,
    };
    let workers = Workers::start(run, &settings)?;
    // The connection that checked that the server listens is accepted after a second without data.
    run.sleep(Duration::from_secs(2))?;
    let before = counters(&workers)?;
    let (mut seen, opened) = load(workers.server.address, run.effort.of(5, 100, 100))?;
    let mut scrapes = 1;
    let mut after = counters(&workers)?;
    let begun = Instant::now();
    // The server may close the last connections a moment after their clients.
    while after.done - before.done < opened + scrapes && begun.elapsed() < PATIENCE {
        run.sleep(Duration::from_millis(50))?;
        scrapes += 1;
        after = counters(&workers)?;
    }
    // Each scrape is a request, which the next scrape contains.
    *seen.entry(("GET".to_owned(), 200)).or_default() += scrapes;
    let rows = rows(&seen, opened + scrapes, &before, &after);
    let mut table = Table::new(
        "metrics · counted by clients and by the server",
        &["", "clients", "server"],
    );
    for (name, seen, counted) in &rows {
        table.row([name.clone(), seen.to_string(), counted.to_string()]);
    }
    run.show("metrics-truth", &table)?;
    Ok(vec![Target {
        what: "the counters of the server equal those of the clients".to_owned(),
        found: format!("{} requests", seen.values().sum::<u64>()),
        holds: Some(rows.iter().all(|(_, seen, counted)| seen == counted)),
    }])
}

/// Each counter with its value for the clients and for the server.
fn rows(
    seen: &Counts,
    opened: u64,
    before: &Counters,
    after: &Counters,
) -> Vec<(String, u64, u64)> {
    let keys: BTreeSet<&(String, u16)> = seen.keys().chain(after.requests.keys()).collect();
    let of = |counts: &Counts, key: &(String, u16)| counts.get(key).copied().unwrap_or(0);
    let row = |key: &(String, u16)| {
        let counted = of(&after.requests, key) - of(&before.requests, key);
        (format!("{} {}", key.0, key.1), of(seen, key), counted)
    };
    let mut rows: Vec<(String, u64, u64)> = keys.into_iter().map(row).collect();
    let accepted = after.accepted - before.accepted;
    rows.push(("connections accepted".to_owned(), opened, accepted));
    let done = after.done - before.done;
    rows.push(("connections done".to_owned(), opened, done));
    rows
}

fn counters(workers: &Workers) -> Outcome<Counters> {
    let text = get(&workers.server, "/metrics")?;
    Ok(Counters {
        requests: requests(&text),
        accepted: scrape::sum(&text, "onrush_connections_accepted_total"),
        done: scrape::sum(&text, "onrush_connections_done_total"),
    })
}

/// Requests by method and status, added up over all other labels.
fn requests(text: &str) -> Counts {
    let mut counts = Counts::new();
    for (labels, count) in scrape::samples(text, "http_server_request_duration_seconds_count") {
        let method = scrape::label(labels, "http_request_method");
        let status = scrape::label(labels, "http_response_status_code");
        let status = status.and_then(|status| status.parse().ok());
        if let (Some(method), Some(status)) = (method, status) {
            *counts.entry((method.to_owned(), status)).or_default() += count;
        }
    }
    counts
}

/// Clients send [`REQUESTS`] `rounds` times on each of their connections. Returns the responses
/// that they counted, and the number of connections that they opened.
fn load(address: SocketAddr, rounds: u64) -> Outcome<(Counts, u64)> {
    let client = || -> Outcome<Counts> {
        let mut seen = Counts::new();
        for _ in 0..CONNECTIONS {
            let failed = |error: std::io::Error| format!("a client: {error}");
            let mut stream = TcpStream::connect(address).map_err(failed)?;
            let mut received = Vec::new();
            for (method, path, body) in (0..rounds).flat_map(|_| REQUESTS) {
                let length = body.len();
                let request = format!(
                    "{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n\
                     {body}"
                );
                stream.write_all(request.as_bytes()).map_err(failed)?;
                let status = receive(&mut stream, &mut received)?.status;
                let method = if method == "BREW" { "_OTHER" } else { method };
                *seen.entry((method.to_owned(), status)).or_default() += 1;
            }
        }
        Ok(seen)
    };
    let all: Vec<Outcome<Counts>> = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        let join = |client: thread::ScopedJoinHandle<'_, Outcome<Counts>>| {
            client
                .join()
                .unwrap_or_else(|_| Err("a client panicked".to_owned()))
        };
        clients.into_iter().map(join).collect()
    });
    let mut sums = Counts::new();
    for seen in all {
        for (labels, count) in seen? {
            *sums.entry(labels).or_default() += count;
        }
    }
    Ok((sums, CLIENTS * CONNECTIONS))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
# TYPE x counter
http_server_request_duration_seconds_count{http_request_method=\"GET\",\
http_response_status_code=\"200\",url_scheme=\"http\"} 7
http_server_request_duration_seconds_count{http_request_method=\"GET\",\
http_response_status_code=\"200\",url_scheme=\"http\",http_route=\"/a\"} 2
http_server_request_duration_seconds_sum{http_request_method=\"GET\",\
http_response_status_code=\"200\"} 99
";

    #[test]
    fn requests_are_added_up_over_other_labels() {
        let counts = requests(TEXT);
        assert_eq!(counts, Counts::from([(("GET".to_owned(), 200), 9)]));
    }

    #[test]
    fn earlier_requests_do_not_count() {
        let key = ("GET".to_owned(), 200);
        let counters = |count, connections| Counters {
            requests: Counts::from([(key.clone(), count)]),
            accepted: connections,
            done: connections,
        };
        let seen = Counts::from([(key.clone(), 5)]);
        let rows = rows(&seen, 2, &counters(3, 1), &counters(8, 3));
        let is_equal = |(_, seen, counted): &(String, u64, u64)| seen == counted;
        assert!(rows.len() == 3 && rows.iter().all(is_equal), "{rows:?}");
    }
}
