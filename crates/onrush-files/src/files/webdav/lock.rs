//! LOCK and UNLOCK (RFC 4918 §9.10, §9.11).
//!
//! A lock lasts for at most [`TIMEOUT_MAX_S`], and the client refreshes it. A lock of a path
//! without a resource creates an empty object (§7.3).

use super::xml::{self, Element};
use super::{NO_PARENT, WebDav, read_body};
use crate::files::http::http_error::{HttpError, Operation};
use crate::files::locks::Refusal;
use crate::files::locks::table::{self, Holder, Lock, Refused, Scope, Token, Touched};
use crate::files::path;
use crate::files::shared::client_rights::owner;
use crate::files::shared::client_rights::{Permission, client};
use crate::files::shared::client_rights::{check_right, check_right_beneath};
use crate::files::shared::destination::Destination;
use crate::files::shared::multistatus;
use crate::rights::Rights;
use crate::shares;
use onrush::{Request, Response};
use onrush_store::{Condition, Key, Kind, StoreError};
use std::fmt::Write;
use std::sync::Arc;

const TIMEOUT_MAX_S: u64 = 3600;
const TIMEOUT_DEFAULT_S: u64 = 600;
/// The maximum size of what a client says about the owner of a lock.
const OWNER_BYTES_MAX: usize = 1024;

const BAD_LOCKINFO: HttpError = HttpError::new(
    400,
    "the body is no lockinfo with a scope and the type write",
);
const BAD_DEPTH: HttpError = HttpError::new(400, "Depth of a LOCK is 0 or infinity");
const NO_TOKEN: HttpError = HttpError::new(400, "Lock-Token is missing or malformed");
const NOTHING_TO_REFRESH: HttpError = HttpError::new(
    400,
    "a LOCK without content refreshes the lock that the field If names",
);
const TOO_MANY_AT_KEY: HttpError =
    HttpError::new(503, "too many locks cover this path; try again later");

impl WebDav {
    pub(in crate::files) async fn lock(
        self: Arc<WebDav>,
        mut request: Request,
    ) -> Result<Response, Refusal> {
        let tokens = self.check_if(&request).await?;
        let body = read_body(&mut request).await?;
        let timeout_s = timeout_s(request.header_str("timeout"));
        let resource = self.resource(&request, Operation::Write)?;
        let user = owner(&request);
        let holder = Holder {
            user: user.as_deref(),
            tokens: &tokens,
        };
        let now_ms = request.worker().now_ms();
        if body.is_empty() {
            if tokens.is_empty() {
                return Err(NOTHING_TO_REFRESH.into());
            }
            let refreshed = self
                .locking
                .locks
                .refresh(resource.bytes(), holder, timeout_s, now_ms);
            let (at, lock) = refreshed.ok_or(Refusal::Condition {
                status: 412,
                name: "lock-token-matches-request-uri",
                href: None,
            })?;
            return Ok(granted(200, &self.locking.lock_root(&request, &at)?, &lock));
        }
        let info = LockInfo::parse(&body)?;
        if let Some(key) = &resource.key {
            self.objects.check_distinct_names(key).await?;
        }
        let is_deep = match request.header("depth") {
            None => true,
            Some(b"0") => false,
            Some(depth) if depth.eq_ignore_ascii_case(b"infinity") => true,
            Some(_) => return Err(BAD_DEPTH.into()),
        };
        let found = self.find(&resource).await?;
        let is_new = found.is_none() && resource.key.is_some();
        let created = match is_new {
            true => self.objects.own_destination(&request, Some(Kind::File))?,
            false => {
                check_right(&request, Rights::WRITE)?;
                None
            }
        };
        let permission = match &created {
            Some(to) => to.permission.clone(),
            None => Permission::new(&request),
        };
        let is_folder = found.is_none_or(|found| found.kind == Kind::Directory) && !is_new;
        if is_deep && is_folder {
            // It prevents changes of everything beneath.
            check_right_beneath(&request, Rights::WRITE)?;
        }
        if is_new && resource.has_slash {
            return Err(NO_PARENT.into());
        }
        let change = match &created {
            Some(Destination { key, .. }) => {
                self.check_parent(key).await?;
                let parent = table::parent(key.as_bytes()).unwrap_or_default();
                let original = self.locking.locks.original(key.as_bytes());
                let touched = [parent].into_iter().chain(original).map(Touched::alone);
                Some(self.locking.begin(&request, touched.collect(), &tokens)?)
            }
            None => None,
        };
        let token = Token::random();
        let token = token.ok_or(HttpError::new(500, "the system has no random numbers"))?;
        let lock = Lock {
            token,
            scope: info.scope,
            is_deep,
            owner: info.owner.into(),
            user: user.clone(),
            timeout_s,
            expires_ms: now_ms + timeout_s * 1000,
        };
        let key = resource.bytes();
        let client = shares::Holder::of(&request);
        match self.locking.locks.grant(key, lock.clone(), client, now_ms) {
            Ok(()) => {}
            Err(Refused::Full(full)) => {
                let own = "this client has too many locks";
                return Err(HttpError::full(full, own, "there are too many locks").into());
            }
            Err(Refused::FullAtKey) => return Err(TOO_MANY_AT_KEY.into()),
            Err(Refused::Conflict(at)) => {
                return Err(Refusal::Condition {
                    status: 423,
                    name: "no-conflicting-lock",
                    href: self.locking.shown_lock_root(&request, &at),
                });
            }
        }
        // After the lock is in the table, where those of removed users are looked for.
        if let Err(failure) = permission.check() {
            let holder = Holder {
                tokens: &[token],
                ..holder
            };
            self.locking
                .locks
                .release(key, holder, |_, _| false, now_ms);
            return Err(failure.into());
        }
        let mut status = 200;
        if let Some(Destination { key, .. }) = &created {
            match self.create_empty(key).await {
                Ok(()) => status = 201,
                Err(StoreError::PreconditionFailed) => {} // Another program has created it.
                Err(error) => {
                    let holder = Holder {
                        tokens: &[token],
                        ..holder
                    };
                    (self.locking.locks).release(key.as_bytes(), holder, |_, _| false, now_ms);
                    let failure = self
                        .objects
                        .store_failure(error, Operation::Write, Some(key));
                    return Err(failure.into());
                }
            }
        }
        drop(change);
        let response = granted(status, &self.locking.lock_root(&request, key)?, &lock);
        Ok(response.with_header("Lock-Token", format!("<{token}>")))
    }

