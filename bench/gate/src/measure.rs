//! Runs the traces under callgrind, two at a time, and reads the output.

use crate::callgrind::Run;
use crate::owner::{DebugInfo, divide};
use crate::trace::Trace;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::{env, fs, thread};
use xtask::packages::need;

/// The option with which this program replays a trace.
pub(crate) const REPLAY: &str = "--replay";

/// The function in which callgrind counts. The compiler may add hashes to its name.
const COUNTED: &str = "--toggle-collect=*gate*trace*serve*";

/// Traces replayed at a time.
const AT_A_TIME: usize = 2;

/// Instructions and calls per request of one trace.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) trace: Trace,
    /// Instructions of the server.
    pub(crate) server: f64,
    /// Instructions of the simulator.
    pub(crate) simulator: f64,
    /// What would be system calls.
    pub(crate) calls: f64,
    /// The server's instructions by function, highest first.
    pub(crate) functions: Vec<(String, f64)>,
}

/// Measures every trace. Callgrind's output stays in the folder `gate` beside the folder of this
/// program, for `callgrind_annotate`.
pub(crate) fn all() -> Result<Vec<Measured>, String> {
    need(&[("valgrind", "valgrind")])?;
    let (program, folder) = places().map_err(|error| format!("the program's folder: {error}"))?;
    let waiting = Mutex::new(Trace::ALL.into_iter());
    let work = || -> Result<Vec<Measured>, String> {
        let mut done = Vec::new();
        loop {
            let next = waiting
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .next();
            let Some(trace) = next else {
                return Ok(done);
            };
            let one = one(trace, &program, &folder);
            done.push(one.map_err(|error| format!("{}: {error}", trace.name()))?);
        }
    };
    let results = thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(work)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread
                .join()
                .unwrap_or_else(|_| Err("a thread panicked".to_owned()))
        };
        threads.into_iter().map(join).collect::<Result<Vec<_>, _>>()
    });
    let mut all: Vec<Measured> = results?.into_iter().flatten().collect();
    all.sort_by_key(|one| Trace::ALL.iter().position(|trace| *trace == one.trace));
    Ok(all)
}

/// This program, and the folder for callgrind's output.
fn places() -> std::io::Result<(PathBuf, PathBuf)> {
    let program = env::current_exe()?.canonicalize()?;
    let target = program.ancestors().nth(2).unwrap_or(Path::new("/"));
    let folder = target.join("gate");
    fs::create_dir_all(&folder)?;
    Ok((program, folder))
}

fn one(trace: Trace, program: &Path, folder: &Path) -> Result<Measured, String> {
    let file = folder.join(format!("{}.callgrind", trace.name()));
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--quiet", COUNTED])
        .args(["--dump-instr=yes", "--compress-strings=no", "--compress-pos=no"])
        .arg(format!("--callgrind-out-file={}", file.display()))
        .arg(program)
        .args([REPLAY, trace.name()])
        // The environment must not affect the behaviour of std and the C library.
        .env_clear()
        .envs(env::var_os("PATH").map(|path| ("PATH", path)))
        .stdin(Stdio::null());
    let output = command
        .output()
        .map_err(|error| format!("valgrind cannot be run: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!(
            "valgrind failed, {}: {}",
            output.status,
            said.trim()
        ));
    }
    let calls = String::from_utf8_lossy(&output.stdout);
    let calls = calls.trim().parse();
    let calls = calls.map_err(|_| "the trace has not reported its calls".to_owned())?;
    let text = fs::read_to_string(&file).map_err(|error| format!("callgrind's file: {error}"))?;
    let divided = divide(&Run::parse(&text)?, &DebugInfo::of(program)?);
    let each = |instructions: f64| instructions / trace.requests() as f64;
    let functions = divided.functions.into_iter();
    Ok(Measured {
        trace,
        server: each(divided.server),
        simulator: each(divided.simulator),
        calls,
        functions: functions.map(|(name, cost)| (name, each(cost))).collect(),
    })
}
