//! Access control: [`Access`] finds out which user sent a request, and passes it on if that client
//! may do what it asks for.
//!
//! | a request has | it is from |
//! | --- | --- |
//! | `Authorization: Basic …` | the user with this password |
//! | `Authorization: Bearer …` | the user with this token |
//! | `?onrush-user=…&onrush-expires=…&onrush-signature=…` | the user, for this path and method |
//! | none of these, but a certificate of a user | that user |
//! | nothing | anonymous |
//!
//! A read that a page of another site causes is anonymous, whatever the browser adds (`Guard`).
//!
//! Credentials that are presented and wrong are refused, even if an anonymous client may do the
//! same: a client should notice its mistake. The decision is made before the object is looked up,
//! so a refusal does not tell whether it exists, and before a body is read.
//!
//! A password hash is CPU work and runs on the offload pool (`verify`). Verified credentials are
//! remembered for some minutes (`remembered`); such a request is passed on at once. Failed logins
//! are delayed by address (`throttle`).
//!
//! Submodules, lowest first: `password` · `signed_url` · `certificate_name` · `users` ·
//! `standing` · `credentials` · `remembered` · `throttle` · `report` · `verify`.

mod certificate_name;
mod credentials;
mod password;
mod remembered;
mod report;
mod signed_url;
mod standing;
mod throttle;
pub mod users;
mod verify;

use crate::client_address::client_address;
use crate::files::http::http_error::HttpError;
use crate::files::http::negotiate::names_html;
use crate::files::path::{self, ResolvedPath};
use crate::files::uploads::UploadId;
use crate::guard::{FOREIGN_READ, ForeignRead};
use crate::rights::{Identity, PathRights, Rights};
use credentials::{Credentials, Invalid};
use onrush::handler::{Pending, Service};
use onrush::metrics::Collector;
use onrush::{Application, Request, Response, WorkerHandle};
use remembered::{REMEMBERED_MS, Remembered, Tag};
use report::Method;
use signed_url::SignedQuery;
use standing::{Proof, Standing};
use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use users::UserId;
use verify::{Attempt, Shared};

pub use password::PasswordHash;
pub use signed_url::{SigningKey, missing_right, sign_query};
pub use users::Users;

const AMBIGUOUS: HttpError = HttpError::new(400, "the request has several Authorization fields");
const BOTH: HttpError = HttpError::new(400, "a signed URL needs no Authorization field");
const MALFORMED: HttpError = HttpError::new(400, "the Authorization field is malformed");
const WRONG_SCHEME: HttpError = HttpError::new(401, "log in with a password or a token");
const WRONG_LOGIN: HttpError = HttpError::new(401, "wrong user name, password or token");
const BAD_SIGNATURE: HttpError = HttpError::new(403, "the signed URL is not valid or has expired");

/// The users of running servers. Clones share them, so that they can be replaced.
#[derive(Clone)]
pub struct AccessControl(Arc<Shared>);

impl fmt::Debug for AccessControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AccessControl").finish_non_exhaustive()
    }
}

impl AccessControl {
    /// Access for these users.
    pub fn new(users: Users) -> AccessControl {
        AccessControl(Arc::new(Shared::new(users)))
    }

    /// Access for other users beside these, for an application that replaces the one with these.
    /// Delays after failed logins, and what is counted, are common.
    #[must_use]
    pub fn with_users(&self, users: Users) -> AccessControl {
        AccessControl(Arc::new(self.0.with_users(users)))
    }

    /// Replaces all users. Requests that begin later are decided by the new ones; nothing of the
    /// old ones is remembered. A change that is in progress is decided again before it is
    /// published.
    pub fn replace(&self, users: Users) {
        self.0.replace(users);
    }

    /// The names of users that `users` lack.
    pub fn names_without(&self, users: &Users) -> Vec<String> {
        let (_, present) = self.0.users();
        let names = present.all().map(|user| user.name().to_owned());
        names.filter(|name| !users.contains(name)).collect()
    }

