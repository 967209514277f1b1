//! The replacement of this process by a new one of the same program, without a pause in serving
//! (SIGUSR2).
//!
//! The old process starts the new one and sends it the listening sockets, over a Unix socket that
//! is the standard input of the new one. The new process reports that it serves, or that it waits
//! for a folder that belongs to one process. Then the old one drains and ends. The listening
//! sockets are never closed, so no connection in their queues is lost. If the new process ends
//! before it reports anything, the old one continues.
//!
//! A new process with quotas asks the old one what it has counted (`counts`), before it serves.
//!
//! A new process that serves says after its report where it listens, and how. If both do it alike,
//! the old one passes its plain connections on over the same Unix socket, in batches, as they
//! become idle ([`Handle::pass_on`], `adoption`). An older version of the program sends and expects
//! nothing after the report, so its connections drain.

mod adoption;
mod counts;
pub(crate) mod inherited;
pub(crate) mod signals;

use crate::commands::cli::RESTART_VARIABLE;
use crate::config::Settings;
use crate::process::failure::{Failure, error_text};
use crate::process::service_manager::{self, ServiceManager};
use crate::stores::quotas::Quotas;
use adoption::{pass_on, take_over};
use inherited::{Inherited, Purpose};
use onrush::{Handle, ListeningSockets};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, sockopt,
};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// The message with further sockets of the address of the previous one.
const MORE: &[u8] = b"more";
/// The last message of the old process.
const END: &[u8] = b"end";
/// Messages of the new process.
const READY: &[u8] = b"ready";
const WAITING: &[u8] = b"waiting";
/// The beginning of a message of the new process: it adopts connections if the rest is the
/// [`agreement`] of the old one.
const ADOPTS: &[u8] = b"adopts ";

/// A message without sockets.
const NO_SOCKETS: &[OwnedFd] = &[];
/// Sockets of one message. The kernel permits 253.
const SOCKETS_MAX: usize = 200;
/// Longer than a message with the path of a Unix socket, or with a host name, or of a batch.
const MESSAGE_BYTES_MAX: usize = 8192;

/// How long the old process waits for the report of the new one.
const REPORT_WAIT: Duration = Duration::from_secs(60);
/// How often the old process checks whether it ends, and the new one sends a sign of life.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// How long each waits for a single message about sockets.
const MESSAGE_WAIT: Duration = Duration::from_secs(10);
/// How long the old process waits for the new one to say that it adopts connections, and which of a
/// batch it serves.
const ADOPTION_WAIT: Duration = Duration::from_secs(2);
/// The folder of a process may be locked for a moment after its end.
const LOCK_WAIT: Duration = Duration::from_secs(5);
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_millis(20);

/// What a restart needs.
#[derive(Debug)]
pub(crate) struct Running {
    /// The arguments of this process, with the name of the program.
    pub(crate) arguments: Vec<OsString>,
    pub(crate) manager: ServiceManager,
    pub(crate) server: Handle,
    /// Of the addresses of `server`.
    pub(crate) purposes: Vec<Purpose>,
    /// The server of the admin pages, if it has its own address.
    pub(crate) admin: Option<Handle>,
    /// Of the settings of `server`.
    pub(crate) agreement: Vec<u8>,
    /// Of the folder, if there is one.
    pub(crate) quotas: Option<Quotas>,
}

/// What two processes must have in common for the one to adopt connections of the other: where the
/// server listens, and whether connections begin with TLS or with a header of the PROXY protocol.
/// Otherwise the new configuration may not permit a connection.
pub(crate) fn agreement(settings: &Settings) -> Vec<u8> {
    let (has_tls, has_header) = (settings.tls.is_some(), settings.options.proxy_protocol());
    let purposes = inherited::purposes(settings).into_iter().map(Purpose::name);
    let addresses = settings.all_addresses();
    let addresses = purposes.zip(addresses.iter());
    let lines = addresses.map(|(purpose, address)| format!("\n{purpose} {address}"));
    let first = format!("tls={has_tls} proxy={has_header}");
    std::iter::once(first)
        .chain(lines)
        .collect::<String>()
        .into_bytes()
}

/// Restarts this process on request.
#[derive(Clone, Debug)]
pub(crate) struct Restart(Arc<RestartState>);

#[derive(Debug)]
struct RestartState {
    running: Running,
    is_in_progress: AtomicBool,
    /// The connection to the new process. Its end tells the new process that this one has ended.
    successor: OnceLock<OwnedFd>,
}

impl Restart {
    pub(crate) fn new(running: Running) -> Restart {
        Restart(Arc::new(RestartState {
            running,
            is_in_progress: AtomicBool::new(false),
            successor: OnceLock::new(),
        }))
    }

