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
///     .limits(Limits { body_bytes_max: 1 << 20, ..Limits::default() })
///     .drain_timeout(Duration::from_secs(10));
/// onrush_tower::serve(server, app).await
/// # }
/// # }
/// ```
pub trait Listen {
    /// The server. Fails if the listener has no address.
    fn into_server(self) -> io::Result<Server>;
}

impl Listen for Server {
    fn into_server(self) -> io::Result<Server> {
        Ok(self)
    }
}

/// All workers accept from it.
impl Listen for std::net::TcpListener {
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
impl Listen for tokio::net::TcpListener {
    fn into_server(self) -> io::Result<Server> {
        self.into_std()?.into_server()
    }
}
