//! Evidence kept per IP family, and the run of failures in it that no proof has interrupted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use agent_common::service::{SOURCE_CLASSES, SourceClass};
use serde::{Deserialize, Serialize};

use super::answers::Answers;
use super::obstacle::Obstructed;
use super::service::{WINDOW, Window};
use crate::cause::{FAILURES, Failure};
use crate::evidence::ServiceInfo;
use crate::limits::Limits;
use crate::time::Mono;

/// Clients told apart in one run. More change nothing: the rules ask for two.
pub(crate) const SOURCES_KEPT: usize = 16;
/// Service ports named in one run; beyond, they are counted under their failure only.
pub(crate) const SERVICES_KEPT: usize = 256;

/// Endpoints of this node to be missed by their route: one may be about to go, and its route gone before
/// its slice says so.
const MISSED: usize = 2;

/// Evidence on one family. Serialisable: it outlives the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct FamilyLedger {
    /// By path.
    pub(crate) proofs: [Option<Mono>; SOURCE_CLASSES],
    /// By path; unheard ones do not count.
    pub(crate) failures: [Option<Mono>; SOURCE_CLASSES],
    /// Answers of endpoints that went on, or did not.
    #[serde(default, skip_serializing_if = "Answers::are_unknown")]
    pub(crate) answers: Answers,
    /// When a new connection last arrived.
    pub(crate) arrival: Option<Mono>,
    /// Failures since the last proof.
    pub(crate) streak: Option<Streak>,
    /// Clients that did not hear their answer, and when last.
    pub(crate) unheard: Vec<(IpAddr, Mono)>,
    /// Connections from outside were sent on and not answered: when the first and the last of a run
    /// were told.
    #[serde(default)]
    pub(crate) unanswered: Option<(Mono, Mono)>,
    /// Connections from outside that the node refused, to Services that worked for outsiders.
    #[serde(default)]
    refused: Window,
    /// When these refusals last reached `service_failures`.
    #[serde(default)]
    pub(crate) refused_outside: Option<Mono>,
    /// Obstacle in the node itself, and what clients outside met.
    #[serde(default)]
    pub(crate) obstructed: Obstructed,
}

impl FamilyLedger {
    /// Whether anything was ever seen.
    pub(crate) fn is_known(&self) -> bool {
        // An obstacle alone says nothing of connections: not every node has both families.
        let seen = Self {
            obstructed: self.obstructed.without_obstacle(),
            ..self.clone()
        };
        seen != Self::default()
    }

    /// The last proof of any path.
    pub(crate) fn last_proof(&self) -> Option<Mono> {
        self.proofs.into_iter().max().flatten()
    }

    /// The last failure of any path.
    pub(crate) fn last_failure(&self) -> Option<Mono> {
        self.failures.into_iter().max().flatten()
    }

    /// A connection was proven. Failures before it accuse no more; those after it will come again.
    pub(crate) fn prove(&mut self, class: SourceClass, at: Mono) {
        let proof = &mut self.proofs[class as usize];
        *proof = (*proof).max(Some(at));
        self.streak.take_if(|streak| streak.since <= at);
        if class == SourceClass::External {
            self.obstructed.prove(at);
        }
    }

    /// The answer to a connection that had arrived then did not go on to its client. Takes back the proofs
    /// later than the last answer that went on.
    pub(crate) fn lose_answer(&mut self, class: SourceClass, arrived: Mono) {
        if let Some(last) = self.answers.lose(class, arrived) {
            let proof = &mut self.proofs[class as usize];
            *proof = (*proof).min(Some(last));
        }
    }

    /// A connection of that path failed.
    pub(crate) fn fail(&mut self, class: SourceClass, at: Mono) {
        let failure = &mut self.failures[class as usize];
        *failure = (*failure).max(Some(at));
    }

    /// Adds to the run of failures. A run with nothing in it for longer than `proof_age` is over.
    pub(crate) fn run(&mut self, entry: &Entry<'_>, proof_age: Duration) {
        let goes_on = |streak: &Streak| entry.last.since(streak.last) <= proof_age;
        let streak = self.streak.take().filter(goes_on);
        let streak = streak.unwrap_or_else(|| Streak {
            since: entry.since,
            ..Streak::default()
        });
        self.streak.insert(streak).enter(entry);
    }

