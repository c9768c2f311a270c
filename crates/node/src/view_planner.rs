//! From the cluster view to the maps, and which of two agents maintains them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use pathproof_facts::cluster::{Change, EndpointFacts, NodeFacts, ObjectName};
use pathproof_facts::node_context::ECHO_SERVICE;
use pathproof_facts::switches::NodeSelector;
use pathproof_facts::time::Mono;
use pathproof_facts::view::{Applied, ClusterView};
use pathproof_judge::eligibility::TerminatingMarks;
use pathproof_judge::health_ports::{HealthPorts, PortTable};
use pathproof_plan::Planner;
use pathproof_plan::expect::addresses::{OTHERS, in_cluster, tries};
use pathproof_plan::expect::conflicts::SentinelConflicts;
use pathproof_plan::expect::sentinel::{Sentinel, SentinelRule, sentinel};
use pathproof_wire::service::{FAMILIES, Family, SourceClass};
use pathproof_witness::evidence::ip_of;

use crate::Settings;
use crate::departures::set_left_since;
use crate::effect::{Answers, Effect, Effects, MapEffect, Notice};
use crate::event::{Event, Successor, ViewFacts, ViewUpdate};
use crate::programming::Programming;
use crate::readings::EndpointsHere;

/// After this long without the view's source, health check node ports are left to the proxy.
const LEFT_TO_PROXY: Duration = Duration::from_secs(5);

/// If a pod dialled a frontend within this time, sockets of that IP family count as not translated.
const PODS_SEEN: Duration = Duration::from_secs(600);

/// State of the view apart from its objects.
#[derive(Clone, Debug, Default)]
pub struct ViewState {
    /// Problems of its source, a sentence each.
    pub problems: Vec<String>,
    /// Number of objects of other kinds, which are ignored.
    pub ignored: u64,
    pub changed: Option<Mono>,
    /// Number of object changes so far.
    pub changes: u64,
    unknown_frontends: Option<ObjectName>,
    /// Why the source has no object of this node, and since when.
    pub(super) missing_node: Option<(String, Mono)>,
}

/// The last search of the view for the sentinel's addresses.
struct Searched {
    /// Number of view changes at that time.
    changes: u64,
    /// How the cluster uses one of the addresses, as a sentence.
    taken: Option<String>,
    /// Where somebody else may answer at one of these addresses.
    tries: Vec<SocketAddr>,
}

/// The view, and the plan for the maps that follows from it.
#[derive(Default)]
pub(super) struct ViewPlanner {
    rule: Option<SentinelRule>,
    pub(super) view: ClusterView,
    pub(super) planner: Planner,
    pub(super) sentinel_conflicts: SentinelConflicts,
    health_ports: HealthPorts,
    /// Since when the source of the view does not report current changes.
    silent_since: Option<Mono>,
    programming: Programming,
    own_ports: Vec<u16>,
    terminating: TerminatingMarks,
    enforce_nodes: Option<NodeSelector>,
    pub(super) state: ViewState,
    successor: Successor,
    /// A successor has maintained the maps since this agent's last plan, so they must be read before the
    /// next plan.
    unread_maps: bool,
    /// The maps are being read; after that the whole view is planned.
    adopting: bool,
    searched: Option<Searched>,
    /// Result of [`Self::endpoints_here`], with the number of view changes when it was collected.
    cached_endpoints_here: Option<(u64, EndpointsHere)>,
    /// Whether Cilium may translate pods' sockets.
    sockets: bool,
    /// When a pod's connection to a frontend was last proven, by family.
    pods_seen: [Option<Mono>; FAMILIES],
}

