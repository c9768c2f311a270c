//! The agent in a real cluster in network namespaces: etcd, kube-apiserver with RBAC and the roles of
//! deploy/base, and kube-proxy, all of one release.
//!
//! Tests send the same request to kube-proxy's health server and to the agent, and compare the answers. Each
//! test has its own cluster.

mod admission;
mod afresh;
mod balancer;
mod balancers_withdrawn;
mod black_hole;
mod brake;
mod calm;
mod checkers;
mod compare;
mod controls;
mod declared;
mod faults;
mod first;
mod five;
mod flannel;
mod fleet;
mod forms;
mod health_ports;
mod in_cluster;
mod ipvs;
mod kube_proxy_compat;
mod mode_changed;
mod outages;
mod parity;
mod peers;
mod publish;
mod quiet;
mod releases;
mod rights;
mod rotate;
mod scene;
mod shipped;
mod takeover;
mod tenant;
mod tenants;
mod upgrades;
mod uses;
