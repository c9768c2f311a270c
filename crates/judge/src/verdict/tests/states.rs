//! Tables of states.
//!
//! Length: one table a rule, all on one page, each fault beside its innocent counterpart.

use std::time::Duration;

use Failure::{AnswerNotDelivered, Leaked, Lost, Misrouted, Refused, Stale};
use SourceClass::{External, Host, Pod};
use pathproof_facts::cause::{Cause, Failure, State, Why};
use pathproof_facts::time::Mono;
use pathproof_wire::evidence::Outcome;
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::evidence::{CoverageLoss, ObserverHealth, ProgrammingSeen};
use rstest::rstest;

use super::world::*;
use crate::verdict::finding::Scope;
use crate::verdict::{Evidence, PathState};

/// One failing client: Service, class, last byte of the address, failure.
type Client = (u32, SourceClass, u8, Failure);

/// Each client fails every 250 ms from 250 on. Returns the state at `to`.
fn failing(world: &mut World, clients: &[Client], to: u64) -> State {
    for at in (250..=to).step_by(250) {
        for (service, class, client, failure) in clients {
            world.fail(*service, *class, *client, *failure, at - 10);
        }
        world.look(at);
    }
    world.verdict(to).state
}

// The rule with all its conditions, and with each one missing.
#[rstest]
#[case::leaked(&[(WEB, Pod, 1, Leaked), (API, Pod, 2, Leaked)], State::Broken)]
#[case::refused(&[(WEB, Pod, 1, Refused), (API, Pod, 2, Refused)], State::Broken)]
#[case::misrouted(&[(WEB, Pod, 1, Misrouted), (API, Pod, 2, Misrouted)], State::Broken)]
#[case::lost(&[(WEB, Pod, 1, Lost), (API, Pod, 2, Lost)], State::Broken)]
#[case::one_pod_beside_outsiders_never_served(&[(WEB, Pod, 1, Leaked), (API, External, 2, Refused)], State::Suspect)]
#[case::one_service(&[(WEB, Pod, 1, Leaked), (WEB, Pod, 2, Leaked)], State::Suspect)]
#[case::two_ports_are_one_service(
    &[(WEB, Pod, 1, Leaked), (WEB_METRICS, Pod, 2, Leaked)], State::Suspect
)]
#[case::two_endpoints(&[(DB, Pod, 1, Leaked), (DB + 1, Pod, 2, Leaked)], State::Suspect)]
#[case::one_client_without_rules(&[(WEB, Pod, 1, Leaked), (API, Pod, 1, Leaked)], State::Broken)]
#[case::one_client_denied(&[(WEB, Pod, 1, Lost), (API, Pod, 1, Lost)], State::Suspect)]
#[case::only_outsiders_never_served(&[(WEB, External, 1, Leaked), (API, External, 2, Leaked)], State::Suspect)]
#[case::only_the_node_itself(&[(WEB, Host, 1, Leaked), (API, Host, 2, Leaked)], State::Suspect)]
fn broken(#[case] clients: &[Client], #[case] expected: State) {
    assert_eq!(failing(&mut World::new(), clients, 4_000), expected);
}

const FLUSHED: &[Client] = &[(WEB, Pod, 1, Leaked), (API, Pod, 2, Leaked)];

#[test]
fn broken_takes_three_seconds() {
    assert_eq!(failing(&mut World::new(), FLUSHED, 3_000), State::Suspect);
    // The first failure was at 240.
    assert_eq!(failing(&mut World::new(), FLUSHED, 3_250), State::Broken);
}

/// A success of other clients needs other rules, so it does not end the run.
#[rstest]
#[case::of_a_pod(Pod, State::Suspect)]
#[case::of_the_node_itself(Host, State::Broken)]
#[case::from_outside(External, State::Broken)]
fn a_success_of_the_same_clients_ends_the_run(#[case] class: SourceClass, #[case] state: State) {
    let mut world = World::new();
    failing(&mut world, FLUSHED, 2_500);
    world.prove(DB, class, 2_600).look(2_750);
    failing_from(&mut world, 3_000, 5_000);
    assert_eq!(world.verdict(5_000).state, state);
    // The three seconds start with the last success.
    failing_from(&mut world, 5_250, 6_250);
    assert_eq!(world.verdict(6_250).state, State::Broken);
}

