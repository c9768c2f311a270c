//! Observations since the last sample as plain values: counts per Service, single failures with addresses,
//! times of the last proofs, and the observer's coverage.
//!
//! `datapath` fills a [`Sample`] from the kernel, and the [ledger](super::ledger) absorbs it.

mod data;
mod lookups;
mod pending_reports;
mod successes;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

pub use data::LostData;
pub use lookups::{
    Client, ENDPOINTS, ENDPOINTS_AT_ONCE, EndpointRoute, EndpointRoutes, EndpointsAsked, Lookup,
    Way,
};
use pathproof_facts::cause::Failure;
use pathproof_facts::limits::CATCH_UP;
use pathproof_facts::time::Mono;
use pathproof_wire::evidence::{OUTCOMES, Outcome};
use pathproof_wire::service::{FAMILIES, SOURCE_CLASSES, SourceClass};
pub use pending_reports::{PendingReports, came_back, count, ip_of, socket_of};
use serde::{Deserialize, Serialize};
pub use successes::{Place, Success, Successes};
use thiserror::Error;

/// One reading of the kernel's maps. It is taken every 250 ms, and at once after the cluster view changed.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    pub at: Mono,
    /// Counts since the previous sample, for Services with any event.
    pub counts: Vec<CountDelta>,
    /// Single failures. The kernel limits its reports: some undelivered answers are missing here, and some
    /// other failures lack what only a report contains (destination, ICMP).
    pub failed_connections: Vec<FailedConnection>,
    /// When a connection was last proven, by `Family` and [`SourceClass`].
    pub last_proofs: [[Option<Mono>; SOURCE_CLASSES]; FAMILIES],
    /// Number of connections from outside that were forwarded and not answered, by `Family`.
    pub unanswered: [u32; FAMILIES],
    /// Whether the datapath follows endpoint changes, as seen in connections.
    pub programming: Option<ProgrammingSeen>,
    /// Connections that succeeded, by the parts of the datapath that they needed.
    pub successes: Vec<Success>,
    /// Endpoints of this node that answered connections which had left by an uplink.
    pub by_uplink: Vec<IpAddr>,
    pub lost_data: Vec<LostData>,
    pub observer: ObserverHealth,
}

/// Whether the datapath follows endpoint changes, as seen in connections. Probes cover the sentinel's
/// changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgrammingSeen {
    /// When this node received the newest added endpoint that has got a connection.
    pub followed: Option<Mono>,
    /// When this node received the newest added endpoint that has got no connection, although its Service has
    /// got many since then.
    pub unmet: Option<Mono>,
}

impl ProgrammingSeen {
    /// Merges a later reading. Readings omit an unmet endpoint after some time, but it stays here until a
    /// connection reaches it or an endpoint that was received later.
    pub(crate) fn take(&mut self, read: ProgrammingSeen) {
        self.followed = self.followed.max(read.followed);
        let still = self
            .unmet
            .filter(|unmet| self.followed.is_none_or(|at| at < *unmet));
        self.unmet = read.unmet.or(still);
    }
}

/// Count of each outcome for one Service port, family and source class.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct CountDelta {
    /// Id of the Service port and family.
    pub service: u32,
    pub class: SourceClass,
    /// By [`Outcome`].
    pub counts: [u32; OUTCOMES],
    /// Connections that arrived, had to be forwarded and were not seen again for
    /// [`LOSS_WINDOW_NS`](pathproof_wire::abi::LOSS_WINDOW_NS).
    pub lost: u32,
}

impl CountDelta {
    /// Number of failed connections. [`Outcome::AnswerNotDelivered`] is not among them, since answers to
    /// clients outside can also be lost on the way.
    pub fn failed(&self) -> u64 {
        use Outcome::{Leaked, Misrouted, Refused, Stale};
        let counted = [Refused, Leaked, Misrouted, Stale].map(|of| self.counts[of as usize]);
        counted.into_iter().chain([self.lost]).map(u64::from).sum()
    }
}

/// A connection that was not handled as expected.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FailedConnection {
    /// When the failure was seen or, if nothing was seen, when the connection's SYN arrived.
    pub at: Mono,
    /// When its SYN arrived.
    pub arrived: Mono,
    /// Id of the Service port and family.
    pub service: u32,
    pub class: SourceClass,
    pub failure: Failure,
    pub client: IpAddr,
    /// Port of the client; 0 if unknown.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub client_port: u16,
    /// Address that it dialled.
    pub frontend: SocketAddr,
    /// Destination of its SYN, if seen.
    pub destination: Option<SocketAddr>,
    /// Index of the interface where the failure was seen.
    pub device: u32,
    /// It left by an uplink although its endpoint is on this node.
    pub misdelivered: bool,
    /// Refused by ICMP rather than RST.
    pub icmp: bool,
    /// Its SYN left for an endpoint of this node, whose answer entered and was not forwarded.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub answer_lost: bool,
    /// When the destination left its slice: of a stale connection, or of a misrouted one to a former endpoint.
    pub left_since: Option<Mono>,
}

impl FailedConnection {
    /// Time from the endpoint's departure to the connection.
    pub fn age(&self) -> Option<Duration> {
        self.left_since.map(|left| self.arrived.since(left))
    }

