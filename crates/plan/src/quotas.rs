//! Shares of the maps by namespace, so that no tenant can fill them at the expense of others.
//!
//! While everything fits, every Service within its own limit is followed. Otherwise every namespace has the
//! same limit, the *level*: the highest number of entries at which all fit together. Some namespaces have a
//! guaranteed part ([`SERVED_FIRST`]). A namespace that needs less than its limit is not affected. In one
//! that needs more, the Services that are already followed come first, then the others by name. Services
//! without room are not judged.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use pathproof_facts::cluster::ObjectName;
use pathproof_wire::abi;
use serde::{Deserialize, Serialize};

use crate::expect::{Demand, ENDPOINTS, FRONTENDS, KINDS};

/// Limit of one Service. Even 300 ports at a cluster IP, a load balancer IP and three node addresses,
/// in both families, need fewer frontends. The limit of endpoints is a quarter of their map.
const SERVICE: Demand = [4_096, 65_536, u64::MAX];
/// A sixteenth of each map stays free: for removed endpoints, and for entries that are put before
/// others are deleted.
const RESERVE: u64 = 16;
/// Namespaces that may always use an eighth of the maps ([`PART`]), however low the level is. The sentinel's
/// namespace may too.
const SERVED_FIRST: [&str; 2] = ["kube-system", "default"];
const PART: u64 = 8;

/// Maximum number of namespaces that [`Quotas::problems`] names.
const NAMED: usize = 20;

/// Numbers of Services that are not judged, by the quota that they exceed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unjudged {
    /// Limit of one Service.
    pub service: u64,
    /// Share of the namespace.
    pub namespace: u64,
}

/// Reason why a Service is not followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Excess {
    Frontends(u64),
    /// Too many endpoints; the real number is lower if slices repeat each other.
    Endpoints(u64),
    /// The Service's namespace needs more than its share.
    Share,
}

impl Excess {
    fn of(demand: &Demand) -> Option<Self> {
        if demand[FRONTENDS] > SERVICE[FRONTENDS] {
            Some(Self::Frontends(demand[FRONTENDS]))
        } else if demand[ENDPOINTS] > SERVICE[ENDPOINTS] {
            Some(Self::Endpoints(demand[ENDPOINTS]))
        } else {
            None
        }
    }
}

impl fmt::Display for Excess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, count, most) = match self {
            Self::Frontends(count) => ("frontends", count, SERVICE[FRONTENDS]),
            Self::Endpoints(count) => ("endpoints", count, SERVICE[ENDPOINTS]),
            Self::Share => return f.write_str("exceeds its namespace's share of the BPF maps"),
        };
        write!(
            f,
            "has {count} {kind} (ports times addresses), more than {most}"
        )
    }
}

/// A Service's entries, and whether it is followed.
#[derive(Clone, Copy, Debug, Default)]
struct ServiceDemand {
    demand: Demand,
    followed: bool,
}

#[derive(Debug, Default)]
struct Namespace {
    /// Sum of all Services that are within their own limit.
    demand: Demand,
    services: BTreeMap<Arc<str>, ServiceDemand>,
    /// Whether the namespace last needed more than its share.
    short: bool,
}

/// The demand of all Services, and which ones are followed.
#[derive(Debug)]
pub(super) struct Quotas {
    room: Demand,
    /// The sentinel's namespace, which has a guaranteed part too.
    pub(super) sentinel: Option<Arc<str>>,
    namespaces: BTreeMap<Arc<str>, Namespace>,
    /// The level, by kind of entry: see the module's documentation.
    level: Demand,
    /// Services that changed since the last [`Self::settle`], and whether each was followed before.
    was: BTreeMap<ObjectName, bool>,
    over: BTreeMap<ObjectName, Excess>,
}

impl Default for Quotas {
    fn default() -> Self {
        let maps = [abi::MAX_FRONTENDS, abi::MAX_ENDPOINTS, abi::MAX_SERVICES].map(u64::from);
        Self::new(maps.map(|places| places - places / RESERVE))
    }
}

