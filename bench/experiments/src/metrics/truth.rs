//! Whether what the server counted is what its clients saw. Must not know how it counts.

use crate::{
    run::{Run, Target},
    table::Table,
    workers::{Wanted, Who, Workers, by_worker},
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
/// Of each client, one after the other.
const CONNECTIONS: u64 = 10;

/// Method, path and body of the requests of each connection.
const ASKED: [(&str, &str, &str); 4] = [
    ("GET", "/work", ""),
    ("GET", "/nothing", ""),
    ("PUT", "/object", "five."),
    ("BREW", "/coffee", ""),
];

const PATIENCE: Duration = Duration::from_secs(10);

/// By the labels of method and status.
type Counts = BTreeMap<(String, u16), u64>;

/// What the server says at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    requests: Counts,
    accepted: u64,
    done: u64,
}

pub(super) fn measure(run: &Run) -> Outcome<Vec<Target>> {
    let wanted = Wanted {
        who: Who::Onrush("least-loaded", true),
        workers: 4,
        work_us: 0,
        cores: runner::server::SERVER_CORE,
        quota: None,
    };
    let workers = Workers::start(run, &wanted)?;
    // A connection that only looked whether it listens is accepted after a second of silence.
    run.sleep(Duration::from_secs(2))?;
    let before = told(&workers)?;
    let (mut seen, opened) = load(workers.server.address, run.effort.of(5, 100, 100))?;
    let mut asked = 1;
    let mut after = told(&workers)?;
    let begun = Instant::now();
    // The last connections may be closed a moment after their clients have left.
    while after.done - before.done < opened + asked && begun.elapsed() < PATIENCE {
        run.sleep(Duration::from_millis(50))?;
        asked += 1;
        after = told(&workers)?;
    }
    // The questions themselves were requests too, all but the last of them answered by then.
    *seen.entry(("GET".to_owned(), 200)).or_default() += asked;
    let rows = rows(&seen, opened + asked, &before, &after);
    let mut table = Table::new(
        "metrics · what clients saw, and what the server counted",
        &["", "seen", "counted"],
    );
    for (name, seen, counted) in &rows {
        table.row([name.clone(), seen.to_string(), counted.to_string()]);
    }
    run.show("metrics-truth", &table)?;
    Ok(vec![Target {
        what: "the counters equal what the clients counted".to_owned(),
        found: format!("{} requests", seen.values().sum::<u64>()),
        holds: Some(rows.iter().all(|(_, seen, counted)| seen == counted)),
    }])
}

/// What is counted, as clients saw it and as the server did.
fn rows(seen: &Counts, opened: u64, before: &Told, after: &Told) -> Vec<(String, u64, u64)> {
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

fn told(workers: &Workers) -> Outcome<Told> {
    let text = workers.get("/metrics")?;
    let sum = |name| by_worker(&text, name).iter().map(|(_, count)| count).sum();
    Ok(Told {
        requests: requests(&text),
        accepted: sum("onrush_connections_accepted_total"),
        done: sum("onrush_connections_done_total"),
    })
}

/// Requests by method and status, of all other labels together.
fn requests(text: &str) -> Counts {
    let mut counts = Counts::new();
    let name = "http_server_request_duration_seconds_count{";
    for line in text.lines().filter_map(|line| line.strip_prefix(name)) {
        let label = |name: &str| {
            let (_, rest) = line.split_once(&format!("{name}=\""))?;
            Some(rest.split_once('"')?.0)
        };
        let method = label("http_request_method");
        let status = label("http_response_status_code").and_then(|status| status.parse().ok());
        let count = line.rsplit_once(' ');
        let count: Option<u64> = count.and_then(|(_, count)| count.parse().ok());
        if let (Some(method), Some(status), Some(count)) = (method, status, count) {
            *counts.entry((method.to_owned(), status)).or_default() += count;
        }
    }
    counts
}

/// Has clients ask, `rounds` times on each of their connections; gives what they were answered, and
/// how many connections they opened.
fn load(address: SocketAddr, rounds: u64) -> Outcome<(Counts, u64)> {
    let client = || -> Outcome<Counts> {
        let mut seen = Counts::new();
        for _ in 0..CONNECTIONS {
            let failed = |error: std::io::Error| format!("a client: {error}");
            let mut stream = TcpStream::connect(address).map_err(failed)?;
            let mut received = Vec::new();
            for (method, path, body) in (0..rounds).flat_map(|_| ASKED) {
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
    fn what_was_there_before_does_not_count() {
        let key = ("GET".to_owned(), 200);
        let told = |count, connections| Told {
            requests: Counts::from([(key.clone(), count)]),
            accepted: connections,
            done: connections,
        };
        let seen = Counts::from([(key.clone(), 5)]);
        let rows = rows(&seen, 2, &told(3, 1), &told(8, 3));
        let whole = |(_, seen, counted): &(String, u64, u64)| seen == counted;
        assert!(rows.len() == 3 && rows.iter().all(whole), "{rows:?}");
    }
}
