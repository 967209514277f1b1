//! `kill -9` at random moments of puts: every completed put is there, no object is torn, and the
//! next start removes all staged files, so nothing is left but the objects. (Only the simulated
//! disk can test a power cut.) Half of the killed processes sync.
//!
//! `TEST_KILLS` sets the number of kills.

use crate::common::*;
use crate::edge_common::wait_until;
use ::testing::child::only;
use onrush_rt::blocking::BlockingPool;
use onrush_store::*;
use std::io::{BufRead, BufReader, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

const KILLS: u64 = 200;
/// A long run says how far it is after so many kills.
const PROGRESS_KILLS: u64 = 1000;
const KEYS: u64 = 4;
const DIR_VAR: &str = "ONRUSH_TEST_KILL_DIR";
const BEGIN_VAR: &str = "ONRUSH_TEST_KILL_BEGIN";
const SYNCS_VAR: &str = "ONRUSH_TEST_KILL_SYNCS";

fn kills() -> u64 {
    let wanted = std::env::var("TEST_KILLS").ok();
    wanted.map_or(KILLS, |kills| kills.parse().unwrap())
}

fn open(dir: &Path, syncs: bool) -> Folder {
    let options = FolderOptions {
        durability: match syncs {
            true => Durability::Full,
            false => Durability::None,
        },
        ..FolderOptions::default()
    };
    Folder::open(dir, BlockingPool::threads(2, 16), options).unwrap()
}

fn name(number: u64) -> String {
    format!("d{}/k{}", number % 2, number % KEYS)
}

/// Content whose length and bytes all depend on `number`.
fn body(number: u64) -> Vec<u8> {
    number
        .to_le_bytes()
        .repeat(1 + (number as usize * 37) % 5000)
}

/// Not a test of its own: the work of the killed process. It reports each completed put on stderr.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR_VAR) else {
        return;
    };
    let begin: u64 = std::env::var(BEGIN_VAR).unwrap().parse().unwrap();
    let folder = open(Path::new(&dir), std::env::var_os(SYNCS_VAR).is_some());
    thread::scope(|scope| {
        for key in 0..KEYS {
            let folder = &folder;
            scope.spawn(move || {
                for number in (begin + key..).step_by(KEYS as usize) {
                    put(folder, &name(number), &body(number)).unwrap();
                    // One call, so that lines are whole.
                    std::io::stderr()
                        .write_all(format!("{number}\n").as_bytes())
                        .unwrap();
                }
            });
        }
    });
}

#[test]
fn completed_puts_survive_kill() {
    let backend = Backend::real();
    let Backend::Real(dir) = &backend else {
        unreachable!()
    };
    // For each key the last number whose put completed. A later one is also allowed.
    let mut completed = [None::<u64>; KEYS as usize];
    let mut begin = 0;
    for kill in 0..kills() {
        let mut child = only(module_path!(), "child");
        if kill % 2 == 1 {
            child.env(SYNCS_VAR, "1");
        }
        let mut child = child
            .env(DIR_VAR, dir.path())
            .env(BEGIN_VAR, begin.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut last = lines.next().unwrap().unwrap();
        thread::sleep(Duration::from_micros(kill * 7919 % 9000));
        child.kill().unwrap();
        child.wait().unwrap();
        loop {
            let number: u64 = last
                .parse()
                .unwrap_or_else(|_| panic!("the child reported: {last}"));
            let last_of_key = &mut completed[(number % KEYS) as usize];
            *last_of_key = (*last_of_key).max(Some(number));
            begin = begin.max(number);
            match lines.next() {
                Some(line) => last = line.unwrap(),
                None => break,
            }
        }
        // Beyond the puts in progress, which may have completed.
        begin = (begin / KEYS + 2) * KEYS;
        let folder = open(dir.path(), false);
        assert_eq!(staged(&folder, &backend), 0);
        let scrub = Scrub::new(backend.root());
        let intact = match folder.keeps_metadata() {
            true => Finding::Intact,
            false => Finding::NoChecksum,
        };
        scrub.files(&mut |path, read| {
            let is_object = (0..KEYS).any(|key| path == name(key).as_bytes());
            assert!(read.is_ok() && is_object, "kill {kill}: {path:?} is left");
            assert_eq!(scrub.verify(path, &mut |_| {}), intact);
            ControlFlow::Continue(())
        });
        for (key, least) in completed.iter().enumerate() {
            let Some(least) = *least else { continue };
            let found = get(&folder, &name(key as u64)).unwrap();
            let number = u64::from_le_bytes(found[..8].try_into().unwrap());
            assert!(
                number >= least && found == body(number),
                "kill {kill}, key {key}"
            );
        }
        if (kill + 1) % PROGRESS_KILLS == 0 {
            println!("{} kills: every completed put is there", kill + 1);
        }
    }
    let staging = backend.root().open_dir(b".onrush/staging").unwrap();
    // A process that another test starts has a copy of the locks of this one until its `execve`.
    wait_until("only this process has a folder in staging", || {
        let _folder = open(dir.path(), false);
        entries(&staging).len() == 1
    });
}