fn failing_from(world: &mut World, from: u64, to: u64) {
    for at in (from..=to).step_by(250) {
        world
            .fail(WEB, Pod, 1, Leaked, at - 10)
            .fail(API, Pod, 2, Leaked, at - 10)
            .look(at);
    }
}

#[test]
fn failures_that_stop_early_break_nothing() {
    let mut world = World::new();
    failing(&mut world, FLUSHED, 1_000);
    world.idle(1_250, 4_000);
    assert_eq!(world.verdict(4_000).state, State::Suspect);
}

#[test]
fn broken_stays_until_proven() {
    let mut world = World::new();
    failing(&mut world, FLUSHED, 4_000);
    world.idle(4_250, 20_000);
    assert_eq!(world.verdict(20_000).state, State::Broken);
    world.prove(WEB, Pod, 20_100).look(20_250);
    assert_eq!(
        world.verdict(20_250).state,
        State::Proven,
        "fault over, after a proof"
    );
}

#[test]
fn broken_without_new_evidence_becomes_unknown() {
    let mut world = World::new();
    failing(&mut world, FLUSHED, 4_000);
    world.idle(4_250, 304_250);
    assert_eq!(world.verdict(303_900).state, State::Broken);
    let verdict = world.verdict(304_100);
    assert_eq!(unknown(&verdict), Some(Why::EvidenceTooOld));
}

#[test]
fn broken_says_what_for_how_long_and_for_whom() {
    let mut world = World::new();
    failing(&mut world, FLUSHED, 3_500);
    let verdict = world.verdict(3_500);
    assert_eq!(verdict.cause, Some(Cause::Leaked));
    assert_eq!(
        verdict.reason(),
        "IPv4: every Service that was dialled failed for 3.2 s (28 connections from pods of this node to \
         default/api, default/web:http: leaked, left the node untranslated); nothing succeeded in that time"
    );
    let paths: Vec<_> = verdict.families[0]
        .paths
        .iter()
        .map(|path| path.state)
        .collect();
    assert_eq!(
        paths,
        [PathState::Failing, PathState::Quiet, PathState::Quiet]
    );
}

#[test]
fn at_most_three_services_are_named() {
    let mut world = World::new();
    let ids = [WEB, API, WEB_METRICS, DB, CART + 1];
    let clients = ids.map(|id| (id, Pod, id as u8, Leaked));
    failing(&mut world, &clients, 4_000);
    let reason = world.verdict(4_000).reason();
    assert!(
        reason.contains("to default/api, default/db, default/web:http and 1 more: leaked"),
        "{reason}"
    );
}

#[test]
fn the_commonest_cause_is_named() {
    let clients = [
        (WEB, Pod, 1, Refused),
        (API, Pod, 2, Leaked),
        (DB, Pod, 3, Refused),
    ];
    let mut world = World::new();
    failing(&mut world, &clients, 4_000);
    assert_eq!(world.verdict(4_000).cause, Some(Cause::Refused));
}

#[test]
fn failures_beside_a_proof_in_one_look_count_only_after_it() {
    let mut world = World::new();
    for at in (250..=6_000).step_by(250) {
        world
            .fail(WEB, Pod, 1, Leaked, at - 100)
            .fail(API, Pod, 2, Leaked, at - 100);
        world.prove(DB, Pod, at - 50).look(at);
    }
    assert_eq!(world.verdict(6_000).families[0].failing_since, None);
    world
        .fail(WEB, Pod, 1, Leaked, 6_200)
        .prove(DB, Pod, 6_100)
        .look(6_250);
    assert_eq!(
        world.verdict(6_250).families[0].failing_since,
        Some(ms(6_200))
    );
}

