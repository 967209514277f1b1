//! The manual: how a service on Onrush is written, run, defended and tested. The reference has the
//! details.
//!
//! - [`migrate`]: from axum and hyper, actix-web, Go's `net/http`, and a thread per connection.
//! - [`waiting`]: what a handler may wait for, and what belongs on another thread.
//! - [`attacks`]: what clients try, what the engine does, and what is left to the service.
//! - [`drivers`]: io_uring and epoll, kernels, containers.
//! - [`testing`]: a service without sockets, and with time that the test advances.
//!
//! The defaults and their reasons are at the fields of [`Limits`](crate::Limits) and at the methods
//! of [`Server`](crate::Server).

pub mod attacks {
    #![doc = include_str!("attacks.md")]
}
pub mod drivers {
    #![doc = include_str!("drivers.md")]
}
pub mod migrate {
    #![doc = include_str!("migrate.md")]
}
pub mod testing {
    #![doc = include_str!("testing.md")]
}
pub mod waiting {
    #![doc = include_str!("waiting.md")]
}
