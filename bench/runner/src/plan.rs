//! What is to be compared under which load. Must not know how, nor which profiles there are.

use crate::{
    peers::{Driver, Peer, Role},
    row::{About, Target},
    uploads,
    work::{Files, Place},
    wrk,
};

/// One of two servers to be compared.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) peer: &'static Peer,
    /// Its name in tables, when it is not just the peer's.
    pub(crate) label: String,
    /// Set for it beside what the peer itself sets.
    pub(crate) environment: Vec<(&'static str, &'static str)>,
}

impl Subject {
    pub(crate) fn of(peer: &'static Peer) -> Subject {
        Subject {
            peer,
            label: peer.name.to_owned(),
            environment: Vec::new(),
        }
    }
}

/// What `peer` leaves out in `role`. Of what it leaves out somewhere, `files: …`, `put: …` and
/// so on are only for those roles; the rest is for all.
pub(crate) fn skips(peer: &Peer, role: Role) -> Vec<&'static str> {
    let own = match role {
        Role::Hello => "hello",
        Role::Json => "json",
        Role::Echo => "echo",
        Role::Files => "files",
        Role::Put | Role::PutDurable | Role::Sink => "put",
        Role::Mixed => "mixed",
    };
    let all = ["hello", "json", "echo", "files", "put", "mixed"];
    let counts = |skip: &&&'static str| match skip.split_once(':') {
        Some((scope, _)) if all.contains(&scope) => scope == own,
        _ => true,
    };
    peer.skips.iter().filter(counts).copied().collect()
}

/// How servers are loaded.
#[derive(Clone, Debug)]
pub(crate) enum Load {
    Wrk(wrk::Shape),
    Uploads(uploads::Shape),
}

impl Load {
    /// `GET` of `target`, one at a time.
    pub(crate) fn get(connections: u32, target: &'static str) -> Load {
        Load::requests(connections, wrk::Requests::Get { target, depth: 1 })
    }

    pub(crate) fn requests(connections: u32, requests: wrk::Requests) -> Load {
        Load::Wrk(wrk::Shape {
            connections,
            requests,
        })
    }

    pub(crate) fn connections(&self) -> u32 {
        match self {
            Load::Wrk(shape) => shape.connections,
            Load::Uploads(shape) => shape.clients,
        }
    }
}

/// What is in the folder that a server is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// It needs none.
    Nothing,
    /// Files in the page cache, the same for all.
    Hot(Files),
    /// Files that are dropped from the page cache before each round, each server its own.
    Cold(Files),
    /// Nothing yet: it is written to.
    Uploads(Place),
}

/// What an answer must be to a request of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    Body(&'static [u8]),
    BodyBytes(u64),
    /// Any of 2xx.
    Success,
}

/// A load and what it is put on.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) profile: &'static str,
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) load: Load,
    pub(crate) content: Content,
    pub(crate) expect: Expect,
    /// The share by which the length of answers may differ from that of the probed one: a server
    /// that closes a connection after many requests says so in other words.
    pub(crate) slack: f64,
    /// A round takes so many seconds at least.
    pub(crate) seconds_min: u64,
    /// Rounds at most.
    pub(crate) rounds_max: u32,
    /// Bytes that a request moves, where CPU by volume says more.
    pub(crate) volume_bytes: Option<u64>,
}

impl Scenario {
    pub(crate) fn new(profile: &'static str, name: &str, role: Role, load: Load) -> Scenario {
        // Connections are opened within the round, and what is under way at its end is not counted:
        // the more of them there are, the longer it takes until neither matters.
        let seconds_min = 1 + u64::from(load.connections()) / 3000;
        let (content, expect) = match role {
            Role::Hello => (Content::Nothing, Expect::Body(b"Hello, World!")),
            Role::Json => {
                let body = br#"{"message":"Hello, World!"}"#;
                (Content::Nothing, Expect::Body(body))
            }
            _ => (Content::Nothing, Expect::Success),
        };
        Scenario {
            profile,
            name: name.to_owned(),
            role,
            load,
            content,
            expect,
            slack: 0.01,
            seconds_min,
            rounds_max: u32::MAX,
            volume_bytes: None,
        }
    }

    /// What is said of durability with every row about objects.
    pub(crate) fn durability(&self) -> &'static str {
        match self.role {
            Role::Put | Role::Mixed => "none",
            Role::PutDurable => "full",
            Role::Sink => "nothing is stored",
            _ => "",
        }
    }
}

/// Two servers, and what is promised of them.
#[derive(Clone, Debug)]
pub(crate) struct Pairing {
    pub(crate) about: About,
    pub(crate) server: Subject,
    pub(crate) reference: Subject,
    pub(crate) target: Option<Target>,
}

/// Who takes part.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    /// All that there is, limits and ours included.
    pub(crate) all: Vec<&'static Peer>,
    pub(crate) drivers: Vec<Driver>,
    /// Drivers whose server others are compared with.
    pub(crate) beside: Vec<Driver>,
    /// The names of others that take part.
    pub(crate) chosen: Vec<&'static str>,
}

