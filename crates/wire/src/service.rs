//! Expectations in the layout of the kernel's maps: frontends, endpoints, classes of sources, devices.
//!
//! Addresses are 16 bytes, with IPv4 as IPv4-mapped IPv6 (`::ffff:a.b.c.d`). Ports are two bytes in network
//! order, as in a packet.

/// An address of either family, IPv4 mapped into IPv6 (RFC 4291, section 2.5.5.2).
pub type Address = [u8; 16];

/// A port in network byte order.
pub type Port = [u8; 2];

/// IP family of a packet, a Service id or a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[repr(u32)]
pub enum Family {
    #[cfg_attr(feature = "serde", serde(rename = "IPv4"))]
    V4 = 0,
    #[cfg_attr(feature = "serde", serde(rename = "IPv6"))]
    V6 = 1,
}

pub const FAMILIES: usize = 2;

impl Family {
    pub const ALL: [Family; FAMILIES] = [Family::V4, Family::V6];

    /// The family of a mapped address.
    pub fn of(address: &Address) -> Family {
        if address[..10] == [0; 10] && address[10] == 0xff && address[11] == 0xff {
            Family::V4
        } else {
            Family::V6
        }
    }
}

/// Maps an IPv4 address to 16 bytes.
#[inline(always)]
pub fn mapped(v4: [u8; 4]) -> Address {
    let [a, b, c, d] = v4;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// Origin of a connection; also the path it takes through the datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[repr(u8)]
pub enum SourceClass {
    /// A pod of this node.
    Pod = 0,
    /// This node itself.
    Host = 1,
    /// Anything else: outside clients and pods of other nodes.
    External = 2,
}

/// Number of source classes, which are also the paths.
pub const SOURCE_CLASSES: usize = 3;

impl SourceClass {
    pub const ALL: [SourceClass; SOURCE_CLASSES] =
        [SourceClass::Pod, SourceClass::Host, SourceClass::External];

    /// Converts an index in the maps; unknown values are external.
    #[inline(always)]
    pub fn from_index(index: u32) -> SourceClass {
        match index {
            0 => SourceClass::Pod,
            1 => SourceClass::Host,
            _ => SourceClass::External,
        }
    }
}

/// Treatment that a new connection to a frontend should get, by source class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum ExpectedHandling {
    /// No particular treatment: the connection may be forwarded, dropped or rejected (source ranges, a
    /// policy Local without local endpoints).
    Nothing = 0,
    /// Forwarded to any endpoint of the Service.
    Forward = 1,
    /// Forwarded to an endpoint of this node.
    LocalOnly = 2,
    /// Rejected, because the Service has no endpoints.
    Reject = 3,
}

impl ExpectedHandling {
    /// Converts a byte in the maps; unknown values are `Nothing`.
    #[inline(always)]
    pub fn from_byte(byte: u8) -> ExpectedHandling {
        match byte {
            1 => ExpectedHandling::Forward,
            2 => ExpectedHandling::LocalOnly,
            3 => ExpectedHandling::Reject,
            _ => ExpectedHandling::Nothing,
        }
    }

    /// Whether it is a failure of the datapath if the connection does not get through.
    #[inline(always)]
    pub fn is_forward(self) -> bool {
        matches!(
            self,
            ExpectedHandling::Forward | ExpectedHandling::LocalOnly
        )
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "snake_case"))]
#[repr(u8)]
pub enum FrontendKind {
    ClusterIp = 0,
    /// A node port on an address of this node.
    NodePort = 1,
    /// A load balancer's ingress IP with ipMode VIP.
    LoadBalancer = 2,
    ExternalIp = 3,
}

impl FrontendKind {
    /// Converts a byte in the maps.
    #[inline(always)]
    pub fn from_byte(byte: u8) -> FrontendKind {
        match byte {
            0 => FrontendKind::ClusterIp,
            1 => FrontendKind::NodePort,
            2 => FrontendKind::LoadBalancer,
            _ => FrontendKind::ExternalIp,
        }
    }
}

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;

