//! Families that count for the answer. In these tests IPv4 is at fault.

use pathproof_facts::cause::State;
use pathproof_wire::service::SourceClass::{self, External, Host, Pod};
use pathproof_witness::evidence::Sample;
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::verdict::{CountedFamilies, Rule, Verdict};

const HOUR: u64 = 3_600_000;
/// Start of the fault, some hours after the first users.
const FAULT: u64 = 4 * HOUR;

/// A node with both families and these dialled Services, whose IPv4 rules are gone.
fn broken(dialled: &[(u32, SourceClass, u64)]) -> World {
    let mut world = World::probed(&USUAL);
    world.inputs.families = [true; 2];
    for (service, class, at) in dialled {
        world.dial(*service, *class, *at);
    }
    world.rounds(FAULT - 2_000, FAULT - 250, &USUAL, |_| Fate::Pass);
    world.rounds(
        FAULT,
        FAULT + 1_000,
        &USUAL,
        outside(Fate::Leak, Fate::Leak),
    );
    world
}

fn judged(world: &World) -> Verdict {
    world.verdict(FAULT + 1_250)
}

const MINUTE: u64 = 60_000;

#[rstest]
#[case::nobody(&[], State::Broken)]
#[case::the_other_alone(&[(WEB + V6, External, FAULT - MINUTE)], State::Degraded)]
#[case::the_other_by_a_pod(&[(WEB + V6, Pod, FAULT - MINUTE)], State::Degraded)]
#[case::both(&[(WEB, Pod, FAULT - MINUTE), (WEB + V6, External, FAULT - MINUTE)], State::Broken)]
#[case::this_one_within_an_hour(&[(WEB, External, FAULT - 59 * MINUTE), (WEB + V6, Pod, FAULT)], State::Broken)]
#[case::this_one_before(&[(WEB, External, FAULT - 61 * MINUTE), (WEB + V6, Pod, FAULT)], State::Degraded)]
#[case::this_one_since_it_fails(&[(WEB + V6, Pod, FAULT), (WEB, External, FAULT + 500)], State::Broken)]
#[case::the_other_by_the_pod_probe(&[(ECHO + V6, Pod, FAULT)], State::Broken)]
#[case::the_other_by_the_sentinel(&[(SENTINEL + V6, External, FAULT)], State::Broken)]
#[case::the_other_by_the_node(&[(WEB + V6, Host, FAULT)], State::Broken)]
#[case::the_other_too_long_ago(&[(WEB + V6, Pod, FAULT - 62 * MINUTE)], State::Broken)]
fn a_family_counts_if_it_is_used(
    #[case] dialled: &[(u32, SourceClass, u64)],
    #[case] state: State,
) {
    let verdict = judged(&broken(dialled));
    assert_eq!(verdict.state, state, "{}", verdict.reason());
}

#[test]
fn a_family_that_does_not_count_is_a_finding() {
    let mut world = broken(&[
        (WEB, External, FAULT - 2 * HOUR),
        (WEB + V6, Pod, FAULT - MINUTE),
    ]);
    let verdict = judged(&world);
    assert_eq!(verdict.finding.rule, Rule::DegradedUncounted);
    assert_eq!(verdict.cause.map(|cause| cause.name()), Some("leaked"));
    assert_eq!(verdict.families[0].state, verdict.state);
    says(
        &verdict,
        "IPv4 cluster IPs: the last 5 probes left the node untranslated (leaked)",
    );
    ends(
        &verdict,
        "IPv4 does not count (--families=used): no pod and no client outside used it for 2 h, and another family \
         is used",
    );
    world.inputs.clients_unseen = true;
    assert_eq!(judged(&world).state, State::Broken, "somebody may use it");
}

/// A node that answers 503 gets no connections from load balancers. It must not return to 200 for that
/// reason.
#[test]
fn a_family_counts_for_as_long_as_it_fails() {
    let mut world = broken(&[(WEB, External, FAULT - MINUTE)]);
    let later = FAULT + 2 * HOUR;
    for at in (FAULT + 1_250..=later).step_by(20_000) {
        world.rounds(at, at, &USUAL, outside(Fate::Leak, Fate::Leak));
        world.dial(WEB + V6, Pod, at);
    }
    world.look(later);
    let verdict = world.verdict(later + 250);
    assert_eq!(verdict.state, State::Broken, "{}", verdict.reason());
}

#[rstest]
#[case::all(CountedFamilies::All, [true; 2], State::Broken)]
#[case::any_where_nothing_is_known_of_the_other(CountedFamilies::Any, [true; 2], State::Broken)]
#[case::any_where_all_fail(CountedFamilies::Any, [true, false], State::Broken)]
#[case::used(CountedFamilies::Used, [true; 2], State::Degraded)]
fn the_families_option_selects_the_families_that_count(
    #[case] counted: CountedFamilies,
    #[case] families: [bool; 2],
    #[case] state: State,
) {
    let mut world = broken(&[(WEB + V6, Pod, FAULT)]);
    (world.inputs.counted, world.inputs.families) = (counted, families);
    assert_eq!(judged(&world).state, state);
}

#[test]
fn with_any_a_family_that_serves_is_enough() {
    let mut world = broken(&[(WEB + V6, Pod, FAULT)]);
    world.inputs.counted = CountedFamilies::Any;
    let sample = Sample {
        at: ms(FAULT + 1_200),
        last_proofs: [[None; 3], [Some(ms(FAULT + 1_000)); 3]],
        observer: world.ledger.observer.clone(),
        ..Sample::default()
    };
    world.ledger.absorb(&sample, &Names::standard());
    assert_eq!(judged(&world).state, State::Degraded);
}
