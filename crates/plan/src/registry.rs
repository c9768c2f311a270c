//! Service ids: the Service port and family of each, and which ids are free.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use pathproof_facts::cluster::{ObjectName, Protocol};
use pathproof_facts::time::Mono;
use pathproof_wire::abi;
use pathproof_wire::service::{Family, frontend_flag};

use crate::expect::PortExpectation;

/// Maximum number of resting ids of one namespace. A namespace with more reuses the id that rested longest.
/// So renaming ports takes no ids from other namespaces, and late counts under a reused id stay in its
/// namespace.
const RESTING: usize = 256;

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) name: ObjectName,
    pub(super) port: Arc<str>,
    pub(super) protocol: Protocol,
    /// See [`PortExpectation`].
    pub(super) dns: bool,
    pub(super) family: Family,
    /// Number of the port's current endpoints.
    pub(super) endpoints: u32,
    /// Whether some of the port's endpoints are the node itself.
    pub(super) on_host: bool,
    /// Since when all its frontends have been expected, with endpoints.
    pub(super) since: Mono,
    /// When the port ceased to be expected. The id keeps its name until it is free, because late evidence
    /// may arrive, or the Service may come back.
    resting: Option<Mono>,
}

impl Slot {
    /// Whether the slot is of this port; the caller compares the Service.
    pub(super) fn is_of(&self, port: &PortExpectation) -> bool {
        self.port == port.port && self.protocol == port.protocol && self.family == port.family
    }
}

#[derive(Debug)]
pub(super) struct Registry {
    limit: u32,
    slots: Vec<Option<Slot>>,
    /// Ids in use or resting, sorted by the names of their Services. It holds ids only, so that
    /// 10,000 names are not stored twice.
    by_name: Vec<u32>,
    /// Ids that were used and have rested, the longest rested first.
    free: VecDeque<u32>,
    /// Resting ids by namespace, the longest resting first; those without a known namespace under "".
    resting: BTreeMap<Arc<str>, BTreeSet<(Mono, u32)>>,
    /// Whether ids that this registry never assigned may have counts (pinned maps).
    all_dirty: bool,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new(abi::MAX_SERVICES)
    }
}

impl Registry {
    pub(super) fn new(limit: u32) -> Self {
        Self {
            limit,
            slots: Vec::new(),
            by_name: Vec::new(),
            free: VecDeque::new(),
            resting: BTreeMap::new(),
            all_dirty: false,
        }
    }

    pub(super) fn slot(&self, id: u32) -> Option<&Slot> {
        self.slots.get(id as usize)?.as_ref()
    }

    /// The id of an expected port.
    pub(super) fn active(&self, name: &ObjectName, port: &PortExpectation) -> Option<u32> {
        let id = self.known(name, port)?;
        self.slot(id)?.resting.is_none().then_some(id)
    }

    fn known(&self, name: &ObjectName, port: &PortExpectation) -> Option<u32> {
        let of_service = self.by_name[self.position(name)..].iter().copied();
        of_service
            .map_while(|id| Some((id, self.slot(id).filter(|slot| slot.name == *name)?)))
            .find(|(_, slot)| slot.is_of(port))
            .map(|(id, _)| id)
    }

    /// Position where the ids of a Service begin, or would begin.
    fn position(&self, name: &ObjectName) -> usize {
        self.by_name
            .partition_point(|id| self.slot(*id).is_some_and(|slot| slot.name < *name))
    }

    /// Assigns an id: the port's previous one while it rests, a new one, or the free one that rested
    /// longest. A namespace with too many resting ids reuses one of these instead. Also returns whether the
    /// maps may have counts of another port under the id. `None` if all ids are in use.
    pub(super) fn acquire(
        &mut self,
        name: &ObjectName,
        port: &PortExpectation,
    ) -> Option<(u32, bool)> {
        if let Some(id) = self.known(name, port) {
            let slot = self.slots[id as usize].as_mut();
            if let Some(since) = slot.and_then(|slot| slot.resting.take()) {
                self.wake(&name.namespace, since, id);
            }
            return Some((id, false));
        }
        if let Some((since, id)) = self.tired(&name.namespace) {
            self.wake(&name.namespace, since, id);
            // Remove the former port from the slot. The id is used at once, so it does not stay free.
            self.free(id);
            self.free.pop_back();
            self.fill(id, name, port);
            return Some((id, true));
        }
        let fresh = self.slots.len() as u32;
        let (id, dirty) = if fresh < self.limit {
            self.reach(fresh);
            (fresh, self.all_dirty)
        } else {
            (self.free.pop_front()?, true)
        };
        self.fill(id, name, port);
        Some((id, dirty))
    }

    /// The id that a namespace with too many resting ids reuses next. An id that came to rest in
    /// the latest plan is excluded, because its endpoints may not be marked yet.
    fn tired(&self, namespace: &Arc<str>) -> Option<(Mono, u32)> {
        let ids = self.resting.get(namespace)?;
        let (first, last) = (ids.first()?, ids.last()?);
        (ids.len() > RESTING && first.0 < last.0).then_some(*first)
    }

