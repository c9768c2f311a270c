//! Harness of the tests on a real kernel. It builds a node, its pods, another node and clients as network
//! namespaces ([`world`]), with traffic ([`traffic`]). Service NAT comes from real rules ([`rules`]), a real
//! cluster ([`cluster`]), or a whole node with kubelet and containerd ([`real_node`]). The agent and the
//! rules read the same YAML ([`manifests`], [`scale`]). [`deploy`] renders the shipped objects.
//!
//! The network namespace of the host stays unchanged: every device, rule and sysctl is in a namespace that a
//! [`world::World`] creates and removes. The harness parses YAML without the agent's types ([`rules`]), so
//! that a parsing mistake of the agent cannot hide in the tests.

pub mod abuse;
pub mod bpf;
pub mod built;
pub mod capture;
pub mod cgroup;
pub mod cluster;
pub mod compare;
pub mod dashboard;
pub mod demo;
pub mod deploy;
pub mod detect;
pub mod http;
pub mod little_memory;
pub mod manifests;
pub mod observer;
pub mod outage;
pub mod packet;
pub mod pod_probe;
pub mod prelude;
pub mod process;
pub mod prometheus;
pub mod promises;
pub mod real_node;
pub mod rules;
pub mod scale;
pub mod scene;
pub mod skip;
pub mod stopped;
pub mod storm;
pub mod throttle;
pub mod traffic;
pub mod tunnels;
pub mod usage;
pub mod wait;
pub mod watch;
pub mod worker;
pub mod world;
