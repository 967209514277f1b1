//! Coroutines on workers of every driver: sockets, files, threads and programs, with the API of
//! std.

use crate::common::{ALL, KERNEL, Kind, choice, contract, sockets};
use testing::{TempDir, body, watchdog};

use onrush_coroutine::net::{Shutdown, TcpListener, TcpStream};
use onrush_coroutine::{self as coroutine, Config, Coroutine, File, fs, thread, wait};
use onrush_rt::driver::sim::{self, Behaviour};
use onrush_rt::driver::{self, Preference};
use onrush_rt::worker::{Pools, Worker};
use rustix::net::{self, AddressFamily, SocketType};
use std::cell::{Cell, RefCell};
use std::io::{self, BufRead, BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A worker that runs coroutines.
struct Rig {
    worker: Worker,
    net: Option<sim::Net>,
}

impl Rig {
    fn new(kind: Kind, seed: u64) -> Option<Rig> {
        if kind == Kind::Sim {
            let net = sim::Net::new(seed, Behaviour::default());
            let worker = Worker::simulated(net.clone(), 0).expect("a worker");
            let net = Some(net);
            return Some(Rig { worker, net });
        }
        let config = driver::Config::default();
        let choice = choice(kind)?;
        let worker = Worker::new(&choice, &config, Pools::default(), 0).expect("a worker");
        Some(Rig { worker, net: None })
    }

    fn poll(&mut self) {
        if let Some(net) = &self.net {
            net.advance(1);
        }
        let may_sleep = self.net.is_none();
        self.worker.poll(&(), may_sleep).expect("the poll succeeds");
    }

    /// Polls until `main`, run as a coroutine, has returned.
    fn run<T: 'static>(&mut self, main: impl FnOnce() -> T + 'static) -> T {
        let result = Rc::new(RefCell::new(None));
        let place = result.clone();
        let main = Coroutine::new(contract(), move || *place.borrow_mut() = Some(main()));
        let mut task = self.worker.context().spawn(main).fallible();
        while !task.is_finished() {
            self.poll();
        }
        self.worker.block_on(&mut task).expect("the poll succeeds");
        let output = result.borrow_mut().take();
        output.expect("the coroutine does not panic")
    }

    /// The two ends of a connection on the network of this rig.
    fn pair(&self) -> impl FnOnce() -> (TcpStream, TcpStream) + 'static {
        let (a, b) = sockets(self.net.as_ref());
        let take = |socket| TcpStream::from_socket(socket).expect("the worker takes the socket");
        move || (take(a), take(b))
    }
}

fn on(kinds: &[Kind], what: &'static str, test: impl Fn(&mut Rig)) {
    let _dog = watchdog(what);
    for &kind in kinds {
        for seed in 1..4 {
            coroutine::scope(|| {
                if let Some(mut rig) = Rig::new(kind, seed) {
                    test(&mut rig);
                }
            });
        }
    }
}

#[test]
fn spawned_coroutines_behave_like_threads() {
    on(&ALL, "spawned_coroutines_behave_like_threads", |rig| {
        rig.run(|| {
            let order = Rc::new(RefCell::new(Vec::new()));
            let handles: Vec<_> = [30, 10, 20]
                .into_iter()
                .map(|ms| {
                    let order = order.clone();
                    thread::spawn(move || {
                        thread::sleep(Duration::from_millis(ms));
                        thread::yield_now();
                        order.borrow_mut().push(ms);
                        ms * 2
                    })
                })
                .collect();
            let results: Vec<u64> = handles.into_iter().map(|h| h.join().unwrap()).collect();
            assert_eq!(
                (results, order.take()),
                (vec![60, 20, 40], vec![10, 20, 30])
            );
            let panics = thread::spawn(|| panic!("on purpose"));
            assert_eq!(
                panics.join().unwrap_err().downcast_ref(),
                Some(&"on purpose")
            );
        });
    });
}