    fn wake(&mut self, namespace: &Arc<str>, since: Mono, id: u32) {
        if let Some(ids) = self.resting.get_mut(namespace) {
            ids.remove(&(since, id));
            if ids.is_empty() {
                self.resting.remove(namespace);
            }
        }
    }

    pub(super) fn has_free(&self) -> bool {
        self.slots.len() < self.limit as usize || !self.free.is_empty()
    }

    fn fill(&mut self, id: u32, name: &ObjectName, port: &PortExpectation) {
        self.slots[id as usize] = Some(Slot {
            name: name.clone(),
            port: Arc::clone(&port.port),
            protocol: port.protocol,
            dns: port.dns,
            family: port.family,
            endpoints: 0,
            on_host: false,
            since: Mono::default(),
            resting: None,
        });
        let at = self.position(name);
        self.by_name.insert(at, id);
    }

    /// Adopts an id from the maps of an earlier agent. Returns false if it is in use.
    pub(super) fn adopt(&mut self, id: u32, name: &ObjectName, port: &PortExpectation) -> bool {
        if id >= self.limit || self.slot(id).is_some() {
            return false;
        }
        self.reach(id);
        self.fill(id, name, port);
        true
    }

    /// Ends adoption: from now on, every id that was not adopted counts as dirty, because the maps may have
    /// counts under it. `used` are the ids in the maps; those that were not adopted rest from `now`.
    pub(super) fn finish_adoption(&mut self, used: impl Iterator<Item = u32>, now: Mono) {
        self.all_dirty = true;
        let is_left = |id: &u32| *id < self.limit && self.slot(*id).is_none();
        let resting: BTreeSet<u32> = used.filter(is_left).collect();
        if let Some(highest) = resting.last() {
            self.reach(*highest);
        }
        let ids = 0..self.slots.len() as u32;
        let unused = ids.filter(|id| self.slot(*id).is_none() && !resting.contains(id));
        self.free = unused.collect();
        let resting = resting.into_iter().map(|id| (now, id)).collect();
        self.resting.insert("".into(), resting);
    }

    /// Adds empty slots until there is one for this id.
    fn reach(&mut self, id: u32) {
        while self.slots.len() <= id as usize {
            // Grow in steps: doubling would leave half a megabyte unused in a large cluster.
            if self.slots.len() == self.slots.capacity() {
                self.slots.reserve_exact(256);
            }
            self.slots.push(None);
        }
    }

    /// Records the port's endpoints. The first ones after none are new to any proxy.
    pub(super) fn set_endpoints(&mut self, id: u32, expected: &PortExpectation, now: Mono) {
        if let Some(slot) = self.slots.get_mut(id as usize).and_then(Option::as_mut) {
            if slot.endpoints == 0 {
                slot.since = now;
            }
            slot.endpoints = u32::try_from(expected.endpoints.len()).unwrap_or(u32::MAX);
            let mut frontends = expected.frontends.iter();
            slot.on_host =
                frontends.any(|frontend| frontend.flags & frontend_flag::HOST_ENDPOINT != 0);
        }
    }

    /// Records that the port has a new frontend, for which any proxy has to write rules.
    pub(super) fn renew(&mut self, id: u32, now: Mono) {
        if let Some(slot) = self.slots.get_mut(id as usize).and_then(Option::as_mut) {
            slot.since = now;
        }
    }

    pub(super) fn endpoint_count(&self) -> u64 {
        let slots = self.slots.iter().flatten();
        slots.map(|slot| u64::from(slot.endpoints)).sum()
    }

    pub(super) fn rest(&mut self, id: u32, now: Mono) {
        if let Some(slot) = self.slots.get_mut(id as usize).and_then(Option::as_mut) {
            slot.endpoints = 0;
            slot.resting = Some(now);
            let ids = self.resting.entry(Arc::clone(&slot.name.namespace));
            ids.or_default().insert((now, id));
        }
    }

    /// Frees the ids that have rested for `rest`, the longest rested first.
    pub(super) fn free_rested(&mut self, now: Mono, rest: Duration) {
        let mut rested = BTreeSet::new();
        for ids in self.resting.values_mut() {
            while let Some((since, id)) = ids.first().copied()
                && now.since(since) >= rest
            {
                ids.pop_first();
                rested.insert((since, id));
            }
        }
        self.resting.retain(|_, ids| !ids.is_empty());
        for (_, id) in rested {
            self.free(id);
        }
    }

    fn free(&mut self, id: u32) {
        // A resting id from the maps of an earlier agent has no slot.
        if let Some(slot) = self.slot(id) {
            let from = self.position(&slot.name);
            if let Some(at) = self.by_name[from..].iter().position(|other| *other == id) {
                self.by_name.remove(from + at);
            }
        }
        self.slots[id as usize] = None;
        self.free.push_back(id);
    }
}
