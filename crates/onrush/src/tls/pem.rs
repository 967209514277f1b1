//! Certificates and private keys in PEM (RFC 7468), from files and from memory.

use super::der::{self, tag};
use super::error::{TlsError, TlsErrorKind};
use rustls::pki_types::pem::{PemObject, SectionKind};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::fmt::{self, Display};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The size of the largest accepted file. A bundle of all public authorities has 0.3 MB. A larger
/// file is not a certificate.
const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Where an input comes from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    Memory(Vec<u8>),
    File(PathBuf),
}

/// What an input is. It names inputs that are not files in errors.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Role {
    Certificate,
    Key,
    ClientCa,
    Ocsp,
}

/// The bytes of a certificate, a key or a response, and their name in errors.
pub(super) struct Input {
    role: Role,
    path: Option<PathBuf>,
    bytes: Vec<u8>,
}

impl Source {
    /// Reads the input. It is an error if the input is empty or too large.
    pub(super) fn read(self, role: Role) -> Result<Input, TlsError> {
        let (path, bytes) = match self {
            Source::Memory(bytes) => (None, bytes),
            Source::File(path) => {
                let bytes = read_file(&path)?;
                (Some(path), bytes)
            }
        };
        let input = Input { role, path, bytes };
        match input.bytes.iter().all(u8::is_ascii_whitespace) {
            true => Err(input.error(TlsErrorKind::Empty, "is empty")),
            false => Ok(input),
        }
    }
}

fn read_file(path: &Path) -> Result<Vec<u8>, TlsError> {
    let file = File::open(path).map_err(|error| TlsError::io(path, error))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| TlsError::io(path, error))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        let text = format!("{} is larger than 16 MiB", path.display());
        return Err(TlsError::new(TlsErrorKind::TooLarge, Some(path), text));
    }
    Ok(bytes)
}

/// The name of the input as the subject of a sentence.
impl Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.path, self.role) {
            (Some(path), _) => path.display().fmt(f),
            (None, Role::Certificate) => f.write_str("the certificate"),
            (None, Role::Key) => f.write_str("the private key"),
            (None, Role::ClientCa) => f.write_str("the client CA"),
            (None, Role::Ocsp) => f.write_str("the OCSP response"),
        }
    }
}

impl Input {
    pub(super) fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// An error whose text is the name of the input and `predicate`.
    pub(super) fn error(&self, kind: TlsErrorKind, predicate: impl Display) -> TlsError {
        TlsError::new(kind, self.path(), format_args!("{self} {predicate}"))
    }

    /// All certificates, in their order. Other sections are ignored.
    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let sections = self.sections()?;
        let mut certificates = Vec::new();
        for section in &sections {
            if section.label == "CERTIFICATE" {
                certificates.push(CertificateDer::from(self.decode(section)?.1));
            }
        }
        if !certificates.is_empty() {
            return Ok(certificates);
        }
        let predicate = match (self.role, sections.iter().any(Section::is_key)) {
            (Role::Certificate, true) if self.path.is_some() => {
                "holds a private key, not a certificate; are the two files swapped?"
            }
            (_, true) => "holds a private key, not a certificate",
            (_, false) => "holds no certificate",
        };
        Err(self.error(TlsErrorKind::NoCertificate, predicate))
    }

    /// The private key, in PKCS#8, PKCS#1 or SEC1. Sections that are not keys are ignored, so the
    /// certificates may be in the same file.
    pub(super) fn private_key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let sections = self.sections()?;
        let keys: Vec<&Section<'_>> = sections.iter().filter(|section| section.is_key()).collect();
        let key = match keys.as_slice() {
            [key] => key,
            [] => {
                let is_certificate = |section: &Section<'_>| section.label == "CERTIFICATE";
                let predicate = match sections.iter().any(is_certificate) {
                    true if self.path.is_some() => {
                        "holds a certificate, not a private key; are the two files swapped?"
                    }
                    true => "holds a certificate, not a private key",
                    false => "holds no private key",
                };
                return Err(self.error(TlsErrorKind::NoKey, predicate));
            }
            several => {
                let predicate = format!("holds {} private keys, not one", several.len());
                return Err(self.error(TlsErrorKind::SeveralKeys, predicate));
            }
        };
        if key.is_encrypted() {
            let file = match &self.path {
                Some(path) => path.display().to_string(),
                None => "FILE".to_owned(),
            };
            let predicate = format!(
                "is encrypted, and a passphrase is not supported; \
                 decrypt it: openssl pkey -in {file} -out DECRYPTED"
            );
            return Err(self.error(TlsErrorKind::EncryptedKey, predicate));
        }
        // These formats have labels of their own, and are not DER of a known form.
        if let Some(format) = key.label.strip_suffix(" PRIVATE KEY")
            && !matches!(format, "RSA" | "EC")
        {
            let predicate = format!("holds a key of the unsupported type {format}");
            return Err(self.error(TlsErrorKind::UnsupportedKey, predicate));
        }
        let (kind, der) = self.decode(key)?;
        PrivateKeyDer::from_pem(kind, der).ok_or_else(|| {
            let predicate = format!("holds a key of the unsupported type {}", key.label);
            self.error(TlsErrorKind::UnsupportedKey, predicate)
        })
    }

    /// The sections of the PEM. It is an error if the input is DER.
    fn sections(&self) -> Result<Vec<Section<'_>>, TlsError> {
        // Editors of other systems write a byte order mark.
        let bytes = &self.bytes;
        let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
        // Certificates and keys are a SEQUENCE in DER. Most have a length of two bytes, also if the
        // file is cut. Text cannot begin like that, but it can begin like a shorter one.
        if bytes.starts_with(&[tag::SEQUENCE, 0x82]) || der::sequence(bytes).is_some() {
            let predicate = "is DER or PKCS#12, not PEM; convert it with openssl x509, \
                             openssl pkey or openssl pkcs12";
            return Err(self.error(TlsErrorKind::NotPem, predicate));
        }
        let mut sections = Vec::new();
        let mut open: Option<(&str, usize)> = None;
        let mut end = 0;
        for line in bytes.split_inclusive(|&byte| byte == b'\n' || byte == b'\r') {
            let start = end;
            end += line.len();
            match (open, label(line, "-----BEGIN ")) {
                (None, Some(label)) => open = Some((label, start)),
                (Some((unended, _)), Some(_)) => return Err(self.unended(unended)),
                (Some((begun, start)), None) if label(line, "-----END ") == Some(begun) => {
                    open = None;
                    sections.push(Section {
                        label: begun,
                        lines: &bytes[start..end],
                    });
                }
                (_, None) => {}
            }
        }
        match open {
            Some((unended, _)) => Err(self.unended(unended)),
            None => Ok(sections),
        }
    }

    fn unended(&self, label: &str) -> TlsError {
        let predicate = format!("is malformed: the section {label} has no end");
        self.error(TlsErrorKind::MalformedPem, predicate)
    }

    fn decode(&self, section: &Section<'_>) -> Result<(SectionKind, Vec<u8>), TlsError> {
        <(SectionKind, Vec<u8>)>::from_pem_slice(section.lines).map_err(|_| {
            let predicate = format!("is malformed: the section {} is not Base64", section.label);
            self.error(TlsErrorKind::MalformedPem, predicate)
        })
    }
}

