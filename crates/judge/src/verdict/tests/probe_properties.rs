//! Rules that outrank the sentinel's, for any sequence of probes.

use std::time::Duration;

use pathproof_facts::cause::State;
use pathproof_facts::limits::Limits;
use pathproof_facts::owners::Owner;
use pathproof_facts::trace::{ProbePath, Transport};
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::probes::SentinelView;
use proptest::prelude::*;

use super::scene::*;
use super::world::*;

const FATES: [Fate; 15] = [
    Fate::Pass,
    Fate::Drop,
    Fate::Leak,
    Fate::Refuse,
    Fate::Reject,
    Fate::Misroute,
    Fate::ForwardingOff,
    Fate::Mute,
    Fate::LoseAnswer,
    Fate::Unmasqueraded,
    Fate::ControlFails,
    Fate::Late,
    Fate::SeenLate,
    Fate::Vanish,
    Fate::Away,
];

/// A lane, the fate of its probes, and the number of rounds with this fate.
type Spell = (ProbePath, Transport, Fate, u64);

fn spells(fates: Vec<Fate>) -> impl Strategy<Value = Vec<Spell>> {
    let spell = (
        prop::sample::select(ProbePath::ALL.to_vec()),
        prop::sample::select(Transport::ALL.to_vec()),
        prop::sample::select(fates),
        1u64..12,
    );
    prop::collection::vec(spell, 1..20)
}

/// Fates without a passing probe.
fn no_pass() -> Vec<Fate> {
    let passes = [Fate::Pass, Fate::Unmasqueraded];
    FATES
        .into_iter()
        .filter(|fate| !passes.contains(fate))
        .collect()
}

/// Plays the spells from `at` on, with `meddle` before each round and `check` after it.
fn play(
    world: &mut World,
    mut at: u64,
    spells: &[Spell],
    mut meddle: impl FnMut(&mut World, u64),
    mut check: impl FnMut(&World, u64),
) {
    for (path, transport, fate, rounds) in spells {
        for _ in 0..*rounds {
            meddle(world, at);
            world.probe(lane(*path, *transport), *fate, at);
            world.look(at + 200);
            check(world, at + 200);
            at += 250;
        }
    }
}

