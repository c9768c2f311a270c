//! Suspended judgements, and reasons why outside connections may be unobserved.

use super::*;

fn at(seconds: u64) -> Mono {
    Mono(seconds * 1_000_000_000)
}

/// Whether misrouted connections are judged, and whether a reason is reported if not.
fn judged(coverage: &Coverage, seconds: u64) -> (bool, bool) {
    let health = coverage.health(Missing::default(), at(seconds));
    let reported = health.reasons.contains(&CoverageLoss::SourceSilent);
    (!health.misrouted_suspended, reported)
}

#[test]
fn a_silent_source_suspends_judgement_of_where_connections_go() {
    let mut coverage = Coverage::default();
    coverage.source(false, at(1));
    assert_eq!(judged(&coverage, 1), (true, false), "it was never silent");
    coverage.source(true, at(10));
    assert_eq!(judged(&coverage, 500), (false, true));
    coverage.source(false, at(500));
    coverage.source(false, at(520));
    assert_eq!(judged(&coverage, 589), (false, true), "still catching up");
    assert_eq!(judged(&coverage, 590), (true, false));
}

#[test]
fn an_unobserved_uplink_hides_connections_from_outside() {
    let hook = |device: &str, uplink, attached| Hook {
        device: device.to_owned(),
        uplink,
        attached,
        first: true,
        problem: None,
    };
    let hidden = |devices: Vec<Hook>, left_out| {
        let coverage = Coverage {
            hooks: Hooks {
                devices,
                left_out,
                unseen: 0,
                ..Hooks::default()
            },
            ..Coverage::default()
        };
        let health = coverage.health(Missing::default(), at(1));
        coverage.hides_outside(&health, true)
    };
    let pod = || hook("veth1", false, true);
    assert_eq!(hidden(vec![pod(), hook("eth0", true, true)], 0), None);
    let detached = hidden(vec![pod(), hook("eth0", true, false)], 0);
    assert_eq!(detached.as_deref(), Some("eth0 is not observed"));
    assert_eq!(
        hidden(vec![pod()], 0),
        None,
        "no default route, nothing left out"
    );
    assert!(hidden(vec![pod()], 1).is_some_and(|why| why.contains("are excluded")));
    assert_eq!(
        hidden(vec![], 0).as_deref(),
        Some("no interface is observed")
    );
}

/// It cannot be known whether the node or an endpoint behind the interface refused.
#[test]
fn behind_an_interface_that_is_left_to_others_nothing_is_lost_or_refused() {
    let suspended = |unseen| {
        let mut coverage = Coverage::new(ObserverStart::default(), at(0));
        coverage.hooks.unseen = unseen;
        let health = coverage.health(Missing::default(), at(60));
        [health.lost_suspended, health.refused_suspended]
    };
    assert_eq!(suspended(0), [false, false]);
    assert_eq!(suspended(1), [true, true]);
}
