//! What a service can be served on.

use onrush::{ListeningSockets, Server};
use std::io;

/// Where [`serve`](crate::serve()) accepts connections: a [`Server`] with its settings, or a
/// listener that is bound already, with the default settings.
///
/// # Examples
/// ```no_run
/// # #[cfg(feature = "axum")] {
/// # async fn example(app: axum::Router) -> std::io::Result<()> {
/// use onrush::{Limits, Server};
/// use std::time::Duration;
///
/// let server = Server::bind("0.0.0.0:8080")
///     .connections_max(10_000)
///     .limits(Limits::default().body_bytes_max(1 << 20))
///     .drain_timeout(Duration::from_secs(10));
/// onrush_tower::serve(server, app).await
/// # }
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no listener of `onrush_tower::serve`",
    note = "it takes an `onrush::Server`, or a TCP listener of tokio or std; for a Unix socket: \
            `onrush::Server::bind(\"unix:/run/app.sock\")`"
)]
pub trait IntoServer: Sealed {
    /// The server. Fails if the listener has no address.
    fn into_server(self) -> io::Result<Server>;
}

impl IntoServer for Server {
    fn into_server(self) -> io::Result<Server> {
        Ok(self)
    }
}

mod sealed {
    /// Other crates cannot implement it.
    pub trait Sealed {}
}

use sealed::Sealed;

impl Sealed for Server {}
impl Sealed for std::net::TcpListener {}
impl Sealed for tokio::net::TcpListener {}

/// All workers accept from it.
impl IntoServer for std::net::TcpListener {
    fn into_server(self) -> io::Result<Server> {
        let address = self.local_addr()?.to_string();
        Ok(Server::bind(address.clone()).listen_with(ListeningSockets {
            address,
            sockets: vec![self.into()],
            is_shared: true,
        }))
    }
}

/// All workers accept from it.
impl IntoServer for tokio::net::TcpListener {
    fn into_server(self) -> io::Result<Server> {
        self.into_std()?.into_server()
    }
}
