//! The peers whose word about their clients counts: load balancers and reverse proxies.

use onrush_rt::net::Peer;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

/// The addresses of some peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PeerNetwork {
    /// The addresses that begin with these bits: the first address, and the number of bits.
    Ip(IpAddr, u8),
    /// The programs of this machine that connect to a Unix socket.
    Unix,
}

impl FromStr for PeerNetwork {
    type Err = String;

    /// Parses `10.0.0.0/8`, `2001:db8::/32`, a single address, or `unix`. The error is one line.
    fn from_str(text: &str) -> Result<PeerNetwork, String> {
        if text == "unix" {
            return Ok(PeerNetwork::Unix);
        }
        let wrong = || "write an address, a network such as 10.0.0.0/8, or unix".to_owned();
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => bits_max,
            Some(bits) if bits.starts_with('+') => return Err(wrong()),
            Some(bits) => (bits.parse().ok())
                .filter(|&bits| bits <= bits_max)
                .ok_or_else(|| format!("the number of bits is from 0 to {bits_max}"))?,
        };
        let first = first_address(address, bits);
        if first != address {
            return Err(format!(
                "this is neither the address {address} nor the network {first}/{bits}"
            ));
        }
        Ok(match (address.to_canonical(), address) {
            (IpAddr::V4(mapped), IpAddr::V6(_)) if bits >= 96 => {
                PeerNetwork::Ip(mapped.into(), bits - 96)
            }
            _ => PeerNetwork::Ip(address, bits),
        })
    }
}

impl fmt::Display for PeerNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            PeerNetwork::Unix => f.write_str("unix"),
            PeerNetwork::Ip(address @ IpAddr::V4(_), 32) => write!(f, "{address}"),
            PeerNetwork::Ip(address @ IpAddr::V6(_), 128) => write!(f, "{address}"),
            PeerNetwork::Ip(address, bits) => write!(f, "{address}/{bits}"),
        }
    }
}

/// The address with the first `bits` bits of `address`, and zeros behind them.
fn first_address(address: IpAddr, bits: u8) -> IpAddr {
    match address {
        IpAddr::V4(four) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
            Ipv4Addr::from_bits(four.to_bits() & mask).into()
        }
        IpAddr::V6(six) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
            Ipv6Addr::from_bits(six.to_bits() & mask).into()
        }
    }
}

/// A set of peers that are trusted to say who their clients are. Clones share it.
///
/// # Examples
/// ```
/// use onrush::TrustedPeers;
///
/// let networks = ["10.0.0.0/8", "2001:db8::1"].map(|text| text.parse().unwrap());
/// let trusted = TrustedPeers::new(networks);
/// assert!(trusted.contains("10.1.2.3".parse().unwrap()));
/// assert!(trusted.contains("::ffff:10.1.2.3".parse().unwrap()), "the same address");
/// assert!(!trusted.contains("2001:db8::2".parse().unwrap()));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedPeers(Arc<[PeerNetwork]>);

impl TrustedPeers {
    /// The peers of these networks.
    pub fn new(networks: impl IntoIterator<Item = PeerNetwork>) -> TrustedPeers {
        TrustedPeers(networks.into_iter().collect())
    }

    /// Whether no peer is trusted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The networks.
    pub fn networks(&self) -> &[PeerNetwork] {
        &self.0
    }

    /// Whether the peer with this address is trusted. An IPv4 address that is mapped to IPv6 is
    /// that IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| match *network {
            PeerNetwork::Ip(first, bits) => {
                first.is_ipv4() == address.is_ipv4() && first_address(address, bits) == first
            }
            PeerNetwork::Unix => false,
        })
    }

    /// Whether the peer of a connection is trusted. One that has disconnected is not, because its
    /// address is not known.
    pub fn trusts(&self, peer: Peer) -> bool {
        match peer {
            Peer::Tcp(address) => self.contains(address.ip()),
            Peer::Local => self.0.contains(&PeerNetwork::Unix),
            Peer::Gone => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> PeerNetwork {
        text.parse()
            .unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_network_contains_the_addresses_that_begin_with_its_bits() {
        let rows = [
            ("10.0.0.0/8", "10.255.0.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.0.0.0/8", "::ffff:10.0.0.1", true),
            ("10.0.0.0/8", "a00::1", false),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1/32", "192.0.2.2", false),
            ("0.0.0.0/0", "203.0.113.9", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("::/0", "2001:db8::1", true),
            ("::/0", "203.0.113.9", false),
            ("2001:db8::/33", "2001:db8:7fff::1", true),
            ("2001:db8::/33", "2001:db8:8000::1", false),
            ("::1", "::1", true),
            ("::ffff:10.0.0.0/104", "10.9.9.9", true),
            ("unix", "127.0.0.1", false),
        ];
        for (text, address, expected) in rows {
            let trusted = TrustedPeers::new([network(text)]);
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(trusted.contains(address), expected, "{text} {address}");
            let peer = Peer::Tcp((address, 1).into());
            assert_eq!(trusted.trusts(peer), expected, "{text} {address}");
            assert_eq!(trusted.trusts(Peer::Local), text == "unix");
            assert!(!trusted.trusts(Peer::Gone), "{text}");
        }
        assert!(!TrustedPeers::default().contains("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn networks_have_one_form() {
        for text in [
            "10.0.0.0/8",
            "192.0.2.1",
            "2001:db8::/32",
            "::1",
            "0.0.0.0/0",
            "unix",
        ] {
            assert_eq!(network(text).to_string(), text);
        }
        assert_eq!(network("::ffff:10.0.0.0/104").to_string(), "10.0.0.0/8");
        assert_eq!(network("192.0.2.1/32").to_string(), "192.0.2.1");
        for wrong in [
            "",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/-1",
            "10.0.0.0/+8",
            "10.0.0",
            "::/129",
            "2001:db8::1/64",
            "host",
            "10.0.0.0/8/8",
            "[::1]",
            "10.0.0.1:80",
            "UNIX",
        ] {
            assert!(wrong.parse::<PeerNetwork>().is_err(), "{wrong}");
        }
    }
}
