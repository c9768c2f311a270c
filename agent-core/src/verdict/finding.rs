//! Findings of rules, as plain data. They hold facts and no sentence: `explain` has the words.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use agent_common::service::{Family, SourceClass};
use serde::{Deserialize, Serialize};

use crate::cause::{Cause, ProbeCause};
use crate::evidence::CoverageLoss;
use crate::limits::ACTIVE;
use crate::names;
use crate::owners::DatapathOwners;
use crate::probes::VoidReason;
use crate::time::{Mono, ns};
use crate::trace::{ProbePath, Transport};

pub use super::rule::Rule;

/// Result of one rule of the judge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// The rule.
    pub rule: Rule,
    /// Family that the finding is about; `None` if it keeps everything from being judged.
    #[serde(
        with = "names::some_family",
        skip_serializing_if = "Option::is_none",
        default
    )]
    pub family: Option<Family>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cause: Option<Cause>,
    /// Facts that the rule rests on.
    pub evidence: Evidence,
}

impl Finding {
    /// Without a cause, of no family.
    pub fn new(rule: Rule, evidence: Evidence) -> Self {
        Self {
            rule,
            family: None,
            cause: None,
            evidence,
        }
    }

    /// The node is broken or stale by probes alone: no real connection failed as well.
    pub(super) fn is_by_sentinel(&self) -> bool {
        match (self.rule, &self.evidence) {
            (Rule::StaleByProbes, _) => true,
            (Rule::BrokenByProbes, Evidence::Probes { real, .. }) => !real,
            _ => false,
        }
    }

    /// Nothing but the datapath has this cause, so the fleet brake does not delay it. A full table is none:
    /// withdrawn nodes move their load to the others and fill their tables too. Beside probes that a filter may
    /// have dropped, connections are certain if they succeeded up to the moment at which both began to fail;
    /// those that were idle then may be denied since.
    pub(crate) fn is_certain(&self) -> bool {
        match (self.rule, &self.evidence) {
            (Rule::BrokenByProbes, Evidence::Probes { lanes, .. }) => {
                let is_full = |lane: &FailedLane| lane.cause == ProbeCause::ConntrackFull;
                !lanes.iter().any(is_full)
            }
            (Rule::BrokenByTwoScopes, Evidence::Probes { beside, .. }) => {
                let active = |of: &Beside| {
                    let last = of.last_success;
                    last.is_some_and(|last| of.since.since(last) <= ACTIVE)
                };
                beside.as_ref().is_some_and(active)
            }
            (Rule::BrokenByRoutes, _) => true,
            _ => false,
        }
    }

    /// Connections failed, and every path was probed with success since.
    pub(crate) fn is_refuted(&self) -> bool {
        let lacks =
            |lacking: &Option<MissingCriterion>| *lacking == Some(MissingCriterion::Referee);
        matches!(&self.evidence, Evidence::Connections { lacking, .. } if lacks(lacking))
    }
}

/// Facts that a finding rests on: as many as its sentence needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Evidence {
    /// Nothing beside the rule.
    Nothing,
    /// When the observer was last read; `None` where it never was.
    Read { at: Option<Mono> },
    /// Reason why nothing is observed.
    Unseen {
        /// The first loss of coverage.
        loss: Option<CoverageLoss>,
    },
    /// Connections that failed.
    Connections {
        /// To these Services.
        services: Named,
        /// When the first of them failed.
        since: Mono,
        /// Criterion that keeps them from accusing the node.
        lacking: Option<MissingCriterion>,
        /// Whose connections they are, if their Services had worked before.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        clients: Vec<Scope>,
        /// Failed connections; zero where they were not counted.
        #[serde(default)]
        failures: u64,
        /// When a connection of these clients last succeeded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_success: Option<Mono>,
    },
    /// Connections that were answered, and whose data was not forwarded.
    Data {
        /// To these Services.
        services: Named,
        /// Arrival of the first of them.
        since: Mono,
        /// Whose they are.
        clients: Vec<Scope>,
        connections: u32,
        /// Arrival of the last connection before of which data went both ways.
        last_success: Option<Mono>,
        /// Criterion that keeps them from accusing the node.
        lacking: Option<MissingCriterion>,
    },
    /// Connections that were not answered: to endpoints of this node they left by an uplink, to other nodes by
    /// another device than usual.
    Routes {
        connections: u32,
        since: Mono,
        /// Clients whose Services fail meanwhile; empty in recordings of older agents.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        clients: Vec<Scope>,
    },
    /// Connections of these clients that failed behind an obstacle in the node itself.
    Obstacle {
        failures: u32,
        since: Mono,
        /// Clients outside in recordings of older agents.
        #[serde(default = "outside")]
        clients: Scope,
    },
    /// Connections to an endpoint that left.
    LeftEndpoint {
        /// To these Services.
        services: Named,
        /// Time between the endpoint's departure and the connection, at most.
        #[serde(with = "ns")]
        age: Duration,
        /// Address of that endpoint.
        destination: Option<SocketAddr>,
        /// Whose connections; empty in recordings of older agents.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        clients: Vec<Scope>,
    },
    /// Services that fail while others do not.
    Services {
        /// By cause.
        broken: Vec<BrokenServices>,
        /// Services beyond those.
        more: usize,
        /// When a real connection of anybody last succeeded, if one did since these fail.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        last_success: Option<Mono>,
    },
    /// Answers that did not reach their clients.
    Unheard {
        /// Services that sent the answers.
        services: Named,
        /// Number of clients that asked again.
        clients: usize,
    },
    /// Nodes that answered before and do not any more.
    Peers {
        /// Their names.
        nodes: Named,
        /// Services whose endpoints there were dialled.
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
    Cuts { transfers: u32, since: Mono },
    /// Words of the Node's conditions.
    Network { said: Box<str> },
    /// Lanes that accuse the node.
    Probes {
        /// The lanes.
        lanes: Vec<FailedLane>,
        /// Real connections fail too.
        real: bool,
        /// Those connections.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        beside: Option<Beside>,
    },
    /// A lane that does not accuse the node.
    Probe { lane: FailedLane },
    /// A lane that fails while a real connection of its path got through.
    Contradicted {
        /// The lane.
        lane: FailedLane,
        /// Source class of the connection.
        #[serde(with = "names::ClassName")]
        path: SourceClass,
        /// When it got through.
        at: Mono,
    },
    /// A lane that may come to accuse the node.
    Unconfirmed {
        /// The lane.
        lane: FailedLane,
        /// Condition that keeps the lane from accusing the node.
        lacking: LaneLacking,
    },
    /// A lane whose rules do not follow the API.
    Late {
        /// Its path.
        path: ProbePath,
        /// Its transport.
        transport: Transport,
        /// Owners of the rules.
        owners: DatapathOwners,
        /// Time for which they have not followed.
        #[serde(with = "ns")]
        late: Duration,
        /// The generation that probes meet.
        generation: Option<u16>,
        /// The generation that they should meet.
        wanted: Option<u16>,
    },
    /// A connection that got through.
    Connection {
        /// Source class of the connection.
        #[serde(with = "names::ClassName")]
        path: SourceClass,
        /// When.
        at: Mono,
    },
    /// A probe that passed.
    Pass {
        /// Its path.
        path: ProbePath,
        /// Its transport.
        transport: Transport,
        /// When.
        at: Mono,
    },
    /// A boot that is young.
    Boot {
        /// When the node booted.
        at: Mono,
        /// The first lane that does not work.
        never: Option<NeverWorked>,
    },
    /// A lane that never worked.
    Never(NeverWorked),
    /// A lane whose last probe says nothing.
    Void {
        /// Its path.
        path: ProbePath,
        /// Its transport.
        transport: Transport,
        why: VoidCause,
    },
    /// The sentinel is not as it was made, or is off: how or why, where that is known.
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
    /// Users dialled another family within the last hour, and this one last at that time; nothing if none was seen
    /// in this boot.
    Unused(Option<Mono>),
    /// Another family is not at fault.
    OtherWorks,
}

