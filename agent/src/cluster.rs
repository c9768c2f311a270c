//! Where the cluster view comes from: an API server ([`api`]), or a folder of ordinary Kubernetes
//! YAML ([`watch`]), followed live.
//!
//! Both turn Kubernetes objects into facts ([`convert`]) and deliver [`Change`]s in batches; what
//! follows from facts is none of their business. Kubernetes types must not leave this module.
//!
//! [`Change`]: agent_core::cluster::Change

pub mod api;
pub mod convert;
mod facts;
pub mod manifests;
pub mod watch;
pub mod yaml;

#[cfg(test)]
mod tests;
