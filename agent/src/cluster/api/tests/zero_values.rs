//! Go marshals unset times, lists and objects as null, and an API server may pass them on. No such value
//! may make an object unreadable: its last good version would stay in use for ever.

use std::collections::BTreeSet;

use pathproof_shared::listed;
use rstest::rstest;
use serde_json::{Value, json};

use super::objects::convert;
use crate::cluster::facts::Kind;

const TIME: &str = "2026-11-21T12:00:00Z";

fn metadata(name: &str) -> Value {
    json!({
        "name": name, "namespace": "shop", "uid": "u", "resourceVersion": "7", "generation": 1,
        "generateName": "x", "selfLink": "x", "creationTimestamp": TIME,
        "deletionTimestamp": TIME, "deletionGracePeriodSeconds": 30,
        "labels": {"kubernetes.io/service-name": "web"}, "annotations": {"a": "b"}, "finalizers": ["a/b"],
        "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u",
            "controller": true, "blockOwnerDeletion": true}],
        "managedFields": [{"manager": "m", "operation": "Update", "apiVersion": "v1",
            "time": TIME, "fieldsType": "FieldsV1", "fieldsV1": {"f:spec": {}},
            "subresource": "status"}],
    })
}

fn condition() -> Value {
    json!({"type": "Ready", "status": "True", "reason": "r", "message": "m", "observedGeneration": 1,
        "lastHeartbeatTime": TIME, "lastTransitionTime": TIME,
        "lastProbeTime": TIME})
}

fn node() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Node", "metadata": metadata("here"),
        "spec": {
            "podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"], "providerID": "p",
            "unschedulable": true, "externalID": "x",
            "taints": [{"key": "k", "value": "v", "effect": "NoSchedule", "timeAdded": TIME}],
            "configSource": {"configMap": {"name": "n", "namespace": "n", "kubeletConfigKey": "k", "uid": "u"}},
        },
        "status": {
            "phase": "Running", "addresses": [{"type": "InternalIP", "address": "192.0.2.1"}],
            "conditions": [condition()], "capacity": {"cpu": "4"}, "allocatable": {"cpu": "4"},
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {"machineID": "m", "systemUUID": "s", "bootID": "b", "kernelVersion": "6.1",
                "osImage": "o", "containerRuntimeVersion": "c", "kubeletVersion": "v1.36.0",
                "kubeProxyVersion": "", "operatingSystem": "linux", "architecture": "amd64",
                "swap": {"capacity": 1}},
            "images": [{"names": ["n"], "sizeBytes": 1}],
            "volumesInUse": ["v"], "volumesAttached": [{"name": "n", "devicePath": "/dev/x"}],
            "config": {"error": "e", "active": {"configMap": {"name": "n"}}},
            "runtimeHandlers": [{"name": "r", "features": {"userNamespaces": true}}],
            "features": {"supplementalGroupsPolicy": true}, "declaredFeatures": ["f"],
        },
    })
}

fn service() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata("web"),
        "spec": {
            "type": "LoadBalancer", "clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"],
            "externalIPs": ["192.0.2.7"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack",
            "ports": [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080, "nodePort": 30080,
                "appProtocol": "http"}],
            "selector": {"app": "web"}, "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 10}},
            "loadBalancerIP": "192.0.2.9", "loadBalancerClass": "c", "loadBalancerSourceRanges": ["0.0.0.0/0"],
            "allocateLoadBalancerNodePorts": true, "externalName": "x", "externalTrafficPolicy": "Local",
            "internalTrafficPolicy": "Cluster", "healthCheckNodePort": 30081,
            "publishNotReadyAddresses": true, "trafficDistribution": "PreferClose",
        },
        "status": {
            "conditions": [condition()],
            "loadBalancer": {"ingress": [{"ip": "192.0.2.9", "hostname": "h", "ipMode": "VIP",
                "ports": [{"port": 80, "protocol": "TCP", "error": "e"}]}]},
        },
    })
}

fn slice() -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": metadata("web-1"),
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"], "nodeName": "here", "hostname": "h", "zone": "z",
            "conditions": {"ready": true, "serving": true, "terminating": true},
            "hints": {"forZones": [{"name": "z"}], "forNodes": [{"name": "n"}]},
            "targetRef": {"apiVersion": "v1", "kind": "Pod", "name": "p", "namespace": "n", "uid": "u",
                "resourceVersion": "1", "fieldPath": "f"}}],
        "ports": [{"name": "http", "port": 80, "protocol": "TCP", "appProtocol": "http"}],
    })
}