    /// Counts an attempt to load the users again, for the metrics.
    pub fn count_reload(&self, succeeded: bool) {
        let reloads = &self.0.report.reloads[usize::from(succeeded)];
        reloads.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    /// The metrics `onrush_auth_*`, for [`Metrics::add_collector`](onrush::Metrics::add_collector).
    pub fn collector(&self) -> Arc<dyn Collector> {
        self.0.report.clone()
    }
}

/// An application behind access control. It gets only requests that their client may make, with the
/// [`Identity`] as [`Request::extension`].
///
/// Rights are for whole request paths. If [`Files`](crate::Files) is mounted at `/pictures/{*key}`,
/// the prefix of a rule begins with `/pictures`.
///
/// ```no_run
/// use onrush::Server;
/// use onrush_files::access::PasswordHash;
/// use onrush_files::{Access, AccessControl, Files, FilesOptions, PathRights, Rights, Users};
/// use std::path::Path;
///
/// let files = Files::open(Path::new("/srv/pictures"), FilesOptions::default())?;
/// let mut users = Users::default();
/// let hash = PasswordHash::of("correct horse").expect("random numbers");
/// users.add("ann".to_owned(), Some(hash), PathRights::everywhere(Rights::ALL)).expect("a name");
/// users.anonymous_rights().add_everywhere(Rights::READ);
/// let access = Access::new(&AccessControl::new(users), files);
/// Server::bind("127.0.0.1:8080").serve(access)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Access<A> {
    control: AccessControl,
    application: A,
    rules: Rules,
}

/// What is decided without regard to users.
#[derive(Clone, Copy, Debug, Default)]
struct Rules {
    /// A folder may be an object: with the right to read its index, it is passed on.
    site: bool,
    /// A browser may get a form: with the right to create objects in a folder, it is passed on.
    upload_forms: bool,
    /// Paths that need no right.
    open_paths: &'static [&'static str],
}

impl<A> Access<A> {
    /// Passes the permitted requests to `application`.
    pub fn new(control: &AccessControl, application: A) -> Access<A> {
        Access {
            control: control.clone(),
            application,
            rules: Rules::default(),
        }
    }

    /// For an application that may serve an object at the path of a folder
    /// ([`FilesOptions::site`](crate::FilesOptions::site)): the right to read its
    /// `index.html` is then sufficient.
    /// The application must check [`Rights::LIST`] before it lists the folder.
    #[must_use]
    pub fn site(mut self, site: bool) -> Access<A> {
        self.rules.site = site;
        self
    }

    /// For an application that shows browsers a form for uploads at the path of a folder, as
    /// [`Files`](crate::Files) does: `GET` and `HEAD` with `text/html` in `Accept` need the right
    /// to create objects in the folder, or to list it. The application must check [`Rights::LIST`]
    /// before it lists the folder.
    #[must_use]
    pub fn upload_forms(mut self, upload_forms: bool) -> Access<A> {
        self.rules.upload_forms = upload_forms;
        self
    }

    /// Passes `GET` and `HEAD` of exactly these paths on without a check.
    #[must_use]
    pub fn open_paths(mut self, paths: &'static [&'static str]) -> Access<A> {
        self.rules.open_paths = paths;
        self
    }
}

impl<A: Application> Application for Access<A> {
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
        let shared = self.control.0.clone();
        let local = RefCell::new(Local::new(&shared));
        Rc::new(AccessService(Rc::new(AccessInner {
            shared,
            local,
            rules: self.rules,
            service: self.application.instantiate(worker),
        })))
    }
}

/// One worker's instance.
struct AccessService(Rc<AccessInner>);

struct AccessInner {
    shared: Arc<Shared>,
    local: RefCell<Local>,
    rules: Rules,
    service: Rc<dyn Service>,
}

/// A worker's copy of what the workers share, so that a request takes no lock.
struct Local {
    generation: u64,
    users: Arc<Users>,
    anonymous: Rc<Identity>,
    remembered: Remembered<Rc<Identity>>,
}

/// The client of a request.
enum Client {
    Known(Rc<Identity>),
    /// The password has to be verified.
    Unverified(Attempt),
}

impl Local {
    fn new(shared: &Shared) -> Local {
        let (generation, users) = shared.users();
        Local {
            generation,
            anonymous: Rc::new(Standing::attach(
                users.anonymous(),
                &users,
                shared.latest(),
                Proof::None,
            )),
            users,
            remembered: Remembered::default(),
        }
    }
}

/// Whether the login of a browser must not count, because a page of another site sends it.
fn is_foreign_read(request: &Request) -> bool {
    request.extension::<ForeignRead>().is_some()
}

/// The identity of a user who has proved to be one.
fn identity_of(users: &Users, id: UserId, shared: &Shared, proof: Proof) -> Rc<Identity> {
    let identity = users.user(id).identity.clone();
    Rc::new(Standing::attach(identity, users, shared.latest(), proof))
}

