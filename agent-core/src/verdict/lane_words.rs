//! Sentences about the sentinel's probes: which path, how they failed, what that means.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::net::IpAddr;

use agent_common::service::{Family, SourceClass};

use super::judge::Case;
use super::lanes::Standing;
use super::report::LaneState;
use crate::cause::ProbeCause;
use crate::names;
use crate::owners::DatapathOwners;
use crate::probes::{LaneLedger, ProbeOutcome, Run, VoidReason};
use crate::time::Spoken;
use crate::trace::{Lane, ProbePath, Transport};

/// `IPv4 cluster IPs`, `IPv6 node ports (UDP)`.
pub(super) fn of_lane(lane: Lane) -> String {
    let path = match lane.path {
        ProbePath::Pod => "cluster IPs from pods",
        ProbePath::OffCluster => "cluster IPs",
        ProbePath::NodePort => "node ports",
        ProbePath::Host => "cluster IPs from the node itself",
    };
    let transport = match lane.transport {
        Transport::Tcp => "",
        Transport::Udp => " (UDP)",
    };
    format!("{} {path}{transport}", names::of_family(lane.family))
}

/// What happened to probes.
fn happened(cause: ProbeCause) -> &'static str {
    match cause {
        ProbeCause::Leaked => "left untranslated (leaked)",
        ProbeCause::Refused => "were refused by the node itself (refused)",
        ProbeCause::Unreachable => "were answered by an ICMP error (unreachable)",
        ProbeCause::Misrouted => "were sent to an address that is no endpoint (misrouted)",
        ProbeCause::Stale => "were sent to an endpoint that left its slice (stale)",
        ProbeCause::ForwardingOff => "arrived and were not sent on (forwarding off)",
        ProbeCause::LostBeforeLeaving => "arrived and were not sent on (lost)",
        ProbeCause::NoData => "were accepted, but their data did not come back (no data)",
        ProbeCause::AnswerLost => "were answered, but the answer did not get back (answer lost)",
        ProbeCause::NotMasqueraded => "kept the client's own address (not masqueraded)",
    }
}

/// What that means, and so where to look.
fn means(cause: ProbeCause, lane: Lane, local: bool, client: Option<IpAddr>) -> Cow<'static, str> {
    let from = || client.map_or_else(String::new, |client| format!(" from {client}"));
    let to = || client.map_or_else(String::new, |client| format!(" to {client}"));
    match cause {
        ProbeCause::Leaked => "the Service chain is missing or empty".into(),
        ProbeCause::Refused if local => "no rule takes what is sent to the frontend".into(),
        ProbeCause::Refused => format!(
            "a REJECT rule resets traffic{}, or no rule takes what is sent to the frontend",
            from()
        )
        .into(),
        ProbeCause::Unreachable => format!(
            "a REJECT rule stops traffic{}, or a route is missing",
            from()
        )
        .into(),
        ProbeCause::Misrouted => "the rule of the endpoint is wrong".into(),
        ProbeCause::Stale => "the rules are out of date".into(),
        ProbeCause::ForwardingOff => match lane.family {
            Family::V4 => "net.ipv4.ip_forward is 0".into(),
            Family::V6 => "net.ipv6.conf.all.forwarding is 0".into(),
        },
        ProbeCause::LostBeforeLeaving if lane.path == ProbePath::Host => {
            "a filter in OUTPUT drops them, or the route to the echo is gone".into()
        }
        ProbeCause::LostBeforeLeaving => {
            format!("the FORWARD policy or a filter drops traffic{}", from()).into()
        }
        ProbeCause::NoData => {
            "packets of connections that were just made are dropped, perhaps as INVALID".into()
        }
        ProbeCause::AnswerLost => {
            format!("a filter drops traffic{}, or the route to it is gone", to()).into()
        }
        ProbeCause::NotMasqueraded => "the masquerade rule is missing".into(),
    }
}

