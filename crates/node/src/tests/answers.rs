//! Answers: eligibility, enforcement, and the answer for an unknown verdict.

use std::net::SocketAddr;
use std::sync::Arc;

use pathproof_facts::cause::{Failure, State};
use pathproof_facts::cluster::{Change, NodeFacts, ObjectName, Protocol};
use pathproof_facts::freshness::FIRST_GENERATION;
use pathproof_facts::switches::Enforcement;
use pathproof_facts::time::Wall;
use pathproof_judge::answer::UnknownPolicy;
use pathproof_judge::eligibility::{Eligibility, TerminatingMarks};
use pathproof_judge::verdict::LastVerdict;
use pathproof_plan::REST;
use pathproof_wire::evidence::Outcome;
use pathproof_wire::service::{Family, SourceClass};
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::event::{Event, KernelSample};

fn deleting() -> Change {
    Change::Node(Arc::new(NodeFacts {
        deleting: true,
        ..node_facts()
    }))
}

#[rstest]
#[case::plain(tainted(&[]), "eligible", 200)]
#[case::terminating_taint(tainted(&[TAINT]), "tainted", 503)]
#[case::another_taint(tainted(&["somebody/else"]), "eligible", 200)]
#[case::configured_taint(tainted(&["ours/leaves"]), "tainted", 503)]
#[case::deleted(deleting(), "deleting", 503)]
fn a_node_that_leaves_is_answered_with_503(
    #[case] change: Change,
    #[case] name: &str,
    #[case] status: u16,
) {
    let taints = TerminatingMarks::of(["ours/leaves"]);
    let mut scene = Scene::probed_with(|settings, _| settings.terminating = taints);
    let effects = scene.view(vec![change]);
    let update = effects.verdict_update();
    assert_eq!(update.verdict.eligibility.name(), name);
    assert_eq!(update.answers.healthz.node_eligible, Some(status == 200));
    assert_eq!(update.answers.livez.node_eligible, None);
    assert_eq!(
        effects.statuses(),
        [status, 200],
        "the datapath still works"
    );
    assert_eq!(update.verdict.state, State::Proven);
    // The Node object is deleted: its last state still counts.
    let effects = scene.view(vec![Change::NodeGone]);
    assert_eq!(effects.verdict_update().verdict.eligibility.name(), name);
    assert_eq!(effects.statuses(), [status, 200]);
    assert_eq!(scene.view(vec![tainted(&[])]).statuses(), [200, 200]);
}

/// Eligibility does not wait for a complete view.
#[test]
fn a_taint_counts_before_the_view_is_complete() {
    let mut scene = Scene::new();
    let effects = scene.view(vec![tainted(&[TAINT])]);
    assert_eq!(effects.statuses()[0], 503);
    assert!(!scene.node.view().is_synced());
}

#[rstest]
#[case::open(UnknownPolicy::Open, [200, 200])]
#[case::closed(UnknownPolicy::Closed, [503, 503])]
fn an_unknown_verdict(#[case] policy: UnknownPolicy, #[case] statuses: [u16; 2]) {
    let mut scene = Scene::with(|settings, _| settings.unknown_policy = policy);
    let effects = scene.feed(Event::Tick);
    assert_eq!(
        effects.verdict_update().verdict.eligibility,
        Eligibility::NeverSeen
    );
    assert_eq!(effects.statuses(), statuses);
    assert_eq!(
        effects.verdict_update().answers.healthz.would_fail,
        statuses[1] == 503
    );
    scene.prove();
    assert_eq!(scene.rest(1_000).statuses(), [200, 200]);
}

#[rstest]
#[case::enforced(Enforcement::Enforce, [503, 503])]
#[case::audited(Enforcement::Audit, [200, 200])]
fn a_broken_node(#[case] enforcement: Enforcement, #[case] statuses: [u16; 2]) {
    let mut scene = Scene::probed_with(|settings, _| settings.enforcement = enforcement);
    let effects = scene.fault();
    assert_eq!(effects.told(), (State::Broken, statuses));
    let answers = &effects.verdict_update().answers;
    assert!(answers.healthz.would_fail && answers.livez.would_fail);
    // Audit mode does not affect eligibility: a leaving node still answers 503.
    let effects = scene.view(vec![tainted(&[TAINT])]);
    assert_eq!(effects.statuses()[0], 503);
}

