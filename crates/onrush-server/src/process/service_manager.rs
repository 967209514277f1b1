//! Messages to the service manager, such as systemd, that has started this process (sd_notify(3)):
//! that it is ready, reloads or stops, and that it is alive.

use onrush::Handle;
use onrush_rt::worker::monotonic_us;
use std::ffi::OsString;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

/// The variable that names the socket of the service manager.
const SOCKET: &str = "NOTIFY_SOCKET";
/// The variables of its watchdog: how often it expects a message, and of which process. systemd
/// gives no number if any process may send it.
const WATCHDOG_INTERVAL: &str = "WATCHDOG_USEC";
pub(crate) const WATCHDOG_PROCESS: &str = "WATCHDOG_PID";

/// How long a message may wait for a service manager that does not read.
const SEND_WAIT: Duration = Duration::from_secs(1);

/// The service manager. Without one, messages go nowhere. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct ServiceManager(Option<Arc<Socket>>);

#[derive(Debug)]
struct Socket {
    socket: UnixDatagram,
    address: SocketAddr,
}

impl ServiceManager {
    /// The service manager that reads from the socket `path`.
    #[cfg(test)]
    pub(crate) fn at(path: &std::path::Path) -> ServiceManager {
        ServiceManager(Some(Arc::new(Socket {
            socket: UnixDatagram::unbound().unwrap(),
            address: SocketAddr::from_pathname(path).unwrap(),
        })))
    }

    /// The service manager that the environment names. A warning is logged if it cannot be used.
    pub(crate) fn from_environment() -> ServiceManager {
        let Some(name) = std::env::var_os(SOCKET).filter(|name| !name.is_empty()) else {
            return ServiceManager(None);
        };
        let open = |name: OsString| {
            let socket = UnixDatagram::unbound()?;
            socket.set_write_timeout(Some(SEND_WAIT))?;
            let address = match name.as_bytes().split_first() {
                Some((b'@', rest)) => SocketAddr::from_abstract_name(rest)?,
                _ => SocketAddr::from_pathname(&name)?,
            };
            Ok::<_, std::io::Error>(Socket { socket, address })
        };
        match open(name) {
            Ok(socket) => ServiceManager(Some(Arc::new(socket))),
            Err(error) => {
                tracing::warn!(%error, "{SOCKET} cannot be used; no service manager is notified");
                ServiceManager(None)
            }
        }
    }

    fn send(&self, message: &str) {
        if let Some(Socket { socket, address }) = self.0.as_deref()
            && let Err(error) = socket.send_to_addr(message.as_bytes(), address)
        {
            tracing::warn!(%error, "the service manager was not notified");
        }
    }

    /// All addresses accept connections, or a reload is complete.
    pub(crate) fn ready(&self) {
        self.send("READY=1\nSTATUS=serving");
    }

    /// The configuration is being read again, until [`ServiceManager::ready`].
    pub(crate) fn reloading(&self) {
        let now_us = monotonic_us();
        self.send(&format!(
            "RELOADING=1\nMONOTONIC_USEC={now_us}\nSTATUS=reading the configuration again"
        ));
    }

    /// The start, the reload or the stop that is in progress needs at least `time` more from now on
    /// (`EXTEND_TIMEOUT_USEC`). `status` says why.
    pub(crate) fn extend_timeout(&self, time: Duration, status: &str) {
        let us = time.as_micros();
        self.send(&format!("EXTEND_TIMEOUT_USEC={us}\nSTATUS={status}"));
    }

    /// The server drains and ends.
    pub(crate) fn stopping(&self) {
        self.send("STOPPING=1\nSTATUS=waiting for requests in progress");
    }

    /// Another process, which is ready or not, is the main one of the service from now on.
    pub(crate) fn replaced_by(&self, process: u32, is_ready: bool) {
        let ready = if is_ready { "READY=1\n" } else { "" };
        self.send(&format!("MAINPID={process}\n{ready}STATUS=restarted"));
    }

