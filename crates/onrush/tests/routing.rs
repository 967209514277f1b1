//! Routes: parameters, precedence, and responses if no route matches.

use crate::common::{ask, calm, text};
use onrush::{Limits, Next, Request, Response, Router, sim::Simulation};
use onrush_rt::driver::sim::Client;
use std::time::Duration;

async fn describe(request: Request) -> Response {
    let route = request.route().unwrap_or("-");
    let params = ["x", "y", "rest"].map(|name| request.param(name).unwrap_or("-"));
    Response::text(format!("{} {route} {}", request.method(), params.join(" ")))
}

fn router() -> Router {
    Router::new()
        .get("/", describe)
        .get("/things", describe)
        .post("/things", describe)
        .get("/things/{x}", describe)
        .get("/things/special", describe)
        .delete("/things/{x}", describe)
        .put("/things/{x}/parts/{y}", describe)
        .get("/files/{*rest}", describe)
        .get("/files/{x}/info", describe)
        .get("/{x}/b", describe)
        .get("/a/{x}", describe)
        .method("PURGE", "/cache", describe)
        .any("/any", describe)
}

struct Asker(Simulation, Client);

impl Asker {
    fn new(router: &Router) -> Asker {
        let sim = calm(router, Limits::default());
        let client = sim.connect();
        Asker(sim, client)
    }

    fn ask(&mut self, method: &str, target: &str) -> (u16, String, String) {
        let request = format!("{method} {target} HTTP/1.1\r\nHost: t\r\n\r\n");
        let response = ask(&mut self.0, &self.1, &request);
        let (head, body) = response.split_once("\r\n\r\n").expect("a head");
        let allow = head.lines().find_map(|line| line.strip_prefix("Allow: "));
        let status = head[9..12].parse().expect("a status");
        (
            status,
            body.to_owned(),
            allow.unwrap_or_default().to_owned(),
        )
    }
}

#[test]
fn most_specific_route_is_used() {
    let mut asker = Asker::new(&router());
    for (request, expected) in [
        ("GET /", "GET / - - -"),
        ("GET /?q=/things", "GET / - - -"),
        ("GET /things", "GET /things - - -"),
        ("POST /things", "POST /things - - -"),
        ("GET /things/7", "GET /things/{x} 7 - -"),
        ("GET /things/7?a=/b", "GET /things/{x} 7 - -"),
        ("GET /things/special", "GET /things/special - - -"),
        ("DELETE /things/special", "DELETE /things/{x} special - -"),
        ("PUT /things/7/parts/8", "PUT /things/{x}/parts/{y} 7 8 -"),
        ("GET /files/", "GET /files/{*rest} - - "),
        ("GET /files/a/b//c/", "GET /files/{*rest} - - a/b//c/"),
        ("GET /files/a/info", "GET /files/{x}/info a - -"),
        ("GET /files/a%2Fb/info", "GET /files/{x}/info a%2Fb - -"),
        ("GET /a/b", "GET /a/{x} b - -"),
        ("GET /c/b", "GET /{x}/b c - -"),
        ("PURGE /cache", "PURGE /cache - - -"),
        ("PATCH /any", "PATCH /any - - -"),
        ("OPTIONS /any", "OPTIONS /any - - -"),
    ] {
        let (method, target) = request.split_once(' ').unwrap();
        let (status, body, _) = asker.ask(method, target);
        assert_eq!((status, body.as_str()), (200, expected), "{request}");
    }
}

#[test]
fn head_uses_the_get_route_and_its_length() {
    let mut asker = Asker::new(&router());
    let request = "HEAD /things/7 HTTP/1.1\r\nHost: t\r\n\r\n";
    let response = ask(&mut asker.0, &asker.1, request);
    assert!(response.starts_with("HTTP/1.1 200"));
    let body = "HEAD /things/{x} 7 - -";
    assert!(
        response.contains(&format!("Content-Length: {}\r\n", body.len())),
        "{response}"
    );
    assert!(response.ends_with("\r\n\r\n"));
}