    /// A Service has no endpoint: its failures accuse the node no more.
    pub(crate) fn excuse(&mut self, info: &ServiceInfo) {
        let services = self.streak.as_mut().map(|streak| &mut streak.services);
        if let Some(service) = services.and_then(|services| services.get_mut(&info.label())) {
            service.accuses = false;
        }
    }

    /// A connection from outside was sent on and not answered.
    pub(crate) fn leave_unanswered(&mut self, at: Mono) {
        let run = self
            .unanswered
            .filter(|(_, last)| at.since(*last) <= WINDOW);
        self.unanswered = Some((run.map_or(at, |(first, _)| first), at));
    }

    /// Connections from outside were refused by the node, to a Service that worked for outsiders.
    pub(crate) fn refuse(&mut self, n: u32, at: Mono, limits: &Limits) {
        self.refused.add(at, n);
        if self.refused.at(at) >= limits.service_failures {
            self.refused_outside = Some(at);
        }
    }

    /// A client did not hear its answer.
    pub(crate) fn unhear(&mut self, client: IpAddr, at: Mono) {
        if let Some((_, last)) = self.unheard.iter_mut().find(|(known, _)| *known == client) {
            *last = at.max(*last);
            return;
        }
        if self.unheard.len() >= SOURCES_KEPT {
            let oldest = (0..self.unheard.len()).min_by_key(|place| self.unheard[*place].1);
            oldest.map(|place| self.unheard.swap_remove(place));
        }
        self.unheard.push((client, at));
    }
}

/// A run of failures since the last proof. Services are known by name: ids do not outlive a
/// restart of the agent, a run does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Streak {
    /// The earliest failure.
    pub(crate) since: Mono,
    /// The last one.
    pub(crate) last: Mono,
    /// When the last of the connections arrived; where that is not known, the earliest it may have.
    #[serde(default)]
    pub(crate) arrived: Mono,
    /// A pod of this node is among the clients.
    pub(crate) pod: bool,
    /// By label (`namespace/name:port`).
    pub(crate) services: BTreeMap<String, StreakService>,
    /// First and last failure of those that accuse: victims, of Services that worked before.
    #[serde(default)]
    pub(crate) accusing: Option<(Mono, Mono)>,
    /// Distinct pods among them.
    pub(crate) sources: Vec<IpAddr>,
    /// By [`Failure`].
    pub(crate) failures: [u64; FAILURES],
    /// Endpoints of this node for which connections left by an uplink, whoever dialled: two of each
    /// namespace.
    #[serde(default)]
    pub(crate) missed: Vec<Missed>,
    /// When there were last two of them within the window.
    #[serde(default)]
    pub(crate) wrong_routes: Option<Mono>,
    /// When they were last of two namespaces.
    #[serde(default)]
    pub(crate) wide_routes: Option<Mono>,
}

/// An endpoint of this node that its route missed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Missed {
    pub(crate) endpoint: IpAddr,
    /// Of the Service: whoever may edit it may call any address an endpoint of this node.
    pub(crate) namespace: Box<str>,
    pub(crate) at: Mono,
}

/// A Service port in a run of failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreakService {
    /// `namespace/name`: the ports of a Service are one Service.
    pub(crate) object: String,
    /// Current endpoints when it last failed.
    pub(crate) endpoints: u32,
    /// It worked before, and pods are among its clients.
    #[serde(default)]
    pub(crate) accuses: bool,
}

/// One entry into a run.
pub(crate) struct Entry<'a> {
    pub(crate) since: Mono,
    pub(crate) last: Mono,
    /// When the connection arrived; where that is not known, when it did at the earliest.
    pub(crate) arrived: Mono,
    pub(crate) class: SourceClass,
    pub(crate) client: Option<IpAddr>,
    pub(crate) failures: &'a [(Failure, u32)],
    /// The endpoint of this node for which it left by an uplink.
    pub(crate) misdelivered: Option<IpAddr>,
    /// A pod of this node is the client, and the Service worked before.
    pub(crate) accuses: bool,
    pub(crate) info: &'a ServiceInfo,
}

