//! Attributes instructions to the server, whose instructions count, or to the simulator.
//!
//! The optimiser inlines most of the simulator into functions of the server and vice versa. So the
//! source line of each instruction decides, not its function: the innermost line in a crate of this
//! project. Shared code (`memcpy`, `malloc`, std) is divided in proportion to the cost of the calls
//! from each side.

use crate::callgrind::{Function, Run};
use addr2line::Loader;
use std::collections::HashMap;
use std::path::Path;

/// Passes over the calls. Call chains from the simulator into libraries are less deep.
const PASSES: usize = 32;

/// The source files of the simulator. `slots.rs` is shared by all drivers, but the measured program
/// uses the simulated one only.
const SIMULATOR: [&str; 3] = [
    "onrush-rt/driver/sim/",
    "onrush-rt/driver/slots.rs",
    "onrush-rt/fs/sim/",
];

/// The source of an instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Such as `onrush/engine/http1/send.rs flush`.
    pub(crate) label: String,
    pub(crate) simulator: bool,
}

/// Finds the owner of an address in an object.
pub(crate) trait Owners {
    /// The innermost function of this project that the instruction belongs to. `None` for
    /// libraries.
    fn of(&self, object: &str, address: u64) -> Option<Owner>;
    /// Whether the function at `entry` belongs to this project, whatever was inlined into it.
    fn is_ours(&self, object: &str, entry: u64) -> bool;
}

/// Finds owners in the debug information of a program.
pub(crate) struct DebugInfo {
    program: String,
    loader: Loader,
}

impl DebugInfo {
    /// Reads the debug information of `program`, an absolute path.
    pub(crate) fn of(program: &Path) -> Result<DebugInfo, String> {
        let loader = Loader::new(program)
            .map_err(|error| format!("the debug information of the program: {error}"))?;
        Ok(DebugInfo {
            program: program.display().to_string(),
            loader,
        })
    }

    /// The source files and functions of an address, innermost first.
    fn frames(&self, object: &str, address: u64) -> Vec<(String, String)> {
        let mut all = Vec::new();
        if object != self.program {
            return all;
        }
        let Ok(mut frames) = self.loader.find_frames(address) else {
            return all;
        };
        while let Ok(Some(frame)) = frames.next() {
            let file = frame.location.and_then(|location| location.file);
            let name = frame
                .function
                .and_then(|name| Some(name.demangle().ok()?.into_owned()));
            all.push((
                file.unwrap_or_default().to_owned(),
                name.unwrap_or_default(),
            ));
        }
        all
    }
}

impl Owners for DebugInfo {
    fn of(&self, object: &str, address: u64) -> Option<Owner> {
        let frames = self.frames(object, address);
        frames.iter().find_map(|(file, name)| owner(file, name))
    }

    fn is_ours(&self, object: &str, entry: u64) -> bool {
        let frames = self.frames(object, entry);
        frames
            .last()
            .is_some_and(|(file, name)| owner(file, name).is_some())
    }
}

/// The owner of one source file and function. `None` if the file does not belong to this project.
fn owner(file: &str, function: &str) -> Option<Owner> {
    let (at, folder) = ["crates/onrush", "bench/gate"]
        .iter()
        .filter_map(|folder| Some((file.rfind(folder)?, *folder)))
        .max()?;
    let rest = &file[at..];
    // `crates/onrush-rt/src/buf.rs` is `onrush-rt/buf.rs`.
    let short = rest[folder.rfind('/')? + 1..].replacen("/src/", "/", 1);
    let function = function.split('<').next().unwrap_or_default();
    let function = function.rsplit("::").next().unwrap_or_default();
    Some(Owner {
        label: format!("{short} {function}"),
        simulator: SIMULATOR.iter().any(|path| short.contains(path)),
    })
}

/// The instructions of a run, divided between server and simulator.
#[derive(Debug, PartialEq)]
pub(crate) struct Division {
    /// Instructions of the server.
    pub(crate) server: f64,
    /// Instructions of the simulator.
    pub(crate) simulator: f64,
    /// The server's instructions by function, highest first.
    pub(crate) functions: Vec<(String, f64)>,
}

/// Divides the counted instructions.
pub(crate) fn divide(run: &Run, owners: &impl Owners) -> Division {
    let shares = shares(run, owners);
    let mut by_label: HashMap<String, f64> = HashMap::new();
    let (mut server, mut simulator) = (0.0, 0.0);
    for (function, &share) in run.functions.iter().zip(&shares) {
        for &(address, cost) in &function.own {
            let owner = owners.of(&function.object, address);
            let share = owner
                .as_ref()
                .map_or(share, |owner| f64::from(u8::from(owner.simulator)));
            let ours = cost as f64 * (1.0 - share);
            let label = owner.map_or_else(|| label(function), |owner| owner.label);
            *by_label.entry(label).or_default() += ours;
            server += ours;
            simulator += cost as f64 * share;
        }
    }
    let mut functions: Vec<_> = by_label
        .into_iter()
        .filter(|(_, cost)| *cost > 0.0)
        .collect();
    functions.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    Division {
        server,
        simulator,
        functions,
    }
}

