//! Effect of the datapath's topology: probes that do not represent users accuse nobody.

use pathproof_facts::cause::{Failure, State};
use pathproof_facts::limits::Limits;
use pathproof_facts::owners::Owner;
use pathproof_facts::trace::ProbePath;
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::probes::SentinelLedger;
use pathproof_witness::testing::topologies::{mixed, replacing, replacing_with};
use pathproof_witness::topology::{DatapathTopology, Tristate};
use rstest::rstest;

use super::accusation::{TWO, fail};
use super::scene::*;
use super::world::*;

impl World {
    /// The topology was read, with the owners of rules beside Cilium.
    fn with_topology(
        &mut self,
        topology: &DatapathTopology,
        rules: &[Owner],
        at: u64,
    ) -> &mut Self {
        let there: Vec<Owner> = rules.iter().copied().chain([Owner::Cilium]).collect();
        let sentinel = &mut self.ledger.sentinel;
        sentinel.topology_seen(topology, ms(at));
        for family in Family::ALL {
            sentinel.owner_seen(family, topology.owners_with(owners(&there)), ms(at));
        }
        self
    }
}

const KUBE_PROXY: &[Owner] = &[Owner::KubeProxyIptables];

/// Probes pass by leftover rules of kube-proxy, which are then removed.
#[rstest]
#[case::taken_over(replacing(), State::Unknown)]
#[case::not_taken_over(mixed(), State::Broken)]
fn rules_left_behind_accuse_nobody(#[case] topology: DatapathTopology, #[case] expected: State) {
    let mut world = World::probed(&USUAL);
    world.with_topology(&topology, KUBE_PROXY, 2_100);
    let paths = [ProbePath::OffCluster, ProbePath::NodePort];
    world.rounds(2_250, 14_000, &paths, |_| Fate::Pass);
    world.with_topology(&topology, &[], 14_100);
    world.rounds(14_250, 20_000, &paths, |_| Fate::Leak);
    let verdict = world.verdict(20_200);
    let accused = verdict.state == State::Broken;
    assert_eq!(
        accused,
        expected == State::Broken,
        "{:?}: {}",
        verdict.state,
        verdict.reason()
    );
    let lanes = &verdict.families[0].lanes;
    let silent = lanes
        .iter()
        .filter(|lane| lane.path != ProbePath::Host)
        .all(|lane| said(lane, &verdict).contains("Cilium may not translate"));
    assert_eq!(silent, !accused, "{lanes:#?}");
}

/// Failures from a time when probes did not represent users accuse nobody afterwards: neither when Cilium
/// stops replacing kube-proxy, nor when another agent's programs are mistaken for Cilium's during an upgrade.
#[test]
fn lanes_that_begin_to_represent_users_must_pass_first() {
    let mut world = World::probed(&USUAL);
    world.with_topology(&replacing(), KUBE_PROXY, 2_100);
    let paths = [ProbePath::OffCluster, ProbePath::NodePort];
    world.rounds(2_250, 14_000, &paths, |_| Fate::Pass);
    world.rounds(14_250, 20_000, &paths, |_| Fate::Leak);
    world.with_topology(&mixed(), &[], 20_100);
    world.rounds(20_250, 24_000, &paths, |_| Fate::Leak);
    let verdict = world.verdict(24_200);
    assert_ne!(verdict.state, State::Broken, "{}", verdict.reason());
    world.rounds(24_250, 24_500, &paths, |_| Fate::Pass);
    world.rounds(24_750, 27_000, &paths, |_| Fate::Leak);
    assert_eq!(world.verdict(27_200).state, State::Broken);
}

/// A policy denies pods of two namespaces on a quiet node. No probe represents these pods, so none shows that
/// the node is sound. No policy makes connections leave untranslated.
#[rstest]
#[case::denied(Failure::Lost, replacing(), State::Degraded)]
#[case::rejected(Failure::Refused, replacing(), State::Degraded)]
#[case::untranslated(Failure::Leaked, replacing(), State::Broken)]
#[case::without_a_passing_probe(Failure::Lost, mixed(), State::Broken)]
fn denied_pods_accuse_nobody_where_no_probe_takes_their_way(
    #[case] failure: Failure,
    #[case] topology: DatapathTopology,
    #[case] expected: State,
) {
    let mut world = World::with_sentinel();
    world.with_topology(&topology, &[], 100);
    world.rounds(250, 3_000, &[ProbePath::Host], |_| Fate::Pass);
    fail(&mut world, TWO, failure, 4_000, 9_000);
    let verdict = world.verdict(9_000);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
}

/// No observed connection ever worked: pods' connections may succeed unseen beside Cilium, which is late
/// with two new Services.
#[rstest]
#[case::seen_in_part(Some(replacing()), State::Suspect)]
#[case::not_read_yet(None, State::Broken)]
fn unseen_successes_are_no_sign_that_nothing_ever_worked(
    #[case] topology: Option<DatapathTopology>,
    #[case] expected: State,
) {
    let mut world = World::new();
    world.ledger.worked = Default::default();
    if let Some(topology) = topology {
        world.with_topology(&topology, &[], 100);
    }
    fail(&mut world, TWO, Failure::Leaked, 250, 5_000);
    let verdict = world.verdict(5_000);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
}

