//! Harness of the tests on a real kernel: a node, its pods, another node and clients as network
//! namespaces ([`world`]), Service NAT by real rules ([`rules`]), in a real cluster ([`cluster`]) or on a
//! whole node with kubelet and containerd ([`real_node`]), traffic ([`traffic`]) and the YAML that the agent and the rules both read
//! ([`manifests`], [`scale`]). What is shipped for clusters is rendered by [`deploy`].
//!
//! Nothing here touches the host's own network namespace: every device, rule and sysctl lives in a
//! namespace that a [`world::World`] made and removes. The harness reads YAML without the agent's types
//! ([`rules`]), so that a parsing mistake of the agent's cannot hide in the tests.

pub mod abuse;
pub mod bpf;
pub mod built;
pub mod capture;
pub mod cgroup;
pub mod cluster;
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
pub mod process;
pub mod prometheus;
pub mod promises;
pub mod real_node;
pub mod rules;
pub mod scale;
pub mod scene;
pub mod skip;
pub mod storm;
pub mod traffic;
pub mod tunnels;
pub mod usage;
pub mod wait;
pub mod watch;
pub mod worker;
pub mod world;
