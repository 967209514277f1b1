//! Errors of certificates, keys and TLS settings. Each is one line that names the file and, where
//! there is one, the remedy.

use std::error::Error;
use std::fmt::{self, Display};
use std::io;
use std::path::{Path, PathBuf};

/// Why a [`TlsConfig`](super::TlsConfig) could not be made.
///
/// The text is one line. It names the file, if there is one.
///
/// # Examples
/// ```
/// use onrush::tls::{TlsConfig, TlsErrorKind};
///
/// let error = TlsConfig::from_files("absent.pem", "absent.key").unwrap_err();
/// assert_eq!(error.to_string(), "absent.pem does not exist");
/// assert_eq!(error.kind(), TlsErrorKind::NotFound);
/// assert_eq!(error.path().unwrap().to_str(), Some("absent.pem"));
/// ```
#[derive(Debug)]
pub struct TlsError {
    kind: TlsErrorKind,
    path: Option<PathBuf>,
    text: String,
    source: Option<io::Error>,
}

/// The kind of a [`TlsError`].
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[non_exhaustive]
pub enum TlsErrorKind {
    /// A file does not exist.
    NotFound,
    /// A file cannot be read, mostly for lack of permission. [`Error::source`] is the
    /// [`io::Error`].
    Unreadable,
    /// A file is larger than 16 MiB.
    TooLarge,
    /// A file is empty.
    Empty,
    /// A file is not PEM (RFC 7468), but DER or PKCS#12.
    NotPem,
    /// A PEM section has no end, or is not Base64.
    MalformedPem,
    /// The PEM has no certificate.
    NoCertificate,
    /// The PEM has no private key.
    NoKey,
    /// The private key is encrypted.
    EncryptedKey,
    /// The PEM has more than one private key.
    SeveralKeys,
    /// The type or size of the private key is not supported.
    UnsupportedKey,
    /// The private key is not valid DER of its format.
    MalformedKey,
    /// A certificate is not valid DER (RFC 5280), or not usable with TLS.
    MalformedCertificate,
    /// The private key does not belong to the certificate.
    KeyMismatch,
    /// The certificate of the server is not the first, or a certificate did not sign the one before
    /// it (RFC 5246, section 7.4.2).
    ChainOrder,
    /// A certificate that should verify others is not the one of an authority (RFC 5280, section
    /// 4.2.1.9).
    NotAuthority,
    /// The OCSP response is not a successful response in DER (RFC 6960).
    MalformedOcsp,
    /// The OCSP response is about another certificate.
    OcspMismatch,
    /// The calls of the builder do not fit together.
    Settings,
    /// The cryptographic library failed, for example because no randomness is available.
    Crypto,
}

impl TlsError {
    /// Control characters, which a file name or a subject can contain, become spaces, so that the
    /// text is one line.
    pub(super) fn new(kind: TlsErrorKind, path: Option<&Path>, text: impl Display) -> TlsError {
        let text = text.to_string();
        TlsError {
            kind,
            path: path.map(Path::to_owned),
            text: text.replace(char::is_control, " "),
            source: None,
        }
    }

    /// The error of opening or reading `path`.
    pub(super) fn io(path: &Path, error: io::Error) -> TlsError {
        let name = path.display();
        let (kind, text) = match error.kind() {
            io::ErrorKind::NotFound => (TlsErrorKind::NotFound, format!("{name} does not exist")),
            _ => (
                TlsErrorKind::Unreadable,
                format!("{name} cannot be read: {error}"),
            ),
        };
        TlsError {
            source: Some(error),
            ..TlsError::new(kind, Some(path), text)
        }
    }

    pub(super) fn crypto(error: &rustls::Error) -> TlsError {
        let text = format!("TLS cannot be set up: {error}");
        TlsError::new(TlsErrorKind::Crypto, None, text)
    }

    /// The kind of the error.
    pub fn kind(&self) -> TlsErrorKind {
        self.kind
    }

    /// The file that the error is about. `None` if the input was not a file.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

impl Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for TlsError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_ref().map(|error| error as _)
    }
}

/// So that `main` of a server can use `?`.
impl From<TlsError> for io::Error {
    fn from(error: TlsError) -> io::Error {
        let kind = match (error.kind, &error.source) {
            (_, Some(source)) => source.kind(),
            _ => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tests often run as root, who may read every file.
    #[test]
    fn lack_of_permission_is_reported() {
        let denied = io::Error::from_raw_os_error(13);
        let error = TlsError::io(Path::new("site.key"), denied);
        assert_eq!(error.kind(), TlsErrorKind::Unreadable);
        assert_eq!(
            error.to_string(),
            "site.key cannot be read: Permission denied (os error 13)"
        );
        assert!(error.source().is_some());
        let error = io::Error::from(error);
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn the_text_is_one_line() {
        let path = Path::new("a\nb.pem");
        let error = TlsError::io(path, io::ErrorKind::NotFound.into());
        assert_eq!(error.to_string(), "a b.pem does not exist");
        assert_eq!(error.path(), Some(path));
    }
}