/// What a scenario promises beside its limit.
#[derive(Clone, Debug, Default)]
pub(crate) struct Promise {
    /// The limit of each driver, by name, and what of it may be passed.
    pub(crate) limits: Vec<(Driver, &'static str, Option<f64>)>,
    /// Ours is cheaper than all that do the same work.
    pub(crate) ahead_of_all: bool,
    /// Ours is cheaper by this than these, whatever they leave out.
    pub(crate) ahead_of: Vec<(&'static str, f64)>,
    /// Limits that are compared as peers are.
    pub(crate) also: Vec<&'static str>,
}

impl Field {
    pub(crate) fn peer(&self, name: &str) -> Option<&'static Peer> {
        self.all.iter().copied().find(|peer| peer.name == name)
    }

    /// Ours on `driver`.
    pub(crate) fn ours(&self, driver: Driver) -> Option<Subject> {
        let name = match driver {
            Driver::Epoll => "onrush-epoll",
            Driver::Uring => "onrush-io_uring",
        };
        self.peer(name).map(Subject::of)
    }

    /// Every pair of a scenario of `role`, limits first.
    pub(crate) fn pairings(&self, role: Role, promise: &Promise) -> Vec<Pairing> {
        let mut all = Vec::new();
        for &(driver, name, most) in &promise.limits {
            let limit = self.peer(name).filter(|_| self.drivers.contains(&driver));
            if let (Some(limit), Some(server)) = (limit, self.ours(driver)) {
                all.push(Pairing {
                    about: About::Limit,
                    server,
                    reference: Subject::of(limit),
                    target: most.map(Target::AtMost),
                });
            }
        }
        for &driver in &self.beside {
            let Some(ours) = self.ours(driver) else {
                continue;
            };
            all.push(Pairing {
                about: About::Control,
                server: Subject {
                    label: format!("{} again", ours.label),
                    ..ours.clone()
                },
                reference: ours.clone(),
                target: None,
            });
            let peers = self.chosen.iter().chain(&promise.also);
            let peers = peers.filter_map(|name| self.peer(name));
            for peer in peers.filter(|peer| peer.roles.contains(&role)) {
                all.push(Pairing {
                    about: About::Peer,
                    server: Subject::of(peer),
                    reference: ours.clone(),
                    target: promise.of_peer(peer, role),
                });
            }
        }
        if let (true, Some(server), Some(reference)) = (
            self.drivers.len() == 2,
            self.ours(Driver::Epoll),
            self.ours(Driver::Uring),
        ) {
            all.push(Pairing {
                about: About::Driver,
                server,
                reference,
                target: None,
            });
        }
        all
    }
}

impl Promise {
    fn of_peer(&self, peer: &Peer, role: Role) -> Option<Target> {
        let named = self.ahead_of.iter().find(|(name, _)| *name == peer.name);
        let same_work = self.ahead_of_all && skips(peer, role).is_empty();
        match (named, same_work) {
            (Some(&(_, least)), _) => Some(Target::AtLeast(least)),
            (None, true) => Some(Target::AtLeast(1.0)),
            (None, false) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers;

    fn field(drivers: &[Driver], chosen: &[&'static str]) -> Field {
        Field {
            all: peers::all(),
            drivers: drivers.to_vec(),
            beside: vec![drivers[drivers.len() - 1]],
            chosen: chosen.to_vec(),
        }
    }

    fn shown(pairings: &[Pairing]) -> Vec<String> {
        let one = |pair: &Pairing| format!("{} {}", pair.server.label, pair.reference.label);
        pairings.iter().map(one).collect()
    }

    #[test]
    fn each_driver_has_its_limit_and_a_control() {
        let both = field(&[Driver::Epoll, Driver::Uring], &[]);
        let promise = Promise {
            limits: vec![
                (Driver::Epoll, "limit-epoll", Some(1.05)),
                (Driver::Uring, "limit-uring", None),
            ],
            ..Promise::default()
        };
        let pairings = both.pairings(Role::Hello, &promise);
        assert_eq!(
            shown(&pairings),
            [
                "onrush-epoll limit-epoll",
                "onrush-io_uring limit-uring",
                "onrush-io_uring again onrush-io_uring",
                "onrush-epoll onrush-io_uring",
            ]
        );
        assert_eq!(pairings[0].target, Some(Target::AtMost(1.05)));
        assert_eq!(pairings[1].target, None);
        let one = field(&[Driver::Epoll], &[]).pairings(Role::Hello, &promise);
        assert_eq!(shown(&one)[1], "onrush-epoll again onrush-epoll");
        assert_eq!(one.len(), 2);
    }

    #[test]
    fn a_peer_that_skips_work_need_not_be_beaten_unless_it_is_named() {
        let mut lean = *field(&[Driver::Uring], &[]).all[0];
        lean.skips = &["no date"];
        let mut promise = Promise {
            ahead_of_all: true,
            ..Promise::default()
        };
        assert_eq!(promise.of_peer(&lean, Role::Hello), None);
        promise.ahead_of.push((lean.name, 2.0));
        assert_eq!(
            promise.of_peer(&lean, Role::Hello),
            Some(Target::AtLeast(2.0))
        );
        lean.skips = &[];
        promise.ahead_of.clear();
        assert_eq!(
            promise.of_peer(&lean, Role::Hello),
            Some(Target::AtLeast(1.0))
        );
    }

    #[test]
    fn what_is_left_out_elsewhere_does_not_count() {
        let mut peer = *field(&[Driver::Uring], &[]).all[0];
        peer.skips = &[
            "json: canned",
            "put: no conditions",
            "lenient framing: bare LF",
        ];
        assert_eq!(skips(&peer, Role::Hello), ["lenient framing: bare LF"]);
        assert_eq!(skips(&peer, Role::Json).len(), 2);
        assert_eq!(skips(&peer, Role::PutDurable)[0], "put: no conditions");
    }

    #[test]
    fn many_connections_take_longer_rounds() {
        let of = |connections| {
            let load = Load::get(connections, "/");
            Scenario::new("many", "", Role::Hello, load).seconds_min
        };
        assert_eq!((of(64), of(15_000)), (1, 6));
    }
}
