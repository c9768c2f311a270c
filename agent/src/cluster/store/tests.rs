use pathproof_facts::cluster::ObjectName;
use serde_json::json;

use super::*;

fn there(kind: Kind, value: &serde_json::Value) -> Event {
    Event::There(kind.parse(value))
}

fn node(uid: &str) -> Event {
    there(
        Kind::Node,
        &json!({"metadata": {"name": "here", "uid": uid}}),
    )
}

fn service(name: &str, address: &str) -> Event {
    let spec = json!({"clusterIP": address, "ports": [{"port": 80}]});
    there(
        Kind::Service,
        &json!({"metadata": {"name": name, "namespace": "n"}, "spec": spec}),
    )
}

fn meta(name: &str) -> Box<ObjectMeta> {
    Box::new(ObjectMeta {
        name: Some(name.to_owned()),
        namespace: Some("n".to_owned()),
        ..ObjectMeta::default()
    })
}

/// A store whose lists are all complete.
fn synced(first: Vec<Event>) -> Store {
    let mut store = Store::new("here");
    for kind in Kind::ALL {
        store.take(Event::ListBegins(kind));
    }
    for event in first {
        store.take(event);
    }
    for kind in Kind::ALL {
        store.take(Event::ListEnds(kind));
    }
    let update = store.update().unwrap();
    assert_eq!(update.changes.last(), Some(&Change::Synced));
    store
}

#[test]
fn the_node_is_delivered_at_once_and_the_view_when_complete() {
    let mut store = Store::new("here");
    assert!(!store.take(Event::ListBegins(Kind::Node)));
    assert!(!store.take(node("1")));
    assert!(store.take(Event::ListEnds(Kind::Node)));
    let update = store.update().unwrap();
    assert!(matches!(&*update.changes, [Change::Node(_)]));
    store.take(Event::ListBegins(Kind::Service));
    store.take(Event::ListBegins(Kind::Slice));
    assert!(!store.take(Event::ListEnds(Kind::Service)));
    assert!(store.take(Event::ListEnds(Kind::Slice)));
    assert_eq!(store.update().unwrap().changes, [Change::Synced]);
    assert_eq!(store.update(), None);
}

#[test]
fn a_recreated_node_is_another_node() {
    let mut store = synced(vec![node("first")]);
    let node_meta = ObjectMeta {
        name: Some("here".to_owned()),
        ..ObjectMeta::default()
    };
    assert!(store.take(Event::Gone(Kind::Node, Box::new(node_meta))));
    assert!(store.take(node("second")));
    let changes = store.update().unwrap().changes;
    let [Change::NodeGone, Change::Node(facts)] = &*changes else {
        panic!("{changes:?}");
    };
    assert_eq!(&*facts.uid, "second");
}

#[test]
fn an_incomplete_list_removes_nothing() {
    let mut store = synced(vec![service("a", "10.0.0.1"), service("b", "10.0.0.2")]);
    store.take(Event::ListBegins(Kind::Service));
    store.take(service("a", "10.0.0.9"));
    store.take(service("short-lived", "10.0.0.3"));
    assert_eq!(store.update(), None);
    // The next list removes b, and the object that only the incomplete list contained.
    store.take(Event::ListBegins(Kind::Service));
    store.take(service("a", "10.0.0.9"));
    store.take(Event::ListEnds(Kind::Service));
    let changes = store.update().unwrap().changes;
    let gone = |name| Change::ServiceGone(ObjectName::new("n", name));
    assert!(changes.contains(&gone("b")), "{changes:?}");
    let put = |change: &Change| match change {
        Change::Service(facts) => &*facts.name.name == "short-lived",
        _ => false,
    };
    let last_put = changes.iter().rposition(put);
    let last_gone = changes
        .iter()
        .rposition(|change| *change == gone("short-lived"));
    assert!(last_put < last_gone, "{changes:?}");
    assert_eq!(changes.len(), 4, "{changes:?}");
}

