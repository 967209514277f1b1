//! Set-up flags of a ring, best first. Independent of the ring's use.

use super::{COMPLETIONS, SUBMISSIONS};
use io_uring::IoUring;
use std::io;

/// Which of the ring's set-up flags the kernel accepted, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// `SINGLE_ISSUER | DEFER_TASKRUN | NO_SQARRAY`.
    DeferNoSqArray,
    /// `SINGLE_ISSUER | DEFER_TASKRUN`.
    Defer,
    /// `SINGLE_ISSUER | COOP_TASKRUN`.
    Coop,
    /// No such flag.
    Plain,
}

impl Setup {
    /// All set-ups, best first.
    pub const LADDER: [Setup; 4] = [
        Setup::DeferNoSqArray,
        Setup::Defer,
        Setup::Coop,
        Setup::Plain,
    ];

    /// The flags' names, for the log.
    pub fn describe(self) -> &'static str {
        match self {
            Setup::DeferNoSqArray => "SINGLE_ISSUER, DEFER_TASKRUN, NO_SQARRAY",
            Setup::Defer => "SINGLE_ISSUER, DEFER_TASKRUN",
            Setup::Coop => "SINGLE_ISSUER, COOP_TASKRUN",
            Setup::Plain => "no task-run flags",
        }
    }

    pub(super) fn build(self) -> io::Result<IoUring> {
        let mut builder = IoUring::builder();
        builder
            .setup_cqsize(COMPLETIONS)
            .setup_submit_all()
            .setup_clamp();
        match self {
            Setup::DeferNoSqArray => {
                builder
                    .setup_single_issuer()
                    .setup_defer_taskrun()
                    .setup_no_sqarray();
            }
            Setup::Defer => {
                builder.setup_single_issuer().setup_defer_taskrun();
            }
            Setup::Coop => {
                builder.setup_single_issuer().setup_coop_taskrun();
            }
            Setup::Plain => {}
        }
        builder.build(SUBMISSIONS)
    }
}
