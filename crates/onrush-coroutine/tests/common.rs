//! Coroutines polled by hand, and the drivers that their workers have.
#![allow(unreachable_pub)]

use onrush_coroutine::{Contract, Coroutine};
use onrush_rt::driver::sim;
use onrush_rt::driver::{Choice, Config, Preference, Socket, choose};
use std::future::{Future, poll_fn};
use std::net::{TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll, Waker};

/// The contract of the coroutines of all tests.
#[allow(unsafe_code)]
pub fn contract() -> Contract {
    // SAFETY: no coroutine of a test uses what it borrowed from a thread-local, or lent to a scope,
    // after the owner is gone. Tests that violate the contract do so only where the runtime leaks
    // the coroutine or panics, which is what they test.
    unsafe { Contract::accept() }
}

pub fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

pub fn finish<T: 'static>(mut coroutine: Coroutine<T>) -> T {
    loop {
        if let Poll::Ready(output) = poll(&mut coroutine) {
            assert!(coroutine.is_over());
            return output;
        }
    }
}

/// Is pending once.
pub async fn pause() {
    let mut paused = false;
    poll_fn(|_| match std::mem::replace(&mut paused, true) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

/// The message of the panic of `act`.
pub fn message(act: impl FnOnce()) -> String {
    let payload = catch_unwind(AssertUnwindSafe(act)).expect_err("a panic");
    let text = payload.downcast_ref::<String>().cloned();
    text.or_else(|| {
        payload
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
    })
    .expect("a text payload")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Uring,
    Epoll,
    Sim,
}

pub const KERNEL: [Kind; 2] = [Kind::Uring, Kind::Epoll];
pub const ALL: [Kind; 3] = [Kind::Uring, Kind::Epoll, Kind::Sim];

/// The choice of a kernel driver. If it is refused, prints the reason and returns `None`.
pub fn choice(kind: Kind) -> Option<Choice> {
    static URING: OnceLock<Choice> = OnceLock::new();
    let choose = |preference| choose(preference, &Config::default());
    if kind != Kind::Uring {
        return choose(Preference::Epoll).ok();
    }
    let probe = || choose(Preference::Uring).map(|choice| URING.set(choice));
    let works = testing::drivers::available(Kind::Uring, Kind::Epoll, probe);
    works.contains(&kind).then(|| URING.wait().clone())
}

/// Two connected sockets.
pub fn sockets(net: Option<&sim::Net>) -> (Socket, Socket) {
    if let Some(net) = net {
        let (a, b) = net.pair();
        return (Socket::Sim(a), Socket::Sim(b));
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let a = TcpStream::connect(address).expect("connected");
    let (b, _) = listener.accept().expect("accepted");
    for stream in [&a, &b] {
        stream.set_nonblocking(true).expect("set");
        stream.set_nodelay(true).expect("set");
    }
    (Socket::Os(a.into()), Socket::Os(b.into()))
}
