//! A full connection table: when it is read, what it explains, and what it does not.

use pathproof_facts::cause::{Cause, Failure, ProbeCause, State};
use pathproof_facts::freshness::FIRST_GENERATION;
use pathproof_facts::trace::ProbePath;
use pathproof_judge::brake::BrakeReason;
use pathproof_wire::evidence::Outcome;
use pathproof_witness::conntrack::Table;
use pathproof_witness::probes::ProbeOutcome;
use rstest::rstest;

use super::scene::*;
use super::world::counted;
use crate::event::Event;

const OUTSIDE: [ProbePath; 2] = [ProbePath::OffCluster, ProbePath::NodePort];

/// Counters of a full table: drops, and how many of them are due to races.
fn full(drop: u64, insert_failed: u64) -> Table {
    Table {
        entries: 1_000,
        limit: 1_000,
        drop,
        insert_failed,
        early_drop: 0,
    }
}

/// A node whose connection table was read before.
fn scene() -> Scene {
    let mut scene = Scene::probed();
    scene.feed(Event::Table(Some(full(7, 0))));
    scene
}

/// A round of probes is lost within 250 ms, and the table is read when the node requests it.
fn lose(scene: &mut Scene, table: &mut impl FnMut() -> Table) -> Effects {
    let sent = scene.later(250).now();
    let mut wants = false;
    for path in OUTSIDE {
        wants |= scene.probe(arriving(path, sent)).has("read table");
    }
    scene.sound();
    scene.reread_same();
    let effects = scene.idle();
    match wants || effects.has("read table") {
        true => {
            scene.feed(Event::Table(Some(table())));
            scene.idle()
        }
        false => effects,
    }
}

/// A table that dropped packets before every read.
fn dropping() -> impl FnMut() -> Table {
    let mut drop = 7;
    move || {
        drop += 20;
        full(drop, 0)
    }
}

#[test]
fn a_full_table_is_named_within_two_seconds_and_is_503() {
    let mut scene = scene();
    let began = scene.now();
    let mut table = dropping();
    let effects = loop {
        let effects = lose(&mut scene, &mut table);
        if effects.state() == State::Broken {
            break effects;
        }
        assert!(scene.now() - began <= 2_000);
    };
    let verdict = &effects.verdict_update().verdict;
    assert_eq!(verdict.cause, Some(Cause::ConntrackFull));
    assert_eq!(effects.statuses(), [503, 503]);
    let reason = verdict.reason();
    assert!(reason.contains("1000 of 1000 entries"), "{reason}");
}

/// After a node's removal, its load may fill the tables of others. So a 503 for a full table first waits
/// for the count of failing nodes.
#[test]
fn a_full_table_waits_for_the_count_of_other_nodes() {
    let mut scene = Scene::probed_with(|settings, _| settings.fleet_brake = Some(20));
    let count = r#"{"nodes":200,"unsound":{},"written":1700000000}"#;
    scene.view(vec![counted(FIRST_GENERATION, Some(count))]);
    scene.feed(Event::Table(Some(full(7, 0))));
    let mut table = dropping();
    for _ in 0..8 {
        lose(&mut scene, &mut table);
    }
    let effects = scene.idle();
    assert_eq!(effects.state(), State::Broken);
    assert_eq!(effects.statuses(), [200, 200]);
    let answers = &effects.verdict_update().answers;
    assert_eq!(answers.held.map(BrakeReason::name), Some("waiting"));
}

/// The first loss requests a read of the table. The next loss then has the cause.
#[test]
fn the_second_lost_probe_has_the_cause_conntrack_full() {
    let mut scene = scene();
    let sent = scene.later(2_000).now();
    let first = scene.probe(arriving(ProbePath::OffCluster, sent));
    assert!(first.has("read table"));
    assert_eq!(
        first.probed().0,
        ProbeOutcome::Failed(ProbeCause::LostBeforeLeaving)
    );
    let effects = scene.feed(Event::Table(Some(full(9, 0))));
    assert_eq!(effects.state(), State::Suspect, "judged at once");
    let sent = scene.later(250).now();
    let second = scene.probe(arriving(ProbePath::OffCluster, sent));
    assert_eq!(
        second.probed().0,
        ProbeOutcome::Failed(ProbeCause::ConntrackFull)
    );
    assert!(!second.has("read table"), "read just now");
}

