//! The settings for HTTPS: certificates, listeners without TLS, and headers.

use super::addresses;
use crate::options::Options;
use crate::options::acme_values::{AcmeName, Email};
use crate::options::tls_values::{FilePath, Hsts, RedirectAt, SelfSigned};
use crate::options::units::Port;
use crate::options::values::Bind;
use crate::process::failure::Failure;
use std::path::PathBuf;

/// What a server with HTTPS needs besides its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TlsSettings {
    pub(crate) source: CertificateSource,
    /// If empty, clients are not asked for a certificate.
    pub(crate) client_ca: Vec<PathBuf>,
    pub(crate) is_client_optional: bool,
    /// Handshakes offer HTTP/2.
    pub(crate) http2: bool,
    /// Addresses that serve HTTP without TLS, in the form of `onrush::Server::bind`.
    pub(crate) plain: Vec<String>,
    /// Addresses that redirect to HTTPS. The form is the same.
    pub(crate) redirect: Vec<String>,
    /// The port that they redirect to. `None`: that of the listener.
    pub(crate) https_port: Option<u16>,
    /// `max-age` of `Strict-Transport-Security`, in seconds.
    pub(crate) hsts_s: Option<u32>,
}

/// Where certificates come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum CertificateSource {
    /// One or more.
    Files(Vec<CertificateFiles>),
    /// The server makes the certificate, with these names besides the usual ones.
    SelfSigned(Vec<String>),
    Acme(AcmeSettings),
}

/// What is ordered from an ACME authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AcmeSettings {
    /// In order, without repetitions, at least one.
    pub(crate) names: Vec<String>,
    pub(crate) email: Option<String>,
    /// The URL of the directory.
    pub(crate) directory: String,
    /// The authorities of the ACME server's own certificate. `None`: those of this machine.
    pub(crate) ca: Option<PathBuf>,
}

impl AcmeSettings {
    /// `None` without `--acme`.
    fn new(options: &Options) -> Option<AcmeSettings> {
        let mut names: Vec<String> = Vec::new();
        for AcmeName(name) in options.acme.iter().flatten() {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        (!names.is_empty()).then(|| AcmeSettings {
            names,
            email: options.acme_email.clone().map(|Email(email)| email),
            directory: options.acme_directory.clone().unwrap_or_default().0,
            ca: options.acme_ca.clone().map(|path| path.0),
        })
    }
}

/// The PEM files of a certificate and its key, and the OCSP response in DER.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) ocsp: Option<PathBuf>,
}

