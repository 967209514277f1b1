//! A connection as its input describes it: the client and the caller take turns.

use crate::Choices;
use crate::http2::client::Client;
use crate::http2::frames::FrameHead;
use crate::http2::input::Input;
use crate::http2::server::{Action, Entry, LINES, Server};
use crate::http2::stream::Stream;
use onrush_proto::http2::connection::{Event, STREAMS_MAX};
use onrush_proto::http2::frame::{ErrorCode, PREFACE};
use onrush_proto::http2::tunnel::Tunnel;
use onrush_proto::response::ContentLength;

/// A client sends no more than this, in bytes.
const BYTES_MAX: usize = 3 << 20;

const STATUSES: [u16; 6] = [200, 200, 204, 304, 404, 205];

/// The bits of the choices: the content of the input is frames, not what a client does; with them
/// the preface as well, and otherwise the client breaks rules.
const RAW: u32 = 3;
const WILD: u32 = 4;
/// The server lets clients ask for other protocols; the client does; bodies wait.
pub(super) const OFFERS: u32 = 5;
const ASKS: u32 = 6;
const HOLDS: u32 = 7;

/// What was received, and what the caller did when how much of it had arrived.
#[derive(Default)]
pub(super) struct Script {
    pub(super) bytes: Vec<u8>,
    pub(super) actions: Vec<(usize, Action)>,
}

impl Script {
    /// Performs what an input describes.
    ///
    /// # Panics
    /// If the machine refuses a client that has obeyed all rules, or one of its usual requests.
    pub(super) fn perform(choices: Choices, bytes: &[u8]) -> (Script, Server) {
        let limits = choices.limits();
        let mut play = Play {
            client: Client::new(),
            server: Server::new(limits, choices.has(OFFERS), true),
            script: Script::default(),
            held_bytes: 0,
            asks: choices.has(ASKS),
            upgrades: choices.has(OFFERS) || choices.has(ASKS),
            holds: choices.has(HOLDS),
        };
        match choices.has(RAW) {
            true => play.raw(bytes, choices.has(WILD), choices),
            false => play.turns(&mut Input::new(bytes), choices.has(WILD)),
        }
        let (client, server) = (&play.client, &play.server);
        if let Some(fatal) = server.fatal {
            // Many frames, or a large head, may be too much of what is allowed.
            let is_much = fatal.code == ErrorCode::ENHANCE_YOUR_CALM
                && client.wire.len() > 2 * limits.head_bytes_max.min(1_000);
            assert!(client.is_wrong || is_much, "a valid client: {fatal:?}");
        } else if !client.is_wrong && !play.may_refuse() {
            for &stream in client.plain.iter().chain(&client.asking) {
                let request = Entry::Event(Event::Request { stream });
                assert!(
                    server.log.contains(&request),
                    "request {stream} is not served"
                );
            }
            for id in &client.presuming {
                let is_it = |entry: &Entry| match entry {
                    Entry::Event(Event::Malformed { stream, .. }) => stream == id,
                    _ => false,
                };
                assert!(
                    server.log.iter().any(is_it),
                    "request {id} is not malformed"
                );
            }
        }
        play.script.bytes = play.client.wire;
        (play.script, play.server)
    }
}

struct Play {
    client: Client,
    server: Server,
    script: Script,
    /// How much of what the client has sent has not arrived.
    held_bytes: usize,
    /// The client asks for other protocols.
    asks: bool,
    /// The caller permits them.
    upgrades: bool,
    /// The caller lets bodies wait.
    holds: bool,
}

impl Play {
    /// The client and the caller, one step for each few bytes.
    fn turns(&mut self, input: &mut Input<'_>, is_wild: bool) {
        self.client.begin(input);
        self.deliver();
        while !input.is_empty() && self.client.wire.len() < BYTES_MAX {
            let what = input.byte();
            match what & 31 {
                16..28 => self.caller(what, input),
                28.. if is_wild => self.client_breaks_rule(what, input),
                14 | 15 => self.held_bytes = usize::from(input.byte()),
                what => {
                    self.client_acts(what & 15, input);
                    self.deliver();
                }
            }
            if self.server.has_failed() {
                // What follows is taken without an answer.
                self.client.wire.extend_from_slice(&[0; 40]);
                break;
            }
        }
        self.held_bytes = 0;
        self.deliver();
        self.consume_all();
    }

