//! The shell around a simulated node's agent: timers, view, the keeper that checks the sentinel's devices,
//! and all effects. Like the real shell it decides nothing.

use std::collections::VecDeque;
use std::time::Duration;

use pathproof_facts::cluster::Change;
use pathproof_facts::limits::{Limits, SAMPLE_INTERVAL};
use pathproof_facts::owners::{Owner, OwnersRead};
use pathproof_facts::switches::Enforcement;
use pathproof_facts::time::{Mono, Wall};
use pathproof_facts::trace::ProbeTrace;
use pathproof_judge::answer::UnknownPolicy;
use pathproof_judge::damping::DWELL_DEFAULT;
use pathproof_judge::drain::ProbeRanges;
use pathproof_judge::eligibility::TerminatingMarks;
use pathproof_judge::verdict::CountedFamilies;
use pathproof_node::effect::{
    Effect, MapEffect, ReadEffect, SentinelEffect, VerdictUpdate, WriteEffect,
};
use pathproof_node::event::{Event, KernelState, SentinelEvent, ViewUpdate};
use pathproof_node::{Node, Settings, Start};
use pathproof_wire::service::Family;
use pathproof_witness::conntrack::Table;
use pathproof_witness::coverage::{Hook, Hooks, ObserverStart};
use pathproof_witness::drops::DropWatch;
use pathproof_witness::evidence::EndpointRoutes;
use pathproof_witness::topology::{DeviceFacts, Role, TopologyFacts};

use super::datapath::sentinel_rule;
use super::{AgentTask, Answered, SimNode, Task, ms};

const CHECK: Duration = Duration::from_secs(5);
/// Interval of the keeper's checks, and minimum interval of requested checks.
const LOOK: Duration = Duration::from_millis(5_100);
const PAUSE: Duration = ms(100);
/// Duration of a check, duration of an uncached read, and the timeout of that read.
const LOOKED: Duration = ms(3);
const READ: Duration = ms(5);
const READ_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a new watch takes to list everything.
const LISTED: Duration = ms(100);

pub(super) struct Agent {
    pub(super) node: Node,
    /// Whether the sentinel's devices were created.
    made: bool,
    /// Time of the keeper's last check.
    looked: Mono,
    next_look: Option<Mono>,
    /// Whether the view was listed.
    listed: bool,
    /// Whether the agent has noticed that the watches failed.
    knows_silence: bool,
    next_sample: Duration,
}

impl SimNode {
    fn settings(&self) -> Settings {
        let mut settings = Settings {
            node: self.datapath.node.name.to_string(),
            limits: Limits::default(),
            terminating: TerminatingMarks::default(),
            unknown_policy: UnknownPolicy::Open,
            enforcement: Enforcement::Enforce,
            enforce_nodes: None,
            families: CountedFamilies::default(),
            flap_dwell: DWELL_DEFAULT,
            fleet_brake: None,
            leaving_brake: None,
            drain_ignore: ProbeRanges::default(),
            watches_services: true,
            own_ports: Vec::new(),
            sentinel: Some(sentinel_rule()),
            rereads: true,
        };
        (self.change)(&mut settings);
        settings
    }

    /// Starts an agent from the state that the last one stored.
    pub(super) fn start(&mut self, now: Mono) {
        self.epoch += 1;
        let start = Start {
            now,
            wall: wall(now),
            observer: ObserverStart {
                continues: self.epoch > 1,
                ..ObserverStart::default()
            },
            persisted: self.persisted.clone(),
        };
        self.kernel.open();
        self.follow_pods();
        self.agent = Some(Agent {
            node: match self.log.is_some() || self.recorded {
                true => Node::new(self.settings(), start),
                false => Node::new(self.settings(), start).unrecorded(),
            },
            made: false,
            looked: now,
            next_look: None,
            listed: false,
            knows_silence: false,
            next_sample: SAMPLE_INTERVAL,
        });
        self.feed(Event::Tick, now);
        let topology = self.topology(self.owners());
        self.feed(topology, now);
        let hooks = self.hooks();
        self.feed(Event::Hooks(hooks), now);
        self.push_agent_task(now, AgentTask::Sample);
        self.push_agent_task(now, AgentTask::Check);
        self.push_agent_task(now.plus(LISTED), AgentTask::List);
    }

    /// Ends the agent and its tasks.
    pub(super) fn stop(&mut self) {
        self.agent = None;
        self.probers = self.probers.anew();
    }

