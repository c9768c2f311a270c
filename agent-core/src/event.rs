//! Everything that can reach a node. A recording holds these, one a line, so every event but those
//! of the whole cluster view can be written down.

use std::net::IpAddr;

use agent_common::evidence::FAULTS;
use agent_common::service::{EndpointKey, FAMILIES, Family, SOURCE_CLASSES};
use serde::{Deserialize, Serialize};

use crate::cluster::{Change, NodeFacts, ObjectName};
use crate::conntrack::Table;
use crate::coverage::Hooks;
use crate::drain::{OpenConnections, Outside};
use crate::drops::{DropCount, DropWatch};
use crate::evidence::{
    CountDelta, Directory, Lookup, LostData, ProgrammingSeen, ServiceInfo, Sighting, Success,
};
use crate::expect::node::address;
use crate::expect::sentinel::{ABSENT, Sentinel};
use crate::owners::OwnersRead;
use crate::peers::PeerSample;
use crate::plan::{Installed, MapChange, Missing};
use crate::shape;
use crate::time::{Mono, Wall};
use crate::trace::ProbeTrace;

/// One thing that reached the node. The shell feeds them in order, each with the time.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The cluster view changed, or what is wrong with its source did. In a recording
    /// [`Event::Facts`] and [`Event::Services`] stand for it: a view may be 40 MB.
    #[serde(skip)]
    View(ViewUpdate),
    /// Content of the maps that a former agent left: the answer to
    /// [`MapEffect::Read`](super::effect::MapEffect).
    #[serde(skip)]
    Installed(Installed),
    /// Changes of a plan that found no place.
    #[serde(skip)]
    Full(Vec<MapChange>),
    /// The uncached sentinel, read by [`SentinelEffect::Reread`](super::effect::SentinelEffect) from that
    /// time on; nothing if the API server did not answer.
    #[serde(skip)]
    Reread(Mono, Option<Vec<Change>>),
    /// The view's facts for the judge.
    Facts(Box<Facts>),
    /// The Services that ids stand for, before the ids first occur in a recording.
    Services(Vec<Service>),
    /// Whether the uncached sentinel, read at that time, differs from the one that watches reported.
    Rechecked(Mono, Option<bool>),
    /// Another agent is about to replace this one.
    Successor(Successor),
    /// Interfaces came or went, or their hooks were checked.
    Hooks(Hooks),
    /// Hooks that had been removed or displaced were put back at that time.
    HooksRepaired(Mono),
    /// The kernel's evidence was read.
    Sample(Box<KernelSample>),
    /// It could not be read.
    SampleFailed(String),
    /// There is nothing to read, and time went by.
    Tick,
    /// A few seconds went by: what is checked from time to time is due.
    Check,
    /// The wall clock was set, and shows this now.
    ClockSet(Wall),
    /// The facts of the datapath's shape were read.
    Shape(Box<shape::Facts>),
    /// The kernel's table of connections was read: the answer to
    /// [`ReadEffect::Table`](super::effect::ReadEffect). Nothing where there is none to read.
    Table(Option<Table>),
    /// The kernel's routes and neighbours were looked up: the answer to
    /// [`ReadEffect::LookUp`](super::effect::ReadEffect).
    Lookups(Vec<Lookup>),
    /// Whether the kernel's reasons for drops are read now: the answer to
    /// [`ReadEffect::WatchDrops`](super::effect::ReadEffect).
    DropWatch(DropWatch),
    /// A count of open connections from outside, or the reason why there is none: the answer to
    /// [`ReadEffect::CountOpen`](super::effect::ReadEffect).
    #[serde(skip)]
    Open(Result<OpenConnections, String>),
    /// The sentinel's own devices, programs and prober.
    #[serde(rename = "parts")]
    Sentinel(SentinelEvent),
    /// A probe ended.
    Trace(Box<ProbeTrace>),
}

/// A change of the cluster view.
#[derive(Clone, Debug, Default)]
pub struct ViewUpdate {
    /// When it was received, on the wall clock; nothing where that is not known.
    pub received: Option<Wall>,
    /// Changes of objects, in order.
    pub changes: Vec<Change>,
    /// Problems of the source, in sentences.
    pub problems: Vec<String>,
    /// The source does not report what happens now.
    pub silent: bool,
    /// Objects of other kinds that were left out.
    pub ignored: u64,
    /// A Service with external IPs that the source does not keep: what it claims is not known.
    pub unknown_claims: Option<ObjectName>,
}

/// The part of the cluster view that the judge needs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Everything that was there at the start has been delivered.
    pub synced: bool,
    /// The source does not report what happens now.
    pub silent: bool,
    /// This node's object, where it is known.
    pub node: Option<NodeFacts>,
    /// Families with frontends.
    pub families: [bool; FAMILIES],
    /// Number of entries that found no place in the maps.
    pub missing: Missing,
    /// A Service whose claims are not known ([`ViewUpdate::unknown_claims`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown_claims: Option<ObjectName>,
    /// The sentinel.
    pub sentinel: Sentinel,
    /// Families in which pods of other nodes answer for the pod probe: this node's is expected after its
    /// boot.
    #[serde(default)]
    pub pods_expected: [bool; FAMILIES],
    /// In what way the cluster uses an address of the sentinel's, in words.
    pub taken: Option<String>,
}

