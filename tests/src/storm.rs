//! A fault storm: faults of the datapath, harmless things, worlds of other software and an agent that
//! is stopped, killed and replaced, all at random moments of one seed, while real clients dial. What
//! the clients felt is the truth that the answers are held against.
//!
//! `plan` (what happens when) and `judge` (whether the answers were right) are pure; `action` does
//! what a plan says and `run` watches meanwhile.

mod action;
mod api;
mod judge;
mod plan;
mod run;
mod soak;
mod tenants;
mod worlds;

pub use run::{Settings, storm};
