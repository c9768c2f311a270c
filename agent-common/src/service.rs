//! The expectations as the kernel holds them: frontends, endpoints, where a source is, devices.
//!
//! Addresses are 16 bytes, IPv4 as IPv4-mapped IPv6 (`::ffff:a.b.c.d`); ports are two bytes in
//! network order, as they stand in the packet.

/// An address of either family, IPv4 mapped into IPv6 (RFC 4291, section 2.5.5.2).
pub type Address = [u8; 16];

/// A port in network byte order.
pub type Port = [u8; 2];

/// IP family of a packet, a Service id or a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum Family {
    /// IPv4.
    V4 = 0,
    /// IPv6.
    V6 = 1,
}

/// Number of families.
pub const FAMILIES: usize = 2;

impl Family {
    /// Both, in the order of their indexes.
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

/// Maps an IPv4 address into the 16 bytes used everywhere.
#[inline(always)]
pub fn mapped(v4: [u8; 4]) -> Address {
    let [a, b, c, d] = v4;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, a, b, c, d]
}

/// Origin of a connection; also the path it takes through the datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum SourceClass {
    /// A pod of this node.
    Pod = 0,
    /// This node itself.
    Host = 1,
    /// Anything else: outside clients and pods of other nodes.
    External = 2,
}

/// Number of source classes, and so of paths.
pub const SOURCE_CLASSES: usize = 3;

impl SourceClass {
    /// All, in the order of their indexes.
    pub const ALL: [SourceClass; SOURCE_CLASSES] =
        [SourceClass::Pod, SourceClass::Host, SourceClass::External];

    /// The class of an index as the maps hold it; anything unknown is external.
    #[inline(always)]
    pub fn from_index(index: u32) -> SourceClass {
        match index {
            0 => SourceClass::Pod,
            1 => SourceClass::Host,
            _ => SourceClass::External,
        }
    }
}

/// Treatment that a datapath owes to a new connection for a frontend from one source class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Owed {
    /// Nothing: it may forward, drop or reject (source ranges, a policy without local endpoints).
    Nothing = 0,
    /// To be forwarded to any endpoint of the Service.
    Forward = 1,
    /// To be forwarded to an endpoint of this node.
    LocalOnly = 2,
    /// To be rejected: the Service has no endpoints.
    Reject = 3,
}

impl Owed {
    /// The value of a byte as the maps hold it; anything unknown is nothing.
    #[inline(always)]
    pub fn from_byte(byte: u8) -> Owed {
        match byte {
            1 => Owed::Forward,
            2 => Owed::LocalOnly,
            3 => Owed::Reject,
            _ => Owed::Nothing,
        }
    }

    /// Whether a connection that does not get through is a failure of the datapath.
    #[inline(always)]
    pub fn is_forward(self) -> bool {
        matches!(self, Owed::Forward | Owed::LocalOnly)
    }
}

/// Kinds of Service addresses that a frontend can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum FrontendKind {
    /// A cluster IP.
    ClusterIp = 0,
    /// A node port on an address of this node.
    NodePort = 1,
    /// A load balancer's ingress IP with ipMode VIP.
    LoadBalancer = 2,
    /// An external IP.
    ExternalIp = 3,
}

impl FrontendKind {
    /// The kind of a byte as the maps hold it.
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

/// IP protocol number of TCP.
pub const TCP: u8 = 6;
/// IP protocol number of UDP.
pub const UDP: u8 = 17;

/// A frontend: what clients of a Service dial. Aligned, so that its address is moved in words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(C, align(4))]
pub struct FrontendKey {
    /// Mapped address.
    pub address: Address,
    /// Port, network order.
    pub port: Port,
    /// IP protocol number: [`TCP`] or [`UDP`].
    pub protocol: u8,
    /// Always zero: keys are compared byte by byte.
    pub padding: u8,
}

/// Properties of a frontend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct FrontendValue {
    /// Id of the Service port and family, an index of the counts.
    pub service: u32,
    /// [`FrontendKind`].
    pub kind: u8,
    /// Bits of [`frontend_flag`].
    pub flags: u8,
    /// [`Owed`] by [`SourceClass`].
    pub owed: [u8; SOURCE_CLASSES],
    /// Always zero.
    pub padding: [u8; 3],
}

impl FrontendValue {
    /// Whether it is an endpoint that left ([`frontend_flag::DEPARTED`]).
    #[inline(always)]
    pub fn is_departed(&self) -> bool {
        self.flags & frontend_flag::DEPARTED != 0
    }

    /// [`Owed`] to a source class, as a byte. Read by a shift, not an index: an index into a value
    /// on the stack becomes arithmetic on a pointer that the verifier refuses.
    #[inline(always)]
    pub fn owed_to(&self, class: SourceClass) -> u8 {
        let [pod, host, external] = self.owed;
        (u32::from_le_bytes([pod, host, external, 0]) >> (class as u32 * 8)) as u8
    }
}

/// Flags of a frontend.
pub mod frontend_flag {
    /// The Service has an endpoint at an address of this node: its packets never leave by a device,
    /// and a refusal or silence may be the endpoint's own.
    pub const HOST_ENDPOINT: u8 = 1;
    /// The frontend is the sentinel's: its connections are probes, which are no proof of real
    /// traffic and no part of its delays.
    pub const SENTINEL: u8 = 2;
    /// No frontend, but an endpoint that left its slice. Where sockets are translated, connections have
    /// the endpoint's address from the beginning: one of a pod that goes to this one is stale, or of a
    /// client that knows the pod's own address. It counts for nothing unless it stays unanswered.
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
    /// Port, network order.
    pub port: Port,
    /// Always zero.
    pub padding: [u8; 2],
}

/// Properties of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct EndpointValue {
    /// Bits of [`endpoint_flag`], and from [`PEER_SHIFT`] on the number of the node that it is on.
    pub flags: u32,
}

impl EndpointValue {
    /// Number of the other node that it is on; zero for this node and where that is not known.
    #[inline(always)]
    pub fn peer(&self) -> u16 {
        (self.flags >> PEER_SHIFT) as u16
    }
}

/// An endpoint as its map holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct EndpointEntry {
    /// Written by the agent.
    pub value: EndpointValue,
    /// Always zero.
    pub padding: u32,
    /// `CLOCK_MONOTONIC` time at which a new connection was first sent to it, or last if the endpoint
    /// has left; zero until then. Written by the programs; the agent sets it to zero.
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
/// Stands where another node's number would: the connection was sent to an endpoint of this node, and
/// not back to its own client, which policies always let through.
pub const NEAR: u16 = u16::MAX;

/// Flags of an endpoint.
pub mod endpoint_flag {
    /// The endpoint is a pod of this node.
    pub const LOCAL: u32 = 1;
    /// The endpoint has left its slice; kept for a while so that a new connection that still goes
    /// to it is told from one that goes to a stranger.
    pub const LEFT: u32 = 2;
    /// It is of a UDP port.
    pub const UDP: u32 = 4;
}

/// Flags of a device.
pub mod device_flag {
    /// A default route leaves by this device.
    pub const UPLINK: u32 = 1;
    /// Another program runs behind the observer here. It may translate what leaves, and carry what
    /// comes in to a pod past the hooks of the pod's device (`bpf_redirect_peer`).
    pub const FOREIGN: u32 = 2;
    /// Its other end lies in another network namespace, and no default route leaves by it: what comes
    /// in is a pod's, whatever ranges the Node states.
    pub const PODS: u32 = 4;
}
