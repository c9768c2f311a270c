//! Events that must not change the answer: changes of the sentinel, its devices, the agent, and the
//! datapath's owner. Also the reports on paths that never worked.

use std::time::Duration;

use pathproof_facts::cause::{State, Why};
use pathproof_facts::limits::Limits;
use pathproof_facts::owners::Owner;
use pathproof_facts::time::Mono;
use pathproof_facts::trace::{Lane, ProbePath, Transport};
use pathproof_wire::service::Family;
use pathproof_witness::ledger::{Ledger, LedgerMemory};
use pathproof_witness::probes::SentinelView;
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::answer::UnknownPolicy;
use crate::damping::Damping;

/// Probes leak from 2.25 s on. The verdict is checked after every round until 14 s, and `meddle` runs
/// before each.
fn never_broken(meddle: impl Fn(&mut World, u64) -> Option<Fate>) -> World {
    let mut world = World::probed(&USUAL);
    let mut damping = Damping::new(Duration::from_secs(10));
    for at in (2_250..=14_000).step_by(250) {
        let Some(fate) = meddle(&mut world, at) else {
            continue;
        };
        world.rounds(at, at, &USUAL, |_| fate);
        for now in [at + 200, at + 249] {
            let verdict = world.verdict(now);
            assert_ne!(
                verdict.state,
                State::Broken,
                "at {now}: {}",
                verdict.reason()
            );
            assert!(damping.step(&verdict, UnknownPolicy::Open).healthy);
        }
    }
    world
}

pub(super) fn change(world: &mut World, now: u64, view: SentinelView) {
    let changed_at = ms(now);
    let view = SentinelView { changed_at, ..view };
    world.ledger.sentinel.view_changed(ms(now), view);
}

#[test]
fn the_sentinel_deleted() {
    let world = never_broken(|world, at| {
        // The agent receives the deletion half a second after kube-proxy.
        if at == 2_750 {
            change(world, at, SentinelView::default());
        }
        Some(Fate::Leak)
    });
    assert_eq!(world.verdict(40_000).state, State::Unknown);
}

#[test]
fn the_sentinel_edited() {
    never_broken(|world, at| {
        if at == 2_750 {
            change(
                world,
                at,
                SentinelView {
                    identity: 2,
                    ..sentinel_view()
                },
            );
        }
        // The datapath follows late, but in time.
        Some(if at < 12_000 { Fate::Leak } else { Fate::Pass })
    });
}

#[test]
fn the_sentinel_altered() {
    let mut world = never_broken(|world, at| {
        if at == 2_750 {
            let altered = Some("the selector app=web is set".to_owned());
            change(
                world,
                at,
                SentinelView {
                    altered,
                    identity: 2,
                    ..sentinel_view()
                },
            );
        }
        Some(Fate::Leak)
    });
    world.idle(14_250, 40_000);
    let verdict = world.verdict(40_000);
    assert_eq!(verdict.why, Some(Why::SentinelAltered));
    assert_eq!(
        verdict.reason(),
        "IPv4: the sentinel's Service or EndpointSlices were changed: the selector app=web is set"
    );
}

#[rstest]
#[case::dropped(Fate::Drop)]
#[case::rejected(Fate::Reject)]
#[case::answers_dropped(Fate::LoseAnswer)]
fn a_policy_against_our_range(#[case] fate: Fate) {
    let world = never_broken(|_, _| Some(fate));
    assert_eq!(world.verdict(14_200).state, State::Suspect);
}

#[test]
fn devices_taken_down() {
    let world = never_broken(|_, _| Some(Fate::ControlFails));
    let verdict = world.verdict(14_200);
    assert_eq!(
        verdict.state,
        State::Proven,
        "earlier proofs are still recent"
    );
    let mut world = world;
    world.rounds(14_250, 40_000, &USUAL, |_| Fate::ControlFails);
    let verdict = world.verdict(40_200);
    assert_eq!(verdict.why, Some(Why::Inconclusive));
    says(&verdict, "the control probe");
}