    /// Passes what the client has sent, except what is held back, until the next time.
    fn deliver(&mut self) {
        let held_bytes = std::mem::take(&mut self.held_bytes);
        let end = self.client.wire.len().saturating_sub(held_bytes);
        let end = end.max(self.server.arrived);
        self.server.receive(&self.client.wire[..end]);
    }

    fn client_acts(&mut self, what: u8, input: &mut Input<'_>) {
        let client = &mut self.client;
        match what {
            2 | 3 if self.asks => client.connect(input),
            0..=3 => client.request(input),
            4..=6 => client.data(input, false),
            7 => client.trailers(input),
            8 => client.reset(input),
            9 | 10 => client.window_update(input),
            11 => client.settings(input),
            12 => client.other(input),
            _ => {
                let count = match input.byte() {
                    0 => usize::MAX,
                    count => usize::from(count),
                };
                client.read(&self.server.out, count);
            }
        }
    }

    fn client_breaks_rule(&mut self, what: u8, input: &mut Input<'_>) {
        match what & 3 {
            0 => self.client.any_frame(input),
            1 => self.client.any_block(input),
            2 => self.client.data(input, true),
            _ => {
                let length = usize::from(input.byte() & 15);
                let bytes = input.bytes(length);
                self.client.any_bytes(&bytes);
            }
        }
        self.deliver();
    }

