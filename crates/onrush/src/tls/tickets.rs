//! How clients resume sessions: with tickets that the server encrypts, or with sessions that the
//! server stores.

use super::error::TlsError;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs::Ticketer;
use rustls::server::{
    NoServerSessionStorage, ProducesTickets, ServerSessionMemoryCache, StoresServerSessions,
};
use std::fmt;
use std::sync::Arc;

/// How many TLS 1.3 tickets a connection receives by default.
///
/// A client should use a ticket only once, or connections can be linked (RFC 8446, appendix C.4).
/// Each connection, also a resumed one, yields a ticket, so one ticket each is enough for a client
/// to resume as many connections as it had. A second one would cost every handshake its encryption
/// and 200 bytes, also for the many clients that never resume. It helps only a client that opens
/// several connections after its first; such a client can ask for more ([`TICKETS_MAX`]).
pub(super) const TICKETS: usize = 1;

/// How many tickets a client receives that asks for several (`ticket_request`, RFC 9149).
const TICKETS_MAX: usize = 4;

/// How many sessions are stored if early data is accepted. A session has less than 300 bytes, and
/// the client's certificates.
const STORED_SESSIONS_MAX: usize = 4096;

/// How many sessions of TLS 1.2 are stored for clients without tickets: some 300 KB.
const SESSION_IDS_MAX: usize = 1024;

/// The state that lets clients resume. All workers, and all listeners with clones of one
/// `TlsConfig`, share it, because a client returns to any of them.
#[derive(Clone)]
pub(super) enum Resumption {
    /// Every handshake is a full one.
    Off,
    /// Stateless tickets, for TLS 1.3 and 1.2 (RFC 5077). rustls encrypts them with AES-256 and
    /// HMAC-SHA-256. It encrypts with one key for 6 hours and then accepts its tickets for another
    /// 6 hours. The first handshake after that time makes the next key, so no task has to.
    ///
    /// Clients of TLS 1.2 that support no tickets, such as curl, resume by a session ID. For them
    /// the last sessions are stored.
    Tickets {
        ticketer: Arc<dyn ProducesTickets>,
        ids: Arc<dyn StoresServerSessions>,
    },
    /// Sessions in memory; a TLS 1.3 ticket is the key of an entry. Early data requires it: each
    /// session is removed when it is used, so early data cannot be replayed to this server
    /// (RFC 8446, section 8.1). rustls refuses early data with stateless tickets.
    Stored(Arc<dyn StoresServerSessions>),
}

impl Resumption {
    /// `has_client_auth`: sessions contain the certificates of clients.
    pub(super) fn new(
        tickets: usize,
        early_data_bytes: u32,
        has_client_auth: bool,
    ) -> Result<Resumption, TlsError> {
        Ok(match (tickets, early_data_bytes) {
            (0, _) => Resumption::Off,
            (_, 0) => Resumption::Tickets {
                ticketer: Ticketer::new().map_err(|e| TlsError::crypto(&e))?,
                ids: match has_client_auth {
                    // Certificates may be long.
                    true => Arc::new(NoServerSessionStorage {}),
                    false => ServerSessionMemoryCache::new(SESSION_IDS_MAX),
                },
            },
            (_, _) => Resumption::Stored(ServerSessionMemoryCache::new(STORED_SESSIONS_MAX)),
        })
    }

    /// Makes `config` resume the sessions of this state.
    pub(super) fn apply(&self, config: &mut ServerConfig, tickets: usize) {
        config.send_tls13_tickets = tickets;
        // Zero makes rustls ignore such requests.
        config.max_tls13_tickets = match tickets {
            0 => 0,
            tickets => tickets.max(TICKETS_MAX),
        };
        // A new configuration of rustls has a ticketer that is disabled.
        match self {
            Resumption::Off => config.session_storage = Arc::new(NoServerSessionStorage {}),
            Resumption::Tickets { ticketer, ids } => {
                config.session_storage = Arc::clone(ids);
                config.ticketer = Arc::clone(ticketer);
            }
            Resumption::Stored(sessions) => config.session_storage = Arc::clone(sessions),
        }
    }

    /// Whether a configuration with `other` can use this state instead.
    pub(super) fn is_like(&self, other: &Resumption) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl fmt::Debug for Resumption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resumption::Off => "Off",
            Resumption::Tickets { .. } => "Tickets",
            Resumption::Stored(_) => "Stored",
        })
    }
}
