//! A fault storm. At random moments of one seed there are datapath faults, harmless actions, other software
//! that treats packets in unusual ways, and agent faults: the agent is stopped, killed or replaced. Real
//! clients dial throughout. Their results are the truth against which the answers are checked.
//!
//! `plan` (the timetable), `judge` (the check of the answers) and `latency` are pure functions. `action` performs a
//! plan, and `run` records the results.

mod action;
mod api;
mod attackers;
mod judge;
mod latency;
mod plan;
mod run;
mod soak;
mod tenants;
mod worlds;

pub(crate) use plan::seed_of_the_day;
pub use run::{Settings, storm};
