//! `POST` of a form with files (`multipart/form-data`, RFC 7578) to a folder, as browsers and
//! `curl -F` send it. Each file becomes an object of the folder.
//!
//! The body is parsed while it arrives: memory does not grow with it. Each object is created
//! atomically when its part is complete; an existing one is never replaced. A part that is refused
//! does not affect the others. The response has a line for each file: a status and a path.
//!
//! A part without the parameter `filename` is a field of the form and has no object. A part that is
//! a file but has no name that can be used is refused, and so is a form of which nothing is stored.

mod disposition;

use self::disposition::{FileName, parameter};
use crate::files::http::digest::Digests;
use crate::files::http::http_error::{HttpError, Operation};
use crate::files::http::media_type;
use crate::files::http::negotiate::prefers_html;
use crate::files::path::{self, Target};
use crate::files::put::writes::Writes;
use crate::files::receive::upload::{ReceiveError, Sink, VerifiedUpload, body_failure};
use crate::files::shared::destination::Destination;
use crate::files::shared::multistatus;
use crate::files::shared::stored_fields::metadata_of_type;
use crate::shares::Holder;
use onrush::{Request, RequestBody, Response};
use onrush_proto::precondition::{Current, Outcome, evaluate};
use onrush_proto::token;
use onrush_store::{Condition, Kind, StoreError};
use std::fmt::Write;

/// The maximum number of parts.
const PARTS_MAX: usize = 1_000;
/// The maximum size of the fields of a part.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// The maximum length of a boundary (RFC 2046 §5.1.1).
const BOUNDARY_BYTES_MAX: usize = 70;
/// The size of a piece that is written.
const PIECE_BYTES: usize = 128 << 10;

const NOT_FOLDER: HttpError = HttpError::new(
    409,
    "a form is sent to a folder that exists; its path ends with a slash",
);
const MALFORMED: HttpError = HttpError::new(400, "the form is malformed");
const NO_FILE: HttpError = HttpError::new(400, "the form has no file");
const NO_NAME: HttpError = HttpError::new(400, "the file has no name that can be stored");
const CODED: HttpError = HttpError::new(415, "a form is not decoded: send it without a coding");
const EXISTS: HttpError = HttpError::new(409, "the object exists, and a form replaces none");

/// The boundary of a form; `None` if the request has another type.
fn boundary(request: &Request) -> Option<Vec<u8>> {
    let value = request.header("content-type")?;
    let rest = media_type::parameters(value, "multipart/form-data")?;
    let boundary = parameter(rest, b"boundary")?;
    (1..=BOUNDARY_BYTES_MAX)
        .contains(&boundary.len())
        .then_some(boundary)
}

/// Refuses a coded body, and a form under a precondition that does not hold: the folder exists and
/// has no entity tag.
fn check_fields(request: &Request) -> Result<(), HttpError> {
    let folder = Current {
        exists: true,
        ..Current::default()
    };
    if evaluate(false, &folder, request.headers()) != Outcome::Proceed {
        return Err(HttpError::PRECONDITION_FAILED);
    }
    match request.header("content-encoding") {
        Some(coding) if !coding.eq_ignore_ascii_case(b"identity") => Err(CODED),
        _ => Ok(()),
    }
}

/// Whether a request is a form with files.
pub(in crate::files) fn is_form(request: &Request) -> bool {
    boundary(request).is_some()
}

impl Writes {
    /// `POST` of a form. 201 if all files are new objects; otherwise the status of the first one
    /// that is not.
    pub(in crate::files) async fn form(&self, mut request: Request) -> Result<Response, HttpError> {
        let split = path::split(&request)?;
        let target = path::target(&request, Operation::Write)?;
        let Target::Folder(folder) =
            target.check_visible(&self.objects.options, Operation::Write)?
        else {
            return Err(NOT_FOLDER);
        };
        if let Some(folder) = &folder {
            let found = self.objects.look_up(folder).await;
            let found = found.map_err(|error| {
                self.objects
                    .store_failure(error, Operation::Write, Some(folder))
            })?;
            if found.is_none_or(|found| found.kind != Kind::Directory) {
                return Err(NOT_FOLDER);
            }
        }
        check_fields(&request)?;
        let is_page = prefers_html(&request);
        let mount = split.mount.to_owned();
        let boundary = boundary(&request).ok_or(MALFORMED)?;
        let _place = self
            .objects
            .shares
            .files
            .hold_upload(429, || Holder::of(&request))?;
        let body = std::mem::take(request.body());
        let mut parts = Parts::new(body, &boundary);
        let (mut lines, mut refused) = (String::new(), None);
        let mut count = 0;
        while let Some(part) = parts.next().await? {
            count += 1;
            if count > PARTS_MAX {
                return Err(HttpError::new(400, "the form has more than 1000 parts"));
            }
            let Some(FileName { written, name }) = part.file else {
                parts.skip().await?;
                continue;
            };
            // Browsers send an empty part for a file that was not chosen.
            if written.is_empty() && parts.is_empty().await? {
                continue;
            }
            let to = match name.is_empty() {
                _ if part.is_coded => Err(CODED),
                true => Err(NO_NAME),
                false => self.objects.destination_in(&request, &name).and_then(|to| {
                    let change = self.locking.begin_member(&request, &to.key)?;
                    Ok((to, change))
                }),
            };
            let created = match to {
                Ok((to, _change)) => {
                    let media_type = &part.media_type;
                    let created = self.create_part(&to, media_type, &mut parts).await?;
                    created.map(|()| to)
                }
                Err(failure) => Err(failure),
            };
            // Writing to a String does not fail.
            let _ = match created {
                Ok(to) => writeln!(lines, "201 {}", to.location),
                Err(failure) => {
                    parts.skip().await?;
                    refused.get_or_insert(failure);
                    lines.push_str(&failure.status.to_string());
                    lines.push(' ');
                    path::encode(&written, &mut lines);
                    writeln!(lines, " {}", failure.detail())
                }
            };
        }
        if lines.is_empty() {
            return Err(NO_FILE);
        }
        Ok(match refused {
            Some(failure) => Response::text(lines).with_status(failure.status),
            // A browser shows the folder.
            None if is_page => {
                let location = multistatus::href(&mount, folder.as_ref(), Kind::Directory);
                Response::new(303).with_header("Location", location)
            }
            None => Response::text(lines).with_status(201),
        })
    }

