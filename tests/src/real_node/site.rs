//! Name, network, addresses and folder of one real node.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;

use anyhow::Result;

use crate::prelude::*;
use crate::world::layout;

#[derive(Clone, Debug)]
pub(super) struct Site {
    pub(super) name: &'static str,
    pub(super) network: Namespace,
    pub(super) addresses: (Ipv4Addr, Ipv6Addr),
    pub(super) pod_cidrs: (&'static str, &'static str),
    /// First addresses in `pod_cidrs` that no pod of the world uses.
    pub(super) free_pods: (&'static str, &'static str),
    /// Outside of /run and /var, because the node mounts its own file systems there.
    pub(super) folder: PathBuf,
    /// Name of its control groups.
    pub(super) groups: String,
}

impl Site {
    /// The node under test.
    pub(super) fn node(world: &World) -> Result<Self> {
        Ok(Self {
            name: NODE_NAME,
            network: world.node.clone(),
            addresses: layout::NODE,
            pod_cidrs: layout::NODE_POD_CIDRS,
            free_pods: layout::FREE_PODS,
            folder: world.quick_dir()?.join("node"),
            groups: world.name().to_owned(),
        })
    }
}