/// That of a user who has proved it by the password.
fn identity_by_password(users: &Users, id: UserId, shared: &Shared) -> Rc<Identity> {
    let proof = Proof::Password(users.user(id).password.clone().map(Box::new));
    identity_of(users, id, shared, proof)
}

impl AccessInner {
    fn identify(&self, request: &Request) -> Result<Client, HttpError> {
        let mut local = self.local.borrow_mut();
        if local.generation != self.shared.generation() {
            *local = Local::new(&self.shared);
        }
        let mut values = request.header_values("authorization");
        let value = values.next();
        if values.next().is_some() {
            return Err(AMBIGUOUS);
        }
        if let Some(query) = request.query().and_then(SignedQuery::parse) {
            return match (query, value) {
                (_, Some(_)) => Err(BOTH),
                (Err(detail), None) => Err(HttpError::new(400, detail)),
                (Ok(query), None) => self.signed(request, &query, &local).map(Client::Known),
            };
        }
        if is_foreign_read(request) {
            return Ok(Client::Known(local.anonymous.clone()));
        }
        if let Some(value) = value {
            return self.presented(request, value, &mut local);
        }
        if local.users.has_certificates()
            && let Some(tls) = request.tls()
            && let Some(client) = tls.client()
            && let Some(id) = local.users.by_certificate(client)
        {
            let proof = Proof::Certificate(client.clone());
            let identity = identity_of(&local.users, id, &self.shared, proof);
            return Ok(Client::Known(identity));
        }
        Ok(Client::Known(local.anonymous.clone()))
    }

    /// The client with this value of `Authorization`.
    fn presented(
        &self,
        request: &Request,
        value: &[u8],
        local: &mut Local,
    ) -> Result<Client, HttpError> {
        let now_ms = request.worker().now_ms();
        let spelling = self.shared.tag(value);
        if let Some((identity, _)) = local.remembered.get(spelling, now_ms) {
            return Ok(Client::Known(identity.clone()));
        }
        match Credentials::parse(value) {
            Err(Invalid::Malformed) => Err(MALFORMED),
            Err(Invalid::Scheme) => Err(WRONG_SCHEME),
            Ok(Credentials::Token(token)) => {
                let found = local.users.by_token(&token);
                self.shared.report.verified(Method::Token, found.is_some());
                let Some(id) = found else {
                    let (report, address) = (&self.shared.report, client_address(request));
                    report.log_failure(Method::Token, None, address, now_ms);
                    return Err(WRONG_LOGIN);
                };
                let until_ms = now_ms + REMEMBERED_MS;
                let identity = identity_of(&local.users, id, &self.shared, Proof::Token(token));
                Ok(Client::Known(
                    local.remember(spelling, identity, now_ms, until_ms),
                ))
            }
            Ok(Credentials::Password { user, password }) => {
                // The same credentials have many spellings, which must not cost a hash each. A name
                // has no colon.
                let tag = self.shared.tag(format!("{user}:{password}").as_bytes());
                if let Some((id, until_ms)) = self.shared.recall(tag, local.generation, now_ms) {
                    let identity = identity_by_password(&local.users, id, &self.shared);
                    return Ok(Client::Known(
                        local.remember(spelling, identity, now_ms, until_ms),
                    ));
                }
                Ok(Client::Unverified(Attempt {
                    tag,
                    user,
                    password,
                    address: client_address(request),
                }))
            }
        }
    }

    /// The identity of a signed URL: its user, with rights for this path only.
    fn signed(
        &self,
        request: &Request,
        query: &SignedQuery,
        local: &Local,
    ) -> Result<Rc<Identity>, HttpError> {
        let path = ResolvedPath::of(request)?;
        let users = &local.users;
        let id = users.by_name(&query.user);
        let key = id.and_then(|id| users.user(id).signing_key.as_ref());
        let now_s = request.worker().unix_seconds();
        let signature = query.signature(request.method(), &path);
        let is_valid = key.is_some_and(|key| signature.is_valid(key, now_s));
        self.shared.report.verified(Method::SignedUrl, is_valid);
        let id = id.filter(|_| is_valid).ok_or(BAD_SIGNATURE)?;
        let signed = Rights::of_signed(request.method());
        let key = path.whole.into_owned();
        let rights = move |users: &Users, id: UserId| {
            let identity = &users.user(id).identity;
            let here = identity.rights_at(&key).intersection(signed);
            let at_index = identity.rights_at_index(&key).intersection(signed);
            PathRights::only_at(&key, here, at_index)
        };
        let identity = Identity {
            rights: rights(users, id),
            ..users.user(id).identity.clone()
        };
        let proof = Proof::SignedUrl(signature, Box::new(rights));
        let latest = self.shared.latest();
        Ok(Rc::new(Standing::attach(identity, users, latest, proof)))
    }

