//! The part of an API server that the rotator uses.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use pathproof_facts::cluster::ObjectName;
use pathproof_facts::fleet_report::FleetReport;
use serde_json::{Value, json};

use crate::config::{ApiArgs, ProcessArgs, SentinelPlace};
use crate::rotate::*;

pub(super) const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/pathproof/endpointslices";
pub(super) const SERVICE: &str = "/api/v1/namespaces/pathproof/services/pathproof-sentinel";
pub(super) const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/pathproof/leases/pathproof-rotator";
pub(super) const HOUR: Duration = Duration::from_secs(3_600);

/// Objects by path, and the faults to inject.
#[derive(Default)]
pub(super) struct Store {
    pub(super) objects: BTreeMap<String, Value>,
    pub(super) version: u64,
    pub(super) writes: Vec<String>,
    pub(super) nodes: u32,
    /// Nodes whose condition is False.
    pub(super) failing: u32,
    /// JSON merge patch of the first node, unless null.
    pub(super) first: Value,
    /// Further nodes, which have pathproof's label and no condition.
    pub(super) withdrawn: Vec<&'static str>,
    /// Path whose writes fail.
    pub(super) refused: &'static str,
    /// Path whose reads fail.
    pub(super) unreadable: &'static str,
    pub(super) away: bool,
    /// Lists by label return the state before the slices were created.
    pub(super) lists_late: bool,
    /// Another client writes to a slice just before each patch arrives.
    pub(super) races: bool,
}

impl Store {
    pub(super) fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    pub(super) fn answer(
        &mut self,
        method: &Method,
        (path, query): (&str, &str),
        body: &[u8],
    ) -> Result<Value, u16> {
        if self.away {
            return Err(503);
        }
        if *method == Method::GET && path == self.unreadable {
            return Err(403);
        }
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        if *method != Method::GET {
            self.writes.push(format!("{method} {path}"));
            // Every write of a field names its manager, or `kubectl` and Helm report conflicts with "unknown".
            let is_managed = query.contains("fieldManager=pathproof-rotator");
            if path == self.refused || !is_managed && *method != Method::DELETE {
                return Err(422);
            }
        }
        if self.races && *method == Method::PATCH {
            let touched = self.objects[path].clone();
            self.put(path, touched);
        }
        let found = self.objects.get(path).cloned();
        let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
        let is_stale = |asked: &Value, found: &Value| !asked.is_null() && *asked != version(found);
        match (method.as_str(), found) {
            ("GET", None) if path == SLICES => {
                let slices = self.objects.iter().filter(|(key, object)| {
                    match query.split_once("metadata.name%3D") {
                        Some((_, named)) => key.starts_with(SLICES) && key.ends_with(named),
                        None => {
                            key.starts_with(SLICES) && is_of_service(object) && !self.lists_late
                        }
                    }
                });
                let items: Vec<_> = slices.map(|(_, object)| object.clone()).collect();
                Ok(json!({ "metadata": {}, "items": items }))
            }
            ("POST", None) => {
                let name = body["metadata"]["name"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned();
                match self.objects.contains_key(&format!("{path}/{name}")) {
                    true => Err(409),
                    false => Ok(self.put(&format!("{path}/{name}"), body)),
                }
            }
            (_, None) => Err(404),
            ("GET", Some(found)) => Ok(found),
            ("PUT" | "PATCH", Some(found)) if is_stale(&version(&body), &found) => Err(409),
            ("PUT", Some(_)) => Ok(self.put(path, body)),
            ("PATCH", Some(mut found)) => {
                merge(&mut found, &body);
                Ok(self.put(path, found))
            }
            ("DELETE", Some(found)) => {
                if is_stale(&body["preconditions"]["resourceVersion"], &found) {
                    return Err(409);
                }
                self.objects.remove(path);
                Ok(found)
            }
            _ => Err(405),
        }
    }
}

#[derive(Clone, Default)]
pub(super) struct Server {
    pub(super) store: Arc<Mutex<Store>>,
    pub(super) url: String,
}

/// A JSON merge patch (RFC 7386).
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        return *target = patch.clone();
    };
    for (key, value) in fields {
        match (value, target.as_object_mut()) {
            (Value::Null, Some(fields)) => drop(fields.remove(key)),
            _ => merge(&mut target[key], value),
        }
    }
}

fn node(number: u32, fails: bool) -> Value {
    let (status, reason) = match fails {
        true => ("False", "DatapathBrokenLeaked"),
        false => ("True", "DatapathProven"),
    };
    let now = clock::wall().to_string();
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": { "name": format!("node-{number}"), "resourceVersion": "1" },
        "status": { "conditions": [{
            "type": "ServiceDatapathReady", "status": status, "reason": reason,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        }] },
    })
}

fn withdrawn(name: &str) -> Value {
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": { "name": name, "resourceVersion": "1", "labels": { LABEL: VALUE } },
    })
}

/// Whether the slice has the label that the rotator selects by.
fn is_of_service(slice: &Value) -> bool {
    slice["metadata"]["labels"]["kubernetes.io/service-name"] == "pathproof-sentinel"
}

