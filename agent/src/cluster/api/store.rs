//! State of the cluster as it is known, and its changes since the last delivery: the pure part of
//! following an API server.
//!
//! A list replaces what was known of its resource as a whole: its changes, and the objects that it
//! no longer has, come in one batch. An object that is not understood keeps what it said before.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::budget::Budget;
use crate::cluster::convert::Converter;
use crate::cluster::facts::{Facts, Kind, Object, compare};
use crate::cluster::{Problem, Update};
use agent_core::cluster::Change;

/// Consequence for an object that cannot be taken.
const KEPT: &str = "the object's last good version stays in use";
/// Objects with something wrong that are named one by one...
const NAMED: usize = 50;
/// ...and that are counted.
const REMEMBERED: usize = 1_000;

/// Name of an object, hashed, as in a folder: names are not kept twice.
type Key = u64;

/// Event from a follower.
#[derive(Debug)]
pub(super) enum Event {
    /// The objects that follow are everything there is, from the beginning.
    ListBegins(Kind),
    /// And that was everything.
    ListEnds(Kind),
    /// An object is there, in a list or as a change.
    There(Object),
    /// An object is there that is not of its kind.
    Unreadable(Kind, Box<ObjectMeta>, String),
    /// An object is gone.
    Gone(Kind, Box<ObjectMeta>),
    /// A problem with following, or `None` once there is none.
    Trouble(Kind, Option<Problem>),
}

/// One resource.
#[derive(Debug, Default)]
struct Resource {
    objects: HashMap<Key, Facts>,
    /// Keys from a list that is under way.
    listing: Option<HashSet<Key>>,
    /// A list came to its end.
    is_listed: bool,
    /// Not delivered yet; those of a list wait for its end.
    changes: Vec<Change>,
    wrong: BTreeMap<Key, Problem>,
    trouble: Option<Problem>,
}

