//! The pages of `docs/recipes` as tests: their commands run as they are written.
//!
//! A block marked `sh` runs in a shell, in a folder of the test. If its first word is `onrush`, the
//! real binary starts with these arguments on a free port, in place of the one before. The address
//! in the pages, `127.0.0.1:8080`, stands for its address.

mod builds; // Turborepo, nx, moon, Rush
mod data; // tables, images, states
mod files; // copies, large transfers, Git, live video
mod packages; // apt, pip, npm, Go, Cargo, pacman, zypper, OSTree, Nix
mod webdav; // backups, a mounted folder

use crate::program::{Folder, Server, drivers, is_installed, onrush, output_within};
use crate::program::{pattern, wait_until};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};
use std::{env, fs, vec};
use testing::programs::tools;

const ADDRESS: &str = "127.0.0.1:8080";
/// A block that runs for longer hangs.
const TIME_MAX: Duration = Duration::from_secs(300);

/// The folder of the pages.
pub fn pages() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/recipes")
}

/// A page whose commands are run in order. Dropping it removes everything.
pub struct Recipe {
    name: &'static str,
    driver: &'static str,
    blocks: vec::IntoIter<String>,
    /// The block that was run last.
    last: String,
    server: Option<Server>,
    /// Where programs are looked up.
    path: OsString,
    folder: Folder,
}

/// The page for each driver that is available; none if a program is missing.
pub fn recipes(name: &'static str, programs: &[&str]) -> Vec<Recipe> {
    recipes_with(name, programs, &[])
}

/// As [`recipes`]. Programs are looked up in these folders first.
pub fn recipes_with(name: &'static str, programs: &[&str], folders: &[PathBuf]) -> Vec<Recipe> {
    let is_found = |program: &&str| {
        let own = folders.iter().any(|folder| folder.join(program).is_file());
        own || is_installed(program)
    };
    if !programs.iter().all(is_found) {
        return Vec::new();
    }
    let others = env::var_os("PATH").unwrap_or_default();
    let all = folders.iter().cloned().chain(env::split_paths(&others));
    let path = env::join_paths(all).expect("no colons");
    let each = drivers().into_iter();
    each.map(|driver| Recipe::new(name, driver, &path))
        .collect()
}

impl Recipe {
    fn new(name: &'static str, driver: &'static str, path: &OsStr) -> Recipe {
        let page = fs::read_to_string(pages().join(name).with_extension("md"));
        let folder = Folder::new();
        fs::create_dir(folder.path().join("home")).expect("a folder");
        Recipe {
            name,
            driver,
            blocks: blocks(&page.expect("a page")).into_iter(),
            last: String::new(),
            server: None,
            path: path.to_owned(),
            folder,
        }
    }

    /// The folder in which the commands run.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    /// The content of a file that the commands have made.
    pub fn read(&self, name: &str) -> Vec<u8> {
        let content = fs::read(self.folder.path().join(name));
        content.unwrap_or_else(|error| panic!("{}, {name}: {error}", self.title()))
    }