impl Facts {
    /// The sentinel, as soon as the view is whole: half of it may be there before.
    pub fn sentinel(&self) -> &Sentinel {
        match self.synced {
            true => &self.sentinel,
            false => &ABSENT,
        }
    }

    /// Whether the node has an address of this family.
    pub(crate) fn has_address(&self, family: Family) -> bool {
        let mut all = self.node.iter().flat_map(|node| &node.addresses);
        all.any(|ip| Family::of(&address(ip)) == family)
    }
}

/// The Service port that an id of evidence stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    /// The id.
    pub id: u32,
    /// Nothing where the id is not in use any more.
    pub known: Option<ServiceInfo>,
}

/// Another agent on this node that was started later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Successor {
    /// There is none.
    #[default]
    None,
    /// It has the hooks; the maps of expectations are still kept from here.
    Observes,
    /// It keeps the maps too, with ids of its own.
    Plans,
}

impl Successor {
    /// Whether there is one.
    pub fn exists(self) -> bool {
        self != Successor::None
    }
}

/// Result of one reading of the kernel's maps.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct KernelSample {
    /// Services whose counts moved.
    pub counts: Vec<CountDelta>,
    /// Single failures.
    pub sightings: Vec<Sighting>,
    /// When a connection was last proven, by family and source class.
    pub last_proofs: [[Option<Mono>; SOURCE_CLASSES]; FAMILIES],
    /// Faults of the programs, in total.
    pub faults: [u64; FAULTS],
    /// Connections that were forgotten before their time, beyond those that can be remembered: a SYN
    /// of theirs that comes again passes for a first one.
    pub forgotten_early: usize,
    /// Service and client with most of the map of connections, while it is crowded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heaviest: Option<Heaviest>,
    /// Connections from outside that were sent on and not answered within the loss window, by family.
    /// Which endpoints answer is no business of the node's: they count where a probe names a cause
    /// that keeps answers away.
    #[serde(default)]
    pub unanswered: [u32; FAMILIES],
    /// Connections to other nodes.
    #[serde(default, skip_serializing_if = "PeerSample::is_empty")]
    pub peers: PeerSample,
    /// Whether the datapath follows endpoint changes, as connections show it; the node fills it in from `met`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub programming: Option<ProgrammingSeen>,
    /// Connections that got through, by what they needed; those whose latest arrival moved since the
    /// previous sample. A connection counts as soon as it was seen getting through.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub successes: Vec<Success>,
    /// Endpoints of this node that answered connections which had left for them by an uplink, some of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_uplink: Vec<IpAddr>,
    /// Connections whose data was not forwarded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_data: Vec<LostData>,
    /// Packets that the kernel dropped, while its reasons are read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drops: Vec<DropCount>,
    /// The endpoints of [`MapEffect::ReadEndpoints`](super::effect::MapEffect) that were met, and when. No
    /// verdict depends on them.
    #[serde(skip)]
    pub met: Vec<(EndpointKey, Mono)>,
    /// New connections from outside, which concern the drain insight alone and are not recorded.
    #[serde(skip)]
    pub outside: Outside,
}

/// The Service and the client that have most of the connections that are followed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heaviest {
    /// Connections that are followed.
    pub entries: usize,
    /// Id of the Service port and family.
    pub service: u32,
    /// Connections to it.
    pub to_service: usize,
    pub client: IpAddr,
    /// Connections from there.
    pub from_client: usize,
}

impl Heaviest {
    /// The same as a sentence.
    pub(crate) fn in_words(&self, directory: &dyn Directory) -> String {
        let known = directory.service(self.service);
        let unknown = || format!("Service id {}", self.service);
        let service = known.map_or_else(unknown, |info| info.label());
        format!(
            "of {} connections, {} are to {service} and {} are from {}",
            self.entries, self.to_service, self.from_client, self.client
        )
    }
}

/// The sentinel's own parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SentinelEvent {
    /// The devices are there; they may be others than before.
    Ready,
    /// The devices cannot be had, in words.
    Off(String),
    /// The devices were damaged, in words.
    Damaged(String),
    /// A program of the sentinel's was detached by something else.
    Detached,
    /// Programs and prober were started, or why not: the answer to
    /// [`SentinelEffect::Start`](super::effect::SentinelEffect).
    Started(Option<String>),
    /// The prober ended by itself.
    Ended,
    /// The kernel's own state, read with the devices.
    Kernel(KernelState),
}

/// Read beside the sentinel's devices, by family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelState {
    /// When the check began that found the devices sound; nothing where it did not.
    pub sound_since: Option<Mono>,
    /// Whether the kernel forwards.
    pub forwarding: [Option<bool>; FAMILIES],
    /// Whose rules are there; nothing where that could not be read.
    pub owners: OwnersRead,
}
