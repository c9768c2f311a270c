//! The sentinel's parts, wired: what the view says of it, its devices, programs and prober, and
//! where its evidence goes. Owned by the main loop, like everything else that has state.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::Duration;

use agent_common::service::Family;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use super::agent::Agent;
use crate::clock;
use crate::config::SentinelConfig;
use crate::datapath::Observer;
use crate::datapath::probe_hooks::{ProbeEnds, ProbeHooks};
use crate::domain::cluster::NodeFacts;
use crate::domain::expect::sentinel::{Sentinel, SentinelFamily, SentinelRule, sentinel};
use crate::domain::probe::{ProbeTrace, Transport};
use crate::domain::sentinel::{KernelFacts, ProbeOutcome, SentinelView, classify};
use crate::domain::time::Mono;
use crate::domain::verdict::Limits;
use crate::sentinel::devices::{Role, SentinelDevices, Settings};
use crate::sentinel::prober::{FamilyTargets, Frontend, Prober, Targets};
use addresses::{generations, settings, taken, wire};
use keeper::{Facts, News, Wish};

mod addresses;
mod block;
mod keeper;
mod maps;

/// While probes begin to fail, devices and programs are looked at this often.
const SUSPICION: Duration = Duration::from_millis(100);
/// And this often when they go on failing.
const LASTING: Duration = Duration::from_secs(2);
/// Failures in a row that are judged at once; the last of them may confirm.
const SOON: u32 = 5;
/// What the kernel said of itself this long ago says nothing.
const FACTS_AGE: Duration = Duration::from_secs(15);

/// What comes to the main loop from the sentinel's parts.
pub(super) struct Inbox {
    news: mpsc::UnboundedReceiver<News>,
    traces: mpsc::UnboundedReceiver<ProbeTrace>,
}

/// One thing that came.
pub(super) struct Message(Content);

enum Content {
    News(News),
    Trace(Box<ProbeTrace>),
}

impl Inbox {
    /// The next message; never one where there is no sentinel.
    pub(super) async fn next(&mut self) -> Message {
        tokio::select! {
            Some(news) = self.news.recv() => Message(Content::News(news)),
            Some(trace) = self.traces.recv() => Message(Content::Trace(Box::new(trace))),
            else => std::future::pending().await,
        }
    }
}

/// The sentinel as far as the main loop holds it.
pub(super) struct Probing {
    config: SentinelConfig,
    settings: Settings,
    rule: SentinelRule,
    /// As the view has it.
    found: Sentinel,
    /// Why nothing is probed though the sentinel is there.
    off: Option<String>,
    /// The same, for reasons that lie in the cluster.
    taken: Option<String>,
    devices: Option<SentinelDevices>,
    hooks: Option<ProbeHooks>,
    prober: Option<Prober>,
    kernel: KernelFacts,
    suspected: Option<Mono>,
    /// The devices that the keeper made; `devices` are those that are probed through.
    ready: Option<SentinelDevices>,
    /// When the kernel's facts were told.
    told: Option<Mono>,
    /// Damage that was said last.
    damage: Option<String>,
    /// Changes of the view when it was last searched for the sentinel's addresses.
    searched: Option<u64>,
    wishes: watch::Sender<Wish>,
    traces: mpsc::UnboundedSender<ProbeTrace>,
    keeper: JoinHandle<()>,
}

impl Probing {
    /// With its keeper, which does nothing yet.
    pub(super) fn new(config: SentinelConfig) -> (Self, Inbox) {
        let settings = settings(&config);
        let (wishes, wished) = watch::channel(Wish::default());
        let (news, news_read) = mpsc::unbounded_channel();
        let (traces, traces_read) = mpsc::unbounded_channel();
        let keeper = keeper::start(settings.clone(), wished, news);
        let probing = Self {
            rule: SentinelRule {
                service: config.service.clone(),
                echo: config.echo,
            },
            config,
            settings,
            found: Sentinel::default(),
            off: None,
            taken: None,
            devices: None,
            hooks: None,
            prober: None,
            kernel: KernelFacts::default(),
            suspected: None,
            ready: None,
            told: None,
            damage: None,
            searched: None,
            wishes,
            traces,
            keeper,
        };
        let inbox = Inbox {
            news: news_read,
            traces: traces_read,
        };
        (probing, inbox)
    }

