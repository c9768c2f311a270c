//! Alerts about a fleet: many nodes at once, the brake, and several clusters in one Prometheus. Each alert
//! fires for its fault, does not fire for the negative control, and suppresses the other alerts of the same
//! fault.

use node_tests::prelude::*;

use crate::alerts::{
    CRITICAL, WARNING, broken, expect, expect_every, expect_words, first_broken, stay_broken,
};
use crate::fleet::{ALWAYS_0, COUNTED, FROM_MINUTE_10, Firing, Fleet, MINUTES_10_TO_30};

const MANY: &str = "PathproofManyNodesBroken";

/// The alert that many nodes are broken, with the usual cause of these tests.
fn many() -> Vec<Firing> {
    vec![Firing::of_fleet(MANY, CRITICAL).because("leaked")]
}

/// A fleet fault: more than one node and more than a fifth of all nodes are broken, or more than twenty
/// nodes.
#[rstest]
#[case(1, 1, false)]
#[case(1, 2, false)]
#[case(2, 2, true)]
#[case(2, 10, false)]
#[case(3, 10, true)]
#[case(3, 15, false)]
#[case(4, 15, true)]
#[case(20, 110, false)]
#[case(21, 110, true)]
fn many_nodes_at_once(#[case] nodes: usize, #[case] all: usize, #[case] is_many: bool) {
    let fleet = first_broken(nodes, all);
    let (soon, later) = if is_many {
        (many(), many())
    } else {
        (vec![], stay_broken(1..=nodes))
    };
    expect(
        &fleet,
        &[("10m30s", &[]), ("11m30s", &soon), ("25m", &later)],
    );
}

/// There is one alert for each cause. Nodes without a known cause are counted separately.
#[test]
fn many_nodes_are_grouped_by_cause() {
    let mut fleet = first_broken(3, 10);
    fleet.broken("node-4", "IPv4", "refused", FROM_MINUTE_10);
    fleet.broken("node-4", "IPv6", "refused", FROM_MINUTE_10);
    let of = |cause| Firing::of_fleet(MANY, CRITICAL).because(cause);
    let both = [of("leaked"), of("refused")];
    expect(&fleet, &[("15m", &both)]);
    fleet.state("node-5", "IPv4", "stale", FROM_MINUTE_10);
    expect(&fleet, &[("15m", &[both.as_slice(), &[of("")]].concat())]);
}

/// While many nodes are broken, there are no warnings for single nodes. Nodes that are still broken
/// afterwards get theirs then.
#[test]
fn alerts_of_nodes_are_held_back_while_many_are_broken() {
    const FLAPS: &str = "0x19 1 0x4 1 0x4 1 0x4 1 0x4 1 0x4 1 0x4 1 0x4 1 0x4 1 0x4 1 0x50";
    let mut fleet = Fleet::healthy(10);
    fleet.state("node-6", "IPv4", "degraded", FROM_MINUTE_10);
    fleet.state("node-7", "IPv4", "suspect", FROM_MINUTE_10);
    fleet.state("node-8", "IPv4", "broken", FROM_MINUTE_10);
    fleet.set("pathproof_node_eligible", &["node=\"node-8\""], ALWAYS_0);
    let lag = ["node=\"node-9\"", "family=\"IPv4\""];
    fleet.set("pathproof_programming_lag_seconds", &lag, "45x120");
    let livez = ["node=\"node-10\"", "check=\"livez\""];
    fleet.set("pathproof_would_fail", &livez, FLAPS);
    let mut alone = vec![
        Firing::on("PathproofDatapathDegraded", WARNING, "node-6"),
        Firing::on("PathproofDatapathSuspect", WARNING, "node-7"),
        Firing::on("PathproofBrokenWhileLeaving", WARNING, "node-8"),
        Firing::on("PathproofRulesLag", WARNING, "node-9"),
        Firing::on("PathproofNodeFlaps", WARNING, "node-10"),
    ];
    expect(&fleet, &[("29m", &alone)]);
    for node in 1..=5 {
        let values = if node == 1 {
            FROM_MINUTE_10
        } else {
            MINUTES_10_TO_30
        };
        fleet.broken(&format!("node-{node}"), "IPv4", "leaked", values);
    }
    let early = [alone[3].clone()];
    alone.retain(|firing| firing.node != "node-10");
    alone.extend(stay_broken([1].into_iter()));
    expect(
        &fleet,
        &[
            ("10m30s", &early),
            ("11m", &many()),
            ("29m", &many()),
            ("50m", &alone),
        ],
    );
}

