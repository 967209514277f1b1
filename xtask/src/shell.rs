//! Running other programs, and the folders of the repository.

use crate::process;
use std::{
    env, fs,
    io::{self, BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

/// The result of a step, or one sentence that describes the error.
pub type Outcome<T = ()> = Result<T, String>;

/// The repository's root: the nearest folder with an `xtask` in it, above the package that cargo
/// runs or, without cargo, above the folder in which this program was built.
pub fn root() -> PathBuf {
    let own = env::var_os("CARGO_MANIFEST_DIR");
    let own = own.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let above = |dir: &&Path| dir.join("xtask/Cargo.toml").is_file();
    own.ancestors()
        .find(above)
        .map_or_else(|| PathBuf::from("."), Path::to_owned)
}

/// The build directory of all workspaces of this repository.
pub fn target() -> PathBuf {
    env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), |dir| root().join(dir))
}

/// What cargo builds for the gate. The gate alone would have other features of what both need, and
/// so other instructions.
pub const BUILD_GATE: &str = "build --release --quiet -p gate -p onrush-server --bins";

/// If this variable is set, measured programs are built without optimisation. The tests set it for
/// the documented commands: they check only that the commands work, and optimised links take
/// minutes.
pub const UNOPTIMISED: &str = "XTASK_UNOPTIMISED";

/// Whether [`UNOPTIMISED`] is set.
pub fn is_unoptimised() -> bool {
    env::var_os(UNOPTIMISED).is_some()
}

/// The profile of programs that are measured or packaged: optimised as a whole. `--release` is
/// optimised by crate, because it is the first thing that a user builds.
pub const MEASURED: &str = "--profile=dist";

/// The folder of the programs that `cargo("build --profile=dist …")` builds.
pub fn built() -> PathBuf {
    target().join(if is_unoptimised() { "debug" } else { "dist" })
}

/// Cargo in the root. It builds into [`target`] with as many jobs as memory allows. Omits
/// `--release` and [`MEASURED`] if [`UNOPTIMISED`] is set.
pub fn cargo(arguments: &str) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    let is_kept = |word: &&str| !["--release", MEASURED].contains(word) || !is_unoptimised();
    command
        .args(arguments.split_whitespace().filter(is_kept))
        .current_dir(root())
        .env("CARGO_TARGET_DIR", target())
        .env("CARGO_BUILD_JOBS", jobs().to_string());
    command
}

/// One job for each core, but at least 1.5 GiB of memory for each job: optimised links need it.
fn jobs() -> u64 {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free_kib = field_kib(&memory, "MemAvailable:").unwrap_or(u64::MAX);
    cores.min(free_kib / (3 << 19)).max(1)
}

/// The number in a `Name:   123 kB` line.
pub fn field_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Runs `command` with inherited output. Fails unless it exits with 0.
pub fn run(command: &mut Command) -> Outcome {
    flush();
    let status = command
        .status()
        .map_err(|error| cannot_run(command, &error))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("`{}` failed: {status}", shown(command))),
    }
}

/// Runs `command` and passes each line of its output to `each`. Standard error is inherited. After
/// `quiet_max` without a line, kills the programs that `command` has started, and `command`
/// continues: a program that hangs must not hide the results of the others. After another
/// `quiet_max`, or if it has started none, kills `command` itself.
pub fn run_watched(
    command: &mut Command,
    quiet_max: Duration,
    mut each: impl FnMut(&str),
) -> Outcome<ExitStatus> {
    flush();
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| cannot_run(command, &error))?;
    let (send, lines) = mpsc::channel();
    let out = BufReader::new(child.stdout.take().expect("it was piped"));
    // Not joined: it runs as long as any remaining descendant keeps the pipe open.
    thread::spawn(move || {
        let lines = out.split(b'\n').map_while(Result::ok);
        lines
            .map(|line| send.send(line))
            .take_while(Result::is_ok)
            .for_each(drop);
    });
    let (mut quiet_since, mut checked, mut ended) = (Instant::now(), Instant::now(), None);
    let mut is_first = true;
    loop {
        match lines.recv_timeout(CHECK_INTERVAL) {
            Ok(line) => {
                each(&String::from_utf8_lossy(&line));
                quiet_since = Instant::now();
                is_first = true;
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        if checked.elapsed() < CHECK_INTERVAL {
            continue;
        }
        checked = Instant::now();
        let status = child.try_wait().map_err(|error| error.to_string())?;
        match (ended, status) {
            (Some((_, since)), _) if checked.duration_since(since) > PIPE_OPEN_MAX => break,
            (None, Some(status)) => ended = Some((status, checked)),
            _ => {}
        }
        if quiet_since.elapsed() > quiet_max {
            let tree = process::tree(child.id());
            let spared = usize::from(is_first && tree.len() > 1);
            for process in tree.into_iter().skip(spared) {
                // The process may have ended by itself; then `kill` fails, which is harmless.
                let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
                let (name, time) = (name.trim_end(), elapsed(quiet_max));
                each(&format!("`{name}` printed nothing for {time}: killed"));
                let _ = run(Command::new("sh").args(["-c", "kill -KILL $0", &process.to_string()]));
            }
            quiet_since = Instant::now();
            is_first = false;
        }
    }
    match ended {
        Some((status, _)) => Ok(status),
        None => child.wait().map_err(|error| error.to_string()),
    }
}

/// Interval of the checks of a running program.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// How long output is read after the program itself has ended. Its own output has arrived by then;
/// its descendants may keep the pipe open for longer.
const PIPE_OPEN_MAX: Duration = Duration::from_secs(5);

/// Runs `command`. Returns whether it succeeded, and its standard output followed by its standard
/// error.
pub fn capture(command: &mut Command) -> Outcome<(bool, String)> {
    flush();
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|error| cannot_run(command, &error))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    Ok((output.status.success(), text))
}

