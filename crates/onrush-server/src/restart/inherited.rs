//! The listening sockets that this process does not bind itself: those of a service manager
//! (sd_listen_fds(3)) and of the process that it replaces.

use crate::config::Settings;
use crate::options::values::AdminAt;
use crate::process::failure::{Failure, error_text};
use onrush::{Address, ListeningSockets, Server};
use onrush_rt::net;
use std::env;
use std::io;
use std::os::fd::OwnedFd;

/// The variables of socket activation: the process that they are for, the number of sockets, and
/// their names, separated by colons.
pub(crate) const PROCESS: &str = "LISTEN_PID";
pub(crate) const COUNT: &str = "LISTEN_FDS";
pub(crate) const NAMES: &str = "LISTEN_FDNAMES";

/// The descriptor of the first socket of a service manager.
const FIRST: i32 = 3;
/// More sockets are a mistake.
const COUNT_MAX: i32 = 1000;

/// What an address is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// `--bind`.
    Objects,
    /// `--bind-plain`.
    Plain,
    /// `--http-redirect`.
    Redirect,
    /// `--admin`.
    Admin,
}

/// All purposes with their names in messages between two processes.
const PURPOSES: [(Purpose, &str); 4] = [
    (Purpose::Objects, "objects"),
    (Purpose::Plain, "plain"),
    (Purpose::Redirect, "redirect"),
    (Purpose::Admin, "admin"),
];

impl Purpose {
    pub(crate) fn name(self) -> &'static str {
        let found = PURPOSES.iter().find(|(purpose, _)| *purpose == self);
        found.map_or("", |(_, name)| name)
    }

    pub(crate) fn from_name(name: &str) -> Option<Purpose> {
        let found = PURPOSES.iter().find(|(_, other)| *other == name);
        found.map(|(purpose, _)| *purpose)
    }

    /// The purpose of a socket that a service manager names `name`.
    fn of_activated(name: &str, has_tls: bool) -> Result<Purpose, Failure> {
        match (name, has_tls) {
            ("http", true) => Ok(Purpose::Plain),
            ("https" | "redirect", false) => Err(Failure::usage(format!(
                "the socket {name} needs HTTPS: add --tls-cert and --tls-key, or rename it"
            ))),
            ("redirect", true) => Ok(Purpose::Redirect),
            ("admin", _) => Ok(Purpose::Admin),
            _ => Ok(Purpose::Objects),
        }
    }
}

/// The purposes of the addresses of the server of the objects, in their order.
pub(crate) fn purposes(settings: &Settings) -> Vec<Purpose> {
    let tls = settings.tls.as_ref();
    let plain = tls.map_or(0, |tls| tls.plain.len());
    let redirect = tls.map_or(0, |tls| tls.redirect.len());
    let of = |purpose, count| std::iter::repeat_n(purpose, count);
    of(Purpose::Objects, settings.addresses.len())
        .chain(of(Purpose::Plain, plain))
        .chain(of(Purpose::Redirect, redirect))
        .collect()
}

/// Sockets with the purposes of their addresses.
#[derive(Debug, Default)]
pub(crate) struct Inherited(Vec<(Purpose, ListeningSockets)>);

impl Inherited {
    /// Adds the sockets of an address. A service manager may have several for one.
    pub(crate) fn add(&mut self, purpose: Purpose, sockets: ListeningSockets) {
        let before = self.0.iter_mut().find(|(other, group)| {
            *other == purpose && group.address == sockets.address && group.is_shared
        });
        match before {
            Some((_, group)) => group.sockets.extend(sockets.sockets),
            None => self.0.push((purpose, sockets)),
        }
    }

    /// Adds sockets to the address that was added last.
    pub(crate) fn add_more(&mut self, sockets: Vec<OwnedFd>) {
        if let Some((_, group)) = self.0.last_mut() {
            group.sockets.extend(sockets);
        }
    }

    /// Takes the sockets that a service manager has passed to this process. `has_tls`: the server
    /// serves HTTPS.
    pub(crate) fn activated(has_tls: bool) -> Result<Inherited, Failure> {
        let mut inherited = Inherited::default();
        let number = |name| env::var(name).ok()?.parse::<i32>().ok();
        let process = env::var(PROCESS).ok().and_then(|text| text.parse().ok());
        if process != Some(std::process::id()) {
            return Ok(inherited);
        }
        let count = number(COUNT).unwrap_or(0);
        if !(0..=COUNT_MAX).contains(&count) {
            return Err(Failure::usage(format!(
                "{COUNT}: {count} is not in the range from 0 to {COUNT_MAX}"
            )));
        }
        let names = env::var(NAMES).unwrap_or_default();
        let mut names = names.split(':');
        for number in FIRST..FIRST + count {
            let purpose = Purpose::of_activated(names.next().unwrap_or_default(), has_tls)?;
            let socket = net::inherited_listener(number).map_err(|error: io::Error| {
                Failure::usage(format!(
                    "{COUNT}: socket {number}: {}; ListenStream= makes usable ones",
                    error_text(&error)
                ))
            })?;
            let address = match net::local_address(&socket) {
                Some(Address::Tcp(address)) => address.to_string(),
                Some(unix @ Address::Unix(_)) => unix.to_string(),
                None => format!("unix:socket {number}"),
            };
            let sockets = ListeningSockets {
                address,
                sockets: vec![socket],
                is_shared: true,
            };
            inherited.add(purpose, sockets);
        }
        Ok(inherited)
    }

