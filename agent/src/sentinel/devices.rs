//! The sentinel's two veth pairs in the node's own network namespace, their static neighbours and
//! host routes, all by netlink (docs/adr/0006-sentinel-devices.md).
//!
//! No address is assigned to any device, nothing of others is changed or deleted, and forwarding
//! and filter settings of the near ends are inherited, never written: a probe must suffer what a
//! pod suffers. Nothing here keeps state: whatever an earlier run left is found by name, kind and
//! hardware address.

mod conflict;
mod ensure;
mod forwarding;
mod netlink;
mod node;
mod pair;
mod settings;
mod verify;

use std::io;
use std::net::IpAddr;

use agent_common::service::Family;
use thiserror::Error;

pub use conflict::{Conflict, Known, conflict};
pub use ensure::ensure;
pub use forwarding::{forwarding, is_enabled, overridden};
pub use node::{LocalAddress, Neighbour, NodeState, Route};
pub use pair::remove;
pub use settings::{
    HardwareAddress, Pair, PodSources, Role, Settings, SettingsError, benchmark_range,
};
pub use verify::{Damage, verify};

/// `rtm_protocol` of our routes, by which they are told from others' (`ip route show proto 112`).
/// No routing daemon has it in iproute2's rt_protos.
pub const ROUTE_PROTOCOL: u8 = 0x70;
/// `ifalias` of our devices: tells an administrator whose they are, and us that they are ours
/// though somebody changed a hardware address.
pub const ALIAS: &str = "pathproof sentinel";

/// One end of a pair, as it is on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct End {
    /// Interface index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// Hardware address.
    pub mac: HardwareAddress,
}

/// The devices, ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentinelDevices {
    /// Where probes enter the node, as a pod's packets would.
    pub client_near: End,
    /// Where probes are written, and their answers collected.
    pub client_far: End,
    /// Where the datapath sends what it translated.
    pub server_near: End,
    /// Where the echo is.
    pub server_far: End,
    /// Families that can be probed; IPv6 is missing where the node has none.
    pub families: Vec<Family>,
    /// What is other than it should be and does no harm, a sentence each.
    pub notes: Vec<String>,
}

impl SentinelDevices {
    /// The end of a role.
    pub fn end(&self, role: Role) -> &End {
        match role {
            Role::ClientNear => &self.client_near,
            Role::ClientFar => &self.client_far,
            Role::ServerNear => &self.server_near,
            Role::ServerFar => &self.server_far,
        }
    }

    /// Whether a family can be probed.
    pub fn has(&self, family: Family) -> bool {
        self.families.contains(&family)
    }
}

/// Why there are no devices.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// The settings make no sense.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// No netlink socket.
    #[error("cannot open a netlink socket: {source}")]
    Open {
        /// Why not.
        source: io::Error,
    },
    /// The agent lacks the right; everything else would fail alike.
    #[error(
        "cannot {operation}: CAP_NET_ADMIN is missing; the sentinel is off until the agent is given it"
    )]
    Permission {
        /// What was refused.
        operation: String,
    },
    /// The kernel refused something.
    #[error("cannot {operation}: {source}")]
    Refused {
        /// What was refused.
        operation: String,
        /// Why.
        source: io::Error,
    },
    /// A device bears one of our names and is not ours.
    #[error("{name} {why}; it is left alone: {remedy}")]
    Foreign {
        /// The device.
        name: String,
        /// What is wrong with it.
        why: String,
        /// What to do about it.
        remedy: String,
    },
    /// One of our addresses is routed elsewhere already.
    #[error(
        "{address} is routed to {by} already; that route is left alone: remove it, or choose other sentinel addresses"
    )]
    RouteTaken {
        /// Ours.
        address: IpAddr,
        /// Device of the route that is there.
        by: String,
    },
}

impl DeviceError {
    /// Whether the agent lacks a capability.
    pub fn is_permission(&self) -> bool {
        matches!(self, DeviceError::Permission { .. })
    }
}
