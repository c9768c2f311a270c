//! Sentences about the sentinel's probes: path, failure, and meaning.

use pathproof_facts::cause::ProbeCause;
use pathproof_facts::names;
use pathproof_facts::time::{HumanDuration, Mono};
use pathproof_facts::trace::{Lane, ProbePath, Transport};
use pathproof_wire::service::Family;

use super::{Words, client, from_clients, label, listed, texts};
use crate::verdict::finding::{
    ConcurrentFailures, Evidence, FailedLane, LaneLacking, MissingCriterion, NeverWorked, Rule,
    VoidCause,
};
use crate::verdict::{LaneState, LaneView};

/// Example: `off-cluster`.
pub fn path_label(path: ProbePath) -> &'static str {
    texts::one("path", path.name())
}

/// Example: `IPv4 node port udp`.
pub fn lane_label(lane: Lane) -> String {
    let (family, transport) = (names::of_family(lane.family), lane.transport.name());
    format!("{family} {} {transport}", path_label(lane.path))
}

/// Whether the sentence of the TCP lane on the same path also covers this UDP lane. The observer does not
/// follow the sentinel's UDP port, so it cannot see whether a UDP probe leaked or was lost.
pub fn is_explained(lane: &LaneView, lanes: &[LaneView]) -> bool {
    let clear = |cause: Option<ProbeCause>| cause.is_some_and(ProbeCause::is_unambiguous);
    let tells = |tcp: &LaneView| {
        (tcp.path, tcp.transport, tcp.state) == (lane.path, Transport::Tcp, lane.state)
            && clear(tcp.cause)
    };
    lane.transport == Transport::Udp
        && lane.cause.is_some()
        && !clear(lane.cause)
        && lanes.iter().any(tells)
}

/// The state of a family's lane at `now`.
pub fn sentence(family: Family, view: &LaneView, now: Mono) -> String {
    let name = name(family, view.path, view.transport);
    if let (LaneState::Off, Some(service)) = (view.state, &view.conflicting_service) {
        return format!(
            "{name}: not judged: Service {service} uses the address that the probes dial"
        );
    }
    match (view.state, failed(view), view.last_pass) {
        (LaneState::Failing, Some(lane), _) => failing(family, &lane),
        (LaneState::Passing, _, Some(at)) => passed(&name, at, now),
        (LaneState::Off, ..) if view.beside_cilium => format!(
            "{name}: not judged: Cilium may not translate packets that enter through the \
             sentinel's interfaces"
        ),
        (LaneState::NeverWorked, lane, _) => never_worked(family, &name, lane),
        (LaneState::Void, ..) => {
            let why = why_void(view).map(|why| format!(": {why}"));
            format!(
                "{name}: the last probe is inconclusive{}",
                why.unwrap_or_default()
            )
        }
        _ => format!("{name}: not probed"),
    }
}

/// Meaning of a lane that does not pass, which shows where to look.
pub fn meaning(family: Family, view: &LaneView) -> Option<String> {
    match view.state {
        LaneState::Failing | LaneState::NeverWorked => Some(means(family, &failed(view)?)),
        LaneState::Void => why_void(view),
        LaneState::Passing | LaneState::Off => None,
    }
}

fn failed(view: &LaneView) -> Option<FailedLane> {
    Some(FailedLane {
        path: view.path,
        transport: view.transport,
        cause: view.cause?,
        failures: view.failures,
        refusal_clear: match view.state {
            LaneState::NeverWorked => is_local(view.path),
            _ => view.refusal_clear,
        },
        client: view.client,
    })
}

/// Whether the frontend may be an address of the node, for a lane without a run of failures that shows it.
fn is_local(path: ProbePath) -> bool {
    matches!(path, ProbePath::NodePort | ProbePath::Host)
}

fn why_void(view: &LaneView) -> Option<String> {
    view.void_cause.as_ref().map(void)
}

fn void(cause: &VoidCause) -> String {
    match cause {
        VoidCause::Damage(sentence) => sentence.clone(),
        VoidCause::Unsent(why) => format!("the probe could not be sent: {why}"),
        VoidCause::Probe(reason) => texts::one("void", reason.name()).to_owned(),
        VoidCause::Former => "earlier failures no longer count".to_owned(),
    }
}

