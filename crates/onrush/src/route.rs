//! The router: selects a handler by method and path template.

use crate::accepted::IntoMethod;
use crate::handler::{Application, Handler, Pending, Service, erase};
use crate::params::{Params, Template};
use crate::request::Request;
use crate::response::{IntoResponse, Response};
use crate::worker::WorkerHandle;
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Selects a handler by method and path.
///
/// **Templates.** A template is a path in which segments may be parameters. `{name}` matches one
/// segment that is not empty. `{*name}` must be the last segment and matches the rest of the path,
/// which may be empty. Paths are compared as sent, without decoding. If several templates match, a
/// literal segment has precedence over a parameter, and a parameter over a rest.
///
/// **Methods.** Without a route for `HEAD`, the `GET` handler receives the request, and the server
/// sends no content. If templates match the path but none has a route for the method, the router
/// responds with 405 and `Allow` (RFC 9110 §15.5.6), or with 204 and `Allow` to `OPTIONS`. If no
/// template matches, it calls the fallback, or responds with 404.
///
/// # Panics
/// The methods that add a route panic if the template does not begin with `/`, has an unmatched
/// brace, a `{*name}` that is not last, or a parameter in another form such as `:name`; and if
/// another route of the same method matches the same paths.
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
    /// For paths that no template matches, with the path of the nested router that they are of.
    fallbacks: Vec<(String, Arc<dyn Make>)>,
    /// What is between the layers and the router's own responses. `None` without layers.
    refusal: Option<Arc<dyn Make>>,
}

