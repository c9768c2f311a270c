//! Services that worked, by class of clients, and the failures of each since its last success.
//!
//! Only Services that worked are witnesses: one that never worked may be new, or denied by a policy. Exceptions
//! are added with `never`: nothing ever worked, or successes of the clients are not observed. The
//! failures of a Service end with its next success for the same class of clients. Nothing here decides
//! whether failures accuse the node.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash as _, Hasher as _};
use std::net::IpAddr;
use std::time::Duration;

use fnv::FnvHasher;
use pathproof_facts::cause::{FAILURES, Failure};
use pathproof_facts::directory::ServiceInfo;
use pathproof_facts::limits::{FIRST_ENDPOINTS, IN_USE_FOR};
use pathproof_facts::time::Mono;
use pathproof_wire::service::{FAMILIES, Family};
use serde::{Deserialize, Serialize};

/// Maximum number of Service ports. Two are enough to accuse the node, and all are stored with the agent's
/// state. Without room, a new port replaces the least recently used one of its namespace. If its namespace
/// has none, it replaces one of the namespace with most ports, so no tenant can exclude all others.
const KEPT: usize = 256;
/// If a Service failed and then succeeded, its next failures within this time may have reasons on the
/// clients' side.
const MIXED: Duration = Duration::from_secs(10);
/// A little more than the time between two readings.
const ONE_READING: Duration = Duration::from_millis(500);
/// Number of failures by which a Service is known to have failed before a pause.
const MANY: u64 = 10;
/// Maximum number of clients per failing Service: the decision needs two.
const CLIENTS_KEPT: usize = 4;

/// Services by the hash of family, name and port, because ids do not outlive the agent and are reused.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServicesSeenWorking(BTreeMap<u64, Known>);

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    /// Hash of the namespace's name.
    namespace: u64,
    family: Family,
    last: Mono,
    /// When it was last dialled without an endpoint, unless it worked since. A proxy may be late with the
    /// next endpoint, so failures soon after this time do not count.
    emptied: Option<Mono>,
    successes: u32,
    /// Time of the last failure that was followed by a success: some clients fail while others are served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mixed: Option<Mono>,
    /// Whether the Service was never seen to work. Its failures count nevertheless: no other one had worked
    /// when it failed, or nobody can see it work.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    never: bool,
    /// Failures since the last success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failing: Option<ServiceFailures>,
}

/// Failed connections of one Service port and class of clients since its last success.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceFailures {
    /// `namespace/name`, and `:port` where the port has a name.
    pub label: String,
    /// `namespace/name`.
    pub object: String,
    /// Number of endpoints at the last failure.
    pub endpoints: u32,
    /// Arrival of the first one, or the time when it was noticed if the arrival is unknown.
    pub since: Mono,
    /// Start of a run before this one, if that had many failures and ended by a pause, not by a success.
    #[serde(rename = "earlier", default, skip_serializing_if = "Option::is_none")]
    failing_before: Option<Mono>,
    /// When the last one was noticed.
    pub last: Mono,
    /// From counters, by [`Failure`]. A sample with a success of the Service for the same class of clients adds
    /// none.
    #[serde(rename = "counted")]
    by_counters: [u64; FAILURES],
    /// From single reports, by [`Failure`]. The kernel limits them, and those of connections from before a
    /// success are ignored.
    #[serde(rename = "reported")]
    by_reports: [u64; FAILURES],
    /// Whether some connections were refused by ICMP, as a REJECT rule does.
    pub icmp: bool,
    /// Whether some connections to an endpoint of this node left by an uplink.
    pub misdelivered: bool,
    /// Distinct clients that are known.
    pub clients: Vec<IpAddr>,
}

impl ServiceFailures {
    /// Failures by kind: the greater of the two numbers of each.
    pub fn failures(&self) -> [u64; FAILURES] {
        let mut failures = self.by_counters;
        for (failures, reported) in failures.iter_mut().zip(self.by_reports) {
            *failures = reported.max(*failures);
        }
        failures
    }

    /// Whether these are more than a few unrelated failures.
    fn are_many(&self) -> bool {
        self.failing_before.is_some() || self.failures().iter().sum::<u64>() >= MANY
    }

