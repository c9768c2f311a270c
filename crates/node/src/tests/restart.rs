//! A restart of the agent within one boot: it changes no answer, and accuses the node of nothing
//! that the former agent did not observe.

use pathproof_facts::cause::State;
use pathproof_wire::evidence::Outcome;
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::effect::Notice;
use crate::event::Event;

/// The next agent, started after the previous one ended.
fn next(scene: &mut Scene, after: u64, continues: bool) -> Scene {
    scene.later(1_000).feed(Event::Tick);
    assert!(scene.persisted.is_some(), "written at the start");
    scene.heir(after, |_, start| start.observer.continues = continues)
}

fn restarted(scene: &mut Scene, after: u64) -> Scene {
    next(scene, after, true)
}

fn broken() -> Scene {
    let mut scene = Scene::probed();
    scene.fault();
    assert_eq!(scene.leak_and_sample().statuses(), [503, 503]);
    scene
}

#[test]
fn the_last_verdict_is_known_before_the_first() {
    let mut before = broken();
    let after = restarted(&mut before, 500);
    assert_eq!(after.node.judge().last, before.node.judge().last);
    assert_eq!(after.state(), State::Broken);
    assert_eq!(Scene::new().node.judge().last, None);
}

#[test]
fn a_broken_node_stays_at_503() {
    let mut before = broken();
    let since = before.node.judge().last.unwrap().since;
    let mut after = restarted(&mut before, 500);
    let effects = after.feed(Event::Tick);
    assert_eq!(effects.statuses(), [503, 503]);
    after.synced();
    after.feed(Event::Hooks(hooks()));
    assert_eq!(after.later(250).leak_and_sample().statuses(), [503, 503]);
    after.started();
    after.sound();
    after.reread_same();
    assert!(after.node.judge().last.unwrap().since <= since.max(ms(after.now())));
    for _ in 0..5 {
        after.later(250).leak_and_sample();
        after.sound();
    }
    let effects = after.idle();
    assert_eq!(effects.told(), (State::Broken, [503, 503]));
}

/// An agent that continues from stored state needs no view for its first verdict.
#[rstest]
#[case::restarted(true, State::Proven)]
#[case::first_of_its_boot(false, State::Unknown)]
fn a_verdict_needs_no_view_where_one_was_known(#[case] remembers: bool, #[case] state: State) {
    let mut before = Scene::probed();
    let mut after = match remembers {
        true => restarted(&mut before, 500),
        false => Scene::new(),
    };
    after.feed(Event::Hooks(hooks()));
    assert_eq!(after.idle().state(), state);
}

#[rstest]
#[case::leaving(&[TAINT], 503)]
#[case::not_leaving(&[], 200)]
fn eligibility_is_remembered_until_the_node_is_seen(#[case] taints: &[&str], #[case] status: u16) {
    let mut before = Scene::probed();
    before.view(vec![tainted(taints)]);
    let mut after = restarted(&mut before, 500);
    assert_eq!(after.feed(Event::Tick).statuses(), [status, 200]);
    assert_eq!(
        after.source(false).statuses(),
        [status, 200],
        "the Node was not seen yet"
    );
    assert_eq!(after.view(vec![tainted(&[])]).statuses(), [200, 200]);
}

/// A flapping node keeps 503 for ten seconds, also over a restart.
#[test]
fn damping_is_remembered() {
    let mut before = broken();
    before.rest(250);
    before.rest(1_000);
    assert_eq!(
        before.fault().statuses(),
        [503, 503],
        "a second failure within 30 s is a flap"
    );
    before.rest(250);
    let mut after = restarted(&mut before, 250);
    after.feed(Event::Hooks(hooks()));
    after.pass();
    assert_eq!(after.idle().state(), State::Proven);
    after.rest(2_000);
    assert_eq!(after.idle().statuses(), [503, 503], "held");
    after.rest(8_000);
    assert_eq!(after.idle().statuses(), [200, 200]);
}

/// Without a sentinel, and with two Services that worked.
fn connected() -> Scene {
    let mut scene = Scene::with(|settings, _| settings.sentinel = None);
    know_services(&mut scene);
    for service in ["web", "api"] {
        scene
            .later(1_500)
            .counted(service, &[Outcome::Arrived, Outcome::Proven]);
    }
    scene
}

fn know_services(scene: &mut Scene) {
    let mut changes = synced_services();
    changes.push(service("api", "10.96.0.2"));
    changes.push(slice(
        "api",
        pathproof_facts::cluster::Protocol::Tcp,
        &["10.2.0.8", "10.2.0.9"],
    ));
    scene.view(changes);
    scene.feed(Event::Installed(Default::default()));
    scene.feed(Event::Hooks(hooks()));
}

/// Connections of two pods leak, one every 250 ms.
fn leak(scene: &mut Scene, rounds: u8) {
    for round in 0..rounds {
        scene.later(250);
        let mut failed_connection =
            scene.failed_connection(pathproof_facts::cause::Failure::Leaked);
        failed_connection.service = scene.id(["web", "api"][usize::from(round % 2)]);
        failed_connection.client = std::net::IpAddr::from([10, 1, 0, round % 2]);
        scene.sighted(failed_connection);
    }
}

/// Without observation in between, connections that failed before may have got through since.
#[rstest]
#[case::observed(true, State::Broken)]
#[case::not_observed(false, State::Proven)]
fn runs_of_real_failures_go_on_where_they_were_observed(
    #[case] continues: bool,
    #[case] state: State,
) {
    let mut before = connected();
    leak(&mut before, 20);
    assert_eq!(before.state(), State::Broken);
    let mut after = next(&mut before, 500, continues);
    after.feed(Event::Hooks(hooks()));
    assert_eq!(after.idle().state(), state);
}

#[rstest]
#[case::it_worked_before(false, 500, true)]
#[case::it_failed_before(true, 500, false)]
#[case::long_after(false, 61_000, false)]
fn an_upgrade_that_breaks_a_node_closes_the_gate(
    #[case] failed_before: bool,
    #[case] after: u64,
    #[case] closes: bool,
) {
    let mut before = match failed_before {
        true => broken(),
        false => Scene::probed(),
    };
    let mut scene = restarted(&mut before, 500);
    scene.prove();
    assert!(!scene.node.judge().gate.closed);
    scene.rest(after);
    scene.rest(1_000);
    let effects = scene.fault();
    assert_eq!(effects.state(), State::Broken);
    assert_eq!(effects.notices().contains(&&Notice::UpgradeFailed), closes);
    assert_eq!(scene.node.judge().gate.closed, closes);
    assert_eq!(
        effects.statuses(),
        [503, 503],
        "the gate does not change the answers"
    );
    let effects = scene.leak_and_sample();
    assert!(!effects.notices().contains(&&Notice::UpgradeFailed), "once");
    scene.rest(250);
    assert!(
        !scene.node.judge().gate.closed,
        "the gate opens when the failure ends"
    );
}
