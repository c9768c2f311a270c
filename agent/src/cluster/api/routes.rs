//! Ways to the API server from within a cluster.
//!
//! The ClusterIP of the `kubernetes` Service works only while the datapath does, which is what the
//! agent judges: it is the first introduction and the last resort. After it has answered once, the
//! addresses behind it are learned from the Service's EndpointSlices, connected to directly under
//! the TLS name that every API server's certificate has, kept in a file for the next start, and
//! learned anew now and then.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use hyper::{Method, Request, Response, StatusCode, Uri};
use kube::client::Body;
use kube::{Client, Config};
use serde::{Deserialize, Serialize};
use tower::Service;
use tower::util::service_fn;

use super::client::{ClientError, direct};
use super::{jitter, objects};

/// Every API server's certificate has it.
const SERVER_NAME: &str = "kubernetes.default.svc";
/// Where the API servers write their own addresses.
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dkubernetes";
/// The file in the state folder.
const FILE: &str = "api-servers.json";
/// API servers come and go this slowly.
const RELEARN: Duration = Duration::from_secs(600);
/// The first lesson is tried again after this, and ever more slowly up to the above: who may not
/// ask will not be allowed to in a moment.
const UNLEARNED: Duration = Duration::from_secs(5);
/// No answer within this is none.
const REPLY: Duration = Duration::from_secs(10);

/// One way.
#[derive(Clone)]
struct Route {
    /// `None` for the ClusterIP.
    address: Option<SocketAddr>,
    client: Client,
}

/// All of them; the last is the ClusterIP.
struct Known {
    routes: Vec<Route>,
    /// The one that worked last.
    current: usize,
}

/// Ways to the API server.
pub(super) struct Routes {
    introduction: Config,
    file: Option<PathBuf>,
    known: Mutex<Known>,
}

#[derive(Default, Serialize, Deserialize)]
struct Stored {
    addresses: Vec<SocketAddr>,
}

impl Routes {
    /// Beginning with what an earlier agent learned.
    pub(super) fn new(introduction: Config, state_dir: Option<&Path>) -> Result<Self, ClientError> {
        let file = state_dir.map(|dir| dir.join(FILE));
        let remembered = file.as_deref().map(recall).unwrap_or_default();
        let routes = routes(&introduction, &remembered)?;
        Ok(Self {
            introduction,
            file,
            known: Mutex::new(Known { routes, current: 0 }),
        })
    }

