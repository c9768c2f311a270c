//! The sentinel's two veth pairs in the node's own network namespace, their static neighbours and
//! host routes, all by netlink (docs/adr/0006-sentinel-devices.md).
//!
//! No address is assigned to any device, nothing of others is changed or deleted, and forwarding
//! and filter settings of the near ends are inherited, never written: a probe must suffer what a
//! pod suffers. Nothing here keeps state: whatever an earlier run left is found by name, kind and
//! hardware address.

mod conflict;
mod ensure;
mod netlink;
mod verify;

use std::io;
use std::net::IpAddr;

use agent_common::service::Family;
use thiserror::Error;

use crate::config::SentinelConfig;

pub use conflict::conflict;
pub use ensure::{ensure, remove};
pub use verify::verify;

/// `rtm_protocol` of our routes, by which they are told from others' (`ip route show proto 112`).
/// No routing daemon has it in iproute2's rt_protos.
const ROUTE_PROTOCOL: u8 = 0x70;
/// `ifalias` of our devices: tells an administrator whose they are, and us that they are ours
/// though somebody changed a hardware address.
const ALIAS: &str = "pathproof sentinel";

/// Hardware address of an Ethernet device.
pub type Mac = [u8; 6];

/// A hardware address as `ip link` shows it.
pub fn written(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The four ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// `-c0`: where probes enter the node, as a pod's packets would.
    ClientNear,
    /// `-c1`: where probes are written, and their answers collected.
    ClientFar,
    /// `-s0`: where the datapath sends what it translated.
    ServerNear,
    /// `-s1`: where the echo is.
    ServerFar,
}

impl Role {
    /// All, in the order of their indexes.
    pub const ALL: [Role; 4] = [
        Role::ClientNear,
        Role::ClientFar,
        Role::ServerNear,
        Role::ServerFar,
    ];
    /// Those in the node's routing.
    pub const NEAR: [Role; 2] = [Role::ClientNear, Role::ServerNear];

    /// The other end of the pair.
    fn peer(self) -> Role {
        match self {
            Role::ClientNear => Role::ClientFar,
            Role::ClientFar => Role::ClientNear,
            Role::ServerNear => Role::ServerFar,
            Role::ServerFar => Role::ServerNear,
        }
    }

    fn is_near(self) -> bool {
        Role::NEAR.contains(&self)
    }

    /// Name of the device, of the prefix that the operator chose.
    pub fn name(self, prefix: &str) -> String {
        let suffix = ["c0", "c1", "s0", "s1"][self as usize];
        format!("{prefix}-{suffix}")
    }

    /// Hardware address: locally administered, "path" and the end. By rule, and set when the device
    /// is created: udev's persistent policy leaves it alone then, and static neighbours stay right.
    pub fn mac(self) -> Mac {
        mac([0xc0, 0xc1, 0xe0, 0xe1][self as usize])
    }

    /// Hardware address of the neighbours behind the pair. Not that of the far end: what reaches
    /// it is for another host then, so that without our programs the kernel drops it, whatever
    /// forwarding is set to.
    fn behind(self) -> Mac {
        mac([0xce, 0xce, 0xee, 0xee][self as usize])
    }

    /// Addresses of a family that are reached through a near end.
    fn addresses(self, config: &SentinelConfig, family: Family) -> Vec<IpAddr> {
        let at = family as usize;
        match self {
            Role::ClientNear => [Some(config.client[at]), config.pod[at]]
                .into_iter()
                .flatten()
                .collect(),
            _ => vec![config.echo[at]],
        }
    }
}

const fn mac(last: u8) -> Mac {
    [0x02, b'p', b'a', b't', b'h', last]
}

/// The devices, ready.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentinelDevices {
    /// Interface indexes, by [`Role`].
    pub indexes: [u32; 4],
    /// Families that can be probed; IPv6 is missing where the node has none.
    pub families: Vec<Family>,
}

impl SentinelDevices {
    /// Interface index of an end.
    pub fn index(&self, role: Role) -> u32 {
        self.indexes[role as usize]
    }

    /// Whether a family can be probed.
    pub fn has(&self, family: Family) -> bool {
        self.families.contains(&family)
    }
}

/// Reason why there are no devices.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// No netlink socket.
    #[error("cannot open a netlink socket: {0}")]
    Open(#[source] io::Error),
    /// The agent lacks the right; everything else would fail alike.
    #[error("cannot {operation}: CAP_NET_ADMIN is missing")]
    Permission {
        /// Operation that was refused.
        operation: String,
    },
    /// The kernel refused something.
    #[error("cannot {operation}: {source}")]
    Refused {
        operation: String,
        source: io::Error,
    },
    /// A device or route of others is in the way; in words, with the remedy.
    #[error("{0}")]
    Foreign(String),
}

impl DeviceError {
    /// Whether the agent lacks a capability.
    pub fn is_permission(&self) -> bool {
        matches!(self, DeviceError::Permission { .. })
    }
}

#[cfg(test)]
mod tests;
