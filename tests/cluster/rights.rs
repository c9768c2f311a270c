//! The API server confirms that the roles of deploy/base grant what the programs need and nothing else.

use http::Method;
use node_tests::cluster::base::SLICE;
use node_tests::cluster::{Api, ControlPlane, Servers, base, create, install, node_token, refused};
use node_tests::manifests::Manifests;
use node_tests::prelude::*;

use crate::scene::{NODE, PATIENCE};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/pathproof/leases";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

pub(crate) fn code(answer: anyhow::Result<Value>) -> u16 {
    match answer {
        Ok(_) => 200,
        Err(error) => refused(&error).unwrap_or_else(|| panic!("no answer: {error:#}")),
    }
}

fn get(api: &Api, path: &str) -> u16 {
    code(api.get(path))
}

/// Writes the status of a Node, as the agent does to publish its condition.
fn status(api: &Api, node: &str, status: &Value) -> u16 {
    code(api.patch_node_status(node, status))
}

fn condition(kind: &str) -> Value {
    json!({ "conditions": [{
        "type": kind, "status": "True", "reason": "Test", "message": "test",
        "lastHeartbeatTime": "2026-01-01T00:00:00Z", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }] })
}

/// An Event about a Node, as the agent's recorder writes it.
pub(crate) fn event(namespace: &str, node: &str) -> Value {
    json!({
        "apiVersion": "events.k8s.io/v1", "kind": "Event",
        "metadata": { "generateName": "test-", "namespace": namespace },
        "regarding": { "apiVersion": "v1", "kind": "Node", "name": node, "uid": node },
        "reason": "Test", "action": "Test", "note": "test", "type": "Normal",
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "pathproof", "reportingInstance": node,
    })
}

#[test]
fn roles_give_what_is_needed_and_nothing_else() {
    needs!(skip::root());
    needs!(skip::tool(Mode::Nftables.tool()));
    let programs = needs!(Servers::needed());
    let world = World::builder().build().expect("build a world");
    let control = ControlPlane::start(&world, &programs).expect("a control plane");
    let admin = control.api().expect("a client");
    let manifests = Manifests::write(&world, Vec::new()).expect("write manifests");
    install(&admin, &manifests).expect("deploy/base and a Node");
    let other = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node-2" } });
    create(&admin, other).expect("another Node");
    let bearer = |account| {
        let token = node_token(&admin, account, NODE_NAME).expect("a token");
        control.api_as(&token).expect("a client")
    };
    let strange = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": { "name": "strange", "namespace": "pathproof" }, "endpoints": [],
    });
    create(&admin, strange).expect("another slice");
    let label = json!({ "metadata": { "labels": { "app.kubernetes.io/name": "pathproof" } } });
    admin
        .patch(SLICE, &label)
        .expect("an administrator's label");
    agent(&bearer(base::AGENT));
    events(&bearer(base::AGENT), &admin);
    rotator(&bearer(base::ROTATOR));
}

fn agent(api: &Api) {
    for path in [
        NODE,
        "/api/v1/nodes?fieldSelector=metadata.name%3Dnode-1",
        "/api/v1/services",
        "/apis/discovery.k8s.io/v1/endpointslices",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices",
        "/apis/discovery.k8s.io/v1/namespaces/pathproof/endpointslices",
    ] {
        assert_eq!(get(api, path), 200, "{path}");
    }
    for path in [
        SLICE,
        "/api/v1/namespaces/pathproof/services/pathproof-sentinel",
        "/api/v1/secrets",
        "/api/v1/pods",
        "/api/v1/namespaces/pathproof/configmaps",
        "/apis/events.k8s.io/v1/namespaces/default/events",
        "/apis/coordination.k8s.io/v1/namespaces/pathproof/leases",
    ] {
        assert_eq!(get(api, path), 403, "{path}");
    }
    let own = condition("ServiceDatapathReady");
    // Wait, because a policy is in force only a moment after its creation.
    let denied = until(PATIENCE, || {
        (status(api, "node-2", &own) == 403).then_some(())
    });
    assert!(denied.is_some(), "another node's status was written");
    assert_eq!(status(api, "node-1", &own), 200);
    assert_eq!(status(api, "node-1", &condition("Ready")), 403);
    let address = json!({ "addresses": [{ "type": "InternalIP", "address": "192.0.2.99" }] });
    assert_eq!(status(api, "node-1", &address), 403);
    assert_eq!(
        status(api, "node-1", &json!({ "capacity": { "cpu": "7" } })),
        403
    );
    let info = json!({ "nodeInfo": { "kubeletVersion": "v0.0.0" } });
    assert_eq!(status(api, "node-1", &info), 403);
    for field in ["labels", "annotations"] {
        let key = "node-role.kubernetes.io/control-plane";
        let changed = json!({ "metadata": { field: { key: "true" } }, "status": own });
        let path = format!("{NODE}/status");
        let written = api.request(Method::PATCH, &path, STRATEGIC, &changed);
        assert_eq!(code(written), 403, "{field}");
    }
    // The agent may still write its own condition. Conditions of others are kept.
    assert_eq!(status(api, "node-1", &own), 200);
    let taint = json!({ "spec": { "unschedulable": true } });
    assert_eq!(code(api.patch(NODE, &taint)), 403);
    assert_eq!(code(api.delete(NODE)), 403);
    assert_eq!(
        code(api.patch(SLICE, &json!({ "metadata": { "labels": { "x": "y" } } }))),
        403
    );
}

