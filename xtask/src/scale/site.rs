//! The servers: three replicas of the program, each with a proxy of ours between it and the
//! gateway, and HAProxy in front of them with the configuration of docs/scale.md; and a fourth
//! server with a cache, which its clients reach directly.

use crate::ceph::{Cluster, KEY};
use crate::shell::{Outcome, built, cannot_run, root};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};
use xtask::load::http::Client;
use xtask::proxy::Proxy;

/// The bucket of the objects.
const BUCKET: &str = "data";
const REPLICAS: u16 = 3;
/// The guide, and the first line of its configuration of HAProxy.
const GUIDE: (&str, &str) = ("docs/scale.md", "defaults");
/// The ports in the guide: of HAProxy, and of the first server and its admin address.
const GUIDE_PORTS: (u16, u16, u16) = (8090, 8081, 9081);
/// HAProxy asks each server once per second, and two equal responses count.
const NOTICED: Duration = Duration::from_secs(4);

pub(super) struct Site {
    pub(super) replicas: Vec<Replica>,
    /// A server that asks the gateway each time whether its copy is current, and serves no other.
    pub(super) edge: Replica,
    /// The address of HAProxy.
    pub(super) front: SocketAddr,
    balancer: Child,
}

/// One server. Dropping it kills it.
pub(super) struct Replica {
    pub(super) address: SocketAddr,
    pub(super) proxy: Proxy,
    admin: SocketAddr,
    log: PathBuf,
    store: String,
    options: Vec<String>,
    child: Option<Child>,
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

impl Site {
    /// Starts everything, on ports after those of the cluster.
    pub(super) fn start(cluster: &Cluster, folder: &Path) -> Outcome<Site> {
        let first = cluster.port + 50;
        // The prefix is new for each run.
        let store = format!("s3://{BUCKET}/scale-{}", std::process::id());
        let start = |number: u16, options: Vec<String>| -> Outcome<Replica> {
            let gateway = Proxy::new(loopback(cluster.port));
            let mut replica = Replica {
                address: loopback(first + 1 + number),
                admin: loopback(first + 11 + number),
                proxy: gateway.map_err(|error| format!("a proxy: {error}"))?,
                log: folder.join(format!("onrush-{number}.log")),
                store: store.clone(),
                options,
                child: None,
            };
            let _ = fs::remove_file(&replica.log);
            replica.start()?;
            Ok(replica)
        };
        let replicas = (0..REPLICAS).map(|number| start(number, Vec::new()));
        let replicas: Vec<Replica> = replicas.collect::<Outcome<_>>()?;
        let cache = folder.join("edge");
        let _ = fs::remove_dir_all(&cache); // It belongs to the prefix of an earlier run.
        let cache = cache.display().to_string();
        let options = ["--edge", &cache, "--edge-fresh", "0", "--edge-stale", "0"];
        let edge = start(REPLICAS, options.map(str::to_owned).to_vec())?;
        let configuration = folder.join("haproxy.cfg");
        let guide = fs::read_to_string(root().join(GUIDE.0)).map_err(|e| e.to_string())?;
        write(&configuration, &balancer(&guide, first)?)?;
        let mut command = Command::new("/usr/sbin/haproxy");
        command.arg("-db").arg("-f").arg(&configuration);
        let site = Site {
            replicas,
            edge,
            front: loopback(first),
            balancer: spawn(&mut command, &folder.join("haproxy.log"))?,
        };
        until("HAProxy", || status(site.front, "/") == Some(200))?;
        Ok(site)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.balancer.kill();
        let _ = self.balancer.wait();
    }
}

impl Replica {
    /// Starts the server and waits until HAProxy uses it.
    pub(super) fn start(&mut self) -> Outcome {
        let mut command = Command::new(built().join("onrush"));
        command
            .args([&self.store, "--allow", "put,delete", "--port"])
            .args([&self.address.port().to_string(), "--admin"])
            .arg(self.admin.port().to_string())
            .args(&self.options)
            .env(
                "AWS_ENDPOINT_URL",
                format!("http://{}", self.proxy.address()),
            )
            .env("AWS_ACCESS_KEY_ID", KEY.0)
            .env("AWS_SECRET_ACCESS_KEY", KEY.1);
        let child = self.child.insert(spawn(&mut command, &self.log)?);
        let mut has_ended = false;
        until("onrush", || {
            has_ended = matches!(child.try_wait(), Ok(Some(_)));
            has_ended || status(self.admin, "/-/ready") == Some(200)
        })?;
        if has_ended {
            return Err(format!("a server has ended: see {}", self.log.display()));
        }
        thread::sleep(NOTICED);
        Ok(())
    }