#[test]
fn client_device_taken_down() {
    never_broken(|_, _| Some(Fate::Vanish));
}

#[test]
fn routes_flushed_and_found_damaged() {
    let world = never_broken(|world, at| {
        if at >= 2_750 {
            let sentence = "the route to 198.18.0.2 is gone".to_owned();
            world.ledger.sentinel.damaged(ms(at), sentence);
        }
        Some(Fate::Misroute)
    });
    let verdict = world.verdict(14_200);
    let lane = &verdict.families[0].lanes[0];
    assert!(
        said(lane, &verdict).ends_with("the route to 198.18.0.2 is gone"),
        "{}",
        said(lane, &verdict)
    );
}

#[test]
fn stopped_for_ten_seconds_and_continued() {
    never_broken(|_, at| match at {
        // Probes that were under way when the agent was stopped have failed; their results are read
        // afterwards.
        2_250..=2_750 => Some(Fate::Leak),
        3_000..=12_999 => None,
        13_000..=13_500 => Some(Fate::Leak),
        _ => Some(Fate::Pass),
    });
}

#[rstest]
#[case::sent_late(Fate::Late)]
#[case::seen_late(Fate::SeenLate)]
fn a_starved_agent(#[case] fate: Fate) {
    never_broken(|_, _| Some(fate));
}

#[test]
fn another_owner_takes_over() {
    let mut world = never_broken(|world, at| {
        if at == 2_750 {
            let new = owners(&[Owner::KubeProxyNftables]);
            world.ledger.sentinel.owner_seen(Family::V4, new, ms(at));
        }
        Some(Fate::Leak)
    });
    let verdict = world.verdict(14_200);
    assert_eq!(unknown(&verdict), Some(Why::DatapathChanged));
    assert_eq!(
        verdict.reason(),
        "IPv4: another proxy translates Service traffic now (kube-proxy (nftables)), and no probe \
         passed since"
    );
    world.rounds(14_250, 14_250, &USUAL, |_| Fate::Pass);
    assert_eq!(world.verdict(14_450).state, State::Proven);
    world.rounds(14_500, 15_250, &USUAL, |_| Fate::Leak);
    assert_eq!(world.verdict(15_450).state, State::Broken, "armed again");
}

#[test]
fn the_owner_that_vanishes_is_a_fault() {
    let mut world = World::probed(&USUAL);
    world.rounds(2_250, 2_250, &USUAL, |_| Fate::Leak);
    world
        .ledger
        .sentinel
        .owner_seen(Family::V4, owners(&[]), ms(2_400));
    world.rounds(2_500, 3_000, &USUAL, |_| Fate::Leak);
    assert_eq!(world.verdict(3_200).state, State::Broken);
}

/// An operator investigates a fault with a program at the uplink.
#[test]
fn a_monitor_ends_no_fault() {
    let mut world = World::probed(&USUAL);
    world.rounds(2_250, 4_000, &USUAL, |_| Fate::Leak);
    let both = owners(&[Owner::KubeProxyIptables, Owner::Unknown]);
    let sentinel = &mut world.ledger.sentinel;
    sentinel.owner_seen(Family::V4, both, ms(4_100));
    world.rounds(4_250, 8_000, &USUAL, |_| Fate::Leak);
    assert_eq!(world.verdict(8_200).state, State::Broken);
}

/// kube-proxy's rules are removed while an unknown program is at the uplink: Calico's eBPF dataplane, which
/// need not serve the sentinel, or a mere monitor.
#[rstest]
#[case::with_the_program(&[Owner::Unknown], State::Unknown)]
#[case::alone(&[], State::Broken)]
fn rules_removed_behind_an_unknown_program(#[case] left: &[Owner], #[case] expected: State) {
    let mut world = World::probed(&USUAL);
    let sentinel = &mut world.ledger.sentinel;
    let both: Vec<Owner> = left
        .iter()
        .copied()
        .chain([Owner::KubeProxyNftables])
        .collect();
    sentinel.owner_seen(Family::V4, owners(&both), ms(2_100));
    world.rounds(2_250, 4_000, &USUAL, |_| Fate::Pass);
    world.rounds(4_250, 4_250, &USUAL, |_| Fate::Leak);
    let sentinel = &mut world.ledger.sentinel;
    sentinel.owner_seen(Family::V4, owners(left), ms(4_400));
    world.rounds(4_500, 8_000, &USUAL, |_| Fate::Leak);
    assert_eq!(world.verdict(8_200).state, expected);
}

