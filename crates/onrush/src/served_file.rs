//! A file as a response, with conditions and ranges.

use crate::body::{Body, Part};
use crate::request::Request;
use crate::response::Response;
use crate::selection::{EntityTag, Piece, Representation, Selection};
use crate::worker::WorkerHandle;
use onrush_proto::date;
use onrush_proto::response::{FieldError, FieldLines};
use onrush_rt::fs::{File, FileKind, Metadata};
use std::borrow::Cow;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The fields that [`ServedFile::respond`] writes.
const OWN_FIELDS: [&str; 4] = ["Accept-Ranges", "Content-Range", "ETag", "Last-Modified"];

/// A regular file that a handler responds with: whole or in parts, or not at all if the client has
/// it (RFC 9110 §13, §14). Its bytes are sent without copying where the kernel can do that
/// (`sendfile(2)`).
///
/// Size, times and entity tag are those of the moment when it was opened, so open it for each
/// request, unless nothing writes to it. Replace a file by renaming another one to its name: who
/// writes to a file that is being sent mixes its old and its new content. If it becomes shorter,
/// the connection is reset, so the client sees that the response is incomplete. The files of
/// `/proc` and `/sys` have no size that is true, so they are sent empty or cut; read them instead.
///
/// Do not join a folder and a name that a client has sent: `..`, absolute paths and symbolic links
/// lead out of the folder. For folders there is the handler `Files` of the crate `onrush-files`.
///
/// # Validators
/// The entity tag is strong. It consists of inode, size, and the times of the last change of the
/// content and of the last change of any kind, in nanoseconds. No program can set the latter, so a
/// replaced file has another tag, even if it has the old time. Copies on other machines have other
/// tags.
///
/// A file that has changed within the last 2 seconds has neither `ETag` nor `Last-Modified`: it
/// could change again and keep both, because the clock of a file system advances in ticks. A weak
/// tag would not do: clients compare weakly to find out whether they are up to date, and would keep
/// the earlier content. For the same reason, a time of the last change in the future is not sent.
///
/// # Examples
/// ```
/// use onrush::{Limits, Request, Response, ServedFile, sim::Simulation};
/// use std::io;
///
/// # let path = std::env::temp_dir().join(format!("onrush-doc-served-{}", std::process::id()));
/// # std::fs::write(&path, "0123456789")?;
/// # let report_path = path.clone();
/// let report = move |request: Request| {
///     let path = report_path.clone();
///     async move {
///         let file = ServedFile::open(request.worker(), path).await?;
///         let file = file.content_type("text/csv").with_header("Cache-Control", "no-cache");
///         io::Result::Ok(file.respond(&request))
///     }
/// };
/// # let mut sim = Simulation::new(1, &report, Limits::default());
/// # let client = sim.connect();
/// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: a\r\nRange: bytes=-3\r\n\r\n");
/// # let response = String::from_utf8(client.receive()?).unwrap_or_default();
/// # assert!(response.starts_with("HTTP/1.1 206 "), "{response}");
/// # assert!(response.contains("\r\nContent-Range: bytes 7-9/10\r\n"));
/// # assert!(response.ends_with("\r\n\r\n789"));
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), io::Error>(())
/// ```
#[derive(Clone)]
pub struct ServedFile {
    file: Arc<File>,
    size: u64,
    modified: SystemTime,
    changed: SystemTime,
    /// The entity tag without quotes.
    tag: String,
    content_type: Cow<'static, str>,
    fields: FieldLines,
}

impl ServedFile {
    /// Opens the file at `path` on the server's thread pool for calls that may block
    /// ([`WorkerHandle::blocking`]). Symbolic links are followed.
    ///
    /// # Errors
    /// `NotFound`, which is 404 as a response, if `path` leads to no regular file: to nothing, or
    /// to a folder, a FIFO or a device, which is not waited for; also if it is longer than paths
    /// can be or contains a NUL. Other errors are those of `open(2)`, and 500 as a response.
    pub async fn open(worker: &WorkerHandle, path: impl Into<PathBuf>) -> io::Result<ServedFile> {
        let path = path.into();
        let job = worker.blocking(move || open_blocking(&path));
        job.await.map_err(io::Error::other)?
    }