    pub(super) fn take_agent_task(&mut self, task: AgentTask, now: Mono) {
        match task {
            AgentTask::Sample => {
                let event = if now < self.unreadable_until {
                    Event::SampleFailed("the map cannot be read".to_owned())
                } else {
                    Event::Sample(Box::new(self.kernel.sample(now)))
                };
                self.feed(event, now);
                let next = self.agent.as_ref().map(|agent| agent.next_sample);
                self.push_agent_task(now.plus(next.unwrap_or(SAMPLE_INTERVAL)), AgentTask::Sample);
            }
            AgentTask::Check => {
                self.feed(Event::Check, now);
                let hooks = self.hooks();
                self.feed(Event::Hooks(hooks), now);
                self.push_agent_task(now.plus(CHECK), AgentTask::Check);
            }
            AgentTask::Look => self.look(now),
            AgentTask::Reread(began) => {
                let found = (!self.silent).then(|| self.datapath.read_sentinel());
                self.feed(Event::Reread(began, found), now);
            }
            AgentTask::List if self.silent => {
                self.notice_silence(now);
                self.push_agent_task(now.plus(LISTED), AgentTask::List);
            }
            AgentTask::List => {
                if let Some(agent) = &mut self.agent {
                    agent.listed = true;
                    agent.knows_silence = false;
                }
                self.undelivered.clear();
                let changes = self.datapath.list();
                self.feed(view_of(changes), now);
            }
            AgentTask::Silent if self.silent => self.notice_silence(now),
            AgentTask::Silent => {}
        }
    }

    fn notice_silence(&mut self, now: Mono) {
        let Some(agent) = self.agent.as_mut().filter(|agent| !agent.knows_silence) else {
            return;
        };
        agent.knows_silence = true;
        self.feed(
            Event::View(Box::new(ViewUpdate {
                problems: vec!["the API server does not answer".to_owned()],
                silent: true,
                ..ViewUpdate::default()
            })),
            now,
        );
    }

    /// Delivers changes, if the API server is reachable and an agent runs.
    pub(super) fn deliver_view(&mut self, now: Mono) {
        if now < self.starved_until {
            return self.push(self.starved_until, Task::Deliver);
        }
        let Some(agent) = self.agent.as_mut().filter(|agent| agent.listed) else {
            return;
        };
        let is_news = !self.undelivered.is_empty() || agent.knows_silence;
        if self.silent || !is_news {
            return;
        }
        agent.knows_silence = false;
        let changes = std::mem::take(&mut self.undelivered);
        self.feed(view_of(changes), now);
    }

    /// Feeds ended probes. A starved agent notices them late.
    pub(super) fn traces(&mut self, traces: Vec<ProbeTrace>, now: Mono) {
        if !self.probers.runs {
            return;
        }
        for mut trace in traces {
            trace.ended = trace.ended.max(now);
            self.note(&trace, now);
            self.feed(Event::Trace(Box::new(trace)), now);
        }
    }

    /// Checks the sentinel's devices.
    fn look(&mut self, now: Mono) {
        let damaged = self.damaged(now);
        let Some(agent) = &mut self.agent else { return };
        if agent.next_look.is_none_or(|next| now < next) {
            return;
        }
        (agent.looked, agent.next_look) = (now, None);
        let began = Mono(now.0.saturating_sub(LOOKED.as_nanos() as u64));
        let news = damaged.then(|| SentinelEvent::Damaged("an address is gone".to_owned()));
        let is_new = !std::mem::replace(&mut agent.made, true);
        let state = KernelState {
            sound_since: (!damaged && !is_new).then_some(began),
            forwarding: Family::ALL.map(|family| Some(self.datapath.forwards(family))),
            owners: self.owners(),
        };
        if let Some(event) = news {
            self.feed(Event::Sentinel(event), now);
        }
        if is_new {
            self.feed(Event::Sentinel(SentinelEvent::Ready), now);
        }
        self.feed(Event::Sentinel(SentinelEvent::Kernel(state)), now);
        self.plan_look(now.plus(LOOK));
    }

    fn plan_look(&mut self, at: Mono) {
        let Some(agent) = &mut self.agent else { return };
        if agent.next_look.is_some_and(|next| next <= at) {
            return;
        }
        // This replaces a check that was planned for later.
        agent.next_look = Some(at);
        self.push_agent_task(at, AgentTask::Look);
    }

    fn owners(&self) -> OwnersRead {
        let owner = match self.world.iptables {
            true => Owner::KubeProxyIptables,
            false => Owner::KubeProxyNftables,
        };
        Family::ALL.map(|family| {
            let gone = self.datapath.has(super::Fault::TablesGone, family);
            Some((!gone).then_some(owner).into_iter().collect())
        })
    }

    fn table(&self) -> Table {
        let full = |family| self.datapath.has(super::Fault::ConntrackFull, family);
        let limit = 65_536;
        Table {
            entries: match Family::ALL.into_iter().any(full) {
                true => limit,
                false => limit / 16,
            },
            limit,
            drop: self.dropped_by_table,
            ..Table::default()
        }
    }

    fn topology(&self, owners: OwnersRead) -> Event {
        let device = |name: &str, role| DeviceFacts {
            name: name.to_owned(),
            role,
            xdp: false,
            hooks: Some(Default::default()),
        };
        Event::Topology(Box::new(TopologyFacts {
            devices: vec![
                device("eth0", Role::Uplink),
                device("pathproof-c0", Role::Sentinel),
                device("pathproof-s0", Role::Sentinel),
            ],
            netkit: 0,
            connect: [Some(Default::default()), Some(Default::default())],
            bound: [Some(Default::default()), Some(Default::default())],
            owners,
        }))
    }

