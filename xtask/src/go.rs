//! Builds the Go programs that the tests need.
//!
//! Debian 12 has Go 1.19, which is too old for them and cannot fetch a newer one. So, if no recent
//! `go` is on the `PATH`, the toolchain comes from the Go module proxy, as `go` itself would fetch
//! it. Everything is kept in `target/tools`.

use crate::shell::{Outcome, capture, is_executable, root, run, target, which};
use std::{env, fs, os::unix::fs::PermissionsExt, path::Path, path::PathBuf, process::Command};

/// The oldest release of Go that is used, as major and minor version.
const OLDEST: (u32, u32) = (1, 24);
/// The release to fetch, and the SHA-256 of its archives.
const RELEASE: &str = "1.25.4";
const ARCHIVES: [(&str, &str, &str); 2] = [
    (
        "x86_64",
        "amd64",
        "f4fa35e13952bae9836a82d8cf077710cd58fee98d31680f94edf435852b1af2",
    ),
    (
        "aarch64",
        "arm64",
        "2f51856a090fbee308b1e38e19eb46f59827b1518c61afb4cc46cc4f649b1799",
    ),
];

/// The ACME server for tests.
const PEBBLE: (&str, &str) = ("github.com/letsencrypt/pebble/v2/cmd/pebble", "v2.10.1");

/// The suite of tests for servers of HTTP/2. Its newest version that is a module by this path. It
/// names no versions of what it needs, so a module of ours does: such that [`OLDEST`] suffices.
const H2SPEC: (&str, &str) = ("github.com/summerwind/h2spec", "v2.2.1+incompatible");
const H2SPEC_NEEDS: [(&str, &str); 8] = [
    ("github.com/fatih/color", "v1.18.0"),
    ("github.com/mattn/go-colorable", "v0.1.14"),
    ("github.com/mattn/go-isatty", "v0.0.20"),
    ("github.com/spf13/cobra", "v1.10.2"),
    ("github.com/spf13/pflag", "v1.0.9"),
    ("golang.org/x/net", "v0.47.0"),
    ("golang.org/x/sys", "v0.38.0"),
    ("golang.org/x/text", "v0.31.0"),
];

/// gRPC, for a client of the tests.
const GRPC: (&str, &str) = ("google.golang.org/grpc", "v1.80.0");

/// OpenTofu, which keeps its state on a server. It is built within a module of ours, because its
/// own has a replacement, which `go install` refuses.
const TOFU: (&str, &str) = ("github.com/opentofu/opentofu", "v1.10.10");
const TOFU_REPLACEMENT: &str = "github.com/hashicorp/hcl/v2 v2.20.1 => \
github.com/opentofu/hcl/v2 v2.20.2-0.20251021132045-587d123c2828";

/// The path of a recent `go`: from the `PATH`, or fetched once. Its programs need no C compiler.
pub fn go() -> Outcome<PathBuf> {
    if let Some(found) = which("go")
        && is_recent(&found)
    {
        return Ok(found);
    }
    let machine = env::consts::ARCH;
    let archive = ARCHIVES.iter().find(|(name, ..)| *name == machine);
    let Some((_, name, sha256)) = archive else {
        return Err(format!("install Go {}.{} or newer", OLDEST.0, OLDEST.1));
    };
    let tools = target().join("tools");
    let module = format!("golang.org/toolchain@v0.0.1-go{RELEASE}.linux-{name}");
    let go = tools.join(&module).join("bin/go");
    if is_executable(&go) {
        return Ok(go);
    }
    println!("Fetching Go {RELEASE} into {}.", tools.display());
    let error = |error: std::io::Error| format!("{}: {error}", tools.display());
    fs::create_dir_all(&tools).map_err(error)?;
    let (file, version) = ("go-toolchain.zip", module.rsplit('@').next());
    let url = format!(
        "https://proxy.golang.org/golang.org/toolchain/@v/{}.zip",
        version.unwrap_or_default()
    );
    let within = |program: &str| {
        let mut command = Command::new(program);
        command.current_dir(&tools);
        command
    };
    run(within("curl").args(["-sSfL", "--retry", "3", "-o", file, &url]))?;
    let check = format!("echo '{sha256}  {file}' | sha256sum --check --quiet");
    run(within("sh").args(["-c", &check]))?;
    run(within("python3").args(["-m", "zipfile", "-e", file, "."]))?;
    let _ = fs::remove_file(tools.join(file));
    // The module of Python does not restore permissions. `go` is last, because its permission
    // shows that the toolchain is complete.
    let root = tools.join(&module);
    for folder in [format!("pkg/tool/linux_{name}"), "bin".to_owned()] {
        let entries = fs::read_dir(root.join(folder)).map_err(error)?;
        for entry in entries {
            let path = entry.map_err(error)?.path();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).map_err(error)?;
        }
    }
    Ok(go)
}