/// The name of a function outside this project, with its library.
fn label(function: &Function) -> String {
    let library = function.object.rsplit('/').next().unwrap_or_default();
    match library.contains(".so") {
        true => format!("{library} {}", function.name),
        false => function.name.clone(),
    }
}

/// The share of each function, from 0 to 1, that was executed for the simulator. It applies to
/// instructions whose own owner is not known.
fn shares(run: &Run, owners: &impl Owners) -> Vec<f64> {
    // For each call: the caller, the known share of the call's address, and the call. Calls to
    // functions of this project are left out, because those have owners of their own.
    let mut calls = Vec::new();
    for (caller, function) in run.functions.iter().enumerate() {
        for call in &function.calls {
            if !owners.is_ours(&run.functions[call.callee].object, call.entry) {
                let owner = owners.of(&function.object, call.from);
                let known = owner.map(|owner| f64::from(u8::from(owner.simulator)));
                calls.push((caller, known, call));
            }
        }
    }
    let mut shares = vec![0.0; run.functions.len()];
    for _ in 0..PASSES {
        let mut sums = vec![(0.0, 0.0); run.functions.len()];
        for (caller, known, call) in &calls {
            let cost = call.cost as f64;
            let sum = &mut sums[call.callee];
            sum.0 += cost * known.unwrap_or(shares[*caller]);
            sum.1 += cost;
        }
        let share = |(part, whole): (f64, f64)| if whole > 0.0 { part / whole } else { 0.0 };
        shares = sums.into_iter().map(share).collect();
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::callgrind::Call;

    /// In `server`, addresses below 100 belong to the engine, those below 200 to the simulator, and
    /// the rest to std.
    struct Ranges;

    impl Owners for Ranges {
        fn of(&self, object: &str, address: u64) -> Option<Owner> {
            let label = if address < 100 { "engine" } else { "sim" };
            (object == "server" && address < 200).then(|| Owner {
                label: label.to_owned(),
                simulator: label == "sim",
            })
        }

        fn is_ours(&self, object: &str, entry: u64) -> bool {
            self.of(object, entry).is_some()
        }
    }

    fn function(object: &str, name: &str, own: &[(u64, u64)], calls: &[[u64; 4]]) -> Function {
        let call = |&[from, callee, entry, cost]: &[u64; 4]| Call {
            from,
            callee: callee as usize,
            entry,
            cost,
        };
        Function {
            object: object.to_owned(),
            name: name.to_owned(),
            own: own.to_vec(),
            calls: calls.iter().map(call).collect(),
        }
    }

    #[test]
    fn shared_functions_are_divided_by_their_callers() {
        // `poll` has code of the simulator inlined; both call `push`, which calls `malloc`.
        let poll = [[11, 1, 300, 10], [101, 1, 300, 30]];
        let functions = vec![
            function("server", "poll", &[(10, 50), (100, 25)], &poll),
            function("server", "push", &[(300, 8)], &[[301, 2, 900, 32]]),
            function("/lib/libc.so.6", "malloc", &[(900, 32)], &[]),
        ];
        let run = Run {
            total: 115,
            functions,
        };
        let divided = divide(&run, &Ranges);
        assert_eq!((divided.server, divided.simulator), (60.0, 55.0));
        let rows = [("engine", 50.0), ("libc.so.6 malloc", 8.0), ("push", 2.0)];
        let rows = rows.map(|(label, cost)| (label.to_owned(), cost));
        assert_eq!(divided.functions, rows);
    }

    #[test]
    fn functions_of_the_project_keep_their_costs() {
        let functions = vec![
            function("server", "sim", &[(100, 5)], &[[101, 1, 20, 7]]),
            function("server", "recycle", &[(20, 7)], &[]),
        ];
        let run = Run {
            total: 12,
            functions,
        };
        let divided = divide(&run, &Ranges);
        assert_eq!((divided.server, divided.simulator), (7.0, 5.0));
    }

    #[test]
    fn owners_are_known_by_their_source() {
        let of = |file: &str, name: &str| owner(file, name).map(|o| (o.label, o.simulator));
        let label = |text: &str, simulator| Some((text.to_owned(), simulator));
        let file = "/home/me/onrush/crates/onrush-rt/src/driver/sim/mod.rs";
        assert_eq!(
            of(file, "ready"),
            label("onrush-rt/driver/sim/mod.rs ready", true)
        );
        let file = "crates/onrush-rt/src/driver/slots.rs";
        let shared = "onrush-rt/driver/slots.rs insert";
        assert_eq!(of(file, "insert<T>"), label(shared, true));
        let file = "crates/onrush/src/engine/http1/send.rs";
        let name = "onrush::engine::send::<impl onrush::engine::Engine>::flush";
        assert_eq!(
            of(file, "flush"),
            label("onrush/engine/http1/send.rs flush", false)
        );
        assert!(of(file, name).is_some());
        assert_eq!(
            of(file, "poll<()>"),
            label("onrush/engine/http1/send.rs poll", false)
        );
        let part = "onrush/engine/http1/send.rs {async_fn#0}";
        assert_eq!(of(file, "{async_fn#0}<T>"), label(part, false));
        assert_eq!(of("/rustc/1/library/alloc/src/vec/mod.rs", "push"), None);
        assert_eq!(of("", ""), None);
    }
}