/// Circumstances in which a run accuses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    /// Namespaces of which pods of this node use Services.
    pub(crate) namespaces: usize,
    /// The sentinel's probes pass since the run began: what policies do, drop and reject, is no
    /// fault then, and nothing accuses unless routes are seen to be wrong.
    pub(crate) referee_passes: bool,
    /// Other Services took the referee away, by claims to what its probes dial: what policies do is
    /// no fault then either, or one tenant could do both.
    pub(crate) referee_claimed: bool,
    /// Probes from outside the node take another way than pods' connections, and those of the node
    /// itself pass: nothing tells a fault from what policies do.
    pub(crate) referee_aside: bool,
    /// When a probe last passed of a lane that stands for the node: what failed until then had a
    /// referee, whatever became of it since.
    pub(crate) refereed: Mono,
}

/// Condition that a run does not meet yet to be a broken datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lacking {
    /// The sentinel's probes pass, and no two endpoints were missed by a wrong route.
    Referee,
    /// Other Services claim what the sentinel's probes dial, and what failed may be denied.
    Claimed,
    /// No probe takes the way of pods' connections, and what failed may be denied.
    Aside,
    /// No pod of this node among the clients.
    Pod,
    /// No Service that worked before.
    New,
    /// Too few Services fail.
    Services,
    /// All of one namespace, and others are in use.
    Namespaces,
    /// Too few endpoints behind them.
    Endpoints,
    /// Too few pods of this node.
    Sources,
    /// It is not long enough, or stopped too early.
    Time,
}

impl Streak {
    fn enter(&mut self, entry: &Entry<'_>) {
        self.since = self.since.min(entry.since);
        self.last = self.last.max(entry.last);
        self.arrived = self.arrived.max(entry.arrived);
        self.pod |= entry.class == SourceClass::Pod;
        let label = entry.info.label();
        if entry.accuses {
            self.accuse(entry);
        }
        for (failure, n) in entry.failures {
            let count = &mut self.failures[*failure as usize];
            *count = count.saturating_add(u64::from(*n));
        }
        // Those that accuse are few: they worked before.
        let room = self.services.len() < SERVICES_KEPT || entry.accuses;
        if room || self.services.contains_key(&label) {
            let service = self.services.entry(label).or_insert_with(|| StreakService {
                object: entry.info.name.to_string(),
                endpoints: 0,
                accuses: false,
            });
            service.endpoints = entry.info.endpoints;
            service.accuses |= entry.accuses;
        }
        if let Some(endpoint) = entry.misdelivered {
            self.miss(endpoint, &entry.info.name.namespace, entry.last);
        }
    }

    /// A pod of this node was not served by a Service that worked before.
    fn accuse(&mut self, entry: &Entry<'_>) {
        let (first, last) = self.accusing.unwrap_or((entry.since, entry.last));
        self.accusing = Some((first.min(entry.since), last.max(entry.last)));
        let new = |client: &IpAddr| !self.sources.contains(client);
        let room = self.sources.len() < SOURCES_KEPT;
        self.sources
            .extend(entry.client.filter(new).filter(|_| room));
    }

    /// A connection for an endpoint of this node left by an uplink.
    fn miss(&mut self, endpoint: IpAddr, namespace: &str, at: Mono) {
        let last = self.last;
        let young = |of: &Missed| last.since(of.at) <= WINDOW;
        self.missed
            .retain(|of| young(of) && of.endpoint != endpoint);
        let same = |of: &Missed| *of.namespace == *namespace;
        let known = self.missed.iter().filter(|of| same(of)).count();
        let oldest = match known < MISSED {
            true => (self.missed.len() >= SOURCES_KEPT).then_some(0),
            false => self.missed.iter().position(same),
        };
        oldest.map(|at| self.missed.remove(at));
        let others = !self.missed.iter().all(same);
        self.missed.push(Missed {
            endpoint,
            namespace: namespace.into(),
            at,
        });
        if self.missed.len() >= MISSED {
            self.wrong_routes = Some(last);
            self.wide_routes = others.then_some(last).or(self.wide_routes);
        }
    }