#[test]
fn single_failures_between_passes() {
    never_broken(|_, at| {
        Some(if at % 1_000 == 0 {
            Fate::Pass
        } else {
            Fate::Leak
        })
    });
}

#[test]
fn misrouted_while_endpoints_are_not_known_for_certain() {
    let mut world = World::probed(&USUAL);
    world.next.observer.misrouted_suspended = true;
    world.rounds(2_250, 6_000, &USUAL, |_| Fate::Misroute);
    assert_eq!(world.verdict(6_200).state, State::Suspect);
}

#[test]
fn a_path_that_never_worked_is_unknown_with_the_likely_reason() {
    let mut world = World::with_sentinel();
    let fate = |lane: Lane| match lane.path {
        ProbePath::Host => Fate::Pass,
        _ => Fate::Drop,
    };
    world.rounds(250, 20_000, &USUAL, fate);
    let verdict = world.verdict(20_200);
    assert_eq!(unknown(&verdict), Some(Why::NothingProven));
    assert_eq!(
        verdict.reason(),
        "IPv4 cluster IPs: no probe passed yet; probes arrived and were not forwarded (lost), most \
         likely because the FORWARD policy or a filter drops traffic from 198.18.0.1"
    );
    world.inputs.sentinel_exists = true;
    world.inputs.booted = ms(0);
    let verdict = world.verdict(20_200);
    assert_eq!(verdict.state, State::Starting);
    says(&verdict, "FORWARD policy");
    world
        .prove(WEB, pathproof_wire::service::SourceClass::Pod, 20_200)
        .look(20_450);
    assert_eq!(
        world.verdict(20_450).state,
        State::Proven,
        "by a real connection"
    );
}

#[test]
fn starting_ends_with_the_first_pass() {
    let mut world = World::with_sentinel();
    world.inputs.sentinel_exists = true;
    world.inputs.booted = ms(0);
    world.look(250);
    assert_eq!(world.verdict(250).state, State::Starting);
    world.probe(lane(ProbePath::Host, Transport::Tcp), Fate::Pass, 300);
    world.probe(lane(ProbePath::OffCluster, Transport::Tcp), Fate::Leak, 300);
    assert_eq!(
        world.verdict(500).state,
        State::Starting,
        "the host path is blind to forwarding"
    );
    world.probe(lane(ProbePath::OffCluster, Transport::Tcp), Fate::Pass, 550);
    assert_eq!(world.verdict(600).state, State::Proven);
}

/// One agent ends and another starts from its state file.
pub(super) fn restart(world: &mut World, at: u64) {
    let verdict = world.verdict(at);
    let written = serde_json::to_string(&world.ledger.memory()).unwrap();
    let read: LedgerMemory = serde_json::from_str(&written).unwrap();
    world.ledger = Ledger::restore(Limits::default(), read, true, ms(at));
}

