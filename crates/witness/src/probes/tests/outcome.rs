//! Every cause of a failure, and every reason for a void probe.

use std::time::Duration;

use pathproof_facts::cause::ProbeCause::*;
use pathproof_facts::limits::Limits;
use pathproof_facts::time::Mono;
use pathproof_facts::trace::{Control, ProbePath, ProbeSightings, ProbeTrace};
use pathproof_wire::probe::{STAGES, Stage};
use pathproof_wire::service::Family;
use rstest::rstest;

use crate::probes::ProbeOutcome::{Failed, Passed, Void};
use crate::probes::{KernelFacts, ProbeOutcome, VoidReason, classify};
use crate::testing::traces::{passed, stuck, tcp, udp, until};

const SENT: Mono = Mono(5_000_000_000);

const NOTHING: ProbeSightings = ProbeSightings {
    leaked: false,
    misrouted: false,
    stale: false,
    refused: false,
    unreachable: false,
};

fn forwarding(on: Option<bool>) -> KernelFacts {
    KernelFacts {
        forwarding: [on, Some(true)],
        ..KernelFacts::default()
    }
}

fn meaning(trace: &ProbeTrace, on: Option<bool>) -> ProbeOutcome {
    classify(trace, &forwarding(on), &Limits::default())
}

#[rstest]
#[case::leaked(Some(Stage::Arrived), ProbeSightings { leaked: true, ..NOTHING }, true, Failed(Leaked))]
#[case::misrouted(Some(Stage::Arrived), ProbeSightings { misrouted: true, ..NOTHING }, true, Failed(Misrouted))]
#[case::refused(Some(Stage::Arrived), ProbeSightings { refused: true, ..NOTHING }, true, Failed(Refused))]
#[case::unreachable(Some(Stage::Arrived), ProbeSightings { unreachable: true, ..NOTHING }, true, Failed(Unreachable))]
#[case::stale(Some(Stage::Arrived), ProbeSightings { stale: true, ..NOTHING }, true, Failed(Stale))]
#[case::lost(Some(Stage::Arrived), NOTHING, true, Failed(LostBeforeLeaving))]
#[case::forwarding_off(Some(Stage::Arrived), NOTHING, false, Failed(ForwardingOff))]
#[case::leaked_says_more(Some(Stage::Arrived), ProbeSightings { leaked: true, ..NOTHING }, false, Failed(Leaked))]
#[case::answer_lost(Some(Stage::Returned), NOTHING, true, Failed(AnswerLost))]
#[case::answer_lost_whatever_the_kernel_says(
    Some(Stage::Returned),
    NOTHING,
    false,
    Failed(AnswerLost)
)]
#[case::client_device(None, NOTHING, true, Void(VoidReason::NotArrived))]
#[case::client_device_beside_forwarding_off(None, NOTHING, false, Void(VoidReason::NotArrived))]
#[case::echo_silent(Some(Stage::Translated), NOTHING, true, Void(VoidReason::NotEchoed))]
#[case::echo_unheard(Some(Stage::Echoed), NOTHING, true, Void(VoidReason::NotEchoed))]
fn the_first_missing_stage_names_the_cause(
    #[case] last: Option<Stage>,
    #[case] sightings: ProbeSightings,
    #[case] on: bool,
    #[case] expected: ProbeOutcome,
    #[values(tcp(ProbePath::OffCluster), udp(ProbePath::Pod))] lane: pathproof_facts::trace::Lane,
) {
    let mut trace = stuck(lane, SENT, last);
    trace.sightings = sightings;
    assert_eq!(meaning(&trace, Some(on)), expected);
}

#[test]
fn a_probe_that_leaves_the_node_did_not_dial_a_local_address() {
    let mut trace = stuck(tcp(ProbePath::NodePort), SENT, Some(Stage::Arrived));
    trace.sightings.leaked = true;
    assert_eq!(meaning(&trace, Some(true)), Void(VoidReason::NotLocal));
}

