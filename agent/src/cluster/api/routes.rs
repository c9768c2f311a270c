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

use hyper::{Method, Request, Response, Uri};
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
/// The first lesson is tried again after this.
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
    /// once, and so does one that breaks, where the request changes nothing.
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
                    attempt.failed = false;
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

    /// Asks for the addresses.
    async fn ask(&self) -> Result<Vec<SocketAddr>, kube::Error> {
        let request = Request::get(SLICES).body(Body::empty());
        let response = self.send(request.map_err(kube::Error::HttpError)?).await?;
        let body = response.into_body().collect_bytes().await?;
        Ok(objects::addresses(&body))
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
    let mut learned = false;
    loop {
        let Some(routes) = routes.upgrade() else {
            return;
        };
        match tokio::time::timeout(REPLY, routes.ask()).await {
            Ok(Ok(addresses)) if !addresses.is_empty() => match routes.adopt(&addresses) {
                Ok(()) => learned = true,
                Err(error) => tracing::warn!(%error, "the API server's addresses cannot be used"),
            },
            // Whoever watches says that the server is away.
            _ => {}
        }
        drop(routes);
        let pause = if learned { RELEARN } else { UNLEARNED };
        tokio::time::sleep(pause + Duration::from_millis(jitter(pause.as_millis() as u64 / 2)))
            .await;
    }
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
