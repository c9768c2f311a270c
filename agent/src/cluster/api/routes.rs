//! Routes to the API server from within a cluster.
//!
//! The agent prefers the API servers' own addresses to the ClusterIP of the `kubernetes` Service. The
//! ClusterIP works only while this node's datapath works, and the agent must reach the API server when the
//! datapath is broken. So the ClusterIP is used for the first contact, and when all other addresses fail.
//!
//! The agent periodically learns the addresses from the Service's EndpointSlices. It connects to them
//! directly, and expects the TLS name that every API server's certificate has. A file keeps the addresses for
//! the next start.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, io};

use hyper::{Method, Request, Response};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointPort, EndpointSlice};
use kube::api::ListParams;
use kube::client::Body;
use kube::{Api, Client, Config};
use tokio::time::{sleep, timeout};
use tower::util::service_fn;

use super::client::{ClientError, direct};
use super::jitter;
use crate::files;

/// Name in every API server's certificate.
const SERVER_NAME: &str = "kubernetes.default.svc";
/// Selects the slices in which the API servers publish their addresses.
const SLICES: &str = "kubernetes.io/service-name=kubernetes";
const FILE: &str = "api-servers.json";
/// Prefix of temporary files that become [`FILE`].
const PART: &str = "api-servers.";
/// Interval for learning the addresses again. It is long, because API servers rarely change.
const RELEARN: Duration = Duration::from_secs(600);
/// First pause between tries while no address was learned. It doubles up to `RELEARN`, because permissions
/// rarely change within seconds.
const UNLEARNED: Duration = Duration::from_secs(5);
const REPLY: Duration = Duration::from_secs(10);

#[derive(Clone)]
struct Route {
    /// `None` for the ClusterIP.
    address: Option<SocketAddr>,
    client: Client,
}

pub(super) struct Routes {
    introduction: Config,
    file: Option<PathBuf>,
    /// Routes in the order of tries. The list is rotated so that the last working route is first.
    known: Mutex<VecDeque<Route>>,
}

impl Routes {
    /// Starts with the addresses that a previous agent learned.
    pub(super) fn new(introduction: Config, state_dir: Option<&Path>) -> Result<Self, ClientError> {
        let file = state_dir.map(|dir| dir.join(FILE));
        if let Some(dir) = state_dir {
            files::sweep(dir, PART);
        }
        let remembered = file.as_deref().map(recall).unwrap_or_default();
        let known = routes(&introduction, &remembered)?;
        Ok(Self {
            introduction,
            file,
            known: Mutex::new(known),
        })
    }

    /// A client that sends its requests by these routes.
    pub(super) fn client(self: &Arc<Self>, namespace: String) -> Client {
        let routes = Arc::clone(self);
        let service = service_fn(move |request| {
            let routes = Arc::clone(&routes);
            async move { routes.send(request).await }
        });
        Client::new(service, namespace)
    }