    async fn create_empty(&self, key: &Key) -> Result<(), StoreError> {
        let upload = self
            .objects
            .store
            .stage(key, Condition::Absent, Some(0))
            .await?;
        upload.commit().await.map(drop)
    }

    /// `UNLOCK`. A user with all rights where a lock is may end it without having it: its user may
    /// have gone.
    pub(in crate::files) fn unlock(&self, request: &Request) -> Result<Response, Refusal> {
        let resource = self.resource(request, Operation::Write)?;
        let token = request.header_str("lock-token");
        // Some clients omit the brackets (webdav of npm).
        let token = token
            .map(str::trim)
            .and_then(|token| match token.strip_prefix('<') {
                Some(token) => token.strip_suffix('>'),
                None => Some(token),
            });
        let tokens: Vec<Token> = Token::parse(token.ok_or(NO_TOKEN)?).into_iter().collect();
        let user = owner(request);
        let holder = Holder {
            user: user.as_deref(),
            tokens: &tokens,
        };
        let now_ms = request.worker().now_ms();
        let may_break = |at: &[u8], lock: &Lock| self.may_break(request, at, lock.is_deep);
        match (self.locking.locks).release(resource.bytes(), holder, may_break, now_ms) {
            true => Ok(Response::new(204)),
            false => Err(Refusal::Condition {
                status: 409,
                name: "lock-token-matches-request-uri",
                href: None,
            }),
        }
    }
}

impl WebDav {
    /// Whether the client is a user with all rights that a lock of `key` concerns.
    fn may_break(&self, request: &Request, key: &[u8], is_deep: bool) -> bool {
        let identity = client(request).ok().flatten();
        let Some(identity) = identity.filter(|identity| identity.name().is_some()) else {
            return false;
        };
        path::whole(request, key).is_ok_and(|whole| {
            let rights = match is_deep {
                true => identity.rights_everywhere_beneath(&whole),
                false => identity.rights_at(&whole),
            };
            rights.contains(Rights::ALL)
        })
    }
}

/// The time of the field `Timeout` (§10.7) in seconds. The first type that is known counts.
fn timeout_s(value: Option<&str>) -> u64 {
    let types = value.unwrap_or_default().split(',');
    let mut seconds = types.filter_map(|one| match one.trim() {
        "Infinite" => Some(TIMEOUT_MAX_S),
        one => {
            let digits = one.strip_prefix("Second-")?;
            let is_number = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
            is_number.then(|| digits.parse().unwrap_or(TIMEOUT_MAX_S))
        }
    });
    seconds
        .next()
        .unwrap_or(TIMEOUT_DEFAULT_S)
        .clamp(1, TIMEOUT_MAX_S)
}