/// A frontend: an address that clients of a Service dial. Aligned, so that the address is copied by words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C, align(4))]
pub struct FrontendKey {
    /// Mapped address.
    pub address: Address,
    /// Port in network order.
    pub port: Port,
    /// IP protocol number: [`TCP`] or [`UDP`].
    pub protocol: u8,
    /// Always zero: keys are compared byte by byte.
    pub padding: u8,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FrontendValue {
    /// Id of the Service port and family, which is an index of the counts.
    pub service: u32,
    /// [`FrontendKind`].
    pub kind: u8,
    /// Bits of [`frontend_flag`].
    pub flags: u8,
    /// [`ExpectedHandling`] by [`SourceClass`].
    pub owed: [u8; SOURCE_CLASSES],
    pub padding: [u8; 3],
}

impl FrontendValue {
    /// Whether this entry is an endpoint that left ([`frontend_flag::DEPARTED`]).
    #[inline(always)]
    pub fn is_departed(&self) -> bool {
        self.flags & frontend_flag::DEPARTED != 0
    }

    /// [`ExpectedHandling`] for a source class as a byte. The byte is selected by a shift, because an index
    /// into a value on the stack becomes pointer arithmetic that the verifier rejects.
    #[inline(always)]
    pub fn expected_handling(&self, class: SourceClass) -> u8 {
        let [pod, host, external] = self.owed;
        (u32::from_le_bytes([pod, host, external, 0]) >> (class as u32 * 8)) as u8
    }
}

pub mod frontend_flag {
    /// The Service has an endpoint at an address of this node. Packets to it never leave by a device, and a
    /// refusal or silence may be the endpoint's.
    pub const HOST_ENDPOINT: u8 = 1;
    /// The frontend is the sentinel's. Its connections are probes, which neither prove real traffic nor
    /// count for its delays.
    pub const SENTINEL: u8 = 2;
    /// Not a frontend, but the address of an endpoint that left its slice. If the datapath translates at
    /// the socket, as Cilium does, a connection has the endpoint's address from the start. So a pod's
    /// connection to this address is either stale, or from a client that dials the pod's address itself. It
    /// counts only if it stays unanswered.
    pub const DEPARTED: u8 = 4;
}

/// An endpoint of a Service port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C)]
pub struct EndpointKey {
    /// Id of the Service port and family.
    pub service: u32,
    /// Mapped address.
    pub address: Address,
    /// Port in network order.
    pub port: Port,
    pub padding: [u8; 2],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct EndpointValue {
    /// Bits of [`endpoint_flag`]. The bits from [`PEER_SHIFT`] on are the number of the endpoint's node.
    pub flags: u32,
}

impl EndpointValue {
    /// Number of the endpoint's node; zero for this node, and if it is unknown.
    #[inline(always)]
    pub fn peer(&self) -> u16 {
        (self.flags >> PEER_SHIFT) as u16
    }
}

/// An entry of the map of endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EndpointEntry {
    /// Written by the agent.
    pub value: EndpointValue,
    pub padding: u32,
    /// `CLOCK_MONOTONIC` time at which the first new connection was sent to the endpoint, or the last one
    /// if the endpoint has left its slice. Zero if there was none. The programs write it, and the agent
    /// resets it to zero.
    pub met_ns: u64,
}

impl From<EndpointValue> for EndpointEntry {
    fn from(value: EndpointValue) -> Self {
        Self {
            value,
            ..Self::default()
        }
    }
}

/// Position of a node's number in [`EndpointValue::flags`].
pub const PEER_SHIFT: u32 = 16;
/// Value in place of another node's number: the connection was sent to an endpoint on this node.
/// Connections of a pod to itself do not get this value, because network policies always allow them.
pub const NEAR: u16 = u16::MAX;

pub mod endpoint_flag {
    /// The endpoint is a pod of this node.
    pub const LOCAL: u32 = 1;
    /// The endpoint has left its slice. The entry is not removed at once, so that connections to it are
    /// recognised as stale rather than misrouted.
    pub const LEFT: u32 = 2;
    /// The endpoint is of a UDP port.
    pub const UDP: u32 = 4;
}

pub mod device_flag {
    /// A default route leaves by this device.
    pub const UPLINK: u32 = 1;
    /// Another program runs behind the observer at this device. It may translate packets that leave. It may
    /// also redirect packets that enter to a pod, past the hooks of the pod's device (`bpf_redirect_peer`).
    pub const FOREIGN: u32 = 2;
    /// The device's other end is in another network namespace, and no default route leaves by the device.
    /// So packets that enter here are a pod's, even if their source is outside the Node's pod ranges.
    pub const PODS: u32 = 4;
}
