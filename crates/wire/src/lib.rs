//! Everything that crosses the kernel boundary: the layouts of maps that the eBPF programs and the agent
//! share, and the parsing and classification that the programs run and the host tests run unchanged.
//!
//! For the eBPF programs this crate has no dependencies. It allocates nothing, reads no clock, and has no
//! unsafe code except the `Pod` marker implementations behind the feature `user`. It must not depend on aya's program types,
//! Kubernetes types or the verdict.
#![cfg_attr(not(test), no_std)]

pub mod abi;
pub mod budget;
pub mod classify;
pub mod dropped;
pub mod evidence;
pub mod gate;
mod layout;
pub mod packet;
pub mod probe;
pub mod service;
pub mod steer;
pub mod transition;
pub mod udp;
