//! The decision whether a node routes Service traffic, and the answer that follows from it.
//!
//! It must not use files, sockets or a clock: `now` is always an argument.

pub mod answer;
pub mod brake;
pub mod damping;
pub mod drain;
pub mod eligibility;
pub mod explain;
pub mod health_ports;
pub mod verdict;
