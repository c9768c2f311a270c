//! The vocabulary of all other crates: plain facts about cluster and node, times, causes, and the
//! numbers that several crates share.
//!
//! It must not decide anything, and must not use files, sockets or a clock: `now` is always an argument.

pub mod cause;
pub mod cluster;
pub mod directory;
pub mod fleet_report;
pub mod freshness;
pub mod limits;
pub mod names;
pub mod node_context;
pub mod owners;
pub mod switches;
#[cfg(feature = "testing")]
pub mod testing;
pub mod text;
pub mod time;
pub mod trace;
pub mod view;
