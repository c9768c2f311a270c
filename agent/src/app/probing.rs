//! The sentinel's parts, held: its devices (kept by a task), programs, prober and uncached reader.
//! What they bring becomes events of the node, and the node's effects reach them here.

use std::net::IpAddr;
use std::time::Duration;

use agent_common::service::Family;
use agent_core::cluster::Change;
use agent_core::effect::{DesiredDevices, Effect};
use agent_core::event::{Event, Parts};
use agent_core::expect::sentinel::Sentinel;
use agent_core::node::Node;
use agent_core::time::Mono;
use agent_core::trace::ProbeTrace;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::clock;
use crate::cluster::api::ApiServer;
use crate::config::SentinelConfig;
use crate::datapath::Observer;
use crate::datapath::probe_hooks::{ProbeEnds, ProbeHooks};
use crate::sentinel::devices::{Role, SentinelDevices, Settings};
use crate::sentinel::prober::{FamilyTargets, Frontend, Prober, Targets};
use addresses::{settings, taken, wire};
use keeper::{DesiredState, Observed};

mod addresses;
mod keeper;
mod maps;
mod report;

/// What comes to the main loop from the sentinel's parts.
pub(super) struct Inbox {
    observed: mpsc::UnboundedReceiver<Observed>,
    traces: mpsc::UnboundedReceiver<ProbeTrace>,
    readings: mpsc::UnboundedReceiver<Reading>,
}

/// When the API server was asked, and what it answered, where it did.
type Reading = (Mono, Option<Vec<Change>>);

/// One thing that came.
pub(in crate::app) enum Message {
    Observed(Observed),
    Trace(Box<ProbeTrace>),
    Reading(Reading),
}

impl Inbox {
    /// The next message; never one where there is no sentinel.
    pub(super) async fn next(&mut self) -> Message {
        tokio::select! {
            Some(observed) = self.observed.recv() => Message::Observed(observed),
            Some(trace) = self.traces.recv() => Message::Trace(Box::new(trace)),
            Some(reading) = self.readings.recv() => Message::Reading(reading),
            else => std::future::pending().await,
        }
    }
}

impl Message {
    /// As an event of the node.
    pub(super) fn into_event(self, probing: Option<&mut Probing>) -> Option<Event> {
        Some(match self {
            Message::Trace(trace) => Event::Trace(trace),
            Message::Reading((began, found)) => Event::Reread(began, found),
            Message::Observed(Observed::Ready(devices)) => {
                probing?.ready = Some(devices);
                Event::Parts(Parts::Ready)
            }
            Message::Observed(Observed::Off(why)) => {
                probing?.ready = None;
                Event::Parts(Parts::Off(why))
            }
            Message::Observed(Observed::Damaged(why)) => Event::Parts(Parts::Damaged(why)),
            Message::Observed(Observed::Kernel(state)) => Event::Parts(Parts::Kernel(state)),
        })
    }
}

pub(super) struct Probing {
    config: SentinelConfig,
    settings: Settings,
    /// The devices that the keeper made; `devices` are those that are probed through.
    ready: Option<SentinelDevices>,
    devices: Option<SentinelDevices>,
    hooks: Option<ProbeHooks>,
    prober: Option<Prober>,
    traces: mpsc::UnboundedSender<ProbeTrace>,
    desired: watch::Sender<DesiredState>,
    keeper: JoinHandle<()>,
    /// Asks for an uncached reading, where the sentinel comes from an API server.
    rereads: Option<watch::Sender<()>>,
}

impl Probing {
    /// With its keeper, which does nothing yet. `uncached` reads the sentinel past the watches, where
    /// it comes from an API server.
    pub(super) fn new(config: SentinelConfig, uncached: Option<ApiServer>) -> (Self, Inbox) {
        let settings = settings(&config);
        let (desired, desires) = watch::channel(DesiredState::default());
        let (observed, observations) = mpsc::unbounded_channel();
        let (traces, traces_read) = mpsc::unbounded_channel();
        let (read, readings) = mpsc::unbounded_channel();
        let keeper = keeper::start(settings.clone(), desires, observed);
        let probing = Self {
            config,
            settings,
            ready: None,
            devices: None,
            hooks: None,
            prober: None,
            traces,
            desired,
            keeper,
            rereads: uncached.map(|uncached| follow_requests(uncached, read)),
        };
        let inbox = Inbox {
            observed: observations,
            traces: traces_read,
            readings,
        };
        (probing, inbox)
    }

    pub(super) fn rereads(&self) -> bool {
        self.rereads.is_some()
    }

    /// Names of the devices that the observer leaves alone: their packets are on no node's way.
    pub(super) fn far_ends(&self) -> [String; 2] {
        [Role::ClientFar, Role::ServerFar].map(|role| self.settings.name(role))
    }

