use super::*;
use crate::cluster::{EndpointFacts, SliceFacts};

fn service(name: &str) -> Change {
    Change::Service(Arc::new(ServiceFacts {
        name: ObjectName::new("ns", name),
        ..ServiceFacts::default()
    }))
}

fn slice(name: &str, service: &str, endpoints: usize) -> Change {
    let endpoint = EndpointFacts {
        peer: 0,
        address: [1; 16],
        ready: true,
        serving: true,
        terminating: false,
        local: false,
    };
    Change::Slice(Arc::new(SliceFacts {
        name: ObjectName::new("ns", name),
        service: service.into(),
        ports: vec![],
        endpoints: vec![endpoint; endpoints],
        fleet: None,
    }))
}

fn names(applied: &Applied) -> Vec<String> {
    applied.before.keys().map(ToString::to_string).collect()
}

#[test]
fn a_batch_names_what_it_changed_and_how_it_was() {
    let mut view = ClusterView::new();
    let applied = view.apply(vec![
        service("a"),
        slice("a-1", "a", 1),
        slice("b-1", "b", 1),
    ]);
    assert_eq!(names(&applied), ["ns/a", "ns/b"]);
    assert!(!applied.synced);
    assert!(
        applied
            .before
            .values()
            .all(|before| *before == ServiceState::default())
    );
    let before = view.state(&ObjectName::new("ns", "a")).unwrap().clone();
    let applied = view.apply(vec![slice("a-2", "a", 1), slice("a-1", "a", 2)]);
    assert_eq!(
        applied.before.get(&ObjectName::new("ns", "a")),
        Some(&before)
    );
    let slices = &view.state(&ObjectName::new("ns", "a")).unwrap().slices;
    assert!(slices.is_sorted_by_key(|slice| &slice.name) && slices.len() == 2);
    assert_eq!(view.service_count(), 1);
    view.apply(vec![service("b")]);
    assert_eq!(view.service_count(), 2);
}

#[test]
fn what_changes_and_changes_back_did_not_change() {
    let mut view = ClusterView::new();
    view.apply(vec![service("a"), slice("a-1", "a", 1)]);
    let (gone, nothing) = (
        Change::ServiceGone(ObjectName::new("ns", "a")),
        Applied::default(),
    );
    assert_eq!(view.apply(vec![gone, service("a")]), nothing);
    let there_and_back = vec![slice("a-1", "a", 2), slice("a-1", "a", 1)];
    assert_eq!(view.apply(there_and_back), nothing);
    let again = vec![service("a"), slice("a-1", "a", 1)];
    assert_eq!(view.apply(again), nothing);
}

#[test]
fn a_deleted_service_leaves_nothing_behind() {
    let mut view = ClusterView::new();
    view.apply(vec![service("a"), slice("a-1", "a", 1)]);
    let slice = ObjectName::new("ns", "a-1");
    let gone = Change::SliceGone {
        slice,
        service: "a".into(),
    };
    view.apply(vec![
        Change::ServiceGone(ObjectName::new("ns", "a")),
        gone.clone(),
    ]);
    assert_eq!(view.states().count(), 0);
    assert_eq!(view.apply(vec![gone]), Applied::default());
}

#[test]
fn the_first_delivery_is_complete_once() {
    let mut view = ClusterView::new();
    assert!(!view.is_synced());
    assert!(view.apply(vec![Change::Synced]).synced);
    assert!(!view.apply(vec![Change::Synced]).synced);
}

#[test]
fn the_node_comes_and_goes() {
    let mut view = ClusterView::new();
    view.apply(vec![Change::Node(Arc::new(NodeFacts::default()))]);
    assert_eq!(view.node(), Some(&NodeFacts::default()));
    view.apply(vec![Change::NodeGone]);
    assert_eq!(view.node(), None);
}
