//! The fields of a header block as a request head or as trailers (RFC 9113 §8.1 to §8.3).
//!
//! A request head is written as the head of HTTP/1 that means the same, so all that reads heads has
//! one form to read: the request line, `host`, and the other fields in their order, with the pieces
//! of `cookie` joined (§8.2.3). What a server of HTTP/1 behind this one could read differently
//! cannot be in it, because the same characters are refused.
//!
//! An extended CONNECT (RFC 8441 §4) has its `:protocol` as the field `upgrade`, which says the
//! same in HTTP/1. A client cannot send that field itself.

use crate::head::{Head, Parts};
use crate::limits::Limits;
use crate::reject::Reject;
use crate::span::Span;
use crate::{chunked, scan, token};

/// A header block that is decoded, as far as the limits allow.
#[derive(Debug, Default)]
pub(super) struct HeaderBlock {
    /// The text of the head.
    pub(super) bytes: Vec<u8>,
    fields: Vec<(Span, Span)>,
    /// Values of pseudo-header fields, until the request line is written.
    pseudo: Vec<u8>,
    method: Option<Span>,
    scheme: Option<Span>,
    path: Option<Span>,
    authority: Option<Span>,
    protocol: Option<Span>,
    /// The client may send `:protocol`.
    allows_protocol: bool,
    /// The method and the target within [`HeaderBlock::bytes`].
    line: Option<(Span, Span)>,
    cookie: Vec<u8>,
    /// The method is HEAD: also the response to a request that is rejected has no content.
    pub(super) is_head: bool,
    /// What the fields count, in bytes.
    size: usize,
    count: usize,
    /// The request is malformed (§8.1.1), for this reason.
    malformed: Option<&'static str>,
    /// The request exceeds a limit.
    reject: Option<Reject>,
}

