//! The agent as it is installed: on a real one-node Kubernetes (kubelet, containerd, kube-proxy, the
//! whole control plane, all of one release), from the shipped manifests and an image in an archive.
//!
//! What matters is seen from outside, at 10256 and at node ports. Each test has a node of its own.

mod faults;
mod first;
mod fleet;
mod leaving;
mod mount;
mod remove;
mod rights;
mod rollout;
mod scene;
mod upgrade;
