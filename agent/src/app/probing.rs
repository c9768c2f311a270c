//! The sentinel's parts, wired: what the view says of it, its devices, programs and prober, and
//! where its evidence goes. Owned by the main loop, like everything else that has state.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::time::Duration;

use agent_common::service::{FAMILIES, Family};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::clock;
use crate::cluster::api::Afresh;
use crate::config::SentinelConfig;
use crate::datapath::Observer;
use crate::datapath::probe_hooks::{ProbeEnds, ProbeHooks};
use crate::sentinel::devices::{Role, SentinelDevices, Settings};
use crate::sentinel::prober::{FamilyTargets, Frontend, Prober, Targets};
use addresses::{settings, wire};
use afresh::{Reader, Reading};
use agent_core::cluster::NodeFacts;
use agent_core::expect::sentinel::{Sentinel, SentinelFamily, SentinelRule};
use agent_core::probes::{KernelFacts, SentinelView};
use agent_core::time::Mono;
use agent_core::trace::ProbeTrace;
use keeper::{News, Wish};

mod addresses;
mod afresh;
mod block;
mod follow;
mod keeper;
mod maps;

/// What comes to the main loop from the sentinel's parts.
pub(super) struct Inbox {
    news: mpsc::UnboundedReceiver<News>,
    traces: mpsc::UnboundedReceiver<ProbeTrace>,
    readings: mpsc::UnboundedReceiver<Reading>,
}

/// One thing that came.
pub(super) struct Message(Content);

enum Content {
    News(News),
    Trace(Box<ProbeTrace>),
    Reading(Reading),
}

impl Inbox {
    /// The next message; never one where there is no sentinel.
    pub(super) async fn next(&mut self) -> Message {
        tokio::select! {
            Some(news) = self.news.recv() => Message(Content::News(news)),
            Some(trace) = self.traces.recv() => Message(Content::Trace(Box::new(trace))),
            Some(reading) = self.readings.recv() => Message(Content::Reading(reading)),
            else => std::future::pending().await,
        }
    }
}

/// What of a sentinel stays when its endpoint moves.
fn fixed(found: &Sentinel) -> [Option<SentinelFamily>; FAMILIES] {
    let fixed = |family: Option<SentinelFamily>| family.map(SentinelFamily::without_generation);
    found.families.map(fixed)
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
    /// Reads the sentinel afresh, where it comes from an API server.
    reader: Option<Reader>,
    /// When the last look began that found the sentinel's parts sound.
    sound: Option<Mono>,
    /// Changes of the view when it was last searched for the sentinel's addresses.
    searched: Option<u64>,
    wishes: watch::Sender<Wish>,
    traces: mpsc::UnboundedSender<ProbeTrace>,
    keeper: JoinHandle<()>,
}

impl Probing {
    /// With its keeper, which does nothing yet. `afresh` is how the sentinel is read once more, if
    /// it comes from an API server.
    pub(super) fn new(config: SentinelConfig, afresh: Option<Afresh>) -> (Self, Inbox) {
        let settings = settings(&config);
        let (wishes, wished) = watch::channel(Wish::default());
        let (news, news_read) = mpsc::unbounded_channel();
        let (traces, traces_read) = mpsc::unbounded_channel();
        let (told, readings) = mpsc::unbounded_channel();
        let reader = afresh.map(|afresh| Reader::start(afresh, told));
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
            reader,
            sound: None,
            searched: None,
            wishes,
            traces,
            keeper,
        };
        let inbox = Inbox {
            news: news_read,
            traces: traces_read,
            readings,
        };
        (probing, inbox)
    }

    /// Names of devices that the observer leaves alone: their packets are on no node's way.
    pub(super) fn far_ends(&self) -> [String; 2] {
        [Role::ClientFar, Role::ServerFar].map(|role| self.settings.name(role))
    }

    /// Name of one of the sentinel's devices.
    pub(super) fn device_name(&self, role: Role) -> String {
        self.settings.name(role)
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
        fixed(&self.found).hash(&mut hasher);
        SentinelView {
            exists: self.found.exists,
            off: self.off().map(str::to_owned),
            altered: self
                .differs()
                .or(self.found.altered.as_deref())
                .map(str::to_owned),
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
