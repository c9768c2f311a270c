//! Known objects of the cluster, and changes since the last delivery, without I/O.
//!
//! A list replaces all objects of its resource: its changes and removals come in one batch. If an object
//! becomes invalid, its previous facts stay in use.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use pathproof_facts::cluster::Change;

use super::budget::Budget;
use super::convert::Converter;
use super::facts::{Kind, ObjectFacts, Parsed, compare, identity};
use super::{Problem, Update};

/// End of a message about an invalid object.
const KEPT: &str = "its last good version stays in use";
/// Maximum number of invalid objects that an update names.
const NAMED: usize = 50;
/// Maximum number of invalid objects that are remembered and counted, per resource.
const REMEMBERED: usize = 1_000;

/// Hash of an object's kind, namespace and name. A hash saves memory, because the facts have the names
/// already.
pub(super) type Key = u64;

#[derive(Debug)]
pub(super) enum Event {
    ListBegins(Kind),
    ListEnds(Kind),
    /// An object exists, in a list or as a change.
    There(Parsed),
    Gone(Kind, Box<ObjectMeta>),
    /// A problem of the list or watch; `None` when it is solved.
    Trouble(Kind, Option<Problem>),
}

#[derive(Debug, Default)]
struct Resource {
    objects: HashMap<Key, ObjectFacts>,
    /// Keys in a list that is under way.
    listing: Option<HashSet<Key>>,
    is_listed: bool,
    /// Undelivered changes. During a list they wait for its end.
    changes: Vec<Change>,
    wrong: BTreeMap<Key, Problem>,
    trouble: Option<Problem>,
}

impl Resource {
    /// Stores the facts of an object. `None` removes the object.
    fn set(&mut self, key: Key, facts: Option<ObjectFacts>, budget: &mut Budget) {
        self.wrong.remove(&key);
        budget.charge(self.objects.get(&key), facts.as_ref());
        compare(self.objects.get(&key), facts.as_ref(), &mut self.changes);
        match facts {
            Some(facts) => {
                self.see(key);
                self.objects.insert(key, facts);
            }
            None => drop(self.objects.remove(&key)),
        }
    }

    /// Records that an object cannot be used as it is. The message includes the consequence.
    fn complain(&mut self, key: Key, message: String) {
        self.see(key);
        if self.wrong.len() < REMEMBERED || self.wrong.contains_key(&key) {
            self.wrong.insert(key, Problem::new(message));
        }
    }

    fn see(&mut self, key: Key) {
        if let Some(seen) = &mut self.listing {
            seen.insert(key);
        }
    }

    /// Removes the objects that the list did not contain.
    fn end_list(&mut self, budget: &mut Budget) {
        if let Some(seen) = self.listing.take() {
            let gone = self.objects.extract_if(|key, _| !seen.contains(key));
            // Append the removals to the pending changes: an earlier list that broke off may have added
            // objects that are gone now.
            self.changes.extend(gone.map(|(_, facts)| {
                budget.charge(Some(&facts), None);
                facts.gone()
            }));
            self.wrong.retain(|key, _| seen.contains(key));
            if !std::mem::replace(&mut self.is_listed, true) {
                self.objects.shrink_to_fit();
            }
        }
    }

    fn has_news(&self) -> bool {
        self.listing.is_none() && !self.changes.is_empty()
    }
}

#[derive(Debug)]
pub(super) struct Store {
    converter: Converter,
    hasher: RandomState,
    resources: [Resource; 3],
    budget: Budget,
    /// The beginning of messages about the next objects: the API server, or their file.
    pub(super) place: String,
    /// Problems that are not about an object.
    pub(super) problems: Vec<Problem>,
    /// Objects of other kinds.
    pub(super) ignored: u64,
    /// Whether an update has reported the view as complete.
    is_synced: bool,
    /// The last update, without its changes.
    last: Update,
}

impl Store {
    pub(super) fn new(node_name: &str) -> Self {
        Self {
            converter: Converter::new(node_name),
            hasher: RandomState::new(),
            resources: Default::default(),
            budget: Budget::default(),
            place: "API server".to_owned(),
            problems: Vec::new(),
            ignored: 0,
            is_synced: false,
            last: Update::default(),
        }
    }

    /// A store of the operator's own objects, whose memory is not limited.
    pub(super) fn unlimited(node_name: &str) -> Self {
        Self {
            budget: Budget::new(usize::MAX, usize::MAX),
            ..Self::new(node_name)
        }
    }

    /// Handles an event. Returns whether an update must be delivered at once: the Node changed, or the
    /// view became complete.
    pub(super) fn take(&mut self, event: Event) -> bool {
        match event {
            Event::ListBegins(kind) => {
                // If the previous list broke off, the objects that it delivered stay: they are newer than the
                // ones before it.
                self.resources[kind as usize].listing = Some(HashSet::new());
            }
            Event::ListEnds(kind) => {
                self.resources[kind as usize].end_list(&mut self.budget);
            }
            Event::There(parsed) => self.put(parsed),
            Event::Gone(kind, metadata) => {
                let key = self.key(kind, &metadata);
                self.set(kind as usize, key, None);
            }
            Event::Trouble(kind, trouble) => self.resources[kind as usize].trouble = trouble,
        }
        self.resources[Kind::Node as usize].has_news() || self.is_whole() != self.is_synced
    }