/// If nodes break one after another, the critical alert for the fleet fires before the warnings for the first
/// nodes.
#[test]
fn the_page_comes_before_the_tickets() {
    let mut fleet = Fleet::healthy(10);
    for (node, values) in [(1, "0x18 1x101"), (2, FROM_MINUTE_10), (3, "0x20 1x99")] {
        fleet.broken(&format!("node-{node}"), "IPv4", "leaked", values);
    }
    let page = many();
    expect(
        &fleet,
        &[
            ("10m30s", &[]),
            ("11m", &[]),
            ("11m30s", &page),
            ("12m", &page),
            ("12m30s", &page),
            ("13m", &page),
        ],
    );
}

/// Nodes of the same name in another cluster neither cause nor suppress an alert.
#[test]
fn clusters_are_told_apart() {
    let mut west = first_broken(2, 10);
    west.set("pathproof_node_eligible", &["node=\"node-2\","], ALWAYS_0);
    let mut north = Fleet::healthy(10);
    north.set("pathproof_node_eligible", &["node=\"node-1\","], ALWAYS_0);
    let fleet = first_broken(5, 10)
        .in_cluster("east")
        .beside(west.in_cluster("west"))
        .beside(north.in_cluster("north"));
    let mut expected = vec![
        many()[0].clone().in_cluster("east"),
        Firing::on("PathproofBrokenWhileLeaving", WARNING, "node-2").in_cluster("west"),
    ];
    for firing in stay_broken([1].into_iter()) {
        expected.push(firing.in_cluster("west"));
    }
    expect(&fleet, &[("25m", &expected)]);
}

/// Three nodes of a small cluster are many, however large another cluster is.
#[test]
fn many_are_counted_in_each_cluster() {
    let large = Fleet::healthy(100).in_cluster("large");
    let fleet = first_broken(3, 10).in_cluster("small").beside(large);
    let page = many()[0].clone().in_cluster("small");
    expect(&fleet, &[("25m", &[page])]);
}

/// Each cluster's alert about a missing object fires although the other cluster has an object of the same
/// name.
#[test]
fn another_cluster_never_hides_what_is_missing() {
    let other = || Fleet::healthy(3).in_cluster("west");
    let mut bare = Fleet::healthy(2);
    bare.add_bare_node("node-3", "Debian GNU/Linux 12 (bookworm)");
    let missing = Firing::on("PathproofAgentMissing", WARNING, "node-3").in_cluster("east");
    let fleet = bare.in_cluster("east").beside(other());
    expect(&fleet, &[("20m", &[missing])]);

    let mut still = Fleet::healthy(3);
    let all: [&str; 0] = [];
    still.set("pathproof_rotation_lag_seconds_count", &all, "10x120");
    let stopped = Firing::of_fleet("PathproofRotationStopped", WARNING).in_cluster("east");
    let fleet = still.in_cluster("east").beside(other());
    expect(&fleet, &[("45m", &[stopped])]);

    let mut down = Fleet::healthy(3);
    down.set("up", &["node=\"node-2\","], ALWAYS_0);
    let down_there = Firing::on("PathproofAgentDown", WARNING, "node-2").in_cluster("east");
    let fleet = down.in_cluster("east").beside(other());
    expect(&fleet, &[("20m", &[down_there])]);
}

