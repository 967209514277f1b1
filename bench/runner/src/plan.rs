//! What the profiles consist of: scenarios (a load and its content), and pairs of servers with
//! their targets.

use crate::{
    client::Protocol,
    h2load, handshakes,
    peers::{Driver, Peer, Role},
    row::{About, Target},
    trailers, uploads,
    work::{Files, Place},
    wrk,
};

/// One of the two servers of a pair.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) peer: &'static Peer,
    /// Its name in tables.
    pub(crate) label: String,
    /// Environment variables in addition to those that the peer sets.
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

/// The work that `peer` omits in `role`. Texts such as `files: …` or `put: …` apply to these roles
/// only; all others apply to every role.
pub(crate) fn omits(peer: &Peer, role: Role) -> Vec<&'static str> {
    let own = match role {
        Role::Hello | Role::TlsHello | Role::H2Hello | Role::H2TlsHello => "hello",
        Role::Json => "json",
        Role::Axum => "axum",
        Role::Echo | Role::H2Echo => "echo",
        Role::Files | Role::TlsFiles | Role::H2Files | Role::Remote => "files",
        Role::Put
        | Role::PutDurable
        | Role::Sink
        | Role::TlsPut
        | Role::H2Sink
        | Role::RemotePut => "put",
        Role::Mixed => "mixed",
    };
    let all = ["hello", "json", "axum", "echo", "files", "put", "mixed"];
    let applies = |text: &&&'static str| match text.split_once(':') {
        Some((scope, _)) if all.contains(&scope) => scope == own,
        _ => true,
    };
    peer.omits.iter().filter(applies).copied().collect()
}

/// The load on a server.
#[derive(Clone, Debug)]
pub(crate) enum Load {
    Wrk(wrk::Shape),
    Uploads(uploads::Shape),
    Handshakes(handshakes::Shape),
    H2(h2load::Shape),
    Trailers(trailers::Shape),
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
            Load::Handshakes(shape) => shape.clients,
            Load::H2(shape) => shape.connections,
            Load::Trailers(shape) => shape.connections,
        }
    }
}

/// The content of the folder of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The server needs no folder.
    Nothing,
    /// Files in the page cache. All servers share them.
    Hot(Files),
    /// Files that are dropped from the page cache before each round. Each server has its own.
    Cold(Files),
    /// An empty folder for uploads.
    Uploads(Place),
    /// The objects of the service. Each server has a folder of its own in the bucket.
    Bucket,
}

/// The expected response to a request of the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expect {
    Body(&'static [u8]),
    BodyBytes(u64),
    /// Any status 2xx.
    Success,
}

/// A load, and the role and content of the servers under it.
#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) profile: &'static str,
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) load: Load,
    pub(crate) content: Content,
    pub(crate) expect: Expect,
    /// The share by which the length of responses may differ from that of the probed response. A
    /// server that closes a connection after many requests sends another header field then.
    pub(crate) slack: f64,
    /// Minimum length of a round in seconds.
    pub(crate) seconds_min: u64,
    /// Maximum number of rounds.
    pub(crate) rounds_max: u32,
    /// Bytes that a request transfers, if CPU per volume is shown.
    pub(crate) volume_bytes: Option<u64>,
}

impl Scenario {
    pub(crate) fn new(profile: &'static str, name: &str, role: Role, load: Load) -> Scenario {
        // Connections are opened within the round, and requests in flight at its end are not
        // counted. The more connections there are, the longer a round must be so that neither
        // matters.
        let seconds_min = 1 + u64::from(load.connections()) / 3000;
        let (content, expect) = match role {
            Role::Hello | Role::TlsHello | Role::H2Hello | Role::H2TlsHello => {
                (Content::Nothing, Expect::Body(b"Hello, World!"))
            }
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

    /// Whether its connections resume sessions: wrk does, if it opens new ones over TLS.
    pub(crate) fn resumes(&self) -> bool {
        let Load::Wrk(shape) = &self.load else {
            return false;
        };
        let closes = matches!(shape.requests, wrk::Requests::Closing { .. });
        closes && self.role.protocol() == Protocol::Https
    }

    /// The durability that rows about objects state.
    pub(crate) fn durability(&self) -> &'static str {
        match self.role {
            Role::Put | Role::Mixed | Role::TlsPut => "none",
            Role::PutDurable => "full",
            Role::Sink | Role::H2Sink => "nothing is stored",
            Role::RemotePut => "of the service",
            _ => "",
        }
    }
}

/// Two servers, and the target for their ratio.
#[derive(Clone, Debug)]
pub(crate) struct Pairing {
    pub(crate) about: About,
    pub(crate) server: Subject,
    pub(crate) reference: Subject,
    pub(crate) target: Option<Target>,
}

/// The servers of a run.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    /// All servers, including the limits and Onrush.
    pub(crate) all: Vec<&'static Peer>,
    pub(crate) drivers: Vec<Driver>,
    /// Drivers of Onrush that peers are compared with.
    pub(crate) bases: Vec<Driver>,
    /// The names of the chosen peers.
    pub(crate) chosen: Vec<&'static str>,
}

