//! Samples of the kernel's evidence: how often they are taken, and what is judged.

use std::net::SocketAddr;

use pathproof_facts::cause::{Failure, State};
use pathproof_facts::cluster::Protocol;
use pathproof_facts::freshness::FIRST_GENERATION;
use pathproof_facts::trace::ProbePath;
use pathproof_plan::REST;
use pathproof_wire::evidence::Outcome;
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::evidence::CoverageLoss;
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::effect::Notice;
use crate::event::{Event, KernelSample};

const IDLE: u128 = 500;
const BUSY: u128 = 250;

#[rstest]
#[case::nothing_came(|scene: &mut Scene| scene.idle(), IDLE)]
#[case::nothing_to_read(|scene: &mut Scene| scene.feed(Event::Tick), IDLE)]
#[case::not_readable(|scene: &mut Scene| scene.feed(Event::SampleFailed("e".to_owned())), IDLE)]
#[case::a_connection(|scene: &mut Scene| scene.counted("web", &[Outcome::Arrived]), BUSY)]
#[case::of_the_sentinel(|scene: &mut Scene| scene.counted("sentinel", &[Outcome::Arrived]), IDLE)]
#[case::a_datagram(|scene: &mut Scene| scene.counted("dns", &[Outcome::Arrived]), IDLE)]
#[case::a_sighting(|scene: &mut Scene| scene.sighted(scene.failed_connection(Failure::AnswerNotDelivered)), BUSY)]
#[case::a_probe_failed(|scene: &mut Scene| {
    scene.leak(PATHS[0]);
    scene.idle()
}, BUSY)]
#[case::one_failed_that_accuses_nobody(|scene: &mut Scene| {
    scene.leak(ProbePath::Host);
    assert_eq!(scene.state(), State::Proven);
    scene.idle()
}, BUSY)]
#[case::tick_in_trouble(|scene: &mut Scene| {
    scene.leak(PATHS[0]);
    scene.feed(Event::Tick)
}, BUSY)]
#[case::the_node_leaves(|scene: &mut Scene| {
    scene.view(vec![tainted(&[TAINT])]);
    scene.idle()
}, BUSY)]
fn an_idle_node_that_is_well_pays_half(
    #[case] event: fn(&mut Scene) -> Effects,
    #[case] pause: u128,
) {
    let mut scene = Scene::probed();
    assert_eq!(scene.later(250).idle().pause(), IDLE);
    assert_eq!(event(&mut scene).pause(), pause);
}

#[test]
fn a_node_of_which_nothing_is_known_is_read_fast() {
    let mut scene = Scene::new();
    assert_eq!(scene.feed(Event::Tick).pause(), BUSY);
    scene.prove();
    assert_eq!(scene.idle().pause(), IDLE);
    scene.later(60_000);
    assert_eq!(scene.idle().state(), State::Unknown, "nothing came lately");
    assert_eq!(scene.idle().pause(), BUSY);
}

/// The node is proven again but still answers 503. Samples stay frequent, so that the 503 ends soon.
#[test]
fn a_node_that_is_answered_with_503_is_read_fast() {
    let mut scene = Scene::probed();
    scene.fault();
    let effects = scene.rest(250);
    assert_eq!(effects.told(), (State::Proven, [503, 503]));
    assert_eq!(effects.pause(), BUSY);
    let effects = scene.rest(1_000);
    assert_eq!((effects.statuses(), effects.pause()), ([200, 200], IDLE));
}