    /// The server of the last block with `onrush`.
    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("the page has started a server")
    }

    /// The page and the driver, for messages.
    pub fn title(&self) -> String {
        format!("{} on {}", self.name, self.driver)
    }

    /// Runs the next block and returns its output.
    pub fn step(&mut self) -> String {
        self.last = self.blocks.next().expect("the page has a further block");
        self.again()
    }

    /// Runs the last block once more.
    pub fn again(&mut self) -> String {
        self.run(&self.last.clone())
    }

    /// Runs the last block once more, which must fail. Returns its exit code.
    pub fn fails(&self) -> Option<i32> {
        let output = output_within(&mut self.shell(&self.last), TIME_MAX);
        assert!(!output.status.success(), "{}: {}", self.title(), self.last);
        output.status.code()
    }

    /// Runs the blocks that remain.
    pub fn finish(&mut self) {
        while self.blocks.len() > 0 {
            self.step();
        }
    }

    /// Runs commands, which must succeed, as those of a block. Returns their output.
    pub fn run(&mut self, block: &str) -> String {
        if let Some(arguments) = block.strip_prefix("onrush ") {
            self.serve(arguments);
            return String::new();
        }
        let output = output_within(&mut self.shell(block), TIME_MAX);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let title = self.title();
        let is_done = output.status.success();
        assert!(
            is_done,
            "{title}: {block}\nprinted {printed}\nand said {said}"
        );
        printed
    }

    /// Starts the next block, and kills it as soon as the condition holds.
    pub fn interrupt_next(&mut self, condition: impl Fn(&Recipe) -> bool) {
        let block = self.blocks.next().expect("the page has a further block");
        self.interrupt(&block, condition);
    }

    /// Starts commands, and kills them as soon as the condition holds. They must still run then.
    pub fn interrupt(&self, block: &str, condition: impl Fn(&Recipe) -> bool) {
        let mut shell = self.shell(block);
        // A group of their own, so that all of them are killed.
        let mut child = shell.process_group(0).spawn().expect("a shell");
        wait_until(|| condition(self));
        assert_eq!(
            child.try_wait().expect("a child"),
            None,
            "{}: {block}",
            self.title()
        );
        let group = format!("-{}", child.id());
        let kill = Command::new("kill").args(["-KILL", "--", &group]).status();
        assert!(kill.expect("kill can be started").success());
        child.wait().expect("a child");
    }

    /// A shell that runs commands, as those of a block.
    pub fn shell(&self, block: &str) -> Command {
        let server = self.server.as_ref().map(|server| server.address());
        let address = server.map_or(ADDRESS.to_owned(), |address| address.to_string());
        let mut shell = Command::new("sh");
        shell.args(["-euc", &block.replace(ADDRESS, &address)]);
        shell.current_dir(self.folder.path()).stdin(Stdio::null());
        shell.env("HOME", self.folder.path().join("home"));
        shell.env("PATH", &self.path).env("LC_ALL", "C.UTF-8");
        // What these programs would do with the network otherwise, or with modules to remove.
        shell
            .env("PIP_CONFIG_FILE", "/dev/null")
            .env("PIP_DISABLE_PIP_VERSION_CHECK", "1");
        shell
            .env("GOTOOLCHAIN", "local")
            .env("GOFLAGS", "-modcacherw");
        shell
            .env("CARGO_HOME", self.folder.path().join("home/.cargo"))
            .env_remove("CARGO_TARGET_DIR");
        shell
            .env("CHECKPOINT_DISABLE", "1")
            .env("DO_NOT_TRACK", "1");
        let home = self.folder.path().join("home");
        shell.env("MAVEN_OPTS", format!("-Duser.home={}", home.display()));
        // No process stays.
        shell.env("NX_DAEMON", "false").env("NX_TUI", "false");
        // Every request of a recipe is for this machine.
        for proxy in ["http_proxy", "https_proxy", "all_proxy"] {
            shell.env_remove(proxy).env_remove(proxy.to_uppercase());
        }
        shell
    }

    /// Starts the server, and ends the one before.
    fn serve(&mut self, arguments: &str) {
        self.server = None;
        let mut command = onrush();
        command.current_dir(self.folder.path());
        // Quotes are for the shell of the reader.
        let words = arguments.split_whitespace();
        command.args(words.map(|word| word.trim_matches('\'')));
        command.args(["--port", "0", "--driver", self.driver, "--access-log", "on"]);
        self.server = Some(Server::run(command));
    }
}

/// Makes files with names that programs encode in different ways, and sizes around limits of
/// buffers. They are an hour old, because programs compare times in seconds.
pub fn fill(recipe: &Recipe, folder: &str) {
    let names = [
        "a.txt",
        "docs/index.html",
        "docs/b c&d.txt",
        "größe/100%.txt",
        "e/f/#?;=:+",
    ];
    let time = SystemTime::now() - Duration::from_secs(3600);
    for (at, name) in names.iter().enumerate() {
        let content = pattern(at as u64, at * 70_000);
        let path = recipe.folder().file(&format!("{folder}/{name}"), content);
        let file = fs::File::options().write(true).open(path);
        let set = file.and_then(|file| file.set_modified(time));
        set.expect("the owner may set the time");
    }
}

/// The files beneath a folder, except those of the store itself, with their content.
pub fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut open = vec![folder.to_owned()];
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(&at).unwrap_or_else(|e| panic!("{}: {e}", at.display())) {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                open.extend((!path.ends_with(".onrush")).then_some(path));
            } else {
                let name = path.strip_prefix(folder).expect("beneath").to_owned();
                files.insert(name, fs::read(&path).expect("a file"));
            }
        }
    }
    files
}

/// Checks that two folders have the same files. Names those that differ.
pub fn assert_same(one: &Path, other: &Path, title: &str) {
    let (one, other) = (tree(one), tree(other));
    let names = one.keys().chain(other.keys());
    let different = names.filter(|name| one.get(*name) != other.get(*name));
    let different: Vec<_> = different.take(5).collect();
    assert!(different.is_empty(), "{title}: these differ: {different:?}");
    assert!(!one.is_empty(), "{title}: no files");
}

/// The blocks of a page that are marked `sh`.
fn blocks(page: &str) -> Vec<String> {
    let mut blocks: Vec<String> = Vec::new();
    let mut is_inside = false;
    for line in page.lines() {
        match line {
            "```sh" => {
                is_inside = true;
                blocks.push(String::new());
            }
            "```" => is_inside = false,
            line if is_inside => {
                let block = blocks.last_mut().expect("it has begun");
                block.push_str(line);
                block.push('\n');
            }
            _ => {}
        }
    }
    blocks
}

#[test]
fn a_program_is_looked_up_and_not_run() {
    let folder = Folder::new();
    let made = folder.path().join("made");
    let program = folder.file("program", format!("#!/bin/sh\n: > {}\n", made.display()));
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&program, mode).expect("a mode");
    assert!(is_installed(program.to_str().expect("UTF-8")));
    assert!(!made.exists());
}
