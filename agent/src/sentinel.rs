//! The sentinel: pathproof's own Service, probed through the node's datapath from devices of its
//! own, so that an idle node is judged as surely as a busy one. This module sends and collects; it
//! must not judge (`domain::sentinel` does), and it knows neither cluster nor HTTP.

pub mod devices;
pub mod frame;
pub mod host;
pub mod prober;
