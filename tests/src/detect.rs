//! What `cargo xtask bench detect` and `cargo xtask bench idle` measure with: a node with Services
//! and a sentinel, faults of its datapath, eyes that note the moment a fault shows, and tables.
//!
//! A figure is printed beside its promise; the benchmark fails where one is not met
//! ([`crate::promises`]).

mod eyes;
mod fault;
mod figures;
mod stage;

pub use eyes::Eyes;
pub use fault::{Deed, Fault, HARMLESS, drop_range, kill_backend};
pub use figures::{Figure, ms, nearest_rank};
pub use stage::{Load, Stage, Undo};
