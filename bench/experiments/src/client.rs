//! Parts that load generators share: the core of the clients, and an epoll instance.

use runner::server::CLIENT_CORE;
use rustix::{
    buffer::spare_capacity,
    event::{
        Timespec,
        epoll::{self, CreateFlags, Event, EventData, EventFlags},
    },
    io::Errno,
    thread::{CpuSet, sched_setaffinity},
};
use std::{
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};
use xtask::shell::Outcome;

/// Events that one wait returns at most.
const EVENTS: usize = 128;

/// Binds this thread, and the threads that it starts, to the clients' core
/// (sched_setaffinity(2)).
///
/// # Errors
/// This process may not use that core.
pub(crate) fn pin_to_client_core() -> Outcome {
    let failed = |reason: &dyn std::fmt::Display| format!("core {CLIENT_CORE}: {reason}");
    let mut cores = CpuSet::new();
    cores.set(
        CLIENT_CORE
            .parse::<usize>()
            .map_err(|error| failed(&error))?,
    );
    sched_setaffinity(None, &cores).map_err(|error| failed(&error))
}

/// An epoll instance (epoll(7)). Each socket in it has a number.
pub(crate) struct Epoll(OwnedFd);

impl Epoll {
    pub(crate) fn new() -> Outcome<Epoll> {
        epoll::create(CreateFlags::CLOEXEC)
            .map(Epoll)
            .map_err(failed)
    }

    pub(crate) fn add(&self, socket: impl AsFd, number: usize, flags: EventFlags) -> Outcome {
        let data = EventData::new_u64(number as u64);
        epoll::add(&self.0, socket, data, flags).map_err(failed)
    }

    /// Gives a socket of this instance another number and other flags.
    pub(crate) fn modify(&self, socket: impl AsFd, number: usize, flags: EventFlags) -> Outcome {
        let data = EventData::new_u64(number as u64);
        epoll::modify(&self.0, socket, data, flags).map_err(failed)
    }

    /// Waits for `timeout` at most. Returns the numbers of the ready sockets; none after a signal.
    pub(crate) fn wait(&self, timeout: Duration) -> Outcome<Vec<usize>> {
        let timeout = Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        };
        let mut ready: Vec<Event> = Vec::with_capacity(EVENTS);
        match epoll::wait(&self.0, spare_capacity(&mut ready), Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error)),
        }
        let number = |event: &Event| event.data.u64() as usize;
        Ok(ready.iter().map(number).collect())
    }
}

fn failed(error: Errno) -> String {
    format!("epoll: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{io::Write, os::unix::net::UnixStream};

    #[test]
    fn a_ready_socket_is_reported_with_its_number() {
        let (mut writer, reader) = UnixStream::pair().expect("a pair");
        let epoll = Epoll::new().expect("an instance");
        epoll.add(&reader, 3, EventFlags::IN).expect("added");
        assert_eq!(epoll.wait(Duration::ZERO), Ok(Vec::new()));
        writer.write_all(b"x").expect("written");
        assert_eq!(epoll.wait(Duration::from_secs(10)), Ok(vec![3]));
        epoll.modify(&reader, 7, EventFlags::IN).expect("modified");
        assert_eq!(epoll.wait(Duration::from_secs(10)), Ok(vec![7]));
    }
}
