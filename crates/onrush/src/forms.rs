//! Queries and forms as values, by serde. With the feature `forms`.

use crate::content::{ContentError, Misfit};
use crate::misfit;
use crate::request::Request;
use serde::de::DeserializeOwned;

impl Request {
    /// The query as a value, decoded as by [`Request::query_pairs`]; without a query, that of no
    /// fields. `Limits::target_bytes_max` limits the cost.
    ///
    /// `T` is most often a struct with a member for each field. A member may be text, a number, a
    /// `bool` (`true`, `false`, or `on`, as checkboxes have it), or an enum of names. What is
    /// optional is an `Option` or has `#[serde(default)]`. `a=`, and `a` without `=`, are empty
    /// text, and `None` for optional numbers and `bool`. A field that may be there several times
    /// is a `Vec` with `#[serde(default)]`; others must not be there twice. Unknown fields are
    /// ignored unless `T` has `#[serde(deny_unknown_fields)]`.
    ///
    /// # Errors
    /// [`ContentError::Query`], which is 400 as a response. Its text names the field that is
    /// missing or does not fit.
    ///
    /// # Examples
    /// ```
    /// use onrush::content::ContentError;
    /// use onrush::{Limits, Request, sim::Simulation};
    /// use serde::Deserialize;
    ///
    /// #[derive(Deserialize)]
    /// struct Search {
    ///     author: String,
    ///     page: Option<u32>,
    ///     #[serde(default)]
    ///     tag: Vec<String>,
    /// }
    ///
    /// async fn search(request: Request) -> Result<String, ContentError> {
    ///     let Search { author, page, tag } = request.query_as()?;
    ///     Ok(format!("{author}, page {}, {}", page.unwrap_or(1), tag.join("+")))
    /// }
    /// # let mut sim = Simulation::new(1, &search, Limits::default());
    /// # let client = sim.connect();
    /// # let mut get = |target| {
    /// #     let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
    /// #     sim.send(&client, head.as_bytes());
    /// #     String::from_utf8(client.receive().unwrap()).unwrap()
    /// # };
    /// # assert!(get("/?author=Ada+L.&page=&tag=a&tag=b").ends_with("Ada L., page 1, a+b"));
    /// # let refused = get("/?author=Ada&page=last");
    /// # assert!(refused.starts_with("HTTP/1.1 400 "), "{refused}");
    /// # let says = "\r\n\r\nthe field `page` of the query has another form than expected\n";
    /// # assert!(refused.ends_with(says), "{refused}");
    /// ```
    pub fn query_as<T: DeserializeOwned>(&self) -> Result<T, ContentError> {
        read(self.query().unwrap_or_default().as_bytes()).map_err(ContentError::Query)
    }

    /// Reads a form of at most `bytes_max` bytes as [`Request::form`] does, as a value, of which
    /// [`Request::query_as`] tells more.
    ///
    /// # Errors
    /// As [`Request::form`]: 415, 413, and what reading may fail with. [`ContentError::Form`],
    /// which is 422 as a response (RFC 9110 §15.5.21): the content is a form, but its fields are
    /// not those that the handler expects. Its text names the field that is missing or does not
    /// fit.
    ///
    /// # Examples
    /// ```
    /// use onrush::content::ContentError;
    /// use onrush::{Limits, Request, sim::Simulation};
    /// use serde::Deserialize;
    ///
    /// #[derive(Deserialize)]
    /// struct SignUp {
    ///     name: String,
    ///     #[serde(default)]
    ///     newsletter: bool,
    /// }
    ///
    /// async fn sign_up(mut request: Request) -> Result<(u16, String), ContentError> {
    ///     let SignUp { name, newsletter } = request.form_as(10_000).await?;
    ///     Ok((201, format!("{name}, newsletter: {newsletter}")))
    /// }
    /// # let mut sim = Simulation::new(1, &sign_up, Limits::default());
    /// # let client = sim.connect();
    /// # let head = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 24\r\n";
    /// # let media_type = "Content-Type: application/x-www-form-urlencoded";
    /// # let form = "name=Ada+L&newsletter=on";
    /// # sim.send(&client, format!("{head}{media_type}\r\n\r\n{form}").as_bytes());
    /// # assert!(client.receive()?.ends_with(b"Ada L, newsletter: true"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub async fn form_as<T: DeserializeOwned>(
        &mut self,
        bytes_max: usize,
    ) -> Result<T, ContentError> {
        let form = self.form(bytes_max).await?;
        read(form.encoded()).map_err(ContentError::Form)
    }
}

