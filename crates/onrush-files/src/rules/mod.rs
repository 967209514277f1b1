//! Rules of a web site from files: redirects, and header fields by path.
//!
//! [`SiteRules`] is an application in front of [`Files`](crate::Files), behind access control: a
//! client learns of a redirect only if it may read the path. Rules concern GET and HEAD, and no
//! path at or under `/-/`. They are compared with the decoded path without dot segments and empty
//! segments, so all spellings of a path have the same rules.
//!
//! [`RuleSource::replace`] changes the rules of all workers. Each has its own reference to the
//! current ones, so workers share no lock while they respond.
//!
//! Submodules, lowest first: `file` · `patterns` · `redirects` and `headers`.

mod file;
mod headers;
mod patterns;
mod redirects;

use crate::files::path::ResolvedPath;
use crate::files::shared::stand_in::StandIn;
use crate::files::uploads::UploadId;
use headers::Headers;
use onrush::handler::{Pending, Service};
use onrush::{Application, Request, Response, WorkerHandle};
use redirects::Redirects;
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Context;

/// Redirects and header fields, parsed.
#[derive(Debug, Default)]
pub struct Rules {
    redirects: Redirects,
    headers: Headers,
}

/// The files of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleFiles {
    /// Lines `FROM TO [STATUS]`.
    pub redirects: Option<PathBuf>,
    /// Lines with a path, and indented lines `Name: value` beneath it.
    pub headers: Option<PathBuf>,
}

impl RuleFiles {
    /// The files that are given, with the names of their options.
    pub fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let redirects = self.redirects.as_deref().map(|path| ("redirects", path));
        let headers = self.headers.as_deref().map(|path| ("headers", path));
        redirects.into_iter().chain(headers)
    }

    /// Reads and checks the files. This blocks. An error is one line that names the option, the
    /// file, and the line of it.
    pub fn load(&self) -> Result<Rules, String> {
        let mut rules = Rules::default();
        for (option, path) in self.files() {
            let parsed = file::read(path).and_then(|text| {
                match option {
                    "redirects" => rules.redirects = Redirects::parse(&text)?,
                    _ => rules.headers = Headers::parse(&text)?,
                }
                Ok(())
            });
            parsed.map_err(|error| format!("--{option}: {}: {error}", path.display()))?;
        }
        Ok(rules)
    }
}

impl Rules {
    /// The decoded paths of rules that are not for all paths, without a slash at their ends, and
    /// the option that names the file. Of a pattern with `*`, the folder in which it compares
    /// names.
    pub fn narrow_paths(&self) -> impl Iterator<Item = (&'static str, Vec<u8>)> {
        let redirects = self
            .redirects
            .narrow_paths()
            .map(|path| ("redirects", path));
        redirects.chain(self.headers.narrow_paths().map(|path| ("headers", path)))
    }

    /// The number of redirects, and of paths with header fields.
    pub fn counts(&self) -> (usize, usize) {
        (self.redirects.len(), self.headers.len())
    }

    /// The redirect of a request, if it has one.
    fn redirect(&self, path: &[u8], query: Option<&str>) -> Option<Response> {
        let (status, location) = self.redirects.find(path, query)?;
        let mut response = Response::new(status).with_header("Cache-Control", "no-cache");
        // Only visible ASCII characters are left unencoded.
        response.try_set_header("Location", location).ok()?;
        Some(response)
    }
}

/// The rules in use. Clones share them.
#[derive(Clone, Debug)]
pub struct RuleSource(Arc<Current>);

#[derive(Debug)]
struct Current {
    generation: AtomicU64,
    rules: Mutex<Arc<Rules>>,
}

impl RuleSource {
    /// Begins with these rules.
    pub fn new(rules: Rules) -> RuleSource {
        RuleSource(Arc::new(Current {
            generation: AtomicU64::new(0),
            rules: Mutex::new(Arc::new(rules)),
        }))
    }

    /// Replaces the rules. Requests that begin afterwards use the new ones.
    pub fn replace(&self, rules: Rules) {
        let mut current = self.0.rules.lock().unwrap_or_else(PoisonError::into_inner);
        *current = Arc::new(rules);
        self.0.generation.fetch_add(1, Ordering::Release);
    }

    /// The generation, and the rules of it or of a later one.
    fn get(&self) -> (u64, Arc<Rules>) {
        let generation = self.0.generation.load(Ordering::Acquire);
        let rules = self.0.rules.lock().unwrap_or_else(PoisonError::into_inner);
        (generation, rules.clone())
    }
}

/// An application with rules in front of it.
#[derive(Clone, Debug)]
pub struct SiteRules<A> {
    source: RuleSource,
    application: A,
}

impl<A> SiteRules<A> {
    /// Passes requests without a redirect to `application`.
    pub fn new(source: &RuleSource, application: A) -> SiteRules<A> {
        SiteRules {
            source: source.clone(),
            application,
        }
    }
}

impl<A: Application> Application for SiteRules<A> {
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
        Rc::new(SiteRulesService {
            current: RefCell::new(self.source.get()),
            source: self.source.clone(),
            service: self.application.instantiate(worker),
        })
    }
}

/// One worker's instance.
struct SiteRulesService {
    source: RuleSource,
    current: RefCell<(u64, Arc<Rules>)>,
    service: Rc<dyn Service>,
}

impl SiteRulesService {
    fn rules(&self) -> Arc<Rules> {
        let mut current = self.current.borrow_mut();
        if current.0 != self.source.0.generation.load(Ordering::Acquire) {
            *current = self.source.get();
        }
        current.1.clone()
    }
}

impl Service for SiteRulesService {
    fn start(
        &self,
        mut request: Request,
        cx: &mut Context<'_>,
        response: &mut Option<Response>,
    ) -> Option<Pending> {
        let Some(path) = ruled_path(&request) else {
            return self.service.start(request, cx, response);
        };
        let rules = self.rules();
        *response = rules.redirect(&path, request.query());
        if response.is_some() {
            return None;
        }
        let stand_in = StandIn::attach(&mut request);
        let pending = self.service.start(request, cx, response);
        if let Some(response) = response {
            (rules.headers).apply(&path, stand_in.is_set(), response);
        }
        let pending = pending?;
        Some(Box::pin(async move {
            let mut response = pending.await;
            (rules.headers).apply(&path, stand_in.is_set(), &mut response);
            response
        }))
    }
}

/// The decoded path of a request that rules concern.
fn ruled_path(request: &Request) -> Option<Vec<u8>> {
    if !matches!(request.method(), "GET" | "HEAD") || UploadId::is_named_by(request) {
        return None;
    }
    let ResolvedPath {
        whole, is_folder, ..
    } = ResolvedPath::of(request).ok()?;
    let key = &whole[..];
    if key == b"-" || key.starts_with(b"-/") {
        return None;
    }
    let mut path = Vec::with_capacity(key.len() + 2);
    path.push(b'/');
    path.extend_from_slice(key);
    if is_folder && !key.is_empty() {
        path.push(b'/');
    }
    Some(path)
}
