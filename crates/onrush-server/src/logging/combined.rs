//! Entries of the access log in Apache's "combined" format
//! (`%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i"`, Apache's mod_log_config). `logging`
//! writes them.

use onrush_proto::date;
use std::fmt::{self, Debug, Write};
use std::net::{IpAddr, SocketAddr};
use tracing::field::{Field, Visit};

/// The fields of an entry. Their names are those of the engine's event.
#[derive(Debug, Default)]
pub(crate) struct Combined {
    request: Option<Vec<u8>>,
    method: String,
    target: String,
    version: String,
    peer: Option<IpAddr>,
    user: Option<String>,
    status: Option<String>,
    body_bytes: u64,
    duration_us: u64,
    user_agent: Option<Vec<u8>>,
    referer: Option<Vec<u8>>,
}

impl Visit for Combined {
    fn record_str(&mut self, field: &Field, value: &str) {
        let value = value.to_owned();
        match field.name() {
            "method" => self.method = value,
            "target" => self.target = value,
            "version" => self.version = value,
            "user" => self.user = Some(value),
            name => {
                if let Some(bytes) = self.bytes_field(name) {
                    bytes.get_or_insert_with(|| value.into_bytes());
                }
            }
        }
    }

    /// The exact bytes of a value that is not UTF-8 take precedence over its text.
    fn record_bytes(&mut self, field: &Field, value: &[u8]) {
        let name = field.name().strip_suffix("_bytes");
        if let Some(bytes) = name.and_then(|name| self.bytes_field(name)) {
            *bytes = Some(value.to_vec());
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "status" => self.status = Some(value.to_string()),
            "body_bytes" => self.body_bytes = value,
            "duration_us" => self.duration_us = value,
            _ => {}
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "peer" {
            // With a port, unless a field of the request has named the address.
            let text = format!("{value:?}");
            let address = text.parse::<SocketAddr>().map(|peer| peer.ip());
            self.peer = address.or_else(|_| text.parse()).ok();
        }
    }
}

impl Combined {
    /// The value of a field that may contain any bytes.
    fn bytes_field(&mut self, field: &str) -> Option<&mut Option<Vec<u8>>> {
        match field {
            "request" => Some(&mut self.request),
            "user_agent" => Some(&mut self.user_agent),
            "referer" => Some(&mut self.referer),
            _ => None,
        }
    }

    /// Writes the entry as a line. `now_us`: microseconds since the epoch. The entry contains the
    /// time of the request, in UTC.
    ///
    /// An unknown value is written as `-`, as in Apache. Examples are the address of a client on a
    /// Unix socket, the status of a request without a response, and 0 bytes of content.
    pub(crate) fn write(&self, now_us: u64, line: &mut dyn Write) -> fmt::Result {
        match self.peer {
            Some(address) => write!(line, "{address}")?,
            None => line.write_char('-')?,
        }
        // Sun, 06 Nov 1994 08:49:37 GMT
        let date = date::format(now_us.saturating_sub(self.duration_us) / 1_000_000);
        let date = std::str::from_utf8(&date).unwrap_or_default();
        let part = |range| date.get(range).unwrap_or_default();
        let (day, month, year) = (part(5..7), part(8..11), part(12..16));
        line.write_str(" - ")?;
        escape(self.user.as_deref().unwrap_or("-").as_bytes(), line)?;
        write!(line, " [{day}/{month}/{year}:{} +0000] \"", part(17..25))?;
        match &self.request {
            Some(request) => escape(request, line)?,
            None if self.method.is_empty() => line.write_char('-')?,
            None => {
                escape(self.method.as_bytes(), line)?;
                line.write_char(' ')?;
                escape(self.target.as_bytes(), line)?;
                write!(line, " {}", self.version)?;
            }
        }
        write!(line, "\" {} ", self.status.as_deref().unwrap_or("-"))?;
        match self.body_bytes {
            0 => line.write_char('-')?,
            bytes => write!(line, "{bytes}")?,
        }
        for value in [&self.referer, &self.user_agent] {
            line.write_str(" \"")?;
            escape(value.as_deref().unwrap_or(b"-"), line)?;
            line.write_char('"')?;
        }
        line.write_char('\n')
    }
}

/// Writes a value as Apache does (`ap_escape_logitem`): a backslash before `"` and `\`, C escapes,
/// and `\xhh` for every other byte that is not printable ASCII.
fn escape(value: &[u8], line: &mut dyn Write) -> fmt::Result {
    for &byte in value {
        match byte {
            b'"' => line.write_str("\\\"")?,
            b'\\' => line.write_str("\\\\")?,
            0x08 => line.write_str("\\b")?,
            b'\n' => line.write_str("\\n")?,
            b'\r' => line.write_str("\\r")?,
            b'\t' => line.write_str("\\t")?,
            0x0b => line.write_str("\\v")?,
            b' '..=b'~' => line.write_char(char::from(byte))?,
            _ => write!(line, "\\x{byte:02x}")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(entry: &Combined) -> String {
        let mut line = String::new();
        entry.write(784_111_777_500_000, &mut line).expect("memory");
        line
    }

    #[test]
    fn an_entry_has_the_form_of_apache() {
        let entry = Combined {
            method: "GET".to_owned(),
            target: "/a%20b?c=\"d\"".to_owned(),
            version: "HTTP/1.1".to_owned(),
            peer: Some("2001:db8::1".parse().expect("an address")),
            status: Some("206".to_owned()),
            body_bytes: 1234,
            duration_us: 600_000,
            referer: Some("http://t/\u{e9}\\".into()),
            user_agent: Some(b"a\t\x7f\x0b\x08\x1b[31m \"b\"\xe9\xff".to_vec()),
            ..Combined::default()
        };
        assert_eq!(
            line(&entry),
            "2001:db8::1 - - [06/Nov/1994:08:49:36 +0000] \"GET /a%20b?c=\\\"d\\\" HTTP/1.1\" \
             206 1234 \"http://t/\\xc3\\xa9\\\\\" \"a\\t\\x7f\\v\\b\\x1b[31m \\\"b\\\"\\xe9\\xff\"\n"
        );
    }

    #[test]
    fn an_unknown_value_is_a_dash() {
        let date = "[06/Nov/1994:08:49:37 +0000]";
        let entry = Combined::default();
        assert_eq!(
            line(&entry),
            format!("- - - {date} \"-\" - - \"-\" \"-\"\n")
        );
        let entry = Combined {
            request: Some(b"not a request\r\nline".to_vec()),
            status: Some("400".to_owned()),
            ..Combined::default()
        };
        let expected = format!("- - - {date} \"not a request\\r\\nline\" 400 - \"-\" \"-\"\n");
        assert_eq!(line(&entry), expected);
    }
}
