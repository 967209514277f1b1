//! The content of a request as values: forms here and, as other types, in `forms`, JSON in `json`;
//! and the pairs of a query.

use crate::request::Request;
use crate::response::{IntoResponse, Response};
use onrush_proto::token;
use std::borrow::Cow;
use std::error::Error;
use std::{fmt, io};

/// The media type of forms.
const FORM: &str = "application/x-www-form-urlencoded";

/// Why the content of a request is not what the handler reads. As a response it is the status that
/// the client should get; its text does not contain what the client has sent.
#[derive(Debug)]
#[non_exhaustive]
pub enum ContentError {
    /// 415: `Content-Type` is missing, or is not this media type.
    MediaType(&'static str),
    /// 415: the content is compressed.
    Encoding,
    /// The content was not received whole: 413 if it is too long, and what [`io::Error`] says of
    /// others.
    Body(io::Error),
    /// 400: the content is not what its media type says.
    Malformed {
        /// What is wrong.
        what: &'static str,
        /// The line, from 1.
        line: usize,
        /// The byte of the line, from 1.
        column: usize,
        /// The error of the decoder, which may quote what the client has sent.
        source: Box<dyn Error + Send + Sync>,
    },
    /// 400: the JSON does not fit what the handler expects. With the feature `json`.
    Json {
        /// Which field does not fit.
        misfit: Misfit,
        /// The line, from 1.
        line: usize,
        /// The byte of the line, from 1.
        column: usize,
    },
    /// 400: the query does not fit what the handler expects. With the feature `forms`.
    Query(Misfit),
    /// 422: the form does not fit what the handler expects. With the feature `forms`.
    Form(Misfit),
}

/// Why the fields of a query, form or JSON are not those of the type that the handler expects.
/// Names are those that the program has chosen, never those that a client has sent. The errors of
/// the decoder may quote what the client has sent.
#[derive(Debug)]
#[non_exhaustive]
pub enum Misfit {
    /// A field is missing.
    Missing {
        /// Its name.
        field: &'static str,
        /// The error of the decoder.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The value of a field does not fit, or there are several.
    Value {
        /// Its name.
        field: &'static str,
        /// The error of the decoder.
        source: Box<dyn Error + Send + Sync>,
    },
    /// There is a field that the type does not have, and the type ignores none.
    Unknown {
        /// The error of the decoder.
        source: Box<dyn Error + Send + Sync>,
    },
    /// Something else, or a field of a type that is no struct or has flattened members.
    Other {
        /// The error of the decoder.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl Misfit {
    /// Says what is wrong with the fields of `whole`.
    fn write(&self, whole: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Misfit::Missing { field, .. } => write!(f, "the {whole} has no field `{field}`"),
            Misfit::Value { field, .. } => write!(
                f,
                "the field `{field}` of the {whole} has another form than expected"
            ),
            Misfit::Unknown { .. } => write!(f, "the {whole} has an unknown field"),
            Misfit::Other { .. } => write!(f, "the {whole} has another form than expected"),
        }
    }

    fn source(&self) -> &(dyn Error + 'static) {
        match self {
            Misfit::Missing { source, .. }
            | Misfit::Value { source, .. }
            | Misfit::Unknown { source }
            | Misfit::Other { source } => source.as_ref(),
        }
    }
}

impl fmt::Display for ContentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ContentError::MediaType(expected) => write!(f, "the content must be {expected}"),
            ContentError::Encoding => f.write_str("the content must not be compressed"),
            ContentError::Body(error) if error.kind() == io::ErrorKind::FileTooLarge => {
                f.write_str("the content is too large")
            }
            ContentError::Body(_) => f.write_str("the content was not received"),
            ContentError::Malformed {
                what, line, column, ..
            } => write!(f, "{what}, line {line}, column {column}"),
            ContentError::Json {
                misfit,
                line,
                column,
            } => {
                misfit.write("JSON", f)?;
                write!(f, ", line {line}, column {column}")
            }
            ContentError::Query(misfit) => misfit.write("query", f),
            ContentError::Form(misfit) => misfit.write("form", f),
        }
    }
}

impl Error for ContentError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ContentError::MediaType(_) | ContentError::Encoding => None,
            ContentError::Body(error) => Some(error),
            ContentError::Malformed { source, .. } => Some(source.as_ref()),
            ContentError::Json { misfit, .. }
            | ContentError::Query(misfit)
            | ContentError::Form(misfit) => Some(misfit.source()),
        }
    }
}

impl From<io::Error> for ContentError {
    fn from(error: io::Error) -> ContentError {
        ContentError::Body(error)
    }
}

impl IntoResponse for ContentError {
    fn into_response(self) -> Response {
        let text = format!("{self}\n");
        let (status, field) = match self {
            ContentError::Body(error) => return error.into_response(),
            // What the client may send instead (RFC 9110 §12.5.1, §12.5.3).
            ContentError::MediaType(expected) => (415, Some(("Accept", expected))),
            ContentError::Encoding => (415, Some(("Accept-Encoding", "identity"))),
            ContentError::Malformed { .. } | ContentError::Json { .. } | ContentError::Query(_) => {
                (400, None)
            }
            // The media type and the syntax are right (RFC 9110 §15.5.21).
            ContentError::Form(_) => (422, None),
        };
        let response = Response::text(text).with_status(status);
        match field {
            Some((name, value)) => response.with_header(name, value),
            None => response,
        }
    }
}