    /// Creates an object from a part. The outer error ends the request.
    async fn create_part(
        &self,
        to: &Destination,
        media_type: &[u8],
        parts: &mut Parts,
    ) -> Result<Result<(), HttpError>, HttpError> {
        let key = &to.key;
        let failed = |error| match error {
            StoreError::PreconditionFailed => EXISTS,
            error => self
                .objects
                .store_failure(error, Operation::Write, Some(key)),
        };
        let mut digests = Digests::default();
        if let Err(failure) = self.objects.demand_of_name(key, &mut digests) {
            return Ok(Err(failure));
        }
        match self.objects.store.existing_object(key).await {
            Ok(None) => {}
            Ok(Some(_)) => return Ok(Err(EXISTS)),
            Err(error) => return Ok(Err(failed(error))),
        }
        let staged = self.objects.store.stage(key, Condition::Absent, None).await;
        let mut upload = match staged {
            Ok(upload) => upload,
            Err(error) => return Ok(Err(failed(error))),
        };
        // A client that does not know the type says so. Then the name decides.
        if media_type != b"application/octet-stream" {
            let bytes_max = self.objects.store.features().metadata_bytes_max;
            let metadata = metadata_of_type(media_type, bytes_max);
            let metadata = match self.objects.fields_of_name(key, metadata) {
                Ok(metadata) => metadata,
                Err(failure) => return Ok(Err(failure)),
            };
            if !metadata.is_empty()
                && let Err(error) = upload.set_metadata(metadata)
            {
                return Ok(Err(failed(error)));
            }
        }
        let refused = |error| match error {
            ReceiveError::Body(failure) => failure,
            ReceiveError::Store(error) => failed(error),
        };
        let mut upload = VerifiedUpload::new(upload, digests, self.uploads.limits());
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        loop {
            let is_end = parts.fill(&mut piece).await?;
            if !piece.is_empty() {
                piece = match upload.write(piece).await {
                    Ok(piece) => piece,
                    Err(error) => return Ok(Err(refused(error))),
                };
            }
            if is_end {
                let committed = upload.commit(&to.permission).await;
                return Ok(committed.map(drop).map_err(refused));
            }
        }
    }
}

/// The fields of a part.
#[derive(Debug, Default, PartialEq, Eq)]
struct Part {
    /// `None`: it is a field of the form.
    file: Option<FileName>,
    media_type: Vec<u8>,
    /// The content is not what it stands for: base64 or quoted-printable (RFC 7578 §4.7 deprecates
    /// both).
    is_coded: bool,
}

/// The parts of a form, in order.
struct Parts {
    body: RequestBody,
    /// What has arrived and is not parsed.
    buffer: Vec<u8>,
    /// A line end and the boundary.
    delimiter: Vec<u8>,
    /// The content of the current part has been read.
    is_between: bool,
}

impl Parts {
    fn new(body: RequestBody, boundary: &[u8]) -> Parts {
        Parts {
            body,
            // The first boundary need not follow a line.
            buffer: b"\r\n".to_vec(),
            delimiter: [b"\r\n--", boundary].concat(),
            is_between: false,
        }
    }