    /// Starts the new process, on a thread of its own. `before_drain` is called when the new
    /// process can take over.
    pub(crate) fn request(&self, before_drain: impl FnOnce() + Send + 'static) {
        if self.0.is_in_progress.swap(true, Ordering::AcqRel) {
            tracing::info!("a restart is in progress already");
            return;
        }
        let state = self.0.clone();
        let thread = std::thread::Builder::new().name("onrush-restart".to_owned());
        let spawned = thread.spawn(move || {
            if let Err(why) = state.restart(before_drain) {
                // Before the report: its reader may request another restart at once.
                state.is_in_progress.store(false, Ordering::Release);
                tracing::error!("the restart failed: {why}; this process continues");
            }
        });
        if let Err(error) = spawned {
            self.0.is_in_progress.store(false, Ordering::Release);
            tracing::error!(%error, "the restart failed; this process continues");
        }
    }
}

impl RestartState {
    fn restart(&self, before_drain: impl FnOnce()) -> Result<(), String> {
        let (channel, mut child) = self.start().map_err(|error| error_text(&error))?;
        let process = child.id();
        tracing::info!(process, "restarting: a new process starts");
        let report = self.lead(&channel, &mut child);
        let is_ready = report.inspect_err(|_| {
            let _ = child.kill(); // It may have ended.
            let _ = child.wait();
            self.running.quotas.iter().for_each(Quotas::end_sharing);
        })?;
        let channel = self.successor.get_or_init(|| channel); // Only one restart succeeds.
        self.running.manager.replaced_by(process, is_ready);
        before_drain();
        if let Some(admin) = &self.running.admin {
            admin.hand_over();
        }
        let is_adopted = is_ready && self.is_adopted(channel);
        let passing = match is_adopted {
            true => Some(self.running.server.pass_on()),
            false => {
                self.running.server.hand_over();
                None
            }
        };
        tracing::info!(process, "restarted; waiting for requests in progress");
        if let Some(passing) = passing {
            let error = pass_on(channel, &passing, &mut child);
            report_end(error, status(&mut child, ADOPTION_WAIT));
        }
        Ok(())
    }

    /// Whether the new process adopts connections of this one.
    fn is_adopted(&self, channel: &OwnedFd) -> bool {
        let said = receive_within(channel, ADOPTION_WAIT);
        said.is_ok_and(|(said, _)| said.strip_prefix(ADOPTS) == Some(&self.running.agreement))
    }

    /// Starts the new process; returns the connection to it.
    fn start(&self) -> io::Result<(OwnedFd, Child)> {
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        let (program, arguments) = (self.running.arguments.split_first())
            .ok_or_else(|| io::Error::other("the name of the program is not known"))?;
        // As in a shell: a name without a slash is looked for in PATH.
        let mut command = Command::new(program);
        command.arg0(program).args(arguments);
        command
            .env(RESTART_VARIABLE, counts::RESPONDS)
            .stdin(Stdio::from(theirs));
        // They name this process.
        for variable in [
            inherited::PROCESS,
            inherited::COUNT,
            inherited::NAMES,
            service_manager::WATCHDOG_PROCESS,
        ] {
            command.env_remove(variable);
        }
        let child = command.spawn().map_err(|error| {
            let program = program.display();
            io::Error::other(format!("cannot start {program}: {}", error_text(&error)))
        })?;
        Ok((ours, child))
    }

    /// Sends the sockets and waits for the report of the new process. Returns whether it serves
    /// already.
    fn lead(&self, channel: &OwnedFd, child: &mut Child) -> Result<bool, String> {
        let sent = self.send_sockets(channel);
        let end = Instant::now() + REPORT_WAIT;
        sockopt::set_socket_timeout(channel, sockopt::Timeout::Recv, Some(CHECK_INTERVAL))
            .map_err(|error| error.to_string())?;
        loop {
            if self.running.server.is_ending() {
                return Err("this process ends".to_owned());
            }
            match receive(channel) {
                Ok((message, _)) if message == READY => return Ok(true),
                Ok((message, _)) if message == WAITING => return Ok(false),
                Ok((message, _)) if message == counts::QUESTION => {
                    let known = self.running.quotas.as_ref().map(Quotas::hand_over);
                    let responded = counts::respond(channel, &known.unwrap_or_default());
                    responded.map_err(|error| error.to_string())?;
                }
                Err(Errno::AGAIN | Errno::INTR) if Instant::now() < end => {}
                Err(Errno::AGAIN | Errno::INTR) => {
                    return Err(format!(
                        "the new process is not ready within {REPORT_WAIT:?}"
                    ));
                }
                // It has closed its end of the connection.
                Ok(_) | Err(_) => {
                    // That it has ended may be why nothing could be sent to it.
                    let status = status(child, MESSAGE_WAIT);
                    return Err(match (status, sent) {
                        (Some(status), _) => format!("the new process has ended ({status})"),
                        (None, Err(error)) => error,
                        (None, Ok(())) => "the new process does not respond".to_owned(),
                    });
                }
            }
        }
    }