#[test]
fn unmatched_paths_and_methods_get_different_responses() {
    let mut asker = Asker::new(&router());
    for (request, status, allow) in [
        ("GET /nowhere", 404, ""),
        ("GET /things/", 404, ""),
        ("GET /things//parts/8", 404, ""),
        ("GET /files", 404, ""),
        ("OPTIONS /nowhere", 404, ""),
        ("PUT /things", 405, "GET, HEAD, OPTIONS, POST"),
        ("POST /things/7", 405, "DELETE, GET, HEAD, OPTIONS"),
        ("get /things", 405, "GET, HEAD, OPTIONS, POST"),
        ("GET /cache", 405, "OPTIONS, PURGE"),
        ("HEAD /things/7/parts/8", 405, "OPTIONS, PUT"),
        ("OPTIONS /things/7", 204, "DELETE, GET, HEAD, OPTIONS"),
        ("OPTIONS /", 204, "GET, HEAD, OPTIONS"),
    ] {
        let (method, target) = request.split_once(' ').unwrap();
        let (found, _, allowed) = asker.ask(method, target);
        assert_eq!((found, allowed.as_str()), (status, allow), "{request}");
    }
}

#[test]
fn fallback_takes_only_unmatched_requests() {
    async fn fallback(request: Request) -> Response {
        Response::text(format!("else {}", request.target())).with_status(404)
    }
    let mut asker = Asker::new(&router().fallback(fallback));
    assert_eq!(asker.ask("GET", "/nowhere").1, "else /nowhere");
    assert_eq!(asker.ask("BREW", "/nowhere").1, "else /nowhere");
    assert_eq!(asker.ask("PUT", "/things").0, 405);
    assert_eq!(asker.ask("GET", "/things").0, 200);
    // A handler that reads its body, used through a router.
    async fn length(mut request: Request) -> Response {
        let all = request.body().read_all(100).await.unwrap();
        Response::text(format!("{} {}", request.param("x").unwrap(), all.len()))
    }
    let mut sim = calm(&Router::new().put("/{x}", length), Limits::default());
    let client = sim.connect();
    sim.send(
        &client,
        b"PUT /k HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\n",
    );
    sim.send(&client, b"abc");
    assert!(text(&client.receive().unwrap()).ends_with("k 3"));
}

/// An earlier route for GET does not hide a route for HEAD.
#[test]
fn explicit_route_for_head_is_used() {
    async fn get(_: Request) -> Response {
        Response::text("get")
    }
    async fn head(_: Request) -> Response {
        Response::new(204)
    }
    let router = Router::new()
        .get("/plain", get)
        .method("HEAD", "/plain", head)
        .get("/with/{parameter}", get)
        .method("HEAD", "/with/{parameter}", head);
    let mut asker = Asker::new(&router);
    for path in ["/plain", "/with/one"] {
        assert_eq!(asker.ask("GET", path).0, 200);
        assert_eq!(asker.ask("HEAD", path).0, 204);
    }
}

#[test]
fn nested_routers_have_their_path_and_their_fallback() {
    let named = |name: &'static str| {
        move |request: Request| {
            let path = request.path().to_owned();
            async move { Response::text(format!("{name} {path}")).with_status(404) }
        }
    };
    let parts = Router::new().get("/{y}", describe).fallback(named("parts"));
    let things = Router::new()
        .get("/", describe)
        .get("/{x}", describe)
        .patch("/{x}", describe)
        .nest("/all/parts", parts)
        .fallback(named("things"));
    let router = Router::new()
        .get("/", describe)
        .nest("/things", things)
        .fallback(named("top"));
    let mut asker = Asker::new(&router);
    for (request, expected) in [
        ("GET /", "GET / - - -"),
        ("GET /things", "GET /things - - -"),
        ("GET /things/7", "GET /things/{x} 7 - -"),
        ("PATCH /things/7", "PATCH /things/{x} 7 - -"),
        ("GET /things/all/parts/8", "GET /things/all/parts/{y} - 8 -"),
        ("GET /things/all/parts/8/9", "parts /things/all/parts/8/9"),
        ("GET /things/all/parties/8", "things /things/all/parties/8"),
        ("GET /things/7/8", "things /things/7/8"),
        ("GET /thingsx", "top /thingsx"),
    ] {
        let (method, target) = request.split_once(' ').expect("two words");
        assert_eq!(asker.ask(method, target).1, expected, "{request}");
    }
    let (status, _, allow) = asker.ask("DELETE", "/things/7");
    assert_eq!((status, allow.as_str()), (405, "GET, HEAD, OPTIONS, PATCH"));
}

