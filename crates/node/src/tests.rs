//! The main loop: which effects follow from which events, and when.

mod answers;
mod boot;
mod conflicts;
mod conntrack;
mod coverage;
mod drain;
mod drops;
mod endpoint_routes;
mod health_ports;
mod leaving;
mod lookups;
mod maps;
mod persisted;
mod prober;
mod programming;
mod recheck;
mod replay;
mod restart;
mod samples;
mod scene;
mod sentinel;
mod start;
mod successor;
mod suspicion;
mod topology;
mod world;