    /// A file that the program has opened for reading. Calls `statx(2)`, which does not block if
    /// the file system is local.
    ///
    /// # Errors
    /// `NotFound` if it is no regular file, and those of `statx(2)`.
    pub fn new(file: std::fs::File) -> io::Result<ServedFile> {
        ServedFile::of(File::from(file))
    }

    fn of(file: File) -> io::Result<ServedFile> {
        let found = file.metadata()?;
        if found.kind != FileKind::File {
            return Err(no_regular_file());
        }
        Ok(ServedFile {
            file: Arc::new(file),
            size: found.size,
            modified: time(found.modified_ns),
            changed: time(found.changed_ns),
            tag: tag(&found),
            content_type: Cow::Borrowed("application/octet-stream"),
            fields: FieldLines::new(),
        })
    }

    /// Bytes of the content.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The time of the last change of the content.
    pub fn modified(&self) -> SystemTime {
        self.modified
    }

    /// The entity tag with its quotes, as a response has it now. `None` if the file has changed
    /// within the last 2 seconds.
    pub fn etag(&self) -> Option<String> {
        let is_reliable = is_reliable(self.changed, SystemTime::now());
        is_reliable.then(|| format!("\"{}\"", self.tag))
    }

    /// Sets `Content-Type`, which is `application/octet-stream` otherwise.
    ///
    /// # Panics
    /// If the value contains control characters.
    pub fn content_type(self, content_type: &'static str) -> ServedFile {
        self.with_header("Content-Type", content_type)
    }

    /// Sets a field of responses with status 200, 206 and 304, and replaces its earlier line.
    ///
    /// # Panics
    /// If [`ServedFile::try_set_header`] fails. Use that for values from outside the program.
    pub fn with_header(mut self, name: impl AsRef<str>, value: impl AsRef<[u8]>) -> ServedFile {
        let name = name.as_ref();
        if let Err(error) = self.try_set_header(name, value) {
            panic!("header {name:?} was refused: {error:?}");
        }
        self
    }

    /// Sets a field of responses with status 200, 206 and 304, and replaces its earlier line. A 304
    /// does not have those that describe the content, such as `Content-Type` (RFC 9110 §15.4.5).
    ///
    /// # Errors
    /// As [`Response::try_set_header`]. [`FieldError::Reserved`] also for `Accept-Ranges`,
    /// `Content-Range`, `ETag` and `Last-Modified`, and [`FieldError::Value`] for a `Content-Type`
    /// that is not UTF-8.
    pub fn try_set_header(
        &mut self,
        name: impl AsRef<str>,
        value: impl AsRef<[u8]>,
    ) -> Result<(), FieldError> {
        let (name, value) = (name.as_ref(), value.as_ref());
        if OWN_FIELDS.iter().any(|own| own.eq_ignore_ascii_case(name)) {
            return Err(FieldError::Reserved);
        }
        if name.eq_ignore_ascii_case("content-type") {
            FieldLines::new().set(name, value)?;
            let value = std::str::from_utf8(value).map_err(|_| FieldError::Value)?;
            self.content_type = Cow::Owned(value.to_owned());
            return Ok(());
        }
        self.fields.set(name, value)
    }