impl Quotas {
    pub(super) fn new(room: Demand) -> Self {
        Self {
            room,
            sentinel: None,
            namespaces: BTreeMap::new(),
            level: room,
            was: BTreeMap::new(),
            over: BTreeMap::new(),
        }
    }

    /// Maximum number of endpoints in the map, including removed ones.
    pub(super) fn room_for_endpoints(&self) -> u64 {
        self.room[ENDPOINTS] + self.room[ENDPOINTS] / (2 * RESERVE)
    }

    pub(super) fn follows(&self, name: &ObjectName) -> bool {
        let entry = self.namespaces.get(&name.namespace);
        let service = entry.and_then(|namespace| namespace.services.get(&name.name));
        service.is_some_and(|service| service.followed)
    }

    /// Services that are not followed because they exceed a quota.
    pub(super) fn over(&self) -> impl Iterator<Item = &ObjectName> {
        self.over.keys()
    }

    pub(super) fn unjudged(&self) -> Unjudged {
        let shares = self
            .over
            .values()
            .filter(|excess| **excess == Excess::Share);
        let namespace = shares.count() as u64;
        Unjudged {
            service: self.over.len() as u64 - namespace,
            namespace,
        }
    }

    /// A sentence for each of the first namespaces with Services that are not judged.
    pub(super) fn problems(&self) -> Vec<String> {
        let over: Vec<(&ObjectName, &Excess)> = self.over.iter().collect();
        let mut namespaces = over.chunk_by(|(one, _), (next, _)| one.namespace == next.namespace);
        let mut problems = Vec::new();
        for group in namespaces.by_ref().take(NAMED) {
            let [(name, excess), others @ ..] = group else {
                continue;
            };
            let others = match others.len() {
                0 => String::new(),
                count => {
                    format!(", and neither are those of {count} more Services in this namespace")
                }
            };
            problems.push(format!(
                "Service {name} {excess}: its connections are not judged{others}"
            ));
        }
        let more = namespaces.count();
        if more > 0 {
            problems.push(format!("Services in {more} more namespaces are not judged"));
        }
        problems
    }

    /// Records the demand of a Service; `None` if it is gone. Takes effect with the next
    /// [`Quotas::settle`].
    pub(super) fn note(&mut self, name: &ObjectName, demand: Option<Demand>) {
        let namespace = Arc::clone(&name.namespace);
        let entry = self.namespaces.entry(namespace).or_default();
        let before = entry.services.remove(&name.name).unwrap_or_default();
        let counted = |demand: &Demand| Excess::of(demand).is_none();
        if counted(&before.demand) {
            entry.demand = each(&entry.demand, &before.demand, u64::saturating_sub);
        }
        self.was.entry(name.clone()).or_insert(before.followed);
        if let Some(demand) = demand {
            if counted(&demand) {
                entry.demand = each(&entry.demand, &demand, u64::saturating_add);
            }
            let service = ServiceDemand { demand, ..before };
            entry.services.insert(Arc::clone(&name.name), service);
        } else {
            self.over.remove(name);
            if entry.services.is_empty() {
                self.namespaces.remove(&name.namespace);
            }
        }
    }

    /// Whether the maps are too small for all demands.
    pub(super) fn is_short(&self) -> bool {
        let demands = self.namespaces.values().map(|namespace| &namespace.demand);
        let all = demands.fold([0; KINDS], |all, demand| {
            each(&all, demand, u64::saturating_add)
        });
        !fits(&all, &self.room)
    }

    /// Gives a Service priority over others if it was in an earlier agent's maps.
    pub(super) fn keep(&mut self, name: &ObjectName, stood: impl FnOnce() -> bool) {
        let entry = self.namespaces.get_mut(&name.namespace);
        if let Some(service) = entry.and_then(|namespace| namespace.services.get_mut(&name.name)) {
            service.followed = Excess::of(&service.demand).is_none() && stood();
        }
    }