    /// Names of devices that the observer leaves alone: their packets are on no node's way.
    pub(super) fn far_ends(&self) -> [String; 2] {
        [Role::ClientFar, Role::ServerFar].map(|role| self.settings.name(role))
    }

    /// Whether probes are to be expected.
    pub(super) fn exists(&self) -> bool {
        self.found.exists && self.off().is_none()
    }

    /// Why nothing is probed though the sentinel is there, in words.
    pub(super) fn off(&self) -> Option<&str> {
        self.taken.as_deref().or(self.off.as_deref())
    }

    /// What the ledger is told of the view.
    fn view(&self, now: Mono) -> SentinelView {
        let mut hasher = DefaultHasher::new();
        let fixed = self
            .found
            .families
            .map(|family| family.map(SentinelFamily::without_generation));
        fixed.hash(&mut hasher);
        SentinelView {
            exists: self.found.exists,
            off: self.off().map(str::to_owned),
            altered: self.found.altered.clone(),
            identity: hasher.finish(),
            changed_at: now,
        }
    }

    fn targets(&self) -> Targets {
        let mut targets = Targets::default();
        for family in Family::ALL {
            let (Some(found), Some(devices)) =
                (self.found.families[family as usize], &self.devices)
            else {
                continue;
            };
            if !devices.has(family) || self.off().is_some() {
                continue;
            }
            let frontend =
                |address: IpAddr, tcp: u16, udp: Option<u16>| Frontend { address, tcp, udp };
            let node_port = found.node_address.zip(found.tcp.node_port);
            targets.families[family as usize] = Some(FamilyTargets {
                cluster_ip: Some(frontend(
                    found.cluster_ip,
                    found.tcp.port,
                    found.udp.map(|udp| udp.port),
                )),
                node_port: node_port.map(|(address, tcp)| {
                    frontend(address, tcp, found.udp.and_then(|udp| udp.node_port))
                }),
                client: self.config.client[family as usize],
                pod_client: self.config.pod[family as usize],
                echo: found.echo,
            });
        }
        targets
    }

    /// Tells the keeper what is wanted now.
    fn wish(&self, node: Option<&NodeFacts>) {
        let families = Family::ALL.into_iter();
        let families = families.filter(|family| self.found.families[*family as usize].is_some());
        let families: Vec<Family> = families.collect();
        self.wishes.send_if_modified(|wish| {
            let mut wanted = wish.clone();
            wanted.known = true;
            // Once made, the devices stay while the sentinel is deleted or edited.
            wanted.needed = (wish.needed || !families.is_empty()) && self.taken.is_none();
            if !families.is_empty() {
                wanted.families = families;
            }
            if let Some(node) = node {
                wanted.pod_cidrs.clone_from(&node.pod_cidrs);
                wanted.node_addresses.clone_from(&node.addresses);
            }
            let changed = *wish != wanted;
            *wish = wanted;
            changed
        });
    }

    /// Asks for a look at the devices at once.
    fn ask(&self) {
        self.wishes.send_modify(|wish| wish.asked += 1);
    }

    fn retarget(&self) {
        if let Some(prober) = &self.prober {
            prober.retarget(self.targets());
        }
    }

    /// Whether everything runs on the devices that the keeper made.
    fn runs(&self) -> bool {
        self.devices == self.ready
            && self.hooks.is_some()
            && self.prober.as_ref().is_some_and(Prober::is_running)
    }

