//! The one place that knows every part: builds them, wires them, and runs the main loop.
//!
//! ```text
//! source ──changes──▶ Agent.view ─▶ planner ─▶ observer's maps
//! devices ──────────▶ observer (attach)
//! tick ─▶ observer.look ─▶ ledger ─▶ verdict ─▶ damping ─▶ answers ─▶ HTTP, metrics, report
//! ```
//!
//! One task owns all state and is the only one that changes it; everything else gets published
//! values. Nothing names this module.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::OptionFuture;
use thiserror::Error;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;

use crate::args::PortTakeover;
use crate::causes::chain;
use crate::clock;
use crate::cluster::api::{self, Afresh, ClientError};
use crate::cluster::watch::{OpenError, Update};
use crate::config::{Config, SentinelConfig};
use crate::datapath::attach::Mode;
use crate::datapath::devices::{self, DevicesError};
use crate::datapath::pins::{Pins, PinsError};
use crate::datapath::{Observer, ObserverError};
use crate::domain::time::Mono;
use crate::domain::upstream::Heard;
use crate::hardening::LoaderError;
use crate::http::bind::BindError;
use crate::http::{admin, health, serve};
use crate::lifecycle::heartbeat::Heartbeat;
use crate::lifecycle::ready::{Guard, Readiness};
use crate::lifecycle::{limits, memory as memory_of_process};
use crate::metrics::{Listener, Metrics};
use crate::publish::{self, Client, Clocks, Publishing, Settings};
use crate::sentinel;
use crate::sentinel::devices::DeviceError;
use crate::upstream;

mod agent;
mod assemble;
mod check;
mod confine;
mod coverage;
mod memory;
mod probing;
mod shape;
mod source;
mod takeover;
mod trial;

use agent::{Agent, Published, TICK};
pub use check::{CheckError, check};
pub use confine::{Confined, confine, confine_rotator};
use probing::{Inbox, Probing};
use takeover::Takeover;
use trial::Trial;

/// Whether every hook still stands first is looked at this often.
const CHECK: Duration = Duration::from_secs(5);

