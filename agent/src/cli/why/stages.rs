//! One failing lane, told stage by stage: where a probe was seen, and where it was seen last.

use std::net::{IpAddr, SocketAddr};

use agent_common::service::Family;
use serde::Serialize;

use agent_core::cause::ProbeCause;
use agent_core::explain::{self, Seen, Stage};
use agent_core::names;
use agent_core::report::Report;
use agent_core::report::sentinel::SentinelDevices;
use agent_core::time::Mono;
use agent_core::trace::{Lane, ProbePath, Transport};
use agent_core::verdict::{FamilyVerdict, LaneState, LaneView};

/// A lane that does not pass.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaneStep {
    /// Which family.
    #[serde(with = "names::FamilyName")]
    pub family: Family,
    /// Which way.
    pub path: ProbePath,
    /// By which transport.
    pub transport: Transport,
    /// What it looks like.
    pub state: LaneState,
    /// Whether its failures may accuse the node.
    pub counts: bool,
    /// How its probes fail.
    pub cause: Option<ProbeCause>,
    /// The TCP lane of the same path fails as well, and tells more.
    pub explained: bool,
    /// Where they are sent from; the node's own where that is the kernel's choice.
    pub from: Option<IpAddr>,
    /// What they dial.
    pub to: Option<SocketAddr>,
    /// Failures in a row.
    pub failures: u32,
    /// Seconds since the first of them was sent.
    pub since_s: Option<f64>,
    /// Seconds since the last of them ended.
    pub last_s: Option<f64>,
    /// Where the last probe was seen, and where it was not.
    pub steps: Vec<Step>,
    /// In a sentence, with what it means.
    pub sentence: String,
    /// What it means alone.
    pub meaning: Option<String>,
}

/// One stage of the last probe.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// Which.
    pub stage: Stage,
    /// Whether it was reached.
    pub reached: bool,
    /// Nanoseconds since it was sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after_ns: Option<u64>,
    /// The interface at which that was seen, or should have been.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The same for a person.
    pub sentence: String,
}

/// Every lane that does not pass: those that accuse first, then by failures.
pub(super) fn lanes(report: &Report) -> Vec<LaneStep> {
    let mut found: Vec<LaneStep> = Vec::new();
    for family in &report.verdict.families {
        for lane in &family.lanes {
            if !matches!(lane.state, LaneState::Passing | LaneState::Off) {
                found.push(step(report, family, lane));
            }
        }
    }
    // Stable: the order of families and lanes is kept among equals.
    found.sort_by_key(|lane| (!lane.counts, lane.cause.is_none()));
    found
}

fn step(report: &Report, of: &FamilyVerdict, lane: &LaneView) -> LaneStep {
    let family = of.family;
    let ago = |at: Option<Mono>| at.map(|at| report.verdict.at.since(at).as_secs_f64());
    let (from, to) = addresses(report, family, lane);
    LaneStep {
        family,
        path: lane.path,
        transport: lane.transport,
        state: lane.state,
        counts: lane.state == LaneState::Failing && lane.armed,
        cause: lane.cause,
        explained: explain::is_explained(lane, &of.lanes),
        from,
        to,
        failures: lane.failures,
        since_s: ago(lane.failing_since),
        last_s: ago(lane.last_failure),
        steps: told(report, lane),
        sentence: explain::sentence(family, lane, report.verdict.at),
        meaning: explain::meaning(family, lane),
    }
}

fn addresses(
    report: &Report,
    family: Family,
    lane: &LaneView,
) -> (Option<IpAddr>, Option<SocketAddr>) {
    let mut families = report.sentinel.families.iter();
    let Some(known) = families.find(|known| known.family == family) else {
        return (None, None);
    };
    let from = match lane.path {
        ProbePath::Pod => known.pod_client,
        ProbePath::OffCluster | ProbePath::NodePort => Some(known.client),
        ProbePath::Host => None,
    };
    let to = match (lane.path, lane.transport) {
        (ProbePath::NodePort, Transport::Tcp) => known.node_port,
        (ProbePath::NodePort, Transport::Udp) => known.node_port_udp,
        (_, Transport::Tcp) => Some(known.cluster_ip),
        (_, Transport::Udp) => known.cluster_ip_udp,
    };
    (from, to)
}

fn told(report: &Report, lane: &LaneView) -> Vec<Step> {
    let devices = report.sentinel.devices.as_ref();
    let uplinks = report.devices.iter().filter(|device| device.uplink);
    let uplinks: Vec<&str> = uplinks.map(|device| &*device.name).collect();
    let step = |step: explain::Step| {
        let device = devices.and_then(|devices| device(devices, step.stage, lane.path));
        let seen = Seen {
            device: device.as_deref(),
            uplinks: &uplinks,
        };
        Step {
            stage: step.stage,
            reached: step.reached,
            after_ns: step
                .after
                .map(|after| u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)),
            sentence: explain::step(lane, &step, seen),
            device,
        }
    };
    explain::steps(lane).into_iter().map(step).collect()
}

fn device(devices: &SentinelDevices, stage: Stage, path: ProbePath) -> Option<String> {
    let name = match (stage, path) {
        (Stage::Sent | Stage::Arrived | Stage::Collected, ProbePath::Host) => return None,
        (Stage::Sent | Stage::Collected, _) => &devices.client_far,
        (Stage::Arrived, _) => &devices.client_near,
        (Stage::Translated | Stage::Returned, _) => &devices.server_near,
        (Stage::Echoed | Stage::Masqueraded, _) => &devices.server_far,
        (Stage::Data, _) => return None,
    };
    Some(name.clone())
}

impl LaneStep {
    /// Whether it never worked in this boot.
    pub(super) fn never_worked(&self) -> bool {
        self.state == LaneState::NeverWorked
    }

    /// `IPv4 node port udp`.
    pub(super) fn label(&self) -> String {
        explain::lane_label(Lane {
            path: self.path,
            family: self.family,
            transport: self.transport,
        })
    }
}
