//! Which nodes are counted, and when a count is written.

use super::*;

const NOW: Wall = Wall(1_700_000_000_000_000_000);

fn s(seconds: u64) -> Mono {
    Mono((1_000 + seconds) * 1_000_000_000)
}

fn before(seconds: i64) -> Option<Wall> {
    Some(Wall(NOW.0 - seconds * 1_000_000_000))
}

fn condition(status: Status, reason: &str, heartbeat: Option<Wall>) -> ConditionSeen {
    ConditionSeen {
        status,
        reason: reason.to_owned(),
        message: String::new(),
        transition: heartbeat,
        heartbeat,
    }
}

fn cluster(nodes: u32, leaking: u32) -> Census {
    let mut census = Census::default();
    census.begin_list();
    for number in 0..nodes {
        set(&mut census, number, number < leaking);
    }
    census.end_list();
    census
}

fn set(census: &mut Census, number: u32, leaks: bool) {
    let (status, reason) = match leaks {
        true => (Status::False, "DatapathBrokenLeaked"),
        false => (Status::True, "DatapathProven"),
    };
    census.put(
        &format!("node-{number}"),
        Some(&condition(status, reason, before(1))),
        NOW,
        s(0),
    );
}

fn said(census: &mut Census, at: Mono) -> Option<(u32, u32)> {
    let report = census.publish(false, false, NOW, at)?;
    Some((report.count().unsound, report.nodes))
}

#[test]
fn nodes_that_fail_are_counted_by_reason_and_the_silent_are_not() {
    let mut census = cluster(5, 2);
    let broken = |heartbeat| condition(Status::False, "DatapathStale", heartbeat);
    census.put("late", Some(&broken(before(899))), NOW, s(0));
    census.put("silent", Some(&broken(before(901))), NOW, s(0));
    census.put("never", Some(&broken(None)), NOW, s(0));
    census.put("without-an-agent", None, NOW, s(0));
    let unknown = condition(Status::Unknown, "DatapathUnknownUnproven", before(1));
    census.put("not-known", Some(&unknown), NOW, s(0));
    let report = census.count(NOW, s(0));
    assert_eq!(
        report.text(),
        r#"{"nodes":7,"unsound":{"DatapathBrokenLeaked":2,"DatapathStale":1},"leaving":0,"written":1700000000}"#
    );
    assert_eq!(census.nodes(), 10);
    census.remove("node-0");
    assert_eq!(census.count(NOW, s(0)).count().unsound, 2);
}

#[test]
fn a_list_replaces_what_was_known() {
    let mut census = cluster(3, 3);
    census.begin_list();
    set(&mut census, 2, true);
    assert_eq!(census.nodes(), 3, "the list may be incomplete");
    census.begin_list();
    set(&mut census, 1, false);
    census.end_list();
    assert_eq!(
        (census.nodes(), census.count(NOW, s(0)).count().unsound),
        (1, 0)
    );
}

#[test]
fn an_incomplete_or_silent_census_publishes_nothing() {
    let mut census = Census::default();
    census.begin_list();
    set(&mut census, 0, true);
    assert_eq!(said(&mut census, s(0)), None);
    census.end_list();
    assert_eq!(said(&mut census, s(0)), Some((1, 1)));
    assert_eq!(
        census.publish(true, false, NOW, s(1)),
        None,
        "the watch is silent"
    );
}

/// Clusters of different sizes, each with the smallest change that is written at once.
#[test]
fn large_changes_are_published_at_once() {
    for (nodes, least) in [(3, 1), (99, 1), (200, 4), (5_000, 100)] {
        let mut census = cluster(nodes, 0);
        assert_eq!(said(&mut census, s(0)), Some((0, nodes)));
        (1..least).for_each(|number| set(&mut census, number, true));
        assert_eq!(
            said(&mut census, s(1)),
            Some((0, nodes)),
            "{least} of {nodes}"
        );
        set(&mut census, 0, true);
        assert_eq!(said(&mut census, s(1)), Some((least, nodes)));
    }
}

