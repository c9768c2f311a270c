//! An API server as the source of the view.
//!
//! ```text
//! follow (Node)     ─┐
//! follow (Services) ─┼─ store::Event ─▶ gather (store) ─▶ Update
//! follow (slices)   ─┘
//! ```
//!
//! One task per resource lists and watches (`follow`). One more task (`gather`) puts their events into the
//! `store`, and delivers the resulting changes in batches. The store converts objects to facts, and compares
//! them with the known facts. If the API server is unreachable, a problem is reported, and the last view
//! stays.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use kube::Client;
use kube::api::{ListParams, Request, WatchParams};
use kube::core::request::Error as RequestError;
use pathproof_facts::cluster::{Change, ObjectName};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until, timeout};

use super::facts::Kind;
use super::store::{Event, Store};
use super::{GATHER, QUIET, Update};

mod census;
pub mod client;
mod follow;
mod problems;
mod routes;
#[cfg(feature = "testing")]
mod testing;
#[cfg(test)]
mod tests;
mod wire;

pub use census::{Nodes, follow_nodes};
pub use client::ClientError;
use follow::{Follower, Pace};
pub(crate) use problems::with_advice;
#[cfg(feature = "testing")]
pub use testing::listed;

/// Timeout of one try of an uncached read. It is short, because the pool may have dead idle connections if
/// watches hang. Each try uses up one of them.
const PATIENCE: Duration = Duration::from_millis(200);
/// Number of tries of an uncached read. If all of them time out, the view from the watches is used.
const TRIES: usize = 3;
/// Selectors of kube-proxy 1.36 for Services and EndpointSlices (cmd/kube-proxy/app/server.go).
const SERVED: &str = "!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless";
const DISCOVERY: &str = "/apis/discovery.k8s.io/v1";

/// Part of the cluster that is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This Node, and all Services and EndpointSlices that kube-proxy would serve.
    Full,
    /// This Node, and the sentinel's Service and slices.
    Sentinel(ObjectName),
}

#[derive(Clone, Debug)]
struct Requests {
    kind: Kind,
    path: Request,
    labels: Option<String>,
    fields: Option<String>,
}

impl Requests {
    /// Requests for a resource within the scope.
    fn new(kind: Kind, scope: &Scope, node_name: &str) -> Self {
        let named = |name: &str| Some(format!("metadata.name={name}"));
        let served = || Some(SERVED.to_owned());
        let (path, labels, fields) = match (kind, scope) {
            (Kind::Node, _) => ("/api/v1/nodes".to_owned(), None, named(node_name)),
            (Kind::Service, Scope::Full) => ("/api/v1/services".to_owned(), served(), None),
            (Kind::Slice, Scope::Full) => (format!("{DISCOVERY}/endpointslices"), served(), None),
            (Kind::Service, Scope::Sentinel(service)) => {
                let path = format!("/api/v1/namespaces/{}/services", service.namespace);
                (path, None, named(&service.name))
            }
            (Kind::Slice, Scope::Sentinel(service)) => {
                let path = format!(
                    "{DISCOVERY}/namespaces/{}/endpointslices",
                    service.namespace
                );
                let label = format!("kubernetes.io/service-name={}", service.name);
                (path, Some(label), None)
            }
        };
        Self {
            kind,
            path: Request::new(path),
            labels,
            fields,
        }
    }

    /// Requests for all Nodes.
    fn nodes() -> Self {
        Self {
            fields: None,
            ..Self::new(Kind::Node, &Scope::Full, "")
        }
    }

    /// Request for one page of a list: the first page, or the page `after` a token. `part` divides the usual
    /// number of objects. Pages are small because a whole page is in memory: a slice can have 1,000
    /// endpoints, and a Node takes some 20 kB.
    fn list(
        &self,
        after: Option<String>,
        part: u32,
    ) -> Result<hyper::Request<Vec<u8>>, RequestError> {
        let usual = if self.kind == Kind::Service { 250 } else { 50 };
        let params = ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            limit: Some((usual / part).max(1)),
            continue_token: after,
            ..ListParams::default()
        };
        self.path.list(&params)
    }

    /// Request for changes after a version. With `is_list` the answer begins with the existing objects, in a
    /// state at least as new as the version.
    fn watch(
        &self,
        version: &str,
        is_list: bool,
        seconds: u64,
    ) -> Result<hyper::Request<Vec<u8>>, RequestError> {
        let params = WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            timeout: u32::try_from(seconds).ok(),
            send_initial_events: is_list,
            ..WatchParams::default()
        };
        self.path.watch(&params, version)
    }
}

