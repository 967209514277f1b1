//! Parser of callgrind's output: the instruction counts and the calls between functions.
//!
//! The output is written with `--dump-instr=yes --compress-strings=no --compress-pos=no`, so it has
//! every name and every address in full. `owner` attributes the addresses.

use std::collections::HashMap;

/// A run, as recorded by callgrind.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    /// All counted instructions, according to callgrind's own sum.
    pub(crate) total: u64,
    pub(crate) functions: Vec<Function>,
}

/// A function of one object (a program or a library).
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) object: String,
    pub(crate) name: String,
    /// Addresses of the object and the instructions executed there, without those of callees.
    pub(crate) own: Vec<(u64, u64)>,
    pub(crate) calls: Vec<Call>,
}

/// All calls from one address to one function.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The address of the call instruction.
    pub(crate) from: u64,
    /// The called function: an index into [`Run::functions`].
    pub(crate) callee: usize,
    /// The start address of the callee in its object.
    pub(crate) entry: u64,
    /// The instructions of the callee, including those of its own callees.
    pub(crate) cost: u64,
}

impl Run {
    /// Parses a file's text. Fails with the first invalid line, or if the sums do not agree.
    pub(crate) fn parse(text: &str) -> Result<Run, String> {
        let mut reader = Reader::default();
        for (index, line) in text.lines().enumerate() {
            reader
                .line(line)
                .ok_or_else(|| format!("callgrind's line {} is invalid: {line}", index + 1))?;
        }
        let run = reader.run;
        let own = |function: &Function| function.own.iter().map(|&(_, cost)| cost).sum::<u64>();
        let sum: u64 = run.functions.iter().map(own).sum();
        if sum == 0 {
            return Err("callgrind counted nothing".to_owned());
        }
        if sum != run.total {
            let total = run.total;
            return Err(format!(
                "callgrind's total is {total}, but its lines add up to {sum}"
            ));
        }
        Ok(run)
    }
}

#[derive(Default)]
struct Reader {
    run: Run,
    index: HashMap<(String, String), usize>,
    object: String,
    current: Option<usize>,
    callee_object: Option<String>,
    callee: Option<String>,
    /// The callee and its entry, if the last line was `calls=`: the next cost is that of the call.
    call: Option<(usize, u64)>,
}

impl Reader {
    fn line(&mut self, line: &str) -> Option<()> {
        if let Some((key, value)) = line.split_once('=') {
            return self.assignment(key, value);
        }
        if line.starts_with("0x") {
            return self.cost(line);
        }
        if let Some(sum) = line.strip_prefix("totals:") {
            self.run.total = sum.trim().parse().ok()?;
        }
        if let Some(what) = line.strip_prefix("positions:") {
            return (what.trim() == "instr line").then_some(());
        }
        if let Some(what) = line.strip_prefix("events:") {
            return (what.trim() == "Ir").then_some(());
        }
        Some(()) // Other information about the run, or an empty line.
    }

    fn assignment(&mut self, key: &str, value: &str) -> Option<()> {
        match key {
            "ob" => value.clone_into(&mut self.object),
            "fn" => self.current = Some(self.function(self.object.clone(), value)),
            "cob" => self.callee_object = Some(value.to_owned()),
            "cfn" => self.callee = Some(value.to_owned()),
            "calls" => {
                let object = self.callee_object.take();
                let object = object.unwrap_or_else(|| self.object.clone());
                let name = self.callee.take()?;
                let entry = address(value.split_whitespace().nth(1)?)?;
                self.call = Some((self.function(object, &name), entry));
            }
            _ => {} // Source files; the addresses are more precise.
        }
        Some(())
    }

    fn cost(&mut self, line: &str) -> Option<()> {
        let mut words = line.split_whitespace();
        let at = address(words.next()?)?;
        let cost = words.nth(1)?.parse().ok()?;
        let function = &mut self.run.functions[self.current?];
        match self.call.take() {
            Some((callee, entry)) => function.calls.push(Call {
                from: at,
                callee,
                entry,
                cost,
            }),
            None => function.own.push((at, cost)),
        }
        Some(())
    }

    fn function(&mut self, object: String, name: &str) -> usize {
        let functions = &mut self.run.functions;
        let key = (object, name.to_owned());
        *self.index.entry(key).or_insert_with_key(|(object, name)| {
            functions.push(Function {
                object: object.clone(),
                name: name.clone(),
                ..Function::default()
            });
            functions.len() - 1
        })
    }
}

fn address(word: &str) -> Option<u64> {
    u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "\
# callgrind format
version: 1
positions: instr line
events: Ir
summary: 33

ob=/bin/server
fl=/src/main.rs
fn=serve
0x10 5 3
0x14 6 2
cob=/lib/libc.so
cfi=???
cfn=memcpy
calls=2 0x900 0
0x18 7 20
fi=/src/other.rs
0x1c 8 5
cfn=helper
calls=1 0x40 9
0x20 9 3

fl=/src/main.rs
fn=helper
0x40 9 3

ob=/lib/libc.so
fl=???
fn=memcpy
0x900 0 20

totals: 33
";

    #[test]
    fn costs_and_calls_are_distinguished() {
        let run = Run::parse(FILE).unwrap();
        assert_eq!(run.total, 33);
        let names: Vec<_> = run
            .functions
            .iter()
            .map(|f| (&f.object[..], &f.name[..]))
            .collect();
        let server = "/bin/server";
        let all = [
            (server, "serve"),
            ("/lib/libc.so", "memcpy"),
            (server, "helper"),
        ];
        assert_eq!(names, all);
        assert_eq!(run.functions[0].own, [(0x10, 3), (0x14, 2), (0x1c, 5)]);
        let calls = [(0x18, 1, 0x900, 20), (0x20, 2, 0x40, 3)];
        let calls = calls.map(|(from, callee, entry, cost)| Call {
            from,
            callee,
            entry,
            cost,
        });
        assert_eq!(run.functions[0].calls, calls);
        assert_eq!(run.functions[1].own, [(0x900, 20)]);
    }

    #[test]
    fn invalid_files_are_rejected() {
        let with = |from: &str, to: &str| Run::parse(&FILE.replace(from, to)).unwrap_err();
        assert!(with("totals: 33", "totals: 34").contains("33"));
        assert!(with("events: Ir", "events: Ir Dr").contains("events"));
        assert!(with("instr line", "line").contains("positions"));
        assert!(with("0x40 9 3", "0x40 9").contains("0x40 9"));
        assert!(with("cfn=memcpy\n", "").contains("calls="));
        assert!(Run::parse("").unwrap_err().contains("nothing"));
    }
}