    /// Whether it dialled the address of an endpoint that left, rather than a frontend.
    pub fn is_direct(&self) -> bool {
        self.failure == Failure::Stale && self.destination == Some(self.frontend)
    }

    /// The endpoint of this node for which the connection left by an uplink.
    pub(crate) fn misdelivered_endpoint(&self) -> Option<IpAddr> {
        let destination = self.destination.filter(|_| self.misdelivered)?;
        Some(destination.ip())
    }
}

/// The observer's coverage. Missing coverage is never the node's fault.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObserverHealth {
    /// Devices with a hook in both directions.
    pub attached: u32,
    /// Devices that should have a hook in both directions.
    pub wanted: u32,
    /// Traffic that is not seen, and why.
    pub reasons: Vec<CoverageLoss>,
    /// Connections may have been forgotten before they could be judged, so lost ones do not count.
    pub lost_suspended: bool,
    /// Endpoints of this node may be behind interfaces that are not observed. Whether the node refused a
    /// connection or an endpoint did is then unknown, so refused ones do not count.
    pub refused_suspended: bool,
    /// Endpoints or first SYNs are not known for certain, so misrouted and stale ones do not count.
    pub misrouted_suspended: bool,
}

/// A part of the traffic that is not observed, or not judged in full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Error)]
#[serde(rename_all = "snake_case", tag = "loss")]
pub enum CoverageLoss {
    #[error("the observer is not loaded into the kernel: {why}")]
    NotLoaded { why: String },
    #[error("{device} is not observed{}{why}", if why.is_empty() { "" } else { ": " })]
    Detached {
        device: String,
        /// The kernel's error; empty if it returned none.
        why: String,
    },
    /// Interfaces that the configuration excludes, or whose headers are not parsed (PPP, InfiniBand). Their
    /// packets are not seen.
    #[error(
        "interfaces that are not observed: {devices} (excluded by configuration, or neither \
         Ethernet nor IP tunnels)"
    )]
    LeftOut { devices: u64 },
    #[error("on {device} another BPF program runs before the observer and may hide packets")]
    NotFirst { device: String },
    #[error("the frontend map is full: {missing} frontends are not observed")]
    FrontendsFull { missing: u64 },
    #[error(
        "the endpoint map is full, {missing} endpoints are missing; misrouted and stale \
         connections are not judged"
    )]
    EndpointsFull { missing: u64 },
    #[error("the source map is full: {missing} pod or node prefixes are missing")]
    SourcesFull { missing: u64 },
    /// Service ports for which no id was left.
    #[error("too many Services: {missing} Service ports are not observed")]
    ServicesFull { missing: u64 },
    #[error(
        "the connection map was full: {missed} new connections were not followed; lost \
         connections are not judged"
    )]
    PendingFull { missed: u64 },
    #[error("{missed} new connections were not followed: a single source opened too many")]
    OverBudget { missed: u64 },
    #[error(
        "the observer started a moment ago and may take repeated SYNs for first ones; misrouted \
         and stale connections are not judged"
    )]
    FirstSynUncertain,
    #[error(
        "the observer was loaded a moment ago; lost, misrouted and stale connections are not judged"
    )]
    Settling,
    #[error(
        "BPF links and maps cannot be pinned, so an upgrade will leave a gap in observation: {why}"
    )]
    NoPins { why: String },
    /// The source of the cluster view is silent, or was a moment ago: endpoints may have changed without
    /// notice.
    #[error(
        "the API server or manifests folder cannot be read, or could not be read in the last {} s; misrouted \
         and stale connections are not judged",
        CATCH_UP.as_secs()
    )]
    SourceSilent,
    /// A Service that the agent does not store, to limit memory, has external IPs: they may be any addresses.
    #[error(
        "the external IPs of Service {service} are not known, because its namespace takes too much \
         memory; misrouted and stale connections are not judged, and the sentinel's probes do not \
         count"
    )]
    #[serde(rename = "claims_unknown")]
    FrontendsUnknown {
        /// `namespace/name`.
        service: String,
    },
    #[error("the observer's counters cannot be read: {why}")]
    NotRead { why: String },
}

impl CoverageLoss {
    /// Name in metrics and `/verdict`.
    pub fn name(&self) -> &'static str {
        match self {
            CoverageLoss::NotLoaded { .. } => "not_loaded",
            CoverageLoss::Detached { .. } => "detached",
            CoverageLoss::LeftOut { .. } => "left_out",
            CoverageLoss::NotFirst { .. } => "not_first",
            CoverageLoss::FrontendsFull { .. } => "frontends_full",
            CoverageLoss::EndpointsFull { .. } => "endpoints_full",
            CoverageLoss::SourcesFull { .. } => "sources_full",
            CoverageLoss::ServicesFull { .. } => "services_full",
            CoverageLoss::PendingFull { .. } => "pending_full",
            CoverageLoss::OverBudget { .. } => "over_budget",
            CoverageLoss::FirstSynUncertain => "first_syn_uncertain",
            CoverageLoss::Settling => "settling",
            CoverageLoss::NoPins { .. } => "no_pins",
            CoverageLoss::SourceSilent => "source_silent",
            CoverageLoss::FrontendsUnknown { .. } => "claims_unknown",
            CoverageLoss::NotRead { .. } => "not_read",
        }
    }
}
