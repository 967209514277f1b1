//! What a run has in hand: how much is wanted, where results go, and whether somebody wants it to
//! end. Must not know the experiments.

use crate::table::Table;
use runner::report::machine::Machine;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};
use xtask::shell::Outcome;

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// To see that it works.
    Quick,
    /// What is written up.
    Usual,
    /// As many requests as there were originally.
    Full,
}

impl Effort {
    /// The one of three that is meant.
    pub(crate) fn of<T>(self, quick: T, usual: T, full: T) -> T {
        match self {
            Effort::Quick => quick,
            Effort::Usual => usual,
            Effort::Full => full,
        }
    }
}

/// One run of the program.
pub(crate) struct Run {
    pub(crate) effort: Effort,
    /// The parts of an experiment that are run: those whose name contains each of these.
    pub(crate) only: Vec<String>,
    pub(crate) interrupted: Arc<AtomicBool>,
    out: PathBuf,
    /// For files that nobody wants afterwards; gone with this.
    scratch: PathBuf,
    machine: Machine,
    /// How it was asked for.
    line: String,
}

impl Run {
    pub(crate) fn new(
        effort: Effort,
        out: PathBuf,
        line: String,
        interrupted: Arc<AtomicBool>,
    ) -> Outcome<Run> {
        let name = format!("onrush-experiment-{}", std::process::id());
        let scratch = xtask::shell::target().join("bench").join(name);
        for folder in [&out, &scratch] {
            make(folder)?;
        }
        Ok(Run {
            effort,
            only: Vec::new(),
            interrupted,
            out,
            scratch,
            machine: Machine::now(),
            line,
        })
    }

    /// Whether the part of an experiment with this name is to be run.
    pub(crate) fn includes(&self, name: &str) -> bool {
        self.only.iter().all(|text| name.contains(text.as_str()))
    }

    /// Fails when somebody wants it to end.
    pub(crate) fn go_on(&self) -> Outcome {
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err("interrupted".to_owned()),
            false => Ok(()),
        }
    }

    /// Waits, but not for longer than it may go on.
    pub(crate) fn sleep(&self, time: Duration) -> Outcome {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.go_on()?;
            let left = end.saturating_duration_since(Instant::now());
            thread::sleep(left.min(Duration::from_millis(20)));
        }
        self.go_on()
    }

    /// An empty folder of this name.
    pub(crate) fn folder(&self, name: &str) -> Outcome<PathBuf> {
        let folder = self.scratch.join(name);
        let _ = fs::remove_dir_all(&folder);
        make(&folder)?;
        Ok(folder)
    }

    /// Prints a table, and writes it as `NAME.csv`.
    pub(crate) fn show(&self, name: &str, table: &Table) -> Outcome {
        runner::clear();
        println!("\n{}", table.shown());
        self.keep(name, table)
    }

    /// Writes a table that is too long for people.
    pub(crate) fn keep(&self, name: &str, table: &Table) -> Outcome {
        let file = self.out.join(format!("{name}.csv"));
        table.write_csv(&file, &self.machine.date)
    }

    /// Writes a file of the results.
    pub(crate) fn write(&self, name: &str, text: &str) -> Outcome {
        let file = self.out.join(name);
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
    }

    /// Notes on what machine, when and how an experiment was made.
    pub(crate) fn note(&self, experiment: &str) -> Outcome {
        let file = self.out.join("machine.md");
        self.machine.write(&file, experiment, &self.line, &[])
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

fn make(folder: &Path) -> Outcome {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// What was to be reached, and whether it is.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) what: String,
    /// What was found, in words.
    pub(crate) found: String,
    /// `None` when it could not be measured here.
    pub(crate) holds: Option<bool>,
}

impl Target {
    pub(crate) fn shown(&self) -> String {
        let verdict = match self.holds {
            Some(true) => "holds",
            Some(false) => "MISSED",
            None => "not measured",
        };
        format!("{verdict}: {} ({})", self.what, self.found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_ends_every_wait_and_leaves_nothing() {
        let flag = Arc::new(AtomicBool::new(false));
        let base = std::env::temp_dir().join(format!("onrush-run-{}", std::process::id()));
        let run = Run::new(Effort::Quick, base.clone(), String::new(), flag.clone());
        let run = run.expect("made");
        let folder = run.folder("x").expect("made");
        assert_eq!(run.sleep(Duration::from_millis(1)), Ok(()));
        flag.store(true, Ordering::Relaxed);
        assert!(run.sleep(Duration::from_secs(1000)).is_err());
        drop(run);
        assert!(!folder.exists());
        fs::remove_dir_all(base).expect("removed");
    }

    #[test]
    fn a_part_is_run_when_its_name_contains_all_texts() {
        let base = std::env::temp_dir().join(format!("onrush-run-only-{}", std::process::id()));
        let run = Run::new(Effort::Quick, base.clone(), String::new(), Arc::default());
        let mut run = run.expect("made");
        assert!(run.includes("slow PUTs, epoll"));
        run.only = vec!["PUTs".to_owned(), "epoll".to_owned()];
        assert!(run.includes("slow PUTs, epoll"));
        assert!(!run.includes("slow PUTs, io_uring") && !run.includes("pipelines, epoll"));
        fs::remove_dir_all(base).expect("removed");
    }

    #[test]
    fn a_reach_says_what_became_of_it() {
        let target = |holds| Target {
            what: "at most 1".to_owned(),
            found: "2".to_owned(),
            holds,
        };
        assert_eq!(target(Some(false)).shown(), "MISSED: at most 1 (2)");
        assert!(target(None).shown().starts_with("not measured"));
    }
}
