//! Failure domains: the counts of a node's zone and pool limit it as well.

use super::*;

/// A count of the cluster and of two domains of this node.
fn published(counts: [(u32, u32); 3], at: Mono) -> Published {
    let [count, pool, zone] = counts.map(|(unsound, nodes)| Count { unsound, nodes });
    Published {
        count,
        domains: [pool, zone, Count::default(), Count::default()],
        written: wall(at).0 / NANOS,
        ..Published::default()
    }
}

fn record(brake: &mut Brake, counts: [(u32, u32); 3], at: Mono) {
    brake.record(published(counts, at), wall(at), at);
}

/// A brake in a healthy cluster of 200 nodes. Domains without a failing node are not in the count.
fn healthy() -> Brake {
    let mut brake = Brake::restore(Some(20), "node", BrakeMemory::default());
    record(&mut brake, [(0, 200), (0, 0), (0, 0)], s(0));
    brake
}

/// Size of the pool, and number of its nodes that fail before this one. A fifth may fail, and always one.
#[rstest]
#[case(1, 0, false)]
#[case(2, 0, false)]
#[case(2, 1, true)]
#[case(3, 0, false)]
#[case(3, 1, true)]
#[case(6, 0, false)]
#[case(6, 1, true)]
#[case(20, 3, false)]
#[case(20, 4, true)]
fn one_node_in_five_of_a_pool_may_go(#[case] nodes: u32, #[case] others: u32, #[case] held: bool) {
    let mut brake = healthy();
    let of_pool = |unsound| match unsound {
        0 => [(0, 200), (0, 0), (0, 0)],
        _ => [(unsound, 200), (unsound, nodes), (0, 0)],
    };
    record(&mut brake, of_pool(others), s(1));
    let unsound = others;
    let expected = held.then_some(BrakeReason::Domain(Count { unsound, nodes }));
    assert_eq!(brake.step(true, true, s(2)), expected);
    record(&mut brake, of_pool(others + 1), s(3));
    let counted = brake.step(true, true, s(3));
    assert_eq!(counted.is_some(), held, "with this node in the count");
    let later = brake.step(true, true, s(40));
    assert_eq!(later.is_some(), held, "and stays so");
}

/// The fullest of the counts decides, whichever it is.
#[rstest]
#[case::none([(9, 200), (0, 0), (9, 66)], None)]
#[case::cluster([(40, 200), (0, 0), (2, 66)], Some("fleet"))]
#[case::pool([(9, 200), (4, 20), (4, 66)], Some("domain"))]
#[case::zone([(20, 200), (0, 0), (13, 66)], Some("domain"))]
fn the_strictest_count_holds(#[case] counts: [(u32, u32); 3], #[case] held: Option<&str>) {
    let mut brake = healthy();
    record(&mut brake, counts, s(1));
    let found = brake.step(true, true, s(2));
    assert_eq!(found.map(BrakeReason::name), held);
    let service = brake.hold_services(true, s(2));
    assert_eq!(service.map(BrakeReason::name), held, "of one Service");
}

/// All six nodes of a pool fail at once. Five of them answered 503 until then.
#[test]
fn a_pool_that_fails_at_once_is_taken_back() {
    let mut brake = healthy();
    assert_eq!(brake.step(true, true, s(1)), None);
    record(&mut brake, [(6, 200), (6, 6), (0, 0)], s(3));
    assert!(matches!(
        brake.step(true, true, s(3)),
        Some(BrakeReason::Domain(_))
    ));
}

/// Marks are counted for the whole cluster only, so a pool may be drained node by node.
#[test]
fn domains_do_not_limit_nodes_that_leave() {
    let mut counted = published([(6, 200), (6, 6), (0, 0)], s(1));
    counted.leaving = Some(6);
    let mut brake = healthy();
    brake.record(counted.of_leaving().unwrap(), wall(s(1)), s(1));
    assert_eq!(brake.hold_leaving(true, s(2)), None);
}

/// An older agent stored the failure, or an older rotator writes the count.
#[test]
fn state_and_counts_of_earlier_versions_are_read() {
    let mut brake = healthy();
    brake.step(true, true, s(1));
    let mut stored = serde_json::to_value(brake.memory).unwrap();
    let failing = stored["failing"].as_object_mut().unwrap();
    failing.retain(|name, _| !["before_in", "counted"].contains(&&**name));
    let counted = stored["counted"][0].as_object_mut().unwrap();
    assert!(counted.remove("domains").is_some());
    let memory: BrakeMemory = serde_json::from_value(stored).unwrap();
    assert_eq!(memory, brake.memory);
    let mut heir = Brake::restore(Some(20), "node", memory);
    let older = r#"{"nodes":200,"unsound":{"DatapathStale":6},"leaving":0,"written":1700001003}"#;
    let older = FleetReport::parse(older).unwrap().published(|_| Some("x"));
    heir.record(older, wall(s(3)), s(3));
    assert_eq!(heir.step(true, true, s(3)), None);
}

/// The count of each label's value on the node; of an unlisted value that of the fullest domain left out.
#[test]
fn a_node_reads_the_counts_of_its_own_domains() {
    let text = r#"{"nodes":90,"unsound":{"a":9},"written":1,"rest":[1,5],"domains":
        {"pool":{"a":[6,6],"b":[2,20]},"rack":{"r":[1,9]},"zone":{}}}"#;
    let report = FleetReport::parse(text).unwrap();
    let of = |labels: &[(&str, &'static str)]| {
        let value_of = |key: &str| {
            let found = labels.iter().find(|(label, _)| *label == key);
            found.map(|(_, value)| *value)
        };
        let published = report.published(value_of);
        published.domains.map(|count| (count.unsound, count.nodes))
    };
    assert_eq!(of(&[]), [(0, 0); 4]);
    let labels = [("pool", "b"), ("zone", "z"), ("rack", "other")];
    assert_eq!(of(&labels), [(2, 20), (1, 5), (1, 5), (0, 0)]);
    assert_eq!(of(&[("rack", "r")]), [(0, 0), (1, 9), (0, 0), (0, 0)]);
}