/// Why `command` could not be started.
pub fn cannot_run(command: &Command, error: &io::Error) -> String {
    format!("cannot run `{}`: {error}", shown(command))
}

/// The command as typed in a shell, without the folder of its program.
pub fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let program = program.file_name().unwrap_or(command.get_program());
    let words = std::iter::once(program).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Prints a list, a line each. A reader such as head(1) may end before it.
pub fn list(lines: &[&str]) {
    let _ = writeln!(io::stdout(), "{}", lines.join("\n"));
}

/// Flushes standard output, so that the lines of this program precede those of a child.
pub fn flush() {
    let _ = io::stdout().flush();
}

/// The path of `program`, if it is on the `PATH`.
pub fn which(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|dir| dir.join(program))
        .find(|file| is_executable(file))
}

/// Whether `file` is an executable file.
pub fn is_executable(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    fs::metadata(file).is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

/// `1.2 s`, or `3 min 04 s`.
pub fn elapsed(time: Duration) -> String {
    match time.as_secs() {
        0..60 => format!("{:.1} s", time.as_secs_f64()),
        seconds => format!("{} min {:02} s", seconds / 60, seconds % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_fields_are_found_by_their_whole_name() {
        let text = "MemTotal:  100 kB\nMemAvailable:     42 kB\n";
        assert_eq!(field_kib(text, "MemAvailable:"), Some(42));
        assert_eq!(field_kib(text, "Available:"), None);
    }

    #[test]
    fn a_failing_program_is_an_error_that_names_it() {
        assert_eq!(run(Command::new("true").arg("-x")), Ok(()));
        let error = run(Command::new("false").arg("-x")).unwrap_err();
        assert!(error.starts_with("`false -x` failed"), "{error}");
        let error = run(&mut Command::new("/nowhere/no-such-program")).unwrap_err();
        assert!(error.starts_with("cannot run `no-such-program`"), "{error}");
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let watched = |script: &str| {
            let mut printed = Vec::new();
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            let each = |line: &str| printed.push(line.to_owned());
            let status = run_watched(&mut command, Duration::from_millis(10), each).unwrap();
            (status.code(), printed.join("; "))
        };
        let one = "echo before; sleep 600 & wait $!; echo between; sleep 600; echo after; exit 3";
        let killed = "`sleep` printed nothing for 0.0 s: killed";
        let printed = format!("before; {killed}; between; {killed}; after");
        assert_eq!(watched(one), (Some(3), printed));
        // It hangs itself, at once or when the program that it has started is killed.
        assert_eq!(watched("exec sleep 600"), (None, killed.to_owned()));
        let (code, printed) = watched("sleep 600; sleep 600; echo not reached");
        assert_eq!(code, None);
        assert!(
            printed.starts_with(&format!("{killed}; `sh` printed nothing")),
            "{printed}"
        );
    }

    #[test]
    fn descendants_do_not_delay_the_end() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!"]);
        let mut descendant = String::new();
        let each = |line: &str| descendant.push_str(line);
        let status = run_watched(&mut command, Duration::from_secs(300), each).unwrap();
        assert!(status.success());
        run(Command::new("sh").args(["-c", "kill $0", &descendant])).unwrap();
    }

    #[test]
    fn times_are_shown_in_minutes_and_seconds() {
        assert_eq!(elapsed(Duration::from_millis(1_240)), "1.2 s");
        assert_eq!(elapsed(Duration::from_secs(184)), "3 min 04 s");
    }
}