    /// When the Service began to fail, perhaps before a pause.
    pub fn onset(&self) -> Mono {
        self.failing_before.unwrap_or(self.since)
    }

    pub fn namespace(&self) -> &str {
        self.object
            .split_once('/')
            .map_or("", |(namespace, _)| namespace)
    }
}

pub(crate) struct NewFailures {
    /// Arrival of the first failed connection, to compare with the Service's last success. If only counts are
    /// known, the latest time at which that connection can have arrived.
    pub(crate) arrived: Mono,
    /// Start of the run that they may begin: the arrival, or when they were noticed if only counts are known.
    pub(crate) since: Mono,
    /// When they were noticed.
    pub(crate) noticed: Mono,
    pub(crate) failure: Failure,
    /// Number of failures in the counters; 0 for the report of a single connection, which the counters
    /// contain as well.
    pub(crate) count: u32,
    pub(crate) icmp: bool,
    pub(crate) misdelivered: bool,
    pub(crate) client: Option<IpAddr>,
}

/// A Service that worked and now fails.
#[derive(Clone, Copy, Debug)]
pub struct FailingService<'a> {
    pub failing: &'a ServiceFailures,
    /// When it last worked.
    pub worked: Mono,
    /// Number of successful connections before.
    pub successes: u32,
    /// Whether, just before these failures, some of its clients failed while others were served.
    pub is_mixed: bool,
    /// Whether it is the pod probe's Service.
    pub is_pod_probe: bool,
}

impl ServicesSeenWorking {
    /// Records `count` successful connections, the last one at `last` or before. They end the Service's
    /// failures.
    pub(crate) fn succeed(&mut self, info: &ServiceInfo, count: u32, last: Mono) {
        let (service, namespace) = hashes(info);
        if self.0.len() >= KEPT && !self.0.contains_key(&service) {
            match self.0.values().any(|known| known.namespace == namespace) {
                true => self.forget_oldest(namespace),
                false => self.make_room(),
            }
        }
        let known = self.0.get(&service);
        let before = known.map(|known| known.successes);
        let mixed = known.and_then(|known| {
            let failed = known.failing.as_ref().map(|failing| failing.last);
            failed.max(known.mixed)
        });
        if self.0.len() < KEPT || before.is_some() {
            let known = Known {
                namespace,
                family: info.family,
                last,
                emptied: None,
                mixed,
                successes: before.unwrap_or_default().saturating_add(count),
                never: false,
                failing: None,
            };
            self.0.insert(service, known);
        }
    }

    /// Records failed connections to a Service. They are ignored if the Service never worked (unless `never`
    /// is set: nothing ever worked), if its first endpoints are new, or if it worked after they arrived. A
    /// run ends after `pause` without a failure.
    pub(crate) fn fail(
        &mut self,
        info: &ServiceInfo,
        new: &NewFailures,
        never: bool,
        pause: Duration,
    ) {
        let late = |at: Mono| new.noticed.since(at) > FIRST_ENDPOINTS;
        let (service, namespace) = hashes(info);
        let goes_on = |failing: &ServiceFailures| new.noticed.since(failing.last) <= pause;
        if never && self.0.len() >= KEPT {
            let stays = |known: &Known| !known.never || known.failing.as_ref().is_some_and(goes_on);
            self.0.retain(|_, known| stays(known));
        }
        if never && self.0.len() < KEPT {
            self.0.entry(service).or_insert(Known {
                namespace,
                family: info.family,
                last: Mono(0),
                emptied: None,
                mixed: None,
                successes: 0,
                never,
                failing: None,
            });
        }
        let known = self.0.get_mut(&service);
        let Some(known) = known.filter(|known| known.emptied.is_none_or(late)) else {
            return;
        };
        if known.last >= new.arrived {
            // The time of a success is only known to within one reading. Failures within that time may be
            // later than the success, so they do not count here.
            let before = known.last.since(new.arrived) > ONE_READING;
            known.mixed = known.mixed.max(before.then_some(new.arrived));
            return;
        }
        let ended = known.failing.take_if(|failing| !goes_on(failing));
        let earlier = ended.filter(ServiceFailures::are_many);
        let failing = known.failing.get_or_insert_with(|| ServiceFailures {
            label: info.label(),
            object: info.name.to_string(),
            since: new.since,
            failing_before: earlier.map(|failing| failing.onset()),
            last: new.noticed,
            ..ServiceFailures::default()
        });
        failing.endpoints = info.endpoints;
        failing.since = failing.since.min(new.since);
        failing.last = failing.last.max(new.noticed);
        let total = match new.count {
            0 => &mut failing.by_reports[new.failure as usize],
            _ => &mut failing.by_counters[new.failure as usize],
        };
        *total = total.saturating_add(u64::from(new.count.max(1)));
        failing.icmp |= new.icmp;
        failing.misdelivered |= new.misdelivered;
        let unknown = |client: &IpAddr| !failing.clients.contains(client);
        if failing.clients.len() < CLIENTS_KEPT
            && let Some(client) = new.client.filter(unknown)
        {
            failing.clients.push(client);
        }
    }

