//! A simulator of nodes, driven by a fake clock and one seed.
//!
//! Each node has a modelled datapath, clients, an API, and a kernel that runs the real rules of
//! `pathproof_wire::classify`. The simulator acts as the shell around [`Node::step`]. It records the truth:
//! which connections were answered. The same seed gives the same events and verdicts. Connections are TCP;
//! probes also use UDP. [`cells`] contains the tables of uses, faults and innocent worlds. The simulator
//! must use only the core and `pathproof-wire`, and no real clock.

pub mod cells;
mod datapath;
mod dice;
pub mod fleet;
mod kernel;
mod prober;
mod queue;
mod shell;
mod traffic;
mod world;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use datapath::{Datapath, Way, addresses};
pub use dice::Dice;
use kernel::{Kernel, PROBE_CLIENT, PROBE_ECHO};
use pathproof_facts::cause::{Cause, State};
use pathproof_facts::cluster::Change;
use pathproof_facts::time::{Mono, Wall};
use pathproof_node::effect::{PersistedState, VerdictUpdate};
use pathproof_node::event::Event;
use pathproof_node::{Node, Settings};
use pathproof_wire::service::Family;
use prober::Probers;
use queue::{AgentTask, Passing, Queue, Task};
use shell::Agent;
pub use traffic::Truth;
pub use world::{
    Act, Claim, Client, Denial, Fault, Foreign, ServiceSpec, Sickness, Span, Stack, Stream, TENANT,
    TENANT_PODS, World,
};

/// Start of every simulation, long after boot.
pub const BEGIN: Mono = Mono(1_000_000_000_000);
/// Simulated time that each node of a fleet runs before the next one continues.
const TURN: Duration = ms(100);

const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Answer of a node's health port from this time on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    pub at: Mono,
    /// Status of /livez.
    pub livez: u16,
    /// Status of /healthz.
    pub healthz: u16,
    pub state: State,
    pub cause: Option<Cause>,
}

/// True outcomes of connections by client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Truths {
    /// Pods of the node, and the node itself.
    pub pods: Truth,
    /// Clients from outside.
    pub outsiders: Truth,
    /// Connections of the tenant's pods or to the tenant's Services.
    pub tenant: Truth,
    /// Connections of the pod probe.
    pub pod_probe: Truth,
}

/// A connection whose first SYN was not answered, although it should have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unanswered {
    pub at: Mono,
    pub client: Client,
    /// Whether it was sent to an endpoint that has left.
    pub stale: bool,
    /// The endpoint, if the route to it is gone.
    pub astray: Option<IpAddr>,
}

/// A node, its world and its agent.
pub struct SimNode {
    world: World,
    dice: Dice,
    now: Mono,
    due: Queue,
    kernel: Kernel,
    datapath: Datapath,
    probers: Probers,
    agent: Option<Agent>,
    /// Number of the agent, counted from one.
    epoch: u32,
    persisted: Option<PersistedState>,
    /// Changes that no watch has delivered yet.
    undelivered: Vec<Change>,
    /// Whether the API server is away.
    silent: bool,
    starved_until: Mono,
    unreadable_until: Mono,
    damaged_until: Mono,
    port: u16,
    /// Source port of each stream that keeps its port, and the destination of its last connection, which
    /// was not answered.
    kept: BTreeMap<usize, (u16, Way)>,
    truth: Truths,
    unanswered: Vec<Unanswered>,
    /// Number of connections that the full connection table dropped.
    dropped_by_table: u64,
    answers: Vec<Answered>,
    log: Option<Log>,
    recorded: bool,
    change: fn(&mut Settings),
}

/// All input and all verdicts of a node.
#[derive(Debug, Default)]
pub struct Log {
    /// Events with their times, in order.
    pub events: Vec<(Mono, Event)>,
    /// Verdicts and answers, in order.
    pub updates: Vec<VerdictUpdate>,
}

