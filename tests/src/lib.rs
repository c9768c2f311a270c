//! Harness of the tests on a real kernel: a node, its pods, another node and clients as network
//! namespaces ([`world`]), Service NAT by real rules ([`rules`]) or a real cluster ([`cluster`]),
//! traffic ([`traffic`]) and the YAML that the agent and the rules both read ([`manifests`],
//! [`scale`]).
//!
//! Nothing here touches the host's own network namespace: every device, rule and sysctl lives in a
//! namespace that a [`world::World`] made and removes. The harness reads YAML with types of its own
//! ([`rules`]), so that a parsing mistake of the agent's cannot hide in the tests.

pub mod capture;
pub mod cluster;
pub mod demo;
pub mod detect;
pub mod generator;
pub mod http;
pub mod manifests;
pub mod observer;
pub mod packet;
pub mod rules;
pub mod scale;
pub mod scenario;
pub mod skip;
pub mod traffic;
pub mod usage;
pub mod wait;
pub mod watch;
pub mod world;
