//! The sentinel's Service and slices as the API server has them at this moment, past the watches:
//! asked before a node is called broken for the sentinel's sake alone.

use std::time::Duration;

use kube::Client;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::follow::{Follower, Pace};
use super::requests::Requests;
use super::store::{Event, Store};
use super::{Kind, Scope};
use agent_core::cluster::{Change, ObjectName};

/// An answer that takes longer is asked for again: where watches hang, connections that were kept
/// open for later are dead too, and each try uses one up...
const PATIENCE: Duration = Duration::from_millis(200);
/// ...for so many times. Longer nobody waits: then what the watches told counts.
const TRIES: usize = 3;

/// Asks for the sentinel.
pub struct Uncached {
    client: Client,
    node_name: String,
    scope: Scope,
}

impl Uncached {
    /// By that client, for that Service.
    pub fn new(client: Client, node_name: &str, service: ObjectName) -> Self {
        Self {
            client,
            node_name: node_name.to_owned(),
            scope: Scope::Sentinel(service),
        }
    }

    /// What makes a view of the Service and its slices, and of nothing else. Nothing where the API
    /// server does not say in time.
    pub async fn read(&self) -> Option<Vec<Change>> {
        for _ in 0..TRIES {
            if let Ok(read) = timeout(PATIENCE, self.try_read()).await {
                return read;
            }
        }
        None
    }

    async fn try_read(&self) -> Option<Vec<Change>> {
        let (service, slices) = tokio::join!(self.list(Kind::Service), self.list(Kind::Slice));
        let mut store = Store::new(&self.node_name);
        let no_node = [Event::ListBegins(Kind::Node), Event::ListEnds(Kind::Node)];
        for event in service?.into_iter().chain(slices?).chain(no_node) {
            store.take(event);
        }
        store.update().map(|update| update.changes)
    }

    async fn list(&self, kind: Kind) -> Option<Vec<Event>> {
        let requests = Requests::new(kind, &self.scope, &self.node_name);
        let (events, mut heard) = mpsc::channel(16);
        let follower = Follower::new(self.client.clone(), requests, Pace::default(), events);
        let gather = async {
            let mut all = Vec::new();
            while let Some(event) = heard.recv().await {
                all.push(event);
            }
            all
        };
        let (whole, events) = tokio::join!(follower.list_once(), gather);
        whole.then_some(events)
    }
}
