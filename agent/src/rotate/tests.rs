//! The rotator against an API server in this process: as much of one as it asks for.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::*;
use crate::config::{ApiArgs, ProcessArgs};
use crate::lifecycle;
use agent_core::cluster::ObjectName;

const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/pathproof/endpointslices";
const SERVICE: &str = "/api/v1/namespaces/pathproof/services/pathproof-sentinel";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/pathproof/leases/pathproof-rotator";
const HOUR: Duration = Duration::from_secs(3_600);

/// Objects by their path.
#[derive(Default)]
struct Store {
    objects: BTreeMap<String, Value>,
    version: u64,
    writes: Vec<String>,
    /// Nodes that are left out of a list of one.
    more_nodes: i64,
    away: bool,
    /// Somebody else writes to a slice just before each patch arrives.
    races: bool,
}

impl Store {
    fn put(&mut self, path: &str, mut object: Value) -> Value {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        self.objects.insert(path.to_owned(), object.clone());
        object
    }

    fn answer(&mut self, method: &Method, path: &str, body: &[u8]) -> Result<Value, u16> {
        if self.away {
            return Err(503);
        }
        let body: Value = serde_json::from_slice(body).unwrap_or_default();
        if *method != Method::GET {
            self.writes.push(format!("{method} {path}"));
        }
        if self.races && *method == Method::PATCH {
            let touched = self.objects[path].clone();
            self.put(path, touched);
        }
        let found = self.objects.get(path).cloned();
        let version = |of: &Value| of["metadata"]["resourceVersion"].clone();
        let is_stale = |asked: &Value, found: &Value| !asked.is_null() && *asked != version(found);
        match (method.as_str(), found) {
            ("GET", None) if path == "/api/v1/nodes" => Ok(json!({
                "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                "metadata": { "remainingItemCount": self.more_nodes }, "items": [],
            })),
            ("GET", None) if path == SLICES => {
                let of = self
                    .objects
                    .iter()
                    .filter(|(key, _)| key.starts_with(SLICES));
                let items: Vec<_> = of.map(|(_, object)| object.clone()).collect();
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
                for key in ["endpoints", "ports"] {
                    found[key] = body[key].clone();
                }
                found["metadata"]["labels"] = body["metadata"]["labels"].clone();
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
struct Server {
    store: Arc<Mutex<Store>>,
    url: String,
}

async fn handle(State(server): State<Server>, method: Method, uri: Uri, body: Bytes) -> Response {
    let (status, answer) = match server.store().answer(&method, uri.path(), &body) {
        Ok(object) => (200, object),
        Err(code) => {
            let reason = match code {
                404 => "NotFound",
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
    /// With the sentinel's Service, and no slices.
    async fn start() -> Self {
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

    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    async fn rotator(&self, host: &str, interval: Duration) -> Rotator {
        let access = ApiAccess {
            server: Some(self.url.clone()),
            ..ApiAccess::default()
        };
        let config = RotateConfig {
            service: ObjectName::new("pathproof", "pathproof-sentinel"),
            echo: ["198.18.0.2".parse().unwrap(), "2001:2::2".parse().unwrap()],
            lease: "pathproof-rotator".to_owned(),
            host: host.to_owned(),
            interval,
            api: ApiArgs::default(),
            process: ProcessArgs::default(),
        };
        Rotator::new(&client(&access).await.unwrap(), config)
    }

    fn slice(&self, family: &str) -> Option<Value> {
        let path = format!("{SLICES}/pathproof-sentinel-{family}");
        self.store().objects.get(&path).cloned()
    }

    /// Ports of both slices.
    fn generations(&self) -> Vec<u64> {
        let slices = ["ipv4", "ipv6"].map(|family| self.slice(family).unwrap_or_default());
        let ports = slices
            .iter()
            .flat_map(|slice| slice["ports"].as_array().cloned());
        let ports = ports.flatten();
        ports.map(|port| port["port"].as_u64().unwrap()).collect()
    }

    fn writes_to_slices(&self) -> usize {
        let store = self.store();
        store
            .writes
            .iter()
            .filter(|write| write.contains("endpointslices"))
            .count()
    }
}

#[tokio::test]
async fn slices_are_made_and_move_together() {
    let server = Server::start().await;
    let mut rotator = server.rotator("a", Duration::ZERO).await;
    rotator.look().await;
    assert_eq!(server.generations(), [20_001; 4]);
    let slice = server.slice("ipv6").unwrap();
    assert_eq!(slice["addressType"], "IPv6");
    assert_eq!(slice["endpoints"][0]["addresses"], json!(["2001:2::2"]));
    let labels = json!({
        "kubernetes.io/service-name": "pathproof-sentinel",
        "endpointslice.kubernetes.io/managed-by": "pathproof",
    });
    assert_eq!(slice["metadata"]["labels"], labels);
    let ports = json!([
        { "name": "tcp", "port": 20_001, "protocol": "TCP" },
        { "name": "udp", "port": 20_001, "protocol": "UDP" },
    ]);
    assert_eq!(slice["ports"], ports);
    for generation in 20_002..20_005 {
        rotator.look().await;
        assert_eq!(server.generations(), [generation; 4]);
    }
    assert_eq!(rotator.said, None);
}

#[tokio::test]
async fn nodes_are_counted_and_slow_it_down() {
    let server = Server::start().await;
    server.store().more_nodes = 180_000;
    let mut rotator = server.rotator("a", Duration::ZERO).await;
    rotator.look().await;
    rotator.look().await;
    assert_eq!(rotator.counted.map(|(nodes, _)| nodes), Some(180_000));
    assert_eq!(
        server.generations(),
        [20_001; 4],
        "an hour from one to the next"
    );
}

#[tokio::test]
async fn what_somebody_edits_or_deletes_comes_back() {
    let server = Server::start().await;
    let mut rotator = server.rotator("a", HOUR).await;
    rotator.look().await;
    let before = server.slice("ipv4").unwrap();
    let mut edited = before.clone();
    edited["endpoints"] = json!([{ "addresses": ["10.1.1.1"] }]);
    server
        .store()
        .put(&format!("{SLICES}/pathproof-sentinel-ipv4"), edited);
    server
        .store()
        .objects
        .remove(&format!("{SLICES}/pathproof-sentinel-ipv6"));
    rotator.look().await;
    assert_eq!(
        server.slice("ipv4").unwrap()["endpoints"],
        before["endpoints"]
    );
    assert_eq!(server.generations(), [20_001; 4]);
    let writes = server.writes_to_slices();
    rotator.look().await;
    assert_eq!(
        server.writes_to_slices(),
        writes,
        "nothing to do, nothing written"
    );
}

#[tokio::test]
async fn one_leads_and_the_other_follows_at_once() {
    let server = Server::start().await;
    let mut first = server.rotator("a", Duration::ZERO).await;
    let mut second = server.rotator("b", Duration::ZERO).await;
    first.look().await;
    let writes = server.store().writes.len();
    second.look().await;
    assert_eq!(
        server.store().writes.len(),
        writes,
        "one that does not lead writes nothing"
    );
    let holder = || server.store().objects[LEASE]["spec"]["holderIdentity"].clone();
    assert!(holder().as_str().unwrap().starts_with("a_"));
    first.give_up().await;
    assert_eq!(holder(), Value::Null);
    second.look().await;
    assert!(holder().as_str().unwrap().starts_with("b_"));
    assert_eq!(server.store().objects[LEASE]["spec"]["leaseTransitions"], 1);
    assert_eq!(server.generations(), [20_002; 4]);
    first.look().await;
    assert_eq!(
        server.generations(),
        [20_002; 4],
        "and the first one follows now"
    );
}

#[tokio::test]
async fn whoever_wrote_in_between_wins() {
    let server = Server::start().await;
    let mut rotator = server.rotator("a", Duration::ZERO).await;
    rotator.look().await;
    server.store().races = true;
    rotator.look().await;
    assert_eq!(
        server.generations(),
        [20_001; 4],
        "a write on what was not read is refused"
    );
    server.store().races = false;
    rotator.look().await;
    assert_eq!(server.generations(), [20_002; 4]);
}

#[tokio::test]
async fn an_api_that_is_away_is_survived() {
    let server = Server::start().await;
    let mut rotator = server.rotator("a", Duration::ZERO).await;
    rotator.look().await;
    server.store().away = true;
    for _ in 0..3 {
        rotator.look().await;
        assert_eq!(
            rotator.said.as_deref(),
            Some("the API server is not available: ServiceUnavailable")
        );
    }
    server.store().away = false;
    rotator.look().await;
    assert_eq!(rotator.said, None);
    assert_eq!(server.generations().len(), 4);
}

#[tokio::test]
async fn an_outage_is_logged_once_with_its_root_cause() {
    let (mut log, write) = std::io::pipe().unwrap();
    let lines = tracing_subscriber::fmt()
        .with_env_filter(lifecycle::DEFAULT_FILTER)
        .with_ansi(false)
        .with_writer(Arc::new(write));
    let logging = tracing::subscriber::set_default(lines.finish());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server {
        url: format!("http://{}", listener.local_addr().unwrap()),
        ..Server::default()
    };
    drop(listener);
    let mut rotator = server.rotator("a", HOUR).await;
    for _ in 0..3 {
        rotator.look().await;
    }
    drop(logging);
    let mut text = [0; 16_384];
    let length = log.read(&mut text).unwrap();
    let text = str::from_utf8(&text[..length]).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(
        text.contains("the API server is not available: Connection refused"),
        "{text}"
    );
}

#[tokio::test]
async fn without_the_service_nothing_is_written() {
    let server = Server::start().await;
    server.store().objects.remove(SERVICE);
    let mut rotator = server.rotator("a", Duration::ZERO).await;
    rotator.look().await;
    assert_eq!(server.writes_to_slices(), 0);
    assert!(
        rotator
            .said
            .unwrap()
            .contains("Service pathproof/pathproof-sentinel is not in")
    );
}

#[tokio::test]
async fn a_stranger_is_named() {
    let server = Server::start().await;
    let stranger = json!({
        "metadata": { "name": "other", "labels": { "kubernetes.io/service-name": "pathproof-sentinel" } },
        "addressType": "IPv4", "endpoints": [], "ports": [],
    });
    server.store().put(&format!("{SLICES}/other"), stranger);
    let mut rotator = server.rotator("a", HOUR).await;
    rotator.look().await;
    assert!(rotator.said.unwrap().contains("EndpointSlice other"));
    assert_eq!(
        server.generations(),
        [20_001; 4],
        "and ours are looked after all the same"
    );
}