/// A watch of all nodes, which repeats all of them when one changes.
fn watch_nodes(server: Server) -> Response {
    let told = stream::unfold(None, move |before| {
        let server = server.clone();
        async move {
            loop {
                let nodes = server.store().nodes;
                let failing = server.store().failing;
                let gone = server.store().withdrawn.clone();
                if before != Some((nodes, failing)) {
                    let event = |object| json!({ "type": "ADDED", "object": object });
                    let first = server.store().first.clone();
                    let all = (0..nodes).map(|number| {
                        let mut node = node(number, number < failing);
                        if number == 0 && first.is_object() {
                            merge(&mut node, &first);
                        }
                        event(node)
                    });
                    let all = all.chain(gone.into_iter().map(|name| event(withdrawn(name))));
                    let end = json!({ "type": "BOOKMARK", "object": { "metadata": {
                        "resourceVersion": "1", "annotations": { "k8s.io/initial-events-end": "true" },
                    } } });
                    let lines = all.chain([end]).map(|line| format!("{line}\n"));
                    let text: String = lines.collect();
                    return Some((Ok::<_, Infallible>(text), Some((nodes, failing))));
                }
                sleep(Duration::from_millis(5)).await;
            }
        }
    });
    Body::from_stream(told).into_response()
}

async fn handle(State(server): State<Server>, method: Method, uri: Uri, body: Bytes) -> Response {
    if uri.path() == "/api/v1/nodes" {
        return watch_nodes(server);
    }
    let asked = (uri.path(), uri.query().unwrap_or_default());
    let (status, answer) = match server.store().answer(&method, asked, &body) {
        Ok(object) => (200, object),
        Err(code) => {
            let reason = match code {
                404 => "NotFound",
                422 => "Invalid",
                409 => "Conflict",
                _ => "ServiceUnavailable",
            };
            let status = json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure",
                "code": code, "message": reason, "reason": reason,
            });
            (code, status)
        }
    };
    let status = StatusCode::from_u16(status).unwrap();
    (
        status,
        [("content-type", "application/json")],
        answer.to_string(),
    )
        .into_response()
}

impl Server {
    /// Starts with the sentinel's Service and no slices.
    pub(super) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            url: format!("http://{}", listener.local_addr().unwrap()),
            ..Self::default()
        };
        let service = json!({
            "metadata": { "name": "pathproof-sentinel", "namespace": "pathproof" },
            "spec": {
                "clusterIPs": ["10.96.0.9", "fd00:96::9"],
                "ports": [
                    { "name": "tcp", "port": 80, "protocol": "TCP" },
                    { "name": "udp", "port": 80, "protocol": "UDP" },
                ],
            },
        });
        server.store().put(SERVICE, service);
        let router = Router::new().fallback(handle).with_state(server.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        server
    }

    pub(super) fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    pub(super) async fn rotator(&self, host: &str, interval: Duration) -> Rotator {
        let config = RotateConfig {
            sentinel: SentinelPlace {
                service: ObjectName::new("pathproof", "pathproof-sentinel"),
                client: ["198.18.0.1".parse().unwrap(), "2001:2::1".parse().unwrap()],
                echo: ["198.18.0.2".parse().unwrap(), "2001:2::2".parse().unwrap()],
            },
            lease: "pathproof-rotator".to_owned(),
            host: host.to_owned(),
            interval,
            brake_by: vec![Some("pool".into()), None],
            withdraw: Withdraw::Off,
            withdraw_after: Duration::from_secs(60),
            withdraw_share: 20,
            metrics_bind_address: None,
            api: ApiArgs::default(),
            process: ProcessArgs::default(),
        };
        Rotator::new(&client(None, Some(&self.url), None).await.unwrap(), config)
    }

    pub(super) fn slice(&self, family: &str) -> Option<Value> {
        let path = format!("{SLICES}/pathproof-sentinel-{family}");
        self.store().objects.get(&path).cloned()
    }

    /// Ports in both slices.
    pub(super) fn generations(&self) -> Vec<u64> {
        let slices = ["ipv4", "ipv6"].map(|family| self.slice(family).unwrap_or_default());
        let ports = slices
            .iter()
            .flat_map(|slice| slice["ports"].as_array().cloned());
        let ports = ports.flatten();
        ports.map(|port| port["port"].as_u64().unwrap()).collect()
    }

    pub(super) fn writes_to_slices(&self) -> usize {
        let store = self.store();
        store
            .writes
            .iter()
            .filter(|write| write.contains("endpointslices"))
            .count()
    }
}

impl Server {
    /// Runs checks until the first slice has this count; returns the number of writes.
    pub(super) async fn until_counted(&self, rotator: &mut Rotator, expected: &str) -> usize {
        let expected = || {
            let mut expected = FleetReport::parse(expected).unwrap();
            expected.leaving.get_or_insert(0);
            expected
        };
        let before = self.writes_to_slices();
        for _ in 0..1_000 {
            rotator.look().await;
            let slice = self.slice("ipv4").unwrap_or_default();
            let text = &slice["metadata"]["annotations"]["pathproof.io/fleet"];
            let report = text.as_str().and_then(|text| FleetReport::parse(text).ok());
            if report.is_some_and(|report| {
                report
                    == FleetReport {
                        written: report.written,
                        ..expected()
                    }
            }) {
                return self.writes_to_slices() - before;
            }
            sleep(Duration::from_millis(5)).await;
        }
        panic!("not {:?}: {:?}", expected(), self.slice("ipv4"));
    }
}
