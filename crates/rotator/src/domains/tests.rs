//! Which domains are in a count, and when they are written.

use pathproof_facts::fleet_report::Count;
use pathproof_facts::time::{Mono, Wall};
use pathproof_report::condition::Status;

use super::*;
use crate::ConditionSeen;
use crate::census::Census;

const NOW: Wall = Wall(1_700_000_000_000_000_000);

fn s(seconds: u64) -> Mono {
    Mono((1_000 + seconds) * 1_000_000_000)
}

/// A node of this pool, in this zone.
fn put(census: &mut Census, node: &str, fails: bool, domains: &[(&str, &str)]) {
    let condition = ConditionSeen {
        status: if fails { Status::False } else { Status::True },
        reason: "DatapathStale".to_owned(),
        message: String::new(),
        transition: Some(NOW),
        heartbeat: Some(NOW),
    };
    census.put(node, Some(&condition), NOW, s(0));
    let domains = domains.iter();
    let domains =
        domains.map(|(label, value)| (Arc::<str>::from(*label), Box::<str>::from(*value)));
    census.set_domains(node, domains.collect());
}

/// 29 nodes in three zones. The first six are a pool, and `failing` of these fail.
fn ingress(failing: u32) -> Census {
    let mut census = Census::default();
    census.begin_list();
    for number in 0..29 {
        let zone = ["a", "b", "c"][number as usize % 3];
        let pool = if number < 6 { "ingress" } else { "workers" };
        let domains = [("pool", pool), ("zone", zone)];
        put(
            &mut census,
            &format!("n{number}"),
            number < failing,
            &domains,
        );
    }
    census.end_list();
    census
}

#[test]
fn domains_with_failing_nodes_are_listed() {
    let text = ingress(2).count(NOW, s(0)).text();
    let domains = r#""domains":{"pool":{"ingress":[2,6]},"zone":{"a":[1,10],"b":[1,10]}}"#;
    assert!(text.contains(domains), "{text}");
    let sound = ingress(0).count(NOW, s(0)).text();
    assert!(
        sound.contains(r#""domains":{"pool":{},"zone":{}}"#),
        "{sound}"
    );
    let mut census = ingress(0);
    put(&mut census, "alone", true, &[("pool", "single")]);
    put(&mut census, "silent", true, &[("pool", "ingress")]);
    census.put("silent", None, NOW, s(0));
    let text = census.count(NOW, s(0)).text();
    assert!(text.contains(r#""pool":{},"#), "{text}");
}

/// Six nodes of 1,000 are too few to be written at once, but not as most of a pool.
#[test]
fn a_failing_pool_is_written_at_once() {
    let mut census = ingress(0);
    for number in 29..1_000 {
        put(
            &mut census,
            &format!("n{number}"),
            false,
            &[("pool", "workers")],
        );
    }
    let of_pool = |census: &mut Census, at| {
        let report = census.publish(false, false, NOW, at).unwrap();
        report.domains["pool"].get("ingress").map(|count| count.0)
    };
    let fail = |census: &mut Census, number: u32| {
        put(census, &format!("n{number}"), true, &[("pool", "ingress")]);
    };
    assert_eq!(of_pool(&mut census, s(0)), None);
    fail(&mut census, 0);
    assert_eq!(of_pool(&mut census, s(1)), None, "a small change");
    fail(&mut census, 1);
    assert_eq!(of_pool(&mut census, s(1)), Some(2));
    fail(&mut census, 2);
    assert_eq!(of_pool(&mut census, s(2)), Some(2), "too soon");
    assert_eq!(of_pool(&mut census, s(4)), Some(3));
    put(&mut census, "n2", false, &[("pool", "ingress")]);
    assert_eq!(of_pool(&mut census, s(8)), Some(3), "fewer are not urgent");
}

/// A rise that is many nodes of the cluster does not wait for the previous one.
#[test]
fn a_rise_does_not_delay_a_larger_change() {
    let mut census = ingress(0);
    let mut published = |failing: u32, at| {
        for number in 0..failing {
            put(
                &mut census,
                &format!("n{number}"),
                true,
                &[("pool", "ingress")],
            );
        }
        let report = census.publish(false, false, NOW, at);
        report.unwrap().count().unsound
    };
    assert_eq!(published(0, s(0)), 0);
    assert_eq!(published(2, s(1)), 2);
    assert_eq!(published(4, s(2)), 4);
}

/// Agents read the first 1,024 bytes of a count. If not all domains fit, the count of the fullest one left out is
/// used for all that are left out.
#[test]
fn the_fullest_domains_are_listed_while_there_is_room() {
    let mut census = Census::default();
    census.begin_list();
    for pool in 0..100 {
        let name = format!("a-pool-with-a-long-name-{pool:03}");
        for node in 0..10 {
            let fails = node < 1 + pool / 20;
            put(
                &mut census,
                &format!("n{pool}-{node}"),
                fails,
                &[("pool", name.as_str())],
            );
        }
    }
    census.end_list();
    let report = census.count(NOW, s(0));
    assert!(report.text().len() <= FLEET_LENGTH);
    let pools = &report.domains["pool"];
    assert!(pools.len() >= 20, "{}", pools.len());
    assert!(pools.values().all(|count| count.0 >= 4), "{pools:?}");
    assert_eq!(report.rest, Some((4, 10)));
    let published = report.published(|_| Some("another"));
    let rest = Count {
        unsound: 4,
        nodes: 10,
    };
    assert_eq!(published.domains[0], rest);
}

/// Labels that leave no room for a valid report are not counted at all.
#[test]
fn long_labels_never_make_a_count_unreadable() {
    let mut census = Census::default();
    census.begin_list();
    let labels = [1, 2, 3, 4, 5].map(|n| format!("{}.example/label-{n}", "x".repeat(250)));
    let domains: Vec<_> = labels.iter().map(|label| (label.as_str(), "a")).collect();
    put(&mut census, "n0", true, &domains);
    put(&mut census, "n1", false, &domains);
    census.end_list();
    let report = census.count(NOW, s(0));
    assert!(report.text().len() <= FLEET_LENGTH);
    assert_eq!(FleetReport::parse(&report.text()).unwrap(), report);
    assert_eq!((report.count().unsound, report.domains.len()), (1, 3));
    assert_eq!(census.left_out().count(), 0, "nothing is published");
    census.publish(false, false, NOW, s(0));
    let left_out: Vec<&str> = census.left_out().collect();
    assert_eq!(left_out, [&*labels[3], &*labels[4]]);
    let mut ingress = ingress(2);
    ingress.publish(false, false, NOW, s(0));
    assert_eq!(ingress.left_out().count(), 0);
    // A label that came after the count waits for the next one, and has room in it.
    put(&mut ingress, "late", false, &[("later", "a")]);
    ingress.publish(false, false, NOW, s(1));
    assert_eq!(ingress.left_out().count(), 0);
}