    /// Programs and prober for the devices that stand, if they do not run already.
    fn start(&mut self, observer: &mut Observer) -> Result<(), String> {
        let Some(devices) = self.ready.clone().filter(|_| !self.runs()) else {
            return Ok(());
        };
        let ends = ProbeEnds {
            client_near: devices.client_near.index,
            client_far: devices.client_far.index,
            server_near: devices.server_near.index,
            server_far: devices.server_far.index,
        };
        // The old ones first: two echoes would answer twice.
        self.hooks = None;
        let hooks = observer.open_sentinel(&ends);
        self.hooks = Some(hooks.map_err(|error| error.to_string())?);
        let wire = wire(&devices);
        match &self.prober {
            Some(prober) if prober.is_running() => {
                prober.rewire(&wire).map_err(|error| error.to_string())?;
            }
            _ => {
                let maps = observer.probe_maps().map_err(|error| error.to_string())?;
                let prober = Prober::start(maps, &wire, clock::mono, self.traces.clone());
                self.prober = Some(prober.map_err(|error| error.to_string())?);
            }
        }
        self.devices = Some(devices);
        Ok(())
    }

    fn stop(&mut self) {
        self.prober = None;
        self.hooks = None;
        self.devices = None;
    }

    /// Ends everything, and takes the devices away unless a successor has them.
    pub(super) async fn end(mut self, succeeded: bool) {
        self.stop();
        let Self { wishes, keeper, .. } = self;
        if succeeded {
            keeper.abort();
            return;
        }
        drop(wishes);
        // Netlink answers in milliseconds, or is broken.
        let _ = tokio::time::timeout(Duration::from_secs(5), keeper).await;
    }
}

impl Agent {
    /// The view changed: what it says of the sentinel now.
    pub(super) fn follow_sentinel(&mut self, now: Mono) {
        let Some(probing) = &mut self.probing else {
            return;
        };
        if !self.view.is_synced() {
            return;
        }
        let state = self.view.state(&probing.rule.service);
        let known = probing.found.altered.take();
        probing.found = sentinel(&probing.rule, state, self.view.node());
        if let Some(altered) = &probing.found.altered
            && known.as_ref() != Some(altered)
        {
            tracing::warn!(%altered, "the sentinel is not probed");
        }
        if probing.searched.is_none() && probing.found.exists {
            self.search_cluster();
        }
        let Some(probing) = &mut self.probing else {
            return;
        };
        let view = probing.view(now);
        let ledger = self.ledger.sentinel_mut();
        ledger.view_changed(now, view);
        if !self.source_silent {
            ledger.source_back(now);
        }
        for (family, transport, generation) in generations(&probing.found) {
            ledger.want(family, transport, generation, now);
        }
        probing.wish(self.view.node());
        probing.retarget();
    }

    /// Looks whether the cluster uses the sentinel's addresses, where the view changed.
    fn search_cluster(&mut self) {
        let Some(probing) = &mut self.probing else {
            return;
        };
        if !probing.found.exists || probing.searched == Some(self.view_changes) {
            return;
        }
        probing.searched = Some(self.view_changes);
        let taken = taken(&probing.settings, &probing.rule.service, &self.view);
        if let Some(why) = taken.as_ref().filter(|_| taken != probing.taken) {
            tracing::warn!(%why, "the sentinel is off; the node is judged by real traffic alone");
            probing.stop();
        }
        probing.taken = taken;
    }

    /// Every few seconds: what ended is begun again, and what the cluster took is left to it.
    pub(super) fn check_sentinel(&mut self, now: Mono) {
        let before = self
            .probing
            .as_ref()
            .and_then(|probing| probing.taken.clone());
        self.search_cluster();
        let Some(probing) = &self.probing else {
            return;
        };
        if probing.taken != before {
            self.follow_sentinel(now);
        } else if probing.taken.is_none() && probing.ready.is_some() && !probing.runs() {
            self.start_sentinel(now);
        }
    }

    /// Something came from the sentinel's parts.
    pub(super) fn take_in(&mut self, message: Message, now: Mono) {
        match message.0 {
            Content::Trace(trace) => self.absorb_trace(&trace, now),
            Content::News(news) => self.hear(news, now),
        }
    }

    fn hear(&mut self, news: News, now: Mono) {
        let Some(probing) = &mut self.probing else {
            return;
        };
        match news {
            News::Ready(devices) => {
                probing.ready = Some(devices);
                self.start_sentinel(now);
            }
            News::Off(why) => {
                probing.ready = None;
                self.turn_sentinel(Some(why), now);
            }
            News::Damaged(sentence) => {
                if probing.damage.as_ref() != Some(&sentence) {
                    tracing::warn!(%sentence, "the sentinel's devices are damaged");
                    probing.damage = Some(sentence.clone());
                }
                self.ledger.sentinel_mut().damaged(now, sentence);
            }
            News::Facts(facts) => return self.learn(facts, now),
        }
        self.publish(now);
    }

