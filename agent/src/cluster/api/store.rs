//! What is known of the cluster, and what changed since it was last told: the pure part of
//! following an API server.
//!
//! A list replaces what was known of its resource as a whole: its changes, and the objects that it
//! no longer has, come in one batch. An object that is not understood keeps what it said before.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use super::Kind;
use super::objects::Meta;
use crate::cluster::convert::{Converter, Skipped};
use crate::cluster::facts::{Facts, identity};
use crate::cluster::manifests::{Problem, Reason, Update};
use crate::cluster::yaml::Object;
use agent_core::cluster::Change;

/// Objects with something wrong that are told one by one.
const TOLD: usize = 50;

/// Kind and name of an object, hashed, as in a folder: names are not kept twice.
type Key = u64;

/// What a follower says.
#[derive(Debug)]
pub(super) enum Event {
    /// What follows is everything there is, from the beginning.
    ListBegins(Kind),
    /// And that was everything.
    ListEnds(Kind),
    /// An object is there, in a list or as a change.
    There(Object),
    /// An object is there that is not of its kind.
    Unreadable(Kind, Box<Meta>, String),
    /// An object is gone.
    Gone(Kind, Box<Meta>),
    /// What stands in the way of following, or that nothing does.
    Trouble(Kind, Option<Reason>),
}

/// An object that is there.
#[derive(Debug)]
enum Known {
    Facts(Facts),
    Skipped(Kind, Skipped),
}

impl Known {
    fn kind(&self) -> Kind {
        match self {
            Known::Facts(Facts::Node(_)) => Kind::Node,
            Known::Facts(Facts::Service(_)) => Kind::Service,
            Known::Facts(Facts::Slice(_)) => Kind::Slice,
            Known::Skipped(kind, _) => *kind,
        }
    }
}

/// One resource.
#[derive(Debug, Default)]
struct Resource {
    /// What a list that is under way had so far.
    listing: Option<HashSet<Key>>,
    /// A list came to its end.
    listed: bool,
    /// Changes that wait for the end of the list.
    held: Vec<Change>,
    trouble: Option<Reason>,
}

/// All that is known.
#[derive(Debug)]
pub(super) struct Store {
    converter: Converter,
    hasher: RandomState,
    objects: HashMap<Key, Known>,
    /// How many are passed over, and why.
    skipped: BTreeMap<(Kind, Skipped), u64>,
    wrong: BTreeMap<Key, (Kind, Reason)>,
    resources: [Resource; 3],
    changes: Vec<Change>,
    synced: bool,
    /// What was told last, without the changes.
    told: Option<Update>,
    /// Something beside the changes may differ from what was told.
    touched: bool,
}

impl Store {
    /// Of nothing, for the node of that name.
    pub(super) fn new(node_name: &str) -> Self {
        Self {
            converter: Converter::new(node_name),
            hasher: RandomState::new(),
            objects: HashMap::new(),
            skipped: BTreeMap::new(),
            wrong: BTreeMap::new(),
            resources: Default::default(),
            changes: Vec::new(),
            synced: false,
            told: None,
            touched: false,
        }
    }

    /// Takes an event in; returns whether it must be told at once.
    pub(super) fn take(&mut self, event: Event) -> bool {
        match event {
            Event::ListBegins(kind) => {
                // What an earlier list brought and did not end is held: it was so, and newer.
                self.resources[kind as usize].listing = Some(HashSet::new());
                false
            }
            Event::ListEnds(kind) => self.end_list(kind),
            Event::There(object) => self.put(&object),
            Event::Unreadable(kind, meta, error) => {
                let key = self.key(kind, &meta);
                let name = name(&meta);
                let reason = Reason::Unreadable {
                    kind: kind.name(),
                    name,
                    error,
                };
                self.note(kind, key, reason);
                false
            }
            Event::Gone(kind, meta) => {
                let key = self.key(kind, &meta);
                self.remove(kind, key);
                kind == Kind::Node
            }
            Event::Trouble(kind, reason) => {
                let resource = &mut self.resources[kind as usize];
                self.touched |= resource.trouble != reason;
                resource.trouble = reason;
                false
            }
        }
    }

    /// Whether there may be something to tell.
    pub(super) fn has_news(&self) -> bool {
        self.touched || !self.changes.is_empty()
    }

    /// What changed since the last one, if anything did.
    pub(super) fn update(&mut self) -> Option<Update> {
        self.touched = false;
        let rest = Update {
            changes: Vec::new(),
            problems: self.problems(),
            ignored: self.ignored(),
        };
        if self.changes.is_empty() && self.told.as_ref() == Some(&rest) {
            return None;
        }
        self.told = Some(rest.clone());
        Some(Update {
            changes: std::mem::take(&mut self.changes),
            ..rest
        })
    }