    /// Sends a request by the route that worked last. If the connection fails, the next route is tried at
    /// once. A GET that breaks off later is retried too. A server error is returned, but the next request
    /// uses another route, because only that server may be unhealthy.
    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        let (parts, body) = request.into_parts();
        // This value is always replaced below: the ClusterIP is always a route, and a body in memory can be
        // cloned.
        let mut failure = kube::Error::Service("the request cannot be sent".into());
        let ways = self.lock().clone();
        for route in ways {
            let Some(body) = body.try_clone() else { break };
            let mut attempt = Attempt {
                routes: self,
                address: route.address,
                failed: true,
            };
            let request = Request::from_parts(parts.clone(), body);
            match route.client.send(request).await {
                Ok(response) => {
                    // Too Many Requests (429) is no failure: requests to another server would only add load.
                    attempt.failed = response.status().is_server_error();
                    return Ok(response);
                }
                Err(error) => failure = error,
            }
            if parts.method != Method::GET && !is_connect(&failure) {
                break;
            }
        }
        Err(failure)
    }

    /// Uses the learned addresses if they differ from the known ones. In either case the ClusterIP is no
    /// longer the first route.
    fn adopt(&self, mut learned: Vec<SocketAddr>) -> Result<(), ClientError> {
        learned.sort_unstable();
        learned.dedup();
        // Begin at a random address, so that the nodes spread over the servers.
        let turn = jitter(learned.len() as u64);
        learned.rotate_left(usize::try_from(turn).unwrap_or(0));
        let mut known = self.lock();
        let addresses = known.iter().filter_map(|route| route.address);
        if !is_same(addresses, &learned) {
            *known = routes(&self.introduction, &learned)?;
            tracing::info!(addresses = ?learned, "connecting to the API server directly from now on");
        } else if known.front().is_some_and(|route| route.address.is_none()) {
            known.rotate_left(1);
        }
        drop(known);
        self.save(&learned);
        Ok(())
    }

    /// Saves the addresses for the next start, unless the file has them. The file is compared each time,
    /// because an earlier write may have failed.
    fn save(&self, addresses: &[SocketAddr]) {
        let Some(file) = &self.file else { return };
        if !is_same(recall(file).into_iter(), addresses)
            && let Err(error) = keep(file, addresses)
        {
            tracing::warn!(path = %file.display(), %error, "the API server's addresses cannot be \
                                                            saved: an agent that starts while \
                                                            Services do not work cannot reach it");
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Route>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request by one route. If it fails or is dropped before its answer, the route counts as failed.
struct Attempt<'a> {
    routes: &'a Routes,
    address: Option<SocketAddr>,
    failed: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        let mut known = self.routes.lock();
        match known.iter().position(|route| route.address == self.address) {
            Some(0) if self.failed => known.rotate_left(1),
            Some(at) if !self.failed => known.rotate_left(at),
            _ => {}
        }
    }
}

/// Learns the addresses through `client` at intervals, until the runtime ends.
pub(super) async fn learn(routes: Arc<Routes>, client: Client) {
    let mut pause = UNLEARNED;
    let mut is_refused = false;
    loop {
        match timeout(REPLY, addresses(&client)).await {
            Ok(Ok(learned)) if !learned.is_empty() => match routes.adopt(learned) {
                Ok(()) => (pause, is_refused) = (RELEARN, false),
                Err(error) => tracing::warn!(%error, "the API server's addresses cannot be used"),
            },
            Ok(Err(kube::Error::Api(status)))
                // A rejected token (401) is not logged here: the watches report it.
                if status.code == 403 && !std::mem::replace(&mut is_refused, true) =>
            {
                tracing::warn!(
                    status = status.code,
                    "the API server's addresses cannot be read: grant list on endpointslices in \
                     the namespace default; until then the agent uses its cluster IP"
                );
            }
            // An unreachable server is not logged here: the watches report it.
            _ => {}
        }
        sleep(pause + Duration::from_millis(jitter(pause.as_millis() as u64 / 2))).await;
        pause = longer(pause);
    }
}

/// The next pause if nothing was learned.
fn longer(pause: Duration) -> Duration {
    (pause * 2).min(RELEARN)
}

async fn addresses(client: &Client) -> kube::Result<Vec<SocketAddr>> {
    let slices: Api<EndpointSlice> = Api::namespaced(client.clone(), "default");
    let found = slices.list(&ListParams::default().labels(SLICES)).await?;
    Ok(found.items.iter().flat_map(ready).collect())
}

/// Ready addresses of a slice, with the port named https, or else the first port.
fn ready(slice: &EndpointSlice) -> Vec<SocketAddr> {
    let ports = slice.ports.as_deref().unwrap_or_default();
    let is_https = |port: &&EndpointPort| port.name.as_deref() == Some("https");
    let port = ports.iter().find(is_https).or(ports.first());
    let number = port.and_then(|port| u16::try_from(port.port?).ok());
    let Some(port) = number.filter(|number| *number != 0) else {
        return Vec::new();
    };
    let is_ready = |endpoint: &&Endpoint| {
        let conditions = endpoint.conditions.as_ref();
        conditions.and_then(|conditions| conditions.ready) != Some(false)
    };
    let endpoints = slice.endpoints.iter().flatten().filter(is_ready);
    let texts = endpoints.flat_map(|endpoint| &endpoint.addresses);
    let ips = texts.filter_map(|text| text.parse().ok());
    ips.map(|ip| SocketAddr::new(ip, port)).collect()
}