/// If there are several clusters, the alert ends after a day. Otherwise a decommissioned cluster would fire
/// for ever.
#[test]
fn a_cluster_that_is_not_scraped_any_more() {
    let up = |values| {
        let mut fleet = Fleet::default();
        fleet.put("up", "job=\"pathproof\",node=\"node-1\"", values);
        fleet
    };
    // Values for 1,500 minutes, then none. The interval is 5 minutes, because with two days of half minutes
    // promtool would run for most of a minute.
    let interval = "5m";
    let ended = || up("1x300 stale");
    let warned = [Firing::of_fleet("PathproofNotScraped", WARNING)];
    let there = warned.clone().map(|firing| firing.in_cluster("east"));
    let west = up("1x600").in_cluster("west");
    expect_every(
        interval,
        &ended().in_cluster("east").beside(west),
        &[
            ("1510m", &[]),
            ("1515m", &there),
            ("2940m", &there),
            ("2945m", &[]),
        ],
    );
    // For the only cluster the alert does not end.
    expect_every(
        interval,
        &ended(),
        &[("1510m", &[]), ("1515m", &warned), ("2960m", &warned)],
    );
}

/// Cases: reason and alert. A 503 that waits only some seconds for the fleet's count causes no alert.
#[rstest]
#[case("fleet", Some("PathproofFleetBraked"))]
#[case("domain", Some("PathproofFleetBraked"))]
#[case("uncounted", Some("PathproofFleetNotCounted"))]
#[case("turn", Some("PathproofFleetNotCounted"))]
#[case("waiting", None)]
#[case("leaving", None)]
fn a_503_that_is_held_back(#[case] reason: &str, #[case] alert: Option<&'static str>) {
    let mut fleet = Fleet::healthy(10);
    for node in ["node-2", "node-3"] {
        let labels = [format!("node=\"{node}\","), format!("reason=\"{reason}\"")];
        fleet.set("pathproof_braked", &labels, FROM_MINUTE_10);
    }
    let told = Vec::from_iter(alert.map(|alert| Firing::of_fleet(alert, WARNING)));
    expect(
        &fleet,
        &[("10m30s", &[]), ("11m30s", &told), ("40m", &told)],
    );
    let in_east = |firing: Firing| firing.in_cluster("east");
    let east: Vec<Firing> = told.into_iter().map(in_east).collect();
    let west = Fleet::healthy(10).in_cluster("west");
    expect(&fleet.in_cluster("east").beside(west), &[("11m30s", &east)]);
}

#[test]
fn a_braked_fleet_is_one_page() {
    let mut fleet = first_broken(10, 10);
    for node in 3..=10 {
        let labels = [
            format!("node=\"node-{node}\","),
            "reason=\"fleet\"".to_owned(),
        ];
        fleet.set("pathproof_braked", &labels, FROM_MINUTE_10);
    }
    let mut expected = many();
    expected.push(Firing::of_fleet("PathproofFleetBraked", WARNING));
    expect(
        &fleet,
        &[("10m30s", &[]), ("12m", &expected), ("40m", &expected)],
    );
}

#[test]
fn nodes_that_leave_are_not_many() {
    let mut fleet = first_broken(5, 10);
    for node in 1..=3 {
        let label = format!("node=\"node-{node}\",");
        fleet.set("pathproof_node_eligible", &[label], ALWAYS_0);
    }
    expect(&fleet, &[("13m", &broken(4..=5))]);
}

