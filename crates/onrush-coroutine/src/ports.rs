//! One port for all workers of a program: the first worker that binds an address creates a
//! listening socket for each worker, and the others take theirs when they bind it.

use onrush_rt::driver::ListenSocket;
use onrush_rt::net::{self, Address, ListenMode, ListenOptions};
use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The listening sockets of the workers of one program.
#[derive(Debug)]
pub(super) struct Ports {
    workers: usize,
    made: Mutex<Vec<Made>>,
}

#[derive(Debug)]
struct Made {
    /// The requested address: port 0 means a free one.
    asked: SocketAddr,
    /// One for each worker, until it is taken.
    sockets: Vec<Option<ListenSocket>>,
}

impl Ports {
    pub(super) fn new(workers: usize) -> Ports {
        Ports {
            workers,
            made: Mutex::default(),
        }
    }

    /// The socket of the worker `index` for `address`, unless it was taken before.
    fn take(&self, address: SocketAddr, index: usize) -> io::Result<Option<ListenSocket>> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if !made.iter().any(|made| made.asked == address) {
            let sockets = listen(address, self.workers)?;
            made.push(Made {
                asked: address,
                sockets: sockets.into_iter().map(Some).collect(),
            });
        }
        let found = made.iter_mut().find(|made| made.asked == address);
        Ok(found.and_then(|made| made.sockets.get_mut(index)?.take()))
    }
}

thread_local! {
    static PORTS: RefCell<Option<Arc<Ports>>> = const { RefCell::new(None) };
}

/// Makes the coroutines of this thread bind through `ports`.
pub(super) fn share(ports: Arc<Ports>) {
    PORTS.set(Some(ports));
}

/// A listening socket for `address`, on the worker `index`.
pub(super) fn bind(address: SocketAddr, index: usize) -> io::Result<ListenSocket> {
    let ports = PORTS.with_borrow(Clone::clone);
    if let Some(ports) = ports
        && let Some(socket) = ports.take(address, index)?
    {
        return Ok(socket);
    }
    let mut sockets = listen(address, 1)?;
    sockets
        .pop()
        .ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
}

fn listen(address: SocketAddr, workers: usize) -> io::Result<Vec<ListenSocket>> {
    let options = ListenOptions {
        nodelay: false, // The default of `std::net`.
        ..ListenOptions::default()
    };
    let address = Address::Tcp(address);
    net::listen(&address, ListenMode::PerWorker, workers, &options).map(|(sockets, _)| sockets)
}