    /// The next part, after the content of the one before has been read. `None` after the last.
    async fn next(&mut self) -> Result<Option<Part>, HttpError> {
        self.skip().await?; // Also what precedes the first boundary.
        self.is_between = false;
        while self.buffer.len() < 2 {
            self.receive().await?;
        }
        if self.buffer.starts_with(b"--") {
            self.body.discard().await.map_err(body_failure)?;
            return Ok(None);
        }
        // The rest of the line of the boundary is white space, and an empty line ends the fields.
        let end = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break end;
            }
            if self.buffer.len() > HEAD_BYTES_MAX {
                return Err(MALFORMED);
            }
            self.receive().await?;
        };
        let part = Part::parse(&self.buffer[..end])?;
        self.buffer.drain(..end + 4);
        Ok(Some(part))
    }

    /// Appends content to `out` up to its capacity. Returns whether the part has ended.
    async fn fill(&mut self, out: &mut Vec<u8>) -> Result<bool, HttpError> {
        if self.is_between {
            return Ok(true);
        }
        if out.capacity() == 0 {
            out.reserve(PIECE_BYTES);
        }
        loop {
            let room = out.capacity() - out.len();
            let (ready, is_end) = match find(&self.buffer, &self.delimiter) {
                Some(end) => (end, true),
                // The delimiter may begin in the last bytes.
                None => (
                    self.buffer.len().saturating_sub(self.delimiter.len() - 1),
                    false,
                ),
            };
            let taken = ready.min(room);
            out.extend(self.buffer.drain(..taken));
            if is_end && taken == ready {
                self.buffer.drain(..self.delimiter.len());
                self.is_between = true;
                return Ok(true);
            }
            if out.len() == out.capacity() {
                return Ok(false);
            }
            self.receive().await?;
        }
    }

    /// Whether the content of the current part is empty. Only before any of it has been read.
    async fn is_empty(&mut self) -> Result<bool, HttpError> {
        while self.buffer.len() < self.delimiter.len() {
            self.receive().await?;
        }
        Ok(self.buffer.starts_with(&self.delimiter))
    }

    /// Reads the rest of the content.
    async fn skip(&mut self) -> Result<(), HttpError> {
        let mut piece = Vec::with_capacity(PIECE_BYTES);
        while !self.fill(&mut piece).await? {
            piece.clear();
        }
        Ok(())
    }

    /// Receives more of the body.
    async fn receive(&mut self) -> Result<(), HttpError> {
        match self.body.next().await {
            Some(piece) => self.buffer.extend_from_slice(&piece.map_err(body_failure)?),
            None => {
                return Err(HttpError::new(
                    400,
                    "the form ends before its last boundary",
                ));
            }
        }
        Ok(())
    }
}

impl Part {
    fn parse(head: &[u8]) -> Result<Part, HttpError> {
        let mut part = Part::default();
        let mut has_disposition = false;
        for (index, line) in split_lines(head).enumerate() {
            // A line that continues the one before could hide the name.
            if index > 0 && matches!(line, [b' ' | b'\t', ..]) {
                return Err(MALFORMED);
            }
            let Some(colon) = line.iter().position(|&byte| byte == b':') else {
                match token::trim(line) {
                    [] => continue, // The rest of the line of the boundary.
                    _ => return Err(MALFORMED),
                }
            };
            let (name, value) = (&line[..colon], token::trim(&line[colon + 1..]));
            if name.eq_ignore_ascii_case(b"content-disposition") {
                if std::mem::replace(&mut has_disposition, true) {
                    return Err(MALFORMED);
                }
                part.file = disposition::file_name(value).ok_or(MALFORMED)?;
            } else if name.eq_ignore_ascii_case(b"content-type") {
                part.media_type = value.to_vec();
            } else if name.eq_ignore_ascii_case(b"content-transfer-encoding") {
                let plain = [&b"7bit"[..], b"8bit", b"binary"];
                part.is_coded = !plain.iter().any(|plain| plain.eq_ignore_ascii_case(value));
            }
        }
        // A field of a form is text (RFC 7578 §4.4). Anything else is a file without a name.
        let media_type = part.media_type.split(|&byte| byte == b';').next();
        let media_type = token::trim(media_type.unwrap_or_default());
        let is_text = media_type.is_empty() || media_type.eq_ignore_ascii_case(b"text/plain");
        if part.file.is_none() && !is_text {
            part.file = Some(FileName::default());
        }
        Ok(part)
    }
}

fn split_lines(head: &[u8]) -> impl Iterator<Item = &[u8]> {
    let lines = head.split(|&byte| byte == b'\n');
    lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line))
}

fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    memchr::memmem::find(text, wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_part_are_parsed() {
        let head = b"  \r\nContent-Disposition: form-data; name=\"f\"; filename=\"a\"\r\n\
            content-type: text/plain";
        let part = Part {
            file: Some(FileName {
                written: b"a".to_vec(),
                name: b"a".to_vec(),
            }),
            media_type: b"text/plain".to_vec(),
            is_coded: false,
        };
        assert_eq!(Part::parse(head), Ok(part));
        for (coding, is_coded) in [("Binary", false), ("8bit", false), ("base64", true)] {
            let head = format!("\r\nContent-Transfer-Encoding: {coding}");
            assert_eq!(Part::parse(head.as_bytes()).unwrap().is_coded, is_coded);
        }
        assert_eq!(Part::parse(b"\r\nX: y"), Ok(Part::default()));
        for malformed in [
            &b"x\r\n"[..],
            b"\r\nContent-Disposition: form-data; name=f;\r\n filename=\"a:b\"",
            b"\r\nContent-Disposition: form-data; filename=a\r\nContent-Disposition: form-data",
            b"\r\nContent-Disposition: form-data; filename=\"a\\\"",
        ] {
            assert_eq!(Part::parse(malformed), Err(MALFORMED));
        }
    }
}