fn braked(fleet: &str) -> Scene {
    let mut scene = Scene::probed_with(|settings, _| settings.fleet_brake = Some(20));
    scene.view(vec![counted(FIRST_GENERATION, Some(fleet))]);
    scene
}

const MANY: &str = r#"{"nodes":200,"unsound":{"DatapathBrokenLeaked":40},"written":1700000000}"#;
const ALL: &str = r#"{"nodes":200,"unsound":{"DatapathBrokenLeaked":200},"written":1700000001}"#;
const FEW: &str = r#"{"nodes":200,"unsound":{"DatapathBrokenLeaked":39},"written":1700000000}"#;

/// A fault with a certain cause, while other nodes fail too.
#[rstest]
#[case::few(FEW, [503, 503])]
#[case::many(MANY, [200, 200])]
#[case::no_nodes(r#"{"nodes":0,"unsound":{},"written":1700000000}"#, [503, 503])]
#[case::absurd(r#"{"nodes":1,"unsound":{"DatapathStale":2}}"#, [503, 503])]
#[case::garbage("40 of 200", [503, 503])]
fn a_broken_node_among_others(#[case] fleet: &str, #[case] statuses: [u16; 2]) {
    let mut scene = braked(fleet);
    let effects = scene.fault();
    assert_eq!(effects.told(), (State::Broken, statuses));
    let answers = &effects.verdict_update().answers;
    assert!(
        answers.livez.would_fail,
        "the brake does not change the verdict"
    );
    assert_eq!(answers.held.is_some(), statuses == [200, 200]);
    let effects = scene.view(vec![tainted(&[TAINT])]);
    assert_eq!(effects.statuses()[0], 503, "eligibility is never held back");
}

/// All nodes fail at the same moment, so the count of failing nodes arrives only after the 503.
#[test]
fn a_young_503_is_taken_back_by_the_count() {
    let mut scene = braked(FEW);
    assert_eq!(scene.fault().statuses(), [503, 503]);
    let effects = scene
        .later(900)
        .view(vec![counted(FIRST_GENERATION, Some(ALL))]);
    assert_eq!(effects.statuses(), [200, 200]);
    // The next agent continues with the held answer, before it has read the slices.
    let mut heir = scene.heir(1, |settings, _| settings.fleet_brake = Some(20));
    let effects = heir.feed(Event::Tick);
    let answers = &effects.verdict_update().answers;
    assert!(answers.livez.would_fail && answers.held.is_some());
    assert_eq!(effects.statuses(), [200, 200]);
}

/// A 503 for an unknown verdict is due to the policy: it is neither counted nor held back.
#[test]
fn a_503_by_policy_is_not_held_back() {
    let mut scene = Scene::with(|settings, _| {
        settings.fleet_brake = Some(20);
        settings.unknown_policy = UnknownPolicy::Closed;
    });
    scene.synced();
    let effects = scene.view(vec![counted(FIRST_GENERATION, Some(ALL))]);
    assert_eq!(effects.told(), (State::Unknown, [503, 503]));
    assert!(effects.verdict_update().answers.held.is_none());
}

/// Audit mode answers no 503, so the brake has nothing to hold back.
#[test]
fn audit_needs_no_brake() {
    let mut scene = braked(ALL);
    scene.view(vec![switched_service(30_080, "audit")]);
    let effects = scene.fault();
    assert_eq!(effects.statuses(), [200, 200]);
    let answers = &effects.verdict_update().answers;
    assert!(answers.held.is_none() && answers.audit.is_some());
}

