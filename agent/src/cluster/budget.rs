//! Limits the memory of objects, per namespace and in total.
//!
//! A tenant who may edit one namespace can create objects until every agent exceeds its memory limit. So the
//! agent accepts no new objects of a namespace that exceeded its budget, until the agent restarts. A Service
//! without all its slices is left out completely. If the total is too large, the heaviest namespace loses
//! some of its Services.

use std::collections::HashMap;
use std::sync::Arc;

use pathproof_facts::cluster::ObjectName;

use super::Problem;
use super::facts::ObjectFacts;

/// Maximum bytes per namespace: enough for 11,000 Services with ten endpoints each.
const NAMESPACE: usize = 16 << 20;
/// Maximum bytes in total: enough for 19,000 Services with ten endpoints each. More would exceed the memory
/// limit of deploy/base.
const ALL: usize = 26 << 20;

#[derive(Debug)]
pub(super) struct Budget {
    namespace: usize,
    all: usize,
    accounts: HashMap<Arc<str>, Account>,
    pub(super) total: usize,
    /// The first Service with external IPs that was left out.
    pub(super) unknown_frontends: Option<ObjectName>,
}

#[derive(Debug, Default)]
struct Account {
    bytes: usize,
    /// Whether an object was left out.
    is_closed: bool,
}

impl Default for Budget {
    fn default() -> Self {
        Self::new(NAMESPACE, ALL)
    }
}

impl Budget {
    pub(super) fn new(namespace: usize, all: usize) -> Self {
        Self {
            namespace,
            all,
            accounts: HashMap::new(),
            total: 0,
            unknown_frontends: None,
        }
    }

    /// Remembers the first Service with external IPs that is left out: the addresses that it uses stay
    /// unknown until the agent restarts.
    pub(super) fn note_left_out(&mut self, facts: &ObjectFacts) {
        if let ObjectFacts::Service(service) = facts
            && !service.external_ips.is_empty()
        {
            self.unknown_frontends
                .get_or_insert_with(|| service.name.clone());
        }
    }

    /// Accounts for a change of an object.
    pub(super) fn charge(&mut self, before: Option<&ObjectFacts>, now: Option<&ObjectFacts>) {
        for (facts, is_there) in [(now, true), (before, false)] {
            let Some((facts, (namespace, _))) =
                facts.and_then(|facts| Some((facts, facts.owner()?)))
            else {
                continue;
            };
            let account = self.accounts.entry(Arc::clone(namespace)).or_default();
            let charge = |bytes: &mut usize| {
                *bytes = match is_there {
                    true => bytes.saturating_add(facts.weight()),
                    false => bytes.saturating_sub(facts.weight()),
                };
            };
            charge(&mut account.bytes);
            charge(&mut self.total);
            if account.bytes == 0 && !account.is_closed {
                self.accounts.remove(namespace);
            }
        }
    }

    /// Whether an object fits; if not, closes its namespace.
    pub(super) fn admits(&mut self, before: Option<&ObjectFacts>, now: &ObjectFacts) -> bool {
        let Some((namespace, _)) = now.owner() else {
            return true;
        };
        let account = self.accounts.get(namespace);
        let is_closed = account.is_some_and(|account| account.is_closed);
        let held = account.map_or(0, |account| account.bytes);
        let more = now
            .weight()
            .saturating_sub(before.map_or(0, ObjectFacts::weight));
        let admits =
            (before.is_some() || !is_closed) && held.saturating_add(more) <= self.namespace;
        if !admits {
            self.close(namespace);
        }
        admits
    }

    /// If the total exceeds its limit, returns the heaviest namespace and the number of bytes that it must
    /// free: an eighth of its own, so that the next objects fit.
    pub(super) fn relief(&self) -> Option<(Arc<str>, usize)> {
        if self.total <= self.all {
            return None;
        }
        let heaviest = self
            .accounts
            .iter()
            .max_by_key(|(_, account)| account.bytes)?;
        Some((Arc::clone(heaviest.0), heaviest.1.bytes / 8))
    }

    pub(super) fn close(&mut self, namespace: &Arc<str>) {
        let account = self.accounts.entry(Arc::clone(namespace)).or_default();
        account.is_closed = true;
    }

    /// One problem for each closed namespace. Its text stays the same, because a changed text would cause an
    /// update.
    pub(super) fn problems(&self) -> impl Iterator<Item = Problem> {
        let closed = self
            .accounts
            .iter()
            .filter(|(_, account)| account.is_closed);
        closed.map(|(namespace, _)| {
            Problem::new(format!(
                "API server: the Services and EndpointSlices of namespace {namespace} take too \
                 much memory: new ones are not judged; remove some, and restart the agent"
            ))
        })
    }
}
