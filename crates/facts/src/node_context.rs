//! This node's facts for expectations: its addresses, and the source prefixes of its pods and of itself.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use pathproof_wire::service::{Address, SourceClass, mapped};

use crate::cluster::{NodeFacts, ObjectName};

/// An address as the kernel's maps store it: IPv4 is mapped into IPv6.
pub fn address(ip: &IpAddr) -> Address {
    match ip {
        IpAddr::V4(v4) => mapped(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// A prefix of mapped source addresses: the key of the SOURCES map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourcePrefix {
    /// Mapped address; bits past the prefix are zero.
    pub address: Address,
    /// Length in bits of the mapped form: an IPv4 /24 is 120.
    pub bits: u32,
}

impl SourcePrefix {
    pub fn host(address: Address) -> Self {
        Self { address, bits: 128 }
    }

    pub fn of(net: &IpNet) -> Self {
        let network = address(&net.network());
        let offset = if net.addr().is_ipv4() { 96 } else { 0 };
        Self {
            address: network,
            bits: offset + u32::from(net.prefix_len()),
        }
    }

    pub fn contains(&self, address: &Address) -> bool {
        let mask = u128::MAX.checked_shl(128 - self.bits).unwrap_or(0);
        (u128::from_be_bytes(*address) ^ u128::from_be_bytes(self.address)) & mask == 0
    }
}

/// Name of the pod probe's Service, in the sentinel's namespace.
pub const ECHO_SERVICE: &str = "pathproof-echo";

/// Facts of this node that expectations depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeContext {
    /// Mapped addresses of the node: destinations of node ports, and sources of the node's connections.
    pub addresses: Vec<Address>,
    pub pod_ranges: Vec<SourcePrefix>,
    /// The Service whose connections are probes, if there is one.
    pub sentinel: Option<ObjectName>,
}

impl NodeContext {
    /// From the node's facts; empty if the node is unknown.
    pub fn of(node: Option<&NodeFacts>) -> Self {
        let Some(node) = node else {
            return Self::default();
        };
        // Unique and sorted.
        let addresses: BTreeSet<Address> = node.addresses.iter().map(address).collect();
        let pod_ranges = node.pod_cidrs.iter().map(SourcePrefix::of);
        Self {
            addresses: addresses.into_iter().collect(),
            pod_ranges: pod_ranges.collect::<BTreeSet<_>>().into_iter().collect(),
            sentinel: None,
        }
    }

    /// Sets the Service whose connections are probes.
    pub fn with_sentinel(mut self, sentinel: Option<ObjectName>) -> Self {
        self.sentinel = sentinel;
        self
    }

    /// Whether this is the pod probe's Service.
    pub fn is_echo(&self, name: &ObjectName) -> bool {
        let sentinel = self.sentinel.as_ref();
        &*name.name == ECHO_SERVICE
            && sentinel.is_some_and(|sentinel| sentinel.namespace == name.namespace)
    }

    /// Source prefixes of the node: its pod ranges and its own addresses.
    pub fn sources(&self) -> BTreeMap<SourcePrefix, SourceClass> {
        let pods = self.pod_ranges.iter().copied();
        let hosts = self.addresses.iter().copied().map(SourcePrefix::host);
        let pods = pods.map(|range| (range, SourceClass::Pod));
        pods.chain(hosts.map(|host| (host, SourceClass::Host)))
            .collect()
    }
}
