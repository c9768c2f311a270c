//! A run of failures in one family that no proof has interrupted.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use agent_common::service::SourceClass;
use serde::{Deserialize, Serialize};

use crate::cause::{FAILURES, Failure};
use crate::limits::Limits;
use crate::time::Mono;

/// Clients told apart in one run. More change nothing: the rules ask for two.
pub(crate) const SOURCES_KEPT: usize = 16;
/// Service ports named in one run; beyond, they are counted under their failure only.
pub(crate) const SERVICES_KEPT: usize = 256;

/// A run of failures since the last proof. Services are known by name: ids do not outlive a
/// restart of the agent, a run does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// Distinct clients.
    pub(crate) sources: Vec<IpAddr>,
    /// By [`Failure`].
    pub(crate) failures: [u64; FAILURES],
}

/// A Service port in a run of failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StreakService {
    /// `namespace/name`: the ports of a Service are one Service.
    pub(crate) object: String,
    /// Current endpoints when it last failed.
    pub(crate) endpoints: u32,
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
    pub(crate) label: &'a str,
    pub(crate) object: &'a str,
    pub(crate) endpoints: u32,
}

/// What a run lacks to be a broken datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Lacking {
    /// Too few Services fail.
    Services,
    /// Too few endpoints behind them.
    Endpoints,
    /// No pod of this node among the clients.
    Pod,
    /// Too few clients.
    Sources,
    /// It is not long enough, or stopped too early.
    Time,
}

impl Streak {
    pub(crate) fn begin(entry: &Entry<'_>) -> Self {
        let mut streak = Self {
            since: entry.since,
            last: entry.last,
            arrived: entry.arrived,
            pod: false,
            services: BTreeMap::new(),
            sources: Vec::new(),
            failures: [0; FAILURES],
        };
        streak.enter(entry);
        streak
    }

    pub(crate) fn enter(&mut self, entry: &Entry<'_>) {
        self.since = self.since.min(entry.since);
        self.last = self.last.max(entry.last);
        self.arrived = self.arrived.max(entry.arrived);
        self.pod |= entry.class == SourceClass::Pod;
        if let Some(client) = entry.client
            && self.sources.len() < SOURCES_KEPT
            && !self.sources.contains(&client)
        {
            self.sources.push(client);
        }
        for (failure, n) in entry.failures {
            let count = &mut self.failures[failure.index()];
            *count = count.saturating_add(u64::from(*n));
        }
        if let Some(service) = self.services.get_mut(entry.label) {
            service.endpoints = entry.endpoints;
        } else if self.services.len() < SERVICES_KEPT {
            let service = StreakService {
                object: entry.object.to_owned(),
                endpoints: entry.endpoints,
            };
            self.services.insert(entry.label.to_owned(), service);
        }
    }

    /// The commonest failure; among equals, the one that leaves least doubt.
    pub(crate) fn commonest(&self) -> Failure {
        commonest(&self.failures).unwrap_or(Failure::Lost)
    }

    /// Whether it bears out what a filter could explain too: a pod of this node is among the
    /// clients, or more than one of them failed at more than one Service. Anyone outside can make
    /// a single connection fail.
    pub(crate) fn bears_out(&self, limits: &Limits) -> bool {
        let services = self.services.values().map(|service| &service.object);
        let services: BTreeSet<&String> = services.collect();
        self.pod
            || (services.len() >= limits.broken_services
                && self.sources.len() >= limits.broken_sources)
    }

    /// What is lacking to call the datapath broken, from all that was seen until `seen`; `None`
    /// where nothing is.
    ///
    /// The condition "the last failure was fresh when the time was up" holds from then on: no
    /// state is kept for it. That is what makes reading a verdict free of side effects.
    pub(crate) fn lacking(&self, seen: Mono, limits: &Limits) -> Option<Lacking> {
        let mut objects: BTreeMap<&str, u32> = BTreeMap::new();
        for service in self.services.values() {
            let endpoints = objects.entry(&service.object).or_default();
            *endpoints = service.endpoints.max(*endpoints);
        }
        let endpoints = objects
            .values()
            .fold(0, |sum: u32, n| sum.saturating_add(*n));
        let spread = self.last.since(self.since);
        if objects.len() < limits.broken_services {
            Some(Lacking::Services)
        } else if endpoints < limits.broken_endpoints {
            Some(Lacking::Endpoints)
        } else if !self.pod {
            Some(Lacking::Pod)
        } else if self.sources.len() < limits.broken_sources {
            Some(Lacking::Sources)
        } else if seen.since(self.since) < limits.broken_after
            || spread < limits.broken_after.saturating_sub(limits.broken_fresh)
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
    let mut best: Option<(Failure, u64)> = None;
    for failure in BY_DOUBT {
        let n = failures[failure.index()];
        if n > best.map_or(0, |(_, most)| most) {
            best = Some((failure, n));
        }
    }
    best.map(|(failure, _)| failure)
}
