//! A declared translator whose rules are missing accuses, even though no lane ever worked.

use std::time::Duration;

use pathproof_facts::cause::State;
use pathproof_facts::limits::Limits;
use pathproof_facts::owners::{Declared, Owner};
use pathproof_facts::trace::ProbePath;
use pathproof_wire::service::Family;
use pathproof_witness::probes::SentinelView;
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::verdict::Rule;

fn declared(declared: Declared) -> Limits {
    Limits {
        declared: Some(declared),
        ..Limits::default()
    }
}

/// Without the proxy's rules, or with forwarding off, the state is Broken, although no probe ever passed.
/// Negative controls: a filter drops the probes, a filter rejects them, or they pass.
#[rstest]
#[case::no_rules(Fate::Leak, State::Broken)]
#[case::forwarding_off(Fate::ForwardingOff, State::Broken)]
#[case::filtered(Fate::Drop, State::Unknown)]
#[case::rejected(Fate::Reject, State::Unknown)]
#[case::served(Fate::Pass, State::Proven)]
fn a_declared_proxy_without_rules_is_broken(#[case] fate: Fate, #[case] state: State) {
    let mut world = World::limited(declared(Declared::KubeProxy));
    world.rounds(250, 4_000, &USUAL, |_| fate);
    let verdict = world.verdict(4_200);
    assert_eq!(verdict.state, state, "{}", verdict.reason());
    world.rounds(4_250, 8_000, &USUAL, |_| Fate::Pass);
    assert_eq!(
        world.verdict(8_200).state,
        State::Proven,
        "after the first proof"
    );
}

/// A firewall drops the probes of cluster IPs, and node ports are served at another address.
#[test]
fn node_ports_that_are_refused_alone_arm_nothing() {
    let mut world = World::limited(declared(Declared::KubeProxy));
    world.rounds(250, 8_000, &USUAL, |lane| match lane.path {
        ProbePath::NodePort => Fate::Refuse,
        _ => Fate::Drop,
    });
    let verdict = world.verdict(8_200);
    assert_eq!(verdict.state, State::Unknown, "{}", verdict.reason());
}

#[rstest]
#[case::nobody(Declared::Cilium, &[], State::Broken)]
#[case::declared(Declared::KubeProxy, &[Owner::KubeProxyNftables], State::Broken)]
#[case::another(Declared::KubeProxy, &[Owner::CiliumReplacement], State::Unknown)]
#[case::beside(Declared::KubeProxy, &[Owner::KubeProxyIptables, Owner::Cilium], State::Unknown)]
#[case::not_known(Declared::KubeProxy, &[Owner::Unknown], State::Unknown)]
#[case::no_replacement(Declared::Cilium, &[Owner::KubeProxyIptables], State::Unknown)]
fn a_declaration_that_does_not_fit_is_ignored(
    #[case] said: Declared,
    #[case] found: &[Owner],
    #[case] state: State,
) {
    let mut world = World::limited(declared(said));
    let sentinel = &mut world.ledger.sentinel;
    *sentinel = pathproof_witness::probes::SentinelLedger::new(declared(said));
    sentinel.view_changed(ms(0), sentinel_view());
    sentinel.owner_seen(Family::V4, owners(found), ms(0));
    world.rounds(250, 4_000, &USUAL, |_| Fate::Leak);
    let verdict = world.verdict(4_200);
    assert_eq!(verdict.state, state, "{}", verdict.reason());
}

/// A proxy may be late with rules for a new Service, as after a boot.
#[test]
fn a_new_sentinel_has_its_time() {
    let mut limits = declared(Declared::KubeProxy);
    limits.boot_deadline = Duration::from_secs(30);
    let mut world = World::limited(limits);
    let made = |identity, at| SentinelView {
        identity,
        changed_at: ms(at),
        ..sentinel_view()
    };
    world.ledger.sentinel.view_changed(ms(0), made(2, 0));
    world.rounds(250, 29_000, &USUAL, |_| Fate::Leak);
    let verdict = world.verdict(29_200);
    assert_eq!(verdict.state, State::Unknown, "{}", verdict.reason());
    world.rounds(30_000, 36_000, &USUAL, |_| Fate::Leak);
    assert_eq!(world.verdict(36_200).state, State::Broken);
}

/// The agent first sees the sentinel during the boot, which does not extend the boot's grace period.
#[test]
fn a_sentinel_that_was_first_seen_during_the_boot_is_missed_after_it() {
    let mut limits = declared(Declared::KubeProxy);
    limits.boot_deadline = Duration::from_nanos(ms(6_000).0);
    let mut world = World::limited(limits);
    let view = SentinelView {
        identity: 2,
        changed_at: ms(3_000),
        ..sentinel_view()
    };
    world.rounds(250, 3_000, &USUAL, |_| Fate::Leak);
    world.ledger.sentinel.view_changed(ms(3_000), view);
    world.rounds(3_250, 5_500, &USUAL, |_| Fate::Leak);
    assert_eq!(world.verdict(5_700).finding.rule, Rule::Starting);
    world.rounds(5_750, 20_000, &USUAL, |_| Fate::Leak);
    assert_eq!(world.verdict(20_200).state, State::Broken);
}

/// The Service has two families, and the node has one.
#[rstest]
#[case::addressed(false, State::Broken)]
#[case::unaddressed(true, State::Unknown)]
fn a_family_without_an_address_here_is_not_missed(#[case] lacks: bool, #[case] state: State) {
    let mut world = World::limited(declared(Declared::KubeProxy));
    let view = SentinelView {
        unaddressed: [lacks, false],
        ..sentinel_view()
    };
    world.ledger.sentinel.view_changed(ms(0), view);
    world.rounds(250, 4_000, &USUAL, |_| Fate::ForwardingOff);
    let verdict = world.verdict(4_200);
    assert_eq!(verdict.state, state, "{}", verdict.reason());
}

/// A proxy may take as long as the boot's grace period.
#[test]
fn a_boot_has_its_time() {
    let mut limits = declared(Declared::KubeProxy);
    limits.boot_deadline = Duration::from_nanos(ms(6_000).0);
    let mut world = World::limited(limits);
    world.rounds(250, 5_500, &USUAL, |_| Fate::Leak);
    assert_eq!(world.verdict(5_700).finding.rule, Rule::Starting);
    world.rounds(5_750, 8_000, &USUAL, |_| Fate::Leak);
    assert_eq!(world.verdict(8_200).state, State::Broken);
}