#[test]
fn a_lost_connection_that_arrived_before_the_proof_accuses_nobody() {
    let mut world = World::new();
    world.prove(DB, Pod, 900).look(1_000);
    // Arrived at 700, reported lost at 1,700.
    world.fail(WEB, Pod, 1, Lost, 1_700).look(1_750);
    assert_eq!(world.verdict(1_750).state, State::Proven);
    // Arrived at 1,000, reported lost at 2,000.
    world.fail(WEB, Pod, 1, Lost, 2_000).look(2_000);
    let verdict = world.verdict(2_000);
    assert_eq!(verdict.state, State::Suspect);
    assert_eq!(verdict.families[0].failing_since, Some(ms(1_000)));
}

#[rstest]
#[case::lost(Lost, ObserverHealth { lost_suspended: true, ..attached() }, State::Unknown)]
#[case::refused(Refused, ObserverHealth { refused_suspended: true, ..attached() }, State::Unknown)]
#[case::misrouted(Misrouted, ObserverHealth { misrouted_suspended: true, ..attached() }, State::Unknown)]
#[case::stale(Stale, ObserverHealth { misrouted_suspended: true, ..attached() }, State::Unknown)]
#[case::leaked_all_the_same(
    Leaked, ObserverHealth { lost_suspended: true, misrouted_suspended: true, ..attached() }, State::Broken
)]
#[case::partial_coverage_is_still_judged(
    Leaked, ObserverHealth { attached: 1, ..attached() }, State::Broken
)]
#[case::no_hook_at_all(Leaked, ObserverHealth { attached: 0, ..attached() }, State::Unknown)]
fn coverage(#[case] failure: Failure, #[case] observer: ObserverHealth, #[case] expected: State) {
    let mut world = World::new();
    world.next.observer = observer;
    let clients = [(WEB, Pod, 1, failure), (API, Pod, 2, failure)];
    assert_eq!(failing(&mut world, &clients, 6_000), expected);
}

#[test]
fn blindness_is_unknown_and_says_why() {
    let mut world = World::new();
    failing(&mut world, FLUSHED, 4_000);
    let why = "permission denied".to_owned();
    world.next.observer = ObserverHealth {
        reasons: vec![CoverageLoss::NotLoaded { why }],
        ..Default::default()
    };
    world.look(4_250);
    let verdict = world.verdict(4_250);
    assert_eq!(unknown(&verdict), Some(Why::ObserverBlind));
    ends(&verdict, "not loaded into the kernel: permission denied");
    assert_eq!(verdict.families[0].state, State::Unknown);
    // After a new attachment, the run starts again, because the time between is unknown.
    world.next.observer = attached();
    failing_from(&mut world, 4_500, 5_000);
    assert_eq!(world.verdict(5_000).state, State::Suspect);
}

#[test]
fn a_gap_ends_what_was_not_confirmed() {
    let mut world = World::new();
    failing(&mut world, FLUSHED, 2_000);
    // The agent was stopped for 8 s, and the ring buffer still holds the failures of that time.
    world
        .fail(WEB, Pod, 1, Leaked, 3_000)
        .fail(API, Pod, 2, Leaked, 9_000)
        .look(10_000);
    let verdict = world.verdict(10_000);
    assert_eq!(verdict.state, State::Suspect);
    assert_eq!(verdict.families[0].failing_since, Some(ms(10_000)));
}

#[test]
fn a_gap_leaves_a_sound_verdict_alone() {
    let mut world = World::new();
    failing(&mut world, FLUSHED, 4_000);
    world.look(14_000);
    assert_eq!(world.verdict(14_000).state, State::Broken);
    world.prove(WEB, Pod, 14_100).look(14_250);
    assert_eq!(world.verdict(14_250).state, State::Proven);
}