/// The targets of a scenario.
#[derive(Clone, Debug, Default)]
pub(crate) struct Targets {
    /// The limit for each driver, by name, and the maximum ratio to it.
    pub(crate) limits: Vec<(Driver, &'static str, Option<f64>)>,
    /// These peers need at least this multiple of the CPU of Onrush, whatever they omit.
    pub(crate) ahead_of: Vec<(&'static str, f64)>,
    /// Limits that are compared like peers.
    pub(crate) also: Vec<&'static str>,
    /// Chosen peers that Onrush is compared with on each driver, and the greatest ratio. They are
    /// not compared with Onrush once more.
    pub(crate) against: Vec<(&'static str, Option<f64>)>,
}

impl Field {
    pub(crate) fn peer(&self, name: &str) -> Option<&'static Peer> {
        self.all.iter().copied().find(|peer| peer.name == name)
    }

    /// Onrush on `driver`.
    pub(crate) fn ours(&self, driver: Driver) -> Option<Subject> {
        let name = match driver {
            Driver::Epoll => "onrush-epoll",
            Driver::Uring => "onrush-io_uring",
        };
        self.peer(name).map(Subject::of)
    }

    /// All pairs of a scenario in `role`, limits first.
    pub(crate) fn pairings(&self, role: Role, targets: &Targets) -> Vec<Pairing> {
        let mut all = Vec::new();
        for &(driver, name, most) in &targets.limits {
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
        for &(name, most) in &targets.against {
            let Some(other) = self.peer(name).filter(|_| self.chosen.contains(&name)) else {
                continue;
            };
            for ours in self.drivers.iter().filter_map(|&driver| self.ours(driver)) {
                all.push(Pairing {
                    about: About::Feature,
                    server: ours,
                    reference: Subject::of(other),
                    target: most.map(Target::AtMost),
                });
            }
        }
        for &driver in &self.bases {
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
            let peers = self.chosen.iter().chain(&targets.also);
            let peers = peers.filter_map(|name| self.peer(name));
            let is_against =
                |peer: &Peer| targets.against.iter().any(|(name, _)| *name == peer.name);
            let peers = peers.filter(|peer| peer.roles.contains(&role) && !is_against(peer));
            for peer in peers {
                all.push(Pairing {
                    about: About::Peer,
                    server: Subject::of(peer),
                    reference: ours.clone(),
                    target: targets.of_peer(peer),
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

impl Targets {
    fn of_peer(&self, peer: &Peer) -> Option<Target> {
        let named = self.ahead_of.iter().find(|(name, _)| *name == peer.name);
        named.map(|&(_, least)| Target::AtLeast(least))
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
            bases: vec![drivers[drivers.len() - 1]],
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
        let targets = Targets {
            limits: vec![
                (Driver::Epoll, "limit-epoll", Some(1.05)),
                (Driver::Uring, "limit-uring", None),
            ],
            ..Targets::default()
        };
        let pairings = both.pairings(Role::Hello, &targets);
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
        let one = field(&[Driver::Epoll], &[]).pairings(Role::Hello, &targets);
        assert_eq!(shown(&one)[1], "onrush-epoll again onrush-epoll");
        assert_eq!(one.len(), 2);
    }

    #[test]
    fn only_peers_that_are_named_have_a_target() {
        let two = field(&[Driver::Uring], &["hyper", "nginx"]);
        let targets = Targets {
            ahead_of: vec![("hyper", 2.0), ("hyper", 1.0)],
            ..Targets::default()
        };
        let of = |pair: &Pairing| (pair.server.peer.name, pair.target);
        let peers: Vec<_> = two.pairings(Role::Hello, &targets)[1..]
            .iter()
            .map(of)
            .collect();
        let twice = Some(Target::AtLeast(2.0));
        assert_eq!(peers, [("hyper", twice), ("nginx", None)]);
    }

    #[test]
    fn each_driver_is_compared_with_a_chosen_peer_that_is_named() {
        let targets = Targets {
            against: vec![("nginx", Some(0.9)), ("h2o", None)],
            ..Targets::default()
        };
        let both = field(&[Driver::Epoll, Driver::Uring], &["nginx", "hyper"]);
        let pairings = both.pairings(Role::Hello, &targets);
        assert_eq!(
            shown(&pairings),
            [
                "onrush-epoll nginx",
                "onrush-io_uring nginx",
                "onrush-io_uring again onrush-io_uring",
                "hyper onrush-io_uring",
                "onrush-epoll onrush-io_uring",
            ]
        );
        assert_eq!(pairings[0].target, Some(Target::AtMost(0.9)));
    }

    #[test]
    fn work_that_is_omitted_in_other_roles_does_not_count() {
        let mut peer = *field(&[Driver::Uring], &[]).all[0];
        peer.omits = &[
            "json: canned",
            "put: no conditions",
            "lenient framing: bare LF",
        ];
        assert_eq!(omits(&peer, Role::Hello), ["lenient framing: bare LF"]);
        assert_eq!(omits(&peer, Role::Json).len(), 2);
        assert_eq!(omits(&peer, Role::PutDurable)[0], "put: no conditions");
        assert_eq!(omits(&peer, Role::TlsPut), omits(&peer, Role::Put));
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