#[derive(Clone)]
struct Route {
    /// `None` for every method.
    method: Option<Cow<'static, str>>,
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
    #[track_caller]
    pub fn get(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("GET".into()), template, handler)
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
    #[track_caller]
    pub fn post(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("POST".into()), template, handler)
    }

    /// Adds `handler` for `PUT` requests.
    #[track_caller]
    pub fn put(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("PUT".into()), template, handler)
    }

    /// Adds `handler` for `PATCH` requests (RFC 5789).
    #[track_caller]
    pub fn patch(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("PATCH".into()), template, handler)
    }

    /// Adds `handler` for `DELETE` requests.
    #[track_caller]
    pub fn delete(self, template: &str, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.add(Some("DELETE".into()), template, handler)
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
    #[track_caller]
    pub fn method(
        self,
        method: impl IntoMethod,
        template: &str,
        handler: impl Handler + Clone + Send + Sync,
    ) -> Router {
        self.add(Some(method.into_method()), template, handler)
    }

    /// Adds `handler` for every method, `OPTIONS` included.
    #[track_caller]
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
        self.fallbacks.retain(|(prefix, _)| !prefix.is_empty());
        self.fallbacks.push((String::new(), Arc::new(handler)));
        self
    }

    /// Adds the routes of `router` beneath `path`, which has no parameters. A handler gets the
    /// whole path; `/` of the router is `path` itself. The fallback of the router is for paths
    /// beneath
    /// `path`.
    ///
    /// # Panics
    /// If `path` does not begin with `/`, ends with `/`, or has a parameter, and as for each route.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, Router, sim::Simulation};
    ///
    /// async fn path(request: Request) -> Response {
    ///     Response::text(request.route().unwrap_or("none").to_owned())
    /// }
    ///
    /// let things = Router::new().get("/", path).get("/{id}", path);
    /// let router = Router::new().get("/", path).nest("/things", things);
    /// # let mut sim = Simulation::new(1, &router, Limits::default());
    /// # let client = sim.connect();
    /// # let seven = ("/things/7", "/things/{id}");
    /// # for (target, route) in [("/", "/"), ("/things", "/things"), seven] {
    /// #     let request = format!("GET {target} HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// #     sim.send(&client, request.as_bytes());
    /// #     assert!(client.receive()?.ends_with(format!("\r\n\r\n{route}").as_bytes()));
    /// # }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn nest(mut self, path: &str, router: Router) -> Router {
        assert!(
            path.len() > 1 && !path.ends_with('/') && Template::parse(path).is_literal(),
            "a router is nested beneath a path such as /things: {path:?}"
        );
        for route in router.routes {
            let text = match route.template.text.as_str() {
                "/" => path.to_owned(),
                inner => format!("{path}{inner}"),
            };
            let template = Arc::new(Template::parse(&text));
            self.push(Route { template, ..route });
        }
        for (prefix, make) in router.fallbacks {
            let prefix = format!("{path}{prefix}");
            assert!(
                self.fallbacks.iter().all(|(known, _)| *known != prefix),
                "two routers at {prefix:?} have a fallback"
            );
            self.fallbacks.push((prefix, make));
        }
        self
    }

    /// Lets `layer` handle the requests of all routes and fallbacks that were added before. It gets
    /// the request, and what handles it next. The last layer is the outermost one. A response of
    /// the router itself, such as 405, passes no layer.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Next, Request, Response, Router, sim::Simulation};
    ///
    /// async fn only_with_a_key(request: Request, next: Next) -> Response {
    ///     match request.header_str("x-key") {
    ///         Some("secret") => next.run(request).await.with_header("X-Checked", "yes"),
    ///         _ => Response::new(401),
    ///     }
    /// }
    ///
    /// async fn hello(_: Request) -> &'static str {
    ///     "hello"
    /// }
    ///
    /// let router = Router::new().get("/private", hello).layer(only_with_a_key).get("/", hello);
    /// # let mut sim = Simulation::new(1, &router, Limits::default());
    /// # let client = sim.connect();
    /// # let secret = ("/private", "secret", 200);
    /// # for (target, key, status) in [("/", "", 200), ("/private", "", 401), secret] {
    /// #     let head = format!("GET {target} HTTP/1.1\r\nHost: example.com\r\nX-Key: {key}");
    /// #     sim.send(&client, format!("{head}\r\n\r\n").as_bytes());
    /// #     assert!(client.receive()?.starts_with(format!("HTTP/1.1 {status} ").as_bytes()));
    /// # }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn layer<L, Fut>(mut self, layer: L) -> Router
    where
        L: Fn(Request, Next) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output: IntoResponse> + 'static,
    {
        let wrap = |make: &mut Arc<dyn Make>| {
            let (layer, inner) = (layer.clone(), make.clone());
            *make = Arc::new(Layered { layer, inner });
        };
        self.routes
            .iter_mut()
            .for_each(|route| wrap(&mut route.make));
        self.fallbacks.iter_mut().for_each(|(_, make)| wrap(make));
        wrap(self.refusal.get_or_insert_with(|| Arc::new(refused)));
        self
    }

    /// Adds a route. Panics for an invalid template, because that is a mistake in the program.
    #[track_caller]
    fn add(
        mut self,
        method: Option<Cow<'static, str>>,
        template: &str,
        handler: impl Handler + Clone + Send + Sync,
    ) -> Router {
        self.push(Route {
            method,
            template: Arc::new(Template::parse(template)),
            make: Arc::new(handler),
        });
        self
    }

    /// Whether a route of this method matches the same paths as `template`.
    pub(crate) fn has_route(&self, method: &str, template: &str) -> bool {
        let template = Template::parse(template);
        let is_it = |route: &Route| {
            route.method.as_deref() == Some(method) && route.template.matches_like(&template)
        };
        self.routes.iter().any(is_it)
    }

    #[track_caller]
    fn push(&mut self, route: Route) {
        let method = route.method.as_deref().unwrap_or("every method");
        for known in &self.routes {
            assert!(
                known.method != route.method || !known.template.matches_like(&route.template),
                "two routes for {method} match the same paths: {:?} and {:?}",
                known.template.text,
                route.template.text
            );
        }
        self.routes.push(route);
    }
}

/// A layer, and what it is around.
struct Layered<L> {
    layer: L,
    inner: Arc<dyn Make>,
}

/// What handles a request after a layer: the handler, or another layer. [`Router::layer`] has an
/// example.
pub struct Next(Rc<dyn Service>);

impl fmt::Debug for Next {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Next").finish_non_exhaustive()
    }
}

