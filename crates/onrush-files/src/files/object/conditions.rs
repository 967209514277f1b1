//! The preconditions of a change (RFC 9110 §13), as conditions of the store.
//!
//! A store evaluates only conditions that can be sent to another machine. `If-Match` with strong
//! tags, `If-Match: *` and `If-None-Match: *` are such conditions. For every other combination
//! (dates, `If-None-Match` with tags), this server compares the fields with the current object and
//! asks the store to make the change only if the object is still the same. If it changes at that
//! moment, the response is 412, even if the new object would meet the precondition as well.

use crate::files::http::http_error::HttpError;
use crate::files::http::http_error::Operation;
use crate::files::object::current_of;
use crate::files::shared::objects::Objects;
use onrush::Request;
use onrush_proto::date;
use onrush_proto::etag::{Tags, tags};
use onrush_proto::precondition::{Current, Outcome, evaluate};
use onrush_store::Key;
use onrush_store::{Condition, Meta, Result, StoreError, Version};

const IF_MATCH: &str = "if-match";
const IF_NONE_MATCH: &str = "if-none-match";
const IF_UNMODIFIED_SINCE: &str = "if-unmodified-since";

/// The preconditions of a request that changes an object, kept after its head is dropped.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::files) enum Conditions {
    /// The store evaluates this condition.
    Store(Condition),
    /// This server evaluates the fields (names in lower case, values).
    Fields(Vec<(&'static str, Vec<u8>)>),
}

impl Conditions {
    pub(in crate::files) fn from_request(request: &Request) -> Conditions {
        Conditions::from_fields(request.headers())
    }

    fn from_fields<'r>(headers: impl Iterator<Item = (&'r str, &'r [u8])>) -> Conditions {
        let mut fields: Vec<(&'static str, Vec<u8>)> = Vec::new();
        for (name, value) in headers {
            let may_be_known = matches!(name.as_bytes(), [b'i' | b'I', b'f' | b'F', b'-', ..]);
            let known = [IF_MATCH, IF_NONE_MATCH, IF_UNMODIFIED_SINCE];
            if may_be_known
                && let Some(known) = known.iter().find(|known| known.eq_ignore_ascii_case(name))
            {
                fields.push((known, value.to_owned()));
            }
        }
        let has_if_match = fields.iter().any(|(name, _)| *name == IF_MATCH);
        let mut dates = fields
            .iter()
            .filter(|(name, _)| *name == IF_UNMODIFIED_SINCE);
        let has_date = match (dates.next(), dates.next()) {
            (Some((_, value)), None) => date::parse(value).is_some(),
            _ => false,
        };
        // The date is ignored beside If-Match, and if it is malformed or repeated.
        if has_if_match || !has_date {
            fields.retain(|(name, _)| *name != IF_UNMODIFIED_SINCE);
        }
        match condition(&fields) {
            Some(condition) => Conditions::Store(condition),
            None => Conditions::Fields(fields),
        }
    }

    /// Whether there is no precondition.
    pub(in crate::files) fn is_none(&self) -> bool {
        *self == Conditions::Store(Condition::None)
    }

    /// Checks the preconditions against `current`. Fails with [`StoreError::PreconditionFailed`].
    pub(in crate::files) fn check(&self, current: Option<&Meta>) -> Result<()> {
        let fields = match self {
            Conditions::Store(condition) => return condition.check(current),
            Conditions::Fields(fields) => fields,
        };
        let current = current.map_or(Current::default(), current_of);
        let fields = fields.iter().map(|(name, value)| (*name, &value[..]));
        match evaluate(false, &current, fields) {
            Outcome::Proceed => Ok(()),
            Outcome::NotModified | Outcome::Failed => Err(StoreError::PreconditionFailed),
        }
    }

    /// The condition of the change. `look_up` returns the current object; it is called only if the
    /// store cannot evaluate the preconditions.
    pub(in crate::files) async fn into_condition(
        self,
        look_up: impl AsyncFnOnce() -> Result<Option<Meta>>,
    ) -> Result<Condition> {
        if let Conditions::Store(condition) = self {
            return Ok(condition);
        }
        let current = look_up().await?;
        self.check(current.as_ref())?;
        Ok(Condition::unchanged(current.as_ref()))
    }
}

/// The condition of the store with the meaning of `fields`, if there is one.
fn condition(fields: &[(&str, Vec<u8>)]) -> Option<Condition> {
    let (name, value) = match fields {
        [] => return Some(Condition::None),
        [(name, value)] => (*name, value),
        _ => return None,
    };
    match (name, tags(value)) {
        (IF_MATCH, Tags::Any) => Some(Condition::Present),
        (IF_NONE_MATCH, Tags::Any) => Some(Condition::Absent),
        (IF_MATCH, Tags::List(list)) => {
            let mut versions = Vec::new();
            for tag in list {
                // A weak tag, or one that no version can have, matches no object.
                let tag = tag.ok()?;
                let strong = (!tag.weak).then_some(tag.opaque);
                versions.extend(strong.and_then(Version::parse));
            }
            Some(Condition::Versions(versions))
        }
        _ => None,
    }
}

impl Objects {
    /// Refuses a request whose preconditions fail, or whose key is a folder or a symbolic link.
    /// Returns the current object.
    pub(in crate::files) async fn check_conditions(
        &self,
        key: &Key,
        conditions: &Conditions,
    ) -> Result<Option<Meta>, HttpError> {
        let current = self.store.existing_object(key).await.and_then(|current| {
            conditions.check(current.as_ref())?;
            Ok(current)
        });
        current.map_err(|error| self.store_failure(error, Operation::Write, Some(key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fields: &[(&str, &str)]) -> Conditions {
        let fields = fields.iter().map(|(name, value)| (*name, value.as_bytes()));
        Conditions::from_fields(fields)
    }

    #[test]
    fn preconditions_become_conditions_of_the_store() {
        let version = |text: &str| Version::parse(text.as_bytes()).expect("a version");
        let date = "Sun, 06 Nov 1994 08:49:37 GMT";
        for (fields, condition) in [
            (&[][..], Condition::None),
            (
                &[("If-Modified-Since", date), ("If-Range", "x")],
                Condition::None,
            ),
            (&[("If-Unmodified-Since", "yesterday")], Condition::None),
            (&[("IF-MATCH", "*")], Condition::Present),
            (
                &[("If-Match", "*"), ("If-Unmodified-Since", date)],
                Condition::Present,
            ),
            (&[("If-None-Match", " * ")], Condition::Absent),
            (
                &[("If-Match", r#""a", W/"b", "c""#)],
                Condition::Versions(vec![version("a"), version("c")]),
            ),
            (&[("If-Match", r#"W/"b""#)], Condition::Versions(Vec::new())),
        ] {
            assert_eq!(of(fields), Conditions::Store(condition), "{fields:?}");
        }
        for fields in [
            &[("If-None-Match", r#""a""#)][..],
            &[("If-Unmodified-Since", date)],
            &[("If-Match", "\"a\", b")],
            &[("If-Match", "*"), ("If-None-Match", r#""a""#)],
            &[("If-Match", r#""a""#), ("If-Match", r#""b""#)],
        ] {
            assert!(matches!(of(fields), Conditions::Fields(_)), "{fields:?}");
        }
    }
}
