//! Routes: templates of paths to handlers. Must not know how requests arrive.

use crate::handler::{Application, Handler, Pending, Service, erase};
use crate::params::{Params, Template};
use crate::request::Request;
use crate::response::Response;
use crate::worker::WorkerHandle;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Context;

/// Chooses a handler by method and path.
///
/// A template is a path whose segments may be parameters: `{name}` takes one segment that is not
/// empty, `{*name}` as the last one takes the rest, also an empty one. A literal segment wins over
/// a parameter, a parameter over a rest. Paths are compared as sent, undecoded.
///
/// A path that is known with another method is answered 405 with `Allow`; `OPTIONS` is answered
/// from the routes; `HEAD` goes to the `GET` handler. Anything else is 404 or the fallback's.
///
/// ```
/// use onrush::{Request, Response, Router};
/// async fn thing(request: Request) -> Response {
///     Response::text(format!("thing {}", request.param("id").unwrap_or("?")))
/// }
/// let router = Router::new().get("/things/{id}", thing);
/// # let _ = router;
/// ```
#[derive(Clone, Default)]
pub struct Router {
    routes: Vec<Route>,
    fallback: Option<Arc<dyn Make>>,
}

#[derive(Clone)]
struct Route {
    /// `None`: any method.
    method: Option<&'static str>,
    template: Arc<Template>,
    make: Arc<dyn Make>,
}

/// Makes one worker's instance of a handler.
trait Make: Send + Sync {
    fn make(&self, worker: &WorkerHandle) -> Rc<dyn Service>;
}

impl<H: Handler + Clone + Send + Sync> Make for H {
    fn make(&self, _: &WorkerHandle) -> Rc<dyn Service> {
        erase(self.clone())
    }
}

impl Router {
    /// No routes.
    pub fn new() -> Router {
        Router::default()
    }

    /// `handler` for `GET` and `HEAD` of paths that fit `template`.
    pub fn get(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("GET"), template, handler)
    }

    /// `handler` for `POST`.
    pub fn post(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("POST"), template, handler)
    }

    /// `handler` for `PUT`.
    pub fn put(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("PUT"), template, handler)
    }

    /// `handler` for `DELETE`.
    pub fn delete(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("DELETE"), template, handler)
    }

    /// `handler` for a method by its name.
    pub fn method(
        self,
        method: &'static str,
        template: &str,
        handler: impl Handler + Clone + Send + Sync,
    ) -> Router {
        self.add(Some(method), template, handler)
    }

    /// `handler` for every method; it answers 405 and `OPTIONS` itself.
    pub fn any(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(None, template, handler)
    }

    /// `handler` for everything that fits no route.
    pub fn fallback(mut self, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.fallback = Some(Arc::new(handler));
        self
    }

    /// # Panics
    /// When the template does not begin with `/`, has an unclosed brace, or a rest that is not
    /// last: a mistake in the program, told at its start.
    fn add(
        mut self,
        method: Option<&'static str>,
        template: &str,
        handler: impl Handler + Clone + Send + Sync,
    ) -> Router {
        let template = Arc::new(Template::parse(template));
        self.routes.push(Route {
            method,
            template,
            make: Arc::new(handler),
        });
        self
    }
}

impl Application for Router {
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
        let mut literal: HashMap<String, Vec<Entry>> = HashMap::new();
        let mut patterns = Vec::new();
        for route in &self.routes {
            let entry = Entry {
                method: route.method,
                // A worker's own: no two are to count references to the same one.
                template: Rc::new((*route.template).clone()),
                service: route.make.make(worker),
            };
            if route.template.is_literal() {
                literal
                    .entry(route.template.text.clone())
                    .or_default()
                    .push(entry);
            } else {
                patterns.push(entry);
            }
        }
        // Stable, so that of two equally specific routes the first one given wins; but one for HEAD
        // itself comes before one for GET that would stand in for it.
        let stands_in = |entry: &Entry| entry.method != Some("HEAD");
        patterns.sort_by_key(|entry: &Entry| (entry.template.rank(), stands_in(entry)));
        for entries in literal.values_mut() {
            entries.sort_by_key(stands_in);
        }
        let fallback = self.fallback.as_ref().map(|make| make.make(worker));
        Rc::new(Routes {
            literal,
            patterns,
            fallback,
        })
    }
}

struct Entry {
    method: Option<&'static str>,
    template: Rc<Template>,
    service: Rc<dyn Service>,
}

struct Routes {
    literal: HashMap<String, Vec<Entry>>,
    patterns: Vec<Entry>,
    fallback: Option<Rc<dyn Service>>,
}

impl Routes {
    /// Entries whose template fits, best first, with what their parameters matched.
    fn fitting<'a, 'p>(
        &'a self,
        path: &'p str,
    ) -> impl Iterator<Item = (&'a Entry, Vec<Range<u32>>)> + use<'a, 'p> {
        let literal = self
            .literal
            .get(path)
            .into_iter()
            .flatten()
            .map(|e| (e, Vec::new()));
        let patterns = self
            .patterns
            .iter()
            .filter_map(move |e| Some((e, e.template.fit(path)?)));
        literal.chain(patterns)
    }

    fn allow(&self, path: &str) -> String {
        let mut methods: Vec<&str> = self
            .fitting(path)
            .filter_map(|(entry, _)| entry.method)
            .collect();
        if methods.contains(&"GET") {
            methods.push("HEAD");
        }
        methods.push("OPTIONS");
        methods.sort_unstable();
        methods.dedup();
        methods.join(", ")
    }

    fn refuse(&self, request: &Request) -> Response {
        let path = request.path();
        if self.fitting(path).next().is_none() {
            return Response::text("not found\n").with_status(404);
        }
        let status = if request.method() == "OPTIONS" {
            204
        } else {
            405
        };
        Response::new(status).with_header("Allow", self.allow(path))
    }
}

impl Service for Routes {
    fn start(
        &self,
        mut request: Request,
        cx: &mut Context<'_>,
        response: &mut Option<Response>,
    ) -> Option<Pending> {
        let chosen = {
            let (path, method) = (request.path(), request.method());
            let get = if method == "HEAD" { "GET" } else { method };
            let takes = |e: &Entry| e.method.is_none_or(|m| m == method || m == get);
            self.fitting(path).find(|(entry, _)| takes(entry))
        };
        if let Some((entry, spans)) = chosen {
            request.set_params(Params {
                template: Some(entry.template.clone()),
                spans,
            });
            return entry.service.start(request, cx, response);
        }
        match &self.fallback {
            Some(service) if self.fitting(request.path()).next().is_none() => {
                service.start(request, cx, response)
            }
            _ => {
                *response = Some(self.refuse(&request));
                None
            }
        }
    }
}