impl Next {
    /// The response to `request`, which the layer may have changed.
    pub async fn run(self, request: Request) -> Response {
        let (mut request, mut pending) = (Some(request), None::<Pending>);
        poll_fn(|cx| {
            if let Some(pending) = &mut pending {
                return pending.as_mut().poll(cx);
            }
            let (mut response, request) = (None, request.take());
            let request = request.expect("not polled after its end");
            pending = self.0.start(request, cx, &mut response);
            response.map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl<L, Fut> Make for Layered<L>
where
    L: Fn(Request, Next) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output: IntoResponse> + 'static,
{
    fn make(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
        let (layer, inner) = (self.layer.clone(), self.inner.make(worker));
        erase(move |request| layer(request, Next(inner.clone())))
    }
}

impl Application for Router {
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
        let mut literal: HashMap<String, Vec<RouteEntry>> = HashMap::new();
        let mut patterns = Vec::new();
        for route in &self.routes {
            let entry = RouteEntry {
                method: route.method.clone(),
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
        let stands_in = |entry: &RouteEntry| entry.method.as_deref() != Some("HEAD");
        patterns.sort_by_key(|entry: &RouteEntry| (entry.template.rank(), stands_in(entry)));
        for entries in literal.values_mut() {
            entries.sort_by_key(stands_in);
        }
        let fallback =
            |(prefix, make): &(String, Arc<dyn Make>)| (prefix.clone(), make.make(worker));
        let mut fallbacks: Vec<_> = self.fallbacks.iter().map(fallback).collect();
        fallbacks.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
        Rc::new(Routes {
            literal,
            patterns,
            fallbacks,
            refusal: self.refusal.as_ref().map(|make| make.make(worker)),
        })
    }
}

struct RouteEntry {
    method: Option<Cow<'static, str>>,
    template: Rc<Template>,
    service: Rc<dyn Service>,
}

struct Routes {
    literal: HashMap<String, Vec<RouteEntry>>,
    patterns: Vec<RouteEntry>,
    /// The longest path first.
    fallbacks: Vec<(String, Rc<dyn Service>)>,
    refusal: Option<Rc<dyn Service>>,
}

/// The router's own response, as an extension of the request that it answers.
struct Refused {
    status: u16,
    /// For `Allow`, except with 404.
    allow: String,
}

impl Refused {
    fn response(&self) -> Response {
        match self.status {
            404 => Response::text("not found\n").with_status(404),
            status => Response::new(status).with_header("Allow", &self.allow),
        }
    }
}

/// Answers a request that no handler takes, behind the layers.
async fn refused(request: Request) -> Response {
    let refused = request.extension::<Refused>();
    refused.map_or_else(|| Response::new(404), Refused::response)
}

impl Routes {
    /// Entries whose template matches, in order of precedence, with the spans of their parameters.
    fn fitting<'a, 'p>(
        &'a self,
        path: &'p str,
    ) -> impl Iterator<Item = (&'a RouteEntry, Vec<Range<u32>>)> + use<'a, 'p> {
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
            .filter_map(|(entry, _)| entry.method.as_deref())
            .collect();
        if methods.contains(&"GET") {
            methods.push("HEAD");
        }
        methods.push("OPTIONS");
        methods.sort_unstable();
        methods.dedup();
        methods.join(", ")
    }

    /// The fallback of the innermost nested router that has one.
    fn fallback(&self, path: &str) -> Option<&Rc<dyn Service>> {
        let is_beneath = |(prefix, _): &&(String, _)| match path.strip_prefix(prefix.as_str()) {
            Some(rest) => prefix.is_empty() || rest.is_empty() || rest.starts_with('/'),
            None => false,
        };
        self.fallbacks
            .iter()
            .find(is_beneath)
            .map(|(_, service)| service)
    }

    /// `is_unknown`: no template matches the path.
    fn refuse(&self, request: &Request, is_unknown: bool) -> Refused {
        if is_unknown {
            let allow = String::new();
            return Refused { status: 404, allow };
        }
        let status = match request.method() {
            "OPTIONS" => 204,
            _ => 405,
        };
        let allow = self.allow(request.path());
        Refused { status, allow }
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
            let takes = |e: &RouteEntry| {
                let is_it = |own: &str| own == method || own == get;
                e.method.as_deref().is_none_or(is_it)
            };
            self.fitting(path).find(|(entry, _)| takes(entry))
        };
        if let Some((entry, spans)) = chosen {
            request.set_params(Params {
                template: Some(entry.template.clone()),
                spans,
            });
            return entry.service.start(request, cx, response);
        }
        let is_unknown = self.fitting(request.path()).next().is_none();
        match self.fallback(request.path()).filter(|_| is_unknown) {
            Some(service) => service.start(request, cx, response),
            None => {
                let refused = self.refuse(&request, is_unknown);
                if let Some(service) = &self.refusal {
                    request.set_extension(Rc::new(refused));
                    return service.start(request, cx, response);
                }
                *response = Some(refused.response());
                None
            }
        }
    }
}