#[test]
fn evidence_that_cannot_be_read_is_logged_once_and_then_missed() {
    let mut scene = Scene::probed();
    let fails = |scene: &mut Scene, why: &str| scene.feed(Event::SampleFailed(why.to_owned()));
    let effects = fails(&mut scene, "e");
    assert_eq!(effects.notices(), [&Notice::Unreadable("e".to_owned())]);
    assert!(effects.has("publish"));
    assert!(fails(&mut scene, "e").notices().is_empty());
    assert_eq!(fails(&mut scene, "f").notices().len(), 1);
    assert_eq!(fails(scene.later(5_000), "f").state(), State::Proven);
    assert_eq!(fails(scene.later(1), "f").state(), State::Unknown);
    // The loss ends with the first sample that can be read.
    let verdict = scene.rest(250).verdict_update().verdict.clone();
    let unread = |loss: &CoverageLoss| matches!(loss, CoverageLoss::NotRead { .. });
    assert_eq!(verdict.state, State::Proven);
    assert!(!verdict.coverage.losses.iter().any(unread));
    assert_eq!(
        fails(&mut scene, "f").notices().len(),
        1,
        "a sample was readable in between"
    );
}

#[test]
fn counts_of_datagrams_do_not_reach_the_verdict() {
    let mut scene = Scene::probed();
    for _ in 0..20 {
        scene.later(250);
        scene.counted("dns", &[Outcome::Arrived, Outcome::Leaked]);
    }
    let verdict = scene.idle().verdict_update().verdict.clone();
    assert_eq!(verdict.state, State::Proven);
    assert_eq!(verdict.services, []);
    let failures = verdict.families[0]
        .paths
        .iter()
        .map(|path| path.last_failure);
    assert!(failures.clone().all(|at| at.is_none()));
    assert_eq!(verdict.families[0].last_failure, None);
    // The same counts of a TCP Service are failures.
    scene.counted("web", &[Outcome::Arrived, Outcome::Leaked]);
    assert!(!scene.idle().verdict_update().verdict.services.is_empty());
}

#[test]
fn the_latest_sightings_are_kept() {
    let mut scene = Scene::probed();
    for n in 0..25_u16 {
        let mut failed_connection = scene.later(10).failed_connection(Failure::Leaked);
        failed_connection.frontend.set_port(n);
        scene.sighted(failed_connection);
    }
    let kept: Vec<u16> = scene
        .node
        .judge()
        .failed_connections
        .iter()
        .map(|failed_connection| failed_connection.frontend.port())
        .collect();
    assert_eq!(kept, (5..25).rev().collect::<Vec<_>>());
}

#[test]
fn proofs_of_real_connections_prove_the_node() {
    let mut scene = Scene::with(|settings, _| settings.sentinel = None);
    scene.view(synced_services());
    scene.feed(Event::Installed(Default::default()));
    scene.feed(Event::Hooks(hooks()));
    let mut sample = KernelSample::default();
    sample.last_proofs[Family::V4 as usize][SourceClass::Pod as usize] = Some(ms(2_900));
    let effects = scene.at(3_000).sample(sample);
    assert_eq!((effects.state(), effects.pause()), (State::Proven, IDLE));
}

/// Removes an endpoint of `web` a second later.
fn left(scene: &mut Scene) -> SocketAddr {
    scene.later(1_000);
    scene.view(vec![slice("web", Protocol::Tcp, &["10.2.0.1"])]);
    SocketAddr::new(ip("10.2.0.2"), 8080)
}

#[test]
fn a_stale_connection_is_dated_by_when_its_endpoint_left() {
    let mut scene = Scene::probed();
    let to = left(&mut scene);
    let mut failed_connection = scene.later(20_000).failed_connection(Failure::Stale);
    failed_connection.destination = Some(to);
    // The age is counted until the connection arrived, not until its failure was seen.
    failed_connection.arrived = ms(scene.now() - 100);
    scene.sighted(failed_connection);
    assert_eq!(scene.latest().left_since, Some(ms(PROBED + 1_000)));
    assert_eq!(
        scene.latest().age().map(|age| age.as_millis()),
        Some(19_900)
    );
}