    /// Services of a family that fail.
    pub fn failing(&self, family: Family) -> impl Iterator<Item = FailingService<'_>> {
        self.of(family).filter_map(|known| {
            let failing = known.failing.as_ref()?;
            let just_before = |at: Mono| failing.since.since(at) <= MIXED;
            Some(FailingService {
                failing,
                is_mixed: known.mixed.is_some_and(just_before),
                worked: known.last,
                successes: known.successes,
                is_pod_probe: known.namespace == PROBES,
            })
        })
    }

    /// Forgets all failures except those of `families` that lasted for at least `lasted`.
    pub(crate) fn forget_failures_but(&mut self, families: [bool; FAMILIES], lasted: Duration) {
        for known in self.0.values_mut() {
            let stays = |failing: &ServiceFailures| {
                families[known.family as usize] && failing.last.since(failing.since) >= lasted
            };
            known.failing.take_if(|failing| !stays(failing));
        }
    }

    /// Forgets the least recently used Service of the namespace with most Services.
    fn make_room(&mut self) {
        let mut shares: BTreeMap<u64, usize> = BTreeMap::new();
        for known in self.0.values() {
            *shares.entry(known.namespace).or_default() += 1;
        }
        let largest = shares.into_iter().max_by_key(|(_, share)| *share);
        let largest = largest.filter(|(_, share)| *share > 1);
        if let Some((namespace, _)) = largest {
            self.forget_oldest(namespace);
        }
    }

    fn forget_oldest(&mut self, namespace: u64) {
        let theirs = self
            .0
            .iter()
            .filter(|(_, known)| known.namespace == namespace);
        let oldest = theirs.min_by_key(|(_, known)| known.last);
        if let Some(oldest) = oldest.map(|(key, _)| *key) {
            self.0.remove(&oldest);
        }
    }

    /// Whether no connection of that family ever succeeded.
    pub(crate) fn is_empty(&self, family: Family) -> bool {
        self.of(family).all(|known| known.never)
    }

    /// Records that a Service was dialled without having an endpoint.
    pub(crate) fn lack_endpoints(&mut self, info: &ServiceInfo, at: Mono) {
        if let Some(known) = self.0.get_mut(&hashes(info).0) {
            known.emptied = Some(at);
            known.failing = None;
        }
    }

    /// Whether the Service ever worked and its endpoints are not new (`FIRST_ENDPOINTS`).
    pub(crate) fn has(&self, info: &ServiceInfo, now: Mono) -> bool {
        let late = |at: Mono| now.since(at) > FIRST_ENDPOINTS;
        let known = self.0.get(&hashes(info).0);
        known.is_some_and(|known| !known.never && known.emptied.is_none_or(late))
    }

    /// Whether the Service worked after `since`.
    pub(crate) fn has_lately(&self, info: &ServiceInfo, since: Mono) -> bool {
        let known = self.0.get(&hashes(info).0);
        known.is_some_and(|known| known.last >= since)
    }

    /// Hashes of the namespaces whose Services were used in the last hour. The pod probe's namespace does not
    /// count. It is in use on every node, so one namespace of users would always be one of two and never
    /// enough to accuse.
    pub fn namespaces_used(&self, family: Family, now: Mono) -> BTreeSet<u64> {
        let in_use = self
            .of(family)
            .filter(|known| now.since(known.last) <= IN_USE_FOR && known.namespace != PROBES);
        in_use.map(|known| known.namespace).collect()
    }

    fn of(&self, family: Family) -> impl Iterator<Item = &Known> {
        self.0.values().filter(move |known| known.family == family)
    }
}