impl SimNode {
    /// Creates a node in this world. `number` distinguishes it within a fleet.
    pub fn new(number: u32, world: World, seed: u64) -> Self {
        let mut dice = Dice::new(seed ^ (u64::from(number) << 32));
        let datapath = Datapath::new(number, &world);
        let mut node = Self {
            now: BEGIN,
            due: Queue::default(),
            kernel: Kernel::default(),
            datapath,
            probers: Probers::default(),
            agent: None,
            epoch: 0,
            persisted: None,
            undelivered: Vec::new(),
            silent: false,
            starved_until: BEGIN,
            unreadable_until: BEGIN,
            damaged_until: BEGIN,
            port: 20_000,
            kept: BTreeMap::new(),
            truth: Truths::default(),
            unanswered: Vec::new(),
            dropped_by_table: 0,
            answers: Vec::new(),
            log: None,
            recorded: false,
            change: |_| {},
            dice: dice.clone(),
            world,
        };
        let routes = &mut node.kernel.routes;
        routes.extend(addresses::ECHO.map(|ip| (ip, PROBE_ECHO)));
        routes.extend(addresses::PROBER.map(|ip| (ip, PROBE_CLIENT)));
        // Agents of a fleet start at different times.
        node.push(BEGIN.plus(dice.between((ms(0), ms(450)))), Task::Start);
        for act in 0..node.world.acts.len() {
            let at = BEGIN.plus(node.world.acts[act].0);
            node.push(at, Task::Act(act));
        }
        for stream in 0..node.world.streams.len() {
            let spec = &node.world.streams[stream];
            let first = spec.during.0 + dice.between((ms(0), spec.every));
            node.push(BEGIN.plus(first), Task::Dial(stream));
        }
        if let Some(every) = node.world.rotation {
            node.push(BEGIN.plus(every), Task::Rotate);
        }
        node.dice = dice;
        node
    }

    /// Records all input and verdicts from now on.
    #[must_use]
    pub fn logged(mut self) -> Self {
        self.log = Some(Log::default());
        self
    }

    /// Keeps a recording of the last minutes, as the shipped agent does.
    #[must_use]
    pub fn recorded(mut self) -> Self {
        self.recorded = true;
        self
    }

    /// Changes the agent's settings, for a judge that is wrong on purpose.
    #[must_use]
    pub fn configured(mut self, change: fn(&mut Settings)) -> Self {
        self.change = change;
        self
    }

    pub fn run(&mut self, span: Duration) {
        self.run_until(self.now.plus(span));
    }

    fn run_until(&mut self, until: Mono) {
        while let Some((at, task)) = self.due.pop(until) {
            self.now = self.now.max(at);
            self.take(task, at);
        }
        self.now = self.now.max(until);
    }

    /// Performs an act now.
    pub fn act(&mut self, act: Act) {
        self.world.acts.push((self.now.since(BEGIN), act));
        self.push(self.now, Task::Act(self.world.acts.len() - 1));
    }

    /// Answers of the health port with their start times.
    pub fn answers(&self) -> &[Answered] {
        &self.answers
    }

    pub fn answer(&self) -> Option<Answered> {
        self.answers.last().copied()
    }

    /// Time from `from` to the first 503 of /livez.
    pub fn failed_after(&self, from: Mono) -> Option<Duration> {
        self.livez_after(from, 503)
    }

    /// Time from `from` to the first 200 of /livez.
    pub fn recovered_after(&self, from: Mono) -> Option<Duration> {
        self.livez_after(from, 200)
    }

    fn livez_after(&self, from: Mono, status: u16) -> Option<Duration> {
        let before = self.answers.iter().rfind(|answered| answered.at <= from);
        if before.is_some_and(|answered| answered.livez == status) {
            return Some(Duration::ZERO);
        }
        let after = |answered: &&Answered| answered.at > from && answered.livez == status;
        let found = self.answers.iter().find(after)?;
        Some(found.at.since(from))
    }

    pub fn truth(&self) -> Truths {
        self.truth
    }

    /// The first few thousand connections whose first SYN failed, in order.
    pub fn unanswered(&self) -> &[Unanswered] {
        &self.unanswered
    }

    pub fn now(&self) -> Mono {
        self.now
    }

    /// The node of the running agent, if any.
    pub fn node(&self) -> Option<&Node> {
        self.agent.as_ref().map(|agent| &agent.node)
    }

