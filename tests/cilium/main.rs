//! The agent with the real Cilium, which compiles and attaches its programs on the node of a world, and reads
//! Services from a real API server.

mod cilium;
mod faults;
mod health_ports;
mod healthy;
mod scene;
mod stale;
