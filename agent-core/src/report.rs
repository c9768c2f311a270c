//! An agent's report on itself and its node: the document behind `/verdict`, which
//! `pathproof status` reads back.
//!
//! Plain data, assembled by `app` and published whole; nothing here decides anything. Names are
//! stable within a [`SCHEMA`]: fields are added, never renamed. Monotonic times are nanoseconds of
//! `CLOCK_MONOTONIC`; ages are differences to `verdict.at`, which is the moment `written`.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use agent_common::evidence::{OUTCOMES, Outcome};
use agent_common::service::{Family, SourceClass};
use serde::{Deserialize, Serialize, Serializer};

use crate::answer::{Enforcement, UnknownPolicy};
use crate::cause::Failure;
use crate::drain::DrainView;
use crate::explain;
use crate::names;
use crate::node::Node;
use crate::plan::Unjudged;
use crate::replay::{Moment, Replayed};
use crate::shape::Shape;
use crate::time::Mono;
use crate::verdict::Verdict;

mod answers;
mod claims;
pub mod drain;
mod peers;
pub mod sentinel;

pub use answers::{AnswerReport, Answers, FleetSeen};
pub use claims::{CLAIMS_SHOWN, ClaimOwner, ClaimReport, ClaimsReport};
pub use peers::{PeerReport, PeersReport};
pub use sentinel::{SentinelReport, SentinelState};

pub const SCHEMA: u32 = 1;

/// Services shown beside those in trouble, by traffic.
pub const BUSIEST_SHOWN: usize = 50;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: u32,
    /// `metadata.name` of the node.
    pub node: String,
    /// Its `metadata.uid`, where the Node is known and has one. For those who write to it; no part
    /// of the document.
    #[serde(skip)]
    pub node_uid: Option<std::sync::Arc<str>>,
    /// When this was written: `verdict.at` on the wall clock.
    pub written: jiff::Timestamp,
    /// The agent that wrote it.
    pub agent: AgentInfo,
    /// Rights that it has given up.
    pub hardening: HardeningReport,
    /// The judgement, with its findings, eligibility and coverage; in the document with its
    /// sentences beside them (`reason`, `sentence`).
    #[serde(serialize_with = "serialize_verdict")]
    pub verdict: Verdict,
    /// The sentinel; what its probes found is in the verdict's lanes.
    pub sentinel: SentinelReport,
    /// Answers that follow from the verdict.
    pub answers: Answers,
    /// What is known of the other nodes, and how lenient it makes this one.
    #[serde(default)]
    pub fleet: FleetSeen,
    /// Connections to other nodes.
    #[serde(default)]
    pub peers: PeersReport,
    /// Way by which connections to the healthz port come here.
    pub port: PortReport,
    /// Services by outcome: all in trouble, then the busiest.
    pub services: Vec<ServiceReport>,
    /// Services with traffic beyond those.
    pub services_omitted: u32,
    /// UDP Services, judged apart.
    pub udp: UdpReport,
    /// Single failures, the latest first.
    pub sightings: Vec<SightingReport>,
    /// Interfaces that are watched, or should be.
    pub devices: Vec<DeviceReport>,
    /// The datapath's shape: who translates which path, and what of it is seen.
    pub datapath: Shape,
    /// Size of what is expected of the datapath.
    pub expectations: ExpectationReport,
    /// Frontends that more than one claims.
    #[serde(default)]
    pub claims: ClaimsReport,
    /// Source of the cluster view, and its state.
    pub cluster: ClusterReport,
    /// Writes to the API server; empty where there are to be none.
    pub publish: PublishReport,
    /// Faults of the programs in the kernel, by name, since they were loaded.
    pub faults: BTreeMap<String, u64>,
    /// New connections from outside, which /drainz answers from.
    pub drain: DrainView,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentInfo {
    /// Version of the binary.
    pub version: String,
    /// Version of the layouts shared with the kernel.
    pub abi: u32,
    pub started: jiff::Timestamp,
    /// Whether the verdict has consequences.
    pub enforcement: Enforcement,
    /// Answer to an unknown verdict.
    pub unknown_policy: UnknownPolicy,
}

/// Way by which connections to the healthz port reach the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    /// By which way.
    pub way: PortWay,
    /// Whether another process listens at the port as well; unknown where the kernel does not show
    /// it. If it does and connections are steered, the node's own go to that process.
    pub owner: Option<bool>,
    /// Another agent has taken the connections over.
    pub succeeded: bool,
    /// The previous responder to load balancers still answers, while the agent reads the cluster.
    pub waits: bool,
    /// Why connections are not steered though that was asked for.
    pub problem: Option<String>,
}

/// See [`PortReport`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortWay {
    /// The agent holds the port.
    #[default]
    Bound,
    /// Connections are given to a listener aside; the agent holds no port.
    Steered,
    /// None was configured: the agent answers no load balancer.
    Off,
}

