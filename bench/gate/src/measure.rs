//! Running the traces under callgrind, two at a time, and reading what came of it.
//!
//! Must not know what the figures should be.

use crate::callgrind::Run;
use crate::owner::{DebugInfo, divide};
use crate::trace::Trace;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::{env, fs, thread};
use xtask::packages::need;

/// The option by which this program replays a trace.
pub(crate) const REPLAY: &str = "--replay";

/// Where counting begins and ends; hashes of the compiler's may stand around it.
const COUNTED: &str = "--toggle-collect=*gate*trace*serve*";

/// Traces replayed at a time.
const AT_A_TIME: usize = 2;

/// Instructions per request of one trace.
#[derive(Debug)]
pub(crate) struct Measured {
    pub(crate) trace: Trace,
    /// Those of the server.
    pub(crate) server: f64,
    /// Those of the simulator.
    pub(crate) simulator: f64,
    /// The server's by function, most first.
    pub(crate) functions: Vec<(String, f64)>,
}

/// Measures every trace. What callgrind wrote stays in the folder `gate` beside that of this
/// program, for `callgrind_annotate`.
pub(crate) fn all() -> Result<Vec<Measured>, String> {
    need(&[("valgrind", "valgrind")])?;
    let (program, folder) = places().map_err(|error| format!("where this program is: {error}"))?;
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

/// This program, and the folder for what callgrind writes.
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
        // Nothing of the environment may change how std and the C library behave.
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
    let text = fs::read_to_string(&file).map_err(|error| format!("callgrind's file: {error}"))?;
    let divided = divide(&Run::parse(&text)?, &DebugInfo::of(program)?);
    let each = |instructions: f64| instructions / trace.requests() as f64;
    let functions = divided.functions.into_iter();
    Ok(Measured {
        trace,
        server: each(divided.server),
        simulator: each(divided.simulator),
        functions: functions.map(|(name, cost)| (name, each(cost))).collect(),
    })
}
