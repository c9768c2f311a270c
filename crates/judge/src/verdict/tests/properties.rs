//! Rules that outrank all others, for any sequence of samples.

use pathproof_facts::cause::{Failure, State};
use pathproof_wire::evidence::Outcome;
use pathproof_wire::service::SourceClass;
use pathproof_witness::evidence::ObserverHealth;
use pathproof_witness::ledger::{Ledger, SERVICES_TRACKED};
use proptest::prelude::*;

use super::world::*;

/// An event of one connection.
#[derive(Clone, Copy, Debug)]
enum Event {
    Prove,
    /// Reported, or only counted.
    Fail(Failure, bool),
    /// To an endpoint that left this many ms before.
    Stale(u64),
    Reject,
}

/// One sample: its distance from the last one, the events before it, and its coverage.
#[derive(Clone, Debug)]
struct Step {
    after: u64,
    events: Vec<(u32, SourceClass, u8, Event)>,
    lost_suspended: bool,
    misrouted_suspended: bool,
}

fn any_class() -> impl Strategy<Value = SourceClass> {
    prop::sample::select(SourceClass::ALL.to_vec())
}

fn any_event() -> impl Strategy<Value = Event> {
    let failure = prop::sample::select(Failure::ALL.to_vec());
    prop_oneof![
        1 => Just(Event::Prove),
        6 => (failure, any::<bool>()).prop_map(|(failure, seen)| Event::Fail(failure, seen)),
        2 => (0u64..60_000).prop_map(Event::Stale),
        1 => Just(Event::Reject),
    ]
}

/// Any event except a success.
fn any_failure() -> impl Strategy<Value = Event> {
    any_event().prop_filter("a failure", |event| !matches!(event, Event::Prove))
}

fn steps(
    class: impl Strategy<Value = SourceClass>,
    event: impl Strategy<Value = Event>,
) -> impl Strategy<Value = Vec<Step>> {
    let service =
        prop::sample::select(vec![WEB, API, WEB_METRICS, DB, WEB + V6, API + V6, DB + V6]);
    let events = prop::collection::vec((service, class, 1u8..5, event), 0..5);
    let after = prop_oneof![8 => 1u64..400, 1 => 400u64..9_000];
    let suspended = prop::bool::weighted(0.1);
    let step = (after, events, suspended, prop::bool::weighted(0.1)).prop_map(
        |(after, events, lost_suspended, misrouted_suspended)| Step {
            after,
            events,
            lost_suspended,
            misrouted_suspended,
        },
    );
    prop::collection::vec(step, 1..60)
}

/// Plays the steps; `check` gets the world and the time after each sample.
fn play(world: &mut World, steps: &[Step], mut check: impl FnMut(&World, u64)) {
    world.inputs.families = [true, true];
    let mut now = 0;
    for step in steps {
        now += step.after;
        for (service, class, client, event) in &step.events {
            match event {
                Event::Prove => world.prove(*service, *class, now),
                Event::Fail(failure, true) => world.fail(*service, *class, *client, *failure, now),
                Event::Fail(failure, false) => world.fail_unseen(*service, *class, *failure),
                Event::Stale(age) => world.stale(*service, *class, *client, *age, now),
                Event::Reject => world.count(
                    *service,
                    *class,
                    &[(Outcome::Arrived, 1), (Outcome::Rejected, 1)],
                    0,
                ),
            };
        }
        world.next.observer.lost_suspended = step.lost_suspended;
        world.next.observer.misrouted_suspended = step.misrouted_suspended;
        world.look(now);
        check(world, now);
    }
}

