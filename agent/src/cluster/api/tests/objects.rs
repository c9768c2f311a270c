//! Tests of objects as an API server serves them.

use proptest::prelude::*;
use rstest::rstest;
use serde_json::{Value, json};

use crate::cluster::api::wire::object;
use crate::cluster::convert::Converter;
use crate::cluster::facts::{Kind, ObjectFacts};
use crate::cluster::store::Event;

pub(super) fn convert(kind: Kind, value: &Value) -> Result<Option<ObjectFacts>, String> {
    let raw = serde_json::value::to_raw_value(value).unwrap();
    match object(kind, &raw).0 {
        Event::There(Ok(object)) => {
            let facts = Converter::new("here").facts(object);
            facts.map_err(|error| error.to_string())
        }
        Event::There(Err(unreadable)) => Err(unreadable.error),
        other => panic!("{other:?}"),
    }
}

fn slice(address_type: &str, endpoints: Value, ports: Value) -> Value {
    json!({
        "metadata": {
            "name": "web-1", "namespace": "shop", "resourceVersion": "7",
            "labels": {"kubernetes.io/service-name": "web"},
            "managedFields": [{"manager": "x", "fieldsV1": {"f:ports": {}}}],
        },
        "addressType": address_type, "endpoints": endpoints, "ports": ports,
    })
}

#[test]
fn a_slice_as_it_is_served() {
    let endpoints = json!([
        {"addresses": ["10.0.0.1"], "conditions": {"ready": true, "serving": true, "terminating": false},
         "nodeName": "here", "zone": "a", "hints": {"forZones": [{"name": "a"}]},
         "targetRef": {"kind": "Pod", "name": "p", "uid": "u"}},
        {"addresses": ["10.0.0.2"], "conditions": {"ready": false, "serving": true, "terminating": true}},
        {"addresses": []},
        {"addresses": null},
        {},
    ]);
    let ports = json!([{"name": "", "port": 80, "protocol": "TCP"}, {"port": 80}, {"port": null}]);
    let facts = convert(Kind::Slice, &slice("IPv4", endpoints, ports));
    let Ok(Some(ObjectFacts::Slice(facts))) = facts else {
        panic!("{facts:?}");
    };
    assert_eq!(facts.endpoints.len(), 2);
    assert!(facts.endpoints[0].local && !facts.endpoints[1].ready);
    // The API server refuses duplicate ports; here they are harmless.
    assert_eq!(facts.ports.len(), 2);
}

/// Kubernetes' conformance tests create such a Service, and the API server accepts it.
#[test]
fn a_service_with_a_condition_whose_time_is_null() {
    let service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"clusterIP": "10.96.0.9", "ports": [{"port": 80, "protocol": "TCP"}]},
        "status": {
            "loadBalancer": {"ingress": [{"ip": "192.0.2.9"}]},
            "conditions": [{"type": "StatusPatched", "status": "True", "reason": "r", "message": "m",
                "lastTransitionTime": null}],
        },
    });
    let facts = convert(Kind::Service, &service);
    let Ok(Some(ObjectFacts::Service(facts))) = facts else {
        panic!("{facts:?}");
    };
    assert_eq!(facts.load_balancer_ips.len(), 1);
}

#[test]
fn a_slice_of_a_thousand_endpoints() {
    let endpoints: Vec<Value> = (0..1000)
        .map(|n| json!({"addresses": [format!("10.0.{}.{}", n / 250, n % 250)]}))
        .collect();
    let facts = convert(
        Kind::Slice,
        &slice("IPv4", json!(endpoints), json!([{"port": 1}])),
    );
    let Ok(Some(ObjectFacts::Slice(facts))) = facts else {
        panic!("{facts:?}");
    };
    assert_eq!(facts.endpoints.len(), 1000);
}

#[rstest]
#[case::mapped("IPv6", json!([{"addresses": ["::ffff:10.0.0.1"]}]), "addressType")]
#[case::unknown_type("IPv5", json!([]), "IPv4, IPv6 or FQDN is wanted")]
#[case::no_type("", json!([]), "IPv4, IPv6 or FQDN is wanted")]
#[case::other_family("IPv6", json!([{"addresses": ["10.0.0.1"]}]), "addressType")]
#[case::no_address("IPv4", json!([{"addresses": [""]}]), "must be an IP address")]
#[case::not_a_list("IPv4", json!("none"), "invalid type")]
fn odd_slices_are_named(#[case] address_type: &str, #[case] endpoints: Value, #[case] why: &str) {
    let said = convert(Kind::Slice, &slice(address_type, endpoints, json!([]))).unwrap_err();
    assert!(said.contains(why), "{said}");
}

#[rstest]
#[case(json!({"metadata": {"name": "here", "uid": "u"}}))]
#[case(json!({"metadata": {"name": "here"}, "status": {"addresses": []}}))]
#[case(json!({"metadata": {"name": "here"}, "spec": {}, "status": {"addresses": null, "images": [{}]}}))]
fn a_node_without_addresses_is_a_node(#[case] value: Value) {
    let facts = convert(Kind::Node, &value);
    let Ok(Some(ObjectFacts::Node(facts))) = facts else {
        panic!("{facts:?}");
    };
    assert!(facts.addresses.is_empty() && !facts.deleting);
}

