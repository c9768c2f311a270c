//! Services that worked: only these accuse the node when they stop. One that was never seen to work may
//! be new, or denied.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash as _, Hasher as _};

use agent_common::service::Family;
use fnv::FnvHasher;
use serde::{Deserialize, Serialize};

use crate::evidence::ServiceInfo;
use crate::limits::{FIRST_ENDPOINTS, FORGOTTEN};
use crate::time::Mono;

/// Service ports kept, the first that worked: breadth takes two, and all of them are written whenever
/// the agent's state is. A namespace that has none among them gets a place of the one that has most: no
/// tenant's Services keep all others from accusing.
const KEPT: usize = 256;

/// By a hash of family, name and port: ids do not outlive a restart of the agent, and are used again.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Worked(BTreeMap<u64, Known>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    /// Hash of its name.
    namespace: u64,
    #[serde(with = "crate::names::FamilyName")]
    family: Family,
    last: Mono,
    /// When it was last dialled without an endpoint, unless it worked since: a proxy may be late with
    /// the next one.
    #[serde(default)]
    emptied: Option<Mono>,
}

impl Worked {
    /// A connection to that Service was proven.
    pub(crate) fn note(&mut self, info: &ServiceInfo, last: Mono) {
        let (service, namespace) = hashes(info);
        if self.0.len() >= KEPT && self.0.values().all(|known| known.namespace != namespace) {
            self.make_room();
        }
        if self.0.len() < KEPT || self.0.contains_key(&service) {
            let family = info.family;
            let known = Known {
                namespace,
                family,
                last,
                emptied: None,
            };
            self.0.insert(service, known);
        }
    }

    /// Forgets the Service of the namespace with most of them that was used longest ago.
    fn make_room(&mut self) {
        let mut shares: BTreeMap<u64, usize> = BTreeMap::new();
        for known in self.0.values() {
            *shares.entry(known.namespace).or_default() += 1;
        }
        let largest = shares.into_iter().max_by_key(|(_, share)| *share);
        let largest = largest.filter(|(_, share)| *share > 1);
        let theirs = |known: &Known| largest.is_some_and(|(of, _)| known.namespace == of);
        let known = self.0.iter().filter(|(_, known)| theirs(known));
        if let Some(oldest) = known
            .min_by_key(|(_, known)| known.last)
            .map(|(key, _)| *key)
        {
            self.0.remove(&oldest);
        }
    }

    /// Whether no connection of that family to any Service was proven.
    pub(crate) fn is_empty(&self, family: Family) -> bool {
        self.of(family).next().is_none()
    }

    /// Notes that a Service was dialled while it had no endpoint.
    pub(crate) fn lack_endpoints(&mut self, info: &ServiceInfo, at: Mono) {
        if let Some(known) = self.0.get_mut(&hashes(info).0) {
            known.emptied = Some(at);
        }
    }

    /// Whether a connection to that Service was proven, and it has had endpoints for a while.
    pub(crate) fn has(&self, info: &ServiceInfo, now: Mono) -> bool {
        let late = |at: Mono| now.since(at) > FIRST_ENDPOINTS;
        let known = self.0.get(&hashes(info).0);
        known.is_some_and(|known| known.emptied.is_none_or(late))
    }

    /// Whether a connection to that Service was proven since then.
    pub(crate) fn has_lately(&self, info: &ServiceInfo, since: Mono) -> bool {
        let known = self.0.get(&hashes(info).0);
        known.is_some_and(|known| known.last >= since)
    }

    /// Number of namespaces of which Services were used in the last hour.
    pub(crate) fn namespaces(&self, family: Family, now: Mono) -> usize {
        self.namespaces_beside(&BTreeSet::new(), family, now)
    }

    /// The same, without these.
    pub(crate) fn namespaces_beside(
        &self,
        names: &BTreeSet<&str>,
        family: Family,
        now: Mono,
    ) -> usize {
        let names: BTreeSet<u64> = names.iter().map(|name| hash_of(name)).collect();
        let in_use = self
            .of(family)
            .filter(|known| now.since(known.last) <= FORGOTTEN && known.namespace != PROBES);
        let namespaces: BTreeSet<u64> = in_use.map(|known| known.namespace).collect();
        namespaces.difference(&names).count()
    }

