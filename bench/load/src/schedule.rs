//! The open loop: decides which request is sent when and on which connection, and measures latency.
//! A request that is due while all connections are busy waits, and its latency includes the wait.
//! This avoids coordinated omission. The module uses no sockets and reads no clock: the caller
//! passes all times, in nanoseconds from the window's beginning.

use crate::arrivals::Arrivals;
use std::collections::VecDeque;

/// The requests of one window.
pub(crate) struct Schedule {
    arrivals: Arrivals,
    /// The next request that is not due yet; `None` after the end.
    next_due: Option<u64>,
    end_ns: u64,
    /// Requests that are due and not sent, the oldest first.
    waiting: VecDeque<Waiting>,
    /// Connections without a request; the one at the back is used next.
    idle: VecDeque<usize>,
    order: Order,
    /// The due time of each connection's current request.
    due: Vec<Option<u64>>,
}

/// Which idle connection carries the next request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// The most recently used one: few connections are used unless the server is busy.
    LastUsed,
    /// The one that was idle for the longest time: all connections are used in turn.
    LongestIdle,
}

#[derive(Clone, Copy)]
struct Waiting {
    due_ns: u64,
    /// A connection was idle at the due time, so the request waits for the generator.
    could_go: bool,
}

/// A request to be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Send {
    pub(crate) connection: usize,
    pub(crate) due_ns: u64,
    /// The generator's delay; `None` if the request had to wait for a connection.
    pub(crate) late_ns: Option<u64>,
}

impl Schedule {
    /// Creates a schedule with `connections` idle connections. No request is due after `end_ns`.
    pub(crate) fn new(
        mut arrivals: Arrivals,
        connections: usize,
        end_ns: u64,
        order: Order,
    ) -> Schedule {
        let first = arrivals.next_ns();
        Schedule {
            arrivals,
            next_due: (first < end_ns).then_some(first),
            end_ns,
            waiting: VecDeque::new(),
            idle: (0..connections).rev().collect(),
            order,
            due: vec![None; connections],
        }
    }

    /// Returns the request to send now, if one is due and a connection is idle, and records it as
    /// sent.
    pub(crate) fn next(&mut self, now_ns: u64) -> Option<Send> {
        self.take_due(now_ns);
        if self.waiting.is_empty() {
            return None;
        }
        let connection = self.idle.pop_back()?;
        let Waiting { due_ns, could_go } = self.waiting.pop_front()?;
        self.due[connection] = Some(due_ns);
        Some(Send {
            connection,
            due_ns,
            late_ns: could_go.then(|| now_ns - due_ns),
        })
    }

    /// Moves requests that have become due to the waiting queue.
    fn take_due(&mut self, now_ns: u64) {
        while let Some(due_ns) = self.next_due.filter(|due| *due <= now_ns) {
            let could_go = self.waiting.len() < self.idle.len();
            self.waiting.push_back(Waiting { due_ns, could_go });
            let next = self.arrivals.next_ns();
            self.next_due = (next < self.end_ns).then_some(next);
        }
    }

    /// Records that the request of `connection` has its response or has failed. The connection
    /// becomes idle. Returns the due time, or `None` if the connection had no request.
    pub(crate) fn done(&mut self, connection: usize, now_ns: u64) -> Option<u64> {
        // Requests that became due earlier could not have used this connection.
        self.take_due(now_ns);
        let due_ns = self.due[connection].take()?;
        match self.order {
            Order::LastUsed => self.idle.push_back(connection),
            Order::LongestIdle => self.idle.push_front(connection),
        }
        Some(due_ns)
    }

    /// The time of the next send if no response arrives. `None` if a response must arrive first.
    pub(crate) fn next_send_ns(&self) -> Option<u64> {
        if self.idle.is_empty() {
            return None;
        }
        let oldest = self.waiting.front().map(|waiting| waiting.due_ns);
        oldest.or(self.next_due)
    }

    /// Whether every request was sent and has its response.
    pub(crate) fn is_over(&self) -> bool {
        self.next_due.is_none() && self.waiting.is_empty() && self.idle.len() == self.due.len()
    }