/// The agent may write Events about its own node and in its own name, and no others.
fn events(api: &Api, admin: &Api) {
    let path = |namespace: &str| format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
    let post = |api: &Api, event: &Value| api.post(&path("default"), event);
    let other = event("default", "node-2");
    let denied = until(PATIENCE, || (code(post(api, &other)) == 403).then_some(()));
    assert!(denied.is_some(), "an Event about another node was written");
    let mut own = event("default", "node-1");
    let written = post(api, &own).expect("an Event about its own node");
    for (field, value) in [
        ("/regarding/uid", "node-2"),
        ("/regarding/kind", "Pod"),
        ("/reportingController", "kubelet"),
        ("/reportingInstance", "node-2"),
    ] {
        let before = own.pointer_mut(field).expect("a field");
        let before = std::mem::replace(before, json!(value));
        assert_eq!(code(post(api, &own)), 403, "{field} {value}");
        *own.pointer_mut(field).expect("a field") = before;
    }
    assert_eq!(
        code(api.post(&path("kube-system"), &event("kube-system", "node-1"))),
        403
    );
    // The agent updates an Event to count a repetition.
    let again = json!({ "series": {
        "count": 2, "lastObservedTime": "2026-01-01T00:01:00.000000Z",
    } });
    let mut of_kubelet = own;
    of_kubelet["reportingController"] = json!("kubelet");
    let theirs = [&other, &of_kubelet].map(|event| post(admin, event).expect("an Event"));
    for (event, expected) in [(&written, 200), (&theirs[0], 403), (&theirs[1], 403)] {
        let name = event["metadata"]["name"].as_str().expect("a name");
        let path = format!("{}/{name}", path("default"));
        assert_eq!(code(api.patch(&path, &again)), expected, "{event}");
    }
}

fn rotator(api: &Api) {
    let slices = "/apis/discovery.k8s.io/v1/namespaces/pathproof/endpointslices";
    let own = slices;
    assert_eq!(get(api, slices), 200);
    assert_eq!(get(api, SLICE), 403);
    assert_eq!(get(api, "/api/v1/nodes?limit=1"), 200);
    let count = json!({ "metadata": { "annotations": { "pathproof.io/fleet": "{}" } } });
    assert_eq!(code(api.patch(SLICE, &count)), 200);
    let label = json!({ "metadata": { "labels": { "x": "y" } } });
    let strange = format!("{slices}/strange");
    assert_eq!(code(api.patch(&strange, &label)), 403);
    assert_eq!(code(api.delete(&strange)), 403);
    leases(api);
    // The slice with the addresses of the API servers.
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let of_servers = format!("{slices}?labelSelector=kubernetes.io%2Fservice-name%3Dkubernetes");
    assert_eq!(get(api, &of_servers), 200);
    let others = "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices";
    assert_eq!(get(api, others), 403);
    let kubernetes = &format!("{slices}/kubernetes");
    assert_eq!(code(api.patch(kubernetes, &label)), 403);
    for path in ["/api/v1/services", NODE] {
        assert_eq!(get(api, path), 403, "{path}");
    }
    let service = "/api/v1/namespaces/pathproof/services/pathproof-sentinel";
    assert_eq!(get(api, service), 200);
    assert_eq!(code(api.delete(service)), 403);
    own_slices(api, own);
    for path in ["/api/v1/namespaces/pathproof/secrets", LEASES] {
        assert_eq!(get(api, path), 403, "{path}");
    }
    assert_eq!(
        status(api, "node-1", &condition("ServiceDatapathReady")),
        403
    );
}