    fn of(&self, family: Family) -> impl Iterator<Item = &Known> {
        self.0.values().filter(move |known| known.family == family)
    }
}

fn hash_of(namespace: &str) -> u64 {
    let mut hasher = FnvHasher::default();
    namespace.hash(&mut hasher);
    hasher.finish()
}

/// Stands for the pod probe's namespace. It is on every node, and must not be the second namespace without
/// which the users' own does not accuse.
const PROBES: u64 = 0;

/// Of the Service port, and of its namespace.
fn hashes(info: &ServiceInfo) -> (u64, u64) {
    let mut hasher = FnvHasher::default();
    info.name.namespace.hash(&mut hasher);
    let namespace = hasher.finish();
    (&info.name.name, &info.port, info.family as u32).hash(&mut hasher);
    (hasher.finish(), if info.echo { PROBES } else { namespace })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::cluster::ObjectName;

    fn service(namespace: &str, name: &str, family: Family) -> ServiceInfo {
        ServiceInfo {
            name: ObjectName::new(namespace, name),
            port: "".into(),
            family,
            endpoints: 1,
            udp: false,
            dns: false,
            sentinel: false,
            echo: false,
            on_host: false,
            disputed: None,
        }
    }

    fn has(worked: &Worked, service: &ServiceInfo) -> bool {
        worked.has(service, Mono(1))
    }

    #[test]
    fn services_of_each_family_are_known_for_themselves() {
        let mut worked = Worked::default();
        let hour = Mono(3_600_000_000_000);
        worked.note(&service("shop", "web", Family::V4), Mono(0));
        worked.note(&service("bank", "api", Family::V4), Mono(1));
        assert!(has(&worked, &service("shop", "web", Family::V4)));
        assert!(!has(&worked, &service("shop", "web", Family::V6)));
        assert!(!has(&worked, &service("bank", "web", Family::V4)));
        assert_eq!(worked.namespaces(Family::V4, hour), 2);
        let probe = ServiceInfo {
            echo: true,
            ..service("pathproof", "pathproof-echo", Family::V4)
        };
        worked.note(&probe, hour);
        assert_eq!(worked.namespaces(Family::V4, hour), 2);
        assert_eq!(
            worked.namespaces(Family::V4, Mono(hour.0 + 1)),
            1,
            "an hour later"
        );
        assert!(worked.is_empty(Family::V6));
    }

    #[test]
    fn one_that_lost_its_endpoints_has_a_grace() {
        let (mut worked, service) = (Worked::default(), service("shop", "web", Family::V4));
        worked.lack_endpoints(&service, Mono(0));
        assert!(worked.is_empty(Family::V4));
        worked.note(&service, Mono(0));
        worked.lack_endpoints(&service, Mono(0));
        assert!(!has(&worked, &service) && !worked.is_empty(Family::V4));
        let late = Mono(0).plus(FIRST_ENDPOINTS).plus(Duration::from_nanos(1));
        assert!(worked.has(&service, late));
        worked.note(&service, Mono(1));
        assert!(has(&worked, &service), "it worked with the next ones");
    }

    /// One namespace with hundreds of Services, from the start on.
    #[test]
    fn no_namespace_takes_all_places() {
        let mut worked = Worked::default();
        for number in 0..2 * KEPT as u64 {
            let name = number.to_string();
            worked.note(&service("tenant", &name, Family::V4), Mono(number));
        }
        for namespace in ["shop", "bank"] {
            let service = service(namespace, "web", Family::V4);
            worked.note(&service, Mono(1_000));
            assert!(has(&worked, &service));
        }
        assert_eq!(worked.0.len(), KEPT);
        assert_eq!(worked.namespaces(Family::V4, Mono(1_000)), 3);
        assert!(!has(&worked, &service("tenant", "0", Family::V4)));
    }

    #[test]
    fn the_first_are_kept() {
        let mut worked = Worked::default();
        for number in 0..=KEPT {
            worked.note(&service("shop", &number.to_string(), Family::V4), Mono(0));
        }
        assert_eq!(worked.0.len(), KEPT);
        assert!(has(&worked, &service("shop", "0", Family::V4)));
        assert!(!has(
            &worked,
            &service("shop", &KEPT.to_string(), Family::V4)
        ));
    }
}