    fn send_sockets(&self, channel: &OwnedFd) -> Result<(), String> {
        let of = |handle: &Handle| handle.listening().map_err(|error| error_text(&error));
        let objects = of(&self.running.server)?;
        let admin = self.running.admin.as_ref().map(of).transpose()?;
        let objects = self.running.purposes.iter().copied().zip(objects);
        let admin = admin.into_iter().flatten();
        let admin = admin.map(|sockets| (Purpose::Admin, sockets));
        let all = objects.chain(admin);
        let send = || -> rustix::io::Result<()> {
            sockopt::set_socket_timeout(channel, sockopt::Timeout::Send, Some(MESSAGE_WAIT))?;
            for (purpose, group) in all {
                let (name, shared) = (purpose.name(), u8::from(group.is_shared));
                let mut head = format!("{name} {shared} {}", group.address).into_bytes();
                for sockets in group.sockets.chunks(SOCKETS_MAX) {
                    send(channel, &head, sockets)?;
                    head = MORE.to_vec();
                }
            }
            send(channel, END, NO_SOCKETS)
        };
        send().map_err(|error| format!("the sockets cannot be sent: {error}"))
    }
}

/// Logs why no more connections are passed on. That the new process has ended well is ordinary: it
/// was replaced or stopped itself. `ended`: its status, if it has ended.
fn report_end(error: Errno, ended: Option<ExitStatus>) {
    let reason = match (ended, error) {
        (Some(status), _) if status.success() => {
            tracing::info!("the new process has ended as well; the other connections drain");
            return;
        }
        (Some(status), _) => format!("it has ended ({status})"),
        (None, Errno::AGAIN) => format!("it did not respond within {ADOPTION_WAIT:?}"),
        (None, Errno::PIPE) => "it has closed its end of the socket".to_owned(),
        (None, error) => error.to_string(),
    };
    tracing::warn!(
        reason,
        "the new process takes no more connections; the others drain"
    );
}

/// The status of a process that is about to end; `None` if it does not end within `limit`.
fn status(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let end = Instant::now() + limit;
    while Instant::now() < end {
        match child.try_wait() {
            Ok(None) => std::thread::sleep(PAUSE),
            ended => return ended.ok().flatten(),
        }
    }
    None
}

/// The process that this one replaces.
#[derive(Debug)]
pub(crate) struct Predecessor {
    channel: OwnedFd,
}

/// The process that this one replaces, and its sockets, if there is one.
pub(crate) fn predecessor() -> Result<Option<(Predecessor, Inherited)>, Failure> {
    if std::env::var_os(RESTART_VARIABLE).is_none() {
        return Ok(None);
    }
    let received = receive_sockets().map_err(|error| {
        let error = error_text(&error);
        Failure::run(format!(
            "no sockets of an earlier process: {error}; unset {RESTART_VARIABLE}"
        ))
    })?;
    Ok(Some(received))
}

fn receive_sockets() -> io::Result<(Predecessor, Inherited)> {
    let channel = io::stdin().as_fd().try_clone_to_owned()?;
    sockopt::set_socket_timeout(&channel, sockopt::Timeout::Recv, Some(MESSAGE_WAIT))?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    let mut inherited = Inherited::default();
    loop {
        let (message, sockets) = receive(&channel)?;
        if message == END {
            return Ok((Predecessor { channel }, inherited));
        }
        if message == MORE {
            inherited.add_more(sockets);
            continue;
        }
        let text = std::str::from_utf8(&message).map_err(|_| io::ErrorKind::InvalidData)?;
        let mut parts = text.splitn(3, ' ');
        let purpose = parts.next().and_then(Purpose::from_name);
        let (Some(purpose), Some(is_shared), Some(address)) = (purpose, parts.next(), parts.next())
        else {
            return Err(io::ErrorKind::InvalidData.into());
        };
        let sockets = ListeningSockets {
            address: address.to_owned(),
            sockets,
            is_shared: is_shared == "1",
        };
        inherited.add(purpose, sockets);
    }
}

impl Predecessor {
    /// Lets the other process drain, and waits for its end: the folder belongs to one process.
    /// Meanwhile, connections wait in the queues of the listening sockets.
    pub(crate) fn wait_for_end(&self, manager: &ServiceManager) {
        tracing::info!("waiting for the end of the earlier process");
        let wait = || -> rustix::io::Result<()> {
            send(&self.channel, WAITING, NO_SOCKETS)?;
            let limit = Some(CHECK_INTERVAL);
            sockopt::set_socket_timeout(&self.channel, sockopt::Timeout::Recv, limit)?;
            while let Err(Errno::AGAIN | Errno::INTR) = receive(&self.channel) {
                if manager.watchdog().is_some() {
                    manager.alive();
                }
            }
            Ok(())
        };
        let _ = wait(); // An error means that it has ended.
    }