    /// Replaces the addresses of a purpose by those of the sockets of a service manager that have
    /// this purpose, if there are any: it decides where the server listens.
    pub(crate) fn replace_addresses(&self, settings: &mut Settings) -> Result<(), Failure> {
        let of = |purpose| {
            let matching =
                (self.0.iter()).filter(|(other, sockets)| *other == purpose && sockets.is_shared);
            let addresses: Vec<String> = matching
                .map(|(_, sockets)| sockets.address.clone())
                .collect();
            Some(addresses).filter(|addresses| !addresses.is_empty())
        };
        if let Some(addresses) = of(Purpose::Objects) {
            settings.addresses = addresses;
        }
        if let Some(tls) = &mut settings.tls {
            for (purpose, addresses) in [
                (Purpose::Plain, &mut tls.plain),
                (Purpose::Redirect, &mut tls.redirect),
            ] {
                if let Some(activated) = of(purpose) {
                    *addresses = activated;
                }
            }
        }
        if let Some(addresses) = of(Purpose::Admin) {
            if settings.admin == Some(AdminAt::Same) {
                return Err(Failure::usage(
                    "the socket admin and --admin same exclude each other; use one of them",
                ));
            }
            settings.admin = addresses.into_iter().next().map(AdminAt::Own);
        }
        Ok(())
    }

    /// Gives the server of the objects, or that of the admin pages, its sockets.
    pub(crate) fn give(&mut self, mut server: Server, is_admin: bool) -> Server {
        let own = |(purpose, _): &mut (Purpose, _)| (*purpose == Purpose::Admin) == is_admin;
        for (_, sockets) in self.0.extract_if(.., own) {
            server = server.listen_with(sockets);
        }
        server
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;
    use std::net::TcpListener;

    fn shared(address: &str) -> ListeningSockets {
        ListeningSockets {
            address: address.to_owned(),
            sockets: vec![TcpListener::bind("127.0.0.1:0").unwrap().into()],
            is_shared: true,
        }
    }

    #[test]
    fn sockets_of_a_service_manager_replace_the_addresses_of_their_purpose() {
        let text = "tls-self-signed = true\nport = 1\nbind-plain = '127.0.0.1:2'\n\
            http-redirect = 3\nadmin = 4";
        let mut settings = Settings::new(parse(text).unwrap(), None).unwrap();
        let mut inherited = Inherited::default();
        inherited.add(Purpose::Objects, shared("[::]:443"));
        inherited.add(Purpose::Objects, shared("[::]:443"));
        inherited.add(Purpose::Redirect, shared("[::]:80"));
        let own = ListeningSockets {
            is_shared: false,
            ..shared("127.0.0.1:9")
        };
        inherited.add(Purpose::Plain, own);
        assert_eq!(inherited.0[0].1.sockets.len(), 2);
        inherited.replace_addresses(&mut settings).unwrap();
        assert_eq!(
            settings.all_addresses(),
            ["[::]:443", "127.0.0.1:2", "[::]:80"]
        );
        assert_eq!(settings.admin, Some(AdminAt::Own("127.0.0.1:4".to_owned())));
        let expected = [Purpose::Objects, Purpose::Plain, Purpose::Redirect];
        assert_eq!(purposes(&settings), expected);
    }

    #[test]
    fn names_have_purposes() {
        let of = |name, has_tls| Purpose::of_activated(name, has_tls).ok();
        assert_eq!(of("http", false), Some(Purpose::Objects));
        assert_eq!(of("http", true), Some(Purpose::Plain));
        assert_eq!(of("https", true), Some(Purpose::Objects));
        assert_eq!(of("redirect", true), Some(Purpose::Redirect));
        assert_eq!(of("onrush.socket", true), Some(Purpose::Objects));
        assert_eq!((of("https", false), of("redirect", false)), (None, None));
        for (purpose, name) in PURPOSES {
            assert_eq!(Purpose::from_name(purpose.name()), Some(purpose), "{name}");
        }
    }
}