/// A section of a PEM.
struct Section<'a> {
    /// What the section holds, such as `CERTIFICATE`.
    label: &'a str,
    /// All lines of the section, from BEGIN to END.
    lines: &'a [u8],
}

impl Section<'_> {
    fn is_key(&self) -> bool {
        self.label.ends_with("PRIVATE KEY")
    }

    /// PKCS#8 has a label of its own for encrypted keys. PKCS#1 and SEC1 keys have a field for it
    /// (RFC 1421, section 4.6.1.1).
    fn is_encrypted(&self) -> bool {
        let mut lines = self.lines.split(|&byte| byte == b'\n' || byte == b'\r');
        let is_field =
            |line: &[u8]| line.starts_with(b"Proc-Type:") && line.ends_with(b"ENCRYPTED");
        self.label == "ENCRYPTED PRIVATE KEY" || lines.any(|line| is_field(line.trim_ascii()))
    }
}

/// The label of a line that begins with `boundary` and ends with dashes.
fn label<'a>(line: &'a [u8], boundary: &str) -> Option<&'a str> {
    let line = std::str::from_utf8(line).ok()?;
    line.trim_ascii_end()
        .strip_prefix(boundary)?
        .strip_suffix("-----")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(role: Role, text: &str) -> Input {
        Source::Memory(text.as_bytes().to_vec()).read(role).unwrap()
    }

    /// `label` with three bytes.
    fn pem(label: &str) -> String {
        format!("-----BEGIN {label}-----\nAQID\n-----END {label}-----\n")
    }

    #[test]
    fn text_around_the_sections_is_ignored() {
        let (first, key) = (pem("CERTIFICATE"), pem("EC PRIVATE KEY"));
        let (other, parameters) = (pem("CERTIFICATE REQUEST"), pem("EC PARAMETERS"));
        let text = format!("\u{feff}{first}subject=CN\n{other}{parameters}{key}{first}");
        for text in [
            text.clone(),
            text.replace('\n', "\r\n"),
            text.replace('\n', " \r"),
        ] {
            let input = input(Role::Certificate, &text);
            let certificates = input.certificates().unwrap();
            assert_eq!(certificates.len(), 2);
            assert!(certificates.iter().all(|der| der.as_ref() == [1, 2, 3]));
            let key = input.private_key().unwrap();
            assert!(matches!(key, PrivateKeyDer::Sec1(der) if der.secret_sec1_der() == [1, 2, 3]));
        }
    }

    #[test]
    fn malformed_sections_are_named() {
        let whole = pem("CERTIFICATE");
        let unended = whole.replace("-----END", "END");
        let two = format!("{unended}{whole}");
        let other_end = whole.replace("END CERTIFICATE", "END CERTIFICATES");
        for text in [&unended, &two, &other_end] {
            let error = input(Role::Certificate, text).certificates().unwrap_err();
            assert_eq!(
                error.to_string(),
                "the certificate is malformed: the section CERTIFICATE has no end"
            );
        }
        let not_base64 = whole.replace("AQID", "A?ID");
        let error = input(Role::ClientCa, &not_base64)
            .certificates()
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the client CA is malformed: the section CERTIFICATE is not Base64"
        );
        assert_eq!(error.kind(), TlsErrorKind::MalformedPem);
    }

    #[test]
    fn text_that_begins_like_der_is_text() {
        let text = format!("0 the key\n{}", pem("PRIVATE KEY"));
        assert!(input(Role::Key, &text).private_key().is_ok());
    }

    #[test]
    fn a_file_that_never_ends_is_refused() {
        let file = Source::File(PathBuf::from("/dev/zero"));
        let error = file.read(Role::Key).err().unwrap();
        assert_eq!(error.kind(), TlsErrorKind::TooLarge);
        assert_eq!(error.to_string(), "/dev/zero is larger than 16 MiB");
    }
}