pub struct ApiServer {
    client: Client,
    node_name: String,
    scope: Scope,
    pace: Pace,
}

impl ApiServer {
    pub fn new(client: Client, node_name: &str, scope: Scope) -> Self {
        Self {
            client,
            node_name: node_name.to_owned(),
            scope,
            pace: Pace::default(),
        }
    }

    /// Follows until the receiver is dropped. The Node is delivered as soon as it is known; the update
    /// that completes the view ends with [`Change::Synced`]. Must be called within a tokio runtime.
    pub fn follow(self) -> mpsc::Receiver<Update> {
        // The queue is short, because each parsed object in it may take some megabytes.
        let (events, received) = mpsc::channel(2);
        for kind in Kind::ALL {
            tokio::spawn(self.follower(kind, events.clone()).run());
        }
        let (updates, receiver) = mpsc::channel(4);
        let store = Store::new(&self.node_name);
        tokio::spawn(gather(store, received, updates));
        receiver
    }

    /// Reads the Services and slices directly, bypassing the watches. Used before a node is called
    /// broken only because of the sentinel. `None` if the API server does not answer in time.
    pub async fn read_uncached(&self) -> Option<Vec<Change>> {
        for _ in 0..TRIES {
            if let Ok(read) = timeout(PATIENCE, self.try_read()).await {
                return read;
            }
        }
        None
    }

    async fn try_read(&self) -> Option<Vec<Change>> {
        let (events, mut received) = mpsc::channel(16);
        let service = self.follower(Kind::Service, events.clone()).list_once();
        let slices = self.follower(Kind::Slice, events).list_once();
        let gather = async {
            let mut store = Store::new(&self.node_name);
            // The Node is not read. An empty list of Nodes completes the view, so that there is an update even
            // if nothing else was found.
            store.take(Event::ListBegins(Kind::Node));
            store.take(Event::ListEnds(Kind::Node));
            while let Some(event) = received.recv().await {
                store.take(event);
            }
            store.update()
        };
        let (service, slices, update) = tokio::join!(service, slices, gather);
        let update = update.filter(|_| service && slices)?;
        Some(update.changes)
    }

    fn follower(&self, kind: Kind, events: mpsc::Sender<Event>) -> Follower {
        let requests = Requests::new(kind, &self.scope, &self.node_name);
        Follower::new(self.client.clone(), requests, self.pace, events)
    }
}

/// Puts events into the store, and delivers its changes in batches ([`QUIET`], [`GATHER`]). A change of
/// the Node, and the completion of the view, are delivered immediately.
async fn gather(
    mut store: Store,
    mut events: mpsc::Receiver<Event>,
    updates: mpsc::Sender<Update>,
) {
    // When the next delivery is due, and the latest time to which further events may postpone it.
    let mut due: Option<(Instant, Instant)> = None;
    loop {
        let wait = async {
            match due {
                Some((at, _)) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = events.recv() => {
                let Some(event) = event else { return };
                let now = Instant::now();
                let latest = due.map_or(now + GATHER, |(_, latest)| latest);
                due = match store.take(event) {
                    true => Some((now, now)),
                    false => Some(((now + QUIET).min(latest), latest)),
                };
            }
            () = wait => {
                due = None;
                if let Some(update) = store.update()
                    && updates.send(update).await.is_err()
                {
                    return;
                }
            }
            () = updates.closed() => return,
        }
    }
}

/// A random number below `most`, different on each node and each time.
fn jitter(most: u64) -> u64 {
    RandomState::new().hash_one(()) % most.max(1)
}
