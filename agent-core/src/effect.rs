//! Everything that a node can want done. The shell performs effects in order, and feeds what comes
//! of them back as events.

use std::sync::Arc;
use std::time::Duration;

use agent_common::service::{EndpointKey, Family};
use serde::{Deserialize, Serialize};

use crate::answer::{Answer, Enforcement};
use crate::brake::{BrakeMemory, Held};
use crate::cluster::ObjectName;
use crate::damping::DampingMemory;
use crate::eligibility::Eligibility;
use crate::evidence::Client;
use crate::health_ports::PortTable;
use crate::ledger::LedgerMemory;
use crate::names;
use crate::owners::OwnersRead;
use crate::plan::MapChange;
use crate::probes::ProbeOutcome;
use crate::programming::Programmed;
use crate::switches::{AuditBy, Switches};
use crate::time::Mono;
use crate::trace::ProbeTrace;
use crate::verdict::{LastVerdict, Verdict};

/// One thing to do. Each variant has one performer, which matches its part without a wildcard: an effect
/// that is added does not compile until it is performed.
#[derive(Debug)]
pub enum Effect {
    /// Change or read the maps of expectations.
    Maps(MapEffect),
    /// Keep, start, check or read the sentinel.
    Sentinel(SentinelEffect),
    /// Read something of the kernel's.
    Read(ReadEffect),
    /// The verdict and what is answered because of it.
    Publish(Box<Judged>),
    /// Serve these health check node ports from now on.
    HealthPorts(Arc<PortTable>),
    /// Write to a file.
    Write(WriteEffect),
    /// Count this.
    Measure(Measurement),
    /// Worth a line in the log.
    Log(Notice),
}

/// Operations on the observer's maps of expectations.
#[derive(Debug)]
pub enum MapEffect {
    /// Change the maps of expectations; what finds no place comes back as
    /// [`Event::Full`](super::event::Event::Full).
    Program(Vec<MapChange>),
    /// Claim the maps of expectations, read what is in them and feed
    /// [`Event::Installed`](super::event::Event::Installed).
    Read,
    /// Read of these endpoints whether they were met, with each sample from now on.
    ReadEndpoints(Vec<EndpointKey>),
}

/// Operations on the sentinel's devices, programs and prober.
#[derive(Debug)]
pub enum SentinelEffect {
    /// Make the sentinel's devices, or remove them.
    Devices(DesiredDevices),
    /// Start the sentinel's programs and its prober on the devices that are ready, and replace detached
    /// programs if so required. The answer is `SentinelEvent::Started`.
    Start { anew: bool },
    /// Stop them.
    Stop,
    /// Tell the prober what to dial now.
    Retarget,
    /// Check at once whether the sentinel's devices and programs are sound, unless a successor has
    /// them.
    Check,
    /// Read the sentinel past every cache. The answer is `Event::Reread`.
    Reread,
}

/// Readings of the kernel's state.
#[derive(Debug)]
pub enum ReadEffect {
    /// Read the kernel's evidence again after this time.
    SampleAfter(Duration),
    /// Read the datapath's shape, with these owners where they were just read. The answer is
    /// `Event::Shape`.
    Shape(Option<OwnersRead>),
    /// Read the kernel's table of connections. The answer is `Event::Table`.
    Table,
    /// Attach the program that counts dropped packets by reason, or detach it. The answer is
    /// `Event::DropWatch`.
    WatchDrops(bool),
    /// Look up the kernel's ways from these clients to the endpoints of this node. The answer is `Event::Lookups`.
    LookUp(Vec<Client>),
    /// Count the connections from outside that are open. The answer is `Event::Open`.
    CountOpen,
}

/// Writings below the state folder.
#[derive(Debug)]
pub enum WriteEffect {
    /// Write down what outlives the agent.
    State(Box<Remembered>),
    /// Write the recording to a file: /healthz changed, or would have while enforcing.
    Recording,
}

/// Observations for the metrics.
#[derive(Debug)]
pub enum Measurement {
    /// A probe ended and means this.
    Probe {
        /// The probe.
        trace: Box<ProbeTrace>,
        /// The outcome of the probe.
        outcome: ProbeOutcome,
        /// Time the datapath took to follow the API, if this probe measured it.
        lag: Option<Duration>,
    },
    /// A new connection went to an endpoint that had left its slice so long before.
    StaleConnection(Family, Duration),
    /// A change of an endpoint is on the wire, or is not waited for any more.
    Programmed(Programmed),
}