#[test]
fn an_invalid_change_keeps_the_old_facts() {
    let mut store = synced(vec![service("a", "10.0.0.1")]);
    store.take(service("a", "10.0.0"));
    let update = store.update().unwrap();
    assert_eq!(update.changes, []);
    let told = update.problems[0].to_string();
    assert!(told.contains("Service n/a: spec.clusterIPs[0]"), "{told}");
    store.take(Event::Gone(Kind::Service, meta("a")));
    let update = store.update().unwrap();
    assert_eq!((update.changes.len(), update.problems.len()), (1, 0));
}

#[test]
fn a_service_that_becomes_headless_is_gone() {
    let mut store = synced(vec![service("a", "10.0.0.1")]);
    store.take(service("a", "None"));
    let update = store.update().unwrap();
    assert!(matches!(&*update.changes, [Change::ServiceGone(_)]));
}

#[test]
fn a_flood_of_wrong_objects_is_counted() {
    let events = (0..60)
        .map(|n| service(&format!("s{n}"), "1.2.3"))
        .collect();
    let mut store = synced(events);
    store.take(there(
        Kind::Slice,
        &json!({"metadata": {"name": "x"}, "endpoints": 1}),
    ));
    let problems = store.update().unwrap().problems;
    assert_eq!(problems.len(), NAMED + 1);
    let last = problems.last().unwrap().to_string();
    assert!(last.contains("11 more objects"), "{last}");
}

fn slice(name: &str, service: &str, endpoints: usize) -> Event {
    let endpoint =
        |index: usize| json!({"addresses": [format!("10.1.{}.{}", index / 250, index % 250)]});
    let metadata = json!({
        "name": name, "namespace": "n", "labels": {"kubernetes.io/service-name": service},
    });
    let endpoints: Vec<_> = (0..endpoints).map(endpoint).collect();
    let ports = json!([{"port": 8080}]);
    let value = json!({
        "metadata": metadata, "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
    });
    there(Kind::Slice, &value)
}

/// A store with these limits per namespace and in total.
fn limited(namespace: usize, all: usize) -> Store {
    let mut store = synced(vec![]);
    store.budget = Budget::new(namespace, all);
    store
}

fn known(store: &Store, kind: Kind) -> usize {
    store.resources[kind as usize].objects.len()
}

fn problems(store: &Store) -> Vec<String> {
    let problems = store.problems().into_iter();
    problems.map(|problem| problem.to_string()).collect()
}

#[test]
fn a_namespace_has_a_budget() {
    let mut store = limited(4_000, 100_000);
    for index in 0..1_000 {
        store.take(service(&format!("s{index}"), "10.96.0.1"));
    }
    let held = known(&store, Kind::Service);
    assert!((5..10).contains(&held), "{held}");
    assert_eq!(
        problems(&store),
        [
            "API server: the Services and EndpointSlices of namespace n take too much memory: new ones \
             are not judged; remove some, and restart the agent"
        ]
    );
    // Known objects are still followed. Objects that were left out stay unknown even after another object
    // made room.
    store.take(Event::Gone(Kind::Service, meta("s1")));
    store.take(service("s0", "10.96.0.2"));
    store.take(service("s999", "10.96.0.1"));
    assert_eq!(known(&store, Kind::Service), held - 1);
    let other =
        json!({"metadata": {"name": "web", "namespace": "m"}, "spec": {"clusterIP": "10.96.0.9"}});
    store.take(there(Kind::Service, &other));
    assert_eq!(known(&store, Kind::Service), held);
}