/// The body of a LOCK (§14.11).
pub(super) struct LockInfo {
    pub(super) scope: Scope,
    /// The element `owner`; empty if there is none.
    pub(super) owner: String,
}

impl LockInfo {
    pub(super) fn parse(body: &[u8]) -> Result<LockInfo, HttpError> {
        let root = xml::parse(body)?;
        let scope = root.dav("lockscope").ok_or(BAD_LOCKINFO)?;
        let scope = match (scope.dav("exclusive"), scope.dav("shared")) {
            (Some(_), None) => Scope::Exclusive,
            (None, Some(_)) => Scope::Shared,
            _ => return Err(BAD_LOCKINFO),
        };
        let is_write = root
            .dav("locktype")
            .is_some_and(|kind| kind.dav("write").is_some());
        if !is_write || !root.name.is_dav("lockinfo") {
            return Err(BAD_LOCKINFO);
        }
        let owner = root.dav("owner").map(rendered).unwrap_or_default();
        match owner.len() <= OWNER_BYTES_MAX {
            true => Ok(LockInfo { scope, owner }),
            false => Err(HttpError::new(
                400,
                "the owner of the lock is longer than 1024 bytes",
            )),
        }
    }
}

fn rendered(element: &Element) -> String {
    let mut text = String::new();
    xml::begin(&mut text, &element.name, None);
    element.render_inner(&mut text);
    xml::end(&mut text, &element.name);
    text
}

fn granted(status: u16, root: &str, lock: &Lock) -> Response {
    let mut text = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:prop xmlns:D=\"DAV:\">\
        <D:lockdiscovery>"
        .to_owned();
    active_lock(&mut text, root, lock, true);
    text.push_str("</D:lockdiscovery></D:prop>\n");
    multistatus::xml_response(status, text)
}

/// Appends the element `activelock` (§14.1). `root`: the encoded path of the lock. `is_whole`: with
/// the owner and the token, which are not for clients that may only list the resource.
pub(super) fn active_lock(out: &mut String, root: &str, lock: &Lock, is_whole: bool) {
    let scope = match lock.scope {
        Scope::Exclusive => "exclusive",
        Scope::Shared => "shared",
    };
    let depth = match lock.is_deep {
        true => "infinity",
        false => "0",
    };
    let timeout_s = lock.timeout_s;
    let (owner, token) = match is_whole {
        true => (
            &lock.owner[..],
            format!("<D:locktoken><D:href>{}</D:href></D:locktoken>", lock.token),
        ),
        false => ("", String::new()),
    };
    // Writing to a String does not fail.
    let _ = write!(
        out,
        "<D:activelock><D:locktype><D:write/></D:locktype><D:lockscope><D:{scope}/>\
         </D:lockscope><D:depth>{depth}</D:depth>{owner}<D:timeout>Second-{timeout_s}\
         </D:timeout>{token}<D:lockroot><D:href>{root}</D:href></D:lockroot></D:activelock>"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_bounded() {
        for (value, seconds) in [
            (None, TIMEOUT_DEFAULT_S),
            (Some("Infinite, Second-4100000000"), TIMEOUT_MAX_S),
            (Some("Second-60"), 60),
            (Some("Extend, Second-0"), 1),
            (Some("Second-99999999999999999999"), TIMEOUT_MAX_S),
            (Some("Second--1"), TIMEOUT_DEFAULT_S),
        ] {
            assert_eq!(timeout_s(value), seconds, "{value:?}");
        }
    }

    #[test]
    fn lockinfo_is_parsed_or_refused() {
        let of = |inner: &str| {
            let text = format!("<D:lockinfo xmlns:D='DAV:'>{inner}</D:lockinfo>");
            LockInfo::parse(text.as_bytes())
        };
        let write = "<D:locktype><D:write/></D:locktype>";
        let shared = "<D:lockscope><D:shared/></D:lockscope>";
        let info = of(&format!("{write}{shared}<D:owner>A&amp;B</D:owner>")).ok();
        let info = info.expect("valid");
        assert_eq!(info.scope, Scope::Shared);
        assert_eq!(info.owner, "<owner xmlns=\"DAV:\">A&amp;B</owner>");
        let long = format!("{write}{shared}<D:owner>{}</D:owner>", "x".repeat(1024));
        for wrong in [write, shared, "", &long] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
