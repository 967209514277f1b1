//! Functions that all tasks and the benchmarks share: running other programs, and installing the
//! ones that are missing.

pub mod go;
pub mod packages;
pub mod process;
pub mod shell;
