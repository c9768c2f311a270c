//! A real cluster in a [`World`](crate::world::World): etcd and kube-apiserver on the other node,
//! kube-proxy on the node under test, objects by the API, and everything that deploy/base says.
//!
//! Nothing of Kubernetes is imitated: the servers are those of a release (`cargo xtask
//! setup-cluster`), the rights are those of the shipped roles, tokens come by TokenRequest. There
//! is no controller manager, no scheduler and no kubelet: what they would do, tests do.

mod api;
mod audit;
pub mod base;
mod control_plane;
mod crowd;
mod install;
mod kube_proxy;
mod map_eye;
mod objects;
mod relay;
mod servers;

pub use crate::process::Process;
pub use api::{Api, Refused};
pub use audit::Request;
pub use control_plane::{ControlPlane, kubeconfig};
pub use crowd::{Crowd, each};
pub use install::{account_kubeconfig, install, install_node, namespace, put_file, reserve};
pub use kube_proxy::{HEALTHZ_PORT as KUBE_PROXY_HEALTHZ_PORT, KubeProxy, Mode, flush_services};
pub use map_eye::MapEye;
pub use objects::{create, documents, node_pod};
pub use relay::{Manner, Relay};
pub use servers::Servers;
