//! Builds and wires all parts, and runs the main loop.
//!
//! ```text
//! source ──changes──▶ ┐                      ┌─▶ observer's maps, hooks
//! interfaces ────────▶ │                      ├─▶ sentinel's devices, prober
//! samples ───────────▶ ├─ Event ▶ Node::step ─┤
//! probes ────────────▶ │            ▲         ├─▶ answers ─▶ HTTP
//! timers ────────────▶ ┘            └─ Event ─┴─▶ report, metrics, state file
//! ```
//!
//! One task owns all state and is the only one that changes it; everything else receives published
//! values. No other module may name this one.

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use pathproof_facts::limits::{Limits, SAMPLE_INTERVAL};
use pathproof_judge::drain::ProbeRanges;
use pathproof_node::event::Event;
use pathproof_plan::expect::sentinel::SentinelRule;
use pathproof_shared::bind_address::BindAddress;
use pathproof_shared::causes::chain;
use pathproof_witness::coverage::ObserverStart;
use tokio::sync::mpsc::{self, Receiver};
use tokio::sync::watch;
use tokio::time::{Interval, MissedTickBehavior};

use crate::cluster::api::client::client;
use crate::cluster::api::{ApiServer, Scope};
use crate::cluster::{Update, watch as folder};
use crate::config::{Config, KeptArgs, PortTakeover, Source};
use crate::confine::Confined;
use crate::datapath::Observer;
use crate::datapath::attach::left;
use crate::datapath::devices::{self, DevicesError, Interfaces};
use crate::datapath::load::MapsError;
use crate::datapath::pins::{Pins, PinsError};
use crate::http::admin;
use crate::http::admin::RecordingRequest;
use crate::lifecycle::release;
use crate::lifecycle::stall::Stall;
use crate::lifecycle::starting::Starting;
use crate::lifecycle::{Heartbeat, Readiness, Shutdown, give_back_memory, keep_little_memory};
use crate::metrics::Metrics;
use crate::publish::{self, Client, Settings};
use crate::sentinel::devices::{DeviceError, remove};
use crate::{clock, files, port};

mod agent;
mod changes;
mod check;
mod episodes;
mod notices;
mod owner_answers;
mod probing;
mod serving;

use agent::Agent;
pub use check::check;
use probing::{Inbox, Probing};
use serving::Serving;

/// Reason why a command failed. Reporting code finds the cause by its type.
pub type AppError = Box<dyn Error + Send + Sync>;

