//! An agent's report on itself and its node: the document behind `/verdict`, which
//! `pathproof status` reads back.
//!
//! Plain data that `app` assembles and publishes whole; nothing here decides anything. Names are
//! stable within a [`SCHEMA`]: fields are added, never renamed. Monotonic times are nanoseconds of
//! `CLOCK_MONOTONIC`; ages are differences to `verdict.at`, the same moment as `written`.

pub mod condition;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use pathproof_facts::cause::Failure;
use pathproof_facts::switches::Enforcement;
use pathproof_facts::time::Mono;
use pathproof_judge::answer::UnknownPolicy;
use pathproof_judge::drain::DrainView;
use pathproof_judge::explain;
use pathproof_judge::verdict::Verdict;
use pathproof_node::Node;
use pathproof_node::replay::{Moment, Replayed};
use pathproof_plan::Unjudged;
use pathproof_wire::evidence::{OUTCOMES, Outcome};
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::topology::DatapathTopology;
use serde::{Deserialize, Serialize, Serializer};

mod answers;
mod conflicts;
pub mod drain;
pub mod episodes;
mod peers;
pub mod sentinel;

pub use answers::{AnswerReport, AnswersReport, FleetSeen};
pub use conflicts::{CONFLICTS_SHOWN, ConflictOwner, ConflictReport, ConflictsReport};
pub use peers::PeersReport;
pub use sentinel::{SentinelCondition, SentinelReport};

pub const SCHEMA: u32 = 1;

/// Maximum number of sound Services in the list, the busiest first.
pub const BUSIEST_SHOWN: usize = 50;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub schema: u32,
    pub node: String,
    /// `metadata.uid` of the Node, if known. Writers to the Node object use it; the document does
    /// not have it.
    #[serde(skip)]
    pub node_uid: Option<std::sync::Arc<str>>,
    /// Wall-clock time of `verdict.at`.
    pub written: jiff::Timestamp,
    pub agent: AgentInfo,
    /// Privileges that the agent dropped.
    pub hardening: HardeningReport,
    /// The judgement with its findings, eligibility and coverage. The document also has its
    /// sentences (`reason`, `sentence`).
    #[serde(serialize_with = "serialize_verdict")]
    pub verdict: Verdict,
    /// State and addresses of the sentinel; the results of its probes are in the verdict's lanes.
    pub sentinel: SentinelReport,
    /// Answers that follow from the verdict.
    pub answers: AnswersReport,
    /// Count of the cluster's failing nodes, for the fleet brake.
    pub fleet: FleetSeen,
    pub peers: PeersReport,
    /// How connections to the healthz port reach the agent.
    pub port: PortReport,
    /// Services with traffic: all in trouble, then the busiest.
    pub services: Vec<ServiceReport>,
    /// Number of further Services with traffic.
    pub services_omitted: u32,
    /// UDP Services, which are never part of the verdict.
    pub udp: UdpReport,
    /// Single failed connections, the latest first.
    #[serde(rename = "sightings")]
    pub failed_connections: Vec<FailedConnectionReport>,
    /// Interfaces that are observed, or should be.
    pub devices: Vec<DeviceReport>,
    /// Number of hooks that were found detached and restored since the agent started.
    #[serde(default)]
    pub reattached: u64,
    /// Which program translates each path, and how much of it the observer sees.
    pub datapath: DatapathTopology,
    /// Numbers of expected Services, frontends and endpoints.
    pub expectations: ExpectationReport,
    #[serde(rename = "claims")]
    pub conflicts: ConflictsReport,
    /// Source and state of the cluster view.
    pub cluster: ClusterReport,
    /// Writes to the API server; empty if none are configured.
    pub publish: PublishReport,
    /// Faults of the eBPF programs since they were loaded, by name.
    pub faults: BTreeMap<String, u64>,
    /// New connections from outside: the input of /drainz.
    pub drain: DrainView,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentInfo {
    pub version: String,
    /// Version of the layouts shared with the kernel.
    pub abi: u32,
    pub started: jiff::Timestamp,
    /// Whether a broken datapath changes the answer.
    pub enforcement: Enforcement,
    /// Answer for an unknown verdict.
    pub unknown_policy: UnknownPolicy,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortReport {
    pub way: PortWay,
    /// Whether another process listens on the port as well; unknown if the kernel does not show it. While
    /// connections are steered, that process gets the connections from the node itself.
    pub owner: Option<bool>,
    /// Whether another agent has taken over the connections.
    pub succeeded: bool,
    /// Whether the previous responder still has the port, while the agent reads the cluster.
    pub waits: bool,
    /// Why connections are not steered although that is configured.
    pub problem: Option<String>,
    #[serde(default)]
    pub kept: KeptConnections,
}

/// Connections of clients outside to the process that answered before the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptConnections {
    /// Number of open ones; unknown while new connections are not the agent's, or if the kernel does not
    /// list them.
    pub open: Option<u64>,
    /// Number of those that the agent has ended since it started.
    pub ended: u64,
    /// Why the agent does not end them.
    pub left: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PortWay {
    /// The agent listens on the port itself.
    #[default]
    Bound,
    /// Connections are steered to another listener of the agent; the agent does not hold the port.
    Steered,
    /// No port is configured: the agent answers no load balancer.
    Off,
}

/// A Service port and family with traffic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// `namespace/name`, with `:port` if the port has a name; as in `verdict.services`.
    pub service: String,
    pub family: Family,
    /// Number of current endpoints.
    pub endpoints: u32,
    pub trouble: bool,
    /// Connections on all paths since the agent started, by outcome.
    pub outcomes: OutcomeCounts,
}

