//! Events that must not change the answer: changes of the sentinel, its devices, the agent, and the
//! datapath's owner. Also the reports on paths that never worked.

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

pub(super) fn change(world: &mut World, now: u64, view: SentinelView) {
    let changed_at = ms(now);
    let view = SentinelView { changed_at, ..view };
    world.ledger.sentinel.view_changed(ms(now), view);
}

#[test]
fn devices_that_stay_down_leave_nothing_to_conclude() {
    let world = World::faulty(40_000, |_| Fate::ControlFails);
    let verdict = world.verdict(40_200);
    assert_eq!(verdict.why, Some(Why::Inconclusive));
    says(&verdict, "the control probe");
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
    world.verdict(at);
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

/// kube-proxy's table is gone, and a foreign legacy table remains. An agent that ran before knows that the
/// table is foreign; a new agent takes it for kube-proxy's.
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
fn probes_that_stop_are_too_old_after_a_while() {
    let mut world = World::faulty(6_000, |_| Fate::Leak);
    world.idle(6_250, 40_000);
    let verdict = world.verdict(40_000);
    assert_eq!(verdict.why, Some(Why::EvidenceTooOld));
    assert_eq!(verdict.families[0].failing_since, None::<Mono>);
}