/// Real connections that fail since the same moment as the probes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Beside {
    /// Clients of the failed connections.
    pub clients: Vec<Scope>,
    pub services: Named,
    /// Number of failed connections.
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

fn outside() -> Scope {
    Scope::Outside
}

/// Clients whose connections share their innocent explanations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Pods of this node.
    Pods,
    /// The pod probe of this node.
    PodProbe,
    /// Clients outside the node.
    Outside,
}

/// Criterion that failed connections do not meet, without which they do not accuse the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MissingCriterion {
    /// The sentinel's probes pass, and nothing shows that rules or routes are wrong.
    Referee,
    /// The sentinel's probes fail, but not since the same moment, and what failed may be denied.
    Filtered,
    /// Other Services claim what the sentinel's probes dial, and what failed may be denied.
    Claimed,
    /// No probe takes the way of pods' connections, and what failed may be denied.
    Aside,
    /// No pod of this node is among the clients, and a policy may deny the others.
    Pod,
    /// No Service that worked before.
    New,
    /// Too few Services fail.
    Services,
    /// All are of one namespace, and others are in use.
    Namespaces,
    /// Too few endpoints behind them.
    Endpoints,
    /// Too few clients.
    Sources,
    /// The failures have not lasted long enough, or stopped too early.
    Time,
}

/// Services by name; not more of them than a sentence holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// `namespace/name`, and `:port` where the port has a name.
    pub first: Vec<String>,
    /// Number of further Services.
    pub more: usize,
}

/// Services that a sentence names; the rest is a number.
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

/// Services that fail alike.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BrokenServices {
    pub cause: Cause,
    /// These.
    pub services: Named,
    /// Their failures so far.
    pub failures: u64,
}

/// A lane and its run of failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedLane {
    /// Its path.
    pub path: ProbePath,
    /// Its transport.
    pub transport: Transport,
    /// Cause of the failures.
    pub cause: ProbeCause,
    /// Number of failures in a row.
    pub failures: u32,
    /// The frontend is an address of the node's own.
    pub local: bool,
    /// No filter of the sentinel's own addresses looks like it.
    pub clear: bool,
    /// Source address of the probes.
    pub client: Option<IpAddr>,
}

/// Condition that keeps a failing lane from accusing the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaneLacking {
    /// Too few failures in a row.
    Failures,
    /// The sentinel is off, and why.
    Off(String),
    /// The sentinel changed, or its devices were damaged, a moment ago.
    Void(VoidReason),
    /// pathproof's own interfaces were not checked since.
    Look,
    /// Whether cluster IPs fail too is not known yet.
    Others,
    /// Real connections fail as well, but not broadly enough to bear the probes out.
    Breadth(MissingCriterion),
    /// No real connection fails as well.
    Connection,
}

/// A lane without a probe that passed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeverWorked {
    /// Its path.
    pub path: ProbePath,
    /// Its transport.
    pub transport: Transport,
    /// Commonest cause of the failures of its probes.
    pub cause: Option<ProbeCause>,
    /// Source address of its probes.
    pub client: Option<IpAddr>,
}

/// Reason why a lane's last probe is no evidence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VoidCause {
    /// The sentinel's devices were damaged, and how.
    Damage(String),
    /// The probe could not be sent, and why.
    Unsent(String),
    /// The probe itself says nothing.
    Probe(VoidReason),
    /// It failed before the sentinel changed.
    Former,
}