/// A Service port and family with traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// `namespace/name`, and `:port` where the port has a name; as in `verdict.services`.
    pub service: String,
    /// Which family.
    #[serde(with = "names::FamilyName")]
    pub family: Family,
    /// Current endpoints.
    pub endpoints: u32,
    /// Whether it is in `verdict.services`.
    pub trouble: bool,
    /// Connections by outcome since the agent started, all paths together.
    pub outcomes: OutcomeCounts,
}

/// Connections by outcome. Failures exclude one another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OutcomeCounts {
    /// A first SYN arrived.
    pub arrived: u64,
    /// It left for a current endpoint.
    pub forwarded: u64,
    pub proven: u64,
    /// Answered by an endpoint.
    pub answered: u64,
    /// Refused by the node.
    pub refused: u64,
    /// Left untranslated.
    pub leaked: u64,
    /// Left for an address that is no endpoint.
    pub misrouted: u64,
    /// Left for an endpoint that has left its slice.
    pub stale: u64,
    /// The same SYN came again after its answer.
    pub unheard: u64,
    /// Did not get through, and nothing was owed.
    pub rejected: u64,
    /// SYNs that came again.
    pub retransmitted: u64,
    /// Arrived and was not seen again.
    pub lost: u64,
}

impl OutcomeCounts {
    /// Made of counts by [`Outcome`], and those lost.
    pub fn new(counts: &[u64; OUTCOMES], lost: u64) -> Self {
        let of = |outcome: Outcome| counts[outcome as usize];
        Self {
            arrived: of(Outcome::Arrived),
            forwarded: of(Outcome::Forwarded),
            proven: of(Outcome::Proven),
            answered: of(Outcome::Answered),
            refused: of(Outcome::Refused),
            leaked: of(Outcome::Leaked),
            misrouted: of(Outcome::Misrouted),
            stale: of(Outcome::Stale),
            unheard: of(Outcome::Unheard),
            rejected: of(Outcome::Rejected),
            retransmitted: of(Outcome::Retransmitted),
            lost,
        }
    }

    /// Those that failed, by name, none left out.
    pub fn failures(&self) -> [(Failure, u64); 6] {
        [
            (Failure::Leaked, self.leaked),
            (Failure::Refused, self.refused),
            (Failure::Misrouted, self.misrouted),
            (Failure::Stale, self.stale),
            (Failure::Lost, self.lost),
            (Failure::Unheard, self.unheard),
        ]
    }
}

/// A connection that did not go as owed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SightingReport {
    /// When the failure was seen.
    pub at: Mono,
    /// Name as in `verdict.services`; the id where the Service is gone.
    pub service: String,
    /// Source class of the client.
    #[serde(with = "names::ClassName")]
    pub path: SourceClass,
    pub failure: Failure,
    pub client: IpAddr,
    /// Address that it dialled.
    pub frontend: SocketAddr,
    /// Destination of its SYN, where that was seen.
    pub destination: Option<SocketAddr>,
    /// Name of the interface of the sighting.
    pub device: String,
}

/// Attachment of programs to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attached {
    /// TCX links.
    Tcx,
    /// clsact filters.
    Clsact,
    /// Not, or not in both directions.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    pub name: String,
    pub index: u32,
    pub attached: Attached,
    /// Whether ours is the first at ingress; unknown where it was not asked yet.
    pub ingress_head: Option<bool>,
    /// The same at egress.
    pub egress_head: Option<bool>,
    /// A default route leaves by it.
    pub uplink: bool,
    /// Obstacle to attaching, where there is one.
    pub problem: Option<String>,
}

/// Size of what is expected of the datapath.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectationReport {
    pub services: u64,
    pub frontends: u64,
    /// Endpoints, once for every Service port that has them.
    pub endpoints: u64,
    /// Entries that found no place in a map.
    pub missing: u64,
    /// Services that are not judged, since they have more than they may.
    #[serde(default)]
    pub unjudged: Unjudged,
}

/// The cluster view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterReport {
    /// Source of the view, in words: `folder /etc/pathproof/manifests`.
    pub source: String,
    /// Whether it was complete once.
    pub synced: bool,
    /// When it last changed.
    pub changed: Option<Mono>,
    /// Problems of the source: file, line and reason in a sentence each.
    pub problems: Vec<String>,
    /// Objects of other kinds, left out.
    pub ignored: u64,
}