/// While the node answers 503, an administrator edits the annotations of Node and Service.
#[test]
fn a_switch_is_in_force_with_its_event() {
    let mut scene = Scene::probed();
    scene.fault();
    let node = |switch: Option<&str>| {
        Change::Node(Arc::new(NodeFacts {
            enforcement: switch.map(Box::from),
            ..node_facts()
        }))
    };
    let switched = |scene: &mut Scene, change| scene.view(vec![change]).statuses()[1];
    assert_eq!(switched(&mut scene, node(Some("audit"))), 200);
    assert_eq!(switched(&mut scene, node(Some("enforce"))), 503);
    assert_eq!(switched(&mut scene, switched_service(30_080, "audit")), 200);
    assert_eq!(switched(&mut scene, switched_service(30_080, "Audit")), 503);
    assert_eq!(switched(&mut scene, node(Some("audit"))), 200);
    // The API server is unreachable while the next agent starts.
    let mut heir = scene.heir(1, |_, _| ());
    assert_eq!(heir.feed(Event::Tick).statuses()[1], 200);
    assert_eq!(switched(&mut scene, node(None)), 503);
}

#[test]
fn a_node_that_works_again_is_answered_with_200_a_second_later() {
    let mut scene = Scene::probed();
    scene.fault();
    for (after, status) in [(250, 503), (500, 503), (499, 503), (1, 200)] {
        let effects = scene.rest(after);
        assert_eq!(effects.told(), (State::Proven, [status; 2]));
    }
}

/// The answer has both families with the times of their proofs.
#[test]
fn an_answer_names_the_families_and_when_they_were_proven() {
    let mut scene = Scene::probed();
    let effects = scene.idle();
    let families = &effects.verdict_update().answers.healthz.families;
    assert_eq!(families.len(), 1);
    let proven = effects.verdict_update().verdict.families[0]
        .last_proof
        .unwrap();
    let anchor = scene.node.judge().anchor;
    assert_eq!(families[0].last_updated, Some(anchor.wall_of(proven)));
    assert_eq!(anchor.wall, start().wall);
    // The wall clock is set.
    let hour = 3_600_000_000_000;
    let shows = anchor.wall_of(ms(scene.now())).0 + hour;
    scene.feed(Event::ClockSet(Wall(shows)));
    let effects = scene.later(250).idle();
    let families = &effects.verdict_update().answers.healthz.families;
    let moved = Wall(anchor.wall_of(proven).0 + hour);
    assert_eq!(families[0].last_updated, Some(moved));
}

/// An update counts as a change only if it is logged.
#[test]
fn a_change_is_one_of_state_cause_or_reason_for_not_knowing() {
    let mut scene = Scene::probed();
    let differs = |effects: Effects, last: LastVerdict| {
        let verdict = &effects.verdict_update().verdict;
        verdict.differs(&last)
    };
    let proven = scene.node.judge().last.unwrap();
    assert!(!differs(scene.later(250).idle(), proven));
    assert!(!differs(scene.view(vec![tainted(&[TAINT])]), proven));
    assert!(differs(scene.leak(PATHS[0]), proven), "suspect");
    let suspect = scene.node.judge().last.unwrap();
    assert!(!differs(scene.idle(), suspect));
}

/// Feeds outcomes of clients outside to `web`; returns the Services that fail while the node works.
fn outside(scene: &mut Scene, outcomes: &[Outcome]) -> Vec<String> {
    let mut delta = delta(scene.id("web"), outcomes);
    delta.class = SourceClass::External;
    let effects = scene.later(600).sample(KernelSample {
        counts: vec![delta],
        ..KernelSample::default()
    });
    let answers = &effects.verdict_update().answers;
    let refused = answers.broken_services.iter();
    let refused = refused.filter(|(name, family)| !answers.serve(name, *family));
    refused.map(|(name, _)| name.to_string()).collect()
}

const FORWARDED: [Outcome; 2] = [Outcome::Arrived, Outcome::Proven];
const NOBODY: [String; 0] = [];

