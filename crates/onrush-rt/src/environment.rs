//! The environment variables for workers and drivers, the same in every program. Callers apply
//! them.

use crate::driver::Preference;
use std::io;

/// `ONRUSH_WORKERS` and `ONRUSH_DRIVER`, if they are set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    /// The number of workers, above 0.
    pub workers: Option<usize>,
    /// The driver: `auto`, `io_uring` or `epoll`.
    pub driver: Option<Preference>,
}

impl Environment {
    /// Reads the environment. Fails with `InvalidInput` and a message if a value is invalid.
    pub fn read() -> io::Result<Environment> {
        let wrong = |name: &str, what: &str| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("{name}: {what}"))
        };
        let mut found = Environment::default();
        if let Ok(workers) = std::env::var("ONRUSH_WORKERS") {
            let workers = workers.parse().ok().filter(|&n| n > 0);
            let workers = workers.ok_or_else(|| wrong("ONRUSH_WORKERS", "not a number above 0"))?;
            found.workers = Some(workers);
        }
        if let Ok(name) = std::env::var("ONRUSH_DRIVER") {
            let driver = name.parse();
            found.driver = Some(driver.map_err(|what: String| wrong("ONRUSH_DRIVER", &what))?);
        }
        Ok(found)
    }
}