#[rstest]
#[case::of_another_failure(|failed_connection: &mut pathproof_witness::evidence::FailedConnection| failed_connection.failure = Failure::Misrouted)]
#[case::nowhere(|failed_connection: &mut pathproof_witness::evidence::FailedConnection| failed_connection.destination = None)]
#[case::an_endpoint_that_is_there(|failed_connection: &mut pathproof_witness::evidence::FailedConnection| {
    failed_connection.destination = Some(SocketAddr::new(ip("10.2.0.1"), 8080));
})]
#[case::another_port(|failed_connection: &mut pathproof_witness::evidence::FailedConnection| {
    failed_connection.destination = Some(SocketAddr::new(ip("10.2.0.2"), 8081));
})]
#[case::another_service(|failed_connection: &mut pathproof_witness::evidence::FailedConnection| failed_connection.service = 31)]
fn connections_that_cannot_be_dated_have_no_age(
    #[case] edit: fn(&mut pathproof_witness::evidence::FailedConnection),
) {
    let mut scene = Scene::probed();
    let to = left(&mut scene);
    let mut failed_connection = scene.later(20_000).failed_connection(Failure::Stale);
    failed_connection.destination = Some(to);
    edit(&mut failed_connection);
    scene.sighted(failed_connection);
    assert_eq!(scene.latest().left_since, None);
}

#[test]
fn a_date_that_is_known_is_kept() {
    let mut scene = Scene::probed();
    let to = left(&mut scene);
    let mut failed_connection = scene.later(20_000).failed_connection(Failure::Stale);
    (failed_connection.destination, failed_connection.left_since) = (Some(to), Some(ms(7)));
    scene.sighted(failed_connection);
    assert_eq!(scene.latest().left_since, Some(ms(7)));
}

/// Three connections of a pod to a removed endpoint. The probes do not meet the current generation either.
fn stale(scene: &mut Scene, to: SocketAddr) {
    for _ in 0..3 {
        let mut failed_connection = scene.failed_connection(Failure::Stale);
        failed_connection.destination = Some(to);
        scene.sighted(failed_connection);
    }
}

/// With a usual lag of 8 s, connections are stale only from 24 s on.
#[rstest]
#[case::usual(16_000, State::Degraded)]
#[case::beyond(24_500, State::Stale)]
fn what_is_stale_depends_on_the_usual_lag(#[case] age: u64, #[case] state: State) {
    let mut scene = Scene::probed();
    let rotated = FIRST_GENERATION + 1;
    scene.view(vec![sentinel_slice(rotated)]);
    for _ in 0..16 {
        scene.later(500).pass();
    }
    for path in PATHS {
        let mut trace = passing(path, scene.now());
        trace.generation = Some(rotated);
        assert_eq!(scene.probe(trace).probed().1, Some(8_000));
    }
    let to = left(&mut scene);
    scene.view(vec![sentinel_slice(rotated + 1)]);
    for _ in 0..age / 500 {
        scene.later(500).pass();
    }
    stale(&mut scene, to);
    assert_eq!(scene.idle().state(), state);
}

/// Rules of long ago were restored. They lead the connections of every Service to endpoints that were removed,
/// while the sentinel's rules are intact and the proxy follows later changes.
#[test]
fn restored_rules_accuse_the_node() {
    let mut scene = Scene::probed();
    scene.view(vec![
        service("api", "10.96.0.9"),
        slice("api", Protocol::Tcp, &["10.2.0.3"]),
        slice("web", Protocol::Tcp, &["10.2.0.1"]),
    ]);
    for name in ["web", "api"] {
        scene
            .later(250)
            .counted(name, &[Outcome::Arrived, Outcome::Proven]);
    }
    scene.later(REST.as_millis() as u64).check();
    for _ in 0..24 {
        scene.rest(250);
        let failed = ["web", "api"].map(|name| {
            let mut seen = scene.failed_connection(Failure::Misrouted);
            seen.service = scene.id(name);
            seen.destination = Some(SocketAddr::new(ip("10.2.0.2"), 8_080));
            (
                delta(seen.service, &[Outcome::Arrived, Outcome::Misrouted]),
                seen,
            )
        });
        let (counts, failed_connections) = failed.into_iter().unzip();
        scene.sample(KernelSample {
            counts,
            failed_connections,
            ..KernelSample::default()
        });
    }
    assert!(scene.latest().left_since.is_some(), "to a removed endpoint");
    assert_eq!(scene.state(), State::Broken);
}