impl Resource {
    /// An object is so now; `None` is gone, or of no use here.
    fn set(&mut self, key: Key, facts: Option<Facts>, budget: &mut Budget) {
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

    /// An object is there, and cannot be taken as it stands. The message says what is done instead.
    fn complain(&mut self, key: Key, message: String) {
        self.see(key);
        if self.wrong.len() < REMEMBERED || self.wrong.contains_key(&key) {
            let message = format!("API server: {message}");
            self.wrong.insert(key, Problem::new(message));
        }
    }

    fn see(&mut self, key: Key) {
        if let Some(seen) = &mut self.listing {
            seen.insert(key);
        }
    }

    /// Removes the objects that the list did not have.
    fn end_list(&mut self, budget: &mut Budget) {
        if let Some(seen) = self.listing.take() {
            let gone = self.objects.extract_if(|key, _| !seen.contains(key));
            // Last: a list that broke off may have brought what is gone now.
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

/// All that is known.
#[derive(Debug)]
pub(super) struct Store {
    converter: Converter,
    hasher: RandomState,
    resources: [Resource; 3],
    budget: Budget,
    is_synced: bool,
    /// The last update, without its changes.
    told: Update,
}

impl Store {
    /// An empty store for the node of that name.
    pub(super) fn new(node_name: &str) -> Self {
        Self {
            converter: Converter::new(node_name),
            hasher: RandomState::new(),
            resources: Default::default(),
            budget: Budget::default(),
            is_synced: false,
            told: Update::default(),
        }
    }

    /// Takes an event in; returns whether something must be delivered at once: the Node changed,
    /// or everything is there for the first time.
    pub(super) fn take(&mut self, event: Event) -> bool {
        match event {
            Event::ListBegins(kind) => {
                // Objects of an earlier list that did not end are kept: they were there, and are
                // newer.
                self.resources[kind as usize].listing = Some(HashSet::new());
            }
            Event::ListEnds(kind) => {
                self.resources[kind as usize].end_list(&mut self.budget);
            }
            Event::There(object) => {
                let (resource, key) = self.find(object.kind(), object.metadata());
                match self.converter.facts(object) {
                    Ok(facts) => {
                        self.set(resource, key, facts);
                        if let Some(invalid) = self.converter.left_out() {
                            let message = format!("{invalid}; the object is used without it");
                            self.resources[resource].complain(key, message);
                        }
                    }
                    Err(invalid) => {
                        let message = format!("{invalid}; {KEPT}");
                        self.resources[resource].complain(key, message);
                    }
                }
            }
            Event::Unreadable(kind, metadata, error) => {
                let (resource, key) = self.find(kind, &metadata);
                let title = kind.title(&metadata);
                let message = format!("{title} cannot be parsed: {error}; {KEPT}");
                self.resources[resource].complain(key, message);
            }
            Event::Gone(kind, metadata) => {
                let (resource, key) = self.find(kind, &metadata);
                self.set(resource, key, None);
            }
            Event::Trouble(kind, trouble) => self.resources[kind as usize].trouble = trouble,
        }
        self.resources[Kind::Node as usize].has_news() || self.is_whole() != self.is_synced
    }

    /// The update since the last one, if anything changed.
    pub(super) fn update(&mut self) -> Option<Update> {
        let mut changes: Vec<Change> = self.converter.new_peers().into_iter().collect();
        for resource in self.resources.iter_mut().filter(|of| of.has_news()) {
            changes.append(&mut resource.changes);
        }
        if self.is_whole() && !std::mem::replace(&mut self.is_synced, true) {
            changes.push(Change::Synced);
        }
        let now = Update {
            problems: self.problems(),
            unknown_claims: self.budget.unknown_claims.clone(),
            ..Update::default()
        };
        if changes.is_empty() && self.told == now {
            return None;
        }
        self.told.clone_from(&now);
        Some(Update { changes, ..now })
    }

    /// Takes an object in as it is now, unless its namespace has too much.
    fn set(&mut self, resource: usize, key: Key, mut facts: Option<Facts>) {
        let before = self.resources[resource].objects.get(&key);
        if let Some(refused) = facts.take_if(|now| !self.budget.admits(before, now)) {
            self.budget.hide(&refused);
            self.leave_out(&refused);
        }
        self.resources[resource].set(key, facts, &mut self.budget);
        if let Some((namespace, surplus)) = self.budget.relief() {
            self.relieve(&namespace, surplus);
        }
    }

    /// A Service without all its slices would be judged by half of its endpoints.
    fn leave_out(&mut self, refused: &Facts) {
        if let Some((namespace, service)) = refused.owner() {
            let key = self
                .hasher
                .hash_one((Kind::Service, &**namespace, &**service));
            let services = &mut self.resources[Kind::Service as usize];
            if let Some(service) = services.objects.get(&key) {
                self.budget.hide(service);
            }
            services.set(key, None, &mut self.budget);
        }
    }

    /// Drops Services of a namespace, the last ones by name, with their slices.
    fn relieve(&mut self, namespace: &Arc<str>, surplus: usize) {
        let mut services: BTreeMap<Arc<str>, Vec<(usize, Key, usize)>> = BTreeMap::new();
        for (resource, of) in self.resources.iter().enumerate() {
            for (key, facts) in &of.objects {
                if let Some((_, service)) = facts.owner().filter(|(of, _)| *of == namespace) {
                    let objects = services.entry(Arc::clone(service)).or_default();
                    objects.push((resource, *key, facts.weight()));
                }
            }
        }
        let (mut freed, mut dropped) = (0, BTreeSet::new());
        while freed < surplus
            && let Some((service, objects)) = services.pop_last()
        {
            let first = format!("Service {namespace}/{service}");
            self.budget.close(namespace, first);
            for (resource, key, weight) in objects {
                freed += weight;
                if let Some(facts) = self.resources[resource].objects.get(&key) {
                    self.budget.hide(facts);
                }
                self.resources[resource].set(key, None, &mut self.budget);
            }
            dropped.insert(service);
        }
        // Changes that wait for the end of a list would keep them.
        let stays = |change: &Change| match change {
            Change::Service(of) => {
                of.name.namespace != *namespace || !dropped.contains(&of.name.name)
            }
            Change::Slice(of) => of.name.namespace != *namespace || !dropped.contains(&of.service),
            _ => true,
        };
        for resource in &mut self.resources {
            resource.changes.retain(stays);
        }
    }

    fn find(&self, kind: Kind, metadata: &ObjectMeta) -> (usize, Key) {
        let key = self.hasher.hash_one(kind.identity(metadata));
        (kind as usize, key)
    }

    fn is_whole(&self) -> bool {
        self.resources.iter().all(|resource| resource.is_listed)
    }

    fn problems(&self) -> Vec<Problem> {
        let troubles = self.resources.iter().filter_map(|of| of.trouble.clone());
        let mut problems: Vec<Problem> = troubles.collect();
        // Away is away, whatever was asked for.
        problems.dedup();
        problems.extend(self.budget.problems().take(NAMED));
        let wrong = || self.resources.iter().flat_map(|of| of.wrong.values());
        problems.extend(wrong().take(NAMED).cloned());
        let more = wrong().skip(NAMED).count();
        if more > 0 {
            let message = format!("API server: {more} more objects are invalid");
            problems.push(Problem::new(message));
        }
        problems
    }
}

#[cfg(test)]
mod tests;