#[test]
fn layers_are_around_what_was_added_before() {
    let layer = |name: &'static str| {
        move |mut request: Request, next: Next| async move {
            if request.path() == "/refused" && name == "inner" {
                return Response::new(403);
            }
            request.set_extension(std::rc::Rc::new(name));
            request.worker().yield_now().await;
            let mut response = next.run(request).await;
            response
                .append_header("X-Layer", name)
                .expect("a valid field");
            response
        }
    };
    async fn sees(request: Request) -> Response {
        request
            .worker()
            .sleep(std::time::Duration::from_millis(1))
            .await;
        let seen = request
            .extension::<&'static str>()
            .copied()
            .unwrap_or("nothing");
        Response::text(format!("{seen} {}", request.param("x").unwrap_or("-")))
    }
    let router = Router::new()
        .get("/both/{x}", sees)
        .get("/refused", sees)
        .layer(layer("inner"))
        .get("/outer", |request: Request| sees(request))
        .fallback(sees)
        .layer(layer("outer"))
        .get("/none", sees);
    for seed in 0..10 {
        let mut sim = Simulation::new(seed, &router, Limits::default());
        let client = sim.connect();
        for (target, body, layers) in [
            ("/both/7", "inner 7", "inner,outer"),
            ("/outer", "outer -", "outer"),
            ("/unknown", "outer -", "outer"),
            ("/none", "nothing -", ""),
            ("/refused", "", "outer"),
        ] {
            sim.send(
                &client,
                format!("GET {target} HTTP/1.1\r\nHost: t\r\n\r\n").as_bytes(),
            );
            sim.advance(Duration::from_millis(20));
            let response = text(&client.receive().expect("a response"));
            let (head, content) = response.split_once("\r\n\r\n").expect("a head");
            let lines = head
                .lines()
                .filter_map(|line| line.strip_prefix("X-Layer: "));
            let seen: Vec<&str> = lines.collect();
            assert_eq!(
                (content, seen.join(",").as_str()),
                (body, layers),
                "{target}"
            );
        }
    }
}

/// 404, 405 and the answer to OPTIONS pass the layers, as the responses of handlers do.
#[test]
fn layers_see_what_the_router_answers_itself() {
    let mark = |request: Request, next: Next| async move {
        match request.method() {
            "TRACE" => Response::new(403),
            _ => next.run(request).await.with_header("X-Layer", "yes"),
        }
    };
    let router = Router::new()
        .get("/a", describe)
        .layer(mark)
        .get("/b", describe);
    let mut sim = calm(&router, Limits::default());
    let client = sim.connect();
    for (line, status, allow) in [
        ("POST /a", "405", "Allow: GET, HEAD, OPTIONS\r\n"),
        ("POST /b", "405", "Allow: GET, HEAD, OPTIONS\r\n"),
        ("OPTIONS /a", "204", "Allow: GET, HEAD, OPTIONS\r\n"),
        ("OPTIONS /b", "204", "Allow: GET, HEAD, OPTIONS\r\n"),
        ("OPTIONS *", "204", "Allow: GET, HEAD, OPTIONS\r\n"),
        ("GET /none", "404", "X-Layer: yes\r\n"),
        ("TRACE /none", "403", ""),
        ("GET /b", "200", ""),
    ] {
        sim.send(
            &client,
            format!("{line} HTTP/1.1\r\nHost: t\r\n\r\n").as_bytes(),
        );
        let response = text(&client.receive().expect("a response"));
        assert_eq!(&response[9..12], status, "{line}: {response}");
        assert!(response.contains(allow), "{line}: {response}");
        // `/b` was added behind the layer, so nothing about it passes it.
        let is_layered = !(line.ends_with("/b") || line == "TRACE /none");
        assert_eq!(
            response.contains("X-Layer"),
            is_layered,
            "{line}: {response}"
        );
    }
}

