//! Which field of a value does not fit, of what serde and its decoders say.

use crate::content::Misfit;
use serde::de::value::Error;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::forward_to_deserialize_any;
use serde_path_to_error::Segment;

/// Why there is no `T`. A misfit further inside is one of the field of `T` that it is in.
pub(crate) fn of<T, E>(error: serde_path_to_error::Error<E>) -> Misfit
where
    T: DeserializeOwned,
    E: std::error::Error + Send + Sync + 'static,
{
    let names = names_of::<T>();
    let known = |name: &str| names.iter().copied().find(|known| *known == name);
    let first = error.path().iter().next();
    let is_outside = first.is_none();
    let place = match first {
        Some(Segment::Map { key }) => known(key),
        _ => None,
    };
    let error = error.into_inner();
    let text = error.to_string();
    // serde has no other access to what a derived `Deserialize` has found.
    let missing = text.strip_prefix("missing field `");
    let missing = missing.and_then(|rest| known(rest.split_once('`')?.0));
    let source = Box::new(error);
    match (missing.filter(|_| is_outside), place) {
        (Some(field), _) => Misfit::Missing { field, source },
        (None, Some(field)) => Misfit::Value { field, source },
        (None, None) if text.starts_with("unknown field ") => Misfit::Unknown { source },
        (None, None) => Misfit::Other { source },
    }
}

/// The names of the members of a struct, which the program has chosen, so an error may show them.
/// None if `T` is no struct, or has flattened members.
fn names_of<T: DeserializeOwned>() -> &'static [&'static str] {
    let mut names: &'static [&'static str] = &[];
    let read = T::deserialize(Names(&mut names));
    drop(read);
    names
}

/// Has no values, and takes down the names that it is asked for.
struct Names<'n>(&'n mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Names<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Error> {
        Err(Error::custom("there are no values"))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        *self.0 = fields;
        self.deserialize_any(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option
        unit unit_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}