fn accuses(state: State) -> bool {
    matches!(state, State::Broken | State::Stale)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1.max(ProptestConfig::default().cases / 3)))]

    #[test]
    fn the_blind_never_accuse(steps in steps(any_class(), any_event())) {
        let mut world = World::new();
        world.next.observer = ObserverHealth::default();
        play(&mut world, &steps, |world, now| {
            assert_eq!(world.verdict(now).state, State::Unknown);
            assert_eq!(world.verdict(now + 4_000).state, State::Unknown);
        });
    }

    #[test]
    fn a_view_never_synced_accuses_nobody(steps in steps(any_class(), any_event())) {
        let mut world = World::new();
        world.inputs.view_synced = false;
        play(&mut world, &steps, |world, now| {
            assert_eq!(world.verdict(now).state, State::Unknown);
        });
    }

    #[test]
    fn outsiders_who_were_never_served_never_accuse(
        steps in steps(Just(SourceClass::External), any_failure()),
    ) {
        let mut world = World::new();
        world.next.programming = Some(Default::default());
        play(&mut world, &steps, |world, now| {
            assert!(!accuses(world.verdict(now).state));
            assert!(!accuses(world.verdict(now + 4_000).state));
        });
    }

    #[test]
    fn successes_of_the_same_clients_every_two_seconds_never_are_broken(
        (class, steps) in any_class().prop_flat_map(|class| (Just(class), steps(Just(class), any_event()))),
        timed in any::<bool>(),
    ) {
        let mut world = World::new();
        let mut proven = 0;
        let mut now = 0;
        for step in steps {
            // At least one proof every two seconds in both families, beside everything else.
            while proven + 2_000 <= now + step.after {
                proven += 2_000;
                for service in [DB, DB + V6] {
                    if timed {
                        world.prove(service, class, proven);
                    } else {
                        world.count(service, class, &[(Outcome::Proven, 1)], 0);
                    }
                }
                if !timed {
                    // A proof without a time is as old as the sample that counts it.
                    world.look(proven);
                }
            }
            play_at(&mut world, &step, &mut now);
            prop_assert_ne!(world.verdict(now).state, State::Broken);
            prop_assert_ne!(world.verdict(now + 1_000).state, State::Broken);
        }
    }

    #[test]
    fn reading_is_deterministic_and_changes_nothing(
        steps in steps(any_class(), any_event()), ahead in 0u64..40_000,
    ) {
        play(&mut World::new(), &steps, |world, now| {
            let before = format!("{:?}", world.ledger);
            let first = world.verdict(now + ahead);
            assert_eq!(first, world.verdict(now + ahead));
            assert_eq!(before, format!("{:?}", world.ledger));
            assert_eq!(first, world.clone().verdict(now + ahead));
        });
    }

    #[test]
    fn every_verdict_is_explained(steps in steps(any_class(), any_event()), ahead in 0u64..40_000) {
        play(&mut World::new(), &steps, |world, now| {
            let verdict = world.verdict(now + ahead);
            assert!(verdict.reason().len() > 20);
            assert_eq!(verdict.why.is_some(), verdict.state == State::Unknown);
            let caused = verdict.state >= State::Suspect;
            assert_eq!(verdict.cause.is_some(), caused);
            let worst = verdict.families.iter().map(|family| family.state).max();
            assert_eq!(worst, Some(verdict.state));
        });
    }
}

fn play_at(world: &mut World, step: &Step, now: &mut u64) {
    *now += step.after;
    for (service, class, client, event) in &step.events {
        if let Event::Fail(failure, _) = event {
            world.fail(*service, *class, *client, *failure, *now);
        }
    }
    world.look(*now);
}

#[test]
fn memory_is_bounded() {
    struct Many;
    impl pathproof_facts::directory::Directory for Many {
        fn service(&self, id: u32) -> Option<pathproof_facts::directory::ServiceInfo> {
            Some(pathproof_facts::directory::ServiceInfo {
                port: if id.is_multiple_of(2) { "x" } else { "y" }.into(),
                ..pathproof_facts::directory::ServiceInfo::plain(
                    "a",
                    "b",
                    pathproof_wire::service::Family::V4,
                )
            })
        }
    }
    let mut world = World::new();
    let services = SERVICES_TRACKED as u32 + 100;
    for id in 0..services {
        world.fail(id, SourceClass::Pod, id as u8, Failure::Leaked, 100);
    }
    world.next.at = ms(250);
    let mut ledger: Ledger = world.ledger.clone();
    ledger.absorb(&world.next, &Many);
    world.ledger = ledger;
    let verdict = world.verdict(250);
    assert_eq!(
        verdict.services.len() + verdict.services_omitted as usize,
        SERVICES_TRACKED
    );
}
