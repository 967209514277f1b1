//! The router: selects a handler by method and path template.

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

/// Selects a handler by method and path.
///
/// **Templates.** A template is a path in which segments may be parameters. `{name}` matches one
/// segment that is not empty. `{*name}` must be the last segment and matches the rest of the path,
/// which may be empty. Paths are compared as sent, without decoding. If several templates match, a
/// literal segment has precedence over a parameter, and a parameter over a rest. Of two equal
/// templates the first one has precedence.
///
/// **Methods.** Without a route for `HEAD`, the `GET` handler receives the request, and the server
/// sends no content. If templates match the path but none has a route for the method, the router
/// responds with 405 and `Allow` (RFC 9110 §15.5.6), or with 204 and `Allow` to `OPTIONS`. If no
/// template matches, it calls the fallback, or responds with 404.
///
/// # Panics
/// The methods that add a route panic if the template does not begin with `/`, has an unmatched
/// brace, or has a `{*name}` that is not last.
///
/// # Examples
/// ```
/// use onrush::{Limits, Request, Response, Router, sim::Simulation};
///
/// async fn list(_: Request) -> Response {
///     Response::text("all things")
/// }
///
/// async fn thing(request: Request) -> Response {
///     Response::text(format!("thing {}", request.param("id").unwrap_or("?")))
/// }
///
/// let router = Router::new().get("/things", list).get("/things/{id}", thing);
///
/// let mut sim = Simulation::new(1, &router, Limits::default());
/// let client = sim.connect();
/// let mut status_and_body = |line: &str| {
///     let request = format!("{line} HTTP/1.1\r\nHost: example.com\r\n\r\n");
///     sim.send(&client, request.as_bytes());
///     let response = String::from_utf8(client.receive().unwrap()).unwrap();
///     let (head, body) = response.split_once("\r\n\r\n").unwrap();
///     (head[9..12].to_owned(), body.to_owned())
/// };
/// assert_eq!(status_and_body("GET /things"), ("200".to_owned(), "all things".to_owned()));
/// assert_eq!(status_and_body("GET /things/7"), ("200".to_owned(), "thing 7".to_owned()));
/// assert_eq!(status_and_body("DELETE /things/7").0, "405");
/// assert_eq!(status_and_body("GET /people").0, "404");
/// ```
#[derive(Clone, Default)]
pub struct Router {
    routes: Vec<Route>,
    fallback: Option<Arc<dyn Make>>,
}

#[derive(Clone)]
struct Route {
    /// `None` for every method.
    method: Option<&'static str>,
    template: Arc<Template>,
    make: Arc<dyn Make>,
}

/// Creates the instance of a handler for one worker.
trait Make: Send + Sync {
    fn make(&self, worker: &WorkerHandle) -> Rc<dyn Service>;
}

impl<H: Handler + Clone + Send + Sync> Make for H {
    fn make(&self, _: &WorkerHandle) -> Rc<dyn Service> {
        erase(self.clone())
    }
}

impl Router {
    /// Creates a router without routes.
    pub fn new() -> Router {
        Router::default()
    }

    /// Adds `handler` for `GET` and `HEAD` requests whose path matches `template`.
    pub fn get(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("GET"), template, handler)
    }

    /// Adds `handler` for `POST` requests.
    ///
    /// # Examples
    /// Several methods of one template:
    ///
    /// ```
    /// use onrush::{Limits, Request, Response, Router, sim::Simulation};
    ///
    /// async fn method(request: Request) -> Response {
    ///     Response::text(request.method().to_owned())
    /// }
    ///
    /// let router = Router::new()
    ///     .get("/things/{id}", method)
    ///     .put("/things/{id}", method)
    ///     .delete("/things/{id}", method)
    ///     .post("/things", method);
    /// # let mut sim = Simulation::new(1, &router, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"DELETE /things/7 HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # assert!(client.receive()?.ends_with(b"DELETE"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn post(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("POST"), template, handler)
    }

    /// Adds `handler` for `PUT` requests.
    pub fn put(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("PUT"), template, handler)
    }

    /// Adds `handler` for `DELETE` requests.
    pub fn delete(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("DELETE"), template, handler)
    }

    /// Adds `handler` for requests with this method, which is case-sensitive (RFC 9110 §9.1).
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Router, sim::Simulation};
    ///
    /// let router = Router::new().method("PURGE", "/{*path}", async |_: Request| 204_u16);
    /// # let mut sim = Simulation::new(1, &router, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"PURGE /cache HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # assert!(client.receive()?.starts_with(b"HTTP/1.1 204 No Content\r\n"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn method(
        self,
        method: &'static str,
        template: &str,
        handler: impl Handler + Clone + Send + Sync,
    ) -> Router {
        self.add(Some(method), template, handler)
    }

    /// Adds `handler` for every method, `OPTIONS` included.
    pub fn any(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(None, template, handler)
    }

    /// Sets the handler of requests whose path matches no template. It replaces an earlier one.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, Router, sim::Simulation};
    ///
    /// async fn not_found(request: Request) -> Response {
    ///     Response::text(format!("no {} here\n", request.path())).with_status(404)
    /// }
    ///
    /// let router = Router::new().fallback(not_found);
    /// # let mut sim = Simulation::new(1, &router, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET /tea HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # assert!(client.receive()?.ends_with(b"no /tea here\n"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn fallback(mut self, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.fallback = Some(Arc::new(handler));
        self
    }

    /// Adds a route. Panics for an invalid template, because that is a mistake in the program.
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
                // Each worker has a copy, so that workers do not share a reference count.
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
        // A stable sort: of two equally specific routes, the first one has precedence. But a route
        // for HEAD comes before a route for GET, which serves HEAD only in its absence.
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
    /// Entries whose template matches, in order of precedence, with the spans of their parameters.
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
