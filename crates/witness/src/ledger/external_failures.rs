//! Services that fail for clients outside on this node, each judged independently. Their health check node
//! ports answer accordingly.
//!
//! Connections that left untranslated, or for an address that never was an endpoint, always count, since no
//! policy causes either. A connection refused by RST may have been rejected by a policy, so each client counts
//! once, and nodes differ in how long this must last. Two kinds do not count: lost connections, which may have
//! been filtered, and those that were refused by ICMP or went to an endpoint that left, which may follow an old
//! conntrack entry.
//!
//! Once a load balancer has left, no connection can show a repair. So the Service counts as broken only for a
//! hold time, which doubles each time that it is broken again.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use pathproof_facts::cluster::ObjectName;
use pathproof_facts::directory::{Directory, ServiceInfo};
use pathproof_facts::limits::Limits;
use pathproof_facts::time::{Mono, doubled};
use pathproof_wire::service::Family;
use serde::{Deserialize, Serialize};

use super::service::WINDOW;

/// Maximum number of Service ports that are tracked; later ones wait for room.
const KEPT: usize = 256;
/// First hold time, for which the Service counts as broken and load balancers stay away. It doubles with each
/// repetition.
const HOLD: Duration = Duration::from_secs(10);
const LONGEST_HOLD: Duration = Duration::from_secs(300);
/// Time without a failure after which earlier failures are forgotten.
const FORGIVEN: Duration = Duration::from_secs(900);

/// Failures by the id of the Service port and family.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ExternalServiceFailures(BTreeMap<u32, PortRun>);

/// Failures of one Service port since its last proof.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct PortRun {
    service: ObjectName,
    family: Family,
    first: Mono,
    last: Mono,
    n: u32,
    /// Whether at least one failure is of a kind that no policy causes.
    certain: bool,
    /// Clients that were counted, of the kinds of failure that count once per client.
    clients: Vec<IpAddr>,
    /// Time until which the Service counts as broken.
    until: Option<Mono>,
    /// Number of times that it was broken, less than [`FORGIVEN`] apart.
    times: u32,
}

impl ExternalServiceFailures {
    /// Records `n` failed connections of clients outside. `once` is the client of a failure that counts
    /// once per client.
    pub(crate) fn fail(
        &mut self,
        (id, info): (u32, &ServiceInfo),
        (n, once): (u32, Option<IpAddr>),
        at: Mono,
        limits: &Limits,
    ) {
        if self.0.get(&id).is_some_and(|run| !run.is_of(info)) {
            self.0.remove(&id);
        }
        if self.0.len() >= KEPT && !self.0.contains_key(&id) && !self.make_room(at) {
            return;
        }
        let run = self.0.entry(id).or_insert_with(|| PortRun {
            service: info.name.clone(),
            family: info.family,
            first: at,
            last: at,
            n: 0,
            certain: false,
            clients: Vec::new(),
            until: None,
            times: 0,
        });
        let held = run.until.is_some_and(|until| until > at);
        if at.since(run.last) > WINDOW {
            let certain = held && run.certain;
            run.begin_anew(at);
            run.certain = certain;
        }
        if run.n == 0 {
            run.first = at;
        }
        run.last = run.last.max(at);
        match once {
            Some(client) if run.clients.contains(&client) => {}
            // No more clients are needed.
            Some(_) if run.clients.len() > limits.service_failures as usize => {}
            once => {
                run.certain |= once.is_none();
                run.clients.extend(once);
                run.n = run.n.saturating_add(n);
            }
        }
        // After the first time, the nodes' hold times end at different moments.
        let stagger = match run.certain || run.times > 0 {
            true => Duration::ZERO,
            false => limits.service_stagger,
        };
        let long = run.last.since(run.first) >= limits.service_spread + stagger;
        let confirmed = run.n >= limits.service_failures && long;
        if confirmed {
            run.times = run.times.saturating_add(u32::from(!held));
            // The next confirmation needs as many new failures, so one client that retries confirms
            // nothing.
            run.n = 0;
            run.clients.clear();
        }
        if confirmed || (held && once.is_none()) {
            let hold = doubled(HOLD, run.times.saturating_sub(1), LONGEST_HOLD);
            run.until = Some(at.plus(hold));
        }
    }

    /// Records a proof by a client outside. Failures at other ports of the Service are cleared too, if a
    /// policy may have caused all of them.
    pub(crate) fn prove(&mut self, (id, info): (u32, &ServiceInfo)) {
        self.0.retain(|other, run| {
            if *other != id && (run.certain || !run.is_of(info)) {
                return true;
            }
            run.begin_anew(run.first);
            run.until = None;
            run.times > 0
        });
    }

    /// The Service ports that are tracked.
    pub fn ids(&self) -> impl Iterator<Item = u32> {
        self.0.keys().copied()
    }

    /// Removes the run that is not on hold, last failed before `at`, and is the oldest. Returns whether there
    /// was one.
    fn make_room(&mut self, at: Mono) -> bool {
        let is_idle = |run: &PortRun| run.last < at && run.until.is_none_or(|until| until <= at);
        let idle = self.0.iter().filter(|(_, run)| is_idle(run));
        let oldest = idle.min_by_key(|(_, run)| (run.times > 0, run.last));
        let oldest = oldest.map(|(id, _)| *id);
        oldest.is_some_and(|id| self.0.remove(&id).is_some())
    }