/// If Cilium replaces kube-proxy, only the host path counts.
#[test]
fn the_host_path_counts_if_no_other_lane_can() {
    let mut world = World::with_sentinel();
    world.with_topology(&replacing(), &[], 100);
    world.rounds(250, 3_000, &USUAL, outside(Fate::Leak, Fate::Pass));
    let verdict = world.verdict(3_200);
    assert_eq!(verdict.state, State::Proven, "{}", verdict.reason());
    let mut busy = world.clone();
    world.rounds(3_250, 6_000, &USUAL, |_| Fate::Leak);
    assert_eq!(world.verdict(6_200).state, State::Broken);
    // Real connections of any client succeed meanwhile, which outweighs the host path.
    for class in [SourceClass::External, SourceClass::Pod] {
        let mut busy = busy.clone();
        for at in (3_250..=6_000).step_by(250) {
            busy.prove(WEB, class, at + 100);
            busy.rounds(at, at, &USUAL, |_| Fate::Leak);
        }
        let verdict = busy.verdict(6_200);
        assert_eq!(verdict.state, State::Degraded, "{}", verdict.reason());
    }
    // A success before the fault contradicts nothing.
    busy.prove(WEB, SourceClass::External, 3_100);
    busy.rounds(3_250, 6_000, &USUAL, |_| Fate::Leak);
    assert_eq!(busy.verdict(6_200).state, State::Broken);
}

/// Cilium manages the sentinel's interfaces. While they are recreated, the host path does not replace the
/// other lanes. Once Cilium no longer manages them, the host path does.
#[test]
fn the_host_path_does_not_stand_in_for_recreated_lanes() {
    let mut world = World::with_sentinel();
    world.with_topology(&replacing_with(Tristate::Yes), &[], 100);
    world.rounds(250, 3_000, &USUAL, |_| Fate::Pass);
    let host_leaks = || outside(Fate::Pass, Fate::Leak);
    world.rounds(3_250, 6_000, &USUAL, host_leaks());
    assert_eq!(world.verdict(6_200).state, State::Degraded);
    // Cilium has not attached its programs yet.
    world.with_topology(&replacing_with(Tristate::No), &[], 6_250);
    let mut off = world.clone();
    world.rounds(6_500, 9_000, &[ProbePath::Host], host_leaks());
    let verdict = world.verdict(9_200);
    assert_ne!(verdict.state, State::Broken, "{}", verdict.reason());
    off.rounds(6_500, 38_000, &[ProbePath::Host], host_leaks());
    let verdict = off.verdict(38_200);
    assert_eq!(verdict.state, State::Broken, "{}", verdict.reason());
}

/// The ledger stores its lanes together with whether Cilium manages the sentinel's interfaces. Otherwise the
/// next agent would assume at first that probes do not represent users, and disarm the lanes when it finds
/// that they do.
#[test]
fn a_restart_does_not_disarm_lanes_that_represent_users() {
    let mut world = World::with_sentinel();
    world.with_topology(&replacing_with(Tristate::Yes), &[], 100);
    world.rounds(250, 3_000, &USUAL, |_| Fate::Pass);
    let memory = serde_json::to_string(&world.ledger.sentinel.memory()).unwrap();
    let memory = serde_json::from_str(&memory).unwrap();
    world.ledger.sentinel = SentinelLedger::restore(Limits::default(), memory);
    let managed = world.ledger.sentinel.applicability.managed;
    world.with_topology(&replacing_with(managed), &[], 3_100);
    world.with_topology(&replacing_with(Tristate::Yes), &[], 3_150);
    world.rounds(3_250, 6_000, &USUAL, outside(Fate::Leak, Fate::Pass));
    let verdict = world.verdict(6_200);
    assert_eq!(verdict.state, State::Broken, "{}", verdict.reason());
}

/// Beside Cilium, kube-proxy handles no connections of pods. So a pod's success proves nothing about
/// kube-proxy's rules, but an external client's does. Without Cilium, any client's success proves them.
#[rstest]
#[case::two_proxies(Some(mixed()), SourceClass::Pod, State::Broken)]
#[case::served_by_kube_proxy(Some(mixed()), SourceClass::External, State::Degraded)]
#[case::one_proxy(None, SourceClass::Pod, State::Degraded)]
fn one_of_two_proxies_does_not_prove_the_other(
    #[case] topology: Option<DatapathTopology>,
    #[case] class: SourceClass,
    #[case] expected: State,
) {
    let mut world = World::with_sentinel();
    if let Some(topology) = &topology {
        world.with_topology(topology, KUBE_PROXY, 100);
    }
    let paths = [ProbePath::OffCluster];
    world.rounds(250, 3_000, &paths, |_| Fate::Pass);
    for at in (3_250..=6_000).step_by(250) {
        world.prove(WEB, class, at + 100);
        world.rounds(at, at, &paths, |_| Fate::Leak);
    }
    let verdict = world.verdict(6_200);
    assert_eq!(verdict.state, expected, "{}", verdict.reason());
}

/// All connections of pods are misrouted, beside a proxy that works for all other clients.
#[test]
fn pods_alone_of_two_proxies_accuse() {
    let mut world = World::new();
    world.with_topology(&mixed(), KUBE_PROXY, 100);
    for at in (250..=8_000).step_by(250) {
        for (service, client) in [(WEB, 1), (API, 2), (DB, 3)] {
            world.fail(service, SourceClass::Pod, client, Failure::Misrouted, at);
        }
        world.prove(WEB, SourceClass::External, at + 50);
        world.look(at + 100);
    }
    let verdict = world.verdict(8_150);
    assert_eq!(verdict.state, State::Broken, "{}", verdict.reason());
}
