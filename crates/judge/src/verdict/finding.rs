//! Findings of rules as plain data: facts, from which `explain` makes sentences.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use pathproof_facts::cause::{Cause, ProbeCause};
use pathproof_facts::limits::ACTIVE_CLIENT_AGE;
use pathproof_facts::named;
use pathproof_facts::owners::DatapathOwners;
use pathproof_facts::time::{Mono, ns};
use pathproof_facts::trace::{ProbePath, Transport};
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::evidence::CoverageLoss;
use pathproof_witness::probes::VoidReason;
use serde::{Deserialize, Serialize};

pub use super::rule::Rule;

/// Result of one rule of the judge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    pub rule: Rule,
    /// Family that the finding is about; `None` if nothing can be judged.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub family: Option<Family>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<Cause>,
    /// Facts that support the rule.
    pub evidence: Evidence,
}

impl Finding {
    /// Creates a finding without a cause and family.
    pub fn new(rule: Rule, evidence: Evidence) -> Self {
        Self {
            rule,
            family: None,
            cause: None,
            evidence,
        }
    }

    /// Whether nothing but the node's datapath explains the finding. The fleet brake then waits for no other
    /// node's count before it lets the 503 out.
    ///
    /// A full conntrack table is not certain: load moves from nodes that answer 503 to others, whose tables
    /// fill too. Neither are failed probes beside failed connections if the clients had been idle before: a
    /// policy may have denied them meanwhile.
    pub fn is_certain(&self) -> bool {
        match (self.rule, &self.evidence) {
            (Rule::BrokenByProbes, Evidence::Probes { lanes, .. }) => {
                let is_full = |lane: &FailedLane| lane.cause == ProbeCause::ConntrackFull;
                !lanes.iter().any(is_full)
            }
            (Rule::BrokenByTwoScopes, Evidence::Probes { beside, .. }) => {
                let active = |failures: &ConcurrentFailures| {
                    let last = failures.last_success;
                    last.is_some_and(|last| failures.since.since(last) <= ACTIVE_CLIENT_AGE)
                };
                beside.as_ref().is_some_and(active)
            }
            (Rule::BrokenByRoutes, _) => true,
            _ => false,
        }
    }

    /// Whether connections failed, but probes have passed on every path since.
    pub fn is_refuted(&self) -> bool {
        let lacks =
            |lacking: &Option<MissingCriterion>| *lacking == Some(MissingCriterion::ProbesPass);
        matches!(&self.evidence, Evidence::Connections { lacking, .. } if lacks(lacking))
    }
}

