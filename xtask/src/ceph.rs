//! A real Ceph cluster on loopback, from Debian's packages: one monitor, one manager, three storage
//! daemons (OSDs) and the S3 gateway, without systemd. Its files are in `target/ceph` or in another
//! folder, so that several clusters can run at once. The daemons continue to run when this program
//! ends.

use crate::{
    Arguments, Failure,
    shell::{Outcome, cannot_run, capture, root, run, target},
};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};
use xtask::packages;

const PROGRAMS: [(&str, &str); 8] = [
    ("ceph-mon", "ceph-mon"),
    ("ceph-mgr", "ceph-mgr"),
    ("ceph-osd", "ceph-osd"),
    ("radosgw", "radosgw"),
    ("radosgw-admin", "radosgw"),
    ("ceph", "ceph-common"),
    ("rados", "ceph-common"),
    ("curl", "curl"),
];
/// The default port of the gateway; the monitor has the next one, and the other daemons have some
/// of those from 10 to 40 above. Below the range of ephemeral ports.
const PORT: u16 = 28_900;
const OSDS: usize = 3;
const OSD_BYTES: u64 = 8 << 30;
/// The key of the gateway's user. The cluster listens on loopback only.
pub(crate) const KEY: (&str, &str) = ("onrush-test", "onrush-test-secret");
/// The bucket of the tests.
const BUCKET: &str = "conformance";
/// Where the gateway keeps the data of all buckets.
const DATA_POOL: &str = "default.rgw.buckets.data";
/// The bucket that everybody may read and write without a signature, for measurements.
const OPEN_BUCKET: &str = "open";

pub(crate) fn main(mut arguments: Arguments) -> Result<(), Failure> {
    let cluster = Cluster::new(&mut arguments)?;
    let action = Action::parse(&arguments.words)?;
    arguments.rest()?;
    programs()?;
    Ok(match action {
        Action::Up => cluster.up(),
        Action::Down => cluster.down(),
        Action::Kill(daemon) => cluster.stop(&daemon, "KILL"),
        Action::StartOsd(osd) => cluster.start_osd(&osd),
        Action::StartGateway => cluster.start_gateway(),
        Action::Status => run(&mut cluster.ceph("-s")),
    }?)
}

/// What is to be done with the cluster or one of its daemons.
enum Action {
    Up,
    Down,
    Kill(String),
    StartOsd(String),
    StartGateway,
    Status,
}

impl Action {
    fn parse(words: &[String]) -> Result<Action, Failure> {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        Ok(match words[..] {
            ["up"] => Action::Up,
            ["down"] => Action::Down,
            ["kill-osd", number] => Action::Kill(osd(number)?),
            ["start-osd", number] => Action::StartOsd(osd(number)?),
            ["kill-gateway"] => Action::Kill(GATEWAY.to_owned()),
            ["start-gateway"] => Action::StartGateway,
            ["status"] => Action::Status,
            _ => {
                let known =
                    "up, down, status, kill-osd N, start-osd N, kill-gateway or start-gateway";
                return Err(Failure::Usage(format!("ceph needs one of {known}")));
            }
        })
    }
}

/// The name of the gateway among the daemons.
pub(crate) const GATEWAY: &str = "gateway";

/// A new UUID.
fn random_id() -> Result<String, String> {
    let id = fs::read_to_string("/proc/sys/kernel/random/uuid").map_err(|e| e.to_string())?;
    Ok(id.trim().to_owned())
}

fn osd(number: &str) -> Result<String, Failure> {
    match number.parse::<usize>() {
        Ok(number) if number < OSDS => Ok(format!("osd.{number}")),
        _ => Err(Failure::Usage(format!(
            "the number of an OSD is 0 to {}",
            OSDS - 1
        ))),
    }
}

/// Installs Ceph if it is missing.
pub(crate) fn programs() -> Outcome {
    packages::need(&PROGRAMS)
}

