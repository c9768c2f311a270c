//! The decision whether a node routes Service traffic ([`verdict`]), sentences that explain it ([`explain`]),
//! and the answer that follows from it ([`damping`], [`brake`], [`answer`]).
//!
//! This crate must not gather evidence, and must not use files, sockets or a clock. Only `verdict::decision`
//! can take a node out of service.

pub mod answer;
pub mod brake;
pub mod damping;
pub mod drain;
pub mod eligibility;
pub mod explain;
pub mod health_ports;
pub mod verdict;
