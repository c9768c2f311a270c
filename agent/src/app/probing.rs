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
use crate::domain::expect::sentinel::{Sentinel, SentinelRule, sentinel};
use crate::domain::probe::ProbeTrace;
use crate::domain::sentinel::{KernelFacts, ProbeOutcome, SentinelView, classify};
use crate::domain::time::Mono;
use crate::domain::verdict::Limits;
use crate::sentinel::devices::{
    HardwareAddress, Known, NodeState, PodSources, Role, SentinelDevices, Settings, conflict,
};
use crate::sentinel::prober::{End, FamilyTargets, Frontend, Prober, Targets, Wire};
use keeper::{Facts, News, Wish};

mod block;
mod keeper;
mod maps;

/// While probes fail, devices and programs are looked at this often.
const SUSPICION: Duration = Duration::from_millis(100);

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
        self.found.families.hash(&mut hasher);
        SentinelView {
            exists: self.exists(),
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

    /// Programs and prober for devices that stand.
    fn start(&mut self, devices: SentinelDevices, observer: &mut Observer) -> Result<(), String> {
        if self.devices.as_ref() == Some(&devices) && self.prober.is_some() && self.hooks.is_some()
        {
            return Ok(());
        }
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

    /// Ends everything, and takes the devices away.
    pub(super) async fn end(mut self) {
        self.stop();
        let Self { wishes, keeper, .. } = self;
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
        probing.found = sentinel(&probing.rule, state, self.view.node());
        let taken = match probing.found.exists {
            true => taken(probing, &self.view),
            false => None,
        };
        if let Some(why) = taken.as_ref().filter(|_| taken != probing.taken) {
            tracing::warn!(%why, "the sentinel is off; the node is judged by real traffic alone");
            probing.stop();
        }
        probing.taken = taken;
        if let Some(altered) = &probing.found.altered {
            tracing::warn!(%altered, "the sentinel is not probed");
        }
        let view = probing.view(now);
        self.ledger.sentinel_mut().view_changed(now, view);
        probing.wish(self.view.node());
        probing.retarget();
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
                let started = match &mut self.observer {
                    Some(observer) => probing.start(devices, observer),
                    None => Err("there is no observer".to_owned()),
                };
                self.turn_sentinel(started.err(), now);
            }
            News::Off(why) => self.turn_sentinel(Some(why), now),
            News::Damaged(sentence) => {
                tracing::warn!(%sentence, "the sentinel's devices are damaged; they are mended");
                self.ledger.sentinel_mut().damaged(now, sentence);
            }
            News::Facts(Facts { forwarding, owners }) => {
                probing.kernel.forwarding = forwarding;
                for (family, owners) in Family::ALL.into_iter().zip(owners) {
                    self.ledger.sentinel_mut().owner_seen(family, owners, now);
                }
                return;
            }
        }
        self.publish(now);
    }

    /// The sentinel is on from now on, or off for a reason.
    fn turn_sentinel(&mut self, off: Option<String>, now: Mono) {
        let Some(probing) = &mut self.probing else {
            return;
        };
        if let Some(why) = &off {
            tracing::warn!(%why, "the sentinel is off; the node is judged by real traffic alone");
            probing.stop();
        } else if probing.off.is_some() {
            tracing::info!("the sentinel is on again");
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
        let outcome = classify(trace, &probing.kernel, &Limits::default());
        let outcome = self.ledger.sentinel_mut().absorb(trace, outcome, now);
        self.metrics.record_probe(trace, name(outcome));
        if matches!(outcome, ProbeOutcome::Passed { .. }) && !self.is_troubled() {
            // What passes is judged with the next turn.
            return;
        }
        tracing::debug!(
            ?trace,
            outcome = name(outcome),
            "a probe did not pass, or at last did"
        );
        self.suspect(now);
        self.publish(now);
    }

    /// A probe failed: are the sentinel's own parts sound?
    fn suspect(&mut self, now: Mono) {
        let Some(probing) = &mut self.probing else {
            return;
        };
        if probing
            .suspected
            .is_some_and(|at| now.since(at) < SUSPICION)
        {
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
        if let Some(devices) = probing.devices.take() {
            let started = probing.start(devices, observer);
            self.turn_sentinel(started.err(), now);
        }
    }
}

/// Whether the cluster uses one of the sentinel's addresses otherwise.
fn taken(probing: &Probing, view: &crate::domain::view::ClusterView) -> Option<String> {
    let own = &probing.rule.service;
    let none: &[ipnet::IpNet] = &[];
    let node = view.node();
    let states = || view.states().filter(move |(name, _)| *name != own);
    let services = states().flat_map(|(name, state)| {
        let service = state.service.iter();
        service.flat_map(move |service| {
            let ips = service.cluster_ips.iter();
            let ips = ips.chain(&service.load_balancer_ips);
            ips.chain(&service.external_ips).map(move |ip| (*ip, name))
        })
    });
    let endpoints = states().flat_map(|(name, state)| {
        let slices = state.slices.iter();
        slices
            .flat_map(|slice| &slice.endpoints)
            .map(move |endpoint| (ip_of(endpoint.address), name))
    });
    let known = Known {
        pod_cidrs: node.map_or(none, |node| &node.pod_cidrs),
        node_addresses: node.map_or(&[], |node| &node.addresses),
        services: Box::new(services),
        endpoints: Box::new(endpoints),
    };
    let nothing = NodeState::default();
    conflict(&probing.settings, &Family::ALL, known, &nothing).map(|conflict| conflict.to_string())
}

fn ip_of(address: agent_common::service::Address) -> IpAddr {
    IpAddr::from(address).to_canonical()
}

/// Label of an outcome in metrics.
fn name(outcome: ProbeOutcome) -> &'static str {
    match outcome {
        ProbeOutcome::Passed { .. } => "passed",
        ProbeOutcome::Failed(cause) => cause.name(),
        ProbeOutcome::Void(_) => "void",
    }
}

fn settings(config: &SentinelConfig) -> Settings {
    let mut settings = Settings {
        prefix: config.devices.clone(),
        ..Settings::default()
    };
    let mut pod = PodSources::default();
    for family in Family::ALL {
        settings.client = settings.client.with(config.client[family as usize]);
        settings.echo = settings.echo.with(config.echo[family as usize]);
        match config.pod[family as usize] {
            Some(IpAddr::V4(v4)) => pod.v4 = Some(v4),
            Some(IpAddr::V6(v6)) => pod.v6 = Some(v6),
            None => {}
        }
    }
    Settings { pod, ..settings }
}

fn wire(devices: &SentinelDevices) -> Wire {
    let end = |end: &crate::sentinel::devices::End| {
        let HardwareAddress(mac) = end.mac;
        End {
            ifindex: end.index,
            mac,
        }
    };
    Wire {
        client_far: end(&devices.client_far),
        client_near: end(&devices.client_near).mac,
        server_near: end(&devices.server_near),
        server_far: end(&devices.server_far).mac,
    }
}
