//! Endpoints that left, when there is no room for all of them.

use std::cmp::Reverse;
use std::collections::HashMap;

use agent_common::service::EndpointKey;

use super::Planner;
use super::draft::Draft;
use crate::time::Mono;

impl Planner {
    /// Deletes endpoints that left where they, and those that are current, are more than the map is to
    /// have; more than is needed, so that it is not asked for at each change.
    pub(super) fn evict_retired(&mut self, now: Mono, draft: &mut Draft) {
        let room = self.quotas.room_for_endpoints();
        let standing = self.registry.endpoint_count() + self.retired.len() as u64;
        let surplus = standing.saturating_sub(room);
        if surplus > 0 {
            let count = surplus + room / 32;
            let keys = self.oldest_retired(now);
            for key in keys.into_iter().take(count as usize) {
                self.retired.remove(&key);
                draft.evict(key);
            }
        }
    }

    /// Endpoints that left before `until`: those of the namespace that has the most of them first, so that
    /// whoever churns pays for it; of one namespace the longest gone first.
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

    /// Deletes those of an id that stands for another Service port from now on.
    pub(super) fn forget_retired(&mut self, service: u32, draft: &mut Draft) {
        let first = EndpointKey {
            service,
            ..EndpointKey::default()
        };
        let of_id = self.retired.range(first..).map(|(key, _)| *key);
        let of_id: Vec<EndpointKey> = of_id.take_while(|key| key.service == service).collect();
        for key in of_id {
            self.retired.remove(&key);
            draft.evict(key);
        }
    }
}
