//! The locks of WebDAV, and what they forbid.
//!
//! Submodules, lowest first: `table` (the locks) · `if_header` (the field `If`).

pub(in crate::files) mod if_header;
pub(in crate::files) mod table;

use crate::files::http::http_error::HttpError;
use crate::files::path;
use crate::files::shared::client_rights::{check_right_at, owner};
use crate::files::shared::multistatus;
use crate::files::shared::objects::Objects;
use crate::rights::Rights;
use onrush::{Request, Response};
use onrush_store::Key;
use std::fmt::Write;
use std::sync::Arc;
use table::{Change, Holder, Locks, Token, Touched};

const IS_LOCKED: HttpError = HttpError::new(423, "this is locked, and If has no token of the lock");

/// A response that is an error.
pub(in crate::files) enum Refusal {
    Http(HttpError),
    /// A precondition or postcondition (§16) that does not hold, and the path that it concerns.
    Condition {
        status: u16,
        name: &'static str,
        href: Option<String>,
    },
}

impl From<HttpError> for Refusal {
    fn from(failure: HttpError) -> Refusal {
        Refusal::Http(failure)
    }
}

impl Refusal {
    pub(in crate::files) fn into_response(self, json: bool) -> Response {
        let (status, name, href) = match self {
            Refusal::Http(failure) => return failure.render(json),
            Refusal::Condition { status, name, href } => (status, name, href),
        };
        let mut text =
            "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:error xmlns:D=\"DAV:\">".to_owned();
        // Writing to a String does not fail.
        let _ = match href {
            Some(href) => write!(text, "<D:{name}><D:href>{href}</D:href></D:{name}>"),
            None => write!(text, "<D:{name}/>"),
        };
        text.push_str("</D:error>\n");
        multistatus::xml_response(status, text)
    }
}

/// The locks of the objects that are served.
pub(in crate::files) struct Locking {
    pub(in crate::files) objects: Arc<Objects>,
    pub(in crate::files) locks: Arc<Locks>,
}

impl Locking {
    pub(in crate::files) fn begin(
        &self,
        request: &Request,
        touched: Vec<Touched>,
        tokens: &[Token],
    ) -> Result<Change, Refusal> {
        let user = owner(request);
        let holder = Holder {
            user: user.as_deref(),
            tokens,
        };
        let begun = self
            .locks
            .begin_change(touched, holder, request.worker().now_ms());
        begun.map_err(|key| Refusal::Condition {
            status: 423,
            name: "lock-token-submitted",
            href: self.shown_lock_root(request, &key),
        })
    }

    /// Begins the change of an object that a request creates beneath its path, which it has begun
    /// to change. `None`: there are no locks.
    pub(in crate::files) fn begin_member(
        &self,
        request: &Request,
        key: &Key,
    ) -> Result<Option<Change>, HttpError> {
        if !self.objects.options.webdav {
            return Ok(None);
        }
        let field = request.header_str("if").and_then(if_header::parse);
        let tokens = field.map_or(Vec::new(), |lists| if_header::tokens(&lists));
        let touched = vec![Touched::alone(key.as_bytes())];
        let begun = self.begin(request, touched, &tokens);
        begun.map(Some).map_err(|_| IS_LOCKED)
    }

    /// The encoded path of a key that has a lock of anyone. `None`: the client may neither read nor
    /// list it.
    pub(in crate::files) fn shown_lock_root(
        &self,
        request: &Request,
        key: &[u8],
    ) -> Option<String> {
        let whole = path::whole(request, key).ok()?;
        let has = |right| check_right_at(request, &whole, right).is_ok();
        let is_known = has(Rights::READ) || has(Rights::LIST);
        is_known.then(|| self.lock_root(request, key).ok())?
    }

    /// The encoded path of a key that has a lock.
    pub(in crate::files) fn lock_root(
        &self,
        request: &Request,
        key: &[u8],
    ) -> Result<String, HttpError> {
        Ok(path::href(path::split(request)?.mount, key))
    }
}