/// What a header block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Request,
    Trailers,
}

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wrong {
    /// It is malformed, for this reason: a stream error (RFC 9113 §8.1.1).
    Malformed(&'static str),
    /// It gets this response.
    Rejected(Reject),
}

impl HeaderBlock {
    /// Prepares for the next block. Keeps some memory. `allows_protocol`: this side has announced
    /// extended CONNECT.
    pub(super) fn begin(&mut self, allows_protocol: bool) {
        let mut kept = std::mem::take(self);
        kept.bytes.clear();
        kept.fields.clear();
        kept.pseudo.clear();
        kept.cookie.clear();
        *self = HeaderBlock {
            bytes: kept.bytes,
            fields: kept.fields,
            pseudo: kept.pseudo,
            cookie: kept.cookie,
            allows_protocol,
            ..HeaderBlock::default()
        };
    }

    /// The memory that is allocated, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let texts = [&self.bytes, &self.pseudo, &self.cookie].map(Vec::capacity);
        texts.iter().sum::<usize>() + self.fields.capacity() * size_of::<(Span, Span)>()
    }

    /// Adds a field. Once something is wrong, further fields take no memory.
    pub(super) fn add(&mut self, role: Role, name: &[u8], value: &[u8], limits: &Limits) {
        self.size = self.size.saturating_add(name.len() + value.len() + 4);
        // `cookie` is one field, which clients send in pieces (RFC 9113 §8.2.3).
        if name != b"cookie" || self.cookie.is_empty() {
            self.count += 1;
        }
        if name == b":method" {
            self.is_head = value == b"HEAD";
        }
        if self.malformed.is_some() || self.reject.is_some() {
            return;
        }
        if let Err(wrong) = self.try_add(role, name, value, limits) {
            match wrong {
                Wrong::Malformed(reason) => self.malformed = Some(reason),
                Wrong::Rejected(reject) => self.reject = Some(reject),
            }
        }
    }

    fn try_add(
        &mut self,
        role: Role,
        name: &[u8],
        value: &[u8],
        limits: &Limits,
    ) -> Result<(), Wrong> {
        if !token::is_field_value(value) || token::trim(value).len() != value.len() {
            return Err(Wrong::Malformed(
                "a field value with a character that is not allowed",
            ));
        }
        if let Some(name) = name.strip_prefix(b":") {
            return match role {
                Role::Request => self.add_pseudo(name, value, limits),
                Role::Trailers => Err(Wrong::Malformed("a pseudo-header field in trailers")),
            };
        }
        if !token::is_token(name) || name.iter().any(u8::is_ascii_uppercase) {
            return Err(Wrong::Malformed(
                "a field name with a character that is not allowed",
            ));
        }
        if role == Role::Request {
            self.begin_fields()?;
        }
        check_of_connection(name, value)?;
        let bytes_max = match role {
            Role::Request => limits.head_bytes_max,
            Role::Trailers => limits.trailer_bytes_max,
        };
        if self.size > bytes_max {
            let what = match role {
                Role::Request => "request head too large",
                Role::Trailers => "trailers too large",
            };
            return Err(Wrong::Rejected(Reject::new(431, what)));
        }
        if self.count > limits.field_count_max {
            return Err(Wrong::Rejected(Reject::new(431, "too many fields")));
        }
        if role == Role::Trailers && chunked::is_forbidden_in_trailers(name) {
            return Err(Wrong::Rejected(Reject::new(400, "forbidden trailer field")));
        }
        match name {
            // An empty piece would leave a space at the end, which no value has.
            b"cookie" if role == Role::Request => {
                if !self.cookie.is_empty() && !value.is_empty() {
                    self.cookie.extend_from_slice(b"; ");
                }
                self.cookie.extend_from_slice(value);
            }
            // It is there already, from `:authority`.
            b"host" if role == Role::Request && self.authority.is_some() => {
                let known = self
                    .fields
                    .first()
                    .map_or(&b""[..], |(_, host)| host.of(&self.bytes));
                if !known.eq_ignore_ascii_case(value) {
                    return Err(Wrong::Malformed("`host` differs from `:authority`"));
                }
            }
            _ => self.add_line(name, value),
        }
        Ok(())
    }

    fn add_pseudo(&mut self, name: &[u8], value: &[u8], limits: &Limits) -> Result<(), Wrong> {
        let place = match name {
            _ if self.line.is_some() => {
                return Err(Wrong::Malformed("a pseudo-header field behind others"));
            }
            b"method" => &mut self.method,
            b"scheme" => &mut self.scheme,
            b"path" => &mut self.path,
            b"authority" => &mut self.authority,
            b"protocol" if self.allows_protocol => &mut self.protocol,
            _ => return Err(Wrong::Malformed("an unknown pseudo-header field")),
        };
        if place.is_some() {
            return Err(Wrong::Malformed("a pseudo-header field twice"));
        }
        *place = Some(Span::new(self.pseudo.len(), value.len()));
        let bytes_max = match name {
            b"path" => limits.target_bytes_max,
            _ => limits.head_bytes_max,
        };
        if value.len() > bytes_max || self.size > limits.head_bytes_max {
            let (status, reason) = match name {
                b"path" => (414, "request target too long"),
                _ => (431, "request head too large"),
            };
            return Err(Wrong::Rejected(Reject::new(status, reason)));
        }
        self.pseudo.extend_from_slice(value);
        Ok(())
    }

    /// Writes the request line and `host`, which are in front of the other fields (§8.3.1).
    fn begin_fields(&mut self) -> Result<(), Wrong> {
        if self.line.is_some() {
            return Ok(());
        }
        let missing = Wrong::Malformed("a pseudo-header field is missing");
        let method = self.method.ok_or(missing)?.of(&self.pseudo);
        if !token::is_token(method) {
            return Err(Wrong::Malformed(
                "a method with a character that is not allowed",
            ));
        }
        let is_connect = method == b"CONNECT";
        if is_connect && self.protocol.is_none() {
            // It names an authority alone (§8.5).
            if self.authority.is_none() {
                return Err(missing);
            }
            if self.scheme.is_some() || self.path.is_some() {
                return Err(Wrong::Malformed("a CONNECT with a scheme or a path"));
            }
            return Err(Wrong::Rejected(Reject::new(
                501,
                "CONNECT is not supported",
            )));
        }
        if self
            .protocol
            .is_some_and(|protocol| !(is_connect && is_protocol(protocol.of(&self.pseudo))))
        {
            return Err(Wrong::Malformed("`:protocol` that is not one of CONNECT"));
        }
        if method.len() > scan::METHOD_BYTES_MAX {
            return Err(Wrong::Rejected(Reject::new(501, "unknown method")));
        }
        let scheme = self.scheme.ok_or(missing)?.of(&self.pseudo);
        if scheme.is_empty() {
            return Err(Wrong::Malformed("an empty pseudo-header field"));
        }
        let target = self.path.ok_or(missing)?.of(&self.pseudo);
        let is_path = target.first() == Some(&b'/') || (target == b"*" && method == b"OPTIONS");
        if !is_path || !target.iter().all(u8::is_ascii_graphic) {
            return Err(Wrong::Malformed(
                "a path with a character that is not allowed",
            ));
        }
        self.bytes.extend_from_slice(method);
        self.bytes.push(b' ');
        self.bytes.extend_from_slice(target);
        self.bytes.extend_from_slice(b" HTTP/2\r\n");
        let method = Span::new(0, method.len());
        self.line = Some((method, Span::new(method.len as usize + 1, target.len())));
        let pseudo = std::mem::take(&mut self.pseudo);
        if let Some(authority) = self.authority {
            self.add_line(b"host", authority.of(&pseudo));
        }
        if let Some(protocol) = self.protocol {
            self.add_line(b"upgrade", protocol.of(&pseudo));
        }
        self.pseudo = pseudo;
        Ok(())
    }

    fn add_line(&mut self, name: &[u8], value: &[u8]) {
        let name_at = Span::new(self.bytes.len(), name.len());
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(b": ");
        let value_at = Span::new(self.bytes.len(), value.len());
        self.bytes.extend_from_slice(value);
        self.bytes.extend_from_slice(b"\r\n");
        self.fields.push((name_at, value_at));
    }

    fn check(&self) -> Result<(), Wrong> {
        match (self.malformed, self.reject) {
            (Some(reason), _) => Err(Wrong::Malformed(reason)),
            (None, Some(reject)) => Err(Wrong::Rejected(reject)),
            (None, None) => Ok(()),
        }
    }

    /// Ends a request head and fills `head`, whose bytes are then [`HeaderBlock::bytes`].
    pub(super) fn finish(&mut self, has_ended: bool, head: &mut Head) -> Result<(), Wrong> {
        if let Err(wrong) = self.check() {
            if let Wrong::Malformed(_) = wrong {
                let _ = self.begin_fields(); // For logs, as far as it is there.
            }
            return Err(wrong);
        }
        self.begin_fields()?;
        if !self.cookie.is_empty() {
            let cookie = std::mem::take(&mut self.cookie);
            self.add_line(b"cookie", &cookie);
            self.cookie = cookie;
        }
        self.bytes.extend_from_slice(b"\r\n");
        let (method, target) = self.line.unwrap_or_default();
        let parts = Parts {
            bytes: &self.bytes,
            method,
            target,
            fields: &self.fields,
            has_ended,
        };
        head.fill(&parts).map_err(Wrong::Rejected)
    }

    /// Ends trailers: their field lines.
    pub(super) fn finish_trailers(&mut self) -> Result<&[u8], Wrong> {
        self.check()?;
        Ok(&self.bytes)
    }
}

/// One protocol as in the field `upgrade` (RFC 9110 §7.8): a name, perhaps with a version.
fn is_protocol(value: &[u8]) -> bool {
    let mut parts = value.splitn(2, |&byte| byte == b'/');
    parts.all(token::is_token)
}

/// Fields that belong to a connection of HTTP/1 (§8.2.2).
fn check_of_connection(name: &[u8], value: &[u8]) -> Result<(), Wrong> {
    match name {
        b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
            Err(Wrong::Malformed("a field of connections"))
        }
        b"te" if value != b"trailers" => Err(Wrong::Malformed("`te` with another value")),
        _ => Ok(()),
    }
}