/// A result that is not joined is dropped by its own coroutine, where its destructor may wait.
#[test]
fn unjoined_result_is_dropped_by_its_coroutine() {
    struct Flushes(Rc<RefCell<Vec<&'static str>>>);
    impl Drop for Flushes {
        fn drop(&mut self) {
            thread::sleep(Duration::from_millis(1));
            self.0.borrow_mut().push("flushed");
        }
    }
    on(&ALL, "unjoined_result_is_dropped_by_its_coroutine", |rig| {
        rig.run(|| {
            let said = Rc::new(RefCell::new(Vec::new()));
            for ends_first in [false, true] {
                let result = Flushes(said.clone());
                let handle = thread::spawn(move || {
                    thread::yield_now();
                    result
                });
                while ends_first && !handle.is_finished() {
                    thread::yield_now();
                }
                drop(handle);
                while said.borrow().is_empty() {
                    thread::sleep(Duration::from_millis(1));
                }
                assert_eq!(said.take(), ["flushed"]);
            }
            drop(thread::spawn(|| {
                struct Panics;
                impl Drop for Panics {
                    fn drop(&mut self) {
                        panic!("on purpose");
                    }
                }
                Panics
            }));
            thread::sleep(Duration::from_millis(2));
        });
    });
}

#[test]
fn streams_carry_bytes_both_ways() {
    on(&ALL, "streams_carry_bytes_both_ways", |rig| {
        let pair = rig.pair();
        rig.run(move || {
            let (client, mut server) = pair();
            let said = body(600_000);
            let expected = said.clone();
            // Both clones are used at the same time: one writes more than fits, the other reads it
            // back.
            let writer = client.try_clone().unwrap();
            let writes = thread::spawn(move || {
                (&writer).write_all(&said).unwrap();
                writer.shutdown(Shutdown::Write).unwrap();
            });
            let echoes = thread::spawn(move || {
                let mut piece = [0; 10_000];
                loop {
                    match server.read(&mut piece).unwrap() {
                        0 => return,
                        n => server.write_all(&piece[..n]).unwrap(),
                    }
                }
            });
            let mut heard = Vec::new();
            (&client).read_to_end(&mut heard).unwrap();
            assert!(heard == expected);
            writes.join().unwrap();
            echoes.join().unwrap();
        });
    });
}

#[test]
fn two_readers_of_one_stream_both_read() {
    on(&ALL, "two_readers_of_one_stream_both_read", |rig| {
        let pair = rig.pair();
        rig.run(move || {
            let (mut client, server) = pair();
            let readers: Vec<_> = (0..3)
                .map(|_| {
                    let mut server = server.try_clone().unwrap();
                    thread::spawn(move || {
                        let mut byte = [0];
                        server.read_exact(&mut byte).unwrap();
                        byte[0]
                    })
                })
                .collect();
            thread::sleep(Duration::from_millis(2));
            client.write_all(b"abc").unwrap();
            let bytes: Vec<u8> = readers.into_iter().map(|r| r.join().unwrap()).collect();
            assert_eq!(bytes, b"abc");
        });
    });
}

#[test]
fn timeouts_end_only_their_wait() {
    on(&ALL, "timeouts_end_only_their_wait", |rig| {
        let pair = rig.pair();
        rig.run(move || {
            let (mut client, mut server) = pair();
            let zero = server.set_read_timeout(Some(Duration::ZERO));
            assert_eq!(zero.unwrap_err().kind(), ErrorKind::InvalidInput);
            server
                .set_read_timeout(Some(Duration::from_millis(5)))
                .unwrap();
            let mut bytes = [0; 4];
            let error = server.read(&mut bytes).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            client.write_all(b"late").unwrap();
            server.set_read_timeout(None).unwrap();
            server.read_exact(&mut bytes).unwrap();
            assert_eq!(&bytes, b"late");
            client
                .set_write_timeout(Some(Duration::from_millis(5)))
                .unwrap();
            let much = vec![0; 64 << 20];
            let error = client.write_all(&much).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
        });
    });
}

/// A coroutine is dropped in each of its waits. Its streams are closed and its written data is
/// sent.
#[test]
fn coroutine_dropped_in_every_wait() {
    on(&ALL, "coroutine_dropped_in_every_wait", |rig| {
        for steps in 0..4 {
            let pair = rig.pair();
            let ended = Rc::new(Cell::new(0));
            let seen = ended.clone();
            rig.run(move || {
                struct Ends(Rc<Cell<u32>>);
                impl Drop for Ends {
                    fn drop(&mut self) {
                        self.0.set(self.0.get() + 1);
                    }
                }
                let (mut client, server) = pair();
                let mut victim = Box::pin(Coroutine::new(contract(), move || {
                    let _ends = Ends(seen);
                    let mut writer = BufWriter::new(server.try_clone().unwrap());
                    let mut reader = BufReader::new(server);
                    writer.write_all(b"greeting").unwrap();
                    let mut line = String::new();
                    loop {
                        line.clear();
                        reader.read_line(&mut line).unwrap();
                        writer.write_all(line.as_bytes()).unwrap();
                    }
                }));
                for step in 0..steps {
                    client
                        .write_all(format!("line {step}\n").as_bytes())
                        .unwrap();
                    let context = onrush_rt::worker::WorkerContext::current().unwrap();
                    let soon = Duration::from_millis(5);
                    assert!(wait(context.timeout(soon, victim.as_mut())).is_none());
                }
                drop::<std::pin::Pin<Box<Coroutine<()>>>>(victim);
                let mut heard = String::new();
                client.read_to_string(&mut heard).unwrap();
                // The drop flushed the buffer, as far as the socket had room.
                assert_eq!(
                    heard.starts_with("greeting"),
                    steps > 0 && !heard.is_empty()
                );
            });
            assert_eq!(ended.get(), u32::from(steps > 0));
        }
    });
}

#[test]
fn listeners_accept_and_clients_connect() {
    on(&KERNEL, "listeners_accept_and_clients_connect", |rig| {
        rig.run(|| {
            let listener = TcpListener::bind(("localhost", 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let taken = TcpListener::bind(address).unwrap_err();
            assert_eq!(taken.kind(), ErrorKind::AddrInUse);
            let serves = thread::spawn(move || {
                let mut peers = Vec::new();
                for stream in listener.incoming().take(3) {
                    let mut stream = stream.unwrap();
                    peers.push(stream.peer_addr().unwrap());
                    stream.set_nodelay(true).unwrap();
                    assert!(stream.nodelay().unwrap());
                    thread::spawn(move || stream.write_all(b"hello").unwrap());
                }
                peers
            });
            let mut ours = Vec::new();
            for way in 0..3 {
                let limit = Duration::from_secs(20);
                let mut client = match way {
                    0 => TcpStream::connect(address).unwrap(),
                    1 => TcpStream::connect(("localhost", address.port())).unwrap(),
                    _ => TcpStream::connect_timeout(&address, limit).unwrap(),
                };
                assert_eq!(client.peer_addr().unwrap(), address);
                ours.push(client.local_addr().unwrap());
                let mut heard = String::new();
                client.read_to_string(&mut heard).unwrap();
                assert_eq!(heard, "hello");
            }
            assert_eq!(serves.join().unwrap(), ours);
            let (_bound, address) = unheard();
            let refused = TcpStream::connect(address.to_string()).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
            for wrong in ["", "127.0.0.1", "127.0.0.1:99999", "no such host:1"] {
                assert!(TcpStream::connect(wrong).is_err(), "{wrong:?}");
            }
        });
    });
}

/// A socket that is bound and does not listen, and its address: no other program can get the port
/// meanwhile, as it could that of a listener that was closed.
fn unheard() -> (OwnedFd, SocketAddr) {
    let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = SocketAddr::try_from(net::getsockname(&socket).unwrap()).unwrap();
    (socket, address)
}

#[test]
fn simulated_listeners_accept() {
    on(&[Kind::Sim], "simulated_listeners_accept", |rig| {
        let (socket, address) = rig.net.as_ref().expect("simulated").listen();
        let clients: Vec<_> = (0..3).map(|_| address.connect().unwrap()).collect();
        rig.run(move || {
            let listener = TcpListener::from_socket(socket).unwrap();
            assert!(listener.local_addr().is_err());
            for client in clients {
                let (mut stream, peer) = listener.accept().unwrap();
                assert_eq!(peer.port(), 0);
                stream.write_all(b"hi").unwrap();
                stream.shutdown(Shutdown::Both).unwrap();
                assert_eq!(client.receive().unwrap(), b"hi");
                assert!(client.at_end());
            }
        });
    });
}

#[test]
fn files_are_read_and_written() {
    let temp = TempDir::new();
    on(&ALL, "files_are_read_and_written", |rig| {
        let folder = temp.path().join("a folder");
        rig.run(move || {
            fs::create_dir_all(&folder).unwrap();
            let path = folder.join("a file");
            let content = body(700_000);
            let mut file = File::create(&path).unwrap();
            file.write_all(&content).unwrap();
            file.sync_all().unwrap();
            assert_eq!(file.metadata().unwrap().len(), 700_000);
            let mut file = File::open(&path).unwrap();
            let mut heard = Vec::new();
            file.read_to_end(&mut heard).unwrap();
            assert!(heard == content);
            file.seek(SeekFrom::Start(699_990)).unwrap();
            let mut end = Vec::new();
            file.try_clone().unwrap().read_to_end(&mut end).unwrap();
            assert_eq!(end, &content[699_990..]);
            let appends = File::options().append(true).open(&path);
            appends.unwrap().write_all(b"more").unwrap();
            assert!(fs::read(&path).unwrap().ends_with(b"more"));
            fs::write(&path, "short").unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), "short");
            fs::rename(&path, folder.join("b")).unwrap();
            assert_eq!(File::open(&path).unwrap_err().kind(), ErrorKind::NotFound);
            fs::remove_file(folder.join("b")).unwrap();
        });
    });
}

/// A worker unwinds all its coroutines at its end, and they may still use it.
#[test]
fn dropped_worker_unwinds_its_coroutines() {
    on(&ALL, "dropped_worker_unwinds_its_coroutines", |rig| {
        let mut own = Rig::new(rig_kind(rig), 9).expect("the driver is available");
        let ended = Rc::new(Cell::new(0));
        let (pair, seen) = (own.pair(), ended.clone());
        own.run(move || {
            let (a, b) = pair();
            for (number, mut stream) in [a, b].into_iter().enumerate() {
                let seen = seen.clone();
                thread::spawn(move || {
                    struct Ends(Rc<Cell<u32>>, Option<thread::JoinHandle<()>>);
                    impl Drop for Ends {
                        fn drop(&mut self) {
                            assert!(self.1.take().expect("one").join().is_err());
                            // Completes at once only without threads.
                            let _ = File::open("/dev/null");
                            self.0.set(self.0.get() + 1);
                        }
                    }
                    let other = thread::spawn(|| thread::sleep(Duration::from_secs(1000)));
                    let _ends = Ends(seen, Some(other));
                    let mut writer = BufWriter::new(stream.try_clone().unwrap());
                    write!(writer, "{number}").unwrap();
                    stream.read_exact(&mut [0; 10]).unwrap();
                });
            }
            thread::sleep(Duration::from_millis(2));
        });
        let in_use = coroutine::counters();
        assert_eq!((in_use.in_use(), ended.get()), (4, 0));
        drop(own);
        assert_eq!((in_use.in_use(), ended.get()), (0, 2));
    });
}

fn rig_kind(rig: &Rig) -> Kind {
    match rig.worker.context().driver().name() {
        "io_uring" => Kind::Uring,
        "epoll" => Kind::Epoll,
        _ => Kind::Sim,
    }
}

fn configs() -> Vec<Config> {
    let mut configs = Vec::new();
    for (kind, driver) in [
        (Kind::Uring, Preference::Uring),
        (Kind::Epoll, Preference::Epoll),
    ] {
        if choice(kind).is_some() {
            configs.push(Config {
                driver,
                pinned: false,
                ..Config::default()
            });
        }
    }
    configs
}

/// All workers bind one address and together serve all clients.
#[test]
fn program_on_several_workers_has_one_port() {
    let _dog = watchdog("program_on_several_workers_has_one_port");
    for config in configs() {
        let (ports, served) = (
            Arc::new(Mutex::new(Vec::new())),
            Arc::new(AtomicUsize::new(0)),
        );
        let (main_ports, main_served) = (ports.clone(), served.clone());
        let config = Config {
            workers: 3,
            ..config
        };
        let main = move || {
            let listener = TcpListener::bind("127.0.0.1:0")?;
            let address = listener.local_addr()?;
            main_ports.lock().unwrap().push(address.port());
            let served = main_served.clone();
            thread::spawn(move || {
                for stream in listener.incoming() {
                    let mut line = String::new();
                    let mut stream = BufReader::new(stream.unwrap());
                    stream.read_line(&mut line).unwrap();
                    stream.get_mut().write_all(line.as_bytes()).unwrap();
                    served.fetch_add(1, Ordering::Relaxed);
                }
            });
            for number in 0..20 {
                let mut client = TcpStream::connect(address)?;
                writeln!(client, "{number}")?;
                let mut response = String::new();
                client.read_to_string(&mut response)?;
                assert_eq!(response, format!("{number}\n"));
            }
            // No worker ends while connections may still be queued at its listener.
            while main_served.load(Ordering::Relaxed) < 60 {
                thread::sleep(Duration::from_millis(1));
            }
            Ok(())
        };
        coroutine::run(contract(), config, main).unwrap();
        let ports = ports.lock().unwrap();
        assert!(
            ports.len() == 3 && ports.iter().all(|port| *port == ports[0]),
            "{ports:?}"
        );
    }
}

#[test]
fn program_ends_with_its_first_failure() {
    let _dog = watchdog("program_ends_with_its_first_failure");
    for config in configs() {
        for panics in [false, true] {
            let config = Config {
                workers: 3,
                ..config.clone()
            };
            let begun = Arc::new(AtomicUsize::new(0));
            let main = move || {
                if begun.fetch_add(1, Ordering::Relaxed) == 1 {
                    assert!(!panics, "on purpose");
                    return Err(io::Error::other("on purpose"));
                }
                thread::sleep(Duration::from_secs(1000));
                Ok(())
            };
            let error = coroutine::run(contract(), config, main)
                .unwrap_err()
                .to_string();
            let expected = match panics {
                true => "the main function panicked",
                false => "on purpose",
            };
            assert_eq!(error, expected);
        }
    }
}