    /// The response to `request`:
    ///
    /// - 200 with the content;
    /// - 206 with the parts that `Range` asks for, if `If-Range` permits it; several parts are
    ///   `multipart/byteranges` (RFC 9110 §15.3.7);
    /// - 304 by `If-None-Match` or `If-Modified-Since`; 412 by `If-Match` or `If-Unmodified-Since`;
    /// - 416 with the size in `Content-Range` if no range has a byte of the file;
    /// - 405 for other methods than GET and HEAD.
    ///
    /// [`Representation::select`] says which fields are ignored. 200, 206 and 304 have
    /// `Accept-Ranges: bytes`, and the validators `ETag` and `Last-Modified` that hold now.
    /// `Last-Modified` is never later than `Date` (RFC 9110 §8.8.2.1).
    pub fn respond(&self, request: &Request) -> Response {
        if !matches!(request.method(), "GET" | "HEAD") {
            let response = Response::text("the method is not allowed here\n").with_status(405);
            return response.with_header("Allow", "GET, HEAD");
        }
        let date_s = request.worker().unix_seconds();
        let (etag, modified_s) = self.validators(SystemTime::now(), date_s);
        let representation = Representation {
            etag,
            modified_s,
            size: self.size,
            content_type: &self.content_type,
        };
        let response = match representation.select(request) {
            Selection::Whole => self.with_content(Body::parts([self.part(0..self.size)])),
            Selection::Part {
                range,
                content_range,
            } => self
                .with_content(Body::parts([self.part(range)]))
                .with_status(206)
                .with_header("Content-Range", content_range),
            Selection::Parts {
                pieces,
                content_type,
            } => {
                let parts = pieces.into_iter().map(|piece| match piece {
                    Piece::Bytes(bytes) => Part::Bytes(bytes),
                    Piece::Range(range) => self.part(range),
                });
                let response = self.with_content(Body::parts(parts)).with_status(206);
                response.with_header("Content-Type", content_type)
            }
            Selection::NotModified => self.not_modified(),
            Selection::PreconditionFailed => {
                let text = "a precondition of the request does not hold\n";
                return Response::text(text).with_status(412);
            }
            Selection::Unsatisfiable { content_range } => {
                let text = "the range contains no byte of the file\n";
                let response = Response::text(text).with_status(416);
                return response.with_header("Content-Range", content_range);
            }
        };
        with_validators(response, etag, modified_s)
    }

    /// The validators at the time `now`, for a response whose `Date` is `date_s` (seconds since
    /// 1970).
    fn validators(&self, now: SystemTime, date_s: u64) -> (Option<EntityTag<'_>>, Option<u64>) {
        if !is_reliable(self.changed, now) {
            return (None, None);
        }
        let modified = Some(self.modified).filter(|&modified| is_reliable(modified, now));
        let since = modified.and_then(|it| it.duration_since(SystemTime::UNIX_EPOCH).ok());
        let modified_s = since.map(|since| since.as_secs().min(date_s));
        (EntityTag::strong(self.tag.as_bytes()), modified_s)
    }

    fn part(&self, range: std::ops::Range<u64>) -> Part {
        Part::File {
            file: self.file.clone(),
            offset: range.start,
            length: range.end - range.start,
        }
    }

    fn with_content(&self, body: Body) -> Response {
        let response = Response::with_body(body).with_fields(self.fields.clone());
        response.with_header("Content-Type", &*self.content_type)
    }

    /// Without the fields that describe the content: the client has them (RFC 9110 §15.4.5).
    fn not_modified(&self) -> Response {
        let mut response = Response::new(304);
        for (name, value) in self.fields.iter() {
            let prefix = name.get(..8).unwrap_or_default();
            let describes_content = prefix.eq_ignore_ascii_case("content-");
            if !describes_content || name.eq_ignore_ascii_case("content-location") {
                response.set_header(name, value);
            }
        }
        response
    }
}

impl fmt::Debug for ServedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedFile")
            .field("size", &self.size)
            .field("modified", &self.modified)
            .finish_non_exhaustive()
    }
}

fn open_blocking(path: &Path) -> io::Result<ServedFile> {
    let error = match File::open(path) {
        Ok(file) => return ServedFile::of(file),
        Err(error) => error,
    };
    let leads_nowhere = match error.kind() {
        io::ErrorKind::NotADirectory
        | io::ErrorKind::TooManyLinks
        | io::ErrorKind::InvalidFilename
        | io::ErrorKind::InvalidInput => true,
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => false,
        // A socket, or a device that is not there, cannot be opened.
        _ => std::fs::metadata(path).is_ok_and(|found| !found.is_file()),
    };
    Err(match leads_nowhere {
        true => no_regular_file(),
        false => error,
    })
}