impl Request {
    /// The content, if its media type is one that `accepts` and it is not compressed. `expected`
    /// names the media type in errors.
    pub(crate) async fn content_of_type(
        &mut self,
        bytes_max: usize,
        expected: &'static str,
        accepts: impl Fn(&str) -> bool,
    ) -> Result<Vec<u8>, ContentError> {
        let media_type = self.header_str("Content-Type").unwrap_or_default();
        let media_type = token::essence(media_type);
        if !accepts(media_type) {
            return Err(ContentError::MediaType(expected));
        }
        let is_plain = |value: &[u8]| value.eq_ignore_ascii_case(b"identity");
        if !self.header_values("Content-Encoding").all(is_plain) {
            return Err(ContentError::Encoding);
        }
        let bytes_max_u64 = u64::try_from(bytes_max).unwrap_or(u64::MAX);
        if self
            .content_length()
            .is_some_and(|length| length > bytes_max_u64)
        {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge).into());
        }
        Ok(self.body().read_all(bytes_max).await?)
    }

    /// The names and values of the query in order, decoded as those of forms: `+` is a space. No
    /// pairs without a query. Bytes that are not UTF-8 become U+FFFD. Each call decodes anew;
    /// `Limits::target_bytes_max` limits the cost.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    ///
    /// async fn search(request: Request) -> Response {
    ///     assert_eq!(request.query(), Some("author=Ada+L%2E&tag=a&tag=b"));
    ///     assert_eq!(request.query_pairs().get("author").as_deref(), Some("Ada L."));
    ///     let tags = request.query_pairs().filter(|(name, _)| name == "tag");
    ///     Response::text(tags.map(|(_, value)| value).collect::<Vec<_>>().join(", "))
    /// }
    /// # let mut sim = Simulation::new(1, &search, Limits::default());
    /// # let client = sim.connect();
    /// # let target = "/?author=Ada+L%2E&tag=a&tag=b";
    /// # sim.send(&client, format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n").as_bytes());
    /// # assert!(client.receive()?.ends_with(b"\r\n\r\na, b"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn query_pairs(&self) -> Pairs<'_> {
        Pairs::of(self.query().unwrap_or_default().as_bytes())
    }

    /// Reads a form of at most `bytes_max` bytes (`application/x-www-form-urlencoded`). For forms
    /// with files, read the body.
    ///
    /// # Errors
    /// [`ContentError`], which is a response: 415 if the content is no form, 413 if it is longer,
    /// and as [`RequestBody`](crate::RequestBody).
    ///
    /// # Examples
    /// ```
    /// use onrush::content::ContentError;
    /// use onrush::{Limits, Request, Response, sim::Simulation};
    ///
    /// async fn sign_up(mut request: Request) -> Result<Response, ContentError> {
    ///     let form = request.form(10_000).await?;
    ///     Ok(match form.get("name") {
    ///         Some(name) => Response::text(format!("Hello, {name}!")).with_status(201),
    ///         None => Response::text("a name, please\n").with_status(422),
    ///     })
    /// }
    /// # let mut sim = Simulation::new(1, &sign_up, Limits::default());
    /// # let client = sim.connect();
    /// # let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n";
    /// # let media_type = "Content-Type: application/x-www-form-urlencoded";
    /// # sim.send(&client, format!("{head}{media_type}\r\n\r\nname=Ada+L").as_bytes());
    /// # assert!(client.receive()?.ends_with(b"Hello, Ada L!"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn form(&mut self, bytes_max: usize) -> Result<Form, ContentError> {
        let is_form = |media_type: &str| media_type.eq_ignore_ascii_case(FORM);
        let content = self.content_of_type(bytes_max, FORM, is_form).await?;
        Ok(Form(content))
    }
}

/// What [`Request::form`] has read.
#[derive(Clone)]
pub struct Form(Vec<u8>);

impl Form {
    /// The first value of this name, decoded. Use [`Form::pairs`] for many names: each call looks
    /// through the form.
    pub fn get(&self, name: &str) -> Option<Cow<'_, str>> {
        self.pairs().get(name)
    }

    #[cfg(feature = "forms")]
    pub(crate) fn encoded(&self) -> &[u8] {
        &self.0
    }

    /// All names and values in order, decoded.
    pub fn pairs(&self) -> Pairs<'_> {
        Pairs::of(&self.0)
    }
}

/// Its values may be secrets, so they are left out.
impl fmt::Debug for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Form({} bytes)", self.0.len())
    }
}

/// The decoded names and values of a query or form, in order.
#[derive(Clone)]
pub struct Pairs<'a>(form_urlencoded::Parse<'a>);

impl<'a> Pairs<'a> {
    fn of(encoded: &'a [u8]) -> Pairs<'a> {
        Pairs(form_urlencoded::parse(encoded))
    }

    /// The value of the next pair with this name.
    pub fn get(mut self, name: &str) -> Option<Cow<'a, str>> {
        self.find(|(known, _)| known == name)
            .map(|(_, value)| value)
    }
}

impl<'a> Iterator for Pairs<'a> {
    type Item = (Cow<'a, str>, Cow<'a, str>);

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next()
    }
}

impl fmt::Debug for Pairs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pairs").finish_non_exhaustive()
    }
}