/// A command of a recent Go that keeps its caches in `target/tools/go`, and never fetches another
/// release of itself.
pub fn command() -> Outcome<Command> {
    let folder = target().join("tools/go");
    let mut command = Command::new(go()?);
    command
        .env("GOTOOLCHAIN", "local")
        .env("GOPATH", folder.join("path"))
        .env("GOCACHE", folder.join("cache"))
        // The folder can then be removed like any other.
        .env("GOFLAGS", "-modcacherw")
        .env("CGO_ENABLED", "0")
        .env_remove("GOROOT");
    Ok(command)
}

/// The path of pebble, an ACME server for tests. Builds it into `target/tools/bin` if needed.
pub fn pebble() -> Outcome<PathBuf> {
    let (module, version) = PEBBLE;
    built("pebble", version, |built| {
        run(command()?
            .args(["install", &format!("{module}@{version}")])
            .env("GOBIN", built.parent().unwrap_or(built))
            .current_dir("/"))
    })
}

/// Builds OpenTofu into `target/tools/bin` if needed. This takes minutes.
pub fn tofu() -> Outcome<PathBuf> {
    let (module, version) = TOFU;
    let needs = format!("require {module} {version}\n\nreplace {TOFU_REPLACEMENT}\n");
    built("tofu", version, |built| {
        build_within("1.24.13", &needs, &format!("{module}/cmd/tofu"), built)
    })
}

/// The path of h2spec. Builds it into `target/tools/bin` if needed.
pub fn h2spec() -> Outcome<PathBuf> {
    let (module, version) = H2SPEC;
    let mut needs = format!("require {module} {version}\n");
    for (module, version) in H2SPEC_NEEDS {
        needs.push_str(&format!("require {module} {version}\n"));
    }
    built("h2spec", version, |built| {
        build_within("1.24.0", &needs, &format!("{module}/cmd/h2spec"), built)
    })
}

/// Builds a program within a module of ours, which needs this of other modules.
fn build_within(go: &str, needs: &str, program: &str, built: &Path) -> Outcome {
    let name = built.file_name().unwrap_or(built.as_os_str());
    let source = target().join("tools").join(name);
    let error = |error: std::io::Error| format!("{}: {error}", source.display());
    fs::create_dir_all(&source).map_err(error)?;
    let text = format!("module tools\n\ngo {go}\n\n{needs}");
    fs::write(source.join("go.mod"), text).map_err(error)?;
    run(command()?
        .args(["build", "-mod=mod", "-o"])
        .arg(built)
        .arg(program)
        .current_dir(&source))
}

/// The path of the program `name` in `target/tools/bin`, which `build` makes if this version of it
/// is not there.
fn built(name: &str, version: &str, build: impl FnOnce(&Path) -> Outcome) -> Outcome<PathBuf> {
    let tools = target().join("tools");
    let built = tools.join("bin").join(name);
    // The name of this file has the version, so a change of it causes a build.
    let stamp = tools.join(format!("{name}-{version}"));
    if !(is_executable(&built) && stamp.exists()) {
        println!("Building {name} {version}: {}", built.display());
        build(&built)?;
        fs::write(&stamp, "").map_err(|error| format!("{}: {error}", stamp.display()))?;
    }
    Ok(built)
}

/// Builds the HTTPS client of the tests into `target/tools/bin`.
pub fn tls_client() -> Outcome {
    let source = root().join("crates/onrush-server/tests/tls_clients/client.go");
    let built = target().join("tools/bin/tls-client");
    run(command()?
        .args(["build", "-o"])
        .arg(built)
        .arg(source)
        .current_dir("/"))
}

/// Builds the client of gRPC of the tests into `target/tools/bin`.
pub fn grpc_client() -> Outcome {
    let source = root().join("crates/onrush-tower/tests/grpc_clients/client.go");
    let built = target().join("tools/bin/grpc-client");
    let copy = target().join("tools/grpc-client/client.go");
    let error = |error: std::io::Error| format!("{}: {error}", copy.display());
    fs::create_dir_all(copy.parent().unwrap_or(&copy)).map_err(error)?;
    fs::copy(source, &copy).map_err(error)?;
    let (module, version) = GRPC;
    build_within(
        "1.24.0",
        &format!("require {module} {version}\n"),
        ".",
        &built,
    )
}

/// Whether this `go` is [`OLDEST`] or newer.
fn is_recent(go: &Path) -> bool {
    let version = capture(Command::new(go).arg("version").env("GOTOOLCHAIN", "local"));
    version.is_ok_and(|(ok, text)| ok && release(&text).is_some_and(|found| found >= OLDEST))
}

/// The release in `go version go1.25.4 linux/amd64`.
fn release(text: &str) -> Option<(u32, u32)> {
    let version = text.split_whitespace().nth(2)?.strip_prefix("go")?;
    let mut parts = version.split('.');
    let major = parts.next()?.parse().ok()?;
    let minor: String = (parts.next()?.chars().take_while(char::is_ascii_digit)).collect();
    Some((major, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_of_go_is_read() {
        assert_eq!(release("go version go1.19.8 linux/amd64"), Some((1, 19)));
        assert_eq!(release("go version go1.26rc1 linux/arm64\n"), Some((1, 26)));
        assert_eq!(release("go version devel"), None);
        assert_eq!(release(""), None);
    }
}