    fn learn(&mut self, facts: Facts, now: Mono) {
        let Some(probing) = &mut self.probing else {
            return;
        };
        probing.kernel.forwarding = facts.forwarding;
        probing.told = Some(now);
        let ledger = self.ledger.sentinel_mut();
        for (family, owners) in Family::ALL.into_iter().zip(facts.owners) {
            ledger.owner_seen(family, owners, now);
        }
        if let Some(began) = facts.sound_since {
            probing.damage = None;
            ledger.looked(began);
        }
    }

    fn start_sentinel(&mut self, now: Mono) {
        let (Some(probing), Some(observer)) = (&mut self.probing, &mut self.observer) else {
            return self.turn_sentinel(Some("there is no observer".to_owned()), now);
        };
        let started = probing.start(observer);
        self.turn_sentinel(started.err(), now);
    }

    /// The sentinel is on from now on, or off for a reason.
    fn turn_sentinel(&mut self, off: Option<String>, now: Mono) {
        let Some(probing) = &mut self.probing else {
            return;
        };
        match &off {
            Some(why) if off != probing.off => {
                tracing::warn!(%why, "the sentinel is off; the node is judged by real traffic alone");
            }
            None if probing.off.is_some() => tracing::info!("the sentinel is on again"),
            _ => {}
        }
        if off.is_some() {
            probing.stop();
        }
        probing.off = off;
        let view = probing.view(now);
        self.ledger.sentinel_mut().view_changed(now, view);
        probing.retarget();
    }

    fn absorb_trace(&mut self, trace: &ProbeTrace, now: Mono) {
        let Some(probing) = &self.probing else {
            return;
        };
        let old = probing.told.is_none_or(|at| now.since(at) > FACTS_AGE);
        let kernel = if old {
            KernelFacts::default()
        } else {
            probing.kernel
        };
        let outcome = classify(trace, &kernel, &Limits::default());
        let ledger = self.ledger.sentinel_mut();
        let before = ledger.failures(trace.lane);
        let outcome = ledger.absorb(trace, outcome, now);
        let after = ledger.failures(trace.lane);
        if let Some(lag) = ledger.measured()
            && trace.lane.transport == Transport::Tcp
        {
            self.metrics.record_rotation(trace.lane.family, lag);
        }
        self.metrics.record_probe(trace, name(outcome));
        if after > 0 {
            self.suspect(after, now);
        }
        // Everything else waits for the next turn: a path that always fails must cost no more than
        // one that works.
        if before != after && after <= SOON {
            tracing::debug!(
                ?trace,
                outcome = name(outcome),
                "a path begins or ceases to fail"
            );
            self.publish(now);
        }
    }

    /// A probe failed: are the sentinel's own parts sound?
    fn suspect(&mut self, failures: u32, now: Mono) {
        let Some(probing) = &mut self.probing else {
            return;
        };
        let pause = if failures <= SOON { SUSPICION } else { LASTING };
        if probing.suspected.is_some_and(|at| now.since(at) < pause) {
            return;
        }
        probing.suspected = Some(now);
        probing.ask();
        let (Some(hooks), Some(observer)) = (&mut probing.hooks, &mut self.observer) else {
            return;
        };
        if observer.sentinel_stands(hooks) {
            return;
        }
        let sentence = "a program of the sentinel's was detached by something else".to_owned();
        self.ledger.sentinel_mut().damaged(now, sentence);
        probing.hooks = None;
        self.start_sentinel(now);
    }
}

/// Label of an outcome in metrics.
fn name(outcome: ProbeOutcome) -> &'static str {
    match outcome {
        ProbeOutcome::Passed { .. } => "passed",
        ProbeOutcome::Failed(cause) => cause.name(),
        ProbeOutcome::Void(_) => "void",
    }
}
