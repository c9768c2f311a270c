//! pathproof: proves on real packets that this node routes Service traffic.
//!
//! The map of the modules is docs/architecture.md.

pub mod cluster;
pub mod domain;
