//! Balance: how evenly each placement distributes connections over workers, and how migration
//! distributes the load of unequal connections.
//!
//! Files, lowest first: `model` · `placement` · `load` · `skew`.

mod load;
mod model;
mod placement;
mod skew;

use crate::run::{Run, Target};
use xtask::shell::Outcome;

pub(crate) fn experiment(run: &Run) -> Outcome<Vec<Target>> {
    model::show(run)?;
    runner::progress("balance · building the servers");
    let nginx = runner::beside::have_servers()?;
    if let Some(reason) = &nginx {
        eprintln!("{reason}");
    }
    let mut targets = Vec::new();
    match crate::quota::unavailable() {
        None => {
            targets.extend(placement::measure(run, nginx.is_none())?);
            targets.extend(skew::measure(run, &skew::EIGHT)?);
        }
        Some(reason) => {
            println!("\nThe CPU of each of eight workers cannot be limited here: {reason}");
            println!("Only the model above shows their finish times.");
            let unknown = |what: &str| Target {
                what: what.to_owned(),
                found: "no quotas here".to_owned(),
                holds: None,
            };
            targets.extend([placement::EVEN, skew::BALANCED, skew::FINISH].map(unknown));
        }
    }
    targets.extend(skew::measure(run, &skew::TWO)?);
    Ok(targets)
}