#[test]
fn a_restart_changes_nothing() {
    let mut world = World::faulty(4_000, |_| Fate::Leak);
    restart(&mut world, 5_000);
    let verdict = world.verdict(5_000);
    assert_eq!(
        verdict.state,
        State::Suspect,
        "the answer stays until the interfaces are checked"
    );
    ends(
        &verdict,
        "not confirmed: pathproof's own interfaces have not been checked since",
    );
    world.look(5_050);
    assert_eq!(world.verdict(5_050).state, State::Broken);
    // The new agent reads the same view, at a later time.
    change(&mut world, 5_100, sentinel_view());
    world.rounds(5_250, 5_250, &USUAL, |_| Fate::Leak);
    assert_eq!(world.verdict(5_450).state, State::Broken);
    world.rounds(5_500, 5_500, &USUAL, |_| Fate::Pass);
    assert_eq!(world.verdict(5_700).state, State::Proven);
    restart(&mut world, 6_000);
    world.rounds(6_250, 7_000, &USUAL, |_| Fate::Leak);
    assert_eq!(
        world.verdict(7_200).state,
        State::Broken,
        "armed by the previous agent"
    );
}

/// kube-proxy's table is gone, and a foreign legacy table remains. An agent that ran before knows this; a
/// new agent takes the table for kube-proxy's.
#[rstest]
#[case::the_table_came_now(false, false)]
#[case::a_new_agent_does_not_know_since_when(true, true)]
fn a_legacy_table_after_a_restart_disarms_nothing(#[case] restarts: bool, #[case] broken: bool) {
    let mut world = World::probed(&USUAL);
    let look = |world: &mut World, owner, at| {
        let sentinel = &mut world.ledger.sentinel;
        sentinel.owner_seen(Family::V4, owners(&[owner]), ms(at));
    };
    look(&mut world, Owner::KubeProxyNftables, 2_100);
    world.rounds(2_250, 20_000, &USUAL, |_| Fate::Pass);
    world.rounds(20_250, 22_000, &USUAL, |_| Fate::Leak);
    assert_eq!(world.verdict(22_200).state, State::Broken);
    if restarts {
        restart(&mut world, 22_300);
    }
    for at in [22_400, 27_400] {
        look(&mut world, Owner::KubeProxyIptables, at);
        world.rounds(at + 100, at + 4_600, &USUAL, |_| Fate::Leak);
    }
    assert_eq!(world.verdict(32_100).state == State::Broken, broken);
}

#[test]
fn memory_of_agents_without_a_sentinel_is_read() {
    let mut world = World::new();
    world.fail(
        WEB,
        pathproof_wire::service::SourceClass::Pod,
        1,
        pathproof_facts::cause::Failure::Leaked,
        200,
    );
    world.look(250);
    let mut written = serde_json::to_value(world.ledger.memory()).unwrap();
    written.as_object_mut().unwrap().remove("sentinel");
    written["families"][0]["streak"]
        .as_object_mut()
        .unwrap()
        .remove("arrived");
    let read = serde_json::from_value(written).unwrap();
    let ledger = Ledger::restore(Limits::default(), read, true, ms(500));
    assert!(!ledger.sentinel.is_failing(Family::V4));
}

#[test]
fn a_rotation_while_broken_keeps_the_answer() {
    let mut world = World::probed(&USUAL);
    let mut damping = Damping::new(Duration::from_secs(10));
    for at in (2_250..=60_000).step_by(250) {
        if at == 40_000 {
            change(
                &mut world,
                at,
                SentinelView {
                    identity: 2,
                    ..sentinel_view()
                },
            );
        }
        world.rounds(at, at, &USUAL, |_| Fate::Leak);
        let verdict = world.verdict(at + 200);
        let served = damping.step(&verdict, UnknownPolicy::Open);
        assert_eq!(served.healthy, at < 3_000, "at {at}: {}", verdict.reason());
        if (40_000..50_000).contains(&(at + 200)) {
            assert_eq!(verdict.state, State::Suspect);
            ends(&verdict, "the sentinel changed a moment ago");
        }
    }
    assert_eq!(world.verdict(60_200).state, State::Broken);
}

#[test]
fn probes_that_stop_are_too_old_after_a_while() {
    let mut world = World::faulty(6_000, |_| Fate::Leak);
    world.idle(6_250, 40_000);
    let verdict = world.verdict(40_000);
    assert_eq!(verdict.why, Some(Why::EvidenceTooOld));
    assert_eq!(verdict.families[0].failing_since, None::<Mono>);
}
