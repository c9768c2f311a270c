//! The sentinel: pathproof's Service, probed through the node's datapath from dedicated devices, so that an
//! idle node is judged as reliably as a busy one. This module has the devices, the frames of the probes, and
//! the thread that sends probes and waits for their answers.
//!
//! It only sends and collects: `pathproof_witness::probes` interprets each
//! [`ProbeTrace`](pathproof_facts::trace::ProbeTrace). It must not name `datapath`, `cluster` or `http`.

pub mod devices;
mod frame;
pub mod kernel;
pub mod prober;