/// State that outlives the agent within one boot of the node, so that a restart changes no answer.
/// The shell writes it below /run, under the boot's id, and reads it back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remembered {
    /// Proofs and runs of failures.
    pub ledger: LedgerMemory,
    /// The current answer, and how long it is held.
    pub damping: DampingMemory,
    /// The last verdict, in short.
    pub verdict: LastVerdict,
    /// Eligibility by the last known Node object.
    pub eligibility: Eligibility,
    /// Condition of the fleet brake.
    #[serde(default)]
    pub brake: BrakeMemory,
    /// The switches as they were last read.
    #[serde(default)]
    pub switches: Switches,
    /// When this was written; the boot's begin, where an older agent did not say so.
    #[serde(default)]
    pub written: Mono,
    /// Whether the boot waited, and whether the node was more than Starting; the state tells, where an older
    /// agent did not say so.
    #[serde(default)]
    pub boot: Option<[bool; 2]>,
}

/// The effects of one event, in order.
pub type Effects = Vec<Effect>;

/// A verdict and its consequences.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The verdict.
    pub verdict: Verdict,
    /// Answers of the health port.
    pub answers: Answers,
    /// State, cause or reason for not knowing changed.
    pub changed: bool,
}

/// Services that fail for clients outside, each for a family.
pub type UnservedServices = Arc<[(ObjectName, Family)]>;

/// The current answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answers {
    /// On /healthz.
    pub healthz: Answer,
    /// On /livez.
    pub livez: Answer,
    /// What makes the node audit: the datapath is never answered 503.
    pub audit: Option<AuditBy>,
    /// Reason why a 503 is held back because of other nodes.
    pub held: Option<Held>,
    /// Services that fail on this node for clients outside, though the node works: 503 at their health
    /// check node ports.
    pub broken_services: UnservedServices,
}

impl Answers {
    /// Whether the datapath's health decides them.
    pub fn enforcement(&self) -> Enforcement {
        match self.audit {
            Some(_) => Enforcement::Audit,
            None => Enforcement::Enforce,
        }
    }

    /// Whether the datapath is answered as healthy to those who ask about one Service in one family.
    pub fn serve(&self, service: &ObjectName, family: Family) -> bool {
        let mut broken = self.broken_services.iter();
        let is_broken = broken.any(|(name, of)| (name, *of) == (service, family));
        let may_refuse = self.audit.is_none() && self.held.is_none();
        self.healthz.healthy && !(may_refuse && is_broken)
    }

    /// Holds until the first verdict, which comes before anyone can ask.
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
            broken_services: Arc::default(),
        }
    }
}

/// Desired state of the sentinel's devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredDevices {
    /// There is something to probe: once made, the devices stay while the sentinel is edited.
    pub needed: bool,
    /// In these families; empty where that is not known.
    pub families: Vec<Family>,
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Notice {
    #[error("the cluster view has a problem; the last good view stays in use: {0}")]
    ViewProblem(String),
    #[error("the observer's maps cannot be read: {0}")]
    Unreadable(String),
    /// The sentinel is not as it was installed.
    #[error("the sentinel is not probed: {0}")]
    Altered(String),
    /// Another Service claims what these probes dial.
    #[error("probes of {0} are not judged: Service {1} uses the address that they dial")]
    Contested(String, ObjectName),
    #[error("the sentinel is off; only real traffic is judged: {0}")]
    SentinelOff(String),
    #[error("the sentinel is on again")]
    SentinelOn,
    #[error("the sentinel's interfaces are damaged: {0}")]
    Damaged(String),
    /// A program of the sentinel's was detached by something else.
    #[error("the sentinel's programs were attached again")]
    Detached,
    /// The API server has another sentinel than the watches reported, or has the same again.
    #[error("the sentinel was read from the API server, uncached: \
             {}", .0.as_deref().unwrap_or("it has not changed"))]
    Rechecked(Option<String>),
    #[error("{0}")]
    Ignored(String),
    #[error("the recognised datapath changed: {0}")]
    Shape(String),
    #[error("a path started or stopped failing: {0}")]
    Lane(&'static str),
    /// Clients outside are not served by a Service, which worked before, while the node works.
    #[error(
        "Service {0}, {family}: connections from outside worked before and now fail on this node; \
         its health check node port, if it has one, answers 503 unless audit mode or the fleet \
         brake holds that back",
        family = names::of_family(*.1)
    )]
    Unserved(ObjectName, Family),
    /// The verdict began to fail with this agent.
    #[error(
        "the verdict began to fail when this agent started, so the agent reports not ready to stop \
         the rolling update"
    )]
    UpgradeFailed,
}
