//! What functions of this crate accept as a status or a method: this crate's own form, and with the
//! feature `http` the type of the crate `http`. The names and values of fields need no trait of
//! their own: `AsRef<str>` and `AsRef<[u8]>` cover both.

use std::borrow::Cow;

mod sealed {
    pub trait Sealed {}
}
use sealed::Sealed;

/// A status code: `u16`, and with the feature `http` also `http::StatusCode`.
///
/// Only this crate implements the trait, so more types can follow.
///
/// # Examples
/// ```
/// let response = onrush::Response::text("made").with_status(201);
/// assert_eq!(response.status(), 201);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a status code",
    label = "a status code is a `u16`, or an `http::StatusCode` with the feature `http`"
)]
pub trait IntoStatus: Sealed {
    /// The number.
    fn into_status(self) -> u16;
}

impl Sealed for u16 {}
impl IntoStatus for u16 {
    #[inline]
    fn into_status(self) -> u16 {
        self
    }
}

/// A method, which is case-sensitive (RFC 9110 §9.1): `&'static str`, and with the feature `http`
/// also `http::Method`.
///
/// Only this crate implements the trait, so more types can follow.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a method",
    label = "a method is a `&'static str`, or an `http::Method` with the feature `http`"
)]
pub trait IntoMethod: Sealed {
    /// The name of the method.
    fn into_method(self) -> Cow<'static, str>;
}

impl Sealed for &'static str {}
impl IntoMethod for &'static str {
    fn into_method(self) -> Cow<'static, str> {
        Cow::Borrowed(self)
    }
}

#[cfg(feature = "http")]
mod http_types {
    use super::{IntoMethod, IntoStatus, Sealed};
    use std::borrow::Cow;

    impl Sealed for http::StatusCode {}
    impl IntoStatus for http::StatusCode {
        #[inline]
        fn into_status(self) -> u16 {
            self.as_u16()
        }
    }

    impl Sealed for http::Method {}
    impl IntoMethod for http::Method {
        fn into_method(self) -> Cow<'static, str> {
            Cow::Owned(self.as_str().to_owned())
        }
    }
}
