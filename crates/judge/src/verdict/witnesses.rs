//! The failing witnesses of a family: groups of clients whose Services worked before. Each group is one
//! [`Scope`]: pods of this node, the pod probe, or clients outside. An innocent cause that affects only one
//! scope, such as a network policy for pods, does not explain failures in another scope. The node's own
//! processes are a fourth scope, whose successes are not observed ([`Case::host_group`]).
//!
//! Nothing here decides; [`decision`](super::decision) does.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use pathproof_facts::cause::{FAILURES, Failure};
use pathproof_facts::limits::FAILURES_COUNT_FOR;
use pathproof_facts::owners::Owner;
use pathproof_facts::time::Mono;
use pathproof_facts::trace::ProbePath;
use pathproof_wire::service::SourceClass;
use pathproof_witness::ledger::{FailingService, READ_WITHIN, commonest};

use super::case::{Case, Grounds};
use super::counted::CountedFamilies;
use super::finding::{ConcurrentFailures, Evidence, MissingCriterion, Named, Scope};
use super::lanes::{MAIN, Probed};

/// Maximum difference between the onsets of two witnesses that count as simultaneous. Probes are sent twice
/// a second.
const SAME_ONSET: Duration = Duration::from_millis(500);
/// Maximum time by which the first failure of a witness can lag behind the fault.
const NOTICED_WITHIN: Duration = Duration::from_secs(2);
/// Minimum duration of failures of the node itself.
const HOST_LASTED: Duration = Duration::from_secs(15);
/// Number of failures of the pod probe that are enough: pathproof opens its connections itself, one a second.
const PROBE_FAILURES: u64 = 2;

impl Scope {
    /// Class of the clients in this scope.
    pub(super) fn class(self) -> SourceClass {
        match self {
            Scope::PodProbe | Scope::Pods => SourceClass::Pod,
            Scope::Outside => SourceClass::External,
            Scope::Host => SourceClass::Host,
        }
    }
}

/// Services of one scope that worked and now fail.
pub(super) struct Group<'a> {
    pub(super) scope: Scope,
    pub(super) services: Vec<FailingService<'a>>,
    /// Arrival of the first failed connection after the last success of the same class of clients.
    pub(super) since: Mono,
    /// When the last failure was noticed.
    pub(super) last: Mono,
    /// Last success of the same class of clients.
    pub(super) last_success: Option<Mono>,
}

impl<'a> Group<'a> {
    fn new(scope: Scope, services: Vec<FailingService<'a>>, last: Option<Mono>) -> Option<Self> {
        let failing = || services.iter().map(|service| service.failing);
        let since = failing().map(|failing| failing.since).min()?;
        Some(Self {
            scope,
            since: last.map_or(since, |last| last.max(since)),
            last: failing().map(|failing| failing.last).max()?,
            last_success: last,
            services,
        })
    }

    /// Earliest possible start of the fault, which may precede the first failure: a client that dials once a
    /// second notices it later than others.
    pub(super) fn onset(&self) -> Mono {
        let worked = self.services.iter().map(|service| service.worked).max();
        let earliest = self.since.minus(NOTICED_WITHIN);
        worked
            .max(self.last_success)
            .map_or(self.since, |at| at.clamp(earliest, self.since))
    }

    pub(super) fn failures(&self) -> [u64; FAILURES] {
        sum(self
            .services
            .iter()
            .map(|service| service.failing.failures()))
    }

    /// Whether there are more failures than a few unrelated ones.
    pub(super) fn are_enough(&self, case: &Case<'_>) -> bool {
        let enough = match self.scope {
            // The pod probe also fails if other nodes are gone: without an armed lane, it needs as many
            // failures as other clients.
            Scope::PodProbe if case.main().any(|(_, lane)| lane.armed) => PROBE_FAILURES,
            Scope::PodProbe | Scope::Pods | Scope::Outside | Scope::Host => {
                case.limits().service_failures.into()
            }
        };
        self.failures().iter().sum::<u64>() >= enough
    }

