//! JSON as content of requests and responses, by serde. With the feature `json`.

use crate::content::ContentError;
use crate::request::Request;
use crate::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::error::Category;

/// The media type of JSON.
const JSON: &str = "application/json";

/// A value that a handler returns as JSON, with status 200. A value that has no JSON, such as a map
/// whose keys are not text, is logged and becomes 500.
///
/// # Examples
/// ```
/// use onrush::content::ContentError;
/// use onrush::{Json, Limits, Request, Router, sim::Simulation};
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Deserialize, Serialize)]
/// struct Point {
///     x: i32,
///     y: i32,
/// }
///
/// async fn swap(mut request: Request) -> Result<Json<Point>, ContentError> {
///     let Point { x, y } = request.json(1000).await?;
///     Ok(Json(Point { x: y, y: x }))
/// }
///
/// let router = Router::new().post("/swap", swap);
/// # let mut sim = Simulation::new(1, &router, Limits::default());
/// # let client = sim.connect();
/// # let head = "POST /swap HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n";
/// # let content = r#"{"x": 1, "y": 2}"#;
/// # sim.send(&client, format!("{head}Content-Length: 16\r\n\r\n{content}").as_bytes());
/// # assert!(client.receive()?.ends_with(br#"{"x":2,"y":1}"#));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(content) => Response::json(content),
            Err(error) => Response::failure(&error),
        }
    }
}

impl Request {
    /// Reads a value from JSON of at most `bytes_max` bytes. Its media type is `application/json`
    /// or ends with `+json` (RFC 8259 §11, RFC 6839 §3.1). The value owns its parts. The worker
    /// decodes it, so content of many megabytes delays its other requests: read that by
    /// [`Request::body`], and decode it by [`offload()`](crate::offload()). Arrays
    /// and objects may be nested to a depth of 127.
    ///
    /// # Errors
    /// [`ContentError`], which is a response: 415 if the content is of another type, 413 if it is
    /// longer, 400 with line and column if it is not JSON or does not fit `T`, and as
    /// [`RequestBody`](crate::RequestBody). [`Json`] has an example.
    pub async fn json<T: DeserializeOwned>(&mut self, bytes_max: usize) -> Result<T, ContentError> {
        let content = self.content_of_type(bytes_max, JSON, is_json).await?;
        serde_json::from_slice(&content).map_err(malformed)
    }
}

/// What is wrong and where. Only the source quotes the content.
fn malformed(error: serde_json::Error) -> ContentError {
    ContentError::Malformed {
        what: match error.classify() {
            Category::Eof => "the JSON ends early",
            Category::Syntax => "the content is not JSON",
            Category::Data | Category::Io => "the JSON has another form than expected",
        },
        line: error.line(),
        column: error.column(),
        source: error.into(),
    }
}

fn is_json(media_type: &str) -> bool {
    let (_, suffix) = media_type.rsplit_once('+').unwrap_or_default();
    media_type.eq_ignore_ascii_case(JSON) || suffix.eq_ignore_ascii_case("json")
}