#[rstest]
#[case::unknown(json!([{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": "Unknown", "lastHeartbeatTime": null}]), true)]
#[case::ready(json!([{"type": "Ready", "status": "True"}]), false)]
#[case::told_not_ready(json!([{"type": "Ready", "status": "False"}]), false)]
#[case::of_another(json!([{"type": "ServiceDatapathReady", "status": "Unknown"}]), false)]
#[case::odd(json!([{}, {"type": null}]), false)]
#[case::none(json!(null), false)]
fn a_node_whose_kubelet_stopped_reporting(#[case] conditions: Value, #[case] kubelet_silent: bool) {
    let facts = convert(
        Kind::Node,
        &json!({"metadata": {"name": "here"}, "status": {"conditions": conditions}}),
    );
    let Ok(Some(ObjectFacts::Node(facts))) = facts else {
        panic!("{facts:?}");
    };
    assert_eq!(facts.kubelet_silent, kubelet_silent);
}

#[rstest]
#[case::no_plugin(json!({"type": "Ready", "status": "False", "reason": "KubeletNotReady", "message":
    "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network \
     plugin returns error: cni plugin not initialized"}),
    Some("container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network \
          plugin returns error: cni plugin not initialized"))]
#[case::another_trouble(json!({"type": "Ready", "status": "False", "message": "PLEG is not healthy"}), None)]
#[case::kubelet_is_gone(json!({"type": "Ready", "status": "Unknown", "message": "NetworkPluginNotReady"}), None)]
#[case::ready_again(json!({"type": "Ready", "status": "True", "message": "kubelet is posting ready status"}), None)]
#[case::no_route(json!({"type": "NetworkUnavailable", "status": "True", "reason": "NoRouteCreated"}),
    Some("NoRouteCreated"))]
#[case::calico_is_down(json!({"type": "NetworkUnavailable", "status": "True", "message": "Calico is\u{1b} down"}),
    Some("Calico is down"))]
#[case::available(json!({"type": "NetworkUnavailable", "status": "False", "message": "Flannel is running"}), None)]
#[case::nothing_said(json!({"type": "NetworkUnavailable", "status": "True"}), None)]
fn a_node_whose_pods_have_no_network(#[case] condition: Value, #[case] said: Option<&str>) {
    let node = json!({"metadata": {"name": "here"}, "status": {"conditions": [condition]}});
    let facts = convert(Kind::Node, &node);
    let Ok(Some(ObjectFacts::Node(facts))) = facts else {
        panic!("{facts:?}");
    };
    assert_eq!(facts.network.as_deref(), said);
}

#[test]
fn a_deletion_counts() {
    let metadata = json!({"name": "here", "deletionTimestamp": "2026-11-21T12:00:00Z"});
    let facts = convert(Kind::Node, &json!({ "metadata": metadata }));
    let Ok(Some(ObjectFacts::Node(facts))) = facts else {
        panic!("{facts:?}");
    };
    assert!(facts.deleting);
}

/// JSON of any kind, mostly under keys that are read.
fn anything() -> impl Strategy<Value = Value> {
    let text = prop_oneof![
        Just("10.0.0.1"),
        Just("::ffff:1.2.3.4"),
        Just("fd00::1"),
        Just("None"),
        Just(""),
        Just("IPv4"),
        Just("IPv6"),
        Just("FQDN"),
        Just("here"),
        Just("TCP"),
        Just("x"),
        Just("ExternalName"),
        Just("10.0.0.0/99"),
        Just("Local"),
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0..70_000_i64).prop_map(Value::from),
        text.prop_map(Value::from),
    ];
    leaf.prop_recursive(6, 64, 6, |inner| {
        let key = prop_oneof![
            Just("metadata"),
            Just("name"),
            Just("namespace"),
            Just("uid"),
            Just("labels"),
            Just("annotations"),
            Just("deletionTimestamp"),
            Just("resourceVersion"),
            Just("spec"),
            Just("status"),
            Just("addresses"),
            Just("address"),
            Just("type"),
            Just("taints"),
            Just("key"),
            Just("podCIDRs"),
            Just("clusterIP"),
            Just("clusterIPs"),
            Just("ports"),
            Just("port"),
            Just("nodePort"),
            Just("protocol"),
            Just("addressType"),
            Just("endpoints"),
            Just("conditions"),
            Just("ready"),
            Just("nodeName"),
            Just("kubernetes.io/service-name"),
            Just("loadBalancer"),
            Just("ingress"),
            Just("ip"),
        ];
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((key, inner), 0..8).prop_map(|pairs| {
                Value::Object(pairs.into_iter().map(|(k, v)| (k.to_owned(), v)).collect())
            }),
        ]
    })
}

proptest! {
    #[test]
    fn nothing_panics(value in anything()) {
        for kind in Kind::ALL {
            let _ = convert(kind, &value);
        }
    }
}

/// Anybody who may edit one namespace may fill them with a hundred thousand small maps.
#[rstest]
#[case(Kind::Service)]
#[case(Kind::Slice)]
fn managed_fields_are_not_kept(#[case] kind: Kind) {
    let value = slice("IPv4", json!([]), json!([]));
    let raw = serde_json::value::to_raw_value(&value).unwrap();
    let (event, version) = object(kind, &raw);
    assert_eq!(version.as_deref(), Some("7"));
    let Event::There(Ok(object)) = event else {
        panic!("{event:?}");
    };
    let metadata = object.metadata();
    assert_eq!(metadata.managed_fields, None);
    assert_eq!(metadata.labels.as_ref().map(|labels| labels.len()), Some(1));
    assert_eq!(kind.title(metadata), format!("{} shop/web-1", kind.name()));
}
