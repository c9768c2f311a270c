//! The sentinel's two veth pairs in the node's network namespace, with static neighbours and host
//! routes, all by netlink (docs/internal/design/sentinel.md#devices).
//!
//! No device has an address. Devices and routes of other owners are never changed or deleted. Forwarding and
//! filter settings of the near ends are inherited and never written, because a probe must be treated like a
//! pod's packet. The agent keeps no record of the devices: it finds leftovers of an earlier run by name, kind
//! and hardware address.

mod address_conflict;
mod answering;
mod ensure;
mod netlink;
mod verify;

use std::io;
use std::net::IpAddr;

pub use address_conflict::address_conflict;
pub use answering::{answering, uplinks};
pub use ensure::{ensure, remove};
use pathproof_wire::service::Family;
use thiserror::Error;
pub use verify::verify;

use crate::config::SentinelConfig;

/// `rtm_protocol` that marks the sentinel's routes (`ip route show proto 112`). No routing daemon in
/// iproute2's list (rt_protos) uses this number.
const ROUTE_PROTOCOL: u8 = 0x70;
/// `ifalias` of the sentinel's devices. It names the owner to administrators, and identifies the devices
/// even if somebody changed a hardware address.
const ALIAS: &str = "pathproof sentinel";

pub type Mac = [u8; 6];

/// Formats a hardware address like `ip link`.
pub fn written(mac: Mac) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

/// The four ends of the two veth pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// `-c0`: probes enter the node here, as a pod's packets would.
    ClientNear,
    /// `-c1`: probes are written and answers collected here.
    ClientFar,
    /// `-s0`: the datapath sends translated packets here.
    ServerNear,
    /// `-s1`: the echo program answers here.
    ServerFar,
}

impl Role {
    /// All ends, by index.
    pub const ALL: [Role; 4] = [
        Role::ClientNear,
        Role::ClientFar,
        Role::ServerNear,
        Role::ServerFar,
    ];
    /// The ends that the node's routes use.
    pub const NEAR: [Role; 2] = [Role::ClientNear, Role::ServerNear];

    fn peer(self) -> Role {
        // The two ends of a pair are neighbours in the list.
        Role::ALL[self as usize ^ 1]
    }

    fn is_near(self) -> bool {
        Role::NEAR.contains(&self)
    }

    /// Name of the device, with the configured prefix.
    pub fn name(self, prefix: &str) -> String {
        let suffix = ["c0", "c1", "s0", "s1"][self as usize];
        format!("{prefix}-{suffix}")
    }

    /// Hardware address: 0x02 (locally administered), "path", and a byte that differs for each end. It is set
    /// when the device is created, so udev's persistent policy leaves it alone. It never changes, so static
    /// neighbours stay correct.
    pub fn mac(self) -> Mac {
        mac([0xc0, 0xc1, 0xe0, 0xe1][self as usize])
    }

    /// Hardware address in the near end's static neighbour entries. No device has it, so a packet that
    /// reaches the far end counts as another host's. Without pathproof's programs the kernel therefore drops
    /// it, even if forwarding is on.
    fn behind(self) -> Mac {
        mac([0xce, 0xce, 0xee, 0xee][self as usize])
    }

    /// Addresses of a family that are routed to a near end.
    fn addresses(self, config: &SentinelConfig, family: Family) -> Vec<IpAddr> {
        let at = family as usize;
        match self {
            Role::ClientNear => [Some(config.place.client[at]), config.pod[at]]
                .into_iter()
                .flatten()
                .collect(),
            _ => vec![config.place.echo[at]],
        }
    }
}

const fn mac(last: u8) -> Mac {
    [0x02, b'p', b'a', b't', b'h', last]
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentinelDevices {
    /// Interface indexes, by [`Role`].
    pub indexes: [u32; 4],
    /// Families that can be probed; without IPv6 if the node has none.
    pub families: Vec<Family>,
}

impl SentinelDevices {
    pub fn index(&self, role: Role) -> u32 {
        self.indexes[role as usize]
    }

    pub fn has(&self, family: Family) -> bool {
        self.families.contains(&family)
    }
}

#[derive(Debug, Error)]
pub enum DeviceError {
    /// The agent lacks CAP_NET_ADMIN, so every other request would fail as well.
    #[error("cannot {operation}: CAP_NET_ADMIN is missing")]
    Permission { operation: String },
    #[error("cannot {operation}: {source}")]
    Refused {
        operation: String,
        source: io::Error,
    },
    /// A device or route of another owner prevents the operation. The text is a sentence with the remedy.
    #[error("{0}")]
    Foreign(String),
}

impl DeviceError {
    pub fn is_permission(&self) -> bool {
        matches!(self, DeviceError::Permission { .. })
    }
}

#[cfg(test)]
mod tests;
