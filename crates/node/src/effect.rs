//! Every output of a node. The shell performs effects in order and returns their results as events.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use pathproof_facts::cluster::ObjectName;
use pathproof_facts::names;
use pathproof_facts::owners::OwnersRead;
use pathproof_facts::switches::{AuditBy, Enforcement, Switches};
use pathproof_facts::time::Mono;
use pathproof_facts::trace::ProbeTrace;
use pathproof_judge::answer::Answer;
use pathproof_judge::brake::{BrakeMemory, BrakeReason};
use pathproof_judge::damping::DampingMemory;
use pathproof_judge::eligibility::Eligibility;
use pathproof_judge::health_ports::PortTable;
use pathproof_judge::verdict::{LastVerdict, Verdict};
use pathproof_plan::MapChange;
use pathproof_wire::service::{EndpointKey, Family};
use pathproof_witness::evidence::{Client, EndpointsAsked};
use pathproof_witness::ledger::LedgerMemory;
use pathproof_witness::probes::ProbeOutcome;
use serde::{Deserialize, Serialize};

/// One output of the node. The code that performs a variant matches its inner enum without a wildcard, so a
/// new effect does not compile until it is performed.
#[derive(Debug)]
pub enum Effect {
    /// Change or read the maps of expectations.
    Maps(MapEffect),
    /// Manage the sentinel: devices, programs, prober, reads.
    Sentinel(SentinelEffect),
    Read(ReadEffect),
    /// Publish the verdict and the answers.
    Publish(Box<VerdictUpdate>),
    /// Serve these health check node ports from now on.
    HealthPorts(Arc<PortTable>),
    Write(WriteEffect),
    /// Record a metric.
    Measure(Measurement),
    /// Write a line to the log.
    Log(Notice),
}

/// Operations on the observer's maps of expectations.
#[derive(Debug)]
pub enum MapEffect {
    /// Change the expectation maps. Changes for which a map has no room come back as
    /// [`Event::Full`](super::event::Event::Full).
    Program(Vec<MapChange>),
    /// Take over the expectation maps, read their content and return
    /// [`Event::Installed`](super::event::Event::Installed).
    Read,
    /// With each sample from now on, read whether these endpoints received a connection.
    ReadEndpoints(Vec<EndpointKey>),
}

/// Operations on the sentinel's devices, programs and prober.
#[derive(Debug)]
pub enum SentinelEffect {
    /// Make the sentinel's devices, or remove them.
    Devices(DesiredDevices),
    /// Start the sentinel's programs and its prober on the devices that are ready. `anew` also replaces
    /// detached programs. The answer is `SentinelEvent::Started`.
    Start { anew: bool },
    /// Stop the programs and the prober.
    Stop,
    /// Give the prober its current destinations.
    Retarget,
    /// Check the sentinel's devices and programs now, unless a successor has them.
    Check,
    /// Read the sentinel's objects from the API server, because the watches may be late. The answer is
    /// `Event::Reread`.
    Reread,
}

#[derive(Debug)]
pub enum ReadEffect {
    /// Take the next sample after this time.
    SampleAfter(Duration),
    /// Read the datapath's topology. The argument has the owners of the Service rules, if they were just
    /// read. The answer is `Event::Topology`.
    Topology(Option<OwnersRead>),
    /// Read the kernel's connection table. The answer is `Event::Table`.
    Table,
    /// Attach or detach the program that counts dropped packets by reason. The answer is
    /// `Event::DropWatch`.
    WatchDrops(bool),
    /// Look up routes and neighbours between these clients and this node's endpoints. The answer is
    /// `Event::Lookups`.
    LookUp(Vec<Client>),
    /// Look up the pods' devices by which the node reaches endpoints. The answer is
    /// `Event::EndpointRoutes`.
    Routes(EndpointsAsked),
}

/// Writes below the state folder.
#[derive(Debug)]
pub enum WriteEffect {
    State(Box<PersistedState>),
    /// Write the recording to a file: /healthz changed, or would have changed when enforcing.
    Recording,
}

/// A probe that ended, for the metrics.
#[derive(Debug)]
pub struct Measurement {
    pub trace: Box<ProbeTrace>,
    pub outcome: ProbeOutcome,
    /// Lag of the datapath behind the API, if this probe measured it.
    pub lag: Option<Duration>,
}

/// State that outlives the agent within one boot of the node, so that a restart changes no answer.
/// The shell stores it below /run under the boot id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PersistedState {
    /// Proofs and failures.
    pub ledger: LedgerMemory,
    /// The current answer and its hold-down.
    pub damping: DampingMemory,
    pub verdict: LastVerdict,
    /// Eligibility by the last known Node object.
    pub eligibility: Eligibility,
    /// Name of that Node.
    pub node: String,
    pub brake: BrakeMemory,
    #[serde(default)]
    pub leaving_brake: BrakeMemory,
    /// The switches as last read.
    pub switches: Switches,
    /// When this was written.
    pub written: Mono,
    /// Whether the node still waited for the end of its boot, and whether it was ever more than Starting.
    pub boot: [bool; 2],
}

