use std::collections::BTreeMap;

use pathproof_facts::directory::ServiceInfo;

use super::*;

const SECOND: u64 = 1_000_000_000;

fn at(seconds: u64) -> Mono {
    Mono(seconds * SECOND)
}

fn count(service: u32, reason: &str, packets: u64) -> DropCount {
    DropCount {
        service,
        reason: reason.to_owned(),
        packets,
    }
}

fn directory() -> BTreeMap<u32, ServiceInfo> {
    let info = |name: &str, family| ServiceInfo {
        sentinel: name == "sentinel",
        ..ServiceInfo::plain("demo", name, family)
    };
    BTreeMap::from([
        (1, info("web", Family::V4)),
        (2, info("api", Family::V6)),
        (3, info("sentinel", Family::V4)),
    ])
}

#[test]
fn without_a_loss_no_reasons_are_read() {
    let mut drops = DropLedger::default();
    for second in 0..600 {
        assert!(!drops.look(at(second)));
    }
    assert_eq!(drops, DropLedger::default());
}

#[test]
fn a_loss_is_watched_until_it_is_over() {
    let mut drops = DropLedger::default();
    assert!(drops.lose(at(5)));
    assert!(!drops.lose(at(6)), "once");
    assert!(!drops.look(at(15)));
    assert!(drops.look(at(16)), "10 s after the last loss");
    assert!(drops.lose(at(17)), "the next loss is another one");
}

#[test]
fn during_a_long_loss_reasons_are_read_a_quarter_of_the_time() {
    let mut drops = DropLedger::default();
    let mut watched = 0;
    let mut is_on = false;
    for second in 0..1_200 {
        is_on |= drops.lose(at(second));
        is_on &= !drops.look(at(second));
        watched += u32::from(is_on);
    }
    assert!((290..=310).contains(&watched), "{watched} of 1,200 s");
}

#[test]
fn reasons_are_kept_by_service_and_forgotten() {
    let mut drops = DropLedger::default();
    let counts = [
        count(1, NOT_SPECIFIED, 90),
        count(1, "NETFILTER_DROP", 3),
        count(2, "IP_RPFILTER", 5),
        count(7, "IP_RPFILTER", 5),
        count(3, "TC_INGRESS", 5),
        count(3, "TC_EGRESS", 5),
    ];
    drops.take(&counts, &directory(), at(1));
    drops.take(&counts[1..2], &directory(), at(2));
    let shown: Vec<_> = (drops.shown.dropped.iter())
        .map(|it| (&*it.service, &*it.reason, it.packets))
        .collect();
    assert_eq!(
        shown,
        [
            ("demo/web", "NETFILTER_DROP", 6),
            ("demo/api", "IP_RPFILTER", 5),
            ("demo/web", NOT_SPECIFIED, 90),
        ],
        "no reason comes last; Services that are gone and the end of probes are left out"
    );
    let main = |family, now| Some(&*drops.shown.main(family, at(now))?.reason);
    assert_eq!(main(Some(Family::V4), 3), Some("NETFILTER_DROP"));
    assert_eq!(main(Some(Family::V6), 3), Some("IP_RPFILTER"));
    assert_eq!(main(None, 3), Some("NETFILTER_DROP"));
    assert_eq!(main(None, 60), None, "too old for a sentence");
    drops.look(at(2_000));
    assert!(drops.shown.dropped.is_empty());
}

#[test]
fn memory_is_bounded() {
    let mut drops = DropLedger::default();
    for round in 0..10 {
        let counts: Vec<_> = (0..500)
            .map(|number| count(1 + number % 2, &format!("REASON_{round}_{number}"), 1))
            .collect();
        drops.take(&counts, &directory(), at(round));
        assert_eq!(drops.shown.dropped.len(), KEPT);
    }
}

#[test]
fn frequent_reasons_are_explained() {
    let no_route = Some("there is no route to its destination");
    assert_eq!(meaning("IP_OUTNOROUTES"), no_route);
    assert_eq!(meaning("IP_INNOROUTES"), no_route);
    for known in [NOT_SPECIFIED, BY_TC, BY_TC_OUT] {
        assert!(meaning(known).is_some(), "{known}");
    }
    for unknown in ["", "#", "ROUTES", "A_NEW_REASON"] {
        assert_eq!(meaning(unknown), None, "{unknown}");
    }
}
