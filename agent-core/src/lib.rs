//! The pure core: facts, expectations, plans, evidence, verdict, answer.
//!
//! Deterministic: it uses no file, socket or clock, and `now` is always an argument. It must not
//! name kube, k8s-openapi, aya, axum, tokio, `std::fs`, `std::net` sockets or a clock
//! (`cargo xtask tidy` rejects them).

pub mod answer;
pub mod brake;
pub mod cause;
pub mod cluster;
pub mod condition;
pub mod conntrack;
pub mod coverage;
pub mod damping;
pub mod drain;
pub mod drops;
pub mod effect;
pub mod eligibility;
pub mod event;
pub mod evidence;
pub mod expect;
pub mod explain;
pub mod fleet;
pub mod freshness;
pub mod health_ports;
pub mod ledger;
pub mod limits;
pub mod names;
pub mod node;
pub mod owners;
pub mod peers;
pub mod plan;
pub mod probes;
pub mod programming;
pub mod record;
pub mod replay;
pub mod report;
#[cfg(feature = "testing")]
pub mod sim;
pub mod switches;
pub mod text;
pub mod time;
pub mod topology;
pub mod trace;
pub mod verdict;
pub mod view;