    /// Decides which Services are followed. Returns the Services that changed, or began or ceased to
    /// be followed, and whether each was followed before.
    pub(super) fn settle(&mut self) -> BTreeMap<ObjectName, bool> {
        let level = std::array::from_fn(|kind| self.level(kind));
        let moved = std::mem::replace(&mut self.level, level) != level;
        let mut chosen = BTreeSet::new();
        for (name, namespace) in &mut self.namespaces {
            let share = share(&self.room, &level, self.sentinel.as_deref(), name);
            let short = !fits(&namespace.demand, &share);
            if (short || namespace.short) && (moved || names_any(&self.was, name)) {
                chosen.insert(Arc::clone(name));
            }
            namespace.short = short;
        }
        // A namespace with enough room follows its new Services without a check of the others.
        let changed: Vec<ObjectName> = self.was.keys().cloned().collect();
        for name in changed
            .iter()
            .filter(|service| !chosen.contains(&service.namespace))
        {
            let entry = self.namespaces.get_mut(&name.namespace);
            if let Some(service) =
                entry.and_then(|namespace| namespace.services.get_mut(&name.name))
            {
                let excess = Excess::of(&service.demand);
                service.followed = excess.is_none();
                set(&mut self.over, name.clone(), excess);
            }
        }
        for namespace in chosen {
            self.choose(&namespace);
        }
        std::mem::take(&mut self.was)
    }

    fn choose(&mut self, namespace: &Arc<str>) {
        let sentinel = self.sentinel.as_deref();
        let mut left = share(&self.room, &self.level, sentinel, namespace);
        let Some(entry) = self.namespaces.get_mut(namespace) else {
            return;
        };
        let mut services: Vec<_> = entry.services.iter_mut().collect();
        services.sort_by_key(|(_, service)| !service.followed);
        for (name, service) in services {
            let name = ObjectName {
                namespace: Arc::clone(namespace),
                name: Arc::clone(name),
            };
            let mut excess = Excess::of(&service.demand);
            if excess.is_none() && !fits(&service.demand, &left) {
                excess = Some(Excess::Share);
            }
            let followed = excess.is_none();
            if followed {
                left = each(&left, &service.demand, u64::saturating_sub);
            }
            if followed != service.followed {
                self.was.entry(name.clone()).or_insert(service.followed);
                service.followed = followed;
            }
            set(&mut self.over, name, excess);
        }
    }

    /// The highest level at which everything fits.
    fn level(&self, kind: usize) -> u64 {
        let room = self.room[kind];
        let (mut fits, mut most) = (0, room);
        if self.needs(kind, most) <= room {
            return most;
        }
        while fits < most {
            let middle = most - (most - fits) / 2;
            match self.needs(kind, middle) <= room {
                true => fits = middle,
                false => most = middle - 1,
            }
        }
        fits
    }

    /// Number of entries that all namespaces use at a level.
    fn needs(&self, kind: usize, level: u64) -> u64 {
        let sentinel = self.sentinel.as_deref();
        let taken = self.namespaces.iter().map(|(name, namespace)| {
            let share = share(&self.room, &[level; KINDS], sentinel, name);
            namespace.demand[kind].min(share[kind])
        });
        taken.fold(0, u64::saturating_add)
    }
}

/// Entries that a namespace may have at a level.
fn share(room: &Demand, level: &Demand, sentinel: Option<&str>, namespace: &str) -> Demand {
    let first = SERVED_FIRST.contains(&namespace) || sentinel == Some(namespace);
    let part = |places: u64| if first { places / PART } else { 0 };
    each(level, &room.map(part), u64::max)
}

fn names_any(names: &BTreeMap<ObjectName, bool>, namespace: &Arc<str>) -> bool {
    let first = ObjectName {
        namespace: Arc::clone(namespace),
        name: "".into(),
    };
    let next = names.range(first..).next();
    next.is_some_and(|(name, _)| name.namespace == *namespace)
}

fn set(over: &mut BTreeMap<ObjectName, Excess>, name: ObjectName, excess: Option<Excess>) {
    match excess {
        Some(excess) => over.insert(name, excess),
        None => over.remove(&name),
    };
}

fn fits(demand: &Demand, room: &Demand) -> bool {
    demand.iter().zip(room).all(|(demand, room)| demand <= room)
}

fn each(one: &Demand, other: &Demand, combine: impl Fn(u64, u64) -> u64) -> Demand {
    std::array::from_fn(|kind| combine(one[kind], other[kind]))
}

#[cfg(test)]
mod tests;
