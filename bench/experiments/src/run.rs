//! One run of the program: how much is measured, where results go, and whether it is interrupted.

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
    /// Only enough to check that an experiment works.
    Quick,
    /// As much as the documented results need.
    Usual,
    /// As many requests as the original experiment had.
    Full,
}

impl Effort {
    /// The value for this effort.
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
    /// Selects parts of an experiment: those whose name contains each of these texts.
    pub(crate) only: Vec<String>,
    pub(crate) interrupted: Arc<AtomicBool>,
    out: PathBuf,
    /// For temporary files. Removed when this value is dropped.
    scratch: PathBuf,
    machine: Machine,
    /// The arguments of the command line, for the notes on the machine.
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
            create(folder)?;
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

    /// A quick run for the test `name`. Its results and temporary files are removed with it.
    #[cfg(test)]
    pub(crate) fn for_test(name: &str) -> Run {
        let name = format!("onrush-test-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        create(&folder).expect("a folder");
        Run {
            effort: Effort::Quick,
            only: Vec::new(),
            interrupted: Arc::default(),
            out: folder.clone(),
            scratch: folder,
            machine: Machine::now(),
            line: String::new(),
        }
    }

    /// Whether the part of an experiment with this name is selected.
    pub(crate) fn includes(&self, name: &str) -> bool {
        self.only.iter().all(|text| name.contains(text.as_str()))
    }

    /// Fails if the run was interrupted.
    pub(crate) fn check_interrupt(&self) -> Outcome {
        match self.interrupted.load(Ordering::Relaxed) {
            true => Err("interrupted".to_owned()),
            false => Ok(()),
        }
    }

    /// Waits for `time`. Fails early if the run is interrupted.
    pub(crate) fn sleep(&self, time: Duration) -> Outcome {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.check_interrupt()?;
            let left = end.saturating_duration_since(Instant::now());
            thread::sleep(left.min(Duration::from_millis(20)));
        }
        self.check_interrupt()
    }

    /// An empty temporary folder of this name.
    pub(crate) fn folder(&self, name: &str) -> Outcome<PathBuf> {
        let folder = self.scratch.join(name);
        let _ = fs::remove_dir_all(&folder);
        create(&folder)?;
        Ok(folder)
    }

    /// Prints a table, and writes it as `NAME.csv`.
    pub(crate) fn show(&self, name: &str, table: &Table) -> Outcome {
        runner::clear();
        println!("\n{}", table.shown());
        let file = self.out.join(format!("{name}.csv"));
        table.write_csv(&file, &self.machine.date)
    }

    /// Writes a file of the results.
    pub(crate) fn write(&self, name: &str, text: &str) -> Outcome {
        let file = self.out.join(name);
        fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))
    }

    /// Records the machine, date and command line of an experiment.
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

fn create(folder: &Path) -> Outcome {
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))
}

/// A target of an experiment, and whether it holds.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub(crate) what: String,
    /// The measured result, as text.
    pub(crate) found: String,
    /// `None` if it could not be measured.
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
    fn an_interrupt_ends_every_wait_and_no_files_remain() {
        let run = Run::for_test("interrupt");
        let folder = run.folder("x").expect("made");
        assert_eq!(run.sleep(Duration::from_millis(1)), Ok(()));
        run.interrupted.store(true, Ordering::Relaxed);
        assert!(run.sleep(Duration::from_secs(1000)).is_err());
        drop(run);
        assert!(!folder.exists());
    }

    #[test]
    fn a_part_is_selected_if_its_name_contains_all_texts() {
        let mut run = Run::for_test("only");
        assert!(run.includes("slow PUTs, epoll"));
        run.only = vec!["PUTs".to_owned(), "epoll".to_owned()];
        assert!(run.includes("slow PUTs, epoll"));
        assert!(!run.includes("slow PUTs, io_uring") && !run.includes("pipelines, epoll"));
    }

    #[test]
    fn a_target_shows_its_result() {
        let target = |holds| Target {
            what: "at most 1".to_owned(),
            found: "2".to_owned(),
            holds,
        };
        assert_eq!(target(Some(false)).shown(), "MISSED: at most 1 (2)");
        assert!(target(None).shown().starts_with("not measured"));
    }
}
