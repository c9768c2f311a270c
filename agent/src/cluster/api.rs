//! An API server as the source of the view.
//!
//! ```text
//! follow (Node)     ─┐
//! follow (Services) ─┼─ events ─▶ store ─▶ Update
//! follow (slices)   ─┘
//! ```
//!
//! A task for each resource lists and watches (`follow`); one more keeps what is known and
//! gathers what changed (`store`). An API server that is away is told as a problem and changes
//! nothing else: the last view stays.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use kube::Client;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::manifests::Update;
use agent_core::cluster::ObjectName;

pub mod client;
pub mod files;
mod follow;
mod objects;
mod requests;
mod routes;
mod store;
#[cfg(test)]
mod tests;
mod uncached;

pub use client::{ApiAccess, ClientError};
pub use routes::forget;
pub use uncached::Uncached;

use follow::{Follower, Pace};
use store::{Event, Store};

/// Changes that come closer together than this are delivered as one...
const QUIET: Duration = Duration::from_millis(5);
/// ...for at most this long. A change of the Node waits for nothing.
const GATHER: Duration = Duration::from_millis(30);

/// How much of the cluster is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This Node, and all Services and EndpointSlices that kube-proxy would serve.
    Full,
    /// This Node, and the sentinel's Service and slices.
    Sentinel(ObjectName),
}

/// What is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Kind {
    /// This node.
    Node,
    /// Services.
    Service,
    /// EndpointSlices.
    Slice,
}

impl Kind {
    const ALL: [Kind; 3] = [Kind::Node, Kind::Service, Kind::Slice];

    /// The kind, as objects name it.
    fn name(self) -> &'static str {
        match self {
            Kind::Node => "Node",
            Kind::Service => "Service",
            Kind::Slice => "EndpointSlice",
        }
    }

    /// The resource, as roles name it.
    fn resource(self) -> &'static str {
        match self {
            Kind::Node => "nodes",
            Kind::Service => "services",
            Kind::Slice => "endpointslices",
        }
    }
}

/// An API server that can be followed.
pub struct ApiServer {
    client: Client,
    node_name: String,
    scope: Scope,
    pace: Pace,
}

impl ApiServer {
    /// By that client, for the node of that name.
    pub fn new(client: Client, node_name: &str, scope: Scope) -> Self {
        Self {
            client,
            node_name: node_name.to_owned(),
            scope,
            pace: Pace::default(),
        }
    }

    /// Follows until the receiver is dropped. What is known of the Node is delivered at once; the
    /// update that makes the view whole ends with [`Change::Synced`]. Must be called within a tokio
    /// runtime.
    ///
    /// [`Change::Synced`]: agent_core::cluster::Change::Synced
    pub fn follow(self) -> mpsc::Receiver<Update> {
        // Enough that a page is not waited for, and no more: objects wait here parsed.
        let (events, heard) = mpsc::channel(16);
        for kind in Kind::ALL {
            let follower = Follower::new(
                self.client.clone(),
                requests::Requests::new(kind, &self.scope, &self.node_name),
                self.pace,
                events.clone(),
            );
            tokio::spawn(follower.run());
        }
        let (updates, receiver) = mpsc::channel(4);
        tokio::spawn(gather(Store::new(&self.node_name), heard, updates));
        receiver
    }
}

/// What a whole list of objects, one to a line, says to an agent that knew nothing: everything that
/// an API server sends, without the way it comes. Each line is taken for every kind.
pub fn listed(node_name: &str, lines: &[u8]) -> Option<Update> {
    let mut store = Store::new(node_name);
    for kind in Kind::ALL {
        store.take(Event::ListBegins(kind));
        let lines = lines.split(|byte| *byte == b'\n');
        let objects = lines.filter_map(|line| serde_json::from_slice::<&RawValue>(line).ok());
        for text in objects {
            store.take(follow::object(kind, text).0);
        }
        store.take(Event::ListEnds(kind));
    }
    store.update()
}

/// Turns events into updates.
async fn gather(
    mut store: Store,
    mut events: mpsc::Receiver<Event>,
    updates: mpsc::Sender<Update>,
) {
    // When to deliver, and when at the latest.
    let mut due: Option<(Instant, Instant)> = None;
    loop {
        let at = due.map(|(at, _)| at);
        tokio::select! {
            event = events.recv() => {
                let Some(event) = event else { return };
                let now = Instant::now();
                if store.take(event) {
                    due = Some((now, now));
                } else if store.has_news() {
                    let latest = due.map_or(now + GATHER, |(_, latest)| latest);
                    due = Some(((now + QUIET).min(latest), latest));
                }
            }
            () = wait(at) => {
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

async fn wait(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// A number below `most`, another one on each node and each time.
fn jitter(most: u64) -> u64 {
    RandomState::new().hash_one(()) % most.max(1)
}