    /// Clears all runs: the node as a whole fails, or may have been observed wrongly, so no single Service
    /// is at fault.
    pub fn excuse(&mut self) {
        self.0.clear();
    }

    /// Forgets old failures, and Service ports that are gone or have no endpoints. The id of a Service port
    /// that is gone may be reused.
    pub(crate) fn forget(&mut self, now: Mono, directory: &dyn Directory) {
        self.0.retain(|id, run| {
            let info = directory.service(*id);
            let stands = info.is_some_and(|info| run.is_of(&info) && info.endpoints > 0);
            now.since(run.last) <= FORGIVEN && stands
        });
    }

    /// Broken Services, sorted, once per family.
    pub fn broken(&self, now: Mono) -> Vec<(ObjectName, Family)> {
        let runs = self.0.values();
        let broken = runs.filter(|run| run.until.is_some_and(|until| until > now));
        let mut names: Vec<_> = broken
            .map(|run| (run.service.clone(), run.family))
            .collect();
        names.sort_unstable();
        names.dedup();
        names
    }
}

impl PortRun {
    fn is_of(&self, info: &ServiceInfo) -> bool {
        (&self.service, self.family) == (&info.name, info.family)
    }

    fn begin_anew(&mut self, at: Mono) {
        (self.first, self.n, self.certain) = (at, 0, false);
        self.clients.clear();
    }
}

#[cfg(test)]
mod tests {
    use pathproof_wire::service::Family;

    use super::*;

    const WEB: u32 = 7;

    fn info(name: &str) -> ServiceInfo {
        ServiceInfo::plain("shop", name, Family::V4)
    }

