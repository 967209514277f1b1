//! `cargo xtask power-cuts`: builds and runs the program that cuts the power. It is separate,
//! because its dependencies are not needed by other tasks.

use crate::shell::{cargo, run};
use crate::{Arguments, Failure, packages};

/// What it runs, and the Debian packages.
const PROGRAMS: [(&str, &str); 4] = [
    ("mkfs.btrfs", "btrfs-progs"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mkfs.xfs", "xfsprogs"),
    ("strace", "strace"),
];

pub(crate) fn main(arguments: Arguments) -> Result<(), Failure> {
    let words = arguments.rest()?;
    let is_help = words.iter().any(|word| word == "-h" || word == "--help");
    if !is_help && !packages::is_root()? {
        let reason = "only root mounts file systems and sets up loop devices";
        return Err(Failure::Because(reason.to_owned()));
    }
    packages::need(&PROGRAMS)?;
    run(&mut cargo("build --quiet -p onrush-server --bins"))?;
    let mut program = cargo("run --quiet -p power-cuts --");
    Ok(run(program.args(words))?)
}
