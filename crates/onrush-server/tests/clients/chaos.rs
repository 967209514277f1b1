//! Reads during writes and removals of the same 64 objects, against the real binary: no body is
//! torn, an entity tag always belongs to the same bytes, no acknowledged change is lost, and
//! conditional changes are linearizable.
//!
//! `ONRUSH_TEST_READS` sets the number of reads on each driver.

use crate::program::{Folder, Server, drivers};
use std::time::Instant;
use xtask::load::chaos;

const READS: usize = 20_000;

fn reads() -> usize {
    let asked = std::env::var("ONRUSH_TEST_READS").ok();
    asked.map_or(READS, |reads| reads.parse().expect("a number"))
}

#[test]
#[ignore = "nightly"] // it takes long, whatever the machine
fn reads_during_writes_and_removals_are_whole_and_current() {
    for driver in drivers() {
        let folder = Folder::new();
        let flags = ["--allow", "put,delete", "--driver", driver];
        let server = Server::start(folder.path(), &flags);
        let begun = Instant::now();
        let done = chaos::run(server.address(), reads());
        let done = done.unwrap_or_else(|wrong| panic!("{driver}: {wrong}"));
        println!("{driver}: {done} in {:.0} s", begun.elapsed().as_secs_f64());
    }
}