    /// What a client sends its requests through. Learning goes on as long as it lives.
    pub(super) fn service(
        self: Arc<Self>,
    ) -> impl Service<
        Request<Body>,
        Response = Response<Body>,
        Error = kube::Error,
        Future = impl Future<Output = Result<Response<Body>, kube::Error>> + Send + 'static,
    > + Send
    + 'static {
        tokio::spawn(learn(Arc::downgrade(&self)));
        service_fn(move |request| {
            let routes = Arc::clone(&self);
            async move { routes.send(request).await }
        })
    }

    /// Sends by the way that worked last. One that cannot be connected gives way to the next at
    /// once, and so does one that breaks, where the request changes nothing. One that answers with
    /// an error of its own gives way for the next request: that server may be sick, and not another.
    async fn send(&self, request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        let (parts, body) = request.into_parts();
        let mut body = Some(body);
        let ways = self.ways();
        let last = ways.len() - 1;
        for (at, route) in ways.into_iter().enumerate() {
            let copy = match (&body, at) {
                (Some(whole), at) if at < last => whole.try_clone().or_else(|| body.take()),
                _ => body.take(),
            };
            let mut attempt = Attempt {
                routes: self,
                address: route.address,
                failed: true,
            };
            let request = Request::from_parts(parts.clone(), copy.unwrap_or_else(Body::empty));
            match route.client.send(request).await {
                Ok(response) => {
                    // Too Many Requests is no such error: whoever moves on then only adds to it.
                    attempt.failed = response.status().is_server_error();
                    return Ok(response);
                }
                Err(error) => {
                    let again = parts.method == Method::GET || is_connect(&error);
                    if at == last || body.is_none() || !again {
                        return Err(error);
                    }
                }
            }
        }
        // There is always the ClusterIP, so that this is never reached.
        Err(kube::Error::Service("no address of the API server".into()))
    }

    /// All ways, beginning with the one that worked last.
    fn ways(&self) -> Vec<Route> {
        let known = self.lock();
        let (before, from) = known.routes.split_at(known.current);
        from.iter().chain(before).cloned().collect()
    }

    fn failed(&self, address: Option<SocketAddr>) {
        let mut known = self.lock();
        if known.routes[known.current].address == address {
            known.current = (known.current + 1) % known.routes.len();
        }
    }

    fn worked(&self, address: Option<SocketAddr>) {
        let mut known = self.lock();
        let found = known.routes.iter().position(|of| of.address == address);
        known.current = found.unwrap_or(0);
    }

    /// Takes addresses over, where they are others than before. Those behind the ClusterIP come
    /// first again in any case.
    fn adopt(&self, addresses: &[SocketAddr]) -> Result<(), ClientError> {
        let mut now: Vec<SocketAddr> = self
            .lock()
            .routes
            .iter()
            .filter_map(|of| of.address)
            .collect();
        let mut told = addresses.to_vec();
        now.sort_unstable();
        told.sort_unstable();
        told.dedup();
        if now == told {
            let mut known = self.lock();
            if known.routes[known.current].address.is_none() {
                known.current = 0;
            }
            return Ok(());
        }
        // Not every node asks the first one.
        let turn = jitter(told.len() as u64);
        told.rotate_left(usize::try_from(turn).unwrap_or(0));
        let routes = routes(&self.introduction, &told)?;
        *self.lock() = Known { routes, current: 0 };
        tracing::info!(addresses = ?told, "the API server is connected to directly from now on");
        if let Some(file) = &self.file
            && let Err(error) = keep(file, &told)
        {
            tracing::warn!(path = %file.display(), %error, "the API server's addresses cannot be kept: a start while Services do not work will not reach it");
        }
        Ok(())
    }

    /// Asks for the addresses; else the status that was the answer.
    async fn ask(&self) -> Result<Result<Vec<SocketAddr>, StatusCode>, kube::Error> {
        let request = Request::get(SLICES).body(Body::empty());
        let response = self.send(request.map_err(kube::Error::HttpError)?).await?;
        if !response.status().is_success() {
            return Ok(Err(response.status()));
        }
        let body = response.into_body().collect_bytes().await?;
        Ok(Ok(objects::addresses(&body)))
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request under way. Where it is given up, its way is no good either.
struct Attempt<'a> {
    routes: &'a Routes,
    address: Option<SocketAddr>,
    failed: bool,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if self.failed {
            self.routes.failed(self.address);
        } else {
            self.routes.worked(self.address);
        }
    }
}

async fn learn(routes: Weak<Routes>) {
    let mut pause = UNLEARNED;
    let mut refused = None;
    loop {
        let Some(routes) = routes.upgrade() else {
            return;
        };
        match tokio::time::timeout(REPLY, routes.ask()).await {
            Ok(Ok(Ok(addresses))) if !addresses.is_empty() => match routes.adopt(&addresses) {
                Ok(()) => (pause, refused) = (RELEARN, None),
                Err(error) => tracing::warn!(%error, "the API server's addresses cannot be used"),
            },
            Ok(Ok(Err(status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)))) => {
                let before = refused.replace(status);
                if before.is_none() {
                    tracing::warn!(%status, "the API server's addresses may not be read: grant list on endpointslices in the namespace default; until then it is reached by the ClusterIP alone");
                }
            }
            // Whoever watches says that the server is away.
            _ => {}
        }
        drop(routes);
        tokio::time::sleep(pause + Duration::from_millis(jitter(pause.as_millis() as u64 / 2)))
            .await;
        pause = longer(pause);
    }
}

/// The pause after a pause in which nothing was learned.
fn longer(pause: Duration) -> Duration {
    (pause * 2).min(RELEARN)
}

