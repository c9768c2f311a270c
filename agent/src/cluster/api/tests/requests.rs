//! Tests of the requests to an API server.

use pathproof_facts::cluster::ObjectName;

use super::server::Answer;
use super::{World, failure, list, service, with_services};
use crate::cluster::api::follow::Pace;
use crate::cluster::api::{Requests, Scope};
use crate::cluster::facts::Kind;

#[test]
fn selectors_are_those_of_kube_proxy() {
    let watch = |kind, version, is_list| {
        let requests = Requests::new(kind, &Scope::Full, "here");
        requests
            .watch(version, is_list, 300)
            .unwrap()
            .uri()
            .to_string()
    };
    assert_eq!(
        watch(Kind::Slice, "7", false),
        "/apis/discovery.k8s.io/v1/endpointslices?&watch=true&timeoutSeconds=300&labelSelector=%21service.kubernetes.io%2Fservice-proxy-name%2C%21service.kubernetes.io%2Fheadless&allowWatchBookmarks=true&resourceVersion=7"
    );
    assert_eq!(
        watch(Kind::Node, "0", true),
        "/api/v1/nodes?&watch=true&timeoutSeconds=300&fieldSelector=metadata.name%3Dhere&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0"
    );
}

#[test]
fn the_sentinel_alone_can_be_watched() {
    let scope = Scope::Sentinel(ObjectName::new("pathproof", "sentinel"));
    let list = |kind| {
        let request = Requests::new(kind, &scope, "here").list(Some("a=b".to_owned()), 1);
        request.unwrap().uri().to_string()
    };
    assert_eq!(
        list(Kind::Service),
        "/api/v1/namespaces/pathproof/services?&fieldSelector=metadata.name%3Dsentinel&limit=250&continue=a%3Db"
    );
    assert_eq!(
        list(Kind::Slice),
        "/apis/discovery.k8s.io/v1/namespaces/pathproof/endpointslices?&labelSelector=kubernetes.io%2Fservice-name%3Dsentinel&limit=50&continue=a%3Db"
    );
}

/// Behind a proxy only the end of a watch shows that the server is gone, so the Node's watch ends soon.
#[tokio::test]
async fn the_watch_of_the_node_is_the_shortest() {
    let script = with_services(vec![Answer::Open(list(1, &[]))]);
    let world = World::at_pace(script, Pace::default()).await;
    for (resource, least) in [("nodes", 60), ("services", 300), ("endpointslices", 300)] {
        let asked = world.server.until_asked(resource, 1).await;
        let seconds = asked[0].split_once("timeoutSeconds=").unwrap().1;
        let seconds: u32 = seconds.split('&').next().unwrap().parse().unwrap();
        assert!((least..=2 * least).contains(&seconds), "{asked:?}");
    }
}

/// Fifty slices of a megabyte each would exceed the agent's memory.
#[tokio::test]
async fn a_large_page_is_requested_in_parts() {
    let page = |item: String, next: &str| {
        let list = format!(
            r#"{{"kind":"List","metadata":{{"resourceVersion":"9","continue":"{next}"}},"items":[{item}]}}"#
        );
        Answer::Status(200, list)
    };
    let script = with_services(vec![
        failure(422, "sendInitialEvents: Forbidden"),
        Answer::Status(200, " ".repeat(5_000)),
        page(service(1, "a", 80), "t=1"),
        page(service(2, "b", 80), ""),
        Answer::Open(vec![]),
    ]);
    let mut world = World::new(script).await;
    world.until(|world| world.services() == ["a", "b"]).await;
    let asked = world.server.asked("services");
    let ends = ["&limit=250", "&limit=62", "&limit=62&continue=t%3D1"];
    for (asked, end) in asked[1..].iter().zip(ends) {
        assert!(asked.ends_with(end), "{asked}");
    }
}