    /// Whether there are enough failures, and clients outside are credible: there are two of them, or they
    /// use a Service that worked often before.
    pub(super) fn is_felt(&self, case: &Case<'_>) -> bool {
        let known =
            |service: &FailingService<'_>| service.successes >= case.limits().service_failures;
        let believed = self.scope != Scope::Outside
            || self.clients().len() >= case.limits().broken_sources
            || self.services.iter().any(known);
        self.are_enough(case) && believed
    }

    pub(super) fn clients(&self) -> BTreeSet<IpAddr> {
        let clients = self.services.iter().map(|service| &service.failing.clients);
        clients.flatten().copied().collect()
    }

    pub(super) fn objects(&self) -> BTreeSet<&'a str> {
        let objects = self
            .services
            .iter()
            .map(|service| service.failing.object.as_str());
        objects.collect()
    }

    /// The part of the group whose failures no policy causes: connections that left untranslated, went to
    /// an address that was never an endpoint, or were refused by the node's stack at an address of the
    /// node.
    pub(super) fn without_rules(&self, case: &Case<'_>) -> Option<Group<'a>> {
        let ipvs = (case.ledger.sentinel.owners(case.family)).contains(Owner::Ipvs);
        let own_address = self.scope == Scope::Outside || ipvs;
        let without = |service: &&FailingService<'_>| {
            let (failing, failures) = (service.failing, service.failing.failures());
            let counts = |failure: Failure| match failure {
                Failure::Leaked => true,
                Failure::Misrouted => !failing.misdelivered,
                Failure::Refused => own_address && !failing.icmp,
                Failure::Stale | Failure::AnswerNotDelivered | Failure::Lost => false,
            };
            let all = Failure::ALL.into_iter().zip(failures);
            let without: u64 = all
                .filter(|(failure, _)| counts(*failure))
                .map(|(_, n)| n)
                .sum();
            2 * without > failures.iter().sum()
        };
        let services = self.services.iter().filter(without).copied();
        Group::new(self.scope, services.collect(), self.last_success)
    }
}

