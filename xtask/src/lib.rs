//! What every chore stands on, and what the bench borrows: running other programs, and having the
//! ones that are needed. Must not know any chore.

pub mod packages;
pub mod process;
pub mod shell;
