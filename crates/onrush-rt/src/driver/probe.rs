//! Chooses the driver: probes the kernel, best set-up first, and reports the choice and its reason.
//!
//! io_uring is often forbidden: by the seccomp profile of a container (`EPERM`), by
//! `kernel.io_uring_disabled`, or by an old kernel. A version number proves nothing. So the probe
//! builds a ring with all flags, then with fewer. A set-up works if it receives one byte by a
//! multishot receive into a provided buffer.

use super::epoll::Epoll;
use super::uring::{Setup, Uring};
use super::{Config, Driver, Event, Socket};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::str::FromStr;
use std::time::Duration;

/// The requested driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preference {
    /// The better one of those that work here.
    #[default]
    Auto,
    /// io_uring, or an error.
    Uring,
    /// epoll.
    Epoll,
}

impl FromStr for Preference {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "auto" => Ok(Preference::Auto),
            "io_uring" => Ok(Preference::Uring),
            "epoll" => Ok(Preference::Epoll),
            _ => Err("a driver is one of auto, io_uring, epoll".to_owned()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Uring(Setup),
    Epoll,
}

/// The driver chosen for this process. Each worker builds it on its own thread.
#[derive(Clone, Debug)]
pub struct Choice {
    kind: Kind,
    reason: String,
}

impl Choice {
    /// `io_uring` or `epoll`.
    pub fn name(&self) -> &'static str {
        match self.kind {
            Kind::Uring(_) => "io_uring",
            Kind::Epoll => "epoll",
        }
    }

    /// Why it was chosen, in one line for the log.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Builds the driver of one worker. Call this on the thread that will use it.
    pub fn build(&self, config: &Config) -> io::Result<Driver> {
        Ok(match self.kind {
            Kind::Uring(setup) => Driver::Uring(Box::new(Uring::new(setup, config)?)),
            Kind::Epoll => Driver::Epoll(Box::new(Epoll::new(config)?)),
        })
    }
}

/// Chooses a driver. Fails, with the reason, only if `preference` requires io_uring and the system
/// refuses it.
///
/// # Examples
/// ```
/// use onrush_rt::driver::{Config, Preference, choose};
///
/// let config = Config::default();
/// let choice = choose(Preference::Auto, &config)?;
/// println!("{}: {}", choice.name(), choice.reason());
/// let driver = choice.build(&config)?;
/// assert_eq!(driver.name(), choice.name());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn choose(preference: Preference, config: &Config) -> io::Result<Choice> {
    if preference == Preference::Epoll {
        return Ok(Choice {
            kind: Kind::Epoll,
            reason: "selected explicitly".to_owned(),
        });
    }
    match probe(config) {
        Ok((setup, reason)) => Ok(Choice {
            kind: Kind::Uring(setup),
            reason,
        }),
        Err(error) => {
            let reason = format!("io_uring is refused: {}", explain(&error));
            match preference {
                Preference::Uring => Err(io::Error::new(error.kind(), reason)),
                _ => Ok(Choice {
                    kind: Kind::Epoll,
                    reason,
                }),
            }
        }
    }
}

/// The best set-up that works, and why the better ones were refused.
fn probe(config: &Config) -> io::Result<(Setup, String)> {
    let mut refused = None;
    for setup in Setup::LADDER {
        match try_out(setup, config) {
            Ok(()) => {
                let mut reason = setup.describe().to_owned();
                if let Some(error) = refused {
                    reason = format!("{reason}; more was refused: {error}");
                }
                return Ok((setup, reason));
            }
            Err(error) => refused = Some(error),
        }
    }
    Err(refused.expect("the list of set-ups is not empty"))
}

/// Receives one byte through a ring of this set-up.
fn try_out(setup: Setup, config: &Config) -> io::Result<()> {
    let small = Config {
        ring_buffers: 2,
        ..config.clone()
    };
    let mut ring = Uring::new(setup, &small)?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (ours, theirs) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let stream = ring.attach(Socket::Os(ours), 0)?;
    ring.receive(stream);
    super::direct::send(rustix::fd::AsFd::as_fd(&theirs), b"?")?;
    for _ in 0..10 {
        ring.poll_events(Some(Duration::from_millis(100)))?;
        while let Some(event) = ring.next() {
            match event {
                Event::Data { data, .. } if &*data == b"?" => return Ok(()),
                Event::End { result, .. } => result?,
                _ => {}
            }
        }
    }
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "multishot receive returned no data",
    ))
}

fn explain(error: &io::Error) -> String {
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let disabled = disabled.is_ok_and(|value| matches!(value.trim(), "1" | "2"));
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) if disabled => {
            format!("{error}; kernel.io_uring_disabled is set")
        }
        Some(libc::EPERM | libc::EACCES) => {
            format!("{error}; probably a seccomp filter, for example of a container")
        }
        Some(libc::ENOSYS) => format!("{error}; this kernel, or its filter, has no io_uring"),
        Some(libc::EINVAL) => format!("{error}; this kernel is too old (Linux 6.0 is needed)"),
        Some(libc::ENOMEM) => format!("{error}; the limit on locked memory may be too low"),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_others_refused() {
        assert_eq!("io_uring".parse(), Ok(Preference::Uring));
        assert_eq!("epoll".parse(), Ok(Preference::Epoll));
        assert_eq!("auto".parse(), Ok(Preference::Auto));
        assert!("kqueue".parse::<Preference>().is_err());
    }

    /// Each set-up works, in case the better ones are refused.
    #[test]
    fn every_setup_receives() {
        let config = Config::default();
        if let Err(error) = choose(Preference::Uring, &config) {
            println!("skipped: {error}");
            return;
        }
        for setup in Setup::LADDER {
            // A kernel may lack the newer flags; Linux 6.0 has those of the last two set-ups.
            match try_out(setup, &config) {
                Ok(()) => {}
                Err(error) => assert!(
                    matches!(setup, Setup::DeferNoSqArray | Setup::Defer),
                    "{}: {error}",
                    setup.describe()
                ),
            }
        }
    }

    #[test]
    fn epoll_needs_no_reason_and_auto_gives_one() {
        let config = Config::default();
        assert_eq!(choose(Preference::Epoll, &config).unwrap().name(), "epoll");
        assert!(
            !choose(Preference::Auto, &config)
                .unwrap()
                .reason()
                .is_empty()
        );
    }
}
