//! The sentinel: pathproof's Service, probed through the node's datapath from dedicated devices, so that
//! an idle node is judged as reliably as a busy one. This module holds its devices, the frames it sends,
//! and the thread that sends probes and waits for them.
//!
//! This module sends probes and collects what comes back. `pathproof_witness::probes` interprets each
//! [`ProbeTrace`](pathproof_facts::trace::ProbeTrace). This module must not name `datapath`, `cluster` or
//! `http`.

pub mod devices;
mod frame;
pub mod kernel;
pub mod prober;