fn no_regular_file() -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, "no regular file")
}

/// A time in nanoseconds since 1970, which may be negative.
fn time(ns: i64) -> SystemTime {
    let distance = Duration::from_nanos(ns.unsigned_abs());
    match ns < 0 {
        true => SystemTime::UNIX_EPOCH - distance,
        false => SystemTime::UNIX_EPOCH + distance,
    }
}

/// Whether what happened at `time` cannot happen again without getting another time.
fn is_reliable(time: SystemTime, now: SystemTime) -> bool {
    now.duration_since(time)
        .is_ok_and(|age| age >= Metadata::RELIABLE_AFTER)
}

fn tag(found: &Metadata) -> String {
    let Metadata {
        inode,
        size,
        modified_ns,
        changed_ns,
        ..
    } = found;
    format!("{inode:x}-{size:x}-{modified_ns:x}-{changed_ns:x}")
}

fn with_validators(
    mut response: Response,
    etag: Option<EntityTag<'_>>,
    modified_s: Option<u64>,
) -> Response {
    response.set_header("Accept-Ranges", "bytes");
    if let Some(etag) = etag {
        let mut value = Vec::new();
        etag.write(&mut value);
        response.set_header("ETag", value);
    }
    if let Some(modified_s) = modified_s {
        response.set_header("Last-Modified", date::format(modified_s));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file() -> ServedFile {
        let own = std::env::current_exe().and_then(std::fs::File::open);
        ServedFile::new(own.expect("this program")).expect("a regular file")
    }

    #[test]
    fn a_file_that_may_change_within_a_tick_has_no_validators() {
        let (at, date_s) = (time(5_000_000_000), 1_000_000);
        let file = |modified, changed| ServedFile {
            modified,
            changed,
            ..file()
        };
        let has = |file: &ServedFile, now_ms| {
            let now = SystemTime::UNIX_EPOCH + Duration::from_millis(now_ms);
            let (etag, modified_s) = file.validators(now, date_s);
            (etag.is_some(), modified_s)
        };
        let changed = file(at, at);
        assert_eq!(has(&changed, 5_000), (false, None));
        assert_eq!(has(&changed, 6_999), (false, None));
        assert_eq!(has(&changed, 7_000), (true, Some(5)));
        assert_eq!(has(&changed, 4_000), (false, None)); // The clock was set back.
        let changed_lately = file(time(0), at);
        assert_eq!(has(&changed_lately, 6_999), (false, None));
        let modified_in_the_future = file(time(9_000_000_000), at);
        assert_eq!(has(&modified_in_the_future, 8_000), (true, None));
        let modified_before_1970 = file(time(-1), at);
        assert_eq!(has(&modified_before_1970, 8_000), (true, None));
    }

    #[test]
    fn no_time_is_later_than_the_date_of_the_response() {
        let file = ServedFile {
            modified: time(5_000_000_000),
            changed: time(5_000_000_000),
            ..file()
        };
        let (_, modified_s) = file.validators(time(8_000_000_000), 3);
        assert_eq!(modified_s, Some(3));
    }

    #[test]
    fn fields_that_the_response_writes_itself_are_refused() {
        let mut file = file();
        for name in ["etag", "Last-Modified", "content-range", "Accept-Ranges"] {
            let refused = file.try_set_header(name, "x");
            assert_eq!(refused, Err(FieldError::Reserved), "{name}");
        }
        let refused = file.try_set_header("Content-Length", "1");
        assert_eq!(refused, Err(FieldError::Reserved));
        for value in [&b"a\nb"[..], b"a\xff"] {
            let refused = file.try_set_header("Content-Type", value);
            assert_eq!(refused, Err(FieldError::Value));
        }
        assert_eq!(file.content_type, "application/octet-stream");
    }
}
