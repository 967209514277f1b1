//! `cargo xtask nightly`: what takes too long for every change. It runs all tests on every driver
//! with every seed, the ones that are ignored otherwise, and each command of this program that is
//! not a part of `test`.

use crate::{
    Arguments, Failure,
    binaries::{self, Binaries, Scope},
    commands, file_systems, fuzz, setup,
    shell::{Outcome, cargo, run},
    steps::Steps,
    tally::{Tally, run_and_count},
    verify,
};
use std::{env, process::Command};

/// The time for which each target is fuzzed.
const FUZZ_SECONDS: u64 = 120;

/// A step: its name, and how it is performed.
type Step = (&'static str, fn(&mut Context) -> Outcome<Tally>);

/// The steps in their order. Those that are commands of this program have the sizes of their
/// defaults, or smaller ones where a night would not suffice.
const STEPS: [Step; 17] = [
    ("deny", |_| uncounted(setup::check_dependencies())),
    ("fuzz", |_| uncounted(fuzz::run_targets(&[], FUZZ_SECONDS))),
    ("file-systems", |context| {
        file_systems::run_all(context.binaries()?)
    }),
    ("miri", |_| own("miri")),
    ("crates", |_| uncounted(own("crates").map(drop))),
    ("commands", |_| uncounted(commands::run_all())),
    ("package", |_| own("package")),
    ("kill", |_| own("kill")),
    ("chaos", |_| own("chaos")),
    ("power-cuts", |_| own("power-cuts")),
    ("tls", |_| own("tls")),
    ("http2", |_| own("http2")),
    ("cache", |_| own("cache --objects 250000")),
    ("page", |_| own("page")),
    ("ceph", |_| {
        let tested = own("ceph up").and_then(|_| own("scale"));
        own("ceph down").and(tested)
    }),
    ("bench", |_| own("bench --quick")),
    ("experiments", |_| own("experiment --quick")),
];

/// The name of the step that runs all tests, and the loom tests.
const TESTS: &str = "tests";

/// What several steps use.
#[derive(Default)]
struct Context {
    binaries: Option<Binaries>,
}

impl Context {
    /// The test binaries, built once.
    fn binaries(&mut self) -> Outcome<&Binaries> {
        if self.binaries.is_none() {
            // Some tests run the examples.
            run(&mut cargo("build --quiet --workspace --examples"))?;
            self.binaries = Some(binaries::build()?);
        }
        Ok(self.binaries.as_ref().expect("they were just built"))
    }
}

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let Some(wanted) = arguments.wanted(&names())? else {
        return Ok(());
    };
    setup::check_rights(&[setup::PROGRAMS.as_slice(), &setup::NIGHTLY].concat())?;
    let mut steps = Steps::new();
    let mut context = Context::default();
    if !steps.run("set-up", setup::everything) {
        return steps.close();
    }
    if wanted.has(TESTS) {
        steps.test(TESTS, || context.binaries()?.run(Scope::Everything));
        steps.run("loom", verify::check_interleavings);
    }
    for (name, step) in STEPS {
        if wanted.has(name) {
            steps.test(name, || step(&mut context));
        }
    }
    steps.close()
}

fn names() -> Vec<&'static str> {
    let others = STEPS.iter().map(|(name, _)| *name);
    [TESTS].into_iter().chain(others).collect()
}

/// Runs a task of this program, in a process of its own, and counts its tests.
fn own(task: &str) -> Outcome<Tally> {
    let program = env::current_exe().map_err(|error| error.to_string())?;
    run_and_count(Command::new(program).args(task.split_whitespace()))
}

/// The outcome of a step that runs no tests.
fn uncounted(outcome: Outcome) -> Outcome<Tally> {
    outcome.map(|()| Tally::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_have_different_names() {
        let mut all = names();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), STEPS.len() + 1);
    }

    #[test]
    fn an_unknown_step_is_refused() {
        let arguments = Arguments::new(["nothing"]);
        assert!(matches!(main(arguments), Err(Failure::Usage(_))));
    }
}
