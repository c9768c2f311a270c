//! A real cluster in a [`World`](crate::world::World): etcd and kube-apiserver on the other node, kube-proxy
//! on the node under test, objects through the API, and all objects of deploy/base.
//!
//! No part of Kubernetes is imitated: the servers are released ones (`cargo xtask setup-cluster`), the
//! permissions are those of the shipped roles, and tokens come from TokenRequest. There is no controller
//! manager, scheduler or kubelet: tests create their objects instead.

mod api;
pub mod base;
mod control_plane;
pub mod crowd;
mod kube_proxy;
mod map_eye;
mod objects;
mod relay;
mod scene;
mod servers;
mod watches;

pub use api::{Api, refused};
pub use control_plane::ControlPlane;
pub use crowd::each;
pub use kube_proxy::{HEALTHZ_PORT as KUBE_PROXY_HEALTHZ_PORT, KubeProxy, Mode, flush_services};
pub use map_eye::MapEye;
pub use objects::{
    create, documents, install, install_node, namespace, node_pod, node_token, put_file,
    read_documents, reserve, reserve_by,
};
pub use relay::{Manner, Relay};
pub use scene::{PATIENCE, PORT, Scene, services, wait_proven};
pub use servers::Servers;
pub use watches::Watches;

pub use crate::process::Process;