/// The ways by these addresses, and by the ClusterIP.
fn routes(introduction: &Config, addresses: &[SocketAddr]) -> Result<Vec<Route>, ClientError> {
    let mut routes = Vec::with_capacity(addresses.len() + 1);
    for address in addresses {
        let Ok(url) = format!("https://{address}").parse::<Uri>() else {
            continue;
        };
        let mut config = introduction.clone();
        config.cluster_url = url;
        config.tls_server_name = Some(SERVER_NAME.to_owned());
        routes.push(Route {
            address: Some(*address),
            client: direct(config)?,
        });
    }
    routes.push(Route {
        address: None,
        client: direct(introduction.clone())?,
    });
    Ok(routes)
}

/// Whether nothing was sent.
fn is_connect(error: &kube::Error) -> bool {
    let kube::Error::Service(error) = error else {
        return false;
    };
    error
        .downcast_ref::<hyper_util::client::legacy::Error>()
        .is_some_and(hyper_util::client::legacy::Error::is_connect)
}

/// What was kept; anything unreadable is as good as nothing.
fn recall(file: &Path) -> Vec<SocketAddr> {
    let text = fs::read(file).unwrap_or_default();
    serde_json::from_slice::<Stored>(&text)
        .unwrap_or_default()
        .addresses
}

/// Keeps it, whole or not at all.
fn keep(file: &Path, addresses: &[SocketAddr]) -> io::Result<()> {
    if let Some(dir) = file.parent() {
        fs::create_dir_all(dir)?;
    }
    let stored = Stored {
        addresses: addresses.to_vec(),
    };
    let fresh = file.with_extension("tmp");
    fs::write(&fresh, serde_json::to_vec(&stored)?)?;
    fs::rename(fresh, file)
}

/// Removes what was kept in that folder.
///
/// # Errors
/// The file is there and stays.
pub fn forget(state_dir: &Path) -> io::Result<()> {
    match fs::remove_file(state_dir.join(FILE)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::cluster::api::tests::server::{Answer, Script, Server};

    /// A folder whose agent remembers an address where nobody listens.
    fn remembering() -> (tempfile::TempDir, SocketAddr) {
        let folder = tempfile::tempdir().unwrap();
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = nobody.local_addr().unwrap();
        keep(&folder.path().join(FILE), &[address]).unwrap();
        (folder, address)
    }

    fn introduction(server: &Server) -> Config {
        let mut config = Config::new(server.url().parse().unwrap());
        // No certificates of this machine are needed.
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
        let tried = |routes: &Routes| routes.ways().first().unwrap().address;
        assert_eq!(tried(&routes), Some(dead));
        assert_eq!(routes.send(get()).await.unwrap().status(), 200);
        // And is not tried first again.
        assert_eq!(tried(&routes), None);
        assert_eq!(server.asked("nodes").len(), 1);
    }

    /// Ways by the addresses of these servers, without TLS, and by the ClusterIP of the last.
    fn between(servers: &[&Server]) -> Routes {
        let routes = Routes::new(introduction(servers[servers.len() - 1]), None).unwrap();
        let way = |server: &&Server| Route {
            address: Some(server.address),
            client: direct(introduction(server)).unwrap(),
        };
        let ways: Vec<Route> = servers.iter().map(way).collect();
        routes.lock().routes.splice(0..0, ways);
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
        assert_eq!(routes.ways()[0].address, Some(address));
        assert_eq!(routes.send(get()).await.unwrap().status(), 200);
        // And the one that answers is kept.
        assert_eq!(routes.ways()[0].address, Some(address));
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
        let learned = routes.ask().await.unwrap().unwrap();
        routes.adopt(&learned).unwrap();
        let ways: Vec<_> = routes.ways().iter().map(|way| way.address).collect();
        assert_eq!(ways, [Some("192.0.2.1:6443".parse().unwrap()), None]);
        assert_eq!(recall(&folder.path().join(FILE)), learned);
        forget(folder.path()).unwrap();
        assert_eq!(recall(&folder.path().join(FILE)), []);
    }

    #[tokio::test]
    async fn who_may_not_ask_is_told_so_and_asks_ever_more_seldom() {
        let answer = Answer::Status(403, String::new());
        let script = Script::default().with("endpointslices", vec![answer]);
        let server = Server::start(script).await;
        let routes = Routes::new(introduction(&server), None).unwrap();
        let learned = routes.ask().await.unwrap();
        assert_eq!(learned, Err(StatusCode::FORBIDDEN));
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
    async fn a_request_that_is_given_up_leaves_its_way() {
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
}