impl TlsSettings {
    /// `None` if TLS is off. An error is [`Failure::Usage`].
    pub(super) fn new(options: &Options) -> Result<Option<TlsSettings>, Failure> {
        let paths = |list: &Option<Vec<FilePath>>| -> Vec<PathBuf> {
            let list = list.iter().flatten();
            list.map(|path| path.0.clone()).collect()
        };
        let certificates = paths(&options.tls_cert);
        let keys = paths(&options.tls_key);
        let ocsp = paths(&options.tls_ocsp);
        let client_ca = paths(&options.tls_client_ca);
        let is_client_optional = options.tls_client_optional == Some(true);
        let hsts_s = options.hsts.and_then(|Hsts(seconds)| seconds);
        let plain = options.bind_plain.clone().unwrap_or_default();
        let self_signed = match &options.tls_self_signed {
            Some(SelfSigned::On(names)) => Some(names),
            Some(SelfSigned::Off) | None => None,
        };
        if certificates.len() != keys.len() {
            return Err(Failure::usage(format!(
                "tls-cert and tls-key: {} and {} files; each certificate needs its key, in the \
                 same order",
                certificates.len(),
                keys.len()
            )));
        }
        let acme = AcmeSettings::new(options);
        let acme_options = [
            ("acme-email", options.acme_email.is_some()),
            ("acme-directory", options.acme_directory.is_some()),
            ("acme-ca", options.acme_ca.is_some()),
        ];
        if acme.is_none()
            && let Some((name, _)) = acme_options.iter().find(|(_, is_set)| *is_set)
        {
            return Err(Failure::usage(format!("{name} needs acme with a name")));
        }
        let source = match (acme, self_signed) {
            (Some(_), _) if self_signed.is_some() || !certificates.is_empty() => {
                return Err(Failure::usage(
                    "acme cannot be combined with tls-cert or tls-self-signed; use one of them",
                ));
            }
            (Some(acme), _) => CertificateSource::Acme(acme),
            (None, Some(_)) if !certificates.is_empty() => {
                return Err(Failure::usage(
                    "tls-self-signed cannot be combined with tls-cert; use one of them",
                ));
            }
            (None, Some(names)) => {
                let names = names.iter().map(|name| name.0.clone());
                CertificateSource::SelfSigned(names.chain(own_names(options)).collect())
            }
            (None, None) if certificates.is_empty() => {
                let needing_tls = [
                    ("tls-ocsp", !ocsp.is_empty()),
                    ("tls-client-ca", !client_ca.is_empty()),
                    ("tls-client-optional", is_client_optional),
                    ("bind-plain", !plain.is_empty()),
                    ("http-redirect", options.http_redirect.is_some()),
                    ("https-port", options.https_port.is_some()),
                    ("hsts", hsts_s.is_some()),
                ];
                return match needing_tls.iter().find(|(_, is_set)| *is_set) {
                    None => Ok(None),
                    Some((name, _)) => Err(Failure::usage(format!(
                        "{name}: HTTPS is off; it needs tls-cert and tls-key, acme, or \
                         tls-self-signed"
                    ))),
                };
            }
            (None, None) => {
                let mut ocsp = ocsp.iter().cloned();
                let pairs = certificates.iter().zip(keys);
                let files = pairs.map(|(certificate, key)| CertificateFiles {
                    certificate: certificate.clone(),
                    key,
                    ocsp: ocsp.next(),
                });
                CertificateSource::Files(files.collect())
            }
        };
        if ocsp.len() > certificates.len() {
            return Err(Failure::usage(
                "tls-ocsp: there are more OCSP responses than certificates of tls-cert",
            ));
        }
        if options.https_port.is_some() && options.http_redirect.is_none() {
            return Err(Failure::usage("https-port needs http-redirect"));
        }
        if let Some(Port(0)) = options.https_port {
            return Err(Failure::usage(
                "https-port: clients cannot connect to port 0; write the port that they use",
            ));
        }
        if is_client_optional && client_ca.is_empty() {
            return Err(Failure::usage("tls-client-optional needs tls-client-ca"));
        }
        let is_portless = |bind: &&Bind| matches!(bind, Bind::Host(_, None));
        if let Some(Bind::Host(host, _)) = plain.iter().find(is_portless) {
            return Err(Failure::usage(format!(
                "bind-plain: {host} needs a port, because --port is the port of HTTPS"
            )));
        }
        Ok(Some(TlsSettings {
            source,
            client_ca,
            is_client_optional,
            http2: options.http2().is_on(),
            plain: match plain.is_empty() {
                true => Vec::new(),
                false => addresses(Some(&plain), 0),
            },
            redirect: redirect(options)?,
            https_port: options.https_port.map(|Port(port)| port),
            hsts_s,
        }))
    }
}

/// The TCP hosts of `--bind`. IPv6 addresses have brackets.
fn bind_hosts(options: &Options) -> Vec<String> {
    let default = [Bind::Host("127.0.0.1".to_owned(), None)];
    let hosts = match options.bind.as_deref() {
        None | Some([]) => &default,
        Some(bind) => bind,
    };
    let mut hosts: Vec<String> = hosts
        .iter()
        .filter_map(|bind| match bind {
            Bind::Host(host, _) => Some(host.clone()),
            Bind::Unix(_) => None,
        })
        .collect();
    hosts.sort();
    hosts.dedup();
    hosts
}

/// The names of `--bind` and `--host` for a self-signed certificate, without wildcard addresses.
fn own_names(options: &Options) -> Vec<String> {
    let bare = |host: String| host.trim_matches(['[', ']']).to_owned();
    let hosts = options.host.iter().flatten().map(|name| name.0.clone());
    (bind_hosts(options).into_iter().map(bare))
        .filter(|host| !matches!(host.parse(), Ok(ip) if std::net::IpAddr::is_unspecified(&ip)))
        .chain(hosts)
        .collect()
}