#[test]
fn an_observer_that_is_not_read_says_nothing() {
    let mut world = World::new();
    failing(&mut world, FLUSHED, 4_000);
    assert_eq!(world.verdict(9_000).state, State::Broken);
    let verdict = world.verdict(9_001);
    assert_eq!(unknown(&verdict), Some(Why::NotSampled));
}

// Columns: seconds since the endpoint left, class of the client, usual lag in seconds.
#[rstest]
#[case::long_ago(20, Pod, None, State::Stale, Some(Cause::Stale))]
#[case::at_the_limit(15, Pod, None, State::Stale, Some(Cause::Stale))]
#[case::below_it(14, Pod, None, State::Degraded, Some(Cause::Stale))]
#[case::slow_node(20, Pod, Some(10), State::Degraded, Some(Cause::Stale))]
#[case::too_slow_even_so(31, Pod, Some(10), State::Stale, Some(Cause::Stale))]
#[case::within_the_grace(1, Pod, None, State::Proven, None)]
#[case::at_its_end(2, Pod, None, State::Proven, None)]
#[case::only_outsiders(20, External, None, State::Stale, Some(Cause::Stale))]
#[case::only_the_node_itself(20, Host, None, State::Stale, Some(Cause::Stale))]
fn stale(
    #[case] age: u64,
    #[case] class: SourceClass,
    #[case] lag: Option<u64>,
    #[case] expected: State,
    #[case] cause: Option<Cause>,
) {
    let mut world = World::new();
    world.inputs.usual_lag = lag.map(Duration::from_secs);
    for at in (250..=1_000).step_by(250) {
        world
            .stale(WEB, class, 1, age * 1_000, at - 20)
            .prove(API, Pod, at - 10)
            .look(at);
    }
    let verdict = world.verdict(1_000);
    assert_eq!(
        (verdict.state, verdict.cause),
        (expected, cause),
        "{}",
        verdict.reason()
    );
    if let Evidence::LeftEndpoint { clients, .. } = &verdict.families[0].finding.evidence {
        let scope = match class {
            Pod => Some(Scope::Pods),
            External => Some(Scope::Outside),
            Host => None,
        };
        assert_eq!(*clients, Vec::from_iter(scope));
    }
}

/// A client that reuses a resolved address makes one or two stale connections.
#[rstest]
#[case::two(2, State::Proven)]
#[case::three(3, State::Stale)]
fn a_few_stale_connections_accuse_no_node(#[case] count: u64, #[case] expected: State) {
    let mut world = World::new();
    for at in (1..=count).map(|number| number * 250) {
        world.stale(WEB, Pod, 1, 20_000, at).look(at);
    }
    world.prove(API, Pod, 990).look(1_000);
    assert_eq!(world.verdict(1_000).state, expected);
}

/// Connections within the grace period after an endpoint left do not add to those that are stale.
#[rstest]
#[case::at_its_end(2_000, State::Proven)]
#[case::after_it(2_001, State::Stale)]
fn connections_within_the_grace_period_are_not_counted(#[case] age: u64, #[case] expected: State) {
    let mut world = World::new();
    for (at, age) in [(250, 20_000), (500, 20_000), (750, age)] {
        world.stale(WEB, Pod, 1, age, at).look(at);
    }
    world.prove(API, Pod, 990).look(1_000);
    assert_eq!(world.verdict(1_000).state, expected);
}

/// Pods whose sockets are translated, and clients that cache addresses, dial the addresses of endpoints that
/// left. No proof of a pod is seen in that case.
#[rstest]
#[case::long_ago(40, 3, State::Degraded)]
#[case::by_few(40, 2, State::Proven)]
#[case::a_moment_ago(39, 3, State::Proven)]
fn an_endpoint_that_left_and_is_dialled_itself_accuses_no_node(
    #[case] age: u64,
    #[case] count: u64,
    #[case] expected: State,
) {
    let mut world = World::new();
    for at in (1..=count).map(|number| number * 250) {
        world.dialled_itself(WEB, Pod, 1, age * 1_000, at).look(at);
    }
    world.prove(API, Host, 0).look(1_000);
    let verdict = world.verdict(1_000);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
    assert_eq!(verdict.services.is_empty(), expected == State::Proven);
    if expected == State::Degraded {
        let [trouble] = &verdict.services[..] else {
            panic!("{:?}", verdict.services);
        };
        assert_eq!((trouble.cause, trouble.confirmed), (Cause::Stale, true));
    }
}