/// Measured on a real node with a full table: 8 of 100 connections find room.
#[test]
fn connections_that_find_room_do_not_end_it() {
    let mut scene = scene();
    let mut table = dropping();
    let mut broken = 0;
    for round in 0..240 {
        let effects = lose(&mut scene, &mut table);
        if round % 3 == 2 {
            for path in OUTSIDE {
                scene.probe(passing(path, scene.now()));
            }
            scene.counted("web", &[Outcome::Arrived, Outcome::Proven]);
        }
        match broken {
            0 if effects.state() != State::Broken => {}
            _ => {
                broken += 1;
                assert_eq!(effects.state(), State::Broken, "round {round}");
                assert_eq!(effects.statuses(), [503, 503], "round {round}");
            }
        }
    }
    assert!(broken > 200, "{broken}");
    // There is room again.
    let repaired = scene.now();
    loop {
        let effects = scene.rest(250);
        if effects.has("read table") {
            let table = Table {
                entries: 400,
                ..table()
            };
            scene.feed(Event::Table(Some(table)));
        }
        if effects.statuses() == [200, 200] {
            break;
        }
        assert!(scene.now() - repaired < 6_000, "{:?}", effects.state());
    }
    assert_eq!(scene.state(), State::Proven);
}

/// Negative controls: other losses on a node whose table is nearly full.
#[rstest]
#[case::full_without_a_drop(|_| full(7, 0))]
#[case::dns_races(|round| full(7 + 20 * round, 20 * round))]
#[case::drops_with_room(|round| Table { entries: 900, ..full(7 + 20 * round, 0) })]
fn other_losses_are_not_called_a_full_table(#[case] table: fn(u64) -> Table) {
    let mut scene = scene();
    let mut round = 0;
    let mut next = || {
        round += 1;
        table(round)
    };
    for _ in 0..40 {
        let effects = lose(&mut scene, &mut next);
        assert_ne!(
            effects.verdict_update().verdict.cause,
            Some(Cause::ConntrackFull)
        );
        assert_eq!(effects.statuses(), [200, 200]);
    }
    assert_eq!(scene.state(), State::Suspect);
}

/// The full table evicted unanswered connections, or dropped only other clients' packets.
#[test]
fn a_full_table_in_which_probes_find_room_is_no_fault() {
    let mut scene = scene();
    let mut table = dropping();
    for _ in 0..40 {
        scene.feed(Event::Table(Some(table())));
        let effects = scene.rest(250);
        assert_eq!(effects.state(), State::Proven);
        assert_eq!(effects.statuses(), [200, 200]);
    }
}

/// Users' lost connections have this cause too. It does not change the answer.
#[rstest]
#[case::full(full(9, 0), Cause::ConntrackFull)]
#[case::with_room(Table { entries: 10, ..full(9, 0) }, Cause::Lost)]
fn a_lost_connection_has_the_cause_conntrack_full(#[case] table: Table, #[case] cause: Cause) {
    let mut scene = scene();
    let failed_connection = scene.later(2_000).failed_connection(Failure::Lost);
    assert!(scene.sighted(failed_connection).has("read table"));
    scene.feed(Event::Table(Some(table)));
    let effects = scene.later(250).idle();
    assert_eq!(effects.verdict_update().verdict.cause, Some(cause));
    assert_eq!(effects.statuses(), [200, 200]);
}

#[test]
fn the_table_is_read_rarely_while_all_is_well() {
    let mut scene = scene();
    for _ in 0..39 {
        assert!(!scene.rest(250).has("read table"));
        assert!(!scene.check().has("read table"));
    }
    assert!(scene.later(250).check().has("read table"));
    // A filter that drops the probes for hours causes no further reads.
    let mut table = || full(7, 0);
    for _ in 0..10 {
        lose(&mut scene, &mut table);
    }
    assert!(!lose(&mut scene, &mut || unreachable!("not read")).has("read table"));
}
