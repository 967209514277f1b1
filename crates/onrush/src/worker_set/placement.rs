//! The rules by which new connections are distributed to the workers.

/// Decides which worker serves a new connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Placement {
    /// The first worker accepts and serves all connections.
    Single,
    /// Each worker serves the connections that the kernel assigns to it by a hash of addresses
    /// (`SO_REUSEPORT`, socket(7)).
    ReusePort,
    /// The workers take connections in rotation, independent of which one accepted them.
    RoundRobin,
    /// The worker with the fewest connections. When no accept is in progress, the numbers differ by
    /// at most one. A blocked worker receives none, here and with [`Placement::RoundRobin`].
    #[default]
    LeastLoaded,
}

impl Placement {
    /// All values.
    pub const ALL: [Placement; 4] = [
        Placement::Single,
        Placement::ReusePort,
        Placement::RoundRobin,
        Placement::LeastLoaded,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Placement::Single => "single",
            Placement::ReusePort => "reuseport",
            Placement::RoundRobin => "round-robin",
            Placement::LeastLoaded => "least-loaded",
        }
    }
}

impl std::str::FromStr for Placement {
    type Err = String;

    fn from_str(name: &str) -> Result<Placement, String> {
        let found = Placement::ALL.into_iter().find(|all| all.name() == name);
        found.ok_or_else(|| {
            let names = Placement::ALL.map(Placement::name).join(", ");
            format!("'{name}' is not one of {names}")
        })
    }
}
