//! The router: selects a handler by method and path template.

use crate::accepted::IntoMethod;
use crate::handler::{Application, Handler, Service};
use crate::make::{Layered, Make, Making, Next, StateSource, Stated};
use crate::params::{PathTree, Template};
use crate::request::Request;
use crate::response::{IntoResponse, Response};
use crate::routes::{Refused, RouteEntry, Routes, refused};
use crate::worker::WorkerHandle;
use std::borrow::Cow;
use std::collections::HashMap;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;

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
#[must_use = "a server or another router takes it"]
pub struct Router {
    routes: Vec<Route>,
    /// For paths that no template matches, with the path of the nested router that they are of.
    fallbacks: Vec<(String, Arc<dyn Make>)>,
    /// For paths of a template without a route for the method, as `fallbacks`.
    not_allowed: Vec<(String, Arc<dyn Make>)>,
    states: Vec<StateSource>,
    /// What is between the layers and the router's own 404, as `fallbacks`. None without layers.
    refusals: Vec<(String, Arc<dyn Make>)>,
}

#[derive(Clone)]
struct Route {
    /// `None` for every method.
    method: Option<Cow<'static, str>>,
    template: Arc<Template>,
    make: Arc<dyn Make>,
    /// What is between the layers of this route and the router's own responses to other methods.
    refusal: Option<Arc<dyn Make>>,
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

    /// Adds `handler` for every method, `OPTIONS` included, that has no route of its own.
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
    /// beneath `path`; without one, that of the outer router is, behind the layers of this one.
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
    pub fn nest(mut self, path: &str, mut router: Router) -> Router {
        router.bind_states();
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
        for (prefix, make) in router.refusals {
            self.refusals.push((format!("{path}{prefix}"), make));
        }
        for (prefix, make) in router.not_allowed {
            let prefix = format!("{path}{prefix}");
            assert!(
                self.not_allowed.iter().all(|(known, _)| *known != prefix),
                "two routers at {prefix:?} have a handler for methods that are not allowed"
            );
            self.not_allowed.push((prefix, make));
        }
        self
    }

    /// Sets the handler of requests whose path matches a template, but whose method has no route.
    /// It replaces an earlier one. A 405 that it returns gets the field `Allow`, unless it has one
    /// (RFC 9110 §15.5.6). `OPTIONS` is still responded to by the router. That of a nested router
    /// is for paths beneath its path.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, Router, sim::Simulation};
    ///
    /// async fn not_allowed(request: Request) -> Response {
    ///     Response::text(format!("no {} here\n", request.method())).with_status(405)
    /// }
    ///
    /// let router = Router::new()
    ///     .get("/tea", async |_: Request| "tea")
    ///     .method_not_allowed(not_allowed);
    /// # let mut sim = Simulation::new(1, &router, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"DELETE /tea HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # let response = String::from_utf8_lossy(&client.receive()?).into_owned();
    /// # assert!(response.contains("\r\nAllow: GET, HEAD, OPTIONS\r\n"));
    /// # assert!(response.ends_with("no DELETE here\n"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn method_not_allowed(mut self, handler: impl Handler + Clone + Send + Sync) -> Router {
        self.not_allowed.retain(|(prefix, _)| !prefix.is_empty());
        let (layer, inner) = (with_allow, Arc::new(handler));
        let make = Arc::new(Layered { layer, inner });
        self.not_allowed.push((String::new(), make));
        self
    }

    /// Gives `state` to all handlers and layers of this router and of those nested in it, whether
    /// they are added before or after: [`Request::state`]. All workers share it, without a lock or
    /// a shared reference count on the path of a request. A nested router may have a state of the
    /// same type, which is the one that its handlers get.
    ///
    /// # Panics
    /// If the router has a state of this type already.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, Router, sim::Simulation};
    ///
    /// struct Greeting(String);
    ///
    /// async fn greet(request: Request) -> Response {
    ///     Response::text(request.state::<Greeting>().0.clone())
    /// }
    ///
    /// let router = Router::new().get("/", greet).with_state(Greeting("Good day".to_owned()));
    /// # let mut sim = Simulation::new(1, &router, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// # assert!(client.receive()?.ends_with(b"Good day"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn with_state<T: Send + Sync + 'static>(self, state: T) -> Router {
        self.add_state(StateSource::shared(state))
    }

    /// As [`Router::with_state`], with a state of each worker, so it need be neither `Send` nor
    /// `Sync`. `open` makes it on the worker, before the worker accepts connections. A panic of
    /// `open` ends the server. The state is dropped on the thread of the worker when the worker has
    /// ended: the destructor is the place for what closes it.
    ///
    /// # Panics
    /// If the router has a state of this type already.
    ///
    /// # Examples
    /// ```
    /// use onrush::{Limits, Request, Response, Router, sim::Simulation};
    /// use std::cell::Cell;
    ///
    /// #[derive(Default)]
    /// struct Requests(Cell<u64>);
    ///
    /// async fn count(request: Request) -> Response {
    ///     let Requests(count) = request.state();
    ///     count.set(count.get() + 1);
    ///     Response::text(format!("request {} of this worker", count.get()))
    /// }
    ///
    /// let router = Router::new().get("/", count).with_worker_state(|_| Requests::default());
    /// # let mut sim = Simulation::new(1, &router, Limits::default());
    /// # let client = sim.connect();
    /// # for number in 1..3 {
    /// #     sim.send(&client, b"GET / HTTP/1.1\r\nHost: example.com\r\n\r\n");
    /// #     let end = format!("request {number} of this worker");
    /// #     assert!(client.receive()?.ends_with(end.as_bytes()));
    /// # }
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[track_caller]
    pub fn with_worker_state<T: 'static>(
        self,
        open: impl Fn(&WorkerHandle) -> T + Send + Sync + 'static,
    ) -> Router {
        self.add_state(StateSource::per_worker(open))
    }

    #[track_caller]
    fn add_state(mut self, state: StateSource) -> Router {
        let is_known = |known: &StateSource| known.type_id == state.type_id;
        assert!(
            !self.states.iter().any(is_known),
            "the router has a state of this type already"
        );
        self.states.push(state);
        self
    }

    /// Moves the states to the handlers, so that a router around this one does not need them.
    fn bind_states(&mut self) {
        let states = std::mem::take(&mut self.states);
        if !states.is_empty() {
            self.wrap_all(|inner| {
                let states = states.clone();
                Arc::new(Stated { states, inner })
            });
        }
    }

    /// Puts something around each handler and what answers for the router.
    fn wrap_all(&mut self, wrap: impl Fn(Arc<dyn Make>) -> Arc<dyn Make>) {
        for route in &mut self.routes {
            route.make = wrap(route.make.clone());
            route.refusal = route.refusal.take().map(&wrap);
        }
        let by_prefix = self.fallbacks.iter_mut().chain(&mut self.not_allowed);
        for (_, make) in by_prefix.chain(&mut self.refusals) {
            *make = wrap(make.clone());
        }
    }

    /// Lets `layer` handle the requests of all routes and fallbacks that were added before. It gets
    /// the request, and what handles it next. The last layer is the outermost one.
    ///
    /// The router's own responses pass the layer, too: 405 and those to `OPTIONS` if the path is
    /// one of a route that was added before, and each 404 without a fallback. Those beneath the
    /// path of a nested router pass its layers.
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
        for route in &mut self.routes {
            route.refusal.get_or_insert_with(|| Arc::new(refused));
        }
        if self.refusals.iter().all(|(prefix, _)| !prefix.is_empty()) {
            self.refusals.push((String::new(), Arc::new(refused)));
        }
        self.wrap_all(|inner| {
            let layer = layer.clone();
            Arc::new(Layered { layer, inner })
        });
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
            refusal: None,
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
        let is_token = |method: &str| onrush_proto::token::is_token(method.as_bytes());
        assert!(
            route.method.as_deref().is_none_or(is_token),
            "the name of a method is a token (RFC 9110 §9.1): {:?}",
            route.method
        );
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