    /// The log, if one is recorded.
    pub fn log(&self) -> Option<&Log> {
        self.log.as_ref()
    }

    fn push(&mut self, at: Mono, task: Task) {
        self.due.push(at.max(self.now), task);
    }

    fn push_agent_task(&mut self, at: Mono, task: AgentTask) {
        self.push(at, Task::Agent(self.epoch, task));
    }

    fn damaged(&self, now: Mono) -> bool {
        now < self.damaged_until
    }

    fn take(&mut self, task: Task, now: Mono) {
        let is_own = matches!(
            task,
            Task::Agent(..) | Task::Round { .. } | Task::Traces(..)
        );
        if is_own && now < self.starved_until {
            return self.push(self.starved_until, task);
        }
        match task {
            Task::Act(act) => self.perform_act(act, now),
            Task::Ended(Passing::LoseSightings) => self.kernel.ring_full = false,
            Task::Ended(Passing::Silence) => {
                self.silent = false;
                self.push(now.plus(ms(20)), Task::Deliver);
            }
            Task::Dial(stream) => {
                self.dial(stream, now);
                let Stream { every, during, .. } = self.world.streams[stream];
                let next = now.plus(self.dice.between((every * 4 / 5, every * 6 / 5)));
                if next.since(BEGIN) < during.1 {
                    self.push(next, Task::Dial(stream));
                }
            }
            Task::Again(dialled) => drop(self.try_dial(dialled, now)),
            Task::Rotate => {
                let moved = self.datapath.rotate();
                self.write(moved, now);
                let every = self.world.rotation.unwrap_or(Duration::MAX);
                self.push(now.plus(every), Task::Rotate);
            }
            Task::Proxy => {
                if !self.datapath.frozen {
                    self.datapath.sync();
                }
            }
            Task::Start => self.start(now),
            Task::Deliver => self.deliver_view(now),
            Task::Agent(epoch, task) => {
                if epoch == self.epoch && self.agent.is_some() {
                    self.take_agent_task(task, now);
                }
            }
            Task::Round { family, plan, due } => self.round(family, (plan, due), now),
            Task::Traces(epoch, traces) => {
                if epoch == self.epoch {
                    self.traces(traces, now);
                }
            }
        }
    }

    /// Applies changes of the API, which the view and the proxy follow.
    fn write(&mut self, changes: Vec<Change>, now: Mono) {
        self.undelivered.extend(changes);
        let (view, proxy) = (self.world.view_delay, self.world.proxy_delay);
        let seen = now.plus(self.dice.between(view));
        let ruled = now.plus(self.dice.between(proxy));
        self.push(seen, Task::Deliver);
        self.push(ruled, Task::Proxy);
        self.follow_pods();
    }

    /// Sets the routes to pods like a CNI, except for those that a fault removed.
    fn follow_pods(&mut self) {
        let datapath = &self.datapath;
        let bridged = self.world.bridged;
        let by = |device| if bridged { kernel::BRIDGE } else { device };
        let clients = self.world.streams.iter().map(|stream| stream.client);
        let of_clients = clients.filter_map(|client| match client {
            Client::Pod(_) => Some((datapath.client(client), Self::door_of(client)?)),
            _ => None,
        });
        let of_clients = of_clients.flat_map(|(ips, device)| ips.map(|ip| (ip, device)));
        let local = datapath.devices.iter().map(|(ip, device)| (*ip, *device));
        let local = local
            .chain(of_clients)
            .map(|(ip, device)| (ip, true, by(device)));
        let tunnel = self.world.overlay.then_some(kernel::TUNNEL);
        let remote = datapath.remote.iter();
        let remote = remote.filter_map(|ip| Some((*ip, false, tunnel?)));
        for (ip, is_local, device) in local.chain(remote) {
            let family = family_of(&ip);
            match datapath.routes_pods(is_local, family) {
                true => self.kernel.routes.insert(ip, device),
                false => self.kernel.routes.remove(&ip),
            };
        }
    }

