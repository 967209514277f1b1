//! Routes: parameters, precedence, and responses if no route matches.

use crate::common::{ask, calm, text};
use onrush::{Limits, Request, Response, Router, sim::Simulation};
use onrush_rt::driver::sim::Client;

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
