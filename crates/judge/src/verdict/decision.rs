//! The decision: is the node's datapath at fault? Everything in the judgement that can turn an answer into
//! 503 is on this page.
//!
//! A failed connection or probe may have an innocent explanation: the backend, a network policy, a filter on
//! the sentinel's addresses. Each explanation has a scope: the clients that it can affect. The node is at
//! fault if everything that used to work has failed since one moment, and no single innocent explanation
//! covers all failures:
//!
//! - A witness counts only if it worked before, in this boot and for its class of clients, except the host.
//! - A success refutes a failure only if it needed the part of the datapath that is missing.
//! - A failure without an innocent explanation (rules missing, wrong routes, forwarding off) needs no second
//!   witness. Any other failure needs a witness of another scope with the same onset.
//!
//! Each rule is evaluated independently; if several hold, the first one gives the cause. `witnesses` and
//! `lanes` define the terms, and `limits` has the numbers that several modules share. `findings` has the
//! explanations and the undecided cases, which never change a decision.

use std::collections::BTreeSet;

use pathproof_facts::cause::{Cause, ProbeCause};
use pathproof_facts::limits::FAILURES_COUNT_FOR;
use pathproof_facts::time::Mono;
use pathproof_facts::trace::ProbePath;
use pathproof_witness::ledger::{LOST_NOTICED, StaleConnection, Track};
use pathproof_witness::peers::Astray;

use super::case::{Case, Grounds};
use super::finding::{Evidence, Rule, Scope};
use super::lanes::{Failing, LaneJudgement};
use super::witnesses::Group;

type FindGrounds<C> = fn(&C) -> Option<Grounds>;

impl<'a> Case<'a> {
    /// The rules by which the family is unhealthy. One is enough.
    pub(super) fn accusations(&self) -> impl Iterator<Item = (Rule, Grounds)> {
        let rules: [(Rule, FindGrounds<Self>); 9] = [
            (Rule::BrokenByProbes, Self::probes_fail_without_explanation),
            (Rule::BrokenByTwoScopes, Self::two_scopes_fail),
            (Rule::BrokenByRules, Self::rules_are_gone),
            (Rule::BrokenByRoutes, Self::routes_are_wrong),
            (Rule::BrokenByObstacle, Self::kernel_shows_an_obstacle),
            (Rule::BrokenByConnections, Self::many_connections_fail),
            (Rule::BrokenByData, Self::data_is_not_forwarded),
            (
                Rule::StaleByConnections,
                Self::removed_endpoints_get_connections,
            ),
            (Rule::StaleByProbes, Self::rules_do_not_follow),
        ];
        let found = rules.map(|(rule, find)| Some((rule, find(self)?)));
        found.into_iter().flatten()
    }

    /// Probes of a lane that worked fail in a way that no filter on the sentinel's addresses can cause. No
    /// real connection that needs the same part of the datapath has succeeded since.
    fn probes_fail_without_explanation(&self) -> Option<Grounds> {
        let accuses = |failing: &Failing<'a>| self.judgement(*failing) == LaneJudgement::Accuses;
        let lanes: Vec<_> = self.failing().into_iter().filter(accuses).collect();
        let (_, first) = lanes.first()?;
        Some((Some(first.cause().cause()), self.probes(&lanes, Vec::new())))
    }

    /// Two witnesses of different scopes began to fail at the same moment: the sentinel and real connections,
    /// the sentinel and the pod probe, or the pod probe and real connections. One innocent explanation covers
    /// only one witness: a filter on the sentinel's addresses affects only the sentinel, a network policy
    /// only connections, and a policy without an exception for the pod probe only that probe.
    fn two_scopes_fail(&self) -> Option<Grounds> {
        let joined = |failing: Failing<'a>| {
            let needs_witness = self.judgement(failing) == LaneJudgement::NeedsWitness;
            let beside = needs_witness.then(|| self.beside_lane(&failing))?;
            (!beside.is_empty()).then_some((failing, beside))
        };
        let joined = self.failing().into_iter().filter_map(joined);
        let (lanes, beside): (Vec<Failing<'a>>, Vec<_>) = joined.unzip();
        if let Some((_, run)) = lanes.first() {
            let beside = beside.into_iter().flatten().collect();
            return Some((Some(run.cause().cause()), self.probes(&lanes, beside)));
        }
        let probe = self.group(Scope::PodProbe, None)?;
        if !probe.is_felt(self) || self.passes_for(Scope::PodProbe, None, probe.since) {
            return None;
        }
        let beside = [Scope::Pods, Scope::Outside]
            .map(|scope| self.group(scope, Some((probe.onset(), probe.since))));
        let mut groups: Vec<Group<'a>> = beside.into_iter().flatten().collect();
        groups.retain(|group| group.is_felt(self) && self.lasted(group.since, group.last));
        if groups.is_empty() {
            return None;
        }
        groups.push(probe);
        self.failed_connections(&groups, None)
    }

