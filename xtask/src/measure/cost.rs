//! CPU per request of `hello`, as a ratio to a bare loop with a canned answer on the same driver.
//!
//! Both servers are loaded at the same moment, on one core, so that what slows the machine slows
//! both; the ratio of their CPU times per request is then steady where the times are not. Each
//! row is the median of its rounds, and the bare loop is also compared with itself: what that row
//! differs from 1 is the error of the others.

use super::{
    Driver,
    server::{Program, Server, ask},
    wrk::Load,
};
use crate::{Failure, Options, shell::Outcome};
use std::{net::TcpStream, thread};

/// Requests that each connection has under way.
const DEPTHS: [usize; 2] = [1, 16];

/// Pipelined requests of the row in which no two are equal.
const DISTINCT: usize = 16;

/// The most that `hello` may cost.
fn limit(driver: Driver, pipelined: usize) -> f64 {
    match (driver, pipelined) {
        (Driver::Epoll, 2..) => 1.20,
        _ => 1.10,
    }
}

/// A bare loop that differs from itself by more than this says that the machine is too restless.
const CONTROL_ERROR_MAX: f64 = 0.05;

pub(crate) fn main(mut options: Options) -> Result<(), Failure> {
    let rounds = options.number("--rounds", 7)?;
    let seconds = options.number("--seconds", 2)?;
    let drivers = Driver::chosen(&mut options)?;
    let instead = options.text("--server")?;
    let report_only = options.flag("--report-only");
    options.end()?;
    if thread::available_parallelism().map_or(1, |count| count.get()) < 2 {
        let reason = "two cores are needed: one for the servers, one for their clients";
        return Err(Failure::Because(reason.to_owned()));
    }

    let mut over = false;
    println!("CPU per request, as a ratio to the bare loop at the same moment; {rounds} rounds");
    println!(
        "{:9} {:>9}  {:12} {:>6} {:>6} {:>6} {:>6}  {:>8} {:>8}",
        "driver", "pipelined", "server", "median", "min", "max", "limit", "µs", "bare µs"
    );
    for driver in drivers {
        let bare = Program::bare(driver)?;
        let hello = Program::hello(driver, instead.as_deref())?;
        same_answer(&bare, &hello)?;
        for pipelined in DEPTHS {
            let load = Load::new(seconds, pipelined)?;
            let (mut control, mut row) = (Row::default(), Row::default());
            for round in 0..rounds {
                control.measure(&bare, &bare, &load, round)?;
                row.measure(&bare, &hello, &load, round)?;
            }
            let start = format!("{:9} {pipelined:>9}", driver.name());
            let (error, _) = control.print(&start, "bare again", None)?;
            let (ratio, fits) = row.print(&start, &hello.name(), Some(limit(driver, pipelined)))?;
            if (error - 1.0).abs() > CONTROL_ERROR_MAX {
                println!("  the bare loop differs from itself: {ratio:.3} is not to be trusted");
            }
            over |= !fits;
        }
        // A head that was seen before is cheaper; this is what one costs that was not. No limit:
        // the bare loop parses each head in any case.
        let (load, mut row) = (Load::distinct(seconds, DISTINCT)?, Row::default());
        for round in 0..rounds {
            row.measure(&bare, &hello, &load, round)?;
        }
        let start = format!("{:9} {:>9}", driver.name(), "distinct");
        row.print(&start, &hello.name(), None)?;
    }
    match over && !report_only {
        true => Err(Failure::Because("a limit was passed".to_owned())),
        false => Ok(()),
    }
}

/// Two servers are comparable only when they send the same amount for the same request.
fn same_answer(bare: &Program, hello: &Program) -> Outcome {
    let answer = |program: &Program| {
        let server = program.start()?;
        let stream = TcpStream::connect(server.address).map_err(|error| error.to_string());
        ask(&mut stream?)
    };
    let (expected, given) = (answer(bare)?, answer(hello)?);
    match expected.len() == given.len() {
        true => Ok(()),
        false => Err(format!(
            "answers differ, and so would their cost:\n{}\n{}",
            expected.escape_ascii(),
            given.escape_ascii()
        )),
    }
}

/// CPU nanoseconds per request, of the bare loop and of the server beside it.
#[derive(Clone, Copy, Debug)]
struct Pair {
    bare_ns: f64,
    ns: f64,
}

/// The rounds of one comparison.
#[derive(Default)]
struct Row {
    pairs: Vec<Pair>,
}

impl Row {
    /// One round; who is started first changes from round to round. A round with errors is void.
    fn measure(&mut self, bare: &Program, other: &Program, load: &Load, round: u64) -> Outcome {
        let pair = match round.is_multiple_of(2) {
            true => at_once(bare, other, load)?.map(|(bare_ns, ns)| Pair { bare_ns, ns }),
            false => at_once(other, bare, load)?.map(|(ns, bare_ns)| Pair { bare_ns, ns }),
        };
        self.pairs.extend(pair);
        Ok(())
    }

    /// Prints the row; gives its median, and whether that is within `limit`.
    fn print(&self, start: &str, name: &str, limit: Option<f64>) -> Outcome<(f64, bool)> {
        let ratios = sorted(self.pairs.iter().map(|pair| pair.ns / pair.bare_ns));
        let (Some(min), Some(max)) = (ratios.first(), ratios.last()) else {
            return Err(format!("{name}: every round had errors"));
        };
        let ratio = median(&ratios);
        let fits = limit.is_none_or(|limit| ratio <= limit);
        println!(
            "{start}  {name:12} {ratio:6.3} {min:6.3} {max:6.3} {:>6}  {:8.3} {:8.3}{}",
            limit.map_or("-".to_owned(), |limit| format!("{limit:.2}")),
            median(&sorted(self.pairs.iter().map(|pair| pair.ns / 1e3))),
            median(&sorted(self.pairs.iter().map(|pair| pair.bare_ns / 1e3))),
            if fits { "" } else { "  OVER" },
        );
        Ok((ratio, fits))
    }
}

/// Loads two servers at the same moment; CPU nanoseconds per request of each, from before the
/// first request to after the last.
fn at_once(first: &Program, second: &Program, load: &Load) -> Outcome<Option<(f64, f64)>> {
    let (first, second) = (first.start()?, second.start()?);
    let cpu = |server: &Server| server.cpu_ns();
    let before = (cpu(&first)?, cpu(&second)?);
    let running = (load.start(&first)?, load.start(&second)?);
    let requests = (running.0.finish()?, running.1.finish()?);
    let after = (cpu(&first)?, cpu(&second)?);
    Ok(requests.0.zip(requests.1).map(|(first, second)| {
        (
            (after.0 - before.0) as f64 / first as f64,
            (after.1 - before.1) as f64 / second as f64,
        )
    }))
}

pub(super) fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Of values in order, at least one.
pub(super) fn median(values: &[f64]) -> f64 {
    let middle = values.len() / 2;
    match values.len() % 2 {
        1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&sorted([3.0, 1.0, 2.0].into_iter())), 2.0);
        assert_eq!(median(&sorted([4.0, 1.0, 2.0, 3.0].into_iter())), 2.5);
    }

    #[test]
    fn a_row_over_its_limit_does_not_fit() {
        let pair = |ns| Pair {
            bare_ns: 1000.0,
            ns,
        };
        let row = Row {
            pairs: vec![pair(1050.0), pair(1200.0), pair(1100.0)],
        };
        assert_eq!(row.print("", "x", Some(1.10)), Ok((1.1, true)));
        assert_eq!(row.print("", "x", Some(1.09)), Ok((1.1, false)));
        assert!(Row::default().print("", "x", None).is_err());
    }
}