#[rstest]
#[case::leaked(Outcome::Leaked)]
#[case::misrouted(Outcome::Misrouted)]
fn a_service_may_fail_alone(#[case] outcome: Outcome) {
    let failed = [Outcome::Arrived, outcome];
    let mut scene = Scene::probed();
    for _ in 0..4 {
        assert_eq!(outside(&mut scene, &failed), NOBODY, "it never worked");
    }
    assert_eq!(outside(&mut scene, &FORWARDED), NOBODY);
    for _ in 0..2 {
        assert_eq!(outside(&mut scene, &failed), NOBODY);
    }
    // One connection got through in the same sample. The order is unknown, so the failures do not count.
    let both = [FORWARDED.as_slice(), &failed].concat();
    assert_eq!(outside(&mut scene, &both), NOBODY);
    for _ in 0..2 {
        assert_eq!(outside(&mut scene, &failed), NOBODY);
    }
    assert_eq!(outside(&mut scene, &failed), ["default/web"]);
    assert_eq!(scene.idle().statuses(), [200, 200], "the node works");
    assert_eq!(outside(&mut scene, &FORWARDED), NOBODY);
}

#[test]
fn a_filter_and_pods_that_fail_are_no_fault_of_a_service() {
    let mut scene = Scene::probed();
    outside(&mut scene, &FORWARDED);
    for _ in 0..5 {
        let mut delta = delta(scene.id("web"), &[Outcome::Arrived]);
        (delta.class, delta.lost) = (SourceClass::External, 1);
        let effects = scene.later(600).sample(KernelSample {
            counts: vec![delta],
            ..KernelSample::default()
        });
        assert!(effects.verdict_update().answers.broken_services.is_empty());
        scene.later(600).counted("web", &[Outcome::Refused]);
        assert!(
            scene
                .idle()
                .verdict_update()
                .answers
                .broken_services
                .is_empty()
        );
    }
}

/// Three clients are refused one after another. The first refusal is in the same sample as another
/// client's success, so their order is unknown. The kernel answers by ICMP if it has no route to the endpoint
/// of an old connection from the same port.
#[rstest]
#[case::nothing_is_proven(&[], false, true)]
#[case::beside_a_proof(&FORWARDED, false, false)]
#[case::by_icmp(&[], true, false)]
fn refused_clients(
    #[case] beside_the_first: &[Outcome],
    #[case] by_icmp: bool,
    #[case] expected: bool,
) {
    let mut scene = Scene::probed();
    outside(&mut scene, &FORWARDED);
    let mut is_broken = false;
    for (client, counted) in (1..).zip([beside_the_first, &[], &[]]) {
        let mut failed_connection = scene.later(600).failed_connection(Failure::Refused);
        failed_connection.class = SourceClass::External;
        failed_connection.client = [198, 51, 100, client].into();
        failed_connection.icmp = by_icmp;
        let mut delta = delta(scene.id("web"), counted);
        delta.class = SourceClass::External;
        let effects = scene.sample(KernelSample {
            counts: vec![delta],
            failed_connections: vec![failed_connection],
            ..KernelSample::default()
        });
        is_broken = !effects.verdict_update().answers.broken_services.is_empty();
    }
    assert_eq!(is_broken, expected);
}

/// Probes of all paths pass and reach this generation.
fn pass(scene: &mut Scene, generation: u16) {
    for path in PATHS {
        let mut trace = passing(path, scene.now());
        trace.generation = Some(generation);
        scene.probe(trace);
    }
}

/// Three clients outside are sent to an endpoint removed 16 s before. This shows nothing while the rules
/// follow later changes: conntrack may remember older connections from the same source ports. Nor does it if
/// the clients have dialled that endpoint since it left.
#[rstest]
#[case::the_proxy_stands_still(false, true, true)]
#[case::the_proxy_follows(false, false, false)]
#[case::source_ports_that_are_used_again(true, true, false)]
fn clients_sent_to_a_removed_endpoint(
    #[case] dialled_before: bool,
    #[case] stands_still: bool,
    #[case] expected: bool,
) {
    let mut scene = Scene::probed();
    outside(&mut scene, &FORWARDED);
    scene.view(vec![slice("web", Protocol::Tcp, &["10.2.0.9"])]);
    let rotated = FIRST_GENERATION + 1;
    scene.later(500).view(vec![sentinel_slice(rotated)]);
    let reached = if stands_still {
        FIRST_GENERATION
    } else {
        rotated
    };
    let web = ObjectName::new("default", "web");
    let mut is_refused = false;
    let waits = [dialled_before.then_some(3_000), Some(16_000)];
    for wait in waits.into_iter().flatten() {
        for _ in 0..wait / 500 {
            pass(scene.later(500), reached);
        }
        for client in 1..4 {
            pass(scene.later(600), reached);
            let mut failed_connection = scene.failed_connection(Failure::Stale);
            failed_connection.class = SourceClass::External;
            failed_connection.client = [198, 51, 100, client].into();
            failed_connection.client_port = 40_000;
            failed_connection.destination = Some(SocketAddr::from(([10, 2, 0, 1], 8_080)));
            let effects = scene.sighted(failed_connection);
            is_refused = !effects.verdict_update().answers.serve(&web, Family::V4);
        }
    }
    assert_eq!(is_refused, expected);
}