fn never_broken(world: &World, now: u64) {
    let verdict = world.verdict(now);
    assert_ne!(verdict.state, State::Broken, "{}", verdict.reason());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1.max(ProptestConfig::default().cases / 10)))]

    #[test]
    fn lanes_that_never_worked_never_accuse(spells in spells(no_pass())) {
        let mut world = World::with_sentinel();
        play(&mut world, 20_000, &spells, |_, _| {}, never_broken);
    }

    #[test]
    fn only_armed_lanes_accuse(spells in spells(FATES.to_vec())) {
        let mut world = World::with_sentinel();
        play(&mut world, 20_000, &spells, |_, _| {}, |world, now| {
            let verdict = world.verdict(now);
            let lanes = || verdict.families.iter().flat_map(|family| &family.lanes);
            let accused = |lane: &crate::verdict::LaneView| {
                lane.armed && lane.failures >= 4 && lane.transport == Transport::Tcp
            };
            assert!(verdict.state != State::Broken || lanes().any(accused), "{}", verdict.reason());
        });
    }

    #[test]
    fn a_failed_control_probe_accuses_nobody(spells in spells(vec![Fate::ControlFails])) {
        let mut world = World::probed(&ProbePath::ALL);
        play(&mut world, 2_250, &spells, |_, _| {}, never_broken);
    }

    #[test]
    fn a_sentinel_that_just_changed_accuses_nobody(
        spells in spells(FATES.to_vec()), changes in prop::collection::vec(1u64..9_999, 1..6),
    ) {
        let mut world = World::probed(&ProbePath::ALL);
        let mut changes = changes.into_iter().scan(2_250, |at, after| {
            *at += after;
            Some(*at)
        }).peekable();
        let (mut identity, mut changed) = (1, 0);
        play(&mut world, 2_250, &spells, |world, at| {
            while changes.peek().is_some_and(|next| *next <= at) {
                changes.next();
                (identity, changed) = (identity + 1, at);
                let view = SentinelView { identity, changed_at: ms(at), ..sentinel_view() };
                world.ledger.sentinel.view_changed(ms(at), view);
            }
            if changed > 0 && at < changed + 9_800 {
                never_broken(world, at + 1);
            }
        }, |_, _| {});
    }

    #[test]
    fn real_connections_of_the_path_outweigh_probes(
        spells in spells(no_pass().into_iter()
            .filter(|fate| ![Fate::Mute, Fate::ForwardingOff].contains(fate)).collect()),
        every in 3u64..40,
    ) {
        let mut world = World::probed(&USUAL);
        // Connections succeed at least once, more than 1 s after the first failure.
        let mut proven = false;
        play(&mut world, 2_250, &spells, |world, at| {
            if at >= 3_500 && (!proven || at / 250 % every == 0) {
                proven = true;
                for class in SourceClass::ALL {
                    world.prove(WEB, class, at);
                }
                world.look(at + 1);
            }
        }, |world, now| {
            // A lane is contradicted only after the proof, and only if it failed before the proof.
            let started = |world: &World| {
                let overlap = Limits::default().proof_overlap;
                let verdict = world.verdict(now);
                let proofs = verdict.families[0].paths.iter().filter_map(|path| path.last_proof);
                let last = proofs.max();
                verdict.families[0].lanes.iter().filter_map(|lane| lane.failing_since)
                    .all(|since| last.is_some_and(|proof| proof > since.plus(overlap)))
            };
            if started(world) {
                never_broken(world, now);
            }
        });
    }

    /// The connections are proven by their handshakes.
    #[test]
    fn real_connections_do_not_outweigh_missing_data(
        path in prop::sample::select(vec![ProbePath::OffCluster, ProbePath::NodePort]),
        rounds in 4u64..60, every in 1u64..40,
    ) {
        let mut world = World::probed(&USUAL);
        let spells = [(path, Transport::Tcp, Fate::Mute, rounds)];
        play(&mut world, 2_250, &spells, |world, at| {
            if at / 250 % every == 0 {
                for class in SourceClass::ALL {
                    world.prove(WEB, class, at);
                }
            }
        }, |world, now| {
            let expected = if now < 3_200 { State::Suspect } else { State::Broken };
            let verdict = world.verdict(now);
            assert_eq!(verdict.state, expected, "{}", verdict.reason());
        });
    }

    #[test]
    fn damaged_devices_accuse_nobody(spells in spells(FATES.to_vec()), every in 1u64..4) {
        let mut world = World::probed(&ProbePath::ALL);
        play(&mut world, 2_250, &spells, |world, at| {
            if at / 250 % every == 0 {
                world.ledger.sentinel.damaged(ms(at), "pathproof-s0 is down".to_owned());
            }
        }, |world, now| {
            if now > 3_500 {
                never_broken(world, now);
            }
        });
    }

    #[test]
    fn without_a_look_at_our_own_parts_nothing_is_accused(spells in spells(FATES.to_vec())) {
        let mut world = World::probed(&ProbePath::ALL);
        world.sound = false;
        play(&mut world, 2_250, &spells, |_, _| {}, never_broken);
    }

    #[test]
    fn another_owner_every_other_second_accuses_nobody(spells in spells(FATES.to_vec())) {
        let mut world = World::probed(&ProbePath::ALL);
        let modes = [Owner::KubeProxyNftables, Owner::Cilium, Owner::Ipvs, Owner::Unknown];
        play(&mut world, 2_250, &spells, |world, at| {
            if at % 750 == 0 {
                let mode = owners(&[modes[(at / 750 % 4) as usize]]);
                world.ledger.sentinel.owner_seen(Family::V4, mode, ms(at));
            }
        }, |world, now| {
            if now > 3_000 {
                never_broken(world, now);
            }
        });
    }

    #[test]
    fn gaps_between_failures_accuse_nobody(
        fates in prop::collection::vec(prop::sample::select(FATES.to_vec()), 1..30),
        gap in 1_201u64..9_000,
    ) {
        let mut world = World::probed(&USUAL);
        let mut at = 2_250;
        for fate in fates {
            for path in USUAL {
                world.probe(lane(path, Transport::Tcp), fate, at);
            }
            world.look(at + 200);
            never_broken(&world, at + 200);
            at += gap;
        }
    }

    #[test]
    fn a_pass_on_every_lane_is_never_broken(spells in spells(FATES.to_vec())) {
        let mut world = World::probed(&ProbePath::ALL);
        play(&mut world, 2_250, &spells, |_, _| {}, |world, now| {
            let mut world = world.clone();
            for path in ProbePath::ALL {
                world.probe(lane(path, Transport::Tcp), Fate::Pass, now + 10);
            }
            never_broken(&world, now + 20);
        });
    }

    #[test]
    fn every_probe_verdict_is_explained(
        spells in spells(FATES.to_vec()), armed in any::<bool>(), ahead in 0u64..40_000,
    ) {
        let mut world = if armed { World::probed(&ProbePath::ALL) } else { World::with_sentinel() };
        play(&mut world, 2_250, &spells, |_, _| {}, |world, now| {
            let verdict = world.verdict(now + ahead);
            assert!(verdict.reason().len() > 20);
            assert_eq!(verdict.why.is_some(), verdict.state == State::Unknown);
            assert_eq!(verdict.cause.is_some(), verdict.state >= State::Suspect);
            for lane in verdict.families.iter().flat_map(|family| &family.lanes) {
                assert!(said(lane, &verdict).starts_with("IPv4 "));
            }
            let before = format!("{:?}", world.ledger);
            assert_eq!(verdict, world.verdict(now + ahead));
            assert_eq!(before, format!("{:?}", world.ledger));
        });
    }

    #[test]
    fn memory_of_probes_reads_back(spells in spells(FATES.to_vec())) {
        let mut world = World::probed(&ProbePath::ALL);
        play(&mut world, 2_250, &spells, |_, _| {}, |world, now| {
            let memory = world.ledger.memory();
            let written = serde_json::to_string(&memory).unwrap();
            let read: pathproof_witness::ledger::LedgerMemory = serde_json::from_str(&written).unwrap();
            assert_eq!(read, memory);
            let mut restored = pathproof_witness::ledger::Ledger::restore(Limits::default(), read, true, ms(now));
            restored.sentinel.looked(ms(now));
            let state = |ledger: &pathproof_witness::ledger::Ledger| {
                crate::verdict::verdict(ledger, &world.inputs, ms(now)).state
            };
            let before = state(&world.ledger);
            // Only unconfirmed failures are forgotten. If they confirmed a lane, the state becomes Suspect,
            // which does not change the answer.
            let after = state(&restored);
            assert!(after == before || after != State::Broken, "{after:?} after {before:?}");
            assert!(before != State::Broken || after >= State::Suspect, "{after:?} after {before:?}");
        });
    }
}

#[test]
fn four_in_a_row_take_less_than_eleven_hundred_milliseconds() {
    let limits = Limits::default();
    let interval = Duration::from_millis(250);
    let timeout = pathproof_witness::testing::traces::TIMEOUT;
    assert!(interval * (limits.probe_failures - 1) + timeout < Duration::from_millis(1_100));
}