/// The alert names the cluster and the cause if they are known.
#[test]
fn words_of_the_fleet_are_filled_in() {
    let after = "Check first what these nodes share: a rollout of the proxy or of a firewall, the \
                 control plane, or pathproof itself. `kubectl pathproof` lists the nodes. Alerts of single \
                 nodes are suppressed while this alert fires.";
    let before = "More than one node and more than a fifth of the nodes, or more than 20 nodes,";
    let known = format!(
        "{before} of cluster east are broken or stale at the same time; 3 of them with the cause \
         leaked. {after}"
    );
    let labels = json!({ "severity": CRITICAL, "cluster": "east", "cause": "leaked" });
    let fleet = first_broken(3, 10).in_cluster("east");
    let words = [
        "3 nodes of cluster east do not route Services: leaked",
        &known,
    ];
    expect_words(&fleet, MANY, &labels, words);

    let mut fleet = Fleet::healthy(3);
    for node in ["node-1", "node-2"] {
        fleet.state(node, "IPv4", "broken", FROM_MINUTE_10);
    }
    let unknown = format!("{before} are broken or stale at the same time; 2 of them. {after}");
    let words = ["2 nodes do not route Services", &unknown];
    expect_words(&fleet, MANY, &json!({ "severity": CRITICAL }), words);
}

const LEADER: &str = "pod=\"rotator-1\"";

/// Cases: times of the leader's counts, and those of the other rotator from the time when it leads. A killed leader
/// is replaced within a minute.
#[rstest]
#[case::the_leader_hangs("0+30x19 570x100", None, true)]
#[case::nobody_leads("0+30x19 stale", None, true)]
#[case::another_leads_soon("0+30x19 stale", Some("_x22 660+30x98"), false)]
#[case::another_leads_late("0+30x19 stale", Some("_x26 780+30x94"), true)]
fn failing_nodes_are_counted_by_somebody(
    #[case] leader: &str,
    #[case] other: Option<&str>,
    #[case] fires: bool,
) {
    let mut fleet = Fleet::healthy(3);
    fleet.set(COUNTED, &[LEADER], leader);
    if let Some(other) = other {
        let labels = "job=\"pathproof-rotator\",pod=\"rotator-2\"";
        fleet.put(COUNTED, labels, other);
    }
    let nobody = Firing::of_fleet("PathproofNobodyCounts", WARNING);
    let nobody: Vec<_> = fires.then_some(nobody).into_iter().collect();
    let after = if other.is_none() { &nobody[..] } else { &[] };
    expect(&fleet, &[("11m", &[]), ("12m30s", &nobody), ("20m", after)]);
}

/// A replica that restarts is no fault. If all disappear, they are missed because they were there an hour ago.
#[test]
fn rotators_that_disappear() {
    let nobody = [Firing::of_fleet("PathproofNobodyCounts", WARNING)];
    let mut fleet = Fleet::healthy(3);
    fleet.set("up", &["pod=\"rotator-2\""], "1x19 0x10 1x90");
    expect(&fleet, &[("12m", &[]), ("20m", &[])]);
    fleet.set("up", &["job=\"pathproof-rotator\""], "1x10 stale");
    fleet.set(COUNTED, &[LEADER], "0+30x10 stale");
    expect(&fleet, &[("59m", &[]), ("62m30s", &nobody)]);
}

/// Cases: kind and result of the leader's writes, their sum, and whether they fire.
#[rstest]
#[case::refused("slice", "rejected", "0x19 0+6x100", true)]
#[case::not_answered("count", "unreachable", "0x19 0+6x100", true)]
#[case::a_label_among_many("label", "rejected", "0x19 0+6x100", true)]
#[case::races("slice", "conflict", "0x19 0+6x100", false)]
#[case::a_short_outage("slice", "unreachable", "0x19 0+6x2 12x100", false)]
fn writes_of_the_rotator_that_fail(
    #[case] kind: &str,
    #[case] result: &str,
    #[case] values: &str,
    #[case] fires: bool,
) {
    const WRITES: &str = "pathproof_rotator_writes_total";
    let mut fleet = Fleet::healthy(3);
    let kind = format!("kind=\"{kind}\"");
    let result = format!("result=\"{result}\"");
    fleet.set(WRITES, &[LEADER, &kind, &result], values);
    let fail = Firing::of_fleet("PathproofRotatorWritesFail", WARNING);
    let fail: Vec<_> = fires.then_some(fail).into_iter().collect();
    expect(&fleet, &[("14m", &[]), ("25m", &fail)]);
}