/// Clients outside are sent to an address that is not an endpoint of `web`. If it was one, conntrack may
/// remember older connections from the same source ports. The kernel reports every other connection.
#[rstest]
#[case::that_was_an_endpoint("10.2.0.2", false)]
#[case::that_never_was_one("10.9.0.2", true)]
fn clients_sent_to_no_endpoint(#[case] to: &str, #[case] expected: bool) {
    let mut scene = Scene::probed();
    scene.view(vec![slice("web", Protocol::Tcp, &["10.2.0.1"])]);
    scene.later(REST.as_millis() as u64).check();
    outside(&mut scene, &FORWARDED);
    let mut is_broken = false;
    for client in 1..4 {
        let mut failed_connection = scene.later(600).failed_connection(Failure::Misrouted);
        failed_connection.class = SourceClass::External;
        failed_connection.client = [198, 51, 100, client].into();
        failed_connection.destination = Some(SocketAddr::new(ip(to), 8_080));
        let mut unreported = failed_connection.clone();
        unreported.destination = None;
        let failed = [Outcome::Arrived, Outcome::Misrouted];
        let mut delta = delta(scene.id("web"), &[failed, failed].concat());
        delta.class = SourceClass::External;
        let effects = scene.sample(KernelSample {
            counts: vec![delta],
            failed_connections: vec![unreported, failed_connection],
            ..KernelSample::default()
        });
        is_broken = !effects.verdict_update().answers.broken_services.is_empty();
    }
    assert_eq!(is_broken, expected);
}

/// A Service fails alone on a healthy node, while other nodes fail.
#[rstest]
#[case::few(FEW, false)]
#[case::many(MANY, true)]
fn a_service_that_fails_among_others(#[case] fleet: &str, #[case] held: bool) {
    let mut scene = braked(fleet);
    outside(&mut scene, &FORWARDED);
    let failed = [Outcome::Arrived, Outcome::Leaked];
    let mut refused = Vec::new();
    for _ in 0..3 {
        refused = outside(&mut scene, &failed);
    }
    assert_eq!(refused.is_empty(), held);
    let answers = scene.idle().verdict_update().answers.clone();
    assert_eq!(answers.broken_services.len(), 1);
    assert_eq!(
        (answers.services_held.is_some(), answers.healthz.status),
        (held, 200)
    );
}

#[test]
fn in_audit_a_service_that_fails_is_told_alone() {
    let mut scene = Scene::probed_with(|settings, _| settings.enforcement = Enforcement::Audit);
    outside(&mut scene, &FORWARDED);
    for _ in 0..4 {
        assert_eq!(outside(&mut scene, &[Outcome::Leaked]), NOBODY);
    }
    let effects = scene.idle();
    let broken = &effects.verdict_update().answers.broken_services;
    assert_eq!(broken.len(), 1);
}

/// When the node is repaired, the Service counts as repaired too.
#[test]
fn a_fault_of_the_node_is_no_fault_of_a_service() {
    let mut scene = Scene::probed();
    outside(&mut scene, &FORWARDED);
    for _ in 0..4 {
        outside(&mut scene, &[Outcome::Leaked]);
    }
    scene.fault();
    assert_eq!(scene.state(), State::Broken);
    assert_eq!(outside(&mut scene, &[Outcome::Leaked]), NOBODY);
}
