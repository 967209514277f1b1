//! `kill -9` in the middle of everything: what was answered is there, nothing is torn, and the next
//! start leaves no temporary. (That it survives a power cut, only the simulated disk can show.)

mod common;

use common::*;
use onrush_rt::blocking::BlockingPool;
use onrush_store::*;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

const KILLS: u64 = 100;
const KEYS: u64 = 4;
const DIR_VAR: &str = "ONRUSH_TEST_KILL_DIR";
const BEGIN_VAR: &str = "ONRUSH_TEST_KILL_BEGIN";

fn open(dir: &Path) -> Folder {
    let options = FolderOptions {
        durability: Durability::None,
        ..FolderOptions::default()
    };
    Folder::open(dir, BlockingPool::threads(1, 16), options).unwrap()
}

fn name(number: u64) -> String {
    format!("d{}/k{}", number % 2, number % KEYS)
}

/// Says in every byte, and in its length, which one it is.
fn body(number: u64) -> Vec<u8> {
    number
        .to_le_bytes()
        .repeat(1 + (number as usize * 37) % 5000)
}

/// Not a test by itself: what the killed process does. It tells each answer on standard error.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(DIR_VAR) else {
        return;
    };
    let begin: u64 = std::env::var(BEGIN_VAR).unwrap().parse().unwrap();
    let folder = open(Path::new(&dir));
    for number in begin.. {
        put(&folder, &name(number), &body(number)).unwrap();
        writeln!(std::io::stderr(), "{number}").unwrap();
    }
}

#[test]
fn what_was_answered_survives() {
    let ground = Ground::real();
    let Ground::Real(dir) = &ground else {
        unreachable!()
    };
    // For each key the last number that was answered; what comes after it is also allowed.
    let mut answered = [None::<u64>; KEYS as usize];
    let mut begin = 0;
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child", "--nocapture"])
            .env(DIR_VAR, dir.path())
            .env(BEGIN_VAR, begin.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut last = lines.next().unwrap().unwrap();
        thread::sleep(Duration::from_micros(kill * 7919 % 5000));
        child.kill().unwrap();
        child.wait().unwrap();
        loop {
            let number: u64 = last
                .parse()
                .unwrap_or_else(|_| panic!("the child said: {last}"));
            answered[(number % KEYS) as usize] = Some(number);
            begin = number + 1;
            match lines.next() {
                Some(line) => last = line.unwrap(),
                None => break,
            }
        }
        begin += 1; // the one that was under way, perhaps done
        let folder = open(dir.path());
        assert_eq!(staged(&folder, &ground), 0);
        for (key, least) in answered.iter().enumerate() {
            let Some(least) = *least else { continue };
            let found = get(&folder, &name(key as u64)).unwrap();
            let number = u64::from_le_bytes(found[..8].try_into().unwrap());
            assert!(
                number >= least && found == body(number),
                "kill {kill}, key {key}"
            );
        }
    }
    let folder = open(dir.path());
    let staging = ground.root().open_dir(b".onrush/staging").unwrap();
    assert_eq!(
        entries(&staging).len(),
        1,
        "only this process has a folder in staging"
    );
    drop(folder);
}
