//! Deletes removed endpoints from the map, early if it has no room for all of them, and remembers them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, VecDeque};

use pathproof_facts::time::Mono;
use pathproof_wire::service::{Address, EndpointKey, Port};

use super::Planner;
use super::draft::Draft;

/// Maximum number of endpoints that are remembered after they were deleted from the map.
const REMEMBERED: usize = 4_096;

/// Endpoints that were deleted from the map, and when each left its slice. They have no Service, because a
/// Service that is created again has the same frontends and another id.
#[derive(Debug, Default)]
pub(super) struct FormerEndpoints {
    left: BTreeMap<(Address, Port), Mono>,
    /// The keys of `left`, in the order in which they were added.
    order: VecDeque<(Address, Port)>,
}

impl FormerEndpoints {
    pub(super) fn left(&self, address: Address, port: Port) -> Option<Mono> {
        self.left.get(&(address, port)).copied()
    }

    fn remember(&mut self, endpoint: &EndpointKey, left: Mono) {
        let key = (endpoint.address, endpoint.port);
        if self.left.insert(key, left).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.left.remove(&oldest);
        }
    }
}

impl Planner {
    /// Takes an endpoint from the removed ones, because it is about to be deleted from the map, and remembers
    /// it. The sentinel's are not remembered: it has a new one with each generation, and nobody keeps
    /// connections to it.
    pub(super) fn take_retired(&mut self, key: &EndpointKey) {
        if let Some(left) = self.retired.remove(key)
            && !self.is_sentinel(key.service)
        {
            self.former.remember(key, left);
        }
    }

    /// Deletes removed endpoints if the map has more endpoints than it should. It deletes more than
    /// necessary, so that the next changes need no deletion.
    pub(super) fn evict_retired(&mut self, now: Mono, draft: &mut Draft) {
        let room = self.quotas.room_for_endpoints();
        let standing = self.registry.endpoint_count() + self.retired.len() as u64;
        let surplus = standing.saturating_sub(room);
        if surplus > 0 {
            let count = surplus + room / 32;
            let keys = self.oldest_retired(now);
            for key in keys.into_iter().take(count as usize) {
                self.take_retired(&key);
                draft.evict(key);
            }
        }
    }

    /// Endpoints removed before `until`, in the order in which they are deleted. The namespace with most of
    /// them comes first, so that it pays for its own churn; within a namespace the oldest come first.
    pub(super) fn oldest_retired(&self, until: Mono) -> Vec<EndpointKey> {
        let namespace = |key: &EndpointKey| {
            let slot = self.registry.slot(key.service);
            slot.map_or("", |slot| &slot.name.namespace)
        };
        let mut counts: HashMap<&str, usize> = HashMap::new();
        let left = || self.retired.iter().filter(|(_, since)| **since < until);
        for (key, _) in left() {
            *counts.entry(namespace(key)).or_default() += 1;
        }
        let mut keys: Vec<(&EndpointKey, &Mono)> = left().collect();
        keys.sort_by_cached_key(|(key, since)| {
            let namespace = namespace(key);
            (Reverse(counts.get(namespace)), namespace, **since)
        });
        keys.into_iter().map(|(key, _)| *key).collect()
    }

    /// Deletes the removed endpoints of an id that is about to be reused.
    pub(super) fn forget_retired(&mut self, service: u32, draft: &mut Draft) {
        let first = EndpointKey {
            service,
            ..EndpointKey::default()
        };
        let of_id = self.retired.range(first..).map(|(key, _)| *key);
        let of_id: Vec<EndpointKey> = of_id.take_while(|key| key.service == service).collect();
        for key in of_id {
            self.take_retired(&key);
            draft.evict(key);
        }
    }
}
