//! What several tasks, the benchmarks and the tests share: running other programs and installing
//! the ones that are missing; a proxy that disturbs the network, clients that load a server, and a
//! check of histories.

pub mod go;
pub mod history;
pub mod load;
pub mod node;
pub mod packages;
pub mod process;
pub mod proxy;
pub mod shell;
