//! The types of the values of the options for automatic certificates, and their text forms.

use crate::options::values::HostName;
use serde::Deserialize;
use std::net::IpAddr;
use std::str::FromStr;

/// The directory of Let's Encrypt, the authority by default.
const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";

/// A DNS name for a certificate, in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AcmeName(pub(crate) String);

impl FromStr for AcmeName {
    type Err = String;

    fn from_str(text: &str) -> Result<AcmeName, String> {
        let name = text.trim_end_matches('.').to_ascii_lowercase();
        let bare = name.trim_matches(['[', ']']);
        let problem = if name.contains('*') {
            "a wildcard needs the challenge DNS-01, which onrush does not support"
        } else if bare.parse::<IpAddr>().is_ok() {
            "certificates for IP addresses are not supported; write a DNS name"
        } else if !name.contains('.') || !is_dns_name(&name) || name.parse::<HostName>().is_err() {
            "write a DNS name, as in example.org; names in other scripts in the form xn--"
        } else {
            return Ok(AcmeName(name));
        };
        Err(problem.to_owned())
    }
}

/// Whether the labels have the form of host names (RFC 1123, section 2.1).
fn is_dns_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let fits = (1..=63).contains(&label.len()) && !label.starts_with('-');
        let is_known = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        fits && !label.ends_with('-') && label.bytes().all(is_known)
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

/// An e-mail address for messages of the authority.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub(crate) struct Email(pub(crate) String);

impl FromStr for Email {
    type Err = String;

    fn from_str(text: &str) -> Result<Email, String> {
        let is_visible = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b',' | b'?' | b'<');
        match text.split_once('@') {
            Some((user, host))
                if !user.is_empty() && host.contains('.') && text.bytes().all(is_visible) =>
            {
                Ok(Email(text.to_owned()))
            }
            _ => Err("write an e-mail address, as in admin@example.org".to_owned()),
        }
    }
}

impl TryFrom<String> for Email {
    type Error = String;

    fn try_from(text: String) -> Result<Email, String> {
        text.parse()
    }
}

/// The directory of an ACME server (RFC 8555, section 7.1.1).
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub(crate) struct DirectoryUrl(pub(crate) String);

impl Default for DirectoryUrl {
    fn default() -> DirectoryUrl {
        DirectoryUrl(LETS_ENCRYPT.to_owned())
    }
}

impl FromStr for DirectoryUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<DirectoryUrl, String> {
        let uri = text.parse::<http::Uri>().ok();
        let fits = uri.is_some_and(|uri| {
            uri.scheme_str() == Some("https") && uri.host().is_some_and(|host| !host.is_empty())
        });
        match fits {
            true => Ok(DirectoryUrl(text.to_owned())),
            false => Err("write the https:// URL of an ACME directory".to_owned()),
        }
    }
}

impl TryFrom<String> for DirectoryUrl {
    type Error = String;

    fn try_from(text: String) -> Result<DirectoryUrl, String> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_dns_names() {
        let name = |text: &str| text.parse::<AcmeName>().map(|name| name.0);
        assert_eq!(name("WWW.Example.org.").as_deref(), Ok("www.example.org"));
        for (text, part) in [
            ("*.example.org", "DNS-01"),
            ("192.0.2.1", "IP addresses"),
            ("[2001:db8::1]", "IP addresses"),
            ("2001:db8::1", "IP addresses"),
            ("localhost", "write a DNS name"),
            ("a..b", "write a DNS name"),
            ("-a.b", "write a DNS name"),
            ("a.b:443", "write a DNS name"),
            ("ä.example", "write a DNS name"),
            ("https://a.b", "write a DNS name"),
            ("", "write a DNS name"),
        ] {
            let error = name(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn addresses_and_urls_are_checked() {
        assert!("a+b@example.org".parse::<Email>().is_ok());
        for text in ["", "a", "@b.c", "a@b", "a b@c.d", "a@b.c,d@e.f", "a@b.c?x"] {
            assert!(text.parse::<Email>().is_err(), "{text}");
        }
        for text in [LETS_ENCRYPT, "https://127.0.0.1:14000/dir"] {
            assert!(text.parse::<DirectoryUrl>().is_ok(), "{text}");
        }
        for text in ["", "http://a.b/dir", "a.b/dir", "https:///dir", "ftp://a"] {
            assert!(text.parse::<DirectoryUrl>().is_err(), "{text}");
        }
    }
}