/// Why the agent could not run.
#[derive(Debug, Error)]
pub enum AppError {
    // Not transparent: the exit code is found by looking for the cause itself.
    /// An address cannot be had.
    #[error("{0}")]
    Bind(#[from] BindError),
    /// The folder cannot be followed.
    #[error("{0}")]
    Folder(#[from] OpenError),
    /// The API server cannot be asked.
    #[error("{0}")]
    Api(#[from] ClientError),
    /// The kernel refuses the observer for lack of privileges.
    #[error(transparent)]
    Observer(#[from] ObserverError),
    /// The interfaces cannot be followed.
    #[error(transparent)]
    Devices(#[from] DevicesError),
    /// The observer was not loaded.
    #[error(transparent)]
    Loader(#[from] LoaderError),
    /// Signals cannot be received.
    #[error("cannot receive signals: {source}")]
    Signals {
        /// Why not.
        source: std::io::Error,
    },
}

impl AppError {
    /// Whether more privileges would help.
    pub fn is_permission(&self) -> bool {
        matches!(self, Self::Observer(error) if error.is_permission())
    }
}

/// Runs the agent until SIGTERM or SIGINT.
///
/// # Errors
/// What kept it from starting. Once it runs, nothing ends it but a signal: what goes wrong then is
/// said in the log, in `/verdict` and in the metrics.
pub async fn run(config: Config, confined: Confined) -> Result<(), AppError> {
    let mut shutdown = Shutdown::listen()?;
    let readiness = Readiness::new();
    let pending = Pending {
        view: Some(readiness.guard("cluster view")),
        devices: Some(readiness.guard("interfaces")),
    };
    let port = readiness.guard("healthz port");
    let heartbeat = Heartbeat::new(clock::mono().0);
    let metrics = Metrics::new();
    if config.drop_in {
        metrics.http().as_kube_proxy();
    }
    let opened = takeover::open(&config)?;
    // The view is read while the observer is loaded. Where the loader is no thread it blocks, and a
    // task that was spawned here waits for this one to yield: the other worker does not take it.
    let (updates, client) = source::follow(&config).await?;
    tokio::task::yield_now().await;
    let wanted = config.clone();
    let loaded = confined.loader.run(move || load(&wanted)).await?;
    let (observer, blind, no_pins) = loaded?;
    // Reading the object took more than all that follows.
    memory_of_process::give_back();
    let afresh = |of: &SentinelConfig| {
        let client = client.clone()?;
        Some(Afresh::new(client, &config.node_name, of.service.clone()))
    };
    let sentinel = config.sentinel.clone();
    let probing = sentinel.map(|of| (afresh(&of), of));
    let (probing, inbox) = probing.map(|(afresh, of)| Probing::new(of, afresh)).unzip();
    let (mut agent, published) = Agent::new(
        config.clone(),
        observer,
        blind,
        no_pins,
        probing,
        Arc::clone(&metrics),
    );
    agent.hardening = confined.report;
    let (listeners, takeover) = opened.take_over(&config, agent.observer.as_mut(), port)?;
    agent.port = Some(takeover.report.clone());
    agent.succession.clone_from(&takeover.succession);
    let trial = Trial::begin(readiness.clone(), agent.former, clock::mono());
    // Answers stand before anyone is heard.
    agent.publish(clock::mono());
    agent.publishing = client
        .and_then(|client| begin_to_publish(&config, client, &published, Arc::clone(&metrics)));
    if agent.state().is_some_and(trial::fails) {
        // What is remembered is worse than what whoever answers now may know.
        takeover.ready();
    }
    let (ending, ended) = watch::channel(false);
    let served = serve_all(
        &config, listeners, published, &metrics, &readiness, &heartbeat, ended,
    );
    let beside = Beside {
        pending,
        trial,
        heartbeat,
        takeover: &takeover,
    };
    let result = turn(
        &mut agent,
        updates,
        inbox,
        config.upstream.as_ref().map(upstream::follow),
        beside,
        &mut shutdown,
    )
    .await;
    let grace = match &result {
        Ok("SIGTERM") => config.shutdown_grace,
        _ => Duration::ZERO,
    };
    let succeeded = takeover.close(grace, shutdown.requested()).await;
    agent.end(succeeded).await;
    let _ = ending.send(true);
    // Requests under way are answered; a client that does not read must not keep us.
    let _ = tokio::time::timeout(Duration::from_secs(2), served).await;
    result.map(drop)
}

/// `pathproof cleanup`: removes pinned links and maps (which detaches the programs), the state and
/// the sentinel's interfaces, whose names begin with `prefix`.
///
/// # Errors
/// The first that could not be removed; the others are.
pub async fn cleanup(
    pin_dir: Option<&Path>,
    state_dir: Option<&Path>,
    prefix: String,
) -> Result<Removed, CleanupError> {
    let settings = sentinel::devices::Settings {
        prefix,
        ..Default::default()
    };
    let devices = sentinel::devices::remove(&settings).await;
    let pins = pin_dir.map_or(Ok(0), Pins::remove_all);
    if let Some(dir) = state_dir {
        let forgotten = api::forget(dir).and_then(|()| memory::remove(dir));
        forgotten.map_err(|source| PinsError::Io {
            operation: "remove",
            path: dir.to_owned(),
            source,
        })?;
    }
    Ok(Removed {
        pins: pins?,
        devices: devices?,
    })
}

/// What [`cleanup`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removed {
    /// Pinned links and maps.
    pub pins: usize,
    /// Interfaces of the sentinel.
    pub devices: usize,
}

/// What stayed behind.
#[derive(Debug, Error)]
pub enum CleanupError {
    /// A pin, or the state.
    #[error(transparent)]
    Pins(#[from] PinsError),
    /// An interface of the sentinel.
    #[error(transparent)]
    Devices(#[from] DeviceError),
}

impl CleanupError {
    /// Whether more privileges would help.
    pub fn is_permission(&self) -> bool {
        matches!(self, Self::Devices(error) if error.is_permission())
    }
}

/// Guards of what is not ready yet.
struct Pending {
    view: Option<Guard>,
    devices: Option<Guard>,
}

/// What is told of every turn of the main loop.
struct Beside<'a> {
    pending: Pending,
    trial: Trial,
    heartbeat: Heartbeat,
    takeover: &'a Takeover,
}

impl Beside<'_> {
    fn follow(&mut self, agent: &Agent, now: Mono) {
        if agent.view_synced() {
            self.pending.view = None;
        }
        if self.pending.view.is_none() && self.pending.devices.is_none() {
            self.takeover.ready();
        }
        if let Some(state) = agent.state() {
            self.trial.judge(state, now);
        }
        self.heartbeat.beat(now.0);
    }
}

struct Shutdown {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Shutdown {
    fn listen() -> Result<Self, AppError> {
        let listen = |kind| signal(kind).map_err(|source| AppError::Signals { source });
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    async fn requested(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

type Loaded = (Option<Observer>, Option<String>, Option<String>);

/// Loads the observer. A lack of privileges ends the agent, with the remedy; a kernel that cannot
/// do it does not: the node's eligibility is still worth answering for, and the verdict is Unknown.
fn load(config: &Config) -> Result<Loaded, AppError> {
    let mode = match config.attach {
        crate::args::Attach::Auto => Mode::Auto,
        crate::args::Attach::Tcx => Mode::Tcx,
        crate::args::Attach::Clsact => Mode::Clsact,
    };
    match Observer::load(mode, config.pin_dir.as_deref()) {
        Ok((mut observer, no_pins)) => {
            let steers = config.port_takeover == PortTakeover::Steer;
            observer.load_ahead(config.sentinel.is_some(), steers);
            let no_pins = no_pins.map(|error| error.to_string());
            if let Some(why) = &no_pins {
                tracing::warn!(%why, "nothing is pinned: a restart will leave a gap in observation");
            }
            Ok((Some(observer), None, no_pins))
        }
        Err(error) if error.is_permission() => Err(error.into()),
        Err(error) => {
            let why = chain(&error);
            tracing::error!(%why, "there is no observer: the datapath is Unknown");
            Ok((None, Some(why), None))
        }
    }
}

/// Begins to write to the API server what is to be written there.
fn begin_to_publish(
    config: &Config,
    client: Client,
    published: &Published,
    metrics: Arc<Metrics>,
) -> Option<Publishing> {
    let wanted = config.publish;
    let settings = Settings::new(
        Arc::clone(&config.node_name),
        wanted.condition,
        wanted.events,
    );
    let clocks = Clocks {
        mono: clock::mono,
        wall: clock::wall,
    };
    let reports = published.report.clone();
    wanted
        .any()
        .then(|| publish::start(settings, client, reports, metrics, clocks))
}

/// Starts what listens; the task ends when all of it has.
fn serve_all(
    config: &Config,
    (health_listener, admin_listener): takeover::Listeners,
    published: Published,
    metrics: &Arc<Metrics>,
    readiness: &Readiness,
    heartbeat: &Heartbeat,
    ended: watch::Receiver<bool>,
) -> tokio::task::JoinHandle<()> {
    let open_files = limits::raise_open_files().unwrap_or(1024);
    let rules = |listener, allow, limits| serve::Rules {
        listener,
        allow,
        limits,
        metrics: Arc::clone(metrics),
    };
    // Strangers come to the health port.
    let health_limits = serve::Limits::default().within(open_files / 4 * 3);
    let admin_limits = serve::Limits::of_few().within(open_files / 4);
    let end = |mut ended: watch::Receiver<bool>| async move {
        let _ = ended.wait_for(|ended| *ended).await;
    };
    let alive = health::Alive {
        heartbeat: heartbeat.clone(),
        now: clock::mono,
    };
    let health = health::router(health::HealthState {
        answers: published.answers,
        now: clock::wall,
        metrics: Arc::clone(metrics),
        loopback: config.drop_in.then_some(alive),
    });
    let admin = admin::router(admin::AdminState {
        report: published.report,
        metrics: Arc::clone(metrics),
        readiness: readiness.clone(),
        heartbeat: heartbeat.clone(),
        now: clock::mono,
    });
    let health_allow = config.healthz.allow.clone();
    let health_rules = rules(Listener::Healthz, health_allow, health_limits);
    let admin_rules = rules(Listener::Admin, config.admin.allow.clone(), admin_limits);
    let health = health_listener
        .map(|listener| serve::serve(listener, health, health_rules, end(ended.clone())));
    let admin =
        admin_listener.map(|listener| serve::serve(listener, admin, admin_rules, end(ended)));
    tokio::spawn(async move {
        tokio::join!(OptionFuture::from(health), OptionFuture::from(admin));
    })
}

/// The main loop; gives the name of the signal that ended it.
async fn turn(
    agent: &mut Agent,
    mut updates: Receiver<Update>,
    mut inbox: Option<Inbox>,
    mut upstream: Option<Receiver<Heard>>,
    mut beside: Beside<'_>,
    shutdown: &mut Shutdown,
) -> Result<&'static str, AppError> {
    let mut devices = devices::follow().await?;
    devices.mark_changed();
    let mut tick = tokio::time::interval(TICK);
    let mut check = tokio::time::interval(CHECK);
    for interval in [&mut tick, &mut check] {
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    loop {
        tokio::select! {
            biased;
            name = shutdown.requested() => {
                tracing::info!(signal = name, "ending");
                return Ok(name);
            }
            Some(update) = updates.recv() => {
                agent.follow_view(update, clock::mono());
            }
            Some(heard) = hear(&mut upstream) => agent.hear_upstream(heard, clock::mono()),
            message = next(&mut inbox) => agent.take_in(message, clock::mono()),
            Ok(()) = devices.changed() => {
                let interfaces = devices.borrow_and_update().clone();
                let wanted = agent.watched(&interfaces);
                agent.see(interfaces, clock::mono());
                agent.follow_devices(wanted, clock::mono());
                beside.pending.devices = None;
            }
            _ = check.tick() => agent.check(clock::mono()),
            _ = tick.tick() => tick.reset_after(agent.tick(clock::mono())),
        }
        beside.follow(agent, clock::mono());
    }
}

/// The next message of the sentinel's parts; never one where it is off.
async fn next(inbox: &mut Option<Inbox>) -> probing::Message {
    match inbox {
        Some(inbox) => inbox.next().await,
        None => std::future::pending().await,
    }
}

/// What the node's own proxy says next; never anything where it is not asked.
async fn hear(upstream: &mut Option<Receiver<Heard>>) -> Option<Heard> {
    match upstream {
        Some(upstream) => upstream.recv().await,
        None => std::future::pending().await,
    }
}

/// What a source delivers.
type Delivered = Update;
