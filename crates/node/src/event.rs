//! Every input of a node. A recording has one event per line, so every event can be serialised
//! except those of the whole cluster view.

use std::net::{IpAddr, SocketAddr};

use pathproof_facts::cluster::{Change, NodeFacts, ObjectName};
use pathproof_facts::directory::{Missing, ServiceInfo};
use pathproof_facts::node_context::address;
use pathproof_facts::owners::OwnersRead;
use pathproof_facts::time::{Mono, Wall};
use pathproof_facts::trace::ProbeTrace;
use pathproof_judge::drain::Outside;
use pathproof_plan::expect::sentinel::{ABSENT, Sentinel};
use pathproof_plan::{Installed, MapChange};
use pathproof_wire::evidence::FAULTS;
use pathproof_wire::service::{EndpointKey, FAMILIES, Family, SOURCE_CLASSES};
use pathproof_witness::conntrack::Table;
use pathproof_witness::coverage::Hooks;
use pathproof_witness::drops::{DropCount, DropWatch};
use pathproof_witness::evidence::{
    CountDelta, EndpointRoutes, FailedConnection, Lookup, LostData, ProgrammingSeen, Success,
};
use pathproof_witness::peers::PeerSample;
use pathproof_witness::topology::TopologyFacts;
use serde::{Deserialize, Serialize};

/// One input of the node. The shell feeds events in order, each with its time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The cluster view or a problem of its source changed. A recording has [`Event::Facts`] and
    /// [`Event::Services`] instead, because a view may be 40 MB.
    #[serde(skip)]
    View(Box<ViewUpdate>),
    /// Content of the maps that a former agent left: the result of
    /// [`MapEffect::Read`](super::effect::MapEffect).
    #[serde(skip)]
    Installed(Installed),
    /// Changes of a plan for which a map had no room.
    #[serde(skip)]
    Full(Vec<MapChange>),
    /// Result of an uncached read of the sentinel, and the time of the request. The request was
    /// [`SentinelEffect::Reread`](super::effect::SentinelEffect); `None` if the API server did not answer.
    #[serde(skip)]
    Reread(Mono, Option<Vec<Change>>),
    /// The view's facts for the judge.
    Facts(Box<ViewFacts>),
    /// The Services that ids denote, recorded before an event first contains the ids.
    Services(Vec<Service>),
    /// Whether an uncached read of the sentinel, requested at this time, differed from the reports of the
    /// watches; `None` if the API server did not answer.
    Rechecked(Mono, Option<bool>),
    /// Another agent is about to replace this one.
    Successor(Successor),
    /// Interfaces came or went, or their hooks were checked.
    Hooks(Hooks),
    /// Removed or displaced hooks were attached again at this time.
    HooksRepaired(Mono),
    /// One sample of the kernel's evidence.
    Sample(Box<KernelSample>),
    /// The sample could not be read.
    SampleFailed(String),
    /// Time passed, and there is nothing to sample.
    Tick,
    /// A few seconds passed: periodic checks are due.
    Check,
    /// The wall clock was set to this time.
    ClockSet(Wall),
    /// The facts of the datapath's topology were read.
    #[serde(rename = "shape")]
    Topology(Box<TopologyFacts>),
    /// The kernel's connection table was read: the result of
    /// [`ReadEffect::Table`](super::effect::ReadEffect). `None` if the kernel has none.
    Table(Option<Table>),
    /// Lookups of the kernel's routes and neighbours: the result of
    /// [`ReadEffect::LookUp`](super::effect::ReadEffect).
    Lookups(Vec<Lookup>),
    /// Devices by which the node reaches its endpoints: the result of
    /// [`ReadEffect::Routes`](super::effect::ReadEffect).
    EndpointRoutes(EndpointRoutes),
    /// Whether the kernel's drop reasons are read now: the result of
    /// [`ReadEffect::WatchDrops`](super::effect::ReadEffect).
    DropWatch(DropWatch),
    /// A change of the sentinel's devices, programs or prober.
    #[serde(rename = "parts")]
    Sentinel(SentinelEvent),
    Trace(Box<ProbeTrace>),
}

/// A change of the cluster view.
#[derive(Clone, Debug, Default)]
pub struct ViewUpdate {
    /// Changes of objects, in order.
    pub changes: Vec<Change>,
    /// Problems of the source, a sentence each.
    pub problems: Vec<String>,
    /// The source does not report current changes.
    pub silent: bool,
    /// Number of objects of other kinds, which are ignored.
    pub ignored: u64,
    /// A Service with external IPs that the source left out for lack of memory, so its frontends are
    /// unknown.
    pub unknown_frontends: Option<ObjectName>,
    /// Why the source has no object of this node, a sentence.
    pub missing_node: Option<String>,
}

