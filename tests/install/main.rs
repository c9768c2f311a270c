//! The agent in a real one-node Kubernetes, installed from the shipped manifests and an image archive.
//! kubelet, kube-proxy and the control plane are of one release. The runtime is containerd.
//!
//! Tests observe the node from outside, at port 10256 and at node ports. Each test has its own node.

mod address;
mod attackers;
mod faults;
mod first;
mod fleet;
mod leaving;
mod mount;
mod preflight;
mod release;
mod remove;
mod rights;
mod rollout;
mod scene;
mod upgrade;