/// The rotator may write and recreate the sentinel's two slices, but only for its Service, with its addresses,
/// and in the fields that it maintains.
fn own_slices(api: &Api, path: &str) {
    let slice = |name: &str, service: &str, address: &str| {
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "name": name, "namespace": "pathproof",
                "labels": {
                    "kubernetes.io/service-name": service,
                    "endpointslice.kubernetes.io/managed-by": "pathproof",
                },
            },
            "ports": [{ "name": "tcp", "port": 20002 }],
            "endpoints": [{ "addresses": [address] }],
        })
    };
    let (name, service) = ("pathproof-sentinel-ipv4", "pathproof-sentinel");
    let strange = slice("stranger", service, "198.18.0.2");
    let denied = until(PATIENCE, || {
        (code(api.post(path, &strange)) == 403).then_some(())
    });
    assert!(denied.is_some(), "a slice of another name was made");
    let port = json!({ "ports": [{ "name": "tcp", "port": 20002, "protocol": "TCP" }] });
    assert_eq!(code(api.patch(SLICE, &port)), 200);
    let labels = |labels: Value| json!({ "metadata": { "labels": labels } });
    let node = json!([{ "apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "u" }]);
    for change in [
        labels(json!({ "kubernetes.io/service-name": "web" })),
        labels(json!({ "endpointslice.kubernetes.io/managed-by": "web" })),
        labels(json!({ "service.kubernetes.io/headless": "" })),
        labels(json!({ "app.kubernetes.io/name": null })),
        labels(json!({ "team.kubernetes.io/x": "y" })),
        labels(Value::Null),
        json!({ "metadata": { "annotations": { "x.k8s.io/y": "z" } } }),
        json!({ "metadata": { "finalizers": ["example.com/x"] } }),
        json!({ "metadata": { "ownerReferences": node } }),
        json!({ "endpoints": [{ "addresses": ["192.0.2.20"] }] }),
        json!({ "endpoints": [{ "addresses": ["198.18.0.2"], "nodeName": "node-1" }] }),
        json!({ "ports": [{ "name": "tcp", "port": 80 }] }),
        json!({ "ports": [{ "name": "tcp", "port": 20002, "appProtocol": "http" }] }),
    ] {
        assert_eq!(code(api.patch(SLICE, &change)), 403, "{change}");
    }
    // A webhook may stamp what the rotator writes.
    let stamped = json!({ "metadata": { "labels": { "team": "x" }, "annotations": { "y": "z" } } });
    assert_eq!(code(api.patch(SLICE, &stamped)), 200);
    for list in ["endpoints", "ports"] {
        for empty in [Value::Null, json!([])] {
            assert_eq!(
                code(api.patch(SLICE, &json!({ list: empty }))),
                200,
                "{list}"
            );
        }
    }
    assert_eq!(code(api.delete(SLICE)), 200);
    for (claim, expected) in [
        (slice(name, "web", "198.18.0.2"), 403),
        (slice(name, service, "192.0.2.20"), 403),
        (slice(name, service, "198.18.0.2"), 200),
    ] {
        assert_eq!(code(api.post(path, &claim)), expected, "{claim}");
    }
}

/// The rotator may hold and release its own Lease. It may neither read nor write another one.
fn leases(api: &Api) {
    let lease = |name: &str| {
        json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": { "name": name, "namespace": "pathproof" },
            "spec": { "holderIdentity": "test" },
        })
    };
    let put =
        |path: &str, lease: &Value| code(api.request(Method::PUT, path, "application/json", lease));
    assert_eq!(code(api.post(LEASES, &lease("pathproof-rotator"))), 200);
    let own = format!("{LEASES}/pathproof-rotator");
    let mut held = api.get(&own).expect("the lease");
    held["spec"]["holderIdentity"] = json!("other");
    assert_eq!(put(&own, &held), 200);
    let denied = until(PATIENCE, || {
        (code(api.post(LEASES, &lease("other"))) == 403).then_some(())
    });
    assert!(denied.is_some(), "another Lease was made");
    let other = format!("{LEASES}/other");
    assert_eq!(get(api, &other), 403);
    assert_eq!(put(&other, &lease("other")), 403);
}