    /// Groups that began to fail together with this lane, unless another lane shows that their path works.
    pub(super) fn beside_lane(&self, (lane, run): &Failing<'a>) -> Vec<Group<'a>> {
        let scopes: &[Scope] = match lane.path {
            // Two proxies translate here: pods' connections use one, and this lane uses the other.
            ProbePath::Pod | ProbePath::OffCluster if self.ledger.sentinel.applicability.mixed => {
                &[Scope::Outside]
            }
            _ => &[Scope::Pods, Scope::PodProbe, Scope::Outside],
        };
        // No policy drops answers alone. So if answers to probes and to real connections are both lost, they
        // need no common onset.
        let is_lost = |scope: Scope| {
            run.cause() == ProbeCause::AnswerLost && self.evidence.answers.is_stuck(scope.class())
        };
        let onset = |scope: Scope| (!is_lost(scope)).then_some((run.onset(), run.onset()));
        let groups = scopes.iter().map(|scope| self.group(*scope, onset(*scope)));
        let counts = |group: &Group<'a>| {
            group.is_felt(self) && !self.passes_for(group.scope, Some(lane.path), run.since)
        };
        groups.flatten().filter(counts).collect()
    }

    /// Every Service that is dialled, two at least, fails as if its rules were missing or belonged to another
    /// Service. No policy causes such failures. A passing probe refutes nothing, because the sentinel's rules
    /// may be intact, unless the sentinel failed as well and recovered.
    fn rules_are_gone(&self) -> Option<Grounds> {
        if self.ledger.observer.misrouted_suspended {
            return None;
        }
        let groups: Vec<_> = self.groups().into_iter().chain(self.host_group()).collect();
        let without: Vec<Group<'a>> = (groups.iter())
            .filter(|group| group.is_felt(self))
            .filter_map(|group| {
                let without = group.without_rules(self)?;
                (without.services.len() == group.services.len()).then_some(without)
            })
            .collect();
        let objects = without.iter().flat_map(Group::objects);
        let services = objects.collect::<BTreeSet<_>>().len();
        let recovered = self.sentinel_recovered();
        let since = without
            .iter()
            .map(|group| group.since)
            .min()?
            .max(recovered);
        let last = without.iter().map(|group| group.last).max()?;
        let goes_on = last > recovered.plus(LOST_NOTICED);
        (services >= self.limits().broken_services && goes_on && self.lasted(since, last))
            .then(|| self.failed_connections(&without, None))?
    }

    /// Connections of any client to at least two endpoints or other nodes leave by the wrong device and stay
    /// unanswered. None over those routes succeeds. One endpoint or node is not enough: it may be about to
    /// leave. The sentinel refutes nothing, because it uses a separate route.
    fn routes_are_wrong(&self) -> Option<Grounds> {
        let (connections, since) = self.local_routes().or_else(|| self.remote_routes())?;
        let clients = self.groups().iter().map(|group| group.scope).collect();
        let evidence = Evidence::Routes {
            connections,
            since,
            clients,
        };
        Some((Some(Cause::Misrouted), evidence))
    }

    /// Connections that left by an uplink for endpoints to which a pod's device led before.
    fn local_routes(&self) -> Option<(u32, Mono)> {
        let limits = self.limits();
        let routes = &self.evidence.routes;
        let used = self.namespaces_in_use();
        let confirmed = routes.are_confirmed(limits.broken_namespaces.min(used) > 1, limits);
        let counts = confirmed && self.now.since(routes.last) <= FAILURES_COUNT_FOR;
        counts.then_some((routes.connections, routes.since))
    }

    /// Connections to other nodes that left by another device than answered ones did before. An answer from
    /// any other node since then refutes this, although perhaps only the route to that node is intact: when
    /// in doubt, 200.
    fn remote_routes(&self) -> Option<(u32, Mono)> {
        let limits = self.limits();
        let answered = self.evidence.remote;
        let astray = self.ledger.peers.astray(self.family);
        let used = self.namespaces_in_use();
        // A node with several uplinks may select one by source address, which is no fault. So connections
        // count only if they left by an uplink, while answered ones left by a tunnel or bridge.
        let is_uplink = |device: &str| self.inputs.uplinks.iter().any(|uplink| **uplink == *device);
        let counts = |usual: &str, astray: &Astray| {
            let namespaces: BTreeSet<&str> = (astray.services.values())
                .filter_map(|name| Some(name.split_once('/')?.0))
                .collect();
            !is_uplink(usual)
                && astray.by.iter().all(|device| is_uplink(device))
                && astray.peers() > 1
                && namespaces.len() >= limits.broken_namespaces.min(used)
                && astray.connections >= limits.service_failures
                && astray.last.since(astray.since) >= limits.service_spread
                && answered.is_none_or(|at| at <= astray.since.plus(limits.proof_overlap))
        };
        let mut astray = astray.into_iter();
        let (_, astray) = astray.find(|(usual, astray)| counts(usual, astray))?;
        Some((astray.connections, astray.since))
    }