    struct Known<'a>(&'a [(u32, &'a str)]);

    impl Directory for Known<'_> {
        fn service(&self, id: u32) -> Option<ServiceInfo> {
            let known = self.0.iter().find(|(known, _)| *known == id);
            known.map(|(_, name)| info(name))
        }
    }

    fn second(second: u64) -> Mono {
        Mono(second * 1_000_000_000)
    }

    /// web fails once at each of these seconds.
    fn fail(failures: &mut ExternalServiceFailures, seconds: &[u64]) {
        for at in seconds {
            let limits = Limits::default();
            failures.fail((WEB, &info("web")), (1, None), second(*at), &limits);
        }
    }

    fn is_broken(failures: &ExternalServiceFailures, at: u64) -> bool {
        !failures.broken(second(at)).is_empty()
    }

    #[test]
    fn three_failures_over_a_second_without_a_proof_between() {
        let mut failures = ExternalServiceFailures::default();
        fail(&mut failures, &[1, 1, 1]);
        assert!(!is_broken(&failures, 1), "all at once");
        fail(&mut failures, &[2]);
        let web = ObjectName::new("shop", "web");
        assert_eq!(failures.broken(second(2)), [(web, Family::V4)]);
        failures.prove((WEB, &info("web")));
        assert!(!is_broken(&failures, 2), "proven again");
        fail(&mut failures, &[3, 4]);
        assert!(!is_broken(&failures, 4), "only two after the proof");
        failures.prove((WEB, &info("web")));
        fail(&mut failures, &[5, 5, 5]);
        assert!(!is_broken(&failures, 5), "all at once after the proof");
        let mut failures = ExternalServiceFailures::default();
        fail(&mut failures, &[1, 12, 23, 34]);
        assert!(!is_broken(&failures, 34), "too far apart");
    }

    #[test]
    fn a_load_balancer_is_let_back_and_kept_away_longer_each_time_in_vain() {
        let mut failures = ExternalServiceFailures::default();
        let mut now = 1;
        let mut held = Vec::new();
        for _ in 0..7 {
            fail(&mut failures, &[now, now + 1, now + 2]);
            let confirmed = now + 2;
            now = confirmed;
            while is_broken(&failures, now) {
                now += 1;
            }
            held.push(now - confirmed);
        }
        assert_eq!(held, [10, 20, 40, 80, 160, 300, 300]);
        // The Service still fails during the hold, because some clients stayed.
        fail(&mut failures, &[now, now + 1, now + 2, now + 200]);
        assert!(is_broken(&failures, now + 499) && !is_broken(&failures, now + 500));
        failures.forget(second(now + 200 + 901), &Known(&[(WEB, "web")]));
        fail(&mut failures, &[5_000, 5_001, 5_002]);
        assert!(!is_broken(&failures, 5_012), "forgiven");
    }

    #[test]
    fn ambiguous_failures_count_once_per_client() {
        let mut failures = ExternalServiceFailures::default();
        let limits = Limits::default();
        let mut fail = |client: u8, at: u64| {
            let client = IpAddr::from([198, 51, 100, client]);
            let failed = (1, Some(client));
            failures.fail((WEB, &info("web")), failed, second(at), &limits);
            !failures.broken(second(at)).is_empty()
        };
        assert!(!(1..8).any(|at| fail(1, at)));
        assert!(!fail(2, 8) && fail(3, 8));
        assert!(
            fail(3, 17) && !fail(3, 18),
            "a client that retries does not extend the hold"
        );
    }

    /// A new policy rejects clients on all nodes at once.
    #[test]
    fn nodes_differ_in_how_long_ambiguous_failures_must_last() {
        let limits = Limits {
            service_stagger: Duration::from_secs(7),
            ..Limits::default()
        };
        let fail = |failures: &mut ExternalServiceFailures, at: u64, is_certain: bool| {
            let client = IpAddr::from([198, 51, 100, at as u8]);
            let failed = (1, (!is_certain).then_some(client));
            failures.fail((WEB, &info("web")), failed, second(at), &limits);
            !failures.broken(second(at)).is_empty()
        };
        let mut failures = ExternalServiceFailures::default();
        assert!(!(1..9).any(|at| fail(&mut failures, at, false)));
        assert!(fail(&mut failures, 9, false), "8 s after the first one");
        let mut failures = ExternalServiceFailures::default();
        assert!(!fail(&mut failures, 1, true) && !fail(&mut failures, 2, false));
        assert!(fail(&mut failures, 3, false), "no policy causes the first");
    }

    #[test]
    fn ids_are_used_again_and_the_node_may_be_to_blame() {
        let mut failures = ExternalServiceFailures::default();
        fail(&mut failures, &[1, 2]);
        let limits = Limits::default();
        failures.fail((WEB, &info("api")), (1, None), second(3), &limits);
        assert!(!is_broken(&failures, 3), "another Service");
        fail(&mut failures, &[4, 5, 6]);
        assert!(is_broken(&failures, 6));
        failures.excuse();
        assert!(!is_broken(&failures, 6));
    }

    /// Each second another client is refused at the port with this id.
    fn refuse(failures: &mut ExternalServiceFailures, id: u32, seconds: std::ops::Range<u8>) {
        for at in seconds {
            let client = IpAddr::from([198, 51, 100, at]);
            let (failed, at) = ((1, Some(client)), second(u64::from(at)));
            failures.fail((id, &info("web")), failed, at, &Limits::default());
        }
    }

    /// A policy may reject connections to one port and let the other through.
    #[test]
    fn a_proof_at_another_port_clears_failures_that_a_policy_explains() {
        const OTHER: u32 = 8;
        let mut failures = ExternalServiceFailures::default();
        refuse(&mut failures, OTHER, 1..4);
        assert!(is_broken(&failures, 3));
        failures.prove((WEB, &info("api")));
        assert!(is_broken(&failures, 3), "another Service");
        failures.prove((WEB, &info("web")));
        assert!(!is_broken(&failures, 3));
        refuse(&mut failures, OTHER, 4..6);
        failures.prove((WEB, &info("web")));
        refuse(&mut failures, OTHER, 6..8);
        assert!(!is_broken(&failures, 7), "only two after the proof");
        fail(&mut failures, &[10, 11, 12]);
        failures.prove((OTHER, &info("web")));
        assert!(
            is_broken(&failures, 12),
            "no policy makes connections leave untranslated"
        );
    }

    #[test]
    fn a_service_that_is_made_anew_begins_anew() {
        let mut failures = ExternalServiceFailures::default();
        fail(&mut failures, &[1, 2, 3]);
        failures.forget(second(3), &Known(&[(WEB, "web")]));
        assert!(is_broken(&failures, 3));
        failures.forget(second(3), &Known(&[(WEB, "api")]));
        assert!(!is_broken(&failures, 3), "another Service has the id");
        fail(&mut failures, &[4, 5, 6]);
        failures.forget(second(6), &Known(&[]));
        assert!(!is_broken(&failures, 6), "the Service is gone");
    }

    /// A new failure replaces an old run, but not one of a Service that is broken or failed just now.
    #[test]
    fn places_are_bounded() {
        let mut failures = ExternalServiceFailures::default();
        let limits = Limits::default();
        fail(&mut failures, &[1, 2, 3]);
        for id in 1_000..2_000 {
            failures.fail((id, &info("api")), (1, None), second(3), &limits);
        }
        assert_eq!(failures.0.len(), KEPT);
        assert!(!failures.0.contains_key(&1_999), "no run is older");
        failures.fail((1_999, &info("api")), (1, None), second(4), &limits);
        assert_eq!(failures.0.len(), KEPT);
        assert!(is_broken(&failures, 4) && failures.0.contains_key(&1_999));
        // Room is free once the hold is over.
        let mut failures = ExternalServiceFailures::default();
        for id in 0..KEPT as u32 {
            for at in 1..4 {
                failures.fail((id, &info("api")), (1, None), second(at), &limits);
            }
        }
        failures.fail((1_999, &info("api")), (1, None), second(12), &limits);
        assert!(!failures.0.contains_key(&1_999), "all are broken");
        failures.fail((1_999, &info("api")), (1, None), second(14), &limits);
        assert!(failures.0.contains_key(&1_999));
    }
}