/// Whether more privileges would help.
pub fn is_permission(error: &(dyn Error + 'static)) -> bool {
    let observer = error.downcast_ref::<MapsError>();
    let device = error.downcast_ref::<DeviceError>();
    observer.is_some_and(MapsError::is_permission) || device.is_some_and(DeviceError::is_permission)
}

/// Parts that the agent waits for, as named in the readiness report.
const VIEW: &str = "cluster view";
const UPGRADE: &str = "node became unhealthy after this agent started";

/// Runs the agent until SIGTERM or SIGINT. It is `starting` until its main loop has turned once;
/// from then on kubelet probes its liveness.
///
/// # Errors
/// The reason why it could not start. Later problems are reported in the log, in `/verdict` and in
/// the metrics.
pub async fn run(config: Config, confined: Confined, starting: Starting) -> Result<(), AppError> {
    keep_little_memory();
    let mut shutdown = Shutdown::listen()?;
    let readiness = Readiness::default();
    readiness.set(VIEW, false);
    let heartbeat = Heartbeat::new(clock::mono().0);
    let metrics = Metrics::with(config.admin.service_metrics);
    if config.drop_in {
        metrics.as_kube_proxy();
    }
    // The view is read while the observer is loaded. If the loader has no separate thread, loading blocks
    // this one. The tasks that read the view start only after this task yields, so yield first.
    let (updates, client) = follow(&config).await?;
    tokio::task::yield_now().await;
    let wanted = config.clone();
    // Loading may take minutes on a busy node. If a signal ends the agent meanwhile, nothing was attached
    // yet: new pins record a gap, so that the next agent does not rely on them.
    let root = config.kept.pin_dir.as_deref();
    let pins = root.and_then(|root| Pins::open(root).ok());
    let mut loaded = tokio::select! {
        biased;
        signal = shutdown.requested() => {
            tracing::info!(signal, "ending before the observer is loaded");
            if let Some(pins) = pins.filter(|pins| !pins.found) {
                pins.interrupt();
            }
            return Ok(());
        }
        loaded = confined.loader.run(move || load(&wanted)) => loaded??,
    };
    // Parsing the object took more memory than all that follows.
    give_back_memory();
    let (mut listeners, takeover, successor, health_ports) =
        port::take_over(&config, loaded.0.as_mut(), readiness.clone())?;
    let probing = config.sentinel.clone().map(|sentinel| {
        let scope = Scope::Sentinel(sentinel.place.service.clone());
        let uncached = |client| ApiServer::new(client, &config.node_name, scope);
        let uncached = client.clone().map(uncached);
        Probing::new(sentinel, uncached)
    });
    let (probing, inbox) = probing.unzip();
    let limits = limits(&config);
    let mut agent = Agent::new(config, loaded, probing, limits, Arc::clone(&metrics));
    agent.output.hardening = confined.report;
    agent.successor = successor;
    agent.health_ports = health_ports;
    // Publish answers before a client can connect.
    agent.feed(Event::Tick);
    let wanted = agent.config.publish;
    let client = client.filter(|_| wanted.condition || wanted.events);
    agent.output.publishing = client.map(|client| {
        let node = Arc::clone(&agent.config.node_name);
        let settings = Settings::new(node, wanted.condition, wanted.events);
        let reports = agent.output.report.subscribe();
        publish::start(settings, client, reports, Arc::clone(&metrics))
    });
    let last = agent.node.judge().last;
    if last.is_some_and(|last| last.state.fails()) {
        // Take over at once if the verdict fails: no previous responder can have a worse one, so there is no
        // need to wait for the view.
        takeover.ready();
    }
    let (ending, ended) = watch::channel(());
    let (recordings, wanted_recordings) = mpsc::channel(1);
    let admin = admin::AdminState {
        report: agent.output.report.subscribe(),
        episodes: agent.output.episodes.shown.subscribe(),
        metrics,
        readiness: readiness.clone(),
        heartbeat: heartbeat.clone(),
        recordings,
        state_dir: agent.config.kept.state_dir.clone(),
        now: clock::mono,
    };
    // Attaching takes long on a node with many pods, and the loop must not count as stalled meanwhile.
    heartbeat.rest();
    let pulse = listeners.pulse.take();
    let stall = Stall::new(heartbeat.clone(), clock::mono());
    let served = serving::all(&agent, listeners, admin, &stall);
    owner_answers::begin(&agent);
    let serving = Serving::start(served, (stall, pulse), ended).await?;
    let mut inputs = Inputs::new(updates, inbox, wanted_recordings).await?;
    agent.follow_interfaces(inputs.interfaces());
    let mut starting = Some(starting);
    let signal = loop {
        tokio::select! {
            biased;
            name = shutdown.requested() => break name,
            () = inputs.turn(&mut agent) => {}
        }
        drop(starting.take());
        if agent.node.view().is_synced() {
            readiness.set(VIEW, true);
            takeover.ready();
        }
        readiness.set(UPGRADE, !agent.node.judge().gate.closed);
        heartbeat.beat(clock::mono().0);
    };
    tracing::info!(signal, "ending");
    let grace = match signal {
        "SIGTERM" => agent.config.healthz.shutdown_grace,
        _ => Duration::ZERO,
    };
    heartbeat.rest();
    let has_successor = takeover.close(grace, shutdown.requested()).await;
    agent.end(has_successor).await;
    drop(ending);
    // Requests in progress are answered; a client that does not read must not delay the end.
    let _ = tokio::time::timeout(Duration::from_secs(2), serving.end()).await;
    Ok(())
}

/// Interval of checks of the hooks and the sentinel.
const CHECK: Duration = Duration::from_secs(5);

struct Inputs {
    updates: Receiver<Update>,
    inbox: Option<Inbox>,
    devices: watch::Receiver<Interfaces>,
    recordings: Receiver<RecordingRequest>,
    sample: Interval,
    check: Interval,
}

impl Inputs {
    async fn new(
        updates: Receiver<Update>,
        inbox: Option<Inbox>,
        recordings: Receiver<RecordingRequest>,
    ) -> Result<Self, DevicesError> {
        let mut check = tokio::time::interval(CHECK);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Ok(Self {
            updates,
            inbox,
            devices: devices::follow().await?,
            recordings,
            sample: tokio::time::interval(SAMPLE_INTERVAL),
            check,
        })
    }

    fn interfaces(&mut self) -> Interfaces {
        self.devices.borrow_and_update().clone()
    }

    /// Waits for one input, and feeds it to the agent.
    async fn turn(&mut self, agent: &mut Agent) {
        let inbox = OptionFuture::from(self.inbox.as_mut().map(Inbox::next));
        tokio::select! {
            biased;
            // Samples come first, so that other inputs are judged by the newest evidence.
            _ = self.sample.tick() => self.sample.reset_after(agent.sample()),
            Some(update) = self.updates.recv() => agent.caught_up().follow_view(update),
            Some(event) = inbox => agent.caught_up().feed(event),
            Ok(()) = self.devices.changed() => {
                agent.caught_up().follow_interfaces(self.interfaces());
            }
            _ = self.check.tick() => agent.caught_up().check(),
            // Last: a client that keeps requesting recordings must not delay the other inputs.
            Some(wanted) = self.recordings.recv() => {
                // The client may be gone.
                let _ = wanted.send(agent.node.recording());
            }
        }
    }
}

/// Opens the source of the cluster view and follows it. Also returns the client, if the source is
/// an API server.
///
/// # Errors
/// The source cannot be opened. An unreachable API server is not an error: it is retried.
async fn follow(config: &Config) -> Result<(Receiver<Update>, Option<Client>), AppError> {
    match &config.source {
        Source::Folder(path) => Ok((folder::follow(path, &config.node_name), None)),
        Source::Api { api, only } => {
            let scope = only.clone().map_or(Scope::Full, Scope::Sentinel);
            let (kubeconfig, server) = (api.kubeconfig.as_deref(), api.server.as_deref());
            let client = client(kubeconfig, server, config.kept.state_dir.as_deref()).await?;
            let updates = ApiServer::new(client.clone(), &config.node_name, scope).follow();
            Ok((updates, Some(client)))
        }
    }
}

/// Counts of what `pathproof cleanup` removed.
pub struct Removed {
    pub pins: usize,
    /// Filters of an agent that was killed.
    pub filters: usize,
    pub devices: usize,
}

/// `pathproof cleanup`: removes pinned links and maps (which detaches the programs), filters, the
/// state and the sentinel's interfaces, whose names begin with `prefix`.
///
/// # Errors
/// The first failure; everything else is still removed.
pub async fn cleanup(kept: &KeptArgs, prefix: String) -> Result<Removed, AppError> {
    let devices = remove(&prefix).await;
    let filters = left::remove_all(kept.pin_dir.as_deref());
    let pins = kept.pin_dir.as_deref().map_or(Ok(0), Pins::remove_all);
    for emptied in [kept.journal_folder(), kept.state_dir.as_deref()].map(empty) {
        emptied?;
    }
    Ok(Removed {
        pins: pins?,
        filters: filters.map_err(|error| format!("cannot remove the filters: {error}"))?,
        devices: devices?,
    })
}

fn empty(dir: Option<&Path>) -> Result<(), PinsError> {
    let Some(dir) = dir else { return Ok(()) };
    files::remove_all(dir).map_err(|source| PinsError::Io {
        operation: "remove",
        path: dir.to_owned(),
        source,
    })
}

/// The observer, if it is loaded, and how loading went.
type Loaded = (Option<Observer>, ObserverStart);

/// Loads the observer. Missing privileges end the agent, with the remedy. An unsuitable kernel does
/// not: the agent still reports the node's eligibility, and the verdict is Unknown.
fn load(config: &Config) -> Result<Loaded, MapsError> {
    if let Some(release) = release::untested() {
        tracing::warn!(%release, "pathproof was tested on Linux 6.1 and newer only, and this kernel is \
                                  older");
    }
    let mut start = ObserverStart::default();
    match Observer::load(config.observer.attach, config.kept.pin_dir.as_deref()) {
        Ok((mut observer, no_pins)) => {
            let steers = config.healthz.port_takeover == PortTakeover::Steer;
            observer.load_ahead(config.sentinel.is_some(), steers);
            start.no_pins = no_pins.map(|error| error.to_string());
            if let Some(why) = &start.no_pins {
                tracing::warn!(%why, "no BPF link or map is pinned: a restart will leave a gap in \
                                      observation");
            }
            start.continues = observer.continues();
            Ok((Some(observer), start))
        }
        Err(error) if error.is_permission() => Err(error),
        Err(error) => {
            let why = chain(&error);
            tracing::error!(%why, "the observer is not loaded: the verdict is Unknown");
            start.blind = Some(why);
            Ok((None, start))
        }
    }
}

/// Limits of the verdict's rules. A build with debug assertions, which is never shipped, reads two
/// of them from its environment, so that tests need not wait for 10 s and for two minutes.
fn limits(config: &Config) -> Limits {
    let mut limits = Limits::default();
    let sentinel = config.sentinel.as_ref();
    limits.declared = sentinel.and_then(|sentinel| sentinel.datapath);
    if !cfg!(debug_assertions) {
        return limits;
    }
    for (name, limit) in [
        ("PATHPROOF_TEST_SETTLED_MS", &mut limits.sentinel_settled),
        ("PATHPROOF_TEST_BOOT_MS", &mut limits.boot_deadline),
    ] {
        let wait = std::env::var(name).ok().and_then(|text| text.parse().ok());
        *limit = wait.map_or(*limit, Duration::from_millis);
    }
    limits
}

fn settings(config: &Config, limits: Limits, rereads: bool) -> pathproof_node::Settings {
    pathproof_node::Settings {
        node: config.node_name.to_string(),
        limits,
        terminating: config.terminating.clone(),
        unknown_policy: config.healthz.unknown_policy,
        enforcement: config.healthz.enforcement,
        enforce_nodes: config.healthz.enforce_nodes.clone(),
        families: config.healthz.families,
        flap_dwell: config.healthz.flap_dwell,
        fleet_brake: Some(config.healthz.fleet_brake).filter(|percent| *percent > 0),
        leaving_brake: Some(config.healthz.leaving_brake).filter(|percent| *percent > 0),
        drain_ignore: ProbeRanges::new(config.admin.drain_ignore_cidr.iter().flatten().copied()),
        watches_services: config.source.has_services(),
        sentinel: config.sentinel.as_ref().map(|sentinel| SentinelRule {
            service: sentinel.place.service.clone(),
            echo: sentinel.place.echo,
            clients: sentinel.place.client.to_vec(),
            pods: sentinel.pod.into_iter().flatten().collect(),
        }),
        own_ports: [&config.healthz.address, &config.admin.address]
            .into_iter()
            .flatten()
            .filter(|address| !address.is_loopback())
            .map(BindAddress::port)
            .collect(),
        rereads,
    }
}