#[test]
fn small_changes_are_gathered() {
    let mut census = cluster(200, 50);
    assert_eq!(said(&mut census, s(0)), Some((50, 200)));
    set(&mut census, 0, false);
    assert_eq!(said(&mut census, s(9)), Some((50, 200)));
    assert_eq!(said(&mut census, s(10)), Some((49, 200)));
    set(&mut census, 200, false);
    assert_eq!(said(&mut census, s(69)), Some((49, 200)), "one more node");
    assert_eq!(said(&mut census, s(70)), Some((49, 201)));
}

/// An unchanged count is written every five minutes, or with another write.
#[test]
fn an_unchanged_count_is_written_every_five_minutes() {
    let mut census = cluster(200, 1);
    let mut writes = |anyway: bool, at: u64| {
        let wall = Wall(NOW.0 + i64::try_from(at).unwrap() * 1_000_000_000);
        let report = census.publish(false, anyway, wall, s(at)).unwrap();
        report.written - NOW.0 / 1_000_000_000
    };
    let written = [
        (false, 0),
        (false, 299),
        (false, 300),
        (true, 310),
        (false, 600),
    ];
    let written = written.map(|(anyway, at)| writes(anyway, at));
    assert_eq!(written, [0, 0, 300, 310, 310]);
}

/// A heartbeat from another node's clock shows only that its agent still writes.
#[test]
fn an_agent_that_writes_is_counted_whatever_its_clock() {
    let mut census = cluster(1, 0);
    let proven = |heartbeat| condition(Status::True, "DatapathProven", heartbeat);
    let ahead = before(-86_400);
    census.put("ahead", Some(&proven(ahead)), NOW, s(0));
    census.put("behind", Some(&proven(before(86_400))), NOW, s(0));
    assert_eq!(
        census.count(NOW, s(0)).nodes,
        2,
        "its agent may be long gone"
    );
    census.put("behind", Some(&proven(before(86_100))), NOW, s(1));
    assert_eq!(census.count(NOW, s(1)).nodes, 3);
    census.put("ahead", Some(&proven(ahead)), NOW, s(901));
    assert_eq!(
        census.count(NOW, s(901)).nodes,
        1,
        "only one wrote within 15 min"
    );
}

/// Marks of many nodes are published as fast as failures. A watch repeats each Node with every heartbeat.
#[test]
fn nodes_that_leave_are_counted_apart_from_those_that_fail() {
    let mut census = cluster(200, 3);
    let leaving = |census: &mut Census, at| {
        let report = census.publish(false, false, NOW, at).unwrap();
        assert_eq!(report.count().unsound, 3);
        report.leaving.unwrap()
    };
    assert_eq!(leaving(&mut census, s(0)), 0);
    for number in 10..14 {
        assert!(census.set_leaving(&format!("node-{number}"), true));
        assert!(!census.set_leaving(&format!("node-{number}"), true));
        set(&mut census, number, false);
    }
    assert_eq!(leaving(&mut census, s(1)), 4);
    assert!(census.set_leaving("node-10", false));
    assert_eq!(leaving(&mut census, s(9)), 4, "small changes are gathered");
    assert_eq!(leaving(&mut census, s(11)), 3);
    assert!(!census.set_leaving("unknown", true));
}

/// Each agent must receive this before it has made its devices.
#[test]
fn a_node_that_uses_the_sentinels_addresses_is_published_at_once() {
    let mut census = cluster(3, 0);
    let in_use = |census: &mut Census, at| {
        let report = census.publish(false, false, NOW, at).unwrap();
        report.in_use.clone()
    };
    assert_eq!(in_use(&mut census, s(0)), None);
    census.set_in_use("node-1", Some("it is an address of Node node-1".to_owned()));
    let said = in_use(&mut census, s(1));
    assert_eq!(said.as_deref(), Some("it is an address of Node node-1"));
    census.set_in_use("node-1", None);
    assert_eq!(in_use(&mut census, s(2)), None);
}