/// Example: `IPv4 cluster IPs`, `IPv6 node ports (UDP)`.
fn name(family: Family, path: ProbePath, transport: Transport) -> String {
    let path = texts::one("dialled", path.name());
    let transport = match transport {
        Transport::Tcp => "",
        Transport::Udp => " (UDP)",
    };
    format!("{} {path}{transport}", names::of_family(family))
}

/// Predicate of a sentence about probes that failed in this way.
fn happened(cause: ProbeCause, path: ProbePath) -> &'static str {
    texts::one("happened", name_on(cause, path))
}

/// Name of a cause in the texts. Packets that the node itself sends never arrive at it.
fn name_on(cause: ProbeCause, path: ProbePath) -> &'static str {
    match (cause, path) {
        (ProbeCause::LostBeforeLeaving, ProbePath::Host) => "lost_from_host",
        _ => cause.name(),
    }
}

/// Meaning of a failed lane, which shows where to look.
fn means(family: Family, lane: &FailedLane) -> String {
    let client = |preposition: &str| match lane.client {
        Some(client) => format!(" {preposition} {client}"),
        None => String::new(),
    };
    let name = match lane.cause {
        ProbeCause::ForwardingOff => return forwarding_off(family).to_owned(),
        ProbeCause::Refused if lane.refusal_clear => "refused_by_node",
        cause => name_on(cause, lane.path),
    };
    texts::one("means", name)
        .replace("{from}", &client("from"))
        .replace("{to}", &client("to"))
}

/// Example: `IPv4 cluster IPs: the last 6 probes left the node untranslated (leaked): the Service's rules are
/// missing or empty`.
fn failing(family: Family, lane: &FailedLane) -> String {
    let what = happened(lane.cause, lane.path);
    let happened = match lane.failures {
        1 => format!("the last probe {}", what.replacen("were ", "was ", 1)),
        // These failures are not always in a row, because other probes may have found room in the table.
        n if lane.cause == ProbeCause::ConntrackFull => format!("{n} probes {what}"),
        n => format!("the last {n} probes {what}"),
    };
    let name = name(family, lane.path, lane.transport);
    format!("{name}: {happened}: {}", means(family, lane))
}

fn never_worked(family: Family, name: &str, lane: Option<FailedLane>) -> String {
    let why = lane.map_or_else(String::new, |lane| {
        let (happened, means) = (happened(lane.cause, lane.path), means(family, &lane));
        format!("; probes {happened}, most likely because {means}")
    });
    format!("{name}: no probe passed yet{why}")
}

fn passed(name: &str, at: Mono, now: Mono) -> String {
    let ago = HumanDuration(now.since(at));
    format!("{name}: a sentinel probe passed {ago} ago")
}

/// Why the sentinel is not probed.
pub(super) fn off(why: &str) -> String {
    format!("the sentinel is off: {why}")
}