fn redirect(options: &Options) -> Result<Vec<String>, Failure> {
    let hosts = bind_hosts(options);
    match &options.http_redirect {
        None => Ok(Vec::new()),
        Some(_) if hosts.is_empty() => Err(Failure::usage(
            "http-redirect: there is no port of HTTPS, because bind has only Unix sockets",
        )),
        Some(RedirectAt::Address(address)) => Ok(vec![address.clone()]),
        Some(RedirectAt::Port(port)) => Ok((hosts.iter())
            .map(|host| format!("{host}:{port}"))
            .collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Settings, parse};

    #[test]
    fn https_settings_fit_together() {
        let tls = |text: &str| {
            let settings = Settings::new(parse(text).expect(text), None).expect(text);
            settings.tls.expect("TLS is on")
        };
        assert_eq!(Settings::new(Options::default(), None).unwrap().tls, None);
        let off = "tls-self-signed = false\nhsts = false\ntls-client-optional = false";
        assert_eq!(Settings::new(parse(off).unwrap(), None).unwrap().tls, None);
        let pairs = "tls-cert = 'a.pem,b.pem'\ntls-key = ['a.key', 'b.key']\ntls-ocsp = 'a.der'\n\
            hsts = true\nbind = ['0.0.0.0:443', '[::]:443', 'unix:/s']\nhttp-redirect = 80";
        let settings = tls(pairs);
        let files = |name: &str, ocsp: Option<&str>| CertificateFiles {
            certificate: format!("{name}.pem").into(),
            key: format!("{name}.key").into(),
            ocsp: ocsp.map(PathBuf::from),
        };
        let expected = vec![files("a", Some("a.der")), files("b", None)];
        assert_eq!(settings.source, CertificateSource::Files(expected));
        assert_eq!(settings.redirect, ["0.0.0.0:80", "[::]:80"]);
        assert_eq!(settings.hsts_s, Some(31_536_000));
        assert!(settings.plain.is_empty() && settings.client_ca.is_empty());
        let own = "tls-self-signed = 'a.example'\nhost = '[::2]'\nbind = ['0.0.0.0', 'b.example']\n\
            bind-plain = ['127.0.0.1:1', 'unix:/s']\nhttp-redirect = '127.0.0.1:2'";
        let settings = tls(own);
        let names = ["a.example", "b.example", "::2"].map(str::to_owned);
        assert_eq!(settings.source, CertificateSource::SelfSigned(names.into()));
        assert_eq!(settings.plain, ["127.0.0.1:1", "unix:/s"]);
        assert_eq!(settings.redirect, ["127.0.0.1:2"]);
        let text = "acme = ['A.example', 'b.example', 'a.example.']\nacme-email = 'a@b.c'\n\
            acme-directory = 'https://127.0.0.1:1/dir'\nacme-ca = 'ca.pem'";
        let expected = AcmeSettings {
            names: ["a.example", "b.example"].map(str::to_owned).into(),
            email: Some("a@b.c".to_owned()),
            directory: "https://127.0.0.1:1/dir".to_owned(),
            ca: Some("ca.pem".into()),
        };
        assert_eq!(tls(text).source, CertificateSource::Acme(expected));
        let CertificateSource::Acme(acme) = tls("acme = 'a.example'").source else {
            panic!("acme");
        };
        assert!(acme.directory.contains("letsencrypt") && acme.email.is_none());
        let all = Settings::new(parse(own).unwrap(), None).unwrap();
        assert_eq!(
            all.all_addresses().join(" "),
            "0.0.0.0:8080 b.example:8080 127.0.0.1:1 unix:/s 127.0.0.1:2"
        );
    }

    #[test]
    fn https_options_that_do_not_fit_are_usage_errors() {
        for (text, expected) in [
            ("tls-cert = 'a'", "1 and 0 files"),
            ("tls-key = 'a'", "0 and 1 files"),
            ("tls-cert = 'a,b'\ntls-key = 'a'", "2 and 1 files"),
            (
                "tls-self-signed = true\ntls-cert = 'a'\ntls-key = 'a'",
                "cannot be combined with tls-cert",
            ),
            (
                "acme = 'a.example'\ntls-cert = 'a'\ntls-key = 'a'",
                "acme cannot be combined",
            ),
            (
                "acme = 'a.example'\ntls-self-signed = true",
                "acme cannot be combined",
            ),
            ("acme-email = 'a@b.c'", "acme-email needs acme"),
            ("acme-ca = 'a'", "acme-ca needs acme"),
            (
                "acme = 'a.example'\ntls-ocsp = 'a'",
                "more OCSP responses than certificates",
            ),
            ("tls-ocsp = 'a'", "tls-ocsp: HTTPS is off"),
            ("tls-client-ca = 'a'", "tls-client-ca: HTTPS is off"),
            (
                "tls-client-optional = true",
                "tls-client-optional: HTTPS is off",
            ),
            ("bind-plain = '127.0.0.1:1'", "bind-plain: HTTPS is off"),
            ("http-redirect = 80", "http-redirect: HTTPS is off"),
            ("hsts = true", "hsts: HTTPS is off"),
            (
                "tls-self-signed = true\ntls-ocsp = 'a'",
                "more OCSP responses than certificates",
            ),
            (
                "tls-self-signed = true\nhttps-port = 443",
                "needs http-redirect",
            ),
            (
                "tls-self-signed = true\nhttp-redirect = 80\nhttps-port = 0",
                "cannot connect to port 0",
            ),
            (
                "tls-self-signed = true\ntls-client-optional = true",
                "needs tls-client-ca",
            ),
            (
                "tls-self-signed = true\nbind-plain = '0.0.0.0'",
                "0.0.0.0 needs a port",
            ),
            (
                "tls-self-signed = true\nbind = 'unix:/s'\nhttp-redirect = 80",
                "only Unix sockets",
            ),
        ] {
            let result = Settings::new(parse(text).expect(text), None);
            let Err(Failure::Usage(message)) = result else {
                panic!("{text}");
            };
            assert!(message.contains(expected), "{text}: {message}");
        }
    }
}
