//! Even load: which worker has how much, by how connections are placed, and after they have turned
//! out unlike each other. Must not know how a server is started.
//!
//! Files, lowest first: `model` · `placement` · `load` · `skew`.

mod load;
mod model;
mod placement;
mod skew;

use crate::run::{Run, Target};
use xtask::shell::Outcome;

/// Of each upload, as it was originally.
pub(crate) const BODY_BYTES: u64 = 40_000_000;

/// Workers of every server, unless it says otherwise.
const WORKERS: usize = 8;

/// Of each of them, so that together they leave a core some room.
const SHARE: f64 = 0.1;

pub(crate) fn experiment(run: &Run) -> Outcome<Vec<Target>> {
    model::show(run)?;
    runner::progress("balance · building what takes part");
    let nginx = runner::beside::have_servers()?;
    if let Some(reason) = &nginx {
        eprintln!("{reason}");
    }
    let mut targets = Vec::new();
    match crate::quota::refused() {
        None => {
            targets.extend(placement::measure(run, nginx.is_none())?);
            targets.extend(skew::measure(run, &skew::EIGHT)?);
        }
        Some(reason) => {
            println!("\nEight workers cannot each be given a share of CPU here: {reason}");
            println!("Their finish is shown by the model above only.");
            let unknown = |what: &str| Target {
                what: what.to_owned(),
                found: "no quotas here".to_owned(),
                holds: None,
            };
            targets.extend([placement::EVEN, skew::SOON, skew::WHOLE].map(unknown));
        }
    }
    targets.extend(skew::measure(run, &skew::TWO)?);
    Ok(targets)
}