    /// Clients are not served, and the kernel shows why.
    fn kernel_shows_an_obstacle(&self) -> Option<Grounds> {
        let scopes = [Scope::Outside, Scope::Pods, Scope::PodProbe];
        scopes.into_iter().find_map(|scope| {
            let obstacle = self.evidence.obstacle.present(scope.class())?;
            let group = self.group(scope, None)?;
            let spread = group.last.since(group.since) >= self.limits().service_spread;
            let failures = group.failures().iter().sum::<u64>();
            (group.are_enough(self) && spread).then(|| {
                let evidence = Evidence::Obstacle {
                    failures: u32::try_from(failures).unwrap_or(u32::MAX),
                    since: group.since,
                    clients: scope,
                };
                (Some(obstacle.cause), evidence)
            })
        })
    }

    /// Connections of pods fail so broadly that no single policy explains it, and no passing probe refutes
    /// them.
    fn many_connections_fail(&self) -> Option<Grounds> {
        let mut groups = self.groups();
        groups.retain(|group| group.scope != Scope::PodProbe);
        match self.missing_breadth(&groups) {
            None => self.failed_connections(&groups, None),
            Some(_) => None,
        }
    }

    /// Handshakes to at least two Services succeed, but the data that follows is not forwarded. No later
    /// connection had data both ways. The sentinel's data may still pass.
    fn data_is_not_forwarded(&self) -> Option<Grounds> {
        let (found, lacking) = self.lost_data()?;
        lacking.is_none().then_some(found)
    }

    /// New connections still go to an endpoint that left long ago, they stay unanswered, and programming has
    /// stalled: no later change has been seen on the wire, although one should have been. If a later change
    /// is seen, the proxy does follow the API, and only that Service has a problem. A client that reuses a
    /// source port follows its old conntrack entry and is no evidence.
    fn removed_endpoints_get_connections(&self) -> Option<Grounds> {
        let limits = self.limits();
        let age = limits.stale_age(self.inputs.usual_lag);
        let counts = |seen: &&StaleConnection| {
            seen.age > limits.left_grace
                && !seen.is_reused
                && self.is_within_proof_age(seen.at)
                && self.stands_still_since(seen.left())
        };
        let scope = |seen: &StaleConnection| match (seen.of_pod, seen.of_outsider) {
            (true, _) => Some(Scope::Pods),
            (_, true) => Some(Scope::Outside),
            _ => None,
        };
        let is_stale = |track: &Track| {
            let old = track.stale().filter(counts).filter(|seen| seen.age >= age);
            old.map(|seen| seen.at).max().is_some_and(|last| {
                // A later change on the wire ends this at once. With the sentinel off nobody sees such changes:
                // then a repair counts once connections succeed after a quiet moment.
                let repaired = self.ledger.programming.is_none()
                    && self.now.since(last) > limits.stale_quiet
                    && track.last_proof >= Some(last);
                self.now.since(last) <= limits.stale_fresh && !repaired
            })
        };
        let tracks: Vec<&Track> = self.tracks().filter(|track| is_stale(track)).collect();
        let connections = tracks.iter().flat_map(|track| track.stale()).filter(counts);
        // A late generation of the sentinel counts as one more witness.
        let late = usize::from(self.is_generation_late());
        if connections.clone().count() + late < limits.stale_connections {
            return None;
        }
        // If several are equally old, the last one.
        let oldest = connections.clone().max_by_key(|seen| seen.age)?;
        let clients: BTreeSet<Scope> = connections.filter_map(scope).collect();
        let evidence = Evidence::LeftEndpoint {
            services: super::case::named(&tracks),
            age: oldest.age,
            destination: oldest.destination,
            clients: clients.into_iter().collect(),
        };
        Some((Some(Cause::Stale), evidence))
    }

    /// Probes pass but reach an old generation of the sentinel: the lane's rules do not follow the API.
    fn rules_do_not_follow(&self) -> Option<Grounds> {
        self.late(self.accusing().into_iter())
    }
}