/// Routes by these addresses, and by the ClusterIP.
fn routes(introduction: &Config, addresses: &[SocketAddr]) -> Result<VecDeque<Route>, ClientError> {
    let route = |address: Option<SocketAddr>| {
        let mut config = introduction.clone();
        if let Some(address) = address
            && let Ok(url) = format!("https://{address}").parse()
        {
            config.cluster_url = url;
            config.tls_server_name = Some(SERVER_NAME.to_owned());
        }
        let client = direct(config)?;
        Ok(Route { address, client })
    };
    let addresses = addresses.iter().copied().map(Some);
    addresses.chain([None]).map(route).collect()
}

/// Whether the connection failed, so that nothing was sent.
fn is_connect(error: &kube::Error) -> bool {
    let kube::Error::Service(error) = error else {
        return false;
    };
    error
        .downcast_ref::<hyper_util::client::legacy::Error>()
        .is_some_and(hyper_util::client::legacy::Error::is_connect)
}

/// Whether these are the same addresses, in any order.
fn is_same(these: impl Iterator<Item = SocketAddr>, those: &[SocketAddr]) -> bool {
    these.collect::<BTreeSet<_>>() == those.iter().copied().collect()
}

/// The saved addresses; none if the file is unreadable.
fn recall(file: &Path) -> Vec<SocketAddr> {
    let text = fs::read(file).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn keep(file: &Path, addresses: &[SocketAddr]) -> io::Result<()> {
    let bytes = serde_json::to_vec(addresses)?;
    files::write(file, &bytes, false)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::cluster::api::tests::server::{Answer, Script, Server};

    /// A folder with a saved address at which nothing listens.
    fn remembering() -> (tempfile::TempDir, SocketAddr) {
        let folder = tempfile::tempdir().unwrap();
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = nobody.local_addr().unwrap();
        keep(&folder.path().join(FILE), &[address]).unwrap();
        (folder, address)
    }

    fn introduction(server: &Server) -> Config {
        let mut config = Config::new(server.url().parse().unwrap());
        // This machine's certificates are not needed.
        config.root_cert = Some(Vec::new());
        config
    }

    fn get() -> Request<Body> {
        Request::get("/api/v1/nodes").body(Body::empty()).unwrap()
    }

    #[tokio::test]
    async fn a_dead_address_gives_way_to_the_cluster_ip() {
        let server = Server::start(Script::default()).await;
        let (folder, dead) = remembering();
        let routes = Routes::new(introduction(&server), Some(folder.path())).unwrap();
        let tried = |routes: &Routes| routes.lock()[0].address;
        assert_eq!(tried(&routes), Some(dead));
        assert_eq!(routes.send(get()).await.unwrap().status(), 200);
        // The dead address is no longer the first route.
        assert_eq!(tried(&routes), None);
        assert_eq!(server.asked("nodes").len(), 1);
    }

    /// Routes to these servers by their addresses, without TLS. The last server is also the ClusterIP.
    fn between(servers: &[&Server]) -> Routes {
        let routes = Routes::new(introduction(servers[servers.len() - 1]), None).unwrap();
        let way = |server: &&Server| Route {
            address: Some(server.address),
            client: direct(introduction(server)).unwrap(),
        };
        for server in servers.iter().rev() {
            routes.lock().push_front(way(server));
        }
        routes
    }

    #[rstest]
    #[case::sick(500, true)]
    #[case::starting(503, true)]
    #[case::busy(429, false)]
    #[case::strict(403, false)]
    #[tokio::test]
    async fn a_server_in_trouble_gives_way_to_another(#[case] status: u16, #[case] moves: bool) {
        let answer = Answer::Status(status, String::new());
        let first = Server::start(Script::default().with("nodes", vec![answer])).await;
        let second = Server::start(Script::default()).await;
        let routes = between(&[&first, &second]);
        assert_eq!(routes.send(get()).await.unwrap().status(), status);
        let address = if moves { second.address } else { first.address };
        assert_eq!(routes.lock()[0].address, Some(address));
        assert_eq!(routes.send(get()).await.unwrap().status(), 200);
        // The server that answers stays the first route.
        assert_eq!(routes.lock()[0].address, Some(address));
    }

    #[tokio::test]
    async fn addresses_are_learned_and_kept() {
        let slices =
            r#"{"items":[{"endpoints":[{"addresses":["192.0.2.1"]}],"ports":[{"port":6443}]}]}"#;
        let answer = Answer::Status(200, slices.to_owned());
        let script = Script::default().with("endpointslices", vec![answer]);
        let server = Server::start(script).await;
        let folder = tempfile::tempdir().unwrap();
        let routes = Routes::new(introduction(&server), Some(folder.path())).unwrap();
        let routes = Arc::new(routes);
        let learned = addresses(&routes.client("default".to_owned()))
            .await
            .unwrap();
        routes.adopt(learned.clone()).unwrap();
        let ways: Vec<_> = routes.lock().iter().map(|way| way.address).collect();
        assert_eq!(ways, [Some("192.0.2.1:6443".parse().unwrap()), None]);
        let file = folder.path().join(FILE);
        assert_eq!(recall(&file), learned);
        // After a failed write, the next `adopt` saves the addresses.
        fs::remove_file(&file).unwrap();
        fs::create_dir_all(file.join("x")).unwrap();
        routes.adopt(learned.clone()).unwrap();
        fs::remove_dir_all(&file).unwrap();
        routes.adopt(learned.clone()).unwrap();
        assert_eq!(recall(&file), learned);
        // A killed agent may have left its temporary file.
        fs::write(files::part(&file), "").unwrap();
        files::remove_all(folder.path()).unwrap();
        assert!(!folder.path().exists());
    }

    #[tokio::test]
    async fn a_forbidden_request_is_retried_ever_less_often() {
        let answer = Answer::Status(403, String::new());
        let script = Script::default().with("endpointslices", vec![answer]);
        let server = Server::start(script).await;
        let routes = Arc::new(Routes::new(introduction(&server), None).unwrap());
        let error = addresses(&routes.client("default".to_owned()))
            .await
            .unwrap_err();
        assert!(matches!(error, kube::Error::Api(status) if status.code == 403));
        let mut pause = UNLEARNED;
        let mut asked = 0;
        let mut day = Duration::from_secs(86_400);
        while day > pause {
            day -= pause;
            pause = longer(pause);
            asked += 1;
        }
        assert!(asked < 160, "{asked}");
    }

    #[tokio::test]
    async fn an_abandoned_request_changes_the_route() {
        let server = Server::start(Script::default()).await;
        let mute = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let folder = tempfile::tempdir().unwrap();
        let address = mute.local_addr().unwrap();
        keep(&folder.path().join(FILE), &[address]).unwrap();
        let routes = Routes::new(introduction(&server), Some(folder.path())).unwrap();
        let short = Duration::from_millis(200);
        assert!(
            tokio::time::timeout(short, routes.send(get()))
                .await
                .is_err()
        );
        assert_eq!(routes.send(get()).await.unwrap().status(), 200);
    }

    #[test]
    fn the_api_servers_own_addresses() {
        let list = serde_json::json!({"items": [
            {"addressType": "IPv4", "endpoints": [
                {"addresses": ["10.0.0.1"], "conditions": {"ready": true}},
                {"addresses": ["10.0.0.2"], "conditions": {"ready": false}},
                {"addresses": ["nonsense"]},
             ], "ports": [{"name": "other", "port": 1}, {"name": "https", "port": 6443}]},
            {"addressType": "IPv6", "endpoints": [{"addresses": ["fd00::1"]}], "ports": [{"port": 443}]},
            {"endpoints": [{"addresses": ["10.0.0.3"]}], "ports": [{"port": 70000}]},
        ]});
        let slices: Vec<EndpointSlice> = serde_json::from_value(list["items"].clone()).unwrap();
        let found: Vec<SocketAddr> = slices.iter().flat_map(ready).collect();
        let wanted: Vec<SocketAddr> = ["10.0.0.1:6443", "[fd00::1]:443"]
            .map(|text| text.parse().unwrap())
            .to_vec();
        assert_eq!(found, wanted);
    }
}