    /// This process is alive.
    pub(crate) fn alive(&self) {
        self.send("WATCHDOG=1");
    }

    /// The time within which the service manager expects [`ServiceManager::alive`], if it does.
    pub(crate) fn watchdog(&self) -> Option<Duration> {
        self.0.as_ref()?;
        let number = |name| std::env::var(name).ok()?.parse::<u64>().ok();
        let process = number(WATCHDOG_PROCESS);
        if process.is_some_and(|process| process != u64::from(std::process::id())) {
            return None;
        }
        let interval = number(WATCHDOG_INTERVAL).filter(|us| *us > 0)?;
        Some(Duration::from_micros(interval))
    }

    /// Starts the thread that sends [`ServiceManager::alive`] while every worker of `server`
    /// completes its event-loop iterations within half of the time that the watchdog permits.
    pub(crate) fn watch(&self, server: Handle) -> std::io::Result<()> {
        match self.watchdog() {
            Some(interval) => self.watch_every(interval, server),
            None => Ok(()),
        }
    }

    fn watch_every(&self, interval: Duration, server: Handle) -> std::io::Result<()> {
        let manager = self.clone();
        let thread = std::thread::Builder::new().name("onrush-alive".to_owned());
        thread.spawn(move || {
            let mut was_stuck = false;
            loop {
                let iteration = server.longest_iteration();
                let is_stuck = iteration > interval / 2;
                if !is_stuck {
                    manager.alive();
                } else if !was_stuck {
                    let seconds = iteration.as_secs_f32();
                    tracing::error!(seconds, "a worker is stuck; the watchdog is not notified");
                }
                was_stuck = is_stuck;
                std::thread::sleep(interval / 4);
            }
        })?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use onrush::{Request, Server};
    use std::io::{ErrorKind, Read, Write};
    use std::net::TcpStream;
    use std::sync::Mutex;
    use std::sync::mpsc::channel;

    const INTERVAL: Duration = Duration::from_millis(100);
    const TIMEOUT: Duration = Duration::from_secs(30);

    #[test]
    fn a_stuck_worker_ends_the_messages() {
        let path = std::env::temp_dir().join(format!("onrush-alive-{}", std::process::id()));
        let receiver = UnixDatagram::bind(&path).unwrap();
        let manager = ServiceManager::at(&path);
        let (begin, begun) = channel();
        let (end, ended) = channel::<()>();
        let both = Arc::new(Mutex::new((begin, ended)));
        let blocks = move |_: Request| {
            let both = both.lock().unwrap();
            both.0.send(()).unwrap();
            let _ = both.1.recv_timeout(TIMEOUT);
            std::future::ready("done")
        };
        let running = Server::bind("127.0.0.1:0")
            .workers(1)
            .start(blocks)
            .unwrap();
        manager.watch_every(INTERVAL, running.handle()).unwrap();
        let next = |limit| {
            receiver.set_read_timeout(Some(limit)).unwrap();
            let mut message = [0; 100];
            loop {
                match receiver.recv(&mut message) {
                    // Another test of this process has sent a signal.
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    received => return received.map(|bytes| message[..bytes].to_vec()),
                }
            }
        };
        assert_eq!(next(TIMEOUT).unwrap(), b"WATCHDOG=1");
        let mut client = TcpStream::connect(running.address().to_string()).unwrap();
        let request = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        client.write_all(request).unwrap();
        begun.recv_timeout(TIMEOUT).unwrap();
        while running.handle().longest_iteration() <= INTERVAL / 2 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Messages end, but some may have been sent before.
        let mut last = 0;
        while next(INTERVAL).is_ok() {
            last += 1;
            assert!(last < 100, "the worker is stuck");
        }
        end.send(()).unwrap();
        client.read_to_end(&mut Vec::new()).unwrap();
        assert_eq!(next(TIMEOUT).unwrap(), b"WATCHDOG=1");
        running.handle().shutdown();
        running.wait().unwrap();
        std::fs::remove_file(&path).unwrap();
    }
}