/// Facts that support a finding: as many as its sentence needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Evidence {
    /// No further facts.
    Nothing,
    /// When the observer was last read; `None` if it never was.
    Read { at: Option<Mono> },
    /// Reason why nothing is observed.
    Unseen {
        /// The first loss of coverage.
        loss: Option<CoverageLoss>,
    },
    /// Connections that failed.
    Connections {
        services: Named,
        /// When the first of them failed.
        since: Mono,
        /// Criterion that they lack to accuse the node.
        lacking: Option<MissingCriterion>,
        /// Their clients, if the Services had worked before.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        clients: Vec<Scope>,
        /// Number of failed connections; 0 if they were not counted.
        failures: u64,
        /// When a connection of these clients last succeeded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_success: Option<Mono>,
    },
    /// Connections that were answered, but whose data was not forwarded.
    Data {
        services: Named,
        /// Arrival of the first of them.
        since: Mono,
        clients: Vec<Scope>,
        connections: u32,
        /// Arrival of the last earlier connection with data both ways.
        last_success: Option<Mono>,
        /// Criterion that they lack to accuse the node.
        lacking: Option<MissingCriterion>,
    },
    /// Unanswered connections that left by the wrong device: by an uplink to endpoints of this node, or by
    /// another device than usual to other nodes.
    Routes {
        connections: u32,
        since: Mono,
        /// Clients whose Services fail at the same time.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        clients: Vec<Scope>,
    },
    /// Connections of these clients that fail because of an obstacle in the node itself.
    Obstacle {
        failures: u32,
        since: Mono,
        clients: Scope,
    },
    /// Connections to an endpoint that left.
    LeftEndpoint {
        services: Named,
        /// Maximum time between the endpoint's departure and the connection.
        #[serde(with = "ns")]
        age: Duration,
        /// Address of the endpoint that left.
        destination: Option<SocketAddr>,
        /// Clients of the connections.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        clients: Vec<Scope>,
    },
    /// Services that fail while others do not.
    Services {
        /// The Services by cause.
        broken: Vec<BrokenServices>,
        /// Number of further Services.
        more: usize,
        /// Last success of any real connection since these Services began to fail.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_success: Option<Mono>,
    },
    /// Answers that did not reach their clients.
    #[serde(rename = "unheard")]
    AnswerNotDelivered {
        /// Services that sent the answers.
        services: Named,
        /// Number of clients that repeated their SYN.
        clients: usize,
    },
    /// Nodes that answered before and are silent now.
    Peers {
        nodes: Named,
        /// Services that were dialled at endpoints on those nodes.
        services: Named,
        /// Connections that stayed unanswered.
        connections: u32,
        since: Mono,
        /// Whether other nodes answer.
        others_answer: bool,
        /// Whether an endpoint of this node answers for one of these Services, while no other node does.
        near_answers: bool,
    },
    /// Large transfers of the pod probe that failed.
    #[serde(rename = "cuts")]
    LargeTransferFailures { transfers: u32, since: Mono },
    /// Message of the Node's condition.
    Network { said: Box<str> },
    /// Lanes that accuse the node.
    Probes {
        lanes: Vec<FailedLane>,
        /// Real connections that fail too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        beside: Option<ConcurrentFailures>,
    },
    /// A lane that does not accuse the node.
    Probe { lane: FailedLane },
    /// A lane that fails while a real connection of its path succeeds.
    Contradicted {
        lane: FailedLane,
        path: SourceClass,
        at: Mono,
    },
    /// A failing lane that does not accuse the node yet.
    Unconfirmed {
        lane: FailedLane,
        /// Condition that the lane lacks to accuse the node.
        lacking: LaneLacking,
    },
    /// A lane whose rules do not follow the API.
    Late {
        path: ProbePath,
        transport: Transport,
        owners: DatapathOwners,
        /// Time for which the rules have not followed.
        #[serde(with = "ns")]
        late: Duration,
        /// The generation that probes reach.
        generation: Option<u16>,
        /// The generation that they should reach.
        wanted: Option<u16>,
    },
    /// A connection that succeeded.
    Connection { path: SourceClass, at: Mono },
    /// A probe that passed.
    Pass {
        path: ProbePath,
        transport: Transport,
        at: Mono,
    },
    /// A recent boot.
    Boot {
        at: Mono,
        /// The first lane that does not work.
        never: Option<NeverWorked>,
    },
    /// A lane that never worked.
    Never(NeverWorked),
    /// A lane whose last probe is no evidence.
    Void {
        path: ProbePath,
        transport: Transport,
        why: VoidCause,
    },
    /// An altered or disabled sentinel, with the difference or the reason if known.
    Sentinel { said: Option<String> },
    /// Current owners of the datapath.
    Owners { owners: DatapathOwners },
    /// A finding that would take the node out if its family counted for the answer.
    Uncounted {
        finding: Box<Finding>,
        because: Uncounted,
    },
}

/// Reason why a family does not count for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Uncounted {
    /// Users dialled another family within the last hour. The time is the last use of this family; `None` if
    /// it was never used in this boot.
    Unused(Option<Mono>),
    /// Another family is not at fault.
    OtherWorks,
}