    /// Names of those that face the node.
    pub(super) fn near_ends(&self) -> [String; 2] {
        [Role::ClientNear, Role::ServerNear].map(|role| self.settings.name(role))
    }

    /// Whether the devices are there and nothing probes through them, or through others.
    pub(super) fn has_ended(&self) -> bool {
        self.ready.is_some() && !self.runs()
    }

    /// Performs an effect. Returns what the node is told of it.
    pub(super) fn perform(
        &mut self,
        effect: Effect,
        observer: Option<&mut Observer>,
        node: &Node,
    ) -> Option<Event> {
        match effect {
            Effect::Devices(desired) => self.desire(desired, node),
            Effect::StartProbes { anew } => {
                let started = self.start(anew, observer);
                return Some(Event::Parts(Parts::Started(started.err())));
            }
            Effect::StopProbes => self.stop(),
            Effect::Retarget => self.retarget(node),
            Effect::CheckParts => {
                self.desired.send_modify(|desired| desired.asked += 1);
                let attached = self.hooks.as_ref().is_none_or(ProbeHooks::stand);
                return (!attached).then_some(Event::Parts(Parts::Detached));
            }
            Effect::ReadSentinel => {
                if let Some(rereads) = &self.rereads {
                    rereads.send_replace(());
                }
            }
            Effect::SearchAddresses => {
                let taken = taken(&self.settings, &self.config.service, node.view());
                return Some(Event::AddressesTaken(taken));
            }
            _ => {}
        }
        None
    }

    fn desire(&self, devices: DesiredDevices, node: &Node) {
        self.desired.send_if_modified(|desired| {
            let mut next = desired.clone();
            next.known = true;
            next.devices = devices;
            if let Some(node) = node.view().node() {
                next.pod_cidrs.clone_from(&node.pod_cidrs);
                next.node_addresses.clone_from(&node.addresses);
            }
            let changed = *desired != next;
            *desired = next;
            changed
        });
    }

    fn retarget(&self, node: &Node) {
        if let (Some(prober), Some(watched)) = (&self.prober, node.sentinel()) {
            let probed = watched.off().is_none().then(|| watched.found());
            prober.retarget(self.targets(probed));
        }
    }

    fn targets(&self, probed: Option<&Sentinel>) -> Targets {
        let mut targets = Targets::default();
        let (Some(probed), Some(devices)) = (probed, &self.devices) else {
            return targets;
        };
        for family in Family::ALL
            .into_iter()
            .filter(|family| devices.has(*family))
        {
            let Some(found) = probed.families[family as usize] else {
                continue;
            };
            let frontend =
                |address: IpAddr, tcp: u16, udp: Option<u16>| Frontend { address, tcp, udp };
            let node_port = found.node_address.zip(found.tcp.node_port);
            let udp_port = found.udp.map(|udp| udp.port);
            let udp_node_port = found.udp.and_then(|udp| udp.node_port);
            targets.families[family as usize] = Some(FamilyTargets {
                cluster_ip: Some(frontend(found.cluster_ip, found.tcp.port, udp_port)),
                node_port: node_port.map(|(address, tcp)| frontend(address, tcp, udp_node_port)),
                client: self.config.client[family as usize],
                pod_client: self.config.pod[family as usize],
                echo: found.echo,
            });
        }
        targets
    }

    /// Whether everything runs on the devices that the keeper made.
    fn runs(&self) -> bool {
        self.devices == self.ready
            && self.hooks.is_some()
            && self.prober.as_ref().is_some_and(Prober::is_running)
    }

    /// Programs and prober for the devices that are ready, if they do not run already.
    fn start(&mut self, anew: bool, observer: Option<&mut Observer>) -> Result<(), String> {
        let observer = observer.ok_or("there is no observer")?;
        if anew {
            self.hooks = None;
        }
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
        let Self {
            desired, keeper, ..
        } = self;
        if succeeded {
            keeper.abort();
            return;
        }
        drop(desired);
        // Netlink answers in milliseconds, or is broken.
        let _ = tokio::time::timeout(Duration::from_secs(5), keeper).await;
    }
}

/// Reads the sentinel whenever that is asked for, from a task that ends with whoever asks.
fn follow_requests(uncached: ApiServer, read: mpsc::UnboundedSender<Reading>) -> watch::Sender<()> {
    let (requests, mut requested) = watch::channel(());
    tokio::spawn(async move {
        while requested.changed().await.is_ok() {
            let began = clock::mono();
            if read.send((began, uncached.read_uncached().await)).is_err() {
                return;
            }
        }
    });
    requests
}