/// The part of the cluster view that the judge needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewFacts {
    /// The initial view was delivered completely.
    pub synced: bool,
    /// The source does not report current changes.
    pub silent: bool,
    /// This node's object, if known.
    pub node: Option<NodeFacts>,
    /// Families with frontends.
    pub families: [bool; FAMILIES],
    /// Number of entries for which a map had no room.
    pub missing: Missing,
    /// A Service with unknown frontends ([`ViewUpdate::unknown_frontends`]).
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        rename = "unknown_claims"
    )]
    pub unknown_frontends: Option<ObjectName>,
    pub sentinel: Sentinel,
    /// Families in which the pod probe has a ready pod on another node, and no other Service uses its
    /// frontends: after a boot, connections of this node's pod are expected too.
    pub pods_expected: [bool; FAMILIES],
    /// How the cluster already uses an address of the sentinel, as a sentence.
    pub taken: Option<String>,
    /// Addresses of the sentinel with ports at which somebody else may answer. They are not recorded, because a
    /// replay makes no devices.
    #[serde(skip)]
    pub tries: Vec<SocketAddr>,
}

impl ViewFacts {
    /// The sentinel. It is absent until the view is complete, because an incomplete view may hold only half
    /// of it.
    pub fn sentinel(&self) -> &Sentinel {
        match self.synced {
            true => &self.sentinel,
            false => &ABSENT,
        }
    }

    pub(crate) fn has_address(&self, family: Family) -> bool {
        let mut all = self.node.iter().flat_map(|node| &node.addresses);
        all.any(|ip| Family::of(&address(ip)) == family)
    }
}

/// The Service port behind an id of evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    pub id: u32,
    /// `None` if the id is not in use any more.
    pub known: Option<ServiceInfo>,
}

/// State of an agent on this node that was started later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Successor {
    #[default]
    None,
    /// The later agent has the hooks; this one still maintains the expectation maps.
    Observes,
    /// The later agent maintains the expectation maps too, with its own ids.
    Plans,
}

impl Successor {
    pub fn exists(self) -> bool {
        self != Successor::None
    }
}

/// One sample of the kernel's maps.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KernelSample {
    /// Services whose counts changed.
    pub counts: Vec<CountDelta>,
    /// Single failed connections.
    #[serde(rename = "sightings")]
    pub failed_connections: Vec<FailedConnection>,
    /// When a connection was last proven, by family and source class.
    pub last_proofs: [[Option<Mono>; SOURCE_CLASSES]; FAMILIES],
    /// Fault counts of the programs since they were loaded.
    pub faults: [u64; FAULTS],
    /// Number of connections whose entries were evicted too early. If such a connection repeats its SYN,
    /// the SYN counts as a first one.
    pub forgotten_early: usize,
    /// Connections from outside, by family, that were forwarded and not answered within the loss
    /// window. The endpoint itself may be at fault, so these connections count only while probes
    /// fail because their source is not masqueraded.
    pub unanswered: [u32; FAMILIES],
    /// Connections to other nodes.
    #[serde(default, skip_serializing_if = "PeerSample::is_empty")]
    pub peers: PeerSample,
    /// Whether the datapath follows endpoint changes, derived from connections; the node computes
    /// it from `met`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programming: Option<ProgrammingSeen>,
    /// For each set of datapath parts that connections need: the latest successful connections, if they
    /// changed since the previous sample. A connection is included in the first sample after its success.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub successes: Vec<Success>,
    /// Some of this node's endpoints for which a connection left by an uplink and was answered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_uplink: Vec<IpAddr>,
    /// Connections whose data was not forwarded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_data: Vec<LostData>,
    /// Packets that the kernel dropped, while its drop reasons are read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drops: Vec<DropCount>,
    /// Endpoints of [`MapEffect::ReadEndpoints`](super::effect::MapEffect) that received a
    /// connection. A recording has `programming` instead.
    #[serde(skip)]
    pub met: Vec<EndpointKey>,
    /// New connections from outside. Only the drain insight uses them, so they are not recorded.
    #[serde(skip)]
    pub outside: Outside,
}

/// Changes of the sentinel's devices, programs and prober.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SentinelEvent {
    /// The devices exist; they may have been made again.
    Ready,
    /// The devices cannot be made, for this reason.
    Off(String),
    /// The devices are damaged in this way.
    Damaged(String),
    /// Another program detached a program of the sentinel.
    Detached,
    /// Programs and prober were started, or failed to start for this reason: the result of
    /// [`SentinelEffect::Start`](super::effect::SentinelEffect).
    Started(Option<String>),
    /// The prober ended unexpectedly.
    Ended,
    /// Kernel state, read together with the devices.
    Kernel(KernelState),
}

/// Kernel state by family, read together with the sentinel's devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelState {
    /// Start of the check, if it found the devices sound.
    pub sound_since: Option<Mono>,
    /// Whether the kernel forwards packets.
    pub forwarding: [Option<bool>; FAMILIES],
    /// Owners of the Service rules; `None` for a family if they could not be read.
    pub owners: OwnersRead,
}
