//! The end of a server by a signal.

use crate::common::{drivers, watchdog};
use onrush::{Request, Response, Server};
use rustix::process::{Signal, getpid, kill_process};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);

/// A server that serves with [`Server::graceful`] on a thread of its own, when it has received a
/// request that waits: the client, a sender that lets the handler respond, and the thread.
fn waiting(
    driver: onrush::DriverPreference,
) -> (
    TcpStream,
    mpsc::Sender<()>,
    thread::JoinHandle<std::io::Result<()>>,
) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (entered, has_entered) = mpsc::channel();
    let (release, is_released) = mpsc::channel::<()>();
    let is_released = std::sync::Arc::new(std::sync::Mutex::new(is_released));
    let handler = move |request: Request| {
        let (entered, is_released) = (entered.clone(), is_released.clone());
        async move {
            let wait = request.worker().blocking(move || {
                let _ = entered.send(());
                let _ = is_released.lock().unwrap().recv();
            });
            let _ = wait.await;
            Response::text("finished")
        }
    };
    let server = Server::bind("127.0.0.1:0").inherit(vec![listener.into()]);
    let server = server.workers(2).driver(driver).graceful(HOUR);
    let serving = thread::spawn(move || server.serve(handler));
    let mut client = TcpStream::connect(address).unwrap();
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        .unwrap();
    has_entered.recv().unwrap();
    (client, release, serving)
}

#[test]
fn a_signal_ends_a_server_after_its_requests() {
    let _dog = watchdog("a_signal_ends_a_server_after_its_requests");
    if testing::child::elsewhere(module_path!(), "a_signal_ends_a_server_after_its_requests") {
        return;
    }
    for driver in drivers() {
        for signal in [Signal::TERM, Signal::INT] {
            let (mut client, release, serving) = waiting(driver);
            kill_process(getpid(), signal).unwrap();
            release.send(()).unwrap();
            let mut response = String::new();
            client.read_to_string(&mut response).unwrap();
            assert!(response.ends_with("\r\n\r\nfinished"), "{response}");
            serving.join().unwrap().unwrap();
        }
    }
}

#[test]
fn a_second_signal_ends_a_server_at_once() {
    let _dog = watchdog("a_second_signal_ends_a_server_at_once");
    if testing::child::elsewhere(module_path!(), "a_second_signal_ends_a_server_at_once") {
        return;
    }
    for driver in drivers() {
        let (mut client, release, serving) = waiting(driver);
        // Two signals of a kind may become one.
        kill_process(getpid(), Signal::TERM).unwrap();
        kill_process(getpid(), Signal::INT).unwrap();
        serving.join().unwrap().unwrap();
        let mut response = Vec::new();
        let read = client.read_to_end(&mut response);
        assert!(read.is_err() || response.is_empty());
        drop(release);
    }
}

#[test]
fn after_the_server_a_signal_ends_the_process() {
    let _dog = watchdog("after_the_server_a_signal_ends_the_process");
    let name = "after_the_server_a_signal_ends_the_process";
    const CHILD: &str = "ONRUSH_TEST_ENDED_BY_SIGNAL";
    if std::env::var_os(CHILD).is_none() {
        let child = testing::child::only(module_path!(), name)
            .env(CHILD, "1")
            .output();
        let status = child.unwrap().status;
        assert_eq!(status.signal(), Some(Signal::TERM.as_raw()), "{status}");
        return;
    }
    let (client, release, serving) = waiting(drivers()[0]);
    kill_process(getpid(), Signal::TERM).unwrap();
    release.send(()).unwrap();
    serving.join().unwrap().unwrap();
    drop(client);
    kill_process(getpid(), Signal::TERM).unwrap();
    thread::sleep(HOUR); // Until the signal arrives.
}