/// Real connections that fail since the same moment as the probes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConcurrentFailures {
    pub clients: Vec<Scope>,
    pub services: Named,
    pub failures: u64,
    /// When the first of them failed.
    pub since: Mono,
    /// Last success of these clients before the fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_success: Option<Mono>,
    /// Connections of other clients have succeeded since.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub others_succeed: bool,
}

named! {
    /// Clients whose connections have the same innocent explanations.
    pub enum Scope {
        /// Pods of this node.
        Pods = "pods",
        /// The pod probe of this node.
        PodProbe = "pod_probe",
        /// Clients outside the node.
        Outside = "outside",
        /// Processes of the node itself. Their successes are not observed, so failures show only missing
        /// rules, and only if nobody else uses the node.
        Host = "host",
    }
}

named! {
    /// Criterion that failed connections lack to accuse the node.
    pub enum MissingCriterion {
        /// The sentinel's probes pass, and nothing shows that rules or routes are wrong.
        ProbesPass = "referee",
        /// The sentinel's probes began to fail at another time; policies may deny the connections.
        Filtered = "filtered",
        /// Other Services use the addresses that probes dial, and policies may deny the connections.
        SentinelConflict = "claimed",
        /// No probe represents pods' connections, and policies may deny those connections.
        Unprobed = "aside",
        /// No pod of this node is among the clients, and a policy may deny the others.
        Pod = "pod",
        /// No failing Service worked before.
        New = "new",
        /// Too few Services fail.
        Services = "services",
        /// All Services are in one namespace, and others are in use.
        Namespaces = "namespaces",
        /// Too few endpoints behind the Services.
        Endpoints = "endpoints",
        /// Too few clients.
        Sources = "sources",
        /// The failures have not lasted long enough, or stopped too early.
        Time = "time",
    }
}

/// Names of Services, limited to what fits into a sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// `namespace/name`, and `:port` where the port has a name.
    pub first: Vec<String>,
    /// Number of further Services.
    pub more: usize,
}

/// Maximum number of Services named in a sentence.
pub(super) const NAMED: usize = 3;

impl Named {
    /// Keeps the first few names and counts the rest.
    pub fn of<T: Into<String>>(names: impl ExactSizeIterator<Item = T>) -> Self {
        Self {
            more: names.len().saturating_sub(NAMED),
            first: names.take(NAMED).map(Into::into).collect(),
        }
    }
}

/// Services with the same cause of failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokenServices {
    pub cause: Cause,
    pub services: Named,
    /// Number of their failures so far.
    pub failures: u64,
}

/// A lane and its run of failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedLane {
    pub path: ProbePath,
    pub transport: Transport,
    pub cause: ProbeCause,
    /// Number of failures in a row.
    pub failures: u32,
    /// Whether a refusal of its frontend accuses the datapath, and not a filter.
    #[serde(rename = "local")]
    pub refusal_clear: bool,
    pub client: Option<IpAddr>,
}

/// Condition that a failing lane lacks to accuse the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaneLacking {
    /// Too few failures in a row.
    Failures,
    /// The sentinel is off, for this reason.
    Off(String),
    /// The sentinel changed a moment ago, or its devices were damaged.
    Void(VoidReason),
    /// pathproof's interfaces were not checked after the failures began.
    #[serde(rename = "look")]
    DeviceCheck,
    /// It is not known yet whether other lanes fail too.
    Others,
    /// Real connections fail as well, but not broadly enough to confirm the probes.
    Breadth(MissingCriterion),
    /// No real connection fails as well.
    Connection,
}

/// A lane on which no probe ever passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeverWorked {
    pub path: ProbePath,
    pub transport: Transport,
    /// Most common cause of its probes' failures.
    pub cause: Option<ProbeCause>,
    pub client: Option<IpAddr>,
}

/// Reason why a lane's last probe is no evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VoidCause {
    /// The sentinel's devices were damaged in this way.
    Damage(String),
    /// The probe could not be sent for this reason.
    Unsent(String),
    /// The probe is void for this reason.
    Probe(VoidReason),
    /// The probe failed before the sentinel changed.
    Former,
}