macro_rules! outcome_counts {
    ($($name:ident = $outcome:ident,)+) => {
        /// Connections by [`Outcome`]. A connection counts as at most one kind of failure.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub struct OutcomeCounts {
            $(pub $name: u64,)+
            /// Arrived and was not seen again.
            pub lost: u64,
        }

        impl OutcomeCounts {
            pub const NAMES: [&'static str; OUTCOMES + 1] = [$(stringify!($name),)+ "lost"];

            /// `counts` is by [`Outcome`]; lost connections are counted separately.
            pub fn new(counts: &[u64; OUTCOMES], lost: u64) -> Self {
                Self { $($name: counts[Outcome::$outcome as usize],)+ lost }
            }
        }
    };
}

// In the order of the outcomes' indexes.
outcome_counts! {
    arrived = Arrived,
    forwarded = Forwarded,
    proven = Proven,
    answered = Answered,
    refused = Refused,
    leaked = Leaked,
    misrouted = Misrouted,
    stale = Stale,
    unheard = AnswerNotDelivered,
    rejected = Rejected,
    retransmitted = Retransmitted,
}

impl OutcomeCounts {
    /// Every kind of failure with its count.
    pub fn failures(&self) -> [(Failure, u64); 6] {
        [
            (Failure::Leaked, self.leaked),
            (Failure::Refused, self.refused),
            (Failure::Misrouted, self.misrouted),
            (Failure::Stale, self.stale),
            (Failure::Lost, self.lost),
            (Failure::AnswerNotDelivered, self.unheard),
        ]
    }
}

/// A failed connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedConnectionReport {
    pub at: Mono,
    /// Name as in `verdict.services`; the id if the Service was gone when the failure was seen.
    pub service: String,
    pub path: SourceClass,
    pub failure: Failure,
    pub client: IpAddr,
    /// Address that the client dialled.
    pub frontend: SocketAddr,
    /// Destination of its SYN, if observed.
    pub destination: Option<SocketAddr>,
    /// Interface where the failure was observed.
    pub device: String,
}

