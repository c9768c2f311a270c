//! Results of route and neighbour lookups in the kernel for clients whose connections are lost.
//!
//! A policy may have dropped a lost connection. But if the kernel cannot deliver packets between the client
//! and the endpoints of this node, no policy is needed to explain the loss.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use pathproof_facts::cause::Cause;
use pathproof_wire::service::SourceClass;
use serde::{Deserialize, Serialize};

/// Maximum number of local endpoints that are looked up: each takes up to four requests to the kernel.
pub const ENDPOINTS: usize = 16;
/// Maximum number of endpoints whose device is looked up at one check.
pub const ENDPOINTS_AT_ONCE: usize = 32;

/// The pods' device by which the node reaches one of its endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointRoute {
    pub endpoint: IpAddr,
    pub device: String,
    pub index: u32,
    /// Whether the device leads to this pod alone, unlike a bridge.
    pub is_own: bool,
}

/// Which devices of this node's endpoints the agent should look up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointsAsked {
    /// Endpoints without a known device.
    pub endpoints: Vec<IpAddr>,
    /// Endpoints whose device is known, but which are no longer in the cluster view.
    pub left: Vec<IpAddr>,
    /// Interface indexes of known devices that lead to a single pod. The agent checks whether they still
    /// exist.
    pub devices: Vec<u32>,
}

/// Devices by which the node reaches endpoints, and what is gone since the last lookup.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointRoutes {
    pub routes: Vec<EndpointRoute>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left: Vec<IpAddr>,
    /// Interface indexes of known devices that no longer exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<u32>,
}

/// A client whose connections are lost, or one that was served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    #[serde(rename = "client")]
    pub address: IpAddr,
    pub class: SourceClass,
    /// Index of the interface by which its connections enter.
    pub device: u32,
}

/// Whether packets pass between a client and one endpoint, as the kernel's tables show it now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// There are routes in both directions, and the neighbour answers.
    Open,
    /// Nothing passes, for this reason.
    Blocked(Cause),
    /// The kernel does not show whether packets pass.
    Unclear,
}

/// Sum of the lookups for one client and the endpoints of this node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lookup {
    #[serde(flatten)]
    pub client: Client,
    /// Reason of the first blocked endpoint.
    pub cause: Option<Cause>,
    pub blocked: u32,
    pub open: u32,
    pub unclear: u32,
    /// 2 if blocked endpoints are of two namespaces, otherwise at most 1.
    pub namespaces: u32,
}

impl Lookup {
    /// Sums up the results for endpoints, each with the namespaces that list it.
    ///
    /// Anybody who can edit a slice can list the pods of other namespaces. So two namespaces count as two only
    /// if they have no blocked endpoint in common. A tenant who lists pods of one namespace then makes no second
    /// one of it, and one who lists pods of two namespaces does not join them.
    pub fn of<'a>(client: Client, ways: impl IntoIterator<Item = (Vec<&'a str>, Way)>) -> Self {
        let mut namespaces: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        let mut sum = Self {
            client,
            cause: None,
            blocked: 0,
            open: 0,
            unclear: 0,
            namespaces: 0,
        };
        for (listed_by, way) in ways {
            match way {
                Way::Open => sum.open += 1,
                Way::Unclear => sum.unclear += 1,
                Way::Blocked(cause) => {
                    sum.blocked += 1;
                    sum.cause.get_or_insert(cause);
                    for namespace in listed_by {
                        let blocked = namespaces.entry(namespace).or_default();
                        blocked.insert(sum.blocked);
                    }
                }
            }
        }
        let blocked: Vec<_> = namespaces.into_values().collect();
        let is_apart = |one: &BTreeSet<u32>| blocked.iter().any(|other| one.is_disjoint(other));
        sum.namespaces = match blocked.iter().any(is_apart) {
            true => 2,
            false => sum.blocked.min(1),
        };
        sum
    }

    /// Whether the client reaches no endpoint of this node. None may be open, and most must be blocked, in at
    /// least `namespaces` namespaces: a single endpoint, or all those of one tenant, may be about to leave.
    pub fn is_blocked(&self, namespaces: usize) -> bool {
        self.open == 0
            && self.blocked > 1
            && self.blocked > self.unclear
            && self.namespaces as usize >= namespaces
    }
}