impl Application for Router {
    fn instantiate(&self, worker: &WorkerHandle) -> Rc<dyn Service> {
        let mut router = self.clone();
        router.bind_states();
        router.instantiate_on(&Making::new(worker))
    }
}

impl Router {
    fn instantiate_on(&self, making: &Making<'_>) -> Rc<dyn Service> {
        let mut literal: HashMap<String, Vec<RouteEntry>> = HashMap::new();
        let mut patterns = PathTree::default();
        // A route for HEAD comes before a route for GET, which serves HEAD only in its absence, and
        // one for every method behind those for single ones.
        let mut routes: Vec<&Route> = self.routes.iter().collect();
        routes.sort_by_key(|route| match route.method.as_deref() {
            Some("HEAD") => 0,
            Some(_) => 1,
            None => 2,
        });
        for route in routes {
            let entry = RouteEntry {
                method: route.method.clone(),
                // Each worker has a copy, so that workers do not share a reference count.
                template: Rc::new((*route.template).clone()),
                service: route.make.make(making),
                refusal: route.refusal.as_ref().map(|make| make.make(making)),
            };
            let entries = match route.template.is_literal() {
                true => literal.entry(route.template.text.clone()).or_default(),
                false => patterns.values_of(&route.template),
            };
            entries.push(entry);
        }
        let methods = self.routes.iter().filter_map(|route| route.method.clone());
        let by_prefix = |makes: &[(String, Arc<dyn Make>)]| {
            let make =
                |(prefix, make): &(String, Arc<dyn Make>)| (prefix.clone(), make.make(making));
            let mut services: Vec<_> = makes.iter().map(make).collect();
            services.sort_by_key(|(prefix, _)| std::cmp::Reverse(prefix.len()));
            services
        };
        Rc::new(Routes {
            literal,
            patterns,
            methods: methods.collect(),
            fallbacks: by_prefix(&self.fallbacks),
            not_allowed: by_prefix(&self.not_allowed),
            refusals: by_prefix(&self.refusals),
        })
    }
}

/// Adds `Allow` to the 405 of a handler.
async fn with_allow(request: Request, next: Next) -> Response {
    let refused = request.shared_extension::<Refused>();
    let mut response = next.run(request).await;
    if let Some(refused) = refused
        && response.status() == 405
        && response.header("Allow").is_none()
    {
        response.set_header("Allow", &refused.allow);
    }
    response
}