    fn hooks(&self) -> Hooks {
        let hook = |device: &str| Hook {
            device: device.to_owned(),
            uplink: device == "eth0",
            attached: true,
            first: true,
            problem: None,
        };
        Hooks {
            devices: ["eth0", "cni0", "pathproof-c0", "pathproof-s0"]
                .map(hook)
                .into(),
            left_out: 0,
            unseen: 0,
            new: 0,
            not_pinned: None,
        }
    }

    /// Steps the agent's node with an event and with all events that its effects cause.
    pub(super) fn feed(&mut self, event: Event, now: Mono) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            if let Some(log) = &mut self.log {
                log.events.push((now, event.clone()));
            }
            let Some(agent) = &mut self.agent else { return };
            for effect in agent.node.step(event, now) {
                self.perform(effect, now, &mut events);
            }
        }
    }

    #[deny(clippy::wildcard_enum_match_arm)]
    fn perform(&mut self, effect: Effect, now: Mono, events: &mut VecDeque<Event>) {
        match effect {
            Effect::Maps(MapEffect::Program(plan)) => self.kernel.program(plan),
            Effect::Maps(MapEffect::Read) => {
                events.push_back(Event::Installed(self.kernel.installed()))
            }
            Effect::Sentinel(SentinelEffect::Devices(desired)) => {
                let made = self.agent.as_ref().is_some_and(|agent| agent.made);
                if desired.needed && !made {
                    self.plan_look(now.plus(ms(20)));
                }
            }
            Effect::Sentinel(SentinelEffect::Start { .. }) => {
                self.probers.runs = true;
                events.push_back(Event::Sentinel(SentinelEvent::Started(None)));
            }
            Effect::Sentinel(SentinelEffect::Stop) => self.probers.runs = false,
            Effect::Sentinel(SentinelEffect::Retarget) => self.retarget(now),
            Effect::Sentinel(SentinelEffect::Check) => {
                let looked = self.agent.as_ref().map_or(now, |agent| agent.looked);
                let at = now.max(looked.plus(PAUSE));
                self.plan_look(at.plus(LOOKED));
            }
            Effect::Sentinel(SentinelEffect::Reread) => {
                let takes = if self.silent { READ_TIMEOUT } else { READ };
                self.push_agent_task(now.plus(takes), AgentTask::Reread(now));
            }
            Effect::Read(ReadEffect::Topology(owners)) => {
                let owners = owners.unwrap_or_else(|| self.owners());
                let topology = self.topology(owners);
                events.push_back(topology);
            }
            Effect::Read(ReadEffect::Table) => events.push_back(Event::Table(Some(self.table()))),
            Effect::Read(ReadEffect::Routes(asked)) => {
                let exists = |index: &u32| self.datapath.devices.values().any(|by| by == index);
                let routes = asked.endpoints.into_iter();
                let gone = asked.devices.into_iter();
                events.push_back(Event::EndpointRoutes(EndpointRoutes {
                    routes: routes.filter_map(|at| self.datapath.route_to(at)).collect(),
                    left: asked.left,
                    gone: gone.filter(|index| !exists(index)).collect(),
                }));
            }
            Effect::Maps(MapEffect::ReadEndpoints(asked)) => self.kernel.asked = asked,
            Effect::Read(ReadEffect::WatchDrops(_)) => {
                events.push_back(Event::DropWatch(DropWatch::Off))
            }
            Effect::Publish(update) => self.publish(*update),
            Effect::Write(WriteEffect::State(persisted)) => self.persisted = Some(*persisted),
            Effect::Read(ReadEffect::SampleAfter(pause)) => {
                if let Some(agent) = &mut self.agent {
                    agent.next_sample = pause;
                }
            }
            Effect::HealthPorts(_)
            | Effect::Read(ReadEffect::LookUp(_))
            | Effect::Write(WriteEffect::Recording)
            | Effect::Measure(_)
            | Effect::Log(_) => {}
        }
    }

    fn publish(&mut self, update: VerdictUpdate) {
        let answered = Answered {
            at: update.verdict.at,
            livez: update.answers.livez.status,
            healthz: update.answers.healthz.status,
            state: update.verdict.state,
            cause: update.verdict.cause,
        };
        let at = answered.at;
        let same = |last: &Answered| Answered { at, ..*last } == answered;
        if !self.answers.last().is_some_and(same) {
            self.answers.push(answered);
        }
        if let Some(log) = &mut self.log {
            log.updates.push(update);
        }
    }
}

/// The wall clock, as it was set at boot.
pub(super) fn wall(now: Mono) -> Wall {
    Wall(1_700_000_000_000_000_000 + i64::try_from(now.0).unwrap_or(0))
}

fn view_of(changes: Vec<Change>) -> Event {
    Event::View(Box::new(ViewUpdate {
        changes,
        ..ViewUpdate::default()
    }))
}
