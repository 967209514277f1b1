//! Measurements that prove a promise. Each compares with something that runs at the same moment,
//! or looks at a slope, so that a busy or slow machine changes neither.

pub(crate) mod cost;
pub(crate) mod idle;
pub(crate) mod list;
mod server;
mod wrk;

use crate::{Failure, Options};

/// The two ways of asking the kernel, by the names the server knows them by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Driver {
    Epoll,
    Uring,
}

impl Driver {
    fn name(self) -> &'static str {
        match self {
            Driver::Epoll => "epoll",
            Driver::Uring => "io_uring",
        }
    }

    /// Reads `--driver`; both, unless one is named.
    fn chosen(options: &mut Options) -> Result<Vec<Driver>, Failure> {
        let both = vec![Driver::Epoll, Driver::Uring];
        match options.text("--driver")?.as_deref() {
            None | Some("both") => Ok(both),
            Some(name) => {
                let one: Vec<_> = both
                    .into_iter()
                    .filter(|driver| driver.name() == name)
                    .collect();
                let unknown = || Failure::Usage(format!("no driver is named '{name}'"));
                (!one.is_empty()).then_some(one).ok_or_else(unknown)
            }
        }
    }
}
