pub mod blocking;
pub mod fs;