    /// Routes are wrong. Once they have accused, it holds for as long as the run does: the clients that
    /// show it may be outside, and load balancers take those away.
    fn routes_are_wrong(&self, limits: &Limits, scope: Scope) -> bool {
        let routes = match limits.broken_namespaces.min(scope.namespaces) > 1 {
            true => self.wide_routes,
            false => self.wrong_routes,
        };
        routes.is_some_and(|at| {
            let (first, _) = self.accusing.unwrap_or((at, at));
            self.last.since(at) <= WINDOW || at.since(first) >= limits.broken_after
        })
    }

    /// The commonest failure; among equals, the one that leaves least doubt.
    pub(crate) fn commonest(&self) -> Failure {
        commonest(&self.failures).unwrap_or(Failure::Lost)
    }

    /// Services that accuse, by name, and the most endpoints that a port of theirs has.
    fn objects(&self) -> BTreeMap<&str, u32> {
        let mut objects = BTreeMap::new();
        for service in self.services.values().filter(|service| service.accuses) {
            let endpoints = objects.entry(service.object.as_str()).or_default();
            *endpoints = service.endpoints.max(*endpoints);
        }
        objects
    }

    /// Breadth that is lacking: what one namespace's objects, pods or policies do is its own trouble.
    /// `None` if nothing is lacking.
    pub(crate) fn lacking_breadth(&self, limits: &Limits, scope: Scope) -> Option<Lacking> {
        let objects = self.objects();
        let namespace = |object: &&str| object.split_once('/').map_or("", |(of, _)| of).to_owned();
        let namespaces: BTreeSet<String> = objects.keys().map(namespace).collect();
        let routes_are_wrong = self.routes_are_wrong(limits, scope);
        let may_be_denied = !routes_are_wrong && self.commonest() != Failure::Leaked;
        if scope.referee_passes && !routes_are_wrong {
            Some(Lacking::Referee)
        } else if scope.referee_claimed && may_be_denied {
            Some(Lacking::Claimed)
        } else if scope.referee_aside && may_be_denied {
            Some(Lacking::Aside)
        } else if !self.pod {
            Some(Lacking::Pod)
        } else if self.accusing.is_none() {
            Some(Lacking::New)
        } else if objects.len() < limits.broken_services {
            Some(Lacking::Services)
        } else if namespaces.len() < limits.broken_namespaces.min(scope.namespaces) {
            Some(Lacking::Namespaces)
        } else if self.sources.len() < limits.broken_sources {
            Some(Lacking::Sources)
        } else {
            None
        }
    }

    /// Condition that is lacking to call the datapath broken, from all that was seen until `seen`;
    /// `None` if nothing is lacking.
    ///
    /// The condition "the last failure was fresh when the time was up" holds from then on: no
    /// state is kept for it. That is what makes reading a verdict free of side effects.
    pub(crate) fn lacking(&self, seen: Mono, limits: &Limits, scope: Scope) -> Option<Lacking> {
        if let Some(lacking) = self.lacking_breadth(limits, scope) {
            return Some(lacking);
        }
        let endpoints: u64 = self.objects().values().map(|n| u64::from(*n)).sum();
        let (first, last) = self.accusing.unwrap_or_default();
        // Had it a referee until a moment ago, a probe that fails alone does not make it three seconds old.
        let first = match self.routes_are_wrong(limits, scope) {
            true => first,
            false => first.max(scope.refereed),
        };
        if endpoints < limits.broken_endpoints.into() {
            Some(Lacking::Endpoints)
        } else if seen.since(first) < limits.broken_after
            || last.since(first) < limits.broken_after.saturating_sub(limits.broken_fresh)
        {
            Some(Lacking::Time)
        } else {
            None
        }
    }
}

/// The commonest of some failures; among equals, the one that leaves least doubt.
pub(crate) fn commonest(failures: &[u64; FAILURES]) -> Option<Failure> {
    const BY_DOUBT: [Failure; FAILURES] = [
        Failure::Leaked,
        Failure::Misrouted,
        Failure::Stale,
        Failure::Refused,
        Failure::Lost,
        Failure::Unheard,
    ];
    let most = failures.iter().max().filter(|n| **n > 0)?;
    let is_most = |failure: &Failure| failures[*failure as usize] == *most;
    BY_DOUBT.into_iter().find(is_most)
}