/// Clients that reuse source ports reach a removed endpoint through an old conntrack entry. If the proxy
/// follows later changes, the problem is on their side. If no later change is on the wire, the proxy has
/// stalled, and one Service is enough.
#[rstest]
#[case::nothing_is_known(None, None, State::Degraded)]
#[case::a_newer_endpoint_is_met(Some(15), None, State::Degraded)]
#[case::a_newer_one_is_not_met(None, Some(19), State::Stale)]
#[case::one_of_before_is_met(Some(25), Some(19), State::Stale)]
#[case::one_of_long_before_is_not_met(None, Some(40), State::Degraded)]
#[case::one_is_met_and_one_is_not(Some(15), Some(12), State::Degraded)]
fn stale_connections_accuse_where_programming_stands_still(
    #[case] followed: Option<u64>,
    #[case] unmet: Option<u64>,
    #[case] expected: State,
) {
    let mut world = World::new();
    let before = |age: u64| Mono(ms(1_500).0 - age * 1_000_000_000);
    world.next.programming = Some(ProgrammingSeen {
        followed: followed.map(before),
        unmet: unmet.map(before),
    });
    for at in (250..=1_500).step_by(250) {
        world.stale(WEB, External, 1, 20_000, at - 20);
        world.prove(API, Pod, at - 10).look(at);
    }
    assert_eq!(world.verdict(1_500).state, expected);
}

#[test]
fn stale_is_over_when_none_is_seen_any_more() {
    let mut world = World::new();
    for at in (250..=1_000).step_by(250) {
        world.stale(WEB, Pod, 1, 20_000, at).look(at);
    }
    assert_eq!(
        world.verdict(1_000).reason(),
        "IPv4: new connections from pods of this node to default/web:http still go to an endpoint that was \
         removed 20 s earlier (10.244.0.5:8080), and nothing that changed since is on the wire"
    );
    world.idle(1_250, 10_000);
    assert_eq!(world.verdict(8_500).state, State::Stale);
    assert_eq!(world.verdict(9_001).state, State::Suspect);
}

/// Users get 200 again within 4 s: the quiet moment, plus one second without a failure.
#[rstest]
#[case::of_that_service(WEB, 3_251, false)]
#[case::of_that_service_a_moment_ago(WEB, 3_250, true)]
#[case::of_another(API, 3_251, true)]
fn stale_is_over_once_connections_get_through(
    #[case] proven: u32,
    #[case] at: u64,
    #[case] stale: bool,
) {
    let mut world = World::new();
    for at in (0..=750).step_by(250) {
        world.stale(WEB, Pod, 1, 20_000, at).look(at);
    }
    for at in (1_000..=3_250).step_by(250) {
        world.prove(proven, Pod, at).look(at);
    }
    assert_eq!(world.verdict(at).state == State::Stale, stale);
}

