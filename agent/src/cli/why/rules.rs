//! Which rule of the verdict a family is in: docs/behaviour.md in a sentence, with its numbers.

use agent_core::cause::{Cause, State};
use agent_core::limits::Limits;
use agent_core::report::Report;
use agent_core::time::Spoken;
use agent_core::trace::{ProbePath, Transport};
use agent_core::verdict::{FamilyVerdict, LaneState, LaneView};

/// The rule that gave a family its state.
pub(super) fn rule(report: &Report, family: &FamilyVerdict) -> String {
    let limits = Limits::default();
    match family.state {
        State::Broken => broken(family, &limits),
        State::Stale if family.by_sentinel => format!(
            "Probes of a path that stands for the node pass, but met an old generation of the \
             sentinel's endpoint for at least {} after this node received a newer one.",
            Spoken(limits.lag_after)
        ),
        State::Stale => format!(
            "New connections of pods still go to an endpoint that left its slice more than {} \
             before.",
            Spoken(limits.stale_after)
        ),
        State::Degraded => degraded(report, family, &limits),
        State::Suspect => suspect(family, &limits),
        State::Proven => format!(
            "A new connection or a probe came through within the last {}.",
            Spoken(limits.proof_age)
        ),
        State::Starting => format!(
            "Nothing is proven yet, and the node booted less than {} ago.",
            Spoken(limits.boot_deadline)
        ),
        State::Unknown => "No rule applies: nothing that was seen says anything.".to_owned(),
    }
}

/// Lanes whose failures may accuse the node.
fn accusing(family: &FamilyVerdict) -> Vec<&LaneView> {
    let failing = |lane: &&LaneView| {
        lane.state == LaneState::Failing
            && lane.transport == Transport::Tcp
            && lane.path != ProbePath::Host
    };
    family.lanes.iter().filter(failing).collect()
}

fn broken(family: &FamilyVerdict, limits: &Limits) -> String {
    let lanes = accusing(family);
    let host = |lane: &&LaneView| lane.state == LaneState::Failing;
    let enough = lanes
        .iter()
        .any(|lane| lane.failures >= limits.probe_failures)
        || family
            .lanes
            .iter()
            .any(|lane| host(&lane) && lane.failures >= limits.probe_failures);
    let real = format!(
        "Every Service with new connections failed for at least {}, {} Services at least, seen by \
         {} clients or more, a pod of this node among them",
        Spoken(limits.broken_after),
        limits.broken_services,
        limits.broken_sources,
    );
    if !enough {
        return format!("{real}.");
    }
    let clear = |lane: &&LaneView| lane.cause.is_some_and(|cause| cause.is_unambiguous());
    let probes = match family.lanes.iter().filter(host).any(|lane| clear(&lane)) {
        true => format!(
            "At least {} probes in a row failed on a path that worked before, in a way that no \
             filter of the sentinel's own addresses explains",
            limits.probe_failures
        ),
        false => format!(
            "At least {} probes in a row failed on a path that worked before, and real connections \
             that arrived after the first of them failed as well",
            limits.probe_failures
        ),
    };
    match family.by_sentinel {
        true => format!("{probes}."),
        false => format!("{probes}. Real connections say the same: {}.", lower(&real)),
    }
}

fn lower(sentence: &str) -> String {
    let mut letters = sentence.chars();
    match letters.next() {
        Some(first) => format!("{}{}", first.to_lowercase(), letters.as_str()),
        None => String::new(),
    }
}

fn degraded(report: &Report, family: &FamilyVerdict, limits: &Limits) -> String {
    let troubles = &report.verdict.services;
    let confirmed = troubles
        .iter()
        .any(|trouble| trouble.confirmed && trouble.family == family.family);
    if family.cause == Some(Cause::Unheard) {
        return "Answers leave, but several clients asked again as if they had not heard them; the \
                node itself forwards."
            .to_owned();
    }
    if confirmed {
        return "The family is proven, and single Services are not: that takes no node out of \
                service."
            .to_owned();
    }
    match accusing(family).is_empty() {
        false => format!(
            "At least {} probes in a row failed, but a real connection of the same path, or the \
             pods' own probes, came through meanwhile: a filter of the sentinel's addresses.",
            limits.probe_failures
        ),
        true => format!(
            "At least {} probes in a row failed on a path that does not stand for the node (the \
             node's own, or UDP), while the others pass.",
            limits.probe_failures
        ),
    }
}

fn suspect(family: &FamilyVerdict, limits: &Limits) -> String {
    let failing = |lane: &&LaneView| lane.state == LaneState::Failing;
    match family
        .lanes
        .iter()
        .filter(failing)
        .max_by_key(|lane| lane.failures)
    {
        Some(lane) if lane.failures < limits.probe_failures => format!(
            "Probes failed, fewer than the {} in a row that it takes.",
            limits.probe_failures
        ),
        Some(_) => "Probes failed, but a filter of the sentinel's own addresses would look the \
                    same: that takes a real connection that fails beside them."
            .to_owned(),
        None => {
            "Connections failed and none got through after them, which is not confirmed.".to_owned()
        }
    }
}
