//! A fault storm: datapath faults, harmless actions, other software's treatment of packets, and an agent
//! that is stopped, killed and replaced, at random moments of one seed. Meanwhile real clients dial.
//! Their results are the truth against which the answers are checked.
//!
//! `plan` (the timetable) and `judge` (the check of the answers) are pure functions; `action` performs a
//! plan and `run` records the results.

mod action;
mod api;
mod judge;
mod plan;
mod run;
mod soak;
mod tenants;
mod worlds;

pub use run::{Settings, storm};
