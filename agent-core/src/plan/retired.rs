//! Endpoints that left their slice and still stand in the map, marked, each with when it left.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use agent_common::service::EndpointKey;

use crate::time::Mono;

/// The endpoints that left.
#[derive(Debug, Default)]
pub(super) struct Retired {
    since: BTreeMap<EndpointKey, Mono>,
    /// In the order they left; entries of endpoints that came back are stale.
    queue: VecDeque<(Mono, EndpointKey)>,
}

impl Retired {
    pub(super) fn insert(&mut self, key: EndpointKey, now: Mono) {
        self.since.insert(key, now);
        self.queue.push_back((now, key));
    }

    /// Forgets an endpoint that came back.
    pub(super) fn remove(&mut self, key: &EndpointKey) {
        self.since.remove(key);
        if self.since.is_empty() {
            self.queue = VecDeque::new();
        }
    }

    pub(super) fn since(&self, key: &EndpointKey) -> Option<Mono> {
        self.since.get(key).copied()
    }

    pub(super) fn len(&self) -> usize {
        self.since.len()
    }

    /// Takes out the endpoint that left first, if that is `rest` ago.
    pub(super) fn pop_due(&mut self, now: Mono, rest: Duration) -> Option<EndpointKey> {
        self.drop_stale();
        let (since, _) = self.queue.front()?;
        if now.since(*since) < rest {
            None
        } else {
            self.pop_oldest()
        }
    }

    /// Takes out the endpoint that left first: its place is needed.
    pub(super) fn pop_oldest(&mut self) -> Option<EndpointKey> {
        self.drop_stale();
        let (_, key) = self.queue.pop_front()?;
        self.since.remove(&key);
        Some(key)
    }

    fn drop_stale(&mut self) {
        while let Some((since, key)) = self.queue.front() {
            if self.since.get(key) == Some(since) {
                break;
            }
            self.queue.pop_front();
        }
    }
}