    /// The due times of all requests without a response. Includes requests that became due while
    /// all connections were busy.
    pub(crate) fn outstanding(&mut self, now_ns: u64) -> impl Iterator<Item = u64> {
        self.take_due(now_ns);
        let carried = self.due.iter().flatten().copied();
        carried.chain(self.waiting.iter().map(|waiting| waiting.due_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// The first `count` due times.
    fn moments(rate: f64, count: usize) -> Vec<u64> {
        let mut arrivals = Arrivals::new(rate, 5);
        (0..count).map(|_| arrivals.next_ns()).collect()
    }

    #[test]
    fn latency_runs_from_the_due_moment_when_the_queue_is_long() {
        // One connection that takes 10 ms for each request, at ten times the rate it can handle.
        let end = 1000 * MS;
        let mut schedule = Schedule::new(Arrivals::new(1000.0, 5), 1, end, Order::LastUsed);
        let (mut now, mut latencies, mut late) = (0, Vec::new(), 0);
        while !schedule.is_over() {
            if let Some(send) = schedule.next(now) {
                late += usize::from(send.late_ns.is_some());
                now += 10 * MS;
                let due = schedule.done(send.connection, now).expect("it carried one");
                latencies.push(now - due);
            } else {
                now = schedule.next_due.expect("it is not over");
            }
        }
        let due = moments(1000.0, latencies.len() + 1);
        assert!(due[latencies.len() - 1] < end && due[latencies.len()] >= end);
        let expected = |k: usize| due[0] + (k as u64 + 1) * 10 * MS - due[k];
        assert!((0..latencies.len()).all(|k| latencies[k] == expected(k)));
        assert!(*latencies.last().expect("requests") > 8000 * MS);
        // Only the first request found the connection idle; the others waited for the connection.
        assert_eq!(late, 1);
    }

    #[test]
    fn a_late_generator_is_distinguished_from_a_busy_server() {
        let due = moments(1000.0, 3);
        let mut schedule = Schedule::new(Arrivals::new(1000.0, 5), 2, u64::MAX, Order::LastUsed);
        let now = due[2];
        let sends: Vec<_> = std::iter::from_fn(|| schedule.next(now)).collect();
        let late: Vec<_> = sends.iter().map(|send| send.late_ns).collect();
        assert_eq!(late, [Some(now - due[0]), Some(now - due[1])]);
        assert_eq!(schedule.outstanding(now).count(), 3);
        assert_eq!(schedule.next_send_ns(), None);
        schedule.done(sends[0].connection, now + 1);
        assert_eq!(schedule.next_send_ns(), Some(due[2]));
        let third = schedule.next(now + 1).expect("it waits");
        assert_eq!((third.due_ns, third.late_ns), (due[2], None));
    }

    #[test]
    fn the_connection_used_last_is_used_next() {
        let mut schedule = Schedule::new(Arrivals::new(1000.0, 5), 8, u64::MAX, Order::LastUsed);
        let mut used = Vec::new();
        for due in moments(1000.0, 5) {
            let send = schedule.next(due).expect("it is due");
            used.push(send.connection);
            schedule.done(send.connection, due);
        }
        assert_eq!(used, [0; 5]);
        assert_eq!(schedule.done(0, 0), None);
    }

    #[test]
    fn all_connections_are_used_in_turn() {
        let arrivals = Arrivals::new(1000.0, 5);
        let mut schedule = Schedule::new(arrivals, 3, u64::MAX, Order::LongestIdle);
        let mut used = Vec::new();
        for due in moments(1000.0, 5) {
            let send = schedule.next(due).expect("it is due");
            used.push(send.connection);
            schedule.done(send.connection, due);
        }
        assert_eq!(used, [0, 1, 2, 0, 1]);
    }

    #[test]
    fn a_silent_server_leaves_all_requests_outstanding() {
        let due = moments(1000.0, 10);
        let arrivals = Arrivals::new(1000.0, 5);
        let mut schedule = Schedule::new(arrivals, 1, due[9], Order::LastUsed);
        assert!(schedule.next(due[0]).is_some());
        assert_eq!(schedule.next_send_ns(), None);
        assert_eq!(schedule.outstanding(u64::MAX).count(), 9);
    }

    #[test]
    fn nothing_is_due_after_the_end() {
        let due = moments(1000.0, 4);
        let mut schedule = Schedule::new(Arrivals::new(1000.0, 5), 8, due[3], Order::LastUsed);
        assert_eq!(std::iter::from_fn(|| schedule.next(u64::MAX)).count(), 3);
        assert!(!schedule.is_over());
        assert!((0..3).all(|connection| schedule.done(connection, due[3]).is_some()));
        assert!(schedule.is_over());
    }
}