// Columns: kind and number of failures of one Service, and the milliseconds between them, during which
// another Service is proven.
#[rstest]
#[case::leaked(Leaked, 3, 250, State::Degraded)]
#[case::leaked_twice(Leaked, 2, 250, State::Proven)]
#[case::leaked_now_and_then(Leaked, 3, 6_000, State::Proven)]
#[case::misrouted(Misrouted, 3, 250, State::Degraded)]
#[case::refused(Refused, 5, 250, State::Degraded)]
#[case::refused_in_a_burst(Refused, 3, 250, State::Proven)]
#[case::lost(Lost, 5, 250, State::Degraded)]
#[case::lost_twice(Lost, 2, 1_000, State::Proven)]
fn degraded(
    #[case] failure: Failure,
    #[case] times: u64,
    #[case] every: u64,
    #[case] expected: State,
) {
    let mut world = World::new();
    let mut now = 0;
    for _ in 0..times {
        for _ in 0..every / 250 {
            now += 250;
            world.prove(API, Pod, now - 10).look(now);
        }
        world.fail(WEB, Pod, 1, failure, now + 100);
    }
    world.prove(API, Pod, now + 200).look(now + 250);
    let verdict = world.verdict(now + 250);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
    assert_eq!(verdict.services.len(), 1, "it is reported in any case");
    assert_eq!(verdict.services[0].confirmed, expected == State::Degraded);
}

#[test]
fn degraded_names_services_causes_and_counts() {
    let mut world = World::new();
    for at in (250..=2_000).step_by(250) {
        world
            .fail(WEB, Pod, 1, Leaked, at - 20)
            .fail(DB, Pod, 1, Refused, at - 20);
        world.prove(API, Pod, at - 10).look(at);
    }
    let verdict = world.verdict(2_000);
    assert_eq!(
        verdict.reason(),
        "IPv4: connections fail to default/web:http (leaked, left the node untranslated; 8 failed so far), \
         default/db (refused by the node itself; 8 failed so far); others succeed, the last 10 ms ago"
    );
    let trouble = &verdict.services[0];
    assert_eq!(
        (trouble.service.as_str(), trouble.cause),
        ("default/db", Cause::Refused)
    );
}

#[test]
fn a_services_own_proof_takes_back_a_doubt() {
    let mut world = World::new();
    for at in (250..=3_000).step_by(250) {
        world.fail(WEB, Pod, 1, Refused, at - 20);
        if at % 500 == 0 {
            world.prove(WEB, Pod, at - 10);
        }
        world.prove(API, Pod, at - 10).look(at);
    }
    assert_eq!(world.verdict(3_000).state, State::Proven);
}

#[rstest]
#[case::two_clients(&[1, 2], State::Degraded)]
#[case::one_client(&[1, 1, 1], State::Proven)]
fn answers_not_delivered(#[case] clients: &[u8], #[case] expected: State) {
    let mut world = World::new();
    for client in clients {
        world.fail(WEB, External, *client, AnswerNotDelivered, 200);
    }
    world.prove(WEB, External, 100).look(250);
    let verdict = world.verdict(250);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
    world.idle(500, 10_500);
    assert_eq!(
        world.verdict(10_500).state,
        State::Proven,
        "over after ten seconds"
    );
}

#[test]
fn suspect_is_over_after_a_proof_or_a_while() {
    let mut world = World::new();
    world.prove(API, Pod, 100).look(250);
    world.fail(WEB, Pod, 1, Leaked, 400).look(500);
    assert_eq!(world.verdict(500).state, State::Proven, "one among others");
    world.idle(750, 1_250);
    let verdict = world.verdict(1_250);
    assert_eq!(verdict.state, State::Suspect);
    ends(&verdict, "not confirmed: fewer than 2 Services failed");
    let mut proven = world.clone();
    proven.prove(API, Pod, 1_300).look(1_500);
    assert_eq!(proven.verdict(1_500).state, State::Proven);
    world.idle(1_500, 10_750);
    assert_eq!(
        world.verdict(10_750).state,
        State::Proven,
        "the proof is still young enough"
    );
}

// Connections that are legitimately rejected, or forwarded and not answered, are never the node's fault.
#[rstest]
#[case::rejected(Outcome::Rejected)]
#[case::forwarded_to_a_silent_endpoint(Outcome::Forwarded)]
fn a_backend_or_a_policy_is_not_the_node(#[case] outcome: Outcome) {
    let mut world = World::new();
    for at in (250..=6_000).step_by(250) {
        for service in [WEB, API, DB] {
            world.count(service, Pod, &[(Outcome::Arrived, 5), (outcome, 5)], 0);
        }
        world.look(at);
    }
    let verdict = world.verdict(6_000);
    assert_eq!(unknown(&verdict), Some(Why::Inconclusive));
    assert!(verdict.services.is_empty());
}