fn read<T: DeserializeOwned>(encoded: &[u8]) -> Result<T, Misfit> {
    let fields = serde_html_form::Deserializer::from_bytes(encoded);
    serde_path_to_error::deserialize(fields).map_err(misfit::of::<T, _>)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(default)]
    struct All {
        text: String,
        number: Option<u8>,
        optional: Option<String>,
        on: Option<bool>,
        many: Vec<u8>,
    }

    #[track_caller]
    fn all(encoded: &str) -> All {
        read(encoded.as_bytes()).expect("it fits")
    }

    #[test]
    fn values_are_decoded_and_repeated_fields_are_lists() {
        assert_eq!(all(""), All::default());
        assert_eq!(all("other=1&&=2"), All::default());
        let text = |text: &str| All {
            text: text.to_owned(),
            ..All::default()
        };
        assert_eq!(all("text=%C3%BC+%2B"), text("ü +"));
        assert_eq!(all("text=%FF"), text("\u{fffd}"));
        assert_eq!(all("text=a=b"), text("a=b"));
        let many = |many: &[u8]| All {
            many: many.to_vec(),
            ..All::default()
        };
        assert_eq!(all("many=1&text=&many=2&many=1"), many(&[1, 2, 1]));
        assert_eq!(all("many=7"), many(&[7]));
    }

    #[test]
    fn empty_numbers_are_none_and_empty_texts_are_texts() {
        let empty = All {
            optional: Some(String::new()),
            ..All::default()
        };
        assert_eq!(all("text=&number=&optional=&on="), empty);
        assert_eq!(all("text&number&optional&on"), empty);
        let full = All {
            number: Some(255),
            on: Some(true),
            ..All::default()
        };
        assert_eq!(all("number=255&on=on"), full);
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields, rename_all = "kebab-case")]
    #[expect(dead_code, reason = "only errors are tested")]
    struct Strict {
        first_page: u8,
        kind: Option<Kind>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        Large,
    }

    #[derive(Debug, Deserialize)]
    #[expect(dead_code, reason = "only errors are tested")]
    struct Wrapped(Strict);

    #[track_caller]
    fn error<T: DeserializeOwned>(encoded: &str) -> String {
        let error = read::<T>(encoded.as_bytes())
            .err()
            .expect("it does not fit");
        ContentError::Query(error).to_string()
    }

    #[test]
    fn errors_name_fields_of_the_program_only() {
        let is_unfit = "the field `first-page` of the query has another form than expected";
        for encoded in [
            "first-page=secret",
            "first-page=256",
            "first-page=",
            "first-page=1&first-page=2",
        ] {
            assert_eq!(error::<Strict>(encoded), is_unfit, "{encoded}");
            assert_eq!(error::<Wrapped>(encoded), is_unfit, "{encoded}");
        }
        let is_missing = "the query has no field `first-page`";
        assert_eq!(error::<Strict>(""), is_missing);
        assert_eq!(error::<Wrapped>("kind=large"), is_missing);
        let is_unfit = "the field `kind` of the query has another form than expected";
        assert_eq!(error::<Strict>("first-page=1&kind=secret"), is_unfit);
        let is_unknown = "the query has an unknown field";
        assert_eq!(error::<Strict>("first-page=1&secret=2"), is_unknown);
        let is_other = "the query has another form than expected";
        type Map = std::collections::BTreeMap<String, u8>;
        assert_eq!(error::<Map>("secret=x"), is_other);
    }
}