impl<'a> Case<'a> {
    /// Services of a scope that have failed since the last success of their class of clients. `onset` is the
    /// range of time in which another witness began to fail. With it, a Service counts only if it began to
    /// fail after the start of that range and its class had no success after the end, both with a tolerance:
    /// see [`SAME_ONSET`] and [`Limits::proof_overlap`](pathproof_facts::limits::Limits::proof_overlap).
    pub(super) fn group(&self, scope: Scope, onset: Option<(Mono, Mono)>) -> Option<Group<'a>> {
        let forwarded = self.evidence.forwarded;
        let (last, worked) = match scope {
            // Successes of the node itself are not observed, so those of all other clients end its failures.
            Scope::Host => (
                forwarded.into_iter().max().flatten(),
                &self.ledger.leaked_from_host,
            ),
            Scope::Outside => (
                forwarded[scope.class() as usize],
                &self.ledger.worked_outside,
            ),
            Scope::PodProbe | Scope::Pods => {
                (forwarded[scope.class() as usize], &self.ledger.worked)
            }
        };
        let after = |at: Mono, span: Duration| last.is_none_or(|last| last <= at.plus(span));
        let limits = self.limits();
        // If some clients of a Service already failed while others were served, a pause of the served ones
        // looks like an onset. Such a Service counts only after a longer time without a success.
        let read = self.ledger.seen(self.now);
        let silent = last.is_none_or(|last| read.since(last) >= limits.broken_after);
        let counts = |service: &FailingService<'_>| match onset {
            Some((from, until)) => {
                service.failing.onset().plus(SAME_ONSET) >= from
                    && after(until, limits.proof_overlap)
                    && (silent || !service.is_mixed)
            }
            None => after(service.failing.last, Duration::ZERO),
        };
        let services = worked.failing(self.family).filter(|service| {
            service.is_pod_probe == (scope == Scope::PodProbe)
                && self.is_recent(scope, service.failing.last)
                && counts(service)
        });
        Group::new(scope, services.collect(), last)
    }

    /// Whether a failure still counts. It does while it is young. If no connection of the family has
    /// succeeded since, it counts for longer, because load balancers may have left. It also counts while
    /// the kernel shows an obstacle that may have caused it. Processes of the node do not leave.
    fn is_recent(&self, scope: Scope, last: Mono) -> bool {
        let success = self.evidence.forwarded.into_iter().flatten().max();
        let untried = scope != Scope::Host && success.is_none_or(|at| at <= last);
        let obstructed = |at: Mono| last.plus(READ_WITHIN) >= at;
        self.is_within_proof_age(last)
            || (untried && self.now.since(last) <= FAILURES_COUNT_FOR)
            || (self.evidence.obstacle.present(scope.class()))
                .is_some_and(|obstacle| obstructed(obstacle.since))
    }

    /// The failing group of each scope, whatever its onset.
    pub(super) fn groups(&self) -> Vec<Group<'a>> {
        let scopes = [Scope::Pods, Scope::PodProbe, Scope::Outside];
        let groups = scopes.into_iter().map(|scope| self.group(scope, None));
        groups.flatten().collect()
    }

    /// The group of the node itself, if its leaks can only mean that rules are gone. A passing probe shows
    /// that the proxy translates connections of the node. The time is longer than a dead watch of Services
    /// stays unnoticed. There is no hurry, because nobody else uses the node as far as that is observed.
    pub(super) fn host_group(&self) -> Option<Group<'a>> {
        let (_, lane) = self.tcp(ProbePath::Host);
        let knows_users =
            self.inputs.counted == CountedFamilies::Used && !self.inputs.clients_unseen;
        let read = self.ledger.seen(self.now);
        let group = self.group(Scope::Host, None)?;
        let has_lasted = read.since(group.since) >= HOST_LASTED;
        (knows_users && has_lasted && self.is_passing(lane)).then_some(group)
    }

    /// Whether a lane passes that is closer to the path of these clients than the failing lane is.
    pub(super) fn passes_for(&self, scope: Scope, failing: Option<ProbePath>, since: Mono) -> bool {
        // Connections to node ports and from off-cluster addresses are masqueraded and those of pods are
        // not. A masqueraded lane that passes shows nothing about filters on pods' addresses.
        let nearer: &[ProbePath] = match (scope, failing) {
            (Scope::Outside, Some(ProbePath::NodePort)) => &[],
            (Scope::Outside, _) => &[ProbePath::NodePort],
            (_, Some(ProbePath::NodePort)) => &[ProbePath::Pod, ProbePath::OffCluster],
            (_, Some(ProbePath::OffCluster) | None) => &[ProbePath::Pod],
            (_, Some(ProbePath::Pod | ProbePath::Host)) => &[],
        };
        let after = since.plus(self.limits().proof_overlap);
        nearer.iter().any(|path| {
            let (lane, ledger) = self.tcp(*path);
            let silenced = ledger.armed && ledger.in_conflict && ledger.run.is_none();
            let passes = self.is_passing(ledger) && ledger.last_pass > Some(after);
            self.ledger.sentinel.represents_real_traffic(lane.path) && (silenced || passes)
        })
    }

    /// Whether every armed lane that represents the node passed after `since`, and none fails.
    pub(super) fn sentinel_passes(&self, since: Mono) -> bool {
        let mut armed = self.main().filter(|(_, lane)| lane.armed).peekable();
        let passed = |at: Option<Mono>| at.is_some_and(|at| at > since);
        armed.peek().is_some()
            && armed.all(|(_, lane)| self.is_passing(lane) && passed(lane.last_pass))
    }

    /// Time of the last failed probe on lanes that pass again. Connections that failed until then were
    /// repaired together with these lanes.
    pub(super) fn sentinel_recovered(&self) -> Mono {
        let passing = self.main().filter(|(_, lane)| self.is_passing(lane));
        let failed = passing.filter_map(|(_, lane)| lane.last_counted_failure);
        failed.max().unwrap_or_default()
    }

    /// Criterion that failed connections lack to accuse the node by themselves. Without the sentinel, only
    /// the number of Services, clients and namespaces separates a fault from the effect of one namespace's
    /// policies.
    pub(super) fn missing_breadth(&self, groups: &[Group<'a>]) -> Option<MissingCriterion> {
        let limits = self.limits();
        let scoped = |scope: Scope| groups.iter().find(|group| group.scope == scope);
        let Some(pods) = scoped(Scope::Pods) else {
            return Some(match groups.is_empty() {
                true => MissingCriterion::New,
                false => MissingCriterion::Pod,
            });
        };
        let all = || [Some(pods), scoped(Scope::Outside)].into_iter().flatten();
        let may_be_denied = commonest(&sum(all().map(Group::failures))) != Some(Failure::Leaked);
        let services: BTreeSet<&str> = all().flat_map(Group::objects).collect();
        let namespaces: BTreeSet<&str> = (all().flat_map(|group| &group.services))
            .map(|service| service.failing.namespace())
            .collect();
        let clients: BTreeSet<IpAddr> = all().flat_map(Group::clients).collect();
        let used = self.ledger.worked.namespaces_used(self.family, self.now);
        if self.sentinel_passes(pods.since) {
            Some(MissingCriterion::ProbesPass)
        } else if self.is_sentinel_filtered(pods.since) && may_be_denied {
            Some(MissingCriterion::Filtered)
        } else if self.is_sentinel_in_conflict() && may_be_denied {
            Some(MissingCriterion::SentinelConflict)
        } else if self.is_node_unprobed() && may_be_denied {
            Some(MissingCriterion::Unprobed)
        } else if services.len() < limits.broken_services {
            Some(MissingCriterion::Services)
        } else if namespaces.len() < limits.broken_namespaces.min(used.len()) {
            Some(MissingCriterion::Namespaces)
        } else if clients.len() < limits.broken_sources {
            Some(MissingCriterion::Sources)
        } else if self.endpoints(all()) < u64::from(limits.broken_endpoints) {
            Some(MissingCriterion::Endpoints)
        } else {
            // The three seconds start with the last probe that passed: it refuted the failures until then.
            let first = pods.since.max(self.last_passing_probe());
            (!self.lasted(first, pods.last)).then_some(MissingCriterion::Time)
        }
    }

    fn endpoints<'g>(&self, groups: impl Iterator<Item = &'g Group<'a>>) -> u64
    where
        'a: 'g,
    {
        let mut of_service: BTreeMap<&str, u32> = BTreeMap::new();
        for service in groups.flat_map(|group| &group.services) {
            let endpoints = of_service.entry(&service.failing.object).or_default();
            *endpoints = service.failing.endpoints.max(*endpoints);
        }
        of_service.values().map(|n| u64::from(*n)).sum()
    }

    /// Whether failures have lasted: they began at least three seconds before the last reading and went
    /// on for at least one. Nothing is known about the time after that reading.
    pub(super) fn lasted(&self, since: Mono, last: Mono) -> bool {
        let limits = self.limits();
        self.ledger.seen(self.now).since(since) >= limits.broken_after
            && last.since(since) >= limits.broken_after.saturating_sub(limits.broken_fresh)
    }

    /// Whether lanes fail for a separate reason: they failed before connections did, or have passed since. A
    /// lane that was not judged when connections began to fail (a new sentinel, damaged devices) may fail for
    /// the same reason.
    fn is_sentinel_filtered(&self, connections_since: Mono) -> bool {
        let is_separate = |(_, lane): &Probed<'a>| {
            let since = match self.run(lane) {
                Some(run) => Some(run.onset()),
                // A gap, damaged devices or a restart ended the run, but not its reason.
                None => lane.failed_before(self.now),
            };
            since.is_some_and(|since| {
                since.plus(SAME_ONSET) < connections_since
                    || lane.last_pass > Some(connections_since)
            })
        };
        self.accusing().iter().any(is_separate) && self.ledger.sentinel.view.counts()
    }

    /// Whether other Services use the frontends of all lanes that represent the node.
    fn is_sentinel_in_conflict(&self) -> bool {
        let mut main = MAIN.into_iter().map(|path| self.tcp(path));
        main.any(|(_, lane)| lane.armed && lane.in_conflict)
            && self.main().all(|(_, lane)| !lane.armed)
    }

    /// Whether only the host path represents real connections, and passes. Cilium translates only at
    /// interfaces that it manages, and the sentinel's are not among them.
    fn is_node_unprobed(&self) -> bool {
        let sentinel = &self.ledger.sentinel;
        let is_unprobed = MAIN
            .iter()
            .all(|path| !sentinel.represents_real_traffic(*path));
        is_unprobed && self.is_passing(self.tcp(ProbePath::Host).1)
    }

    /// When a probe of a lane that represents the node last passed, even if the lane fails now.
    fn last_passing_probe(&self) -> Mono {
        let passes = self.main().filter_map(|(_, lane)| lane.last_pass);
        passes.max().unwrap_or_default()
    }

    /// Failed connections as evidence.
    pub(super) fn failed_connections(
        &self,
        groups: &[Group<'a>],
        lacking: Option<MissingCriterion>,
    ) -> Option<Grounds> {
        let failures = sum(groups.iter().map(Group::failures));
        let cause = self.ledger.cause(commonest(&failures)?, self.now);
        let evidence = Evidence::Connections {
            services: named(groups),
            since: groups.iter().map(|group| group.since).min()?,
            lacking,
            clients: groups.iter().map(|group| group.scope).collect(),
            failures: failures.iter().sum(),
            last_success: groups.iter().filter_map(|group| group.last_success).max(),
        };
        Some((Some(cause), evidence))
    }

    /// Evidence of groups that fail beside probes, each scope once.
    pub(super) fn beside(&self, mut groups: Vec<Group<'a>>) -> Option<ConcurrentFailures> {
        groups.sort_by_key(|group| (group.scope, group.since));
        groups.dedup_by_key(|group| group.scope);
        let classes: Vec<SourceClass> = groups.iter().map(|group| group.scope.class()).collect();
        let others = (SourceClass::ALL.into_iter().zip(self.evidence.forwarded))
            .filter(|(class, _)| !classes.contains(class));
        let since = groups.iter().map(|group| group.since).min()?;
        Some(ConcurrentFailures {
            services: named(&groups),
            failures: groups.iter().flat_map(Group::failures).sum(),
            since,
            last_success: groups.iter().filter_map(|group| group.last_success).max(),
            others_succeed: others.filter_map(|(_, at)| at).any(|at| at > since),
            clients: groups.iter().map(|group| group.scope).collect(),
        })
    }
}

/// Sum of failures by kind.
fn sum(failures: impl Iterator<Item = [u64; FAILURES]>) -> [u64; FAILURES] {
    failures.fold([0; FAILURES], |sum, more| {
        std::array::from_fn(|kind| sum[kind] + more[kind])
    })
}

/// Names of the groups' Services, each once.
fn named(groups: &[Group<'_>]) -> Named {
    let services = groups.iter().flat_map(|group| &group.services);
    let labels = services.map(|service| service.failing.label.as_str());
    Named::of(labels.collect::<BTreeSet<_>>().into_iter())
}