/// As a layer that answers preflight requests (CORS) needs it.
#[test]
fn layers_of_a_nested_router_see_what_is_answered_beneath_its_path() {
    let mark = |name: &'static str| {
        move |request: Request, next: Next| async move {
            let mut response = next.run(request).await;
            response.append_header("X-Layer", name).unwrap();
            response
        }
    };
    let inner = Router::new().get("/x", describe).layer(mark("inner"));
    let plain = Router::new().get("/x", describe);
    let nested = Router::new()
        .nest("/api", inner.clone())
        .nest("/plain", plain.clone());
    let layered = Router::new()
        .nest("/api", inner)
        .nest("/plain", plain)
        .get("/", describe)
        .layer(mark("outer"));
    let rows = [
        ("GET /api/x", 200, &["inner"][..]),
        ("POST /api/x", 405, &["inner"]),
        ("OPTIONS /api/x", 204, &["inner"]),
        ("GET /api/none", 404, &["inner"]),
        ("GET /plain/x", 200, &[]),
        ("POST /plain/x", 405, &[]),
        ("OPTIONS /plain/x", 204, &[]),
        ("GET /plain/none", 404, &[]),
        ("GET /none", 404, &[]),
    ];
    for (router, outer) in [(nested, &[][..]), (layered, &["outer"])] {
        for (line, status, names) in rows {
            let mut sim = calm(&router, Limits::default());
            let client = sim.connect();
            let request = format!("{line} HTTP/1.1\r\nHost: t\r\n\r\n");
            sim.send(&client, request.as_bytes());
            let response = text(&client.receive().expect("a response"));
            let found = response
                .lines()
                .filter_map(|line| line.strip_prefix("X-Layer: "));
            assert_eq!(response[9..12], status.to_string(), "{line}");
            assert_eq!(found.collect::<Vec<_>>(), [names, outer].concat(), "{line}");
        }
    }
}

/// Who may not enter does not learn which paths there are.
#[test]
fn an_inherited_fallback_is_behind_the_layers_of_the_nested_router() {
    let deny = |_: Request, _: Next| async { Response::new(401) };
    let mark = |request: Request, next: Next| async move {
        next.run(request).await.with_header("X-Layer", "inner")
    };
    let fallback = async |_: Request| (404, "the fallback");
    let inner = || Router::new().get("/x", describe);
    let router = Router::new()
        .nest("/api", inner().layer(deny))
        .nest("/open", inner().layer(mark))
        .fallback(fallback);
    let mut asker = Asker::new(&router);
    assert_eq!(asker.ask("GET", "/api/x").0, 401);
    assert_eq!(asker.ask("GET", "/api/none").0, 401);
    assert_eq!(asker.ask("GET", "/none").1, "the fallback");
    assert_eq!(asker.ask("GET", "/open/none").1, "the fallback");
    let mut sim = calm(&router, Limits::default());
    let client = sim.connect();
    let response = ask(
        &mut sim,
        &client,
        "GET /open/none HTTP/1.1\r\nHost: t\r\n\r\n",
    );
    assert!(response.contains("\r\nX-Layer: inner\r\n"), "{response}");
}

/// Whichever of the two was added first.
#[test]
fn a_route_for_one_method_comes_before_one_for_every_method() {
    let get = async |_: Request| "get";
    let any = async |_: Request| "any";
    let routers = [
        Router::new().any("/a", any).get("/a", get),
        Router::new().get("/a", get).any("/a", any),
    ];
    let pattern = Router::new().any("/{x}", any).get("/{x}", get);
    for router in [&routers[0], &routers[1], &pattern] {
        let mut asker = Asker::new(router);
        assert_eq!(asker.ask("GET", "/a").1, "get");
        assert_eq!(asker.ask("POST", "/a").1, "any");
        assert_eq!(asker.ask("OPTIONS", "/a").1, "any");
    }
}

