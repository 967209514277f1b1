//! Names in certificates of clients, as the users file writes them.

use onrush::tls::SubjectName;
use std::str::FromStr;

/// A name in a certificate of a client, in lower case where case has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CertificateName {
    Common(String),
    Other(SubjectName),
}

impl CertificateName {
    /// DNS names and the domain of an e-mail address have no case.
    pub(crate) fn of(name: SubjectName) -> CertificateName {
        CertificateName::Other(match name {
            SubjectName::Dns(name) => SubjectName::Dns(name.to_ascii_lowercase()),
            other => other,
        })
    }
}

impl FromStr for CertificateName {
    type Err = String;

    fn from_str(text: &str) -> Result<CertificateName, String> {
        let wrong = || {
            let shown = text.escape_debug();
            format!("'{shown}': write a certificate as cn:, dns:, email:, uri: or ip: and a name")
        };
        let (kind, name) = text.split_once(':').ok_or_else(wrong)?;
        let name = Some(name)
            .filter(|name| !name.is_empty())
            .ok_or_else(wrong)?;
        Ok(match kind {
            "cn" => CertificateName::Common(name.to_owned()),
            "dns" => CertificateName::of(SubjectName::Dns(name.to_owned())),
            "email" => CertificateName::of(SubjectName::Email(name.to_owned())),
            "uri" => CertificateName::of(SubjectName::Uri(name.to_owned())),
            "ip" => CertificateName::of(SubjectName::Ip(name.parse().map_err(|_| wrong())?)),
            _ => return Err(wrong()),
        })
    }
}
