//! One failing lane, told stage by stage: where a probe was seen, and where it was seen last.

use std::net::{IpAddr, SocketAddr};

use agent_common::service::Family;
use serde::Serialize;

use super::super::lanes::{self, Stage};
use agent_core::cause::ProbeCause;
use agent_core::names;
use agent_core::report::Report;
use agent_core::report::sentinel::SentinelDevices;
use agent_core::time::Mono;
use agent_core::trace::{ProbePath, Transport};
use agent_core::verdict::{LaneState, LaneView};

/// A lane that does not pass.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LaneStep {
    /// `IPv4` or `IPv6`.
    pub family: &'static str,
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
                let tcp = family
                    .lanes
                    .iter()
                    .find(|tcp| (tcp.path, tcp.transport) == (lane.path, Transport::Tcp));
                let tcp = tcp.filter(|tcp| tcp.state == lane.state);
                let tcp = tcp.and_then(|tcp| tcp.cause);
                found.push(LaneStep {
                    explained: lanes::is_explained(lane.transport, lane.cause, tcp),
                    ..step(report, family.family, lane)
                });
            }
        }
    }
    // Stable: the order of families and lanes is kept among equals.
    found.sort_by_key(|lane| (!lane.counts, lane.cause.is_none()));
    found
}

fn step(report: &Report, family: Family, lane: &LaneView) -> LaneStep {
    let ago = |at: Option<Mono>| at.map(|at| report.verdict.at.since(at).as_secs_f64());
    let (from, to) = addresses(report, family, lane);
    LaneStep {
        family: names::of_family(family),
        path: lane.path,
        transport: lane.transport,
        state: lane.state,
        counts: lane.state == LaneState::Failing && lane.armed,
        cause: lane.cause,
        explained: false,
        from,
        to,
        failures: lane.failures,
        since_s: ago(lane.failing_since),
        last_s: ago(lane.last_failure),
        steps: told(report, lane),
        sentence: lane.sentence.clone(),
        meaning: meaning(lane),
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

/// What a lane's sentence says behind the failure itself.
pub(in crate::cli) fn meaning(lane: &LaneView) -> Option<String> {
    let behind = match lane.state {
        LaneState::Failing => lane.sentence.rsplit_once("): "),
        LaneState::NeverWorked => lane.sentence.rsplit_once("most likely "),
        LaneState::Void => lane.sentence.split_once("says nothing: "),
        LaneState::Passing | LaneState::Off => None,
    };
    behind.map(|(_, meaning)| meaning.to_owned())
}

fn told(report: &Report, lane: &LaneView) -> Vec<Step> {
    let steps = lanes::steps(lane);
    let step = |step: &lanes::Step| {
        let device = report
            .sentinel
            .devices
            .as_ref()
            .and_then(|devices| device(devices, step.stage, lane.path));
        let sentence = match step.reached {
            true => reached(step.stage, lane.path, device.as_deref()),
            false => missed(report, step.stage, lane, device.as_deref()),
        };
        Step {
            stage: step.stage,
            reached: step.reached,
            after_ns: step
                .after
                .map(|after| u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)),
            device,
            sentence,
        }
    };
    steps.iter().map(step).collect()
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

fn at(preposition: &str, device: Option<&str>) -> String {
    device.map_or_else(String::new, |device| format!(" {preposition} {device}"))
}

fn reached(stage: Stage, path: ProbePath, device: Option<&str>) -> String {
    match stage {
        Stage::Sent if path == ProbePath::Host => "dialled by the node itself".to_owned(),
        Stage::Sent => format!("written{}", at("to", device)),
        Stage::Arrived => format!("came into the node{}", at("at", device)),
        Stage::Translated => format!("left for the endpoint{}, translated", at("by", device)),
        Stage::Echoed => format!("reached the echo{} and was answered", at("at", device)),
        Stage::Returned => format!("the answer came into the node{}", at("at", device)),
        Stage::Collected if path == ProbePath::Host => "the answer reached the node".to_owned(),
        Stage::Collected => format!("the answer reached the client{}", at("at", device)),
        Stage::Data => "data went there and back".to_owned(),
        Stage::Masqueraded => "the echo saw another source than the client's".to_owned(),
    }
}

fn missed(report: &Report, stage: Stage, lane: &LaneView, device: Option<&str>) -> String {
    match stage {
        Stage::Translated => not_translated(report, lane.cause, device),
        Stage::Sent | Stage::Arrived => format!("did not come into the node{}", at("at", device)),
        Stage::Echoed => format!("did not reach the echo{}", at("at", device)),
        Stage::Returned => format!("no answer came into the node{}", at("at", device)),
        Stage::Collected => format!("the answer did not reach the client{}", at("at", device)),
        Stage::Data => "data sent behind the handshake did not come back".to_owned(),
        Stage::Masqueraded => "the echo saw the client's own address".to_owned(),
    }
}

/// It came in and did not leave for the endpoint: what was seen of it instead.
fn not_translated(report: &Report, cause: Option<ProbeCause>, device: Option<&str>) -> String {
    match cause {
        Some(ProbeCause::Leaked) => format!("left by {} untranslated", uplinks(report)),
        Some(ProbeCause::Refused) => "was refused by the node itself, by RST".to_owned(),
        Some(ProbeCause::Unreachable) => "was refused by an ICMP error".to_owned(),
        Some(ProbeCause::Misrouted) => "was sent to an address that is no endpoint".to_owned(),
        Some(ProbeCause::Stale) => "was sent to an endpoint that has left".to_owned(),
        Some(ProbeCause::ForwardingOff) => format!(
            "did not leave{}, and the kernel does not forward",
            at("by", device)
        ),
        _ => format!("did not leave{}, and was not seen again", at("by", device)),
    }
}

fn uplinks(report: &Report) -> String {
    let uplinks: Vec<&str> = report
        .devices
        .iter()
        .filter(|device| device.uplink)
        .map(|device| &*device.name)
        .collect();
    match uplinks.as_slice() {
        [] => "an uplink".to_owned(),
        [one] => (*one).to_owned(),
        several => format!("an uplink ({})", several.join(", ")),
    }
}