/// The effects of one event, in order.
pub type Effects = Vec<Effect>;

/// A verdict and its consequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerdictUpdate {
    pub verdict: Verdict,
    /// Answers of the health port.
    pub answers: Answers,
}

/// Services that fail for outside clients, one entry for each family.
pub type UnservedServices = Arc<[(ObjectName, Family)]>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    pub healthz: Answer,
    pub livez: Answer,
    /// The setting that puts the node in audit mode, in which the datapath never causes a 503.
    pub audit: Option<AuditBy>,
    /// Why the fleet brake holds back the node's 503.
    pub held: Option<BrakeReason>,
    /// Why it holds back the 503 of a node that is marked as leaving.
    pub leaving_held: Option<BrakeReason>,
    /// Why it holds back the 503 of `broken_services`.
    pub services_held: Option<BrakeReason>,
    /// Services that fail on this node for clients outside while the node itself works. Their health check
    /// node ports answer 503, unless audit mode or the fleet brake prevents it.
    pub broken_services: UnservedServices,
}

impl Answers {
    /// Whether the datapath's health decides the answers.
    pub fn enforcement(&self) -> Enforcement {
        match self.audit {
            Some(_) => Enforcement::Audit,
            None => Enforcement::Enforce,
        }
    }

    /// Whether the health check node port of this Service and family answers healthy.
    pub fn serve(&self, service: &ObjectName, family: Family) -> bool {
        let mut broken = self.broken_services.iter();
        let is_broken = broken.any(|(name, other)| (name, *other) == (service, family));
        let may_refuse = self.audit.is_none() && self.services_held.is_none();
        self.healthz.healthy && !(may_refuse && is_broken)
    }

    /// The answers of `--unknown-policy=closed` when nothing is known of the node any more, because the main
    /// loop hangs. In audit mode they stay as they are, and also while the fleet brake holds back a 503: the
    /// loops of many nodes may hang at once.
    #[must_use]
    pub fn refused(&self) -> Self {
        let mut answers = self.clone();
        if answers.audit.is_none() && answers.held.is_none() {
            answers.healthz = answers.healthz.refused();
            answers.livez = answers.livez.refused();
        }
        answers
    }

    /// Initial value. The first verdict replaces it before any client can connect.
    pub fn before_the_first() -> Self {
        let livez = Answer {
            status: 200,
            healthy: true,
            node_eligible: None,
            families: Vec::new(),
            would_fail: false,
        };
        let healthz = Answer {
            node_eligible: Some(true),
            ..livez.clone()
        };
        Self {
            healthz,
            livez,
            audit: None,
            held: None,
            leaving_held: None,
            services_held: None,
            broken_services: Arc::default(),
        }
    }
}

/// Desired state of the sentinel's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredDevices {
    /// Whether there is a sentinel to probe. Once made, the devices stay while the sentinel is edited.
    pub needed: bool,
    /// Families of the sentinel; empty if unknown.
    pub families: Vec<Family>,
    /// Addresses of the sentinel with ports. If somebody answers at one, the devices must not be made.
    pub tries: Vec<SocketAddr>,
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Notice {
    #[error("the cluster view has a problem: {0}")]
    ViewProblem(String),
    #[error("the observer's maps cannot be read: {0}")]
    Unreadable(String),
    /// The sentinel's objects in the cluster differ from those that were installed.
    #[error("the sentinel is not probed: {0}")]
    Altered(String),
    /// A new sentinel does not have all of its slices yet.
    #[error("the sentinel is not probed yet: {0}")]
    Awaited(String),
    /// Another Service uses the address that these probes dial.
    #[error("probes of {0} are not judged: Service {1} uses the address that they dial")]
    FrontendConflict(String, ObjectName),
    #[error("the sentinel is off; only real traffic is judged: {0}")]
    SentinelOff(String),
    #[error("the sentinel is on again")]
    SentinelOn,
    #[error("the sentinel's interfaces are damaged: {0}")]
    Damaged(String),
    /// Another program detached a program of the sentinel.
    #[error("the sentinel's programs were attached again")]
    Detached,
    /// An uncached read of the sentinel differed from the reports of the watches, or no longer differs.
    #[error("the sentinel was read from the API server, uncached: \
             {}", .0.as_deref().unwrap_or("it has not changed"))]
    Rechecked(Option<String>),
    #[error("{0}")]
    Ignored(String),
    #[error("the recognised datapath changed: {0}")]
    Topology(String),
    #[error("a path started or stopped failing: {0}")]
    Lane(&'static str),
    /// A Service that worked before fails for clients outside, while the node itself works.
    #[error(
        "Service {0}, {family}: connections from outside worked before and now fail on this node; \
         its health check node port, if it has one, answers 503 unless audit mode or the fleet \
         brake holds that back",
        family = names::of_family(*.1)
    )]
    Unserved(ObjectName, Family),
    /// The verdict began to fail when this agent started.
    #[error(
        "the verdict began to fail when this agent started, so the agent reports not ready to stop \
         the rolling update"
    )]
    UpgradeFailed,
}