impl Words<'_> {
    fn family(&self) -> Family {
        self.finding.family.unwrap_or(Family::V4)
    }

    pub(super) fn never(&self, never: &NeverWorked) -> String {
        let name = name(self.family(), never.path, never.transport);
        let lane = never.cause.map(|cause| FailedLane {
            path: never.path,
            transport: never.transport,
            cause,
            failures: 0,
            refusal_clear: is_local(never.path),
            client: never.client,
        });
        never_worked(self.family(), &name, lane)
    }

    /// The sentence of a finding about a lane.
    pub(super) fn lane(&self) -> Option<String> {
        let family = self.family();
        Some(match &self.finding.evidence {
            Evidence::Probes { lanes, beside, .. } => self.probes(lanes, beside.as_ref()),
            Evidence::Probe { lane } => {
                let name = match (self.finding.rule, lane.transport) {
                    (Rule::DegradedFiltered, _) => "filtered",
                    (_, Transport::Udp) => "udp",
                    (_, Transport::Tcp) if lane.cause == ProbeCause::Misrouted => "misrouted",
                    (_, Transport::Tcp) if lane.path == ProbePath::NodePort => "node_port",
                    (_, Transport::Tcp) => "host",
                };
                let others = texts::one("others", name);
                format!("{}; {others}", failing(family, lane))
            }
            Evidence::Contradicted { lane, path, at } => format!(
                "{}; but a real connection from {} succeeded {} ago",
                failing(family, lane),
                client(*path),
                self.ago(*at)
            ),
            Evidence::Unconfirmed { lane, lacking } => {
                let lacking = self.lane_lacking(lacking);
                format!("{}; not confirmed: {lacking}", failing(family, lane))
            }
            Evidence::Late {
                path,
                transport,
                owners,
                late,
                generation,
                wanted,
            } => {
                let suffix = owners.listed(" and ").map(|owners| format!(" of {owners}"));
                let suffix = suffix.unwrap_or_default();
                let number =
                    |known: &Option<u16>| known.map_or("none".to_owned(), |port| port.to_string());
                format!(
                    "{}: the rules{suffix} are out of date: probes still go to port {} of the \
                     sentinel's endpoint, {} after this node received a newer port (now {})",
                    name(family, *path, *transport),
                    number(generation),
                    HumanDuration(*late),
                    number(wanted),
                )
            }
            Evidence::Pass {
                path,
                transport,
                at,
            } => passed(&name(family, *path, *transport), *at, self.now),
            Evidence::Never(never) => self.never(never),
            Evidence::Void {
                path,
                transport,
                why,
            } => format!(
                "{}: the last probe is inconclusive: {}",
                name(family, *path, *transport),
                void(why)
            ),
            _ => return None,
        })
    }

    fn probes(&self, lanes: &[FailedLane], beside: Option<&ConcurrentFailures>) -> String {
        let family = self.family();
        let [first, others @ ..] = lanes else {
            return String::new();
        };
        let mut text = failing(family, first);
        for lane in others {
            let name = name(family, lane.path, lane.transport);
            text.push_str(&format!("; {name} too ({})", label(lane.cause.name())));
        }
        if let Some(beside) = beside {
            text.push_str(&format!("; {}", self.beside(beside)));
        }
        text
    }

    /// Example: `120 connections from pods of this node to shop/web failed too in the last 4.2 s, and nothing
    /// succeeded since 4.3 s ago`.
    fn beside(&self, beside: &ConcurrentFailures) -> String {
        let success = match (beside.last_success, beside.others_succeed) {
            (Some(at), false) => format!("nothing succeeded since {} ago", self.ago(at)),
            (None, false) => "nothing succeeded in that time".to_owned(),
            (Some(at), true) => format!("the last one from there succeeded {} ago", self.ago(at)),
            (None, true) => "none from there succeeded".to_owned(),
        };
        format!(
            "{} connections {}to {} failed too in the last {}, and {success}",
            beside.failures,
            from_clients(&beside.clients),
            listed(&beside.services),
            self.ago(beside.since),
        )
    }

    fn lane_lacking(&self, lacking: &LaneLacking) -> String {
        let filter = "a filter on the sentinel's own addresses would look the same, and";
        match lacking {
            LaneLacking::Failures => format!(
                "fewer than {} failures in a row",
                self.limits.probe_failures
            ),
            LaneLacking::Off(why) => off(why),
            LaneLacking::Void(reason) => texts::one("void", reason.name()).to_owned(),
            LaneLacking::Others => "other paths have not been probed since".to_owned(),
            LaneLacking::DeviceCheck => {
                "pathproof's own interfaces have not been checked since".to_owned()
            }
            LaneLacking::Breadth(MissingCriterion::ProbesPass) => format!(
                "{filter} probes of another path pass, so a NetworkPolicy may deny the real \
                 connections that failed"
            ),
            LaneLacking::Breadth(lacking) => format!(
                "{filter} the real connections that failed do not confirm the fault: {}",
                self.lacking(*lacking)
            ),
            LaneLacking::Connection => format!("{filter} no real connection failed"),
        }
    }
}

/// The setting that turns off forwarding in a family.
pub(super) fn forwarding_off(family: Family) -> &'static str {
    match family {
        Family::V4 => "net.ipv4.ip_forward is 0",
        Family::V6 => "net.ipv6.conf.all.forwarding is 0",
    }
}