fn pod() -> Value {
    let state = || {
        json!({"waiting": {"reason": "r", "message": "m"}, "running": {"startedAt": TIME},
        "terminated": {"exitCode": 1, "signal": 1, "reason": "r", "message": "m", "containerID": "c",
            "startedAt": TIME, "finishedAt": TIME}})
    };
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": metadata("agent-1"),
        "spec": {
            "containers": [{"name": "c", "image": "i", "command": ["c"], "args": ["a"],
                "ports": [{"name": "p", "containerPort": 80, "hostPort": 80, "protocol": "TCP"}],
                "env": [{"name": "e", "value": "v", "valueFrom": {"fieldRef": {"fieldPath": "f"}}}],
                "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}},
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "livenessProbe": {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 1}}],
            "volumes": [{"name": "v", "hostPath": {"path": "/"}, "projected": {"sources": [
                {"serviceAccountToken": {"path": "t"}}]}}],
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "e", "tolerationSeconds": 1}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
                {"nodeSelectorTerms": [{"matchFields": [{"key": "k", "operator": "In", "values": ["v"]}]}]}}},
            "nodeName": "here", "hostNetwork": true, "securityContext": {"runAsUser": 0},
            "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "w"}],
        },
        "status": {
            "phase": "Running", "conditions": [condition()], "hostIP": "192.0.2.1", "podIP": "192.0.2.1",
            "hostIPs": [{"ip": "192.0.2.1"}], "podIPs": [{"ip": "192.0.2.1"}],
            "startTime": TIME, "qosClass": "Burstable",
            "containerStatuses": [{"name": "c", "image": "i", "imageID": "i", "containerID": "c",
                "ready": true, "started": true, "restartCount": 1, "state": state(), "lastState": state(),
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "resources": {"limits": {"cpu": "1"}}, "allocatedResources": {"cpu": "1"}}],
        },
    })
}

/// Fields that are maps in Go. The values in these maps are never null.
const MAPS: [&str; 8] = [
    "labels",
    "annotations",
    "selector",
    "capacity",
    "allocatable",
    "limits",
    "requests",
    "allocatedResources",
];

/// Every field in a value, as a JSON pointer.
fn fields(value: &Value, at: &str, found: &mut Vec<String>) {
    let is_map = MAPS.iter().any(|map| at.ends_with(&format!("/{map}")));
    match value {
        Value::Object(all) if !is_map => {
            for (key, inner) in all {
                let at = format!("{at}/{key}");
                fields(inner, &at, found);
                found.push(at);
            }
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(index, inner)| fields(inner, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}

/// Go's zero value for a field.
fn zero(value: &Value) -> Value {
    match value {
        Value::Null => Value::Null,
        Value::Bool(_) => json!(false),
        Value::Number(_) => json!(0),
        Value::String(text) if text == TIME => json!("0001-01-01T00:00:00Z"),
        Value::String(_) => json!(""),
        Value::Array(_) => json!([]),
        Value::Object(_) => json!({}),
    }
}

/// The fields that make `read` fail if they are null or zero.
fn refused(whole: &Value, read: impl Fn(&Value) -> Result<(), String>) -> BTreeSet<String> {
    read(whole).expect("the whole object is valid");
    let mut all = Vec::new();
    fields(whole, "", &mut all);
    assert!(all.len() > 25, "{all:?}");
    let fails = |at: &String| {
        let field = whole.pointer(at).expect("a field");
        [Value::Null, zero(field)].into_iter().any(|with| {
            let mut changed = whole.clone();
            *changed.pointer_mut(at).expect("a field") = with;
            read(&changed).is_err()
        })
    };
    all.into_iter().filter(fails).collect()
}

/// Fields without which the API server refuses every object.
const NEEDED: [&str; 2] = ["/metadata", "/metadata/name"];
/// Fields that the types of whole objects need in addition.
const TYPE: [&str; 2] = ["/apiVersion", "/kind"];

#[rstest]
#[case(Kind::Node, node(), &TYPE)]
#[case(Kind::Service, service(), &["/spec/ports/0/port", "/status/loadBalancer/ingress/0/ipMode"])]
#[case(Kind::Slice, slice(), &["/addressType"])]
fn a_null_or_zero_field_is_read(#[case] kind: Kind, #[case] whole: Value, #[case] needed: &[&str]) {
    let wrong = refused(&whole, |value| convert(kind, value).map(drop));
    let needed = NEEDED.iter().chain(needed).map(ToString::to_string);
    assert_eq!(wrong, needed.collect());
}

/// In the lists that kubectl prints, one object must not hide all others.
#[rstest]
#[case(node(), |list: &[u8]| listed::nodes(list).map(drop))]
#[case(pod(), |list: &[u8]| listed::pods(list).map(drop))]
fn a_null_or_zero_field_is_read_in_a_list(
    #[case] whole: Value,
    #[case] read: fn(&[u8]) -> serde_json::Result<()>,
) {
    let list = |value: &Value| json!({"items": [value]}).to_string();
    let wrong = refused(&whole, |value| {
        read(list(value).as_bytes()).map_err(|error| error.to_string())
    });
    assert_eq!(wrong, TYPE.iter().map(ToString::to_string).collect());
}
