//! Addresses that cannot be bound together.

use super::Settings;
use crate::options::values::AdminAt;
use crate::process::failure::Failure;
use std::net::Ipv4Addr;

impl Settings {
    /// Refuses an address that two options name. Otherwise the second listener would report that
    /// another server has it.
    pub(super) fn check_addresses(&self) -> Result<(), Failure> {
        let tls = self.tls.as_ref();
        let admin = match &self.admin {
            Some(AdminAt::Own(address)) => Some(address),
            Some(AdminAt::Same) | None => None,
        };
        let lists = [
            ("bind", self.addresses.iter().collect::<Vec<_>>()),
            (
                "bind-plain",
                tls.iter().flat_map(|tls| &tls.plain).collect(),
            ),
            (
                "http-redirect",
                tls.iter().flat_map(|tls| &tls.redirect).collect(),
            ),
            ("admin", admin.into_iter().collect()),
        ];
        let named = lists.iter().flat_map(|(option, addresses)| {
            addresses.iter().map(move |address| (*option, *address))
        });
        let named: Vec<(&str, &String)> = named.collect();
        for (at, (option, address)) in named.iter().enumerate() {
            let before = named[..at].iter().find(|(_, a)| is_same(a, address));
            if let Some((other, same)) = before {
                let of = match *other {
                    "bind" => "--port or --bind",
                    other => &format!("--{other}"),
                };
                let part = match address.starts_with("unix:") {
                    true => "path",
                    false => "port",
                };
                let what = match (option == other, address == same) {
                    (true, true) => format!("{address} is named twice; remove one"),
                    (true, false) => format!(
                        "one of {same} and {address} includes the other; remove one, or choose \
                         another port"
                    ),
                    (false, true) => {
                        format!("{address} is the address of {of} as well; choose another {part}")
                    }
                    (false, false) => format!(
                        "one of {address} and {same}, the address of {of}, includes the other; \
                         choose another port"
                    ),
                };
                return Err(Failure::usage(format!("{option}: {what}")));
            }
        }
        Ok(())
    }
}

/// Whether both addresses cannot be bound: they are equal, or one of them is all addresses of a
/// family and the other is one of that family. Names are not resolved.
fn is_same(one: &str, other: &str) -> bool {
    let split = |address: &str| {
        let (host, port) = address.rsplit_once(':')?;
        let port = port.parse::<u16>().ok().filter(|port| *port != 0)?;
        Some((host.to_owned(), port))
    };
    let includes = |all: &str, host: &str| match all {
        "0.0.0.0" => host.parse::<Ipv4Addr>().is_ok(),
        "[::]" => host.starts_with('['),
        all => all == host,
    };
    match (split(one), split(other)) {
        (Some((host, port)), Some((other_host, other_port))) => {
            port == other_port && (includes(&host, &other_host) || includes(&other_host, &host))
        }
        _ => one == other && one.starts_with("unix:"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    #[test]
    fn an_address_belongs_to_one_option() {
        let tls = "tls-self-signed = true\n";
        for (text, expected) in [
            (
                "admin = 8080",
                "admin: 127.0.0.1:8080 is the address of --port or --bind as well; choose \
                 another port",
            ),
            (
                "bind = '0.0.0.0'\nport = 90\nadmin = 90",
                "admin: one of 127.0.0.1:90 and 0.0.0.0:90, the address of --port or --bind, \
                 includes the other; choose another port",
            ),
            (
                "bind = ['[::1]:90', '[::]:90']",
                "bind: one of [::1]:90 and [::]:90 includes the other; remove one, or choose \
                 another port",
            ),
            (
                "tls-self-signed = true\nhttp-redirect = 90\nadmin = 90",
                "admin: 127.0.0.1:90 is the address of --http-redirect as well; choose \
                 another port",
            ),
            (
                "bind = ['unix:/a', 'unix:/a']",
                "bind: unix:/a is named twice; remove one",
            ),
            (
                "tls-self-signed = true\nbind = 'unix:/a'\nbind-plain = 'unix:/a'",
                "bind-plain: unix:/a is the address of --port or --bind as well; choose \
                 another path",
            ),
        ] {
            let Err(Failure::Usage(what)) = Settings::new(parse(text).unwrap(), None) else {
                panic!("{text}");
            };
            assert_eq!(what, expected);
        }
        for text in [
            "port = 0\nbind = ['127.0.0.1', '127.0.0.1']\nadmin = 0",
            "bind = ['0.0.0.0:90', '[::]:90', '[::1]:91']",
            "bind = ['127.0.0.1:90', '127.0.0.2:90']",
            &format!("{tls}http-redirect = 8081\nadmin = 8082"),
        ] {
            assert!(Settings::new(parse(text).unwrap(), None).is_ok(), "{text}");
        }
    }
}
