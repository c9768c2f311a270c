//! Where the cluster view comes from: a folder of ordinary Kubernetes YAML, followed live.
//!
//! Sources turn Kubernetes objects into facts ([`convert`]) and deliver [`Change`]s in batches; what
//! follows from facts is none of their business. The API server will be a second source beside
//! the folder, behind the same conversion. Kubernetes types must not leave [`convert`].
//!
//! [`Change`]: crate::domain::cluster::Change

pub mod convert;
pub mod manifests;
pub mod watch;
pub mod yaml;

#[cfg(test)]
mod tests;
