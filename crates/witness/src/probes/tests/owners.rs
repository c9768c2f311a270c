//! Which proxy translates the node's packets, and when another proxy disarms the lanes.

use pathproof_facts::cause::ProbeCause;
use pathproof_facts::limits::Limits;
use pathproof_facts::owners::Owner;
use pathproof_facts::owners::Owner::{KubeProxyIptables, Unknown};
use pathproof_facts::trace::ProbePath;
use pathproof_wire::service::Family;
use rstest::rstest;

use super::ledger::{PATH, fail, failing, failures, ms, pass, set, settled, view};
use crate::probes::{ProbeOutcome, SentinelLedger};
use crate::testing::traces::{passed, tcp};

#[test]
fn another_owner_disarms_one_that_vanishes_does_not() {
    let mut ledger = failing(2);
    ledger.owner_seen(Family::V4, set(&[]), ms(20_400));
    fail(&mut ledger, 20_500, ProbeCause::Leaked);
    assert_eq!(failures(&ledger), 3, "a fault");
    ledger.owner_seen(Family::V4, set(&[Owner::KubeProxyIptables]), ms(20_600));
    assert!(ledger.lane(tcp(PATH)).armed, "the same one again");
    ledger.owner_seen(Family::V6, set(&[Owner::Cilium]), ms(20_600));
    assert!(ledger.lane(tcp(PATH)).armed, "another family");
    let both = set(&[Owner::KubeProxyIptables, Owner::KubeProxyNftables]);
    ledger.owner_seen(Family::V4, both, ms(20_650));
    assert!(!ledger.lane(tcp(PATH)).armed);
    assert_eq!(ledger.changed_hands(Family::V4), Some(both));
    fail(&mut ledger, 20_750, ProbeCause::Leaked);
    pass(&mut ledger, ProbePath::Host, 20_800, false);
    assert!(
        ledger.changed_hands(Family::V4).is_some(),
        "the host's path may work early"
    );
    pass(&mut ledger, PATH, 21_000, true);
    assert!(ledger.lane(tcp(PATH)).armed && ledger.changed_hands(Family::V4).is_none());
}

/// Programs at the uplinks may translate, or only watch.
#[rstest]
#[case::it_comes(&[KubeProxyIptables], &[KubeProxyIptables, Unknown], true)]
#[case::it_is_left_alone(&[KubeProxyIptables, Unknown], &[Unknown], false)]
#[case::it_takes_over(&[KubeProxyIptables], &[Unknown], false)]
#[case::it_goes(&[KubeProxyIptables, Unknown], &[KubeProxyIptables], true)]
#[case::both_go(&[KubeProxyIptables, Unknown], &[], true)]
#[case::it_was_always_alone(&[Unknown], &[Unknown], true)]
#[case::kube_proxy_comes_beside_it(&[Unknown], &[KubeProxyIptables, Unknown], false)]
fn an_unknown_program_may_have_taken_over(
    #[case] before: &[Owner],
    #[case] after: &[Owner],
    #[case] armed: bool,
) {
    let mut ledger = SentinelLedger::new(Limits::default());
    ledger.view_changed(ms(0), view(1, ms(0)));
    ledger.owner_seen(Family::V4, set(before), ms(0));
    pass(&mut ledger, PATH, 1_000, true);
    ledger.owner_seen(Family::V4, set(after), ms(2_000));
    assert_eq!(ledger.lane(tcp(PATH)).armed, armed);
}

#[test]
fn the_first_owner_disarms_nothing_unless_none_was_there_for_long() {
    let fresh = || {
        let mut ledger = SentinelLedger::new(Limits::default());
        ledger.view_changed(ms(0), view(1, ms(0)));
        ledger.owner_seen(Family::V4, set(&[]), ms(0));
        pass(&mut ledger, PATH, 1_000, true);
        ledger
    };
    let mut ledger = fresh();
    ledger.owner_seen(Family::V4, set(&[Owner::KubeProxyNftables]), ms(5_000));
    assert!(ledger.lane(tcp(PATH)).armed, "it came between two reads");
    assert_eq!(ledger.changed_hands(Family::V4), None);
    ledger.owner_seen(Family::V4, set(&[Owner::Cilium]), ms(10_000));
    assert!(!ledger.lane(tcp(PATH)).armed, "the second one");

    let mut ledger = fresh();
    ledger.owner_seen(Family::V4, set(&[]), ms(5_000));
    pass(&mut ledger, PATH, 15_000, true);
    ledger.owner_seen(Family::V4, set(&[Owner::Cilium]), ms(16_000));
    assert!(
        !ledger.lane(tcp(PATH)).armed,
        "something that has no name translated before"
    );
}

#[test]
fn an_owner_that_left_for_good_is_another_when_it_comes_back() {
    let mut ledger = settled();
    pass(&mut ledger, PATH, 1_000, true);
    let owners = [Owner::KubeProxyIptables, Owner::KubeProxyNftables];
    let [old, new] = owners.map(|owner| set(&[owner]));
    ledger.owner_seen(Family::V4, set(&owners), ms(2_000));
    pass(&mut ledger, PATH, 2_250, true);
    ledger.owner_seen(Family::V4, new, ms(3_000));
    pass(&mut ledger, PATH, 3_250, true);
    ledger.owner_seen(Family::V4, old, ms(4_000));
    assert!(
        ledger.lane(tcp(PATH)).armed,
        "it was gone for a second only"
    );
    ledger.owner_seen(Family::V4, new, ms(5_000));
    pass(&mut ledger, PATH, 15_000, true);
    ledger.owner_seen(Family::V4, old, ms(16_000));
    assert!(!ledger.lane(tcp(PATH)).armed);
}

#[test]
fn what_was_sent_before_another_owner_came_arms_nothing() {
    let mut ledger = failing(0);
    let (early, late) = (passed(tcp(PATH), ms(20_000)), passed(tcp(PATH), ms(20_300)));
    ledger.owner_seen(Family::V4, set(&[Owner::Cilium]), ms(20_100));
    let outcome = ProbeOutcome::Passed { masqueraded: true };
    ledger.absorb(&early, outcome, ms(20_150));
    assert!(!ledger.lane(tcp(PATH)).armed);
    ledger.absorb(&late, outcome, ms(20_400));
    assert!(ledger.lane(tcp(PATH)).armed);
}
