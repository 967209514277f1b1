//! A server of a line protocol with one thread for each direction of a connection. What waits comes
//! from the parent module: from `std`, or on coroutines from Onrush.

use super::{Arc, Mutex, Receiver, Shutdown, SyncSender, TcpListener, TcpStream, mpsc, thread};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};

/// The longest line, in bytes.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// Lines that are queued for one client. A client that does not read them misses later messages.
const LINES_MAX: usize = 256;

/// State that all connections share.
#[derive(Default)]
struct State {
    values: BTreeMap<String, String>,
    rooms: HashMap<String, Vec<Member>>,
    connections: u64,
}

/// The handle with which other connections send lines to a connection.
#[derive(Clone)]
struct Member {
    id: u64,
    lines: SyncSender<String>,
}

impl State {
    /// Executes one line from `from` and returns the reply. `None` ends the connection.
    fn execute(&mut self, line: &str, from: &Member) -> Option<String> {
        let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
        let (name, text) = rest.split_once(' ').unwrap_or((rest, ""));
        Some(match (command, name) {
            ("QUIT", "") => return None,
            ("KEYS", "") => {
                let names: Vec<&str> = self.values.keys().map(String::as_str).collect();
                format!("= {}", names.join(" "))
            }
            (_, "") => "! nothing is named".to_owned(),
            ("SET", _) => {
                self.values.insert(name.to_owned(), text.to_owned());
                "+ set".to_owned()
            }
            ("GET", _) => match self.values.get(name) {
                Some(value) => format!("= {value}"),
                None => "- not there".to_owned(),
            },
            ("DEL", _) => match self.values.remove(name) {
                Some(_) => "+ deleted".to_owned(),
                None => "- not there".to_owned(),
            },
            ("JOIN", _) => {
                self.rooms
                    .entry(name.to_owned())
                    .or_default()
                    .push(from.clone());
                "+ joined".to_owned()
            }
            ("SAY", _) => {
                let members = self.rooms.get(name).map_or(&[][..], Vec::as_slice);
                let said = format!("@ {name} {text}");
                let heard = members
                    .iter()
                    .filter(|to| to.lines.try_send(said.clone()).is_ok());
                format!("+ said to {}", heard.count())
            }
            _ => "! no such command".to_owned(),
        })
    }

    fn leave(&mut self, id: u64) {
        self.rooms.retain(|_, members| {
            members.retain(|member| member.id != id);
            !members.is_empty()
        });
    }
}

/// Writes the lines for one client. Lines that are queued together are written together.
fn write_lines(stream: TcpStream, lines: &Receiver<String>) -> io::Result<()> {
    let mut writer = BufWriter::new(stream);
    while let Ok(line) = lines.recv() {
        writeln!(writer, "{line}")?;
        for line in lines.try_iter() {
            writeln!(writer, "{line}")?;
        }
        writer.flush()?;
    }
    Ok(())
}

/// Executes the lines of one client until it disconnects or quits.
fn read_lines(stream: TcpStream, state: &Mutex<State>, own: &Member) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        reader.by_ref().take(LINE_BYTES_MAX).read_line(&mut line)?;
        let Some(line) = line.strip_suffix('\n') else {
            return Ok(()); // End of input, line too long, or incomplete.
        };
        let response = state
            .lock()
            .unwrap()
            .execute(line.trim_end_matches('\r'), own);
        let Some(response) = response else {
            return Ok(());
        };
        if own.lines.send(response).is_err() {
            return Ok(()); // The writer has ended.
        }
    }
}

fn serve_connection(stream: TcpStream, state: &Mutex<State>) -> io::Result<()> {
    let (lines, from_lines) = mpsc::sync_channel(LINES_MAX);
    let id = {
        let mut state = state.lock().unwrap();
        state.connections += 1;
        state.connections
    };
    let out = stream.try_clone()?;
    let writing = thread::spawn(move || write_lines(out, &from_lines));
    let own = Member { id, lines };
    let read = read_lines(stream.try_clone()?, state, &own);
    state.lock().unwrap().leave(id);
    drop(own); // The last sender: the other thread writes the remaining lines and ends.
    let written = writing.join().unwrap_or(Ok(()));
    stream.shutdown(Shutdown::Both)?;
    read.and(written)
}

pub(super) fn program() -> io::Result<()> {
    let port = std::env::args().nth(1).unwrap_or_else(|| "8080".to_owned());
    let listener = TcpListener::bind(format!("127.0.0.1:{port}"))?;
    let state = Arc::new(Mutex::new(State::default()));
    for stream in listener.incoming() {
        let (stream, state) = (stream?, state.clone());
        thread::spawn(move || serve_connection(stream, &state));
    }
    Ok(())
}