/// `IPv4 cluster IPs: the last 6 probes left untranslated (leaked): the Service chain is missing or
/// empty`.
fn failing(case: &Case<'_>, (lane, run): (Lane, &Run)) -> String {
    let probes = match run.failures {
        1 => "the last probe".to_owned(),
        n => format!("the last {n} probes"),
    };
    let what = match run.failures {
        1 => happened(run.cause()).replacen("were ", "was ", 1),
        _ => happened(run.cause()).to_owned(),
    };
    let client = case.ledger.sentinel().lane(lane).client;
    format!(
        "{}: {probes} {what}: {}",
        of_lane(lane),
        means(run.cause(), lane, run.local, client)
    )
}

pub(super) fn broken(case: &Case<'_>, lanes: &[(Lane, &Run)]) -> String {
    let mut text = String::new();
    for (index, (lane, run)) in lanes.iter().enumerate() {
        // Writing to a String cannot fail.
        let _ = match index {
            0 => write!(text, "{}", failing(case, (*lane, run))),
            _ => write!(text, "; {} too ({})", of_lane(*lane), run.cause().name()),
        };
    }
    let doubtful = lanes
        .iter()
        .any(|(_, run)| !run.is_unambiguous(case.ledger.observer().misrouted_suspended));
    if doubtful {
        text.push_str("; real connections fail beside them");
    }
    text
}

pub(super) fn degraded(case: &Case<'_>, run: (Lane, &Run), standing: Standing) -> String {
    let text = failing(case, run);
    match standing {
        Standing::Contradicted(class, at) => {
            let client = match class {
                SourceClass::Pod => "a pod",
                SourceClass::Host => "the node itself",
                SourceClass::External => "outside",
            };
            let ago = Spoken(case.now.since(at));
            format!("{text}; but a real connection from {client} got through {ago} ago")
        }
        _ => format!(
            "{text}; probes from pods get through, so only the sentinel's range is filtered"
        ),
    }
}

pub(super) fn alone(case: &Case<'_>, run: (Lane, &Run)) -> String {
    let (lane, _) = run;
    let others = match lane.transport {
        Transport::Udp => "probes over TCP get through",
        Transport::Tcp => "probes from outside the node get through",
    };
    format!("{}; {others}", failing(case, run))
}

pub(super) fn suspect(case: &Case<'_>, run: (Lane, &Run), standing: Standing) -> String {
    let (_, failed) = run;
    let lacking = match standing {
        Standing::Few => format!(
            "fewer than {} in a row",
            case.ledger.limits().probe_failures
        ),
        Standing::Off => off(case).unwrap_or_default(),
        Standing::Unsettled => VoidReason::Unsettled.to_string(),
        Standing::Damaged => VoidReason::Damaged.to_string(),
        Standing::Unlooked => "pathproof's own devices were not looked at since".to_owned(),
        _ if case.beside(failed).is_some() => {
            "a filter of the sentinel's own addresses would look the same, and no pod \
             is among the few clients that failed beside them"
                .to_owned()
        }
        _ => {
            "a filter of the sentinel's own addresses would look the same, and no real connection \
              failed beside them"
                .to_owned()
        }
    };
    format!("{}; not confirmed: {lacking}", failing(case, run))
}

/// Why nothing is probed.
pub(super) fn off(case: &Case<'_>) -> Option<String> {
    let off = case.ledger.sentinel().view().off.as_ref()?;
    Some(format!("the sentinel is off: {off}"))
}

pub(super) fn proven(case: &Case<'_>, lane: Lane, at: crate::time::Mono) -> String {
    format!(
        "{}: a probe of the sentinel got through {} ago",
        of_lane(lane),
        Spoken(case.now.since(at)),
    )
}