/// Replaces the hash of the pod probe's namespace.
const PROBES: u64 = 0;

/// Hashes of the Service port and of its namespace.
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

    fn has(worked: &ServicesSeenWorking, service: &ServiceInfo) -> bool {
        worked.has(service, Mono(1))
    }

    #[test]
    fn services_of_each_family_are_known_for_themselves() {
        let mut worked = ServicesSeenWorking::default();
        let hour = Mono(3_600_000_000_000);
        worked.succeed(&ServiceInfo::plain("shop", "web", Family::V4), 1, Mono(0));
        worked.succeed(&ServiceInfo::plain("bank", "api", Family::V4), 1, Mono(1));
        assert!(has(&worked, &ServiceInfo::plain("shop", "web", Family::V4)));
        assert!(!has(
            &worked,
            &ServiceInfo::plain("shop", "web", Family::V6)
        ));
        assert!(!has(
            &worked,
            &ServiceInfo::plain("bank", "web", Family::V4)
        ));
        assert_eq!(worked.namespaces_used(Family::V4, hour).len(), 2);
        let probe = ServiceInfo {
            echo: true,
            ..ServiceInfo::plain("pathproof", "pathproof-echo", Family::V4)
        };
        worked.succeed(&probe, 1, hour);
        assert_eq!(worked.namespaces_used(Family::V4, hour).len(), 2);
        assert_eq!(
            worked.namespaces_used(Family::V4, Mono(hour.0 + 1)).len(),
            1,
            "an hour later"
        );
        assert!(worked.is_empty(Family::V6));
    }

    #[test]
    fn one_that_lost_its_endpoints_has_a_grace() {
        let (mut worked, service) = (
            ServicesSeenWorking::default(),
            ServiceInfo::plain("shop", "web", Family::V4),
        );
        worked.lack_endpoints(&service, Mono(0));
        assert!(worked.is_empty(Family::V4));
        worked.succeed(&service, 1, Mono(0));
        worked.lack_endpoints(&service, Mono(0));
        assert!(!has(&worked, &service) && !worked.is_empty(Family::V4));
        let late = Mono(0).plus(FIRST_ENDPOINTS).plus(Duration::from_nanos(1));
        assert!(worked.has(&service, late));
        worked.succeed(&service, 1, Mono(1));
        assert!(has(&worked, &service), "it worked with its next endpoints");
    }

    /// One namespace starts with hundreds of Services.
    #[test]
    fn no_namespace_takes_all_places() {
        let mut worked = ServicesSeenWorking::default();
        for number in 0..2 * KEPT as u64 {
            let name = number.to_string();
            worked.succeed(
                &ServiceInfo::plain("tenant", &name, Family::V4),
                1,
                Mono(number),
            );
        }
        for namespace in ["shop", "bank"] {
            let service = ServiceInfo::plain(namespace, "web", Family::V4);
            worked.succeed(&service, 1, Mono(1_000));
            assert!(has(&worked, &service));
        }
        assert_eq!(worked.0.len(), KEPT);
        let used = worked.namespaces_used(Family::V4, Mono(1_000));
        assert_eq!(used.len(), 3);
        assert!(!has(
            &worked,
            &ServiceInfo::plain("tenant", "0", Family::V4)
        ));
    }

    #[test]
    fn those_used_last_are_kept() {
        let mut worked = ServicesSeenWorking::default();
        for number in 0..=KEPT {
            let service = ServiceInfo::plain("shop", &number.to_string(), Family::V4);
            worked.succeed(&service, 1, Mono(number as u64));
        }
        assert_eq!(worked.0.len(), KEPT);
        assert!(!has(&worked, &ServiceInfo::plain("shop", "0", Family::V4)));
        assert!(has(
            &worked,
            &ServiceInfo::plain("shop", &KEPT.to_string(), Family::V4)
        ));
    }
}
