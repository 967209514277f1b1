//! JSON as content of requests and responses, by serde. With the feature `json`.

use crate::content::{ContentError, Misfit};
use crate::misfit;
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
    /// longer, 400 with line and column if it is not JSON or does not fit `T`, in that case with
    /// the name of the field if it is one of the members of the struct `T`, and as
    /// [`RequestBody`](crate::RequestBody). [`Json`] has an example.
    pub async fn json<T: DeserializeOwned>(&mut self, bytes_max: usize) -> Result<T, ContentError> {
        let content = self.content_of_type(bytes_max, JSON, is_json).await?;
        serde_json::from_slice(&content).map_err(|error| refused::<T>(&content, error))
    }
}

/// What is wrong and where. Only the source quotes the content.
#[cold]
fn refused<T: DeserializeOwned>(content: &[u8], error: serde_json::Error) -> ContentError {
    let what = match error.classify() {
        Category::Eof => "the JSON ends early",
        Category::Syntax | Category::Io => "the content is not JSON",
        Category::Data => return unfit::<T>(content, error),
    };
    ContentError::Malformed {
        what,
        line: error.line(),
        column: error.column(),
        source: error.into(),
    }
}

/// Decodes again, to find the field: what is received well does not pay for that.
fn unfit<T: DeserializeOwned>(content: &[u8], error: serde_json::Error) -> ContentError {
    let (line, column) = (error.line(), error.column());
    let mut decoder = serde_json::Deserializer::from_slice(content);
    let misfit = match serde_path_to_error::deserialize::<_, T>(&mut decoder) {
        Err(error) => misfit::of::<T, _>(error),
        Ok(_) => Misfit::Other {
            source: error.into(),
        },
    };
    ContentError::Json {
        misfit,
        line,
        column,
    }
}

fn is_json(media_type: &str) -> bool {
    let (_, suffix) = media_type.rsplit_once('+').unwrap_or_default();
    media_type.eq_ignore_ascii_case(JSON) || suffix.eq_ignore_ascii_case("json")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only errors are tested")]
    struct Shape {
        name: String,
        #[serde(default)]
        points: Vec<Point>,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only errors are tested")]
    struct Point {
        name: u8,
    }

    #[test]
    fn errors_name_a_member_of_the_expected_struct_and_nothing_from_the_client() {
        let has_other = "the field `points` of the JSON has another form than expected";
        for (content, says, column) in [
            ("{}", "the JSON has no field `name`", 2),
            (r#"{"points": 1}"#, has_other, 12),
            // The field that is missing is one of the inner struct.
            (r#"{"name": "a", "points": [{}]}"#, has_other, 27),
            (r#"{"name": "a", "points": [{"name": -1}]}"#, has_other, 36),
            (r#"{"secret": 1}"#, "the JSON has an unknown field", 9),
            (r#"["a", 1]"#, "the JSON has another form than expected", 7),
            ("7", "the JSON has another form than expected", 1),
        ] {
            let error = serde_json::from_str::<Shape>(content).expect_err(content);
            let error = refused::<Shape>(content.as_bytes(), error);
            let expected = format!("{says}, line 1, column {column}");
            assert_eq!(error.to_string(), expected, "{content}");
        }
    }
}
