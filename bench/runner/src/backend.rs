//! A service of objects for the front ends of the profile `scale`: a Ceph cluster that runs until
//! this is dropped, with files of its own.

use crate::probe::receive;
use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
};
use xtask::shell::{Outcome, capture, cargo, run, shown, which};

/// The port of the gateway. The next 40 are used as well.
const PORT: u16 = 29_800;

/// The bucket that needs no signature, because nginx makes none.
const BUCKET: &str = "open";

/// The folders in the bucket, one for each server of a pair, so that they do not replace the same
/// objects.
pub(crate) const COPIES: [&str; 2] = ["a", "b"];

/// The objects in each of [`COPIES`], and their lengths.
const OBJECTS: [(&str, usize); 2] = [("1k", 1024), ("1m", 1_000_000)];

/// How front ends reach the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Service {
    pub(crate) gateway: SocketAddr,
    pub(crate) key_id: String,
    pub(crate) secret: String,
}

impl Service {
    /// The URL of the gateway.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.gateway)
    }

    /// Reads the variables that `cargo xtask ceph up` prints.
    fn read(printed: &str) -> Option<Service> {
        let value = |name: &str| {
            let words = printed.split_whitespace();
            let mut values = words.filter_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            values.next()
        };
        let gateway = value("AWS_ENDPOINT_URL")?.strip_prefix("http://")?;
        Some(Service {
            gateway: gateway.parse().ok()?,
            key_id: value("AWS_ACCESS_KEY_ID")?.to_owned(),
            secret: value("AWS_SECRET_ACCESS_KEY")?.to_owned(),
        })
    }
}

/// Whether the cluster can be started without an installation.
pub(crate) fn is_installed() -> bool {
    ["ceph-mon", "ceph-osd", "radosgw"]
        .into_iter()
        .all(|name| which(name).is_some())
}

/// A running cluster with the objects.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) service: Service,
    stored: Vec<(&'static str, (&'static str, usize))>,
    _running: Running,
}

/// Stops the cluster and removes its files when it is dropped.
#[derive(Debug)]
struct Running(PathBuf);

impl Drop for Running {
    fn drop(&mut self) {
        if let Err(reason) = run(&mut ceph("down", &self.0)) {
            eprintln!("{reason}");
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// `cargo xtask ceph` for the cluster in `dir`.
fn ceph(action: &str, dir: &Path) -> Command {
    let mut command = cargo(&format!("xtask ceph {action} --port {PORT} --dir"));
    command.arg(dir);
    command
}

impl Backend {
    /// Starts the cluster, installs it if that is needed, and stores the objects. Its files are in
    /// the target folder.
    pub(crate) fn start(target: &Path) -> Outcome<Backend> {
        crate::progress("starting a Ceph cluster");
        let running = Running(target.join("bench/ceph"));
        let mut up = ceph("up", &running.0);
        let (_, printed) = capture(&mut up)?;
        let service = Service::read(&printed);
        let mut backend = Backend {
            stored: Vec::new(),
            service: service.ok_or_else(|| format!("`{}`: {}", shown(&up), printed.trim()))?,
            _running: running,
        };
        for copy in COPIES {
            for object in OBJECTS {
                backend.need(copy, object)?;
            }
        }
        Ok(backend)
    }

    /// Stores an object of this name and length in a copy, unless this was done before.
    pub(crate) fn need(&mut self, copy: &'static str, object: (&'static str, usize)) -> Outcome {
        if !self.stored.contains(&(copy, object)) {
            self.put(copy, object)?;
            self.stored.push((copy, object));
        }
        Ok(())
    }

    /// Stores an object of this name and length in a copy.
    pub(crate) fn put(&self, copy: &str, (name, bytes): (&str, usize)) -> Outcome {
        let (target, gateway) = (target(copy, name), self.service.gateway);
        let send = || {
            let mut stream = TcpStream::connect(gateway)?;
            write!(
                stream,
                "PUT {target} HTTP/1.1\r\nHost: {gateway}\r\nContent-Length: {bytes}\r\n\r\n"
            )?;
            io::copy(&mut io::repeat(b'x').take(bytes as u64), &mut stream)?;
            Ok(stream)
        };
        let sent = send().map_err(|error: io::Error| format!("PUT {target}: {error}"));
        match receive(&mut sent?, &mut Vec::new())?.status {
            200 => Ok(()),
            status => Err(format!("PUT {target}: status {status}")),
        }
    }
}

/// A copy, as bucket and folder.
pub(crate) fn folder(copy: &str) -> String {
    format!("{BUCKET}/{copy}")
}

/// The target of a request to the gateway itself for an object.
pub(crate) fn target(copy: &str, name: &str) -> String {
    format!("/{}/{name}", folder(copy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_is_read_from_what_ceph_up_prints() {
        let printed = "export AWS_ENDPOINT_URL=http://127.0.0.1:29800\n\
            export AWS_ACCESS_KEY_ID=k AWS_SECRET_ACCESS_KEY=s\n# onrush s3://data\n";
        let service = Service::read(printed).expect("complete");
        assert_eq!(service.url(), "http://127.0.0.1:29800");
        assert_eq!((&*service.key_id, &*service.secret), ("k", "s"));
        assert_eq!(
            Service::read(&printed.replace("AWS_ENDPOINT_URL", "X")),
            None
        );
        assert_eq!(target("a", "1k"), "/open/a/1k");
    }
}
