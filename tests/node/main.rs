//! The real agent on a real node: packets, kernel NAT, /healthz. Each fault that the agent must find has a
//! negative control: a similar event that is no fault.
//!
//! These tests measure no time. Waits are long, because the machine may be busy, and end with the event that
//! they wait for. The demo and the benchmarks measure how fast the agent is.

mod agent_attach;
mod agent_broken_packets;
mod agent_cli;
mod agent_clock;
mod agent_conntrack;
mod agent_data;
mod agent_devices;
mod agent_diagnostics;
mod agent_drain;
mod agent_drops;
mod agent_episodes;
mod agent_faults;
mod agent_hardening;
mod agent_health_ports;
mod agent_http;
mod agent_http_abuse;
mod agent_http_memory;
mod agent_input;
mod agent_kernel;
mod agent_obstacles;
mod agent_old_kernel;
mod agent_options;
mod agent_packets;
mod agent_pins;
mod agent_pins_lost;
mod agent_proofs;
mod agent_recording;
mod agent_restart;
mod agent_rights;
mod agent_termination;
mod agent_twins;
mod agent_udp;
mod commands;
mod hardening_refusals;
mod prometheus;
mod sentinel_devices;
mod sentinel_faults;
mod sentinel_harm;
mod sentinel_input;
mod sentinel_node;
mod sentinel_probe;
mod sentinel_rotation;
mod sentinel_twins;
mod steer;
mod steer_checks;
mod steer_frozen;
mod steer_kept;
mod steer_upgrade;
mod successor;