    fn break_in(&mut self, fault: Fault, families: impl Iterator<Item = Family>) {
        let faults = families.map(|family| (fault, family));
        self.datapath.faults.extend(faults);
        self.follow_pods();
    }

    fn perform_act(&mut self, act: usize, now: Mono) {
        let act = self.world.acts[act].1.clone();
        match act {
            Act::Break(fault) => self.break_in(fault, Family::ALL.into_iter()),
            Act::BreakIn(family, fault) => self.break_in(fault, [family].into_iter()),
            Act::Repair(fault) => {
                self.datapath.faults.retain(|(known, _)| *known != fault);
                self.datapath.sync();
                self.follow_pods();
            }
            Act::FreezeProxy => self.datapath.frozen = true,
            Act::ThawProxy => {
                self.datapath.frozen = false;
                self.datapath.sync();
            }
            Act::Create(service) => {
                let made = self.datapath.create(service);
                self.write(made, now);
            }
            Act::Delete(service) => {
                let deleted = self.datapath.delete(service);
                self.write(deleted, now);
            }
            Act::Roll(service, grace) => {
                let rolled = self.datapath.roll(service, None, now.plus(grace));
                self.write(rolled, now);
            }
            Act::Replace(service, place, grace) => {
                let until = now.plus(grace);
                let replaced = self.datapath.roll(service, Some(place), until);
                self.write(replaced, now);
            }
            Act::Sicken(service, sickness) => self.datapath.sicken(service, sickness),
            Act::Deny(client, service, denial) => {
                self.datapath.denials.push((client, service, denial));
            }
            Act::FilterSentinel => self.datapath.filtered = Some(Denial::Drop),
            Act::InspectSentinel => self.datapath.inspected = true,
            Act::RejectSentinel => self.datapath.filtered = Some(Denial::Reject),
            Act::Restart(pause) => {
                self.stop();
                self.push(now.plus(pause), Task::Start);
            }
            Act::Starve(span) => self.starved_until = now.plus(span),
            Act::Silence { span, noticed } => {
                self.silent = true;
                self.push(now.plus(span), Task::Ended(Passing::Silence));
                self.push_agent_task(now.plus(noticed), AgentTask::Silent);
            }
            Act::Unreadable(span) => self.unreadable_until = now.plus(span),
            Act::LoseSightings(span) => {
                self.kernel.ring_full = true;
                self.push(now.plus(span), Task::Ended(Passing::LoseSightings));
            }
            Act::DamageDevices(span) => self.damaged_until = now.plus(span),
            Act::SetClock(seconds) => {
                let Wall(at) = shell::wall(now);
                let set = Wall(at + seconds * 1_000_000_000);
                self.feed(Event::ClockSet(set), now);
            }
        }
    }
}

fn family_of(ip: &IpAddr) -> Family {
    match ip {
        IpAddr::V4(_) => Family::V4,
        IpAddr::V6(_) => Family::V6,
    }
}

/// Many nodes with one clock. A minute of 5,000 idle nodes takes about 20 s and 130 MB (release).
pub struct Fleet {
    nodes: Vec<SimNode>,
    now: Mono,
}

impl Fleet {
    /// A fleet of idle nodes.
    pub fn new(nodes: u32, seed: u64) -> Self {
        Self::of((0..nodes).map(|_| World::default()), seed)
    }

    /// A fleet with one node for each world.
    pub fn of(worlds: impl IntoIterator<Item = World>, seed: u64) -> Self {
        let numbered = (0..).zip(worlds);
        let nodes = numbered.map(|(number, world)| SimNode::new(number, world, seed));
        Self {
            nodes: nodes.collect(),
            now: BEGIN,
        }
    }

    /// Runs all nodes for this long, in turns.
    pub fn run(&mut self, span: Duration) {
        let end = self.now.plus(span);
        while self.now < end {
            self.now = self.now.plus(TURN).min(end);
            for node in &mut self.nodes {
                node.run_until(self.now);
            }
        }
    }

    pub fn nodes(&self) -> &[SimNode] {
        &self.nodes
    }

    pub fn nodes_mut(&mut self) -> &mut [SimNode] {
        &mut self.nodes
    }
}
