//! The node receives endpoints' answers but does not forward them. Meanwhile it still forwards SYNs to
//! endpoints, but this does not prove that clients are served.

use pathproof_facts::cause::Failure::Lost;
use pathproof_facts::cause::State;
use pathproof_wire::evidence::Outcome;
use pathproof_wire::service::SourceClass::Pod;
use rstest::rstest;

use super::probes::{change, restart};
use super::scene::*;
use super::world::*;

/// A Service whose connections are not forwarded, because a cache on the node answers at its address.
const CACHED: u32 = CART;

/// Another event at each sample while answers are lost.
type SideEvent = fn(&mut World, u64);

/// A pod's connection whose answer is forwarded.
fn answered(world: &mut World, service: u32, at: u64) {
    world.prove(service, Pod, at);
    let delta = world.next.counts.last_mut().unwrap();
    delta.counts[Outcome::Answered as usize] = 1;
    world.look(at);
}

/// The node itself answers a pod.
fn cached(world: &mut World, service: u32) {
    world.count(service, Pod, &[(Outcome::Answered, 1)], 0);
}

/// Two pods dial two Services every 250 ms. Their answers enter the node and are not forwarded, like those
/// of probes.
fn lose_answers(world: &mut World, from: u64, to: u64, side_event: SideEvent) {
    for at in (from..=to).step_by(250) {
        for (service, client) in [(WEB, 1), (API, 2)] {
            world.prove(service, Pod, at);
            // It arrives now and is reported at once.
            let mut lost = failed_connection(service, Pod, client, Lost, at + 1_000);
            lost.answer_lost = true;
            world.sight(lost).fail_unseen(service, Pod, Lost);
        }
        side_event(world, at);
        world.rounds(at, at, &USUAL, |_| Fate::LoseAnswer);
    }
}

/// Probes pass, and an answer is forwarded.
fn healthy() -> World {
    let mut world = World::probed(&USUAL);
    answered(&mut world, DB, 2_100);
    world
}

/// While answers to a pod are forwarded, a SYN that leaves is a proof.
#[rstest]
#[case::nobodys_go_on(|_: &mut World, _: u64| (), State::Broken)]
#[case::those_of_the_node_itself_go_on(|world: &mut World, at: u64| answered(world, ON_HOST, at), State::Broken)]
#[case::some_go_on(|world: &mut World, at: u64| answered(world, DB, at), State::Degraded)]
fn a_syn_that_leaves_proves_nothing_while_answers_are_lost(
    #[case] side_event: SideEvent,
    #[case] expected: State,
) {
    let mut world = healthy();
    lose_answers(&mut world, 3_250, 6_000, side_event);
    let verdict = world.verdict(6_200);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
}

/// Answers may leave by an interface that is not observed.
#[test]
fn a_syn_is_a_proof_if_no_forwarded_answer_was_ever_seen() {
    let mut world = World::probed(&USUAL);
    lose_answers(&mut world, 3_250, 6_000, |_, _| ());
    assert_eq!(world.verdict(6_200).state, State::Degraded);
}

/// Ordinary events on a node do not turn SYNs into proofs again.
#[rstest]
#[case::losses_are_not_judged_for_a_moment(|world: &mut World, at: u64| {
    world.next.observer.lost_suspended = (4_500..5_000).contains(&at);
})]
#[case::one_answer_went_on(|world: &mut World, at: u64| if at == 4_500 {
    answered(world, DB, at);
})]
#[case::a_cache_of_the_node_answers(|world: &mut World, _: u64| cached(world, CACHED))]
#[case::the_agent_restarts_as_it_begins(|world: &mut World, at: u64| if at == 3_250 {
    restarted(world, at);
})]
#[case::the_agent_restarts(|world: &mut World, at: u64| if at == 5_000 {
    restarted(world, at);
})]
fn lost_answers_stay_a_fault(#[case] side_event: SideEvent) {
    let mut world = healthy();
    lose_answers(&mut world, 3_250, 9_000, side_event);
    let verdict = world.verdict(9_200);
    assert_eq!(verdict.state, State::Broken, "{}", verdict.reason());
}

/// A Service's endpoints served pods until a cache on the node, such as NodeLocal DNSCache, took over its
/// address. Answers of the cache do not show that the node forwards endpoints' answers.
#[test]
fn a_cache_answers_for_a_service_that_worked() {
    let mut world = healthy();
    // This Service is in the namespace of the failing ones. If another namespace were in use, it would have
    // to fail too.
    world.prove(WEB_METRICS, Pod, 2_150).look(2_150);
    world.rounds(2_500, 33_000, &USUAL, |_| Fate::Pass);
    answered(&mut world, DB, 33_200);
    lose_answers(&mut world, 33_500, 39_000, |world, _| {
        cached(world, WEB_METRICS);
    });
    let verdict = world.verdict(39_200);
    assert_eq!(verdict.state, State::Broken, "{}", verdict.reason());
}

/// The next agent reads the same view. While its hooks settle, no connection is judged as lost.
fn restarted(world: &mut World, at: u64) {
    restart(world, at);
    change(world, at, sentinel_view());
    world.next.observer.lost_suspended = true;
    world.look(at);
    world.next.observer.lost_suspended = false;
}

/// While losses are not judged, lost answers expire like old proofs, since later ones may be forwarded
/// unseen.
#[test]
fn lost_answers_are_forgotten_while_answers_may_go_unseen() {
    let mut world = healthy();
    lose_answers(&mut world, 3_250, 6_000, |_, _| ());
    world.next.observer.lost_suspended = true;
    let stuck = |world: &World| {
        let family = world.ledger.family(pathproof_wire::service::Family::V4);
        family.answers.is_stuck(Pod)
    };
    world.look(35_000);
    assert!(stuck(&world));
    world.look(36_250);
    assert!(!stuck(&world));
}