    /// Tells the other process that this one serves, and adopts its connections, on a thread of its
    /// own, until it has ended; then calls `ended`. `agreement`: of the settings of `server`.
    pub(crate) fn ready(
        self,
        agreement: &[u8],
        server: Handle,
        ended: impl FnOnce() + Send + 'static,
    ) {
        let adopts = [ADOPTS, agreement].concat();
        let is_told = send(&self.channel, READY, NO_SOCKETS).is_ok(); // It may have ended.
        let thread = std::thread::Builder::new().name("onrush-adopt".to_owned());
        let spawned = thread.spawn(move || {
            let fits = adopts.len() <= MESSAGE_BYTES_MAX;
            if is_told && (!fits || send(&self.channel, &adopts, NO_SOCKETS).is_ok()) {
                take_over(&self.channel, &server);
            }
            ended();
        });
        if let Err(error) = spawned {
            tracing::warn!(%error, "connections of the earlier process are not adopted");
        }
    }
}

/// As [`receive`]. [`Errno::AGAIN`]: nothing has arrived within `limit`, which may be
/// [`Duration::MAX`].
fn receive_within(
    channel: &OwnedFd,
    limit: Duration,
) -> rustix::io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let limit = Some(limit).filter(|limit| *limit != Duration::MAX);
    sockopt::set_socket_timeout(channel, sockopt::Timeout::Recv, limit)?;
    loop {
        match receive(channel) {
            Err(Errno::INTR) => {}
            received => return received,
        }
    }
}

/// Calls `open` until it succeeds or [`LOCK_WAIT`] has passed.
pub(crate) fn retry<T>(open: impl Fn() -> Result<T, Failure>) -> Result<T, Failure> {
    let end = Instant::now() + LOCK_WAIT;
    loop {
        match open() {
            Err(_) if Instant::now() < end => std::thread::sleep(PAUSE),
            result => return result,
        }
    }
}

/// Sends one message with sockets, at most [`SOCKETS_MAX`].
fn send(channel: &OwnedFd, message: &[u8], sockets: &[impl AsFd]) -> rustix::io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let sockets: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
    if !sockets.is_empty() {
        let fits = rights.push(SendAncillaryMessage::ScmRights(&sockets));
        debug_assert!(fits);
    }
    let parts = [IoSlice::new(message)];
    rustix::net::sendmsg(channel, &parts, &mut rights, SendFlags::NOSIGNAL).map(drop)
}

/// Receives one message with its sockets. It is empty when the other process has closed its end.
fn receive(channel: &OwnedFd) -> rustix::io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SOCKETS_MAX))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut message = vec![0; MESSAGE_BYTES_MAX];
    let mut parts = [IoSliceMut::new(&mut message)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(channel, &mut parts, &mut rights, flags)?;
    let mut sockets = Vec::new();
    for part in rights.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = part {
            sockets.extend(received);
        }
    }
    message.truncate(received.bytes);
    Ok((message, sockets))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_message_carries_sockets() {
        let pair = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        );
        let (one, other) = pair.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let many = |count| -> Vec<OwnedFd> {
            let copy = |_| listener.try_clone().unwrap().into();
            (0..count).map(copy).collect()
        };
        send(&one, b"objects 0 x", &many(SOCKETS_MAX)).unwrap();
        send(&one, END, NO_SOCKETS).unwrap();
        drop(one);
        let (message, mut sockets) = receive(&other).unwrap();
        assert_eq!(
            (&message[..], sockets.len()),
            (&b"objects 0 x"[..], SOCKETS_MAX)
        );
        let _client = TcpStream::connect(address).unwrap();
        assert!(TcpListener::from(sockets.remove(0)).accept().is_ok());
        assert_eq!(receive(&other).unwrap().0, END);
        assert_eq!(receive(&other).unwrap().0, b"");
    }

    #[test]
    fn an_agreement_has_all_that_decides_who_may_connect() {
        let of = |text: &str| agreement(&Settings::new(parse(text).unwrap(), None).unwrap());
        let plain = of("port = 90");
        assert_eq!(plain, of("port = 90\nallow = 'put'"));
        for other in [
            "port = 91",
            "port = 90\nbind = '0.0.0.0'",
            "port = 90\ntls-self-signed = true",
            "port = 90\nproxy-protocol = true",
        ] {
            assert_ne!(plain, of(other), "{other}");
        }
    }
}