/// What a mistake says, and where: at the line that adds the route.
#[test]
fn mistakes_in_routes_panic_where_they_are() {
    let message = |add: fn() -> Router| {
        let _silence = testing::panics::silence(|_| true);
        let payload = std::panic::catch_unwind(add).err().expect("a panic");
        match payload.downcast::<String>() {
            Ok(text) => *text,
            Err(payload) => payload
                .downcast_ref::<&str>()
                .map_or_else(String::new, |text| (*text).into()),
        }
    };
    type Mistake = (fn() -> Router, &'static str);
    let rows: [Mistake; 12] = [
        (
            || Router::new().get("x", describe),
            "does not begin with a slash",
        ),
        (|| Router::new().get("/{x", describe), "ends with a brace"),
        (|| Router::new().get("/{}", describe), "has a name"),
        (
            || Router::new().get("/a{x}", describe),
            "is a whole segment",
        ),
        (|| Router::new().get("/:id", describe), "is written as {id}"),
        (
            || Router::new().get("/*path", describe),
            "is written as {*path}",
        ),
        (
            || Router::new().get("/{*x}/y", describe),
            "must be the last segment",
        ),
        (
            || Router::new().get("/{x}", describe).get("/{y}", describe),
            "two routes for GET match the same paths: \"/{x}\" and \"/{y}\"",
        ),
        (
            || Router::new().nest("/{x}", Router::new()),
            "is nested beneath a path such as",
        ),
        (
            || {
                let other = || Router::new().fallback(describe);
                Router::new().nest("/a", other()).nest("/a", other())
            },
            "two routers at \"/a\" have a fallback",
        ),
        (
            || Router::new().method("NO TOKEN", "/", describe),
            "the name of a method is a token",
        ),
        (
            || Router::new().get("/{x}/{x}", describe),
            "two parameters have the name x",
        ),
    ];
    for (add, expected) in rows {
        let said = message(add);
        assert!(said.contains(expected), "{said}");
    }
    // The same path with other methods is no conflict.
    let _ = Router::new()
        .get("/a", describe)
        .post("/a", describe)
        .any("/a", describe);
}

#[test]
fn what_handlers_may_return() {
    type Io<T> = std::io::Result<T>;
    let router = Router::new()
        .get("/unit", |_: Request| async {})
        .get("/bytes", |_: Request| async {
            onrush::Bytes::from_static(b"bytes")
        })
        .get("/vec", |_: Request| async { vec![b'v'] })
        .get("/pair", |_: Request| async { (201, "made") })
        .get("/some", |_: Request| async { Some("here") })
        .get("/none", |_: Request| async { None::<String> })
        .get("/found", |_: Request| async { Io::Ok("file") })
        .get("/missing", |_: Request| async {
            std::fs::read_to_string("/no/such/file") // It does not wait: the path does not exist.
        })
        .get("/secret", |_: Request| async {
            Io::<()>::Err(std::io::Error::other("a secret"))
        })
        .post("/body", |mut request: Request| async move {
            let body = request.body().read_all(4).await?;
            Io::Ok(body)
        });
    let limits = Limits::default()
        .body_bytes_max(8)
        .body_timeout(Duration::from_millis(100));
    let mut sim = calm(&router, limits);
    let post = |length: usize, sent: &str| {
        format!("POST /body HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n{sent}")
    };
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nHost: t\r\n\r\n");
    for (request, status, content) in [
        (get("/unit"), "204", ""),
        (get("/bytes"), "200", "bytes"),
        (get("/vec"), "200", "v"),
        (get("/pair"), "201", "made"),
        (get("/some"), "200", "here"),
        (get("/none"), "404", "not found\n"),
        (get("/found"), "200", "file"),
        (get("/missing"), "404", "not found\n"),
        (get("/secret"), "500", "internal server error\n"),
        (post(4, "four"), "200", "four"),
        (post(6, "longer"), "413", "request body too large\n"),
        (post(4, "fo"), "408", "request body took too long\n"),
    ] {
        let client = sim.connect();
        sim.send(&client, request.as_bytes());
        sim.advance(Duration::from_millis(500));
        let response = text(&client.receive().expect("a response"));
        assert_eq!(&response[9..12], status, "{request}: {response}");
        assert!(
            response.ends_with(&format!("\r\n\r\n{content}")),
            "{request}: {response}"
        );
    }
}