/// The agent reports that it does not know the external IPs of a Service that was left out: they may be
/// anybody's addresses.
#[test]
fn a_left_out_service_with_external_ips_is_reported() {
    let claim = |name: &str| {
        let spec = json!({"clusterIP": "10.96.0.1", "externalIPs": ["192.0.2.1"], "ports": [{"port": 80}]});
        let metadata = json!({"name": name, "namespace": "n"});
        there(Kind::Service, &json!({"metadata": metadata, "spec": spec}))
    };
    let mut store = limited(4_000, 100_000);
    store.take(claim("kept"));
    for index in 0..20 {
        store.take(service(&format!("s{index}"), "10.96.0.1"));
    }
    assert_eq!(store.update().unwrap().unknown_frontends, None);
    store.take(claim("z"));
    let first = Some(ObjectName::new("n", "z"));
    assert_eq!(store.update().unwrap().unknown_frontends, first);

    // A Service that was accepted is left out when one of its slices does not fit.
    let mut store = limited(4_000, 100_000);
    store.take(claim("kept"));
    store.take(slice("kept-1", "kept", 1_000));
    let first = Some(ObjectName::new("n", "kept"));
    assert_eq!(store.update().unwrap().unknown_frontends, first);
}

/// If half of the endpoints of a Service were known, connections to the other half would count as misrouted.
#[test]
fn a_service_without_all_its_slices_is_left_out() {
    for grows in [false, true] {
        let mut store = limited(6_000, 100_000);
        store.take(service("web", "10.96.0.1"));
        store.take(slice("web-1", "web", 10));
        let second = if grows { "web-1" } else { "web-2" };
        store.take(slice(second, "web", 1_000));
        assert_eq!(known(&store, Kind::Service), 0);
        store.take(service("web", "10.96.0.1"));
        assert_eq!(known(&store, Kind::Service), 0);
        let changes = store.update().unwrap().changes;
        let gone = Change::ServiceGone(ObjectName::new("n", "web"));
        assert!(changes.contains(&gone), "{changes:?}");
    }
}

#[test]
fn the_heaviest_namespace_loses_services() {
    let mut store = limited(100_000, 100_000);
    let small =
        json!({"metadata": {"name": "web", "namespace": "m"}, "spec": {"clusterIP": "10.96.0.9"}});
    for index in 0..200 {
        let name = format!("s{index:03}");
        store.take(service(&name, "10.96.0.1"));
        store.take(slice(&name, &name, 10));
        if index == 60 {
            store.take(there(Kind::Service, &small));
        }
    }
    let (services, slices) = (known(&store, Kind::Service), known(&store, Kind::Slice));
    assert_eq!(services, slices + 1, "the small one has no slice");
    assert!((50..90).contains(&slices), "{slices}");
    let named: Vec<String> = problems(&store);
    assert!(
        matches!(&*named, [one] if one.contains("namespace n take")),
        "{named:?}"
    );
    for index in 0..200 {
        store.take(Event::Gone(Kind::Service, meta(&format!("s{index:03}"))));
        store.take(Event::Gone(Kind::Slice, meta(&format!("s{index:03}"))));
    }
    store.take(Event::ListBegins(Kind::Service));
    store.take(Event::ListEnds(Kind::Service));
    assert_eq!(store.budget.relief(), None);
    assert_eq!(store.budget.total, 0);
}

/// The agent watches only its own Node, so the store knows no other Node.
#[test]
fn a_missing_node_is_reported_once_the_view_is_complete() {
    let mut store = Store::new("here");
    for kind in [Kind::Node, Kind::Service] {
        store.take(Event::ListBegins(kind));
        store.take(Event::ListEnds(kind));
    }
    assert_eq!(store.update(), None, "slices are not listed yet");
    store.take(Event::ListBegins(Kind::Slice));
    store.take(Event::ListEnds(Kind::Slice));
    let missing = store.update().unwrap().missing_node.unwrap();
    assert!(
        missing.starts_with("no Node is named here, so "),
        "{missing}"
    );
    assert!(missing.ends_with("in `kubectl get nodes`"), "{missing}");
    store.take(node("1"));
    assert_eq!(store.update().unwrap().missing_node, None);
    let unreadable = there(
        Kind::Node,
        &json!({"metadata": {"name": "here"}, "spec": 1}),
    );
    let store = &mut synced(vec![unreadable]);
    store.take(service("a", "10.0.0.1"));
    let update = store.update().unwrap();
    assert_eq!(
        update.missing_node, None,
        "it exists: {:?}",
        update.problems
    );
}
