//! The sentinel: pathproof's own Service, probed through the node's datapath from devices of its
//! own, so that an idle node is judged as surely as a busy one. Its devices, the frames it writes,
//! the thread that sends probes and waits for them.
//!
//! It sends and collects; what a [`ProbeTrace`](agent_core::trace::ProbeTrace) means is
//! `agent_core::probes`' to say. It must not name `datapath`, `cluster` or `http`.

pub mod devices;
mod frame;
pub mod kernel;
pub mod prober;