    fn put(&mut self, object: &Object) -> bool {
        let (kind, meta) = match object {
            Object::Node(_) => (Kind::Node, identity(object)),
            Object::Service(_) => (Kind::Service, identity(object)),
            Object::Slice(_) => (Kind::Slice, identity(object)),
        };
        let key = self.hasher.hash_one(meta);
        let known = match Facts::of(&mut self.converter, object) {
            Ok(Ok(facts)) => Known::Facts(facts),
            Ok(Err(skipped)) => Known::Skipped(kind, skipped),
            Err(invalid) => {
                self.note(kind, key, Reason::Invalid(invalid));
                return false;
            }
        };
        self.touched |= self.wrong.remove(&key).is_some();
        self.seen(kind, key);
        let changes = match self.resources[kind as usize].listing {
            Some(_) => &mut self.resources[kind as usize].held,
            None => &mut self.changes,
        };
        match (self.objects.get(&key), &known) {
            (Some(Known::Facts(before)), Known::Facts(now)) if before == now => return false,
            (Some(Known::Facts(before)), Known::Facts(now)) => {
                changes.extend(now.moved_from(before));
                changes.push(now.clone().put());
            }
            (Some(Known::Facts(before)), Known::Skipped(..)) => changes.push(before.gone()),
            (_, Known::Facts(now)) => changes.push(now.clone().put()),
            (_, Known::Skipped(..)) => {}
        }
        self.count(&known, true);
        if let Some(before) = self.objects.insert(key, known) {
            self.count(&before, false);
        }
        kind == Kind::Node && !self.changes.is_empty()
    }

    fn remove(&mut self, kind: Kind, key: Key) {
        self.touched |= self.wrong.remove(&key).is_some();
        let Some(known) = self.objects.remove(&key) else {
            return;
        };
        self.count(&known, false);
        if let Known::Facts(facts) = known {
            match self.resources[kind as usize].listing {
                Some(_) => self.resources[kind as usize].held.push(facts.gone()),
                None => self.changes.push(facts.gone()),
            }
        }
    }

    /// Keeps account of what is passed over.
    fn count(&mut self, known: &Known, is_there: bool) {
        if let Known::Skipped(kind, why) = known {
            let count = self.skipped.entry((*kind, *why)).or_default();
            *count = if is_there {
                *count + 1
            } else {
                count.saturating_sub(1)
            };
            self.touched = true;
        }
    }

    /// What the list did not have is gone; all of it is told as one.
    fn end_list(&mut self, kind: Kind) -> bool {
        let resource = &mut self.resources[kind as usize];
        let Some(seen) = resource.listing.take() else {
            return false;
        };
        let first = !resource.listed;
        resource.listed = true;
        let held = std::mem::take(&mut resource.held);
        let before = self.changes.len();
        // These first: a list that broke off may have brought what is gone now.
        if before == 0 {
            self.changes = held;
        } else {
            self.changes.extend(held);
        }
        let gone: Vec<Known> = self
            .objects
            .extract_if(|key, known| known.kind() == kind && !seen.contains(key))
            .map(|(_, known)| known)
            .collect();
        for known in &gone {
            self.count(known, false);
            if let Known::Facts(facts) = known {
                self.changes.push(facts.gone());
            }
        }
        let wrong = self.wrong.len();
        self.wrong
            .retain(|key, (of, _)| *of != kind || seen.contains(key));
        self.touched |= wrong != self.wrong.len();
        let synced = !self.synced && self.resources.iter().all(|resource| resource.listed);
        if synced {
            self.synced = true;
            self.changes.push(Change::Synced);
        }
        if first {
            self.objects.shrink_to_fit();
        }
        synced || (kind == Kind::Node && self.changes.len() != before)
    }

    fn note(&mut self, kind: Kind, key: Key, reason: Reason) {
        // It is there, if only in words nobody understands.
        self.seen(kind, key);
        self.touched = true;
        self.wrong.insert(key, (kind, reason));
    }

    fn seen(&mut self, kind: Kind, key: Key) {
        if let Some(seen) = &mut self.resources[kind as usize].listing {
            seen.insert(key);
        }
    }

    fn key(&self, kind: Kind, meta: &Meta) -> Key {
        let namespace = meta.namespace.as_deref().filter(|space| !space.is_empty());
        let name = meta.name.as_deref().unwrap_or_default();
        self.hasher
            .hash_one((kind.name(), namespace.unwrap_or("default"), name))
    }

    fn problems(&self) -> Vec<Problem> {
        let mut problems: Vec<Problem> = Vec::new();
        for reason in self.resources.iter().filter_map(|of| of.trouble.as_ref()) {
            let problem = Problem::of_api(reason.clone());
            // Away is away, whatever was asked for.
            if !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        let wrong = self.wrong.values().take(TOLD);
        problems.extend(wrong.map(|(_, reason)| Problem::of_api(reason.clone())));
        if self.wrong.len() > TOLD {
            let count = self.wrong.len() - TOLD;
            problems.push(Problem::of_api(Reason::More { count }));
        }
        problems
    }

    fn ignored(&self) -> BTreeMap<String, u64> {
        let counts = self.skipped.iter().filter(|(_, count)| **count > 0);
        let named = counts
            .map(|((kind, why), count)| (format!("{} ({})", kind.name(), why.words()), *count));
        named.collect()
    }
}

fn name(meta: &Meta) -> String {
    let name = meta.name.as_deref().unwrap_or("without a name");
    match meta.namespace.as_deref() {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests;