#[test]
fn unknown_kernel_facts_are_not_assumed() {
    let trace = stuck(tcp(ProbePath::Pod), SENT, Some(Stage::Arrived));
    assert_eq!(meaning(&trace, None), Failed(LostBeforeLeaving));
    let mut other = trace;
    other.lane.family = Family::V6;
    assert_eq!(
        meaning(&other, Some(false)),
        Failed(LostBeforeLeaving),
        "IPv4 is off, IPv6 forwards"
    );
}

#[rstest]
#[case::dropped(Some(Stage::Arrived), Failed(NoData))]
#[case::answer_dropped(Some(Stage::Returned), Failed(NoData))]
#[case::never_sent(None, Void(VoidReason::NotArrived))]
#[case::echo_silent(Some(Stage::Translated), Void(VoidReason::NotEchoed))]
fn a_handshake_without_data(#[case] last: Option<Stage>, #[case] expected: ProbeOutcome) {
    let mut trace = passed(tcp(ProbePath::NodePort), SENT);
    trace.data = until(SENT, last);
    assert_eq!(meaning(&trace, Some(true)), expected);
    // Forwarding that was switched off in between makes no difference.
    assert_eq!(meaning(&trace, Some(false)), expected);
}

#[test]
fn the_host_has_no_arrival_and_needs_no_forwarding() {
    let lane = tcp(ProbePath::Host);
    assert_eq!(
        meaning(&stuck(lane, SENT, None), Some(false)),
        Failed(LostBeforeLeaving)
    );
    let mut refused = stuck(lane, SENT, None);
    refused.sightings.refused = true;
    assert_eq!(meaning(&refused, Some(true)), Failed(Refused));
    let mut mute = passed(lane, SENT);
    mute.data = [None; STAGES];
    assert_eq!(meaning(&mute, Some(true)), Failed(NoData));
    let mut whole = passed(lane, SENT);
    whole.handshake[Stage::Arrived as usize] = None;
    whole.data[Stage::Arrived as usize] = None;
    assert_eq!(meaning(&whole, Some(true)), Passed { masqueraded: false });
}

#[test]
fn masquerade_is_another_address_not_another_notation() {
    let mut trace = passed(tcp(ProbePath::OffCluster), SENT);
    assert_eq!(meaning(&trace, Some(true)), Passed { masqueraded: true });
    trace.echo_saw = Some("[::ffff:198.18.0.1]:999".parse().unwrap());
    assert_eq!(
        meaning(&trace, Some(true)),
        Passed { masqueraded: false },
        "the port may change"
    );
}

/// A starved, damaged or unsent probe is no failure, whatever was observed.
#[rstest]
#[case::control(VoidReason::ControlFailed, |trace: &mut ProbeTrace| trace.control = Control::Failed)]
#[case::sent_late(VoidReason::SentLate, |trace: &mut ProbeTrace| {
    trace.due = trace.sent.minus(Duration::from_millis(201));
})]
#[case::ended_late(VoidReason::EndedLate, |trace: &mut ProbeTrace| {
    trace.ended = trace.sent.plus(Duration::from_millis(501));
})]
#[case::not_sent(VoidReason::NotSent, |trace: &mut ProbeTrace| {
    trace.unsent = Some("network is down".to_owned());
})]
fn void_outranks_every_failure(
    #[case] reason: VoidReason,
    #[case] spoil: fn(&mut ProbeTrace),
    #[values(true, false)] leaked: bool,
) {
    let mut trace = stuck(tcp(ProbePath::OffCluster), SENT, Some(Stage::Arrived));
    trace.sightings.leaked = leaked;
    spoil(&mut trace);
    assert_eq!(meaning(&trace, Some(false)), Void(reason));
}

#[test]
fn a_probe_that_came_back_passed_however_late() {
    let mut trace = passed(tcp(ProbePath::OffCluster), SENT);
    trace.control = Control::Failed;
    trace.ended = SENT.plus(Duration::from_secs(10));
    assert_eq!(meaning(&trace, Some(true)), Passed { masqueraded: true });
}
