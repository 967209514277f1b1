//! The cookies of requests (RFC 6265), by the crate `cookie`. With the feature `cookies`.

use crate::request::Request;
pub use cookie::Cookie;

impl Request {
    /// The cookies that the client has sent, in order, as they are: values are not decoded. What is
    /// not a cookie is left out. Each call reads the fields anew; `Limits::head_bytes_max` limits
    /// the cost.
    ///
    /// A client can send any cookie: only a signature shows that the server has set it.
    ///
    /// # Examples
    /// A cookie is set by a field, and deleted by one that has expired:
    ///
    /// ```
    /// use onrush::cookies::Cookie;
    /// use onrush::{FieldError, Limits, Request, Response, sim::Simulation};
    ///
    /// async fn theme(request: Request) -> Result<Response, FieldError> {
    ///     let theme = request.cookies().find(|cookie| cookie.name() == "theme");
    ///     let theme = theme.map_or("light".to_owned(), |cookie| cookie.value().to_owned());
    ///     let mut response = Response::text(format!("the theme is {theme}"));
    ///     let set = Cookie::build(("theme", theme)).path("/").secure(true).http_only(true);
    ///     response.append_header("Set-Cookie", set.to_string())?;
    ///     Ok(response)
    /// }
    /// # let mut sim = Simulation::new(1, &theme, Limits::default());
    /// # let client = sim.connect();
    /// # sim.send(&client, b"GET / HTTP/1.1\r\nHost: a\r\nCookie: a=b; theme=dark\r\n\r\n");
    /// # let response = String::from_utf8(client.receive()?).unwrap_or_default();
    /// # assert!(response.contains("\r\nSet-Cookie: theme=dark; HttpOnly; Secure; Path=/\r\n"));
    /// # assert!(response.ends_with("the theme is dark"));
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn cookies(&self) -> impl Iterator<Item = Cookie<'_>> {
        self.header_values("Cookie")
            .flat_map(|line| line.split(|&byte| byte == b';'))
            .filter_map(|pair| Cookie::parse(std::str::from_utf8(pair).ok()?).ok())
    }
}