    fn put(&mut self, parsed: Parsed) {
        let (kind, metadata) = identity(&parsed);
        let (key, title) = (self.key(kind, metadata), kind.title(metadata));
        let wrong = match parsed.map(|object| self.converter.facts(object)) {
            Ok(Ok(facts)) => {
                self.set(kind as usize, key, facts);
                let invalid = self.converter.left_out.take();
                invalid.map(|invalid| format!("{invalid}; the object is used without it"))
            }
            Ok(Err(invalid)) => Some(format!("{invalid}; {KEPT}")),
            Err(unreadable) => {
                let error = unreadable.error;
                Some(format!("{title} cannot be parsed: {error}; {KEPT}"))
            }
        };
        if let Some(message) = wrong {
            let message = format!("{}: {message}", self.place);
            self.resources[kind as usize].complain(key, message);
        }
    }

    /// Keeps an object that a list has, although its current version is not known.
    pub(super) fn keep(&mut self, kind: Kind, key: Key) {
        self.resources[kind as usize].see(key);
    }

    /// Everything that changed since the last update; `None` if nothing did.
    pub(super) fn update(&mut self) -> Option<Update> {
        let mut changes: Vec<Change> = self.converter.new_peers().into_iter().collect();
        for resource in &mut self.resources {
            if resource.has_news() {
                changes.append(&mut resource.changes);
            }
        }
        if self.is_whole() && !std::mem::replace(&mut self.is_synced, true) {
            changes.push(Change::Synced);
        }
        let node = &self.resources[Kind::Node as usize];
        // A Node that cannot be parsed, or may be in a file that cannot be, is not missing. It is reported as
        // a separate problem.
        let is_known = self.is_synced && self.problems.is_empty() && node.wrong.is_empty();
        let is_missing = is_known && node.objects.is_empty();
        let now = Update {
            problems: self.problems(),
            ignored: self.ignored,
            unknown_frontends: self.budget.unknown_frontends.clone(),
            missing_node: is_missing.then(|| self.converter.missing_node()),
            ..Update::default()
        };
        if changes.is_empty() && self.last == now {
            return None;
        }
        self.last.clone_from(&now);
        Some(Update { changes, ..now })
    }

    /// Stores the facts of an object; `None` removes it. If its namespace would exceed its budget, the object
    /// and its Service are left out instead. If the total becomes too large, Services of the heaviest namespace
    /// are dropped.
    fn set(&mut self, resource: usize, key: Key, mut facts: Option<ObjectFacts>) {
        let before = self.resources[resource].objects.get(&key);
        if let Some(refused) = facts.take_if(|now| !self.budget.admits(before, now)) {
            self.budget.note_left_out(&refused);
            self.leave_out(&refused);
        }
        self.resources[resource].set(key, facts, &mut self.budget);
        if let Some((namespace, surplus)) = self.budget.relief() {
            self.relieve(&namespace, surplus);
        }
    }

    /// Leaves out the Service that a refused object belongs to. If one of its slices were missing,
    /// connections to that slice's endpoints would count as misrouted.
    fn leave_out(&mut self, refused: &ObjectFacts) {
        if let Some((namespace, service)) = refused.owner() {
            let identity = (Kind::Service, &**namespace, &**service);
            let key = self.hasher.hash_one(identity);
            let services = &mut self.resources[Kind::Service as usize];
            if let Some(service) = services.objects.get(&key) {
                self.budget.note_left_out(service);
            }
            services.set(key, None, &mut self.budget);
        }
    }

    /// Drops Services of a namespace with their slices until `surplus` bytes are free. Services whose names
    /// sort last go first.
    fn relieve(&mut self, namespace: &Arc<str>, surplus: usize) {
        let mut services: BTreeMap<Arc<str>, Vec<(usize, Key)>> = BTreeMap::new();
        for (resource, kept) in self.resources.iter().enumerate() {
            for (key, facts) in &kept.objects {
                if let Some((_, service)) = facts.owner().filter(|(owner, _)| *owner == namespace) {
                    let objects = services.entry(Arc::clone(service)).or_default();
                    objects.push((resource, *key));
                }
            }
        }
        self.budget.close(namespace);
        let (mut freed, mut dropped) = (0, BTreeSet::new());
        while freed < surplus
            && let Some((service, objects)) = services.pop_last()
        {
            for (resource, key) in objects {
                if let Some(facts) = self.resources[resource].objects.get(&key) {
                    freed += facts.weight();
                    self.budget.note_left_out(facts);
                }
                self.resources[resource].set(key, None, &mut self.budget);
            }
            dropped.insert(service);
        }
        // Remove the pending changes of dropped Services too, because they would keep the facts in memory.
        let stays = |change: &Change| {
            let (owner, service) = match change {
                Change::Service(facts) => (&facts.name.namespace, &facts.name.name),
                Change::Slice(facts) => (&facts.name.namespace, &facts.service),
                _ => return true,
            };
            owner != namespace || !dropped.contains(service)
        };
        for resource in &mut self.resources {
            resource.changes.retain(stays);
        }
    }

    pub(super) fn key(&self, kind: Kind, metadata: &ObjectMeta) -> Key {
        self.hasher.hash_one(kind.identity(metadata))
    }

    /// Whether every kind of object was listed completely at least once.
    fn is_whole(&self) -> bool {
        self.resources.iter().all(|resource| resource.is_listed)
    }

    fn problems(&self) -> Vec<Problem> {
        let resources = || self.resources.iter();
        let troubles = resources().filter_map(|resource| resource.trouble.as_ref());
        let mut problems: Vec<Problem> = self.problems.iter().chain(troubles).cloned().collect();
        // Keep one of equal problems: all resources report the same one if the server is unreachable.
        problems.dedup();
        problems.extend(self.budget.problems().take(NAMED));
        let mut wrong = resources().flat_map(|resource| resource.wrong.values());
        problems.extend(wrong.by_ref().take(NAMED).cloned());
        let more = wrong.count();
        if more > 0 {
            let message = format!("{more} more objects are invalid");
            problems.push(Problem::new(message));
        }
        problems
    }
}

#[cfg(test)]
mod tests;