impl Report {
    /// Report on a moment of a replay. Facts that only the shell has (interfaces, listeners, the
    /// counts of Services) are left out.
    pub fn replayed(replayed: &Replayed, moment: &Moment) -> Self {
        let node = &replayed.last;
        let settings = &node.judge().settings;
        Self {
            schema: SCHEMA,
            node: replayed.node.clone(),
            node_uid: None,
            written: moment.at.timestamp(),
            agent: AgentInfo {
                version: replayed.agent.clone(),
                abi: agent_common::abi::ABI_VERSION,
                started: replayed.span.0.timestamp(),
                enforcement: moment.judged.answers.enforcement(),
                unknown_policy: settings.unknown_policy,
            },
            hardening: HardeningReport::default(),
            verdict: moment.judged.verdict.clone(),
            sentinel: replayed_sentinel(node),
            answers: Answers::from(&moment.judged.answers),
            fleet: FleetSeen::of(node.judge()),
            peers: PeersReport::of(node),
            port: PortReport::default(),
            services: Vec::new(),
            services_omitted: 0,
            udp: UdpReport::default(),
            sightings: Vec::new(),
            devices: Vec::new(),
            datapath: node.judge().shape.clone(),
            expectations: ExpectationReport::default(),
            claims: ClaimsReport::default(),
            cluster: ClusterReport::default(),
            publish: PublishReport::default(),
            faults: BTreeMap::new(),
            drain: DrainView::default(),
        }
    }
}

fn replayed_sentinel(node: &Node) -> SentinelReport {
    let (Some(watched), Some(rule)) = (node.sentinel(), &node.judge().settings.sentinel) else {
        return SentinelReport::disabled();
    };
    let synced = node.judge().facts.synced;
    SentinelReport::of(&rule.service, &watched.condition(), synced)
}

/// Hardening that is in force in every thread of the agent, once the programs are loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HardeningReport {
    /// Whether anything was to be given up (--hardening).
    pub wanted: bool,
    /// Capabilities that are left, sorted; empty where `wanted` is false, for none was looked for.
    pub capabilities: Vec<String>,
    /// Whether starting a program can bring new rights no more.
    pub no_new_privs: bool,
    /// Filters of system calls that stand, a container runtime's among them.
    pub seccomp_filters: u32,
    /// Whether files are confined.
    pub files: FilesReport,
    /// Rights that were to be given up and could not be, in a sentence each, with the reason.
    pub missing: Vec<String>,
}

/// Accesses that Landlock confines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilesReport {
    /// Nothing.
    #[default]
    Open,
    /// Writing: what is read lies right below the root.
    WritesConfined,
    /// Reading and writing.
    Confined,
}

/// The condition and the Events. Absent is what was not asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishReport {
    /// The Node's condition.
    pub condition: Option<WriteReport>,
    /// Events about the Node.
    pub events: Option<WriteReport>,
}

impl PublishReport {
    /// Problems that keep anything from being written.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        let all = [&self.condition, &self.events].into_iter().flatten();
        all.filter_map(|of| of.problem.as_deref())
    }
}

/// One of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteReport {
    /// When it was last written, since the agent started.
    pub written: Option<jiff::Timestamp>,
    /// Problem that keeps it from being written now: one sentence.
    pub problem: Option<String>,
}

/// UDP Services that are shown.
pub const UDP_SHOWN: usize = 20;

/// UDP Services with traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpReport {
    /// Those of DNS first, then the busiest.
    pub services: Vec<UdpServiceReport>,
    /// Services with traffic beyond those.
    pub omitted: u32,
}

/// A UDP Service port and family with traffic: followed datagrams, one of a flow at a time, and of
/// those so many in time (docs/adr/0023-passive-udp.md).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpServiceReport {
    #[serde(flatten)]
    pub counted: ServiceReport,
    /// Its port is 53 or is named dns.
    pub dns: bool,
    /// Times until the first answer; absent without any.
    pub answers: Option<AnswerTimes>,
}

/// Times from a datagram's arrival to its first answer, as bounds: powers of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AnswerTimes {
    /// Number of answers that were timed.
    pub count: u64,
    /// Half of them took less than this, in nanoseconds.
    pub half_ns: u64,
    /// 99 of 100 took less than this, in nanoseconds.
    pub most_ns: u64,
}

/// The verdict with its sentences. They are for people and for `jq`: who reads a report back takes the
/// findings.
pub fn serialize_verdict<S: Serializer>(
    verdict: &Verdict,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut document = serde_json::to_value(verdict).map_err(serde::ser::Error::custom)?;
    document["reason"] = verdict.reason().into();
    for (index, family) in verdict.families.iter().enumerate() {
        let of = &mut document["families"][index];
        of["reason"] = verdict.reason_of(family).into();
        for (index, finding) in family.findings.iter().enumerate() {
            of["findings"][index]["sentence"] = verdict.reason_of_finding(finding).into();
        }
        for (index, lane) in family.lanes.iter().enumerate() {
            of["lanes"][index]["sentence"] =
                explain::sentence(family.family, lane, verdict.at).into();
        }
    }
    document.serialize(serializer)
}

#[cfg(any(test, feature = "testing"))]
pub mod sample;

#[cfg(test)]
mod tests;