/// The rules do not follow the API.
pub(super) fn stale(case: &Case<'_>, (lane, ledger): (Lane, &LaneLedger)) -> String {
    let owners = case.ledger.sentinel().owners(lane.family);
    let owners: Vec<&str> = owners.iter().map(|owner| owner.label()).collect();
    let of = match owners.is_empty() {
        true => String::new(),
        false => format!(" of {}", owners.join(", ")),
    };
    format!(
        "{}: the rules{of} are out of date: {}",
        of_lane(lane),
        behind(case, lane, ledger).unwrap_or_default()
    )
}

/// `probes still go to generation 20003, 45 s after this node received 20004`.
fn behind(case: &Case<'_>, lane: Lane, ledger: &LaneLedger) -> Option<String> {
    let late = case.lateness(lane, ledger)?;
    let on_the_wire = ledger.generation?;
    let wanted = ledger.freshness.wanted()?;
    Some(format!(
        "probes still go to generation {on_the_wire}, {} after this node heard of a newer one (now \
         {wanted})",
        Spoken(late)
    ))
}

/// How a lane that passes follows the API.
fn follows(case: &Case<'_>, lane: Lane, ledger: &LaneLedger) -> String {
    match (behind(case, lane, ledger), ledger.freshness.lag()) {
        (Some(behind), _) => format!("; {behind}"),
        (None, Some(lag)) => format!("; the rules last followed the API within {}", Spoken(lag)),
        (None, None) => String::new(),
    }
}

/// Why a lane never worked, as far as it can be told.
pub(super) fn never_worked(lane: Lane, ledger: &LaneLedger) -> String {
    let local = matches!(lane.path, ProbePath::NodePort | ProbePath::Host);
    match ledger.never_worked() {
        Some(cause) => format!(
            "{}: no probe got through yet, they {}: most likely {}",
            of_lane(lane),
            happened(cause),
            means(cause, lane, local, ledger.client)
        ),
        None => format!("{}: no probe got through yet", of_lane(lane)),
    }
}

pub(super) fn changed_hands(case: &Case<'_>, owners: DatapathOwners) -> String {
    let owners: Vec<&str> = owners.iter().map(|owner| owner.label()).collect();
    format!(
        "{}: the datapath changed hands (now {}), and no probe got through since",
        names::of_family(case.family),
        if owners.is_empty() {
            "nobody's".to_owned()
        } else {
            owners.join(", ")
        }
    )
}

/// Why a lane's last probe says nothing.
pub(super) fn void(case: &Case<'_>, lane: Lane, ledger: &LaneLedger) -> String {
    let damage = case.ledger.sentinel().damage(case.now);
    let why: Cow<'_, str> = match (damage, &ledger.unsent, ledger.last) {
        (Some(damage), _, _) => damage.sentence.as_str().into(),
        (None, Some(unsent), _) => format!("the probe could not be sent: {unsent}").into(),
        (None, None, Some((_, ProbeOutcome::Void(reason)))) => reason.to_string().into(),
        (None, None, _) => "what went wrong before does not count any more".into(),
    };
    format!("{}: the last probe says nothing: {why}", of_lane(lane))
}

/// A lane as it looks.
pub(super) fn lane(case: &Case<'_>, lane: Lane, ledger: &LaneLedger, state: LaneState) -> String {
    match (state, &ledger.run, ledger.last_pass) {
        (LaneState::Failing, Some(run), _) => failing(case, (lane, run)),
        (LaneState::Passing, _, Some(at)) => {
            format!("{}{}", proven(case, lane, at), follows(case, lane, ledger))
        }
        (LaneState::Off, ..) if !case.ledger.sentinel().stands(lane.path) => format!(
            "{}: says nothing here: Cilium is not known to translate what enters by the sentinel's interfaces",
            of_lane(lane)
        ),
        (LaneState::NeverWorked, ..) => never_worked(lane, ledger),
        (LaneState::Void, ..) => void(case, lane, ledger),
        _ => format!("{}: not probed", of_lane(lane)),
    }
}