/// A Service was deleted, and its clients still dial it.
#[test]
fn a_service_that_is_not_expected_any_more_is_not_judged() {
    let mut world = World::new();
    let failures = [(90, Pod, 1, Leaked), (91, Pod, 2, Leaked)];
    assert_eq!(failing(&mut world, &failures, 4_000), State::Unknown);
}

// State and reason when nothing is proven and nothing failed.
#[rstest]
#[case::idle(true, [true, false], (false, Mono(0)), State::Unknown, Some(Why::Idle))]
#[case::not_synced(false, [true, false], (false, Mono(0)), State::Unknown, Some(Why::ViewNotSynced))]
#[case::no_frontend(true, [false, false], (false, Mono(0)), State::Unknown, Some(Why::NothingExpected))]
#[case::young_with_a_sentinel(
    true, [true, false], (true, ms(0)), State::Starting, None
)]
#[case::old_with_a_sentinel(
    true, [true, false], (true, Mono(0)), State::Unknown,
    Some(Why::NothingProven)
)]
#[case::young_without(
    true, [true, false], (false, ms(0)), State::Unknown,
    Some(Why::Idle)
)]
fn nothing_seen(
    #[case] view_synced: bool,
    #[case] families: [bool; 2],
    #[case] (sentinel_exists, booted): (bool, Mono),
    #[case] state: State,
    #[case] why: Option<Why>,
) {
    let mut world = World::new();
    world.inputs.view_synced = view_synced;
    world.inputs.families = families;
    world.inputs.sentinel_exists = sentinel_exists;
    world.inputs.booted = booted;
    world.idle(250, 2_000);
    let verdict = world.verdict(2_000);
    assert_eq!((verdict.state, verdict.why), (state, why));
    assert!(!verdict.reason().is_empty());
}

#[test]
fn a_proof_ages() {
    let mut world = World::new();
    world.prove(WEB, External, 100).look(250).idle(500, 30_500);
    let verdict = world.verdict(30_100);
    assert_eq!(verdict.state, State::Proven);
    assert_eq!(
        verdict.reason(),
        "IPv4: a new connection from outside the node succeeded 30 s ago"
    );
    assert_eq!(world.verdict(30_101).why, Some(Why::Idle));
}

// The node's state by the states of IPv4 and IPv6.
#[rstest]
#[case::both_proven(true, true, false, State::Proven)]
#[case::one_idle(true, false, false, State::Proven)]
#[case::both_idle(false, false, false, State::Unknown)]
#[case::six_broken(true, false, true, State::Broken)]
#[case::six_broken_four_idle(false, false, true, State::Broken)]
fn the_worst_family_speaks(
    #[case] v4: bool,
    #[case] v6: bool,
    #[case] v6_fails: bool,
    #[case] expected: State,
) {
    let mut world = World::new();
    world.inputs.families = [true, true];
    for at in (250..=4_000).step_by(250) {
        if v4 {
            world.prove(WEB, Pod, at - 10);
        }
        if v6 {
            world.prove(WEB + V6, Pod, at - 10);
        }
        if v6_fails {
            world.fail(WEB + V6, Pod, 1, Leaked, at - 10);
            world.fail(API + V6, Pod, 2, Leaked, at - 10);
        }
        world.look(at);
    }
    let verdict = world.verdict(4_000);
    assert_eq!(verdict.state, expected);
    assert_eq!(verdict.families.len(), 2);
    if v6_fails {
        assert!(
            verdict.reason().starts_with("IPv6: "),
            "{}",
            verdict.reason()
        );
        assert_ne!(
            verdict.family(Family::V4).map(|four| four.state),
            Some(State::Broken)
        );
    }
}
