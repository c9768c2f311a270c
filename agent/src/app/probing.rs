//! Holds the sentinel's parts: its devices (maintained by a task), programs, prober and uncached reader.
//! Their results become events of the node, and the node's effects are performed here.

use std::time::Duration;

use keeper::Desired;
use pathproof_facts::trace::ProbeTrace;
use pathproof_node::Node;
use pathproof_node::effect::{DesiredDevices, SentinelEffect};
use pathproof_node::event::{Event, SentinelEvent};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::clock;
use crate::cluster::api::ApiServer;
use crate::config::SentinelConfig;
use crate::datapath::Observer;
use crate::datapath::probes::{ProbeEnds, ProbeHooks};
use crate::sentinel::devices::{Role, SentinelDevices};
use crate::sentinel::prober::Prober;

mod keeper;
mod report;

/// Events and traces from the sentinel's parts to the main loop.
pub(super) struct Inbox {
    events: mpsc::UnboundedReceiver<Event>,
    traces: mpsc::UnboundedReceiver<ProbeTrace>,
}

impl Inbox {
    /// The next event; without a sentinel it never completes.
    pub(super) async fn next(&mut self) -> Event {
        tokio::select! {
            Some(event) = self.events.recv() => event,
            Some(trace) = self.traces.recv() => Event::Trace(Box::new(trace)),
            else => std::future::pending().await,
        }
    }
}

pub(super) struct Probing {
    config: SentinelConfig,
    /// Devices that the keeper made; `devices` are those in use.
    ready: watch::Receiver<Option<SentinelDevices>>,
    devices: Option<SentinelDevices>,
    hooks: Option<ProbeHooks>,
    prober: Option<Prober>,
    traces: mpsc::UnboundedSender<ProbeTrace>,
    desired: watch::Sender<Desired>,
    keeper: JoinHandle<()>,
    /// Requests an uncached read, if the sentinel comes from an API server.
    rereads: Option<watch::Sender<()>>,
}

impl Probing {
    /// Starts the keeper, which does nothing yet. `uncached` reads the sentinel without the watches' cache,
    /// if the sentinel comes from an API server.
    pub(super) fn new(config: SentinelConfig, uncached: Option<ApiServer>) -> (Self, Inbox) {
        let (desired, desires) = watch::channel(None);
        let (made, ready) = watch::channel(None);
        let (sender, events) = mpsc::unbounded_channel();
        let (traces, traces_read) = mpsc::unbounded_channel();
        let keeper = keeper::start(config.clone(), desires, made, sender.clone());
        let probing = Self {
            config,
            ready,
            devices: None,
            hooks: None,
            prober: None,
            traces,
            desired,
            keeper,
            rereads: uncached.map(|uncached| follow_requests(uncached, sender)),
        };
        let inbox = Inbox {
            events,
            traces: traces_read,
        };
        (probing, inbox)
    }

    pub(super) fn rereads(&self) -> bool {
        self.rereads.is_some()
    }

    /// Names of the devices that the observer skips, because the node does not route packets that cross them.
    pub(super) fn far_ends(&self) -> [String; 2] {
        [Role::ClientFar, Role::ServerFar].map(|role| role.name(&self.config.devices))
    }

    /// Names of the devices that face the node.
    pub(super) fn near_ends(&self) -> [String; 2] {
        Role::NEAR.map(|role| role.name(&self.config.devices))
    }

    /// Whether devices exist and the other parts do not run on them.
    pub(super) fn has_ended(&self) -> bool {
        self.ready.borrow().is_some() && !self.runs()
    }

    /// Performs an effect. Returns the event to feed to the node, if any.
    #[deny(clippy::wildcard_enum_match_arm)]
    pub(super) fn perform(
        &mut self,
        effect: SentinelEffect,
        observer: Option<&mut Observer>,
        node: &Node,
    ) -> Option<Event> {
        match effect {
            SentinelEffect::Devices(desired) => self.desire(desired),
            SentinelEffect::Start { anew } => {
                let started = self.start(anew, observer);
                return Some(Event::Sentinel(SentinelEvent::Started(started.err())));
            }
            SentinelEffect::Stop => self.stop(),
            SentinelEffect::Retarget => self.retarget(node),
            SentinelEffect::Check => {
                // Nothing changes, but the keeper checks at once.
                self.desired.send_modify(|_| ());
                let attached = self.hooks.as_ref().is_none_or(ProbeHooks::are_attached);
                return (!attached).then_some(Event::Sentinel(SentinelEvent::Detached));
            }
            SentinelEffect::Reread => {
                if let Some(rereads) = &self.rereads {
                    rereads.send_replace(());
                }
            }
        }
        None
    }

    fn desire(&self, devices: DesiredDevices) {
        self.desired.send_if_modified(|desired| {
            let changed = desired.as_ref() != Some(&devices);
            *desired = Some(devices);
            changed
        });
    }

    fn retarget(&self, node: &Node) {
        if let (Some(prober), Some(watched)) = (&self.prober, node.sentinel()) {
            prober.retarget(match watched.off() {
                None => self.addresses(node),
                Some(_) => Vec::new(),
            });
        }
    }

    /// Whether everything runs on the devices that the keeper made.
    fn runs(&self) -> bool {
        self.devices == *self.ready.borrow()
            && self.hooks.is_some()
            && self.prober.as_ref().is_some_and(Prober::is_running)
    }

    /// Starts programs and prober on the ready devices, if they do not run already.
    fn start(&mut self, anew: bool, observer: Option<&mut Observer>) -> Result<(), String> {
        let observer = observer.ok_or("the observer is not loaded")?;
        if anew {
            self.hooks = None;
        }
        let ready = self.ready.borrow().clone();
        let Some(devices) = ready.filter(|_| !self.runs()) else {
            return Ok(());
        };
        // Stop the old programs first: two echoes would answer twice.
        self.stop();
        let hooks = observer.open_sentinel(&ProbeEnds {
            client_near: devices.index(Role::ClientNear),
            client_far: devices.index(Role::ClientFar),
            server_near: devices.index(Role::ServerNear),
            server_far: devices.index(Role::ServerFar),
        });
        self.hooks = Some(hooks.map_err(|error| error.to_string())?);
        let maps = observer.probe_maps().map_err(|error| error.to_string())?;
        let prober = Prober::start(maps, &devices, clock::mono, self.traces.clone());
        self.prober = Some(prober.map_err(|error| error.to_string())?);
        self.devices = Some(devices);
        Ok(())
    }

    fn stop(&mut self) {
        self.prober = None;
        self.hooks = None;
        self.devices = None;
    }

    /// Stops everything, and removes the devices unless a successor uses them.
    pub(super) async fn end(mut self, has_successor: bool) {
        self.stop();
        let Self {
            desired, keeper, ..
        } = self;
        if has_successor {
            keeper.abort();
            return;
        }
        drop(desired);
        // Netlink answers in milliseconds, or is broken.
        let _ = tokio::time::timeout(Duration::from_secs(5), keeper).await;
    }
}

/// Reads the sentinel on request, in a task that ends when the returned sender is dropped.
fn follow_requests(uncached: ApiServer, events: mpsc::UnboundedSender<Event>) -> watch::Sender<()> {
    let (requests, mut requested) = watch::channel(());
    tokio::spawn(async move {
        while requested.changed().await.is_ok() {
            let began = clock::mono();
            let reread = Event::Reread(began, uncached.read_uncached().await);
            if events.send(reread).is_err() {
                return;
            }
        }
    });
    requests
}
