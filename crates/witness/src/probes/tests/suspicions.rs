//! Accusations on one path that depend on another path.

use std::time::Duration;

use pathproof_facts::cause::ProbeCause;
use pathproof_facts::limits::Limits;
use pathproof_facts::owners::Owner;
use pathproof_facts::trace::ProbePath;
use pathproof_wire::probe::Stage;
use pathproof_wire::service::Family;
use rstest::rstest;

use super::ledger::{PATH, ms, pass, set, settled, view};
use crate::probes::{ProbeOutcome, SentinelLedger, VoidReason};
use crate::testing::traces::{stuck, tcp};

#[test]
fn masquerade_counts_where_kube_proxy_did_it_before() {
    let not = ProbeOutcome::Failed(ProbeCause::NotMasqueraded);
    let through = ProbeOutcome::Passed { masqueraded: false };
    const PATH: ProbePath = ProbePath::NodePort;
    let mut ledger = settled();
    assert_eq!(
        pass(&mut ledger, PATH, 19_000, false),
        through,
        "never seen before"
    );
    pass(&mut ledger, PATH, 19_250, true);
    assert_eq!(pass(&mut ledger, PATH, 19_500, false), not);
    let run = ledger.lane(tcp(PATH)).run.as_ref();
    assert_eq!(run.map(|run| run.failures), Some(1));
    pass(&mut ledger, ProbePath::Pod, 19_500, true);
    assert_eq!(
        pass(&mut ledger, ProbePath::Pod, 19_600, false),
        through,
        "never owed to pods"
    );

    let mut cilium = settled();
    cilium.owner_seen(Family::V4, set(&[Owner::Cilium]), ms(1_000));
    pass(&mut cilium, PATH, 19_250, true);
    assert_eq!(pass(&mut cilium, PATH, 19_500, false), through);
}

/// `--detect-local` and `--masquerade-all` decide whether cluster IPs are masqueraded. Without node ports
/// that is unknown.
#[test]
fn masquerade_of_cluster_ips_is_missed_only_beside_that_of_node_ports() {
    let not = ProbeOutcome::Failed(ProbeCause::NotMasqueraded);
    let through = ProbeOutcome::Passed { masqueraded: false };
    let mut alone = settled();
    pass(&mut alone, PATH, 19_000, true);
    assert_eq!(
        pass(&mut alone, PATH, 19_250, false),
        through,
        "no node port"
    );
    let refused = stuck(tcp(ProbePath::NodePort), ms(19_300), Some(Stage::Arrived));
    let outcome = ProbeOutcome::Failed(ProbeCause::Refused);
    alone.absorb(&refused, outcome, refused.ended);
    assert_eq!(
        pass(&mut alone, PATH, 19_500, false),
        through,
        "never worked"
    );

    let mut ledger = settled();
    pass(&mut ledger, PATH, 19_000, true);
    pass(&mut ledger, ProbePath::NodePort, 19_000, true);
    assert_eq!(
        pass(&mut ledger, PATH, 19_250, false),
        through,
        "node ports still are: the rule is there"
    );
    assert_eq!(pass(&mut ledger, ProbePath::NodePort, 19_250, false), not);
    assert_eq!(pass(&mut ledger, PATH, 19_500, false), not);
    let nothing = stuck(tcp(ProbePath::NodePort), ms(19_500), None);
    let void = ProbeOutcome::Void(VoidReason::NotArrived);
    let mut unknown = ledger.clone();
    unknown.absorb(&nothing, void, nothing.ended);
    assert_eq!(pass(&mut unknown, PATH, 19_750, false), through, "void");
    assert_eq!(
        pass(&mut ledger, PATH, 20_500, false),
        through,
        "node ports are no longer probed"
    );
}

/// A filter with `REJECT --reject-with tcp-reset` refuses node ports as well as cluster IPs. On a
/// busy machine results are evaluated late.
#[rstest]
#[case::at_once(0)]
#[case::late(1_200)]
fn a_refused_node_port_accuses_only_where_the_cluster_ip_is_not_refused(#[case] late: u64) {
    let refuse = |ledger: &mut SentinelLedger, path, at| {
        let trace = stuck(tcp(path), ms(at), Some(Stage::Arrived));
        let outcome = ProbeOutcome::Failed(ProbeCause::Refused);
        ledger.absorb(
            &trace,
            outcome,
            trace.ended.plus(Duration::from_millis(late)),
        );
    };
    let confirmed = |cluster_ip_too: bool, owner: Owner| {
        let mut ledger = SentinelLedger::new(Limits::default());
        ledger.view_changed(ms(0), view(1, ms(0)));
        ledger.owner_seen(Family::V4, set(&[owner]), ms(0));
        for path in [PATH, ProbePath::NodePort] {
            pass(&mut ledger, path, 19_750, true);
        }
        for at in (20_000..21_000).step_by(250) {
            if cluster_ip_too {
                refuse(&mut ledger, PATH, at);
            }
            refuse(&mut ledger, ProbePath::NodePort, at);
        }
        let run = &ledger.lane(tcp(ProbePath::NodePort)).run;
        run.as_ref()
            .is_some_and(|run| run.is_confirmed(&Limits::default()))
    };
    assert!(confirmed(false, Owner::KubeProxyIptables));
    assert!(!confirmed(true, Owner::KubeProxyIptables), "a filter");
    assert!(confirmed(true, Owner::Ipvs), "cluster IPs are local");
}