    /// Checks whether a client may make a request, and attaches its identity.
    fn authorise(&self, request: &mut Request, identity: Rc<Identity>) -> Result<(), HttpError> {
        if let Some(name) = identity.name() {
            request.set_user(name);
        }
        if request.method() != "OPTIONS" {
            let method = request.method();
            let path = ResolvedPath::of(request)?;
            let rights = identity.rights_at(&path.whole);
            let is_read = matches!(method, "GET" | "HEAD");
            let may_be_object = self.rules.site && path.is_folder && is_read;
            let may_be_form = self.rules.upload_forms && path.is_folder && is_read;
            let needed = match UploadId::is_named_by(request) {
                true => Rights::CREATE, // Of the object that is uploaded.
                false => Rights::needed(method, path.is_folder),
            };
            let is_permitted = rights.contains(needed)
                || may_be_object && identity.rights_at_index(&path.whole).contains(Rights::READ)
                || may_be_form && rights.contains(Rights::CREATE) && names_html(request);
            if !is_permitted {
                return Err(HttpError::not_permitted(&identity));
            }
            if let Some(decoded) = path.into_decoded() {
                request.set_extension(Rc::new(decoded));
            }
        }
        request.set_extension(identity);
        Ok(())
    }

    fn is_open(&self, request: &Request) -> bool {
        let paths = self.rules.open_paths;
        matches!(request.method(), "GET" | "HEAD") && paths.contains(&request.path())
    }

    fn refuse(&self, failure: HttpError, request: &Request) -> Response {
        if let Some(redirect) = path::scope_redirect(request, failure) {
            return redirect; // The client asks again, with a path that has rights.
        }
        let failure = match failure.status {
            401 if is_foreign_read(request) => FOREIGN_READ,
            _ => failure,
        };
        self.shared.report.refused(failure.status);
        failure.into_response(request)
    }

    /// Verifies a password, then continues like a request whose client is known.
    async fn verify_and_pass_on(
        self: Rc<Self>,
        mut request: Request,
        attempt: Attempt,
    ) -> Response {
        let verified = self.shared.verify(attempt, request.worker()).await;
        let identity = verified.map(|(users, id)| identity_by_password(&users, id, &self.shared));
        let permitted = identity.and_then(|identity| self.authorise(&mut request, identity));
        if let Err(failure) = permitted {
            return self.refuse(failure, &request);
        }
        let (mut request, mut response) = (Some(request), None);
        let pending = poll_fn(|cx| {
            let request = request.take();
            Poll::Ready(request.and_then(|request| self.service.start(request, cx, &mut response)))
        });
        match (pending.await, response) {
            (Some(pending), _) => pending.await,
            (None, Some(response)) => response,
            (None, None) => Response::new(500),
        }
    }
}

impl Local {
    fn remember(
        &mut self,
        tag: Tag,
        identity: Rc<Identity>,
        now_ms: u64,
        until_ms: u64,
    ) -> Rc<Identity> {
        self.remembered
            .insert(tag, identity.clone(), now_ms, until_ms);
        identity
    }
}

impl Service for AccessService {
    fn start(
        &self,
        mut request: Request,
        cx: &mut Context<'_>,
        response: &mut Option<Response>,
    ) -> Option<Pending> {
        let inner = &self.0;
        if inner.is_open(&request) {
            return inner.service.start(request, cx, response);
        }
        let permitted = match inner.identify(&request) {
            Ok(Client::Known(identity)) => inner.authorise(&mut request, identity),
            Ok(Client::Unverified(attempt)) => {
                let mut verifying: Pending =
                    Box::pin(inner.clone().verify_and_pass_on(request, attempt));
                return match verifying.as_mut().poll(cx) {
                    Poll::Ready(ready) => {
                        *response = Some(ready);
                        None
                    }
                    Poll::Pending => Some(verifying),
                };
            }
            Err(failure) => Err(failure),
        };
        match permitted {
            Ok(()) => inner.service.start(request, cx, response),
            Err(failure) => {
                *response = Some(inner.refuse(failure, &request));
                None
            }
        }
    }
}