    /// Sends SIGKILL or SIGTERM and waits until the server has ended.
    pub(super) fn stop(&mut self, signal: &str) -> Outcome {
        let Some(mut child) = self.child.take() else {
            return Ok(());
        };
        let mut kill = Command::new("kill");
        kill.args([&format!("-{signal}"), &child.id().to_string()]);
        crate::shell::run(&mut kill)?;
        let status = child.wait().map_err(|error| error.to_string())?;
        match signal != "TERM" || status.success() {
            true => Ok(()),
            false => Err(format!("the server ended with {status}")),
        }
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        let _ = self.stop("KILL");
    }
}

/// The configuration in the guide, with other ports.
fn balancer(guide: &str, front: u16) -> Outcome<String> {
    let lines = guide
        .lines()
        .map(|line| line.strip_prefix("   ").unwrap_or(line));
    let lines: Vec<&str> = lines
        .skip_while(|line| *line != GUIDE.1)
        .take_while(|line| *line != "```")
        .collect();
    let mut text = lines.join("\n") + "\n";
    let mut replace = |old: u16, new: u16| {
        let (old, new) = (old.to_string(), new.to_string());
        let is_there = text.contains(&old);
        text = text.replace(&old, &new);
        is_there
    };
    let (guide_front, server, admin) = GUIDE_PORTS;
    let all = (0..REPLICAS).all(|number| {
        replace(server + number, front + 1 + number) && replace(admin + number, front + 11 + number)
    });
    match all && replace(guide_front, front) {
        true => Ok(text),
        false => Err(format!("{} has no configuration of HAProxy", GUIDE.0)),
    }
}

/// Starts a program with its output in a file.
fn spawn(command: &mut Command, log: &Path) -> Outcome<Child> {
    let mut open = fs::OpenOptions::new();
    let file = open.create(true).append(true).open(log);
    let file = file.map_err(|error| format!("{}: {error}", log.display()))?;
    let copy = file.try_clone().map_err(|error| error.to_string())?;
    command.stdin(Stdio::null()).stdout(file).stderr(copy);
    command.spawn().map_err(|error| cannot_run(command, &error))
}

fn status(address: SocketAddr, path: &str) -> Option<u16> {
    let response = Client::new(address).get(path, "");
    response.ok().map(|response| response.status)
}

/// Waits for a condition, for two minutes.
pub(super) fn until(what: &str, mut condition: impl FnMut() -> bool) -> Outcome {
    let end = Instant::now() + Duration::from_secs(120);
    while !condition() {
        if Instant::now() > end {
            return Err(format!("{what}: waited in vain for two minutes"));
        }
        thread::sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Outcome {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_a_configuration() {
        let guide = fs::read_to_string(root().join(GUIDE.0)).expect("the guide");
        let text = balancer(&guide, 20_000).expect("a configuration");
        assert!(text.starts_with("defaults\n  mode http\n"), "{text}");
        assert!(text.contains("bind 127.0.0.1:20000\n"), "{text}");
        let last = "server c 127.0.0.1:20003 check port 20013\n";
        assert!(text.ends_with(last), "{text}");
        assert!(balancer("nothing", 20_000).is_err());
    }
}