    /// A step of the caller.
    fn caller(&mut self, what: u8, input: &mut Input<'_>) {
        let action = match what & 31 {
            16 => self.interim(input),
            17 | 18 => self.head(input),
            19 | 20 => self.data(input),
            21 => self.trailers(input),
            22 => self.any(input, |_| true).map(|stream| Action::Reset {
                stream,
                code: ErrorCode(u32::from(input.byte() & 15)),
            }),
            23 | 24 => self.consume(input),
            26 if self.holds => self.release(input),
            27 if self.upgrades => self.upgrade(input),
            25 => match input.byte() {
                0..=99 => Some(Action::AnnounceEnd),
                100..=250 => Some(Action::End),
                _ => Some(Action::Fail(ErrorCode::INTERNAL_ERROR)),
            },
            _ => Some(Action::Wait(u32::from(input.byte()))),
        };
        if let Some(action) = action {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        self.script.actions.push((self.server.arrived, action));
        self.server.act(action);
    }

    /// Whether the limit on streams or the end of the connection may refuse requests.
    fn may_refuse(&self) -> bool {
        let ends = |action: &Action| matches!(action, Action::End | Action::Fail(_));
        let mut actions = self.script.actions.iter().map(|(_, action)| action);
        self.client.requests() > STREAMS_MAX || actions.any(ends)
    }

    /// One of the streams for which `is_meant` holds.
    fn any(&mut self, input: &mut Input<'_>, is_meant: impl Fn(&Stream) -> bool) -> Option<u32> {
        let meant = self
            .server
            .peer
            .streams()
            .filter(|(_, stream)| is_meant(stream));
        let ids: Vec<u32> = meant.map(|(id, _)| id).collect();
        input.one_of(&ids)
    }

    fn interim(&mut self, input: &mut Input<'_>) -> Option<Action> {
        let stream = self.any(input, Stream::may_send)?;
        let lines = input.byte() % LINES.len() as u8;
        Some(Action::Interim { stream, lines })
    }

    fn head(&mut self, input: &mut Input<'_>) -> Option<Action> {
        let stream = self.any(input, |stream| stream.may_send() && !stream.has_head)?;
        let how = input.byte();
        let length = match how >> 5 {
            0..=3 => ContentLength::Unknown,
            4 => ContentLength::Known(0),
            _ => ContentLength::Known(input.number(100_000) as u64),
        };
        Some(Action::Head {
            stream,
            status: STATUSES[usize::from(how & 31) % STATUSES.len()],
            lines: how % LINES.len() as u8,
            length,
        })
    }

    fn data(&mut self, input: &mut Input<'_>) -> Option<Action> {
        let stream = self.any(input, |stream| stream.may_send() && stream.has_head)?;
        let left = self.left(stream);
        let room = self.server.room(stream);
        let most = left.map_or(room, |left| room.min(left as usize));
        let bytes = input.number(most);
        let ends = match left {
            Some(left) => left == bytes as u64,
            None => input.byte() & 3 == 0,
        };
        Some(Action::Data {
            stream,
            bytes,
            ends,
        })
    }

    fn trailers(&mut self, input: &mut Input<'_>) -> Option<Action> {
        let stream = self.any(input, |stream| {
            stream.may_send() && stream.has_head && stream.left.is_none_or(|left| left == 0)
        })?;
        let lines = input.byte() % LINES.len() as u8;
        Some(Action::Trailers { stream, lines })
    }

    fn consume(&mut self, input: &mut Input<'_>) -> Option<Action> {
        let stream = self.any(input, |stream| stream.unconsumed > 0)?;
        let known = self.server.peer.streams().find(|(id, _)| *id == stream);
        let unconsumed = known.map_or(0, |(_, stream)| stream.unconsumed);
        let how = input.byte();
        let bytes = match how & 0xfe {
            0 => unconsumed,
            _ => input.number(unconsumed),
        };
        let may_grow = how & 1 == 0;
        Some(Action::Consume {
            stream,
            bytes,
            may_grow,
        })
    }

    fn release(&mut self, input: &mut Input<'_>) -> Option<Action> {
        let stream = self.any(input, |stream| stream.is_open() && stream.unreleased() > 0)?;
        let known = self.server.peer.streams().find(|(id, _)| *id == stream);
        let unreleased = known.map_or(0, |(_, stream)| stream.unreleased());
        let bytes = match input.byte() {
            0 => unreleased,
            _ => input.number(unreleased),
        };
        Some(Action::Release { stream, bytes })
    }

    /// Permits a response 101, and mostly sends it.
    fn upgrade(&mut self, input: &mut Input<'_>) -> Option<Action> {
        let stream = self.any(input, |_| true)?;
        self.act(Action::Upgrade { stream });
        let how = input.byte();
        let known = self.server.peer.streams().find(|(id, _)| *id == stream);
        let has_head = known.is_some_and(|(_, stream)| stream.has_head);
        let is_permitted = self.server.peer.tunnel(stream) == Tunnel::Permitted;
        (is_permitted && !has_head && how & 3 != 3).then_some(Action::Head {
            stream,
            status: 101,
            lines: how % LINES.len() as u8,
            length: match how >> 7 {
                0 => ContentLength::Unknown,
                _ => ContentLength::Known(0),
            },
        })
    }

    fn left(&mut self, stream: u32) -> Option<u64> {
        let known = self.server.peer.streams().find(|(id, _)| *id == stream);
        known.and_then(|(_, stream)| stream.left)
    }

    /// The caller takes all that it was told. Then the windows must be open again.
    fn consume_all(&mut self) {
        let known = self.server.peer.streams();
        let unconsumed: Vec<(u32, usize)> = known
            .map(|(stream, known)| (stream, known.unconsumed))
            .filter(|(_, bytes)| *bytes > 0)
            .collect();
        for (stream, bytes) in unconsumed {
            self.act(Action::Consume {
                stream,
                bytes,
                may_grow: false,
            });
        }
    }

    /// Frames as they are. The choices decide what the caller does between them.
    fn raw(&mut self, bytes: &[u8], has_preface: bool, choices: Choices) {
        if !has_preface {
            self.client.any_bytes(PREFACE);
        }
        let mut rest = bytes;
        let mut begin = if has_preface { PREFACE.len() } else { 0 };
        let mut turns = choices.splits(bytes.len()).into_iter();
        while !rest.is_empty() {
            let frame = rest.get(begin..).and_then(FrameHead::read);
            let end = frame.map_or(rest.len(), |head| begin + head.frame_bytes());
            let (frame, after) = rest.split_at(end.min(rest.len()));
            (rest, begin) = (after, 0);
            self.client.any_bytes(frame);
            self.deliver();
            let random = turns.next().unwrap_or_default() as u32;
            let [what, rest @ ..] = random.wrapping_mul(0x9e37_79b9).to_be_bytes();
            self.caller(16 + what % 12, &mut Input::new(&rest));
        }
    }
}