/// How programs are attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attached {
    Tcx,
    Clsact,
    /// Not attached, or in one direction only.
    None,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceReport {
    pub name: String,
    pub index: u32,
    pub attached: Attached,
    /// Whether the observer's program runs first at ingress; unknown before the first check.
    pub ingress_head: Option<bool>,
    /// Whether the observer's program runs first at egress; unknown before the first check.
    pub egress_head: Option<bool>,
    /// Whether a default route uses it.
    pub uplink: bool,
    /// Why attaching failed.
    pub problem: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExpectationReport {
    pub services: u64,
    pub frontends: u64,
    /// Counted once for every Service port that has the endpoint.
    pub endpoints: u64,
    /// Entries for which a map had no room.
    pub missing: u64,
    /// Services that are not judged because they exceed a quota.
    pub unjudged: Unjudged,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterReport {
    /// Source of the view, for example `folder /etc/pathproof/manifests`.
    pub source: String,
    /// Whether the initial view was delivered completely.
    pub synced: bool,
    pub changed: Option<Mono>,
    /// Problems of the source, a sentence each: file, line and reason.
    pub problems: Vec<String>,
    /// Number of objects of other kinds, which are ignored.
    pub ignored: u64,
    /// Why the node's eligibility is unknown although the view is complete. It becomes one of the problems
    /// if it lasts longer than a kubelet needs to create its Node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_node: Option<String>,
}

impl Report {
    /// Keeps the names that failed connections had in the report before: later a Service or interface may be
    /// gone, or its id be another's.
    pub fn keep_names(&mut self, before: &Report) {
        let key = |it: &FailedConnectionReport| {
            (it.at, it.client, it.frontend, it.destination, it.failure)
        };
        // A name has no blanks. The text that replaces an unknown name, such as `service id 7`, has some.
        let is_name = |text: &String| !text.contains(' ');
        for failed_connection in &mut self.failed_connections {
            let mut known = before.failed_connections.iter();
            if let Some(known) = known.find(|known| key(known) == key(failed_connection)) {
                let names = [
                    (&mut failed_connection.service, &known.service),
                    (&mut failed_connection.device, &known.device),
                ];
                for (now, before) in names.into_iter().filter(|(_, before)| is_name(before)) {
                    now.clone_from(before);
                }
            }
        }
    }

    /// Report on one moment of a replay. Facts that a recording does not have (interfaces,
    /// listeners, counts of Services) are left out.
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
                abi: pathproof_wire::abi::ABI_VERSION,
                started: replayed.span.0.timestamp(),
                enforcement: moment.update.answers.enforcement(),
                unknown_policy: settings.unknown_policy,
            },
            hardening: HardeningReport::default(),
            verdict: moment.update.verdict.clone(),
            sentinel: replayed_sentinel(node),
            answers: AnswersReport::from(&moment.update.answers),
            fleet: FleetSeen::of(node.judge()),
            peers: PeersReport::of(node),
            port: PortReport::default(),
            services: Vec::new(),
            services_omitted: 0,
            udp: UdpReport::default(),
            failed_connections: Vec::new(),
            devices: Vec::new(),
            reattached: 0,
            datapath: node.judge().topology.clone(),
            expectations: ExpectationReport::default(),
            conflicts: ConflictsReport::default(),
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
    /// Whether dropping privileges is configured (--hardening).
    pub wanted: bool,
    /// Capabilities that are left, sorted; empty if `wanted` is false, because they are not read then.
    pub capabilities: Vec<String>,
    /// Whether executing a program can no longer gain privileges.
    pub no_new_privs: bool,
    /// Number of seccomp filters in force, including the container runtime's.
    pub seccomp_filters: u32,
    pub files: FilesReport,
    /// Privileges that could not be dropped, a sentence each with the reason.
    pub missing: Vec<String>,
}

/// File accesses that Landlock confines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilesReport {
    /// None.
    #[default]
    Open,
    /// Only writing, because files that the agent reads lie directly below the root.
    WritesConfined,
    /// Reading and writing.
    Confined,
}

/// The condition and the Events; `None` if not configured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishReport {
    pub condition: Option<WriteReport>,
    pub events: Option<WriteReport>,
}

impl PublishReport {
    /// Problems that prevent writes.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        let all = [&self.condition, &self.events].into_iter().flatten();
        all.filter_map(|write| write.problem.as_deref())
    }
}

/// State of one kind of write.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteReport {
    /// Time of the last successful write since the agent started.
    pub written: Option<jiff::Timestamp>,
    /// Why writes fail now, in one sentence.
    pub problem: Option<String>,
}

/// Maximum number of UDP Services in the list.
pub const UDP_SHOWN: usize = 20;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpReport {
    /// DNS Services first, then the busiest.
    pub services: Vec<UdpServiceReport>,
    /// Number of further Services with traffic.
    pub omitted: u32,
}

/// A UDP Service port and family with traffic. The observer follows one datagram of a flow at a
/// time, at a limited rate (docs/internal/design/evidence.md#udp).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UdpServiceReport {
    #[serde(flatten)]
    pub counted: ServiceReport,
    /// Whether the port is 53 or is named dns.
    pub dns: bool,
}

/// The verdict with its sentences. The sentences are for people and for `jq`; a program that reads a report
/// uses the findings.
pub fn serialize_verdict<S: Serializer>(
    verdict: &Verdict,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut document = serde_json::to_value(verdict).map_err(serde::ser::Error::custom)?;
    document["reason"] = verdict.reason().into();
    for (index, family) in verdict.families.iter().enumerate() {
        let entry = &mut document["families"][index];
        entry["reason"] = verdict.reason_of(family).into();
        for (index, finding) in family.findings.iter().enumerate() {
            entry["findings"][index]["sentence"] = explain::reason(finding, verdict).into();
        }
        for (index, lane) in family.lanes.iter().enumerate() {
            entry["lanes"][index]["sentence"] =
                explain::sentence(family.family, lane, verdict.at).into();
        }
    }
    for (index, loss) in verdict.coverage.losses.iter().enumerate() {
        document["coverage"]["losses"][index]["sentence"] = loss.to_string().into();
    }
    document.serialize(serializer)
}

#[cfg(test)]
mod tests;
