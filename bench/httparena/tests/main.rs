//! The published rules of HttpArena for the profiles of the entry, checked on the running program
//! with data of this test's own. Each test starts it once for each driver.

mod arena;
mod entry;
mod rules;
mod websocket;