/// A cluster on this machine.
pub(crate) struct Cluster {
    dir: PathBuf,
    /// The port of the gateway.
    pub(crate) port: u16,
}

impl Cluster {
    /// The cluster that the options `--dir` and `--port` name. One that exists keeps its port.
    pub(crate) fn new(arguments: &mut Arguments) -> Result<Cluster, Failure> {
        let dir = arguments.text("--dir")?;
        let dir = dir.map_or_else(|| target().join("ceph"), |dir| root().join(dir));
        let wanted = arguments.number("--port", PORT.into())?;
        let Some(wanted) = u16::try_from(wanted).ok().filter(|port| *port < 32_000) else {
            return Err(Failure::Usage("--port needs a port below 32000".to_owned()));
        };
        let configuration = fs::read_to_string(dir.join("ceph.conf")).unwrap_or_default();
        let port = port_in(&configuration).unwrap_or(wanted);
        Ok(Cluster { dir, port })
    }

    pub(crate) fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// A file of the cluster.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Makes the cluster, if there is none, and starts what is not running. Returns when a bucket
    /// can be used.
    pub(crate) fn up(&self) -> Outcome {
        if !self.path("made").exists() {
            self.make()?;
        }
        self.start("mon", "ceph-mon", &["-i", "a"])?;
        self.until("the monitor", || succeeds(&mut self.ceph("mon stat")))?;
        self.start("mgr", "ceph-mgr", &["-i", "x"])?;
        for number in 0..OSDS {
            let name = format!("osd.{number}");
            if !self.path(&name).join("made").exists() {
                self.make_osd(number)?;
            }
            self.start_osd(&name)?;
        }
        self.start_gateway()?;
        self.until("the user", || self.has_user())?;
        for bucket in [BUCKET, "data", OPEN_BUCKET] {
            self.until("the gateway", || self.put(bucket, ""))?;
        }
        let open = format!("arn:aws:s3:::{OPEN_BUCKET}");
        let policy = format!(
            r#"{{"Version":"2012-10-17","Statement":[{{"Effect":"Allow","Principal":"*",
            "Action":"s3:*","Resource":["{open}","{open}/*"]}}]}}"#
        );
        self.until("the gateway", || {
            self.put(&format!("{OPEN_BUCKET}?policy"), &policy)
        })?;
        println!("export AWS_ENDPOINT_URL={}", self.endpoint());
        println!(
            "export AWS_ACCESS_KEY_ID={} AWS_SECRET_ACCESS_KEY={}",
            KEY.0, KEY.1
        );
        println!("# onrush s3://data --allow put,delete");
        Ok(())
    }

    fn down(&self) -> Outcome {
        self.stop(GATEWAY, "TERM")?;
        for number in 0..OSDS {
            self.stop(&format!("osd.{number}"), "TERM")?;
        }
        self.stop("mgr", "TERM")?;
        self.stop("mon", "TERM")
    }

    pub(crate) fn start_osd(&self, name: &str) -> Outcome {
        self.start(name, "ceph-osd", &["-i", name.trim_start_matches("osd.")])
    }

    pub(crate) fn start_gateway(&self) -> Outcome {
        self.start(GATEWAY, "radosgw", &["-n", "client.rgw"])
    }

    pub(crate) fn is_running(&self, name: &str) -> bool {
        self.process(name).is_some()
    }

    /// Waits until all daemons run and each object has all copies.
    pub(crate) fn wait_until_whole(&self) -> Outcome {
        let all_up = format!("{OSDS} up");
        let missing = [
            "degraded",
            "undersized",
            "peering",
            "stale",
            "down",
            "unknown",
        ];
        self.until("the cluster", || {
            let osds = capture(&mut self.ceph("osd stat"));
            let groups = capture(&mut self.ceph("pg stat"));
            osds.is_ok_and(|(_, text)| text.contains(&all_up))
                && groups.is_ok_and(|(is_known, text)| {
                    is_known && !missing.iter().any(|state| text.contains(state))
                })
        })
    }

    /// Makes the cluster full, as if its disks were, or ends that. Returns when it has noticed.
    ///
    /// It is done by the ratio at which Ceph stops writes: to fill a disk up to the default ratio
    /// takes longer, and clients see the same.
    pub(crate) fn set_full(&self, is_full: bool) -> Outcome {
        // Ceph wants them in this order.
        let ratios = match is_full {
            true => [0.0001, 0.0002, 0.0003],
            false => [0.85, 0.9, 0.95],
        };
        for (name, ratio) in ["nearfull", "backfillfull", "full"].iter().zip(ratios) {
            quietly(&mut self.ceph(&format!("osd set-{name}-ratio {ratio}")))?;
        }
        self.until("the monitor", || {
            let map = capture(&mut self.ceph("osd dump"));
            map.is_ok_and(|(_, map)| map.contains("hashpspool,full") == is_full)
        })
    }

    /// Writes objects, as the gateway would, until `is_full`, and removes them again.
    pub(crate) fn fill_until(&self, is_full: impl Fn() -> bool) -> Outcome {
        const LENGTH: u64 = 16 << 20;
        let content = self.path("filler");
        random_file(&content, LENGTH).map_err(|error| format!("{}: {error}", content.display()))?;
        let rados = |action: &str| self.command("rados", &format!("-p {DATA_POOL} {action}"));
        let from = content.display();
        let mut count = 0;
        let mut filled = Ok(());
        while !is_full() && filled.is_ok() {
            filled = match count * LENGTH < OSD_BYTES {
                true => quietly(&mut rados(&format!("put filler-{count} {from}"))),
                false => Err(format!("{count} objects of {LENGTH} bytes fill no disk")),
            };
            count += 1;
        }
        (0..count).fold(filled, |all, number| {
            all.and(quietly(&mut rados(&format!("rm filler-{number}"))))
        })
    }

    /// Sets a quota of the user that everything exceeds, or ends it.
    pub(crate) fn set_quota(&self, is_set: bool) -> Outcome {
        let action = if is_set { "enable" } else { "disable" };
        for action in ["set --max-size=1", action] {
            let quota = format!("quota {action} --quota-scope=user --uid=onrush");
            quietly(&mut self.command("radosgw-admin", &format!("-n client.rgw {quota}")))?;
        }
        Ok(())
    }

    /// A program of Ceph with the configuration of this cluster.
    fn command(&self, program: &str, arguments: &str) -> Command {
        // Ceph is limited, so that a cluster that does not respond does not hang this program.
        let mut command = Command::new("timeout");
        command
            .args(["60", program, "-c"])
            .arg(self.path("ceph.conf"));
        command.args(arguments.split_whitespace());
        command
    }

    fn ceph(&self, arguments: &str) -> Command {
        self.command("ceph", &format!("--connect-timeout 20 {arguments}"))
    }

    /// Writes the configuration and the keys, and makes the monitor.
    fn make(&self) -> Outcome {
        for folder in ["", "run", "log", "crash", "mgr"] {
            make_folder(&self.path(folder))?;
        }
        let _ = fs::remove_dir_all(self.path("mon"));
        make_folder(&self.path("mon"))?;
        let id = random_id()?;
        write(&self.path("ceph.conf"), &self.configuration(&id))?;
        let keyring = self.text("keyring");
        let mut names = vec!["mon.".to_owned()];
        names.extend(["client.admin", "client.rgw", "mgr.x"].map(str::to_owned));
        names.extend((0..OSDS).map(|number| format!("osd.{number}")));
        let _ = fs::remove_file(&keyring);
        for (number, name) in names.iter().enumerate() {
            let mut tool = Command::new("ceph-authtool");
            tool.arg(&keyring);
            if number == 0 {
                tool.arg("--create-keyring");
            }
            tool.args(["--gen-key", "-n", name, "--cap", "mon", "allow *"]);
            if name != "mon." {
                tool.args(["--cap", "mgr", "allow *", "--cap", "osd", "allow *"]);
            }
            quietly(&mut tool)?;
        }
        let (map, address) = (
            self.text("monmap"),
            format!("[v2:127.0.0.1:{}]", self.port + 1),
        );
        let mut tool = Command::new("monmaptool");
        tool.args(["--create", "--clobber", "--fsid", &id]);
        quietly(tool.args(["--addv", "a", &address, &map]))?;
        let mkfs = format!("-i a --mkfs --monmap {map} --keyring {keyring}");
        quietly(&mut self.command("ceph-mon", &mkfs))?;
        write(&self.path("made"), "")
    }

    fn make_osd(&self, number: usize) -> Outcome {
        let folder = self.path(&format!("osd.{number}"));
        let _ = fs::remove_dir_all(&folder);
        make_folder(&folder)?;
        let id = random_id()?;
        quietly(&mut self.ceph(&format!("osd new {id} {number}")))?;
        let mkfs = format!("-i {number} --mkfs --osd-uuid {id}");
        quietly(&mut self.command("ceph-osd", &mkfs))?;
        write(&folder.join("made"), "")
    }

    /// Three copies on one machine, in small files. The intervals are shorter than Ceph's defaults,
    /// so that the cluster starts in ten seconds, recovers soon, and frees the space of deleted
    /// objects soon. Without `tcp_nodelay` each small request takes 43 ms more.
    fn configuration(&self, id: &str) -> String {
        let dir = self.dir.display();
        let (port, mon, low, high) = (self.port, self.port + 1, self.port + 10, self.port + 40);
        format!(
            "[global]\nfsid = {id}\nmon host = v2:127.0.0.1:{mon}\npublic addr = 127.0.0.1\n\
             cluster addr = 127.0.0.1\nms bind msgr1 = false\nms bind port min = {low}\n\
             ms bind port max = {high}\nkeyring = {dir}/keyring\n\
             auth allow insecure global id reclaim = false\n\
             admin socket = {dir}/run/$name.asok\nlog file = {dir}/log/$name.log\n\
             mon cluster log file = {dir}/log/cluster.log\ncrash dir = {dir}/crash\n\
             mon data = {dir}/mon\nmon data avail warn = 2\nmon data avail crit = 1\n\
             mon osd reporter subtree level = osd\nmgr data = {dir}/mgr\n\
             rgw frontends = beast endpoint=127.0.0.1:{port} tcp_nodelay=1\n\
             osd pool default size = 3\nosd pool default min size = 2\n\
             osd pool default pg num = 8\nosd pool default pg autoscale mode = off\n\
             osd crush chooseleaf type = 0\npaxos propose interval = 0.1\n\
             rgw gc obj min wait = 10\nrgw gc processor period = 10\n[osd]\n\
             osd data = {dir}/osd.$id\nbluestore block size = {OSD_BYTES}\n\
             bluestore cache autotune = false\nbluestore cache size = 67108864\n\
             osd crush location = root=default host=local\nosd class update on start = false\n\
             osd recovery sleep hdd = 0\nosd client watch timeout = 5\n"
        )
    }

    /// The process of a daemon, if it runs: a number in a file may belong to another process.
    fn process(&self, name: &str) -> Option<u32> {
        let number = fs::read_to_string(self.path(&format!("run/{name}.pid"))).ok()?;
        let number = number.trim().parse().ok()?;
        let line = fs::read_to_string(format!("/proc/{number}/cmdline")).ok()?;
        line.contains(&self.text("ceph.conf")).then_some(number)
    }

    /// Starts a daemon in a session of its own, unless it runs.
    fn start(&self, name: &str, program: &str, arguments: &[&str]) -> Outcome {
        if self.process(name).is_some() {
            return Ok(());
        }
        let log = fs::File::create(self.path(&format!("log/{name}.out")));
        let log = log.map_err(|error| format!("{}: {error}", self.text("log")))?;
        let copy = log.try_clone().map_err(|error| error.to_string())?;
        let mut command = Command::new("nice");
        command
            .args(["-n", "5", program, "-c"])
            .arg(self.path("ceph.conf"));
        command.args(arguments).arg("-f");
        command.stdin(Stdio::null()).stdout(log).stderr(copy);
        command.process_group(0); // Ctrl-C ends this program only.
        let child = command
            .spawn()
            .map_err(|error| cannot_run(&command, &error))?;
        // `nice` becomes the daemon.
        write(
            &self.path(&format!("run/{name}.pid")),
            &child.id().to_string(),
        )
    }

    /// Sends a signal to a daemon and waits until it has ended; after ten seconds it is killed.
    pub(crate) fn stop(&self, name: &str, signal: &str) -> Outcome {
        let Some(process) = self.process(name) else {
            return Ok(());
        };
        let kill = |signal: &str| {
            quietly(Command::new("kill").args([&format!("-{signal}"), &process.to_string()]))
        };
        kill(signal)?;
        let end = Instant::now() + Duration::from_secs(10);
        while self.process(name).is_some() {
            if Instant::now() > end {
                kill("KILL")?;
            }
            thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    fn has_user(&self) -> bool {
        let admin = |action: &str| {
            self.command(
                "radosgw-admin",
                &format!("-n client.rgw user {action} --uid=onrush"),
            )
        };
        let (id, secret) = KEY;
        let create =
            format!("create --display-name=onrush --access-key={id} --secret-key={secret}");
        succeeds(&mut admin("info")) || succeeds(&mut admin(&create))
    }

    /// Makes a bucket, or sets a property of it. Ceph 16 refuses the signatures of curl, so this
    /// one is of version 2.
    fn put(&self, target: &str, body: &str) -> bool {
        let script = "d=$(LC_ALL=C date -u '+%a, %d %b %Y %T GMT')\n\
            text() { printf 'PUT\\n\\n\\n%s\\n/%s' \"$d\" \"$1\"; }\n\
            g=$(text \"$1\" | openssl dgst -sha1 -hmac \"$3\" -binary | base64)\n\
            curl -sf -m 30 -o /dev/null -X PUT -H \"Date: $d\" -H 'Content-Type:' \
            -H \"Authorization: AWS $2:$g\" --data-binary \"$5\" \"$4/$1\"";
        let mut shell = Command::new("sh");
        let endpoint = self.endpoint();
        shell.args(["-c", script, "sh", target, KEY.0, KEY.1, &endpoint, body]);
        succeeds(&mut shell)
    }

    fn until(&self, what: &str, condition: impl Fn() -> bool) -> Outcome {
        let end = Instant::now() + Duration::from_secs(120);
        while !condition() {
            if Instant::now() > end {
                let logs = self.text("log");
                return Err(format!("{what} does not respond; the logs are in {logs}"));
            }
            thread::sleep(Duration::from_millis(200));
        }
        Ok(())
    }
}

/// The port of the gateway in a configuration.
fn port_in(configuration: &str) -> Option<u16> {
    let (_, rest) = configuration.split_once("endpoint=127.0.0.1:")?;
    rest.split_whitespace().next()?.parse().ok()
}

fn random_file(path: &Path, length: u64) -> io::Result<()> {
    let mut random = fs::File::open("/dev/urandom")?.take(length);
    io::copy(&mut random, &mut fs::File::create(path)?).map(drop)
}

fn succeeds(command: &mut Command) -> bool {
    capture(command).is_ok_and(|(success, _)| success)
}

/// Runs a program, and shows its output only if it fails.
fn quietly(command: &mut Command) -> Outcome {
    match capture(command)? {
        (true, _) => Ok(()),
        (false, output) => Err(output),
    }
}

fn make_folder(path: &Path) -> Outcome {
    fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Outcome {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}
