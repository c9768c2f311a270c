//! The main loop: which effects follow from which events, and when.

mod answers;
mod boot;
mod conntrack;
mod coverage;
mod drain;
mod drops;
mod health_ports;
mod lookups;
mod maps;
mod prober;
mod programming;
mod recheck;
mod remembered;
mod replay;
mod restart;
mod rivals;
mod samples;
mod scene;
mod sentinel;
mod start;
mod successor;
mod suspicion;
mod topology;
mod world;