impl ViewPlanner {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            planner: planner(settings.sentinel.as_ref(), &settings.own_ports),
            rule: settings.sentinel.clone(),
            own_ports: settings.own_ports.clone(),
            terminating: settings.terminating.clone(),
            enforce_nodes: settings.enforce_nodes.clone(),
            ..Self::default()
        }
    }

    /// Handles the view's part of an event, and returns the event that the judge needs.
    pub(super) fn take(&mut self, event: Event, now: Mono, effects: &mut Effects) -> Option<Event> {
        match event {
            Event::View(update) => self.follow(*update, now, effects),
            Event::Installed(installed) => {
                if std::mem::take(&mut self.unread_maps) {
                    self.planner = planner(self.rule.as_ref(), &self.own_ports);
                }
                self.adopting = false;
                let plan = self.planner.adopt(&self.view, installed, now);
                effects.push(Effect::Maps(MapEffect::Program(plan)));
            }
            Event::Full(failed) => {
                let next = self.planner.report_full(&self.view, &failed, now);
                effects.push(Effect::Maps(MapEffect::Program(next)));
            }
            Event::Reread(began, found) => {
                let differs = found.map(|changes| self.differs(changes));
                return Some(Event::Rechecked(began, differs));
            }
            Event::Sample(mut sample) => {
                self.pods_seen = sample
                    .last_proofs
                    .map(|proofs| proofs[SourceClass::Pod as usize]);
                let met = std::mem::take(&mut sample.met);
                self.programming.read(&sample.counts, &met, now);
                // A replay has no plan, so the recorded value stays.
                if self.rule.is_some() {
                    sample.programming = Some(self.programming.seen(&self.planner));
                }
                self.read_endpoints(effects);
                set_left_since(&mut sample, &self.planner);
                // Any pod may dial the port of large transfers, so only failures of the pod probe count. A
                // replay has no view, but recorded failures are already filtered.
                if !sample.peers.large_transfer_failures.is_empty() && self.rule.is_some() {
                    let probes = self.own_probes();
                    sample
                        .peers
                        .large_transfer_failures
                        .retain(|failure| probes.contains(&failure.client));
                }
                // Connections to a deleted node prove nothing: the routes to it are removed with the Node.
                if self.rule.is_some() {
                    let view = &self.view;
                    let departures = &mut sample.peers.departures;
                    departures.retain(|departure| view.peer(departure.peer).is_some());
                }
                for silence in &mut sample.peers.silences {
                    silence.node = self
                        .view
                        .peer(silence.peer)
                        .cloned()
                        .or(silence.node.take());
                }
                return Some(Event::Sample(sample));
            }
            Event::Topology(facts) => {
                self.sockets = facts.may_translate_sockets();
                return Some(Event::Topology(facts));
            }
            Event::Successor(successor) => {
                self.successor = successor;
                self.successor_plans();
                return Some(event);
            }
            Event::Check => {
                self.expire(now, effects);
                // A successor owns the devices, and removes them if their addresses are in use.
                if !self.successor.exists() {
                    self.search();
                }
                return Some(event);
            }
            event => return Some(event),
        }
        self.facts().map(Event::Facts)
    }

    fn follow(&mut self, update: ViewUpdate, now: Mono, effects: &mut Effects) {
        let known = std::mem::replace(&mut self.state.problems, update.problems);
        let new = self.state.problems.iter();
        let new = new.filter(|problem| !known.contains(problem));
        effects.extend(new.map(|problem| Effect::Log(Notice::ViewProblem(problem.clone()))));
        self.state.ignored = update.ignored;
        let before = self.silent_since.filter(|_| update.silent);
        self.silent_since = before.or(update.silent.then_some(now));
        self.state.unknown_frontends = update.unknown_frontends;
        let before = self.state.missing_node.take();
        let since = before.map_or(now, |(_, since)| since);
        self.state.missing_node = update.missing_node.map(|why| (why, since));
        if update.changes.is_empty() {
            return;
        }
        self.state.changes += update.changes.len() as u64;
        self.state.changed = Some(now);
        let applied = self.view.apply(update.changes);
        if let Some(rule) = &self.rule {
            let sentinel = self.sentinel_in(&self.view, rule);
            self.sentinel_conflicts
                .follow(&self.view, &applied, &rule.service, &sentinel);
        }
        self.health_ports.follow(&self.view, &applied);
        self.plan(&applied, now, effects);
        if self.searched.is_none() {
            self.search();
        }
    }

    /// The Services whose health check node ports the agent answers, if they changed. While the source of
    /// the view is silent, endpoints are out of date. So the proxy's answer must stay reachable, except
    /// for Services for which this node answers 503.
    pub(super) fn health_ports(&mut self, answers: &Answers, now: Mono) -> Option<PortTable> {
        let silent = |since| now.since(since) >= LEFT_TO_PROXY;
        let refused = |service: &ObjectName, family| !answers.serve(service, family);
        let is_left = self.silent_since.is_some_and(silent);
        self.health_ports
            .news(if is_left { Some(&refused) } else { None })
    }

    /// Nothing is planned before the view is complete: entries of a former agent that the view does
    /// not have yet must stay in the maps.
    fn plan(&mut self, applied: &Applied, now: Mono, effects: &mut Effects) {
        if self.successor_plans() {
            return;
        }
        let synced = self.view.is_synced();
        if applied.synced || (self.unread_maps && synced) {
            self.adopting = true;
            effects.push(Effect::Maps(MapEffect::Read));
        } else if synced && !self.adopting {
            let plan = self.planner.plan(&self.view, applied, now);
            self.programming.follow(&plan, &self.planner, now);
            effects.push(Effect::Maps(MapEffect::Program(plan)));
            self.read_endpoints(effects);
        }
    }

    fn read_endpoints(&mut self, effects: &mut Effects) {
        let news = self.programming.news();
        effects.extend(news.map(|keys| Effect::Maps(MapEffect::ReadEndpoints(keys))));
    }

    /// Deletes endpoints that were removed long ago, and takes the maps back from a successor that died.
    fn expire(&mut self, now: Mono, effects: &mut Effects) {
        if self.successor_plans() || self.adopting {
            return;
        }
        if self.unread_maps && self.view.is_synced() {
            self.adopting = true;
            effects.push(Effect::Maps(MapEffect::Read));
        } else {
            // If pods dial frontends on the wire, their sockets are not translated.
            let seen = |at: Option<Mono>| at.is_some_and(|at| now.since(at) < PODS_SEEN);
            let hidden = self.pods_seen.map(|at| self.sockets && !seen(at));
            self.planner.watch_sockets(hidden);
            let plan = self.planner.expire(&self.view, now);
            effects.push(Effect::Maps(MapEffect::Program(plan)));
        }
    }

    /// Whether a successor maintains the maps. It has its own ids, so if two agents wrote the maps,
    /// connections of one Service would be counted for another.
    fn successor_plans(&mut self) -> bool {
        let plans = self.successor == Successor::Plans;
        // Not `|=`, which rustc 1.95 compiles wrongly here (rust-lang/rust#158206): the shipped agent read the
        // maps again at every check, and each time all removed endpoints counted as removed just now.
        if plans {
            self.unread_maps = true;
        }
        plans
    }

    fn sentinel(&self) -> Sentinel {
        let rule = self.rule.as_ref();
        let sentinel = rule.map(|rule| self.sentinel_in(&self.view, rule));
        Sentinel {
            conflicts: match &self.state.unknown_frontends {
                Some(service) => self.sentinel_conflicts.all_lanes(service),
                None => self.sentinel_conflicts.lanes(),
            },
            ..sentinel.unwrap_or_default()
        }
    }

    /// Name of the pod probe's Service.
    fn echo(&self) -> Option<ObjectName> {
        self.rule.as_ref().map(|rule| ObjectName {
            namespace: Arc::clone(&rule.service.namespace),
            name: ECHO_SERVICE.into(),
        })
    }

    /// Pods of the pod probe.
    fn probes(&self) -> impl Iterator<Item = &EndpointFacts> {
        let state = self.echo().and_then(|echo| self.view.state(&echo));
        let slices = state.into_iter().flat_map(|state| &state.slices);
        slices.flat_map(|slice| &slice.endpoints)
    }

    fn own_probes(&self) -> Vec<IpAddr> {
        let local = self.probes().filter(|endpoint| endpoint.local);
        local.map(|endpoint| ip_of(&endpoint.address)).collect()
    }

    /// This node's endpoints, each with the namespaces that list it, except the sentinel's and the node itself.
    pub(super) fn endpoints_here(&self) -> impl Iterator<Item = (&Arc<str>, IpAddr)> {
        let own = self.view.node().map_or(&[][..], |node| &node.addresses);
        let sentinel = self.rule.as_ref().map(|rule| &rule.service);
        let others = self.view.states();
        let others = others.filter(move |(name, _)| Some(*name) != sentinel);
        let listed = others.flat_map(|(name, state)| {
            let endpoints = state.slices.iter().flat_map(|slice| &slice.endpoints);
            endpoints.map(move |endpoint| (&name.namespace, endpoint))
        });
        let here = listed.filter(|(_, endpoint)| endpoint.local && !endpoint.terminating);
        here.map(|(namespace, endpoint)| (namespace, ip_of(&endpoint.address)))
            .filter(move |(_, ip)| !own.contains(ip))
    }

    /// Result of [`Self::endpoints_here`]. It is collected again only after a change of the view, because that
    /// visits the whole cluster.
    pub(super) fn cached_endpoints_here(&mut self) -> &EndpointsHere {
        let changes = self.state.changes;
        if (self.cached_endpoints_here.as_ref()).is_none_or(|(at, _)| *at != changes) {
            let here = self.endpoints_here();
            let here = here.map(|(namespace, endpoint)| (Arc::clone(namespace), endpoint));
            self.cached_endpoints_here = Some((changes, here.collect()));
        }
        &self.cached_endpoints_here.get_or_insert_default().1
    }

    /// Families in which this node's pod probe has a ready pod of another node to connect to. Connections to a
    /// frontend in conflict are not followed, so nothing would end the wait for them.
    fn pods_expected(&self) -> [bool; FAMILIES] {
        let echo = self.echo();
        let is_contested =
            |family| (echo.as_ref()).is_some_and(|echo| self.planner.is_contested(echo, family));
        let elsewhere = |endpoint: &EndpointFacts| endpoint.ready && !endpoint.local;
        Family::ALL.map(|family| {
            let of_family = |endpoint: &EndpointFacts| Family::of(&endpoint.address) == family;
            self.probes()
                .any(|endpoint| elsewhere(endpoint) && of_family(endpoint))
                && !is_contested(family)
        })
    }

    /// Searches the view for other uses of the sentinel's addresses. This visits the whole cluster, so it
    /// runs once the sentinel exists, and then only at checks after a change of the view.
    fn search(&mut self) {
        let changes = self.state.changes;
        let is_due = (self.searched.as_ref()).is_none_or(|searched| searched.changes != changes);
        if is_due
            && self.view.is_synced()
            && let Some(rule) = &self.rule
            && self.sentinel_in(&self.view, rule).exists
        {
            self.searched = Some(Searched {
                changes,
                taken: in_cluster(rule, &self.view),
                tries: tries(rule, &self.view),
            });
        }
    }

    /// Whether an uncached read of the sentinel differs from the reports of the watches.
    fn differs(&self, changes: Vec<Change>) -> bool {
        let mut view = ClusterView::new();
        view.apply(changes);
        let rule = self.rule.as_ref();
        rule.is_some_and(|rule| {
            let read = |view| self.sentinel_in(view, rule).fixed();
            read(&view) != read(&self.view)
        })
    }

    /// Facts of the view. `None` while the maps are read: nothing is planned yet, so no family would seem to
    /// have a frontend.
    pub(super) fn facts(&self) -> Option<Box<ViewFacts>> {
        if self.adopting {
            return None;
        }
        let (searched, sentinel) = (self.searched.as_ref(), self.sentinel());
        let taken = searched.and_then(|searched| searched.taken.clone());
        let in_use = sentinel.in_use.as_ref();
        let selector = self.enforce_nodes.as_ref();
        let relevant = |node: &NodeFacts| self.terminating.relevant(node.clone(), selector);
        Some(Box::new(ViewFacts {
            synced: self.view.is_synced(),
            silent: self.silent_since.is_some(),
            node: self.view.node().map(relevant),
            families: Family::ALL.map(|family| self.planner.has_frontends(family)),
            missing: self.planner.missing(),
            unknown_frontends: self.state.unknown_frontends.clone(),
            pods_expected: self.pods_expected(),
            taken: taken.or_else(|| in_use.map(|why| format!("{why}: {OTHERS}"))),
            tries: searched.map_or_else(Vec::new, |searched| searched.tries.clone()),
            sentinel,
        }))
    }

    fn sentinel_in(&self, view: &ClusterView, rule: &SentinelRule) -> Sentinel {
        sentinel(rule, view.state(&rule.service), self.view.node())
    }
}

fn planner(rule: Option<&SentinelRule>, own_ports: &[u16]) -> Planner {
    let planner = Planner::new().with_sentinel(rule.map(|rule| rule.service.clone()));
    planner.with_own_ports(own_ports)
}
