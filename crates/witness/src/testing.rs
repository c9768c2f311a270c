//! Probes and topologies for the tests of all crates.

pub mod topologies;
pub mod traces;
