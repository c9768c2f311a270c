//! The one place that knows every part: builds them, wires them, and runs the main loop.
//!
//! ```text
//! source ──changes──▶ ┐                      ┌─▶ observer's maps, hooks
//! interfaces ────────▶ │                      ├─▶ sentinel's devices, prober
//! samples ───────────▶ ├─ Event ▶ Node::step ─┤
//! probes ────────────▶ │            ▲         ├─▶ answers ─▶ HTTP
//! timers ────────────▶ ┘            └─ Event ─┴─▶ report, metrics, state file
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
use tokio::sync::mpsc::{self};
use tokio::sync::watch;

use crate::args::PortTakeover;
use crate::causes::chain;
use crate::clock;
use crate::cluster::api::{self, ClientError, Uncached};
use crate::cluster::watch::OpenError;
use crate::config::{Config, SentinelConfig};
use crate::datapath::attach::Mode;
use crate::datapath::devices::DevicesError;
use crate::datapath::pins::{Pins, PinsError};
use crate::datapath::{Observer, ObserverError};
use crate::hardening::LoaderError;
use crate::http::bind::BindError;
use crate::http::{admin, health, serve};
use crate::lifecycle::heartbeat::Heartbeat;
use crate::lifecycle::ready::Readiness;
use crate::lifecycle::{limits, memory as memory_of_process};
use crate::metrics::{Listener, Metrics};
use crate::publish::{self, Client, Clocks, Publishing, Settings};
use crate::sentinel;
use crate::sentinel::devices::DeviceError;
use crate::state;
use agent_core::coverage::ObserverStart;
use agent_core::effect::Answers;
use agent_core::event::Event;
use agent_core::limits::Limits;

mod agent;
mod assemble;
mod check;
mod confine;
mod probing;
mod source;
mod turn;

use crate::port::{self};
use agent::{Agent, Loaded, Published};
pub use check::{CheckError, check};
pub use confine::{Confined, confine, confine_rotator};
use probing::Probing;
use turn::{Beside, Input, Inputs, Pending};

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
    let opened = port::open(&config)?;
    // The view is read while the observer is loaded. Where the loader is no thread it blocks, and a
    // task that was spawned here waits for this one to yield: the other worker does not take it.
    let (updates, client) = source::follow(&config).await?;
    tokio::task::yield_now().await;
    let wanted = config.clone();
    let loaded = confined.loader.run(move || load(&wanted)).await??;
    // Reading the object took more than all that follows.
    memory_of_process::give_back();
    let uncached = |of: &SentinelConfig| {
        let client = client.clone()?;
        Some(Uncached::new(client, &config.node_name, of.service.clone()))
    };
    let probing = (config.sentinel.clone()).map(|of| Probing::new(of.clone(), uncached(&of)));
    let (probing, inbox) = probing.unzip();
    let limits = Limits::default();
    let (mut agent, published) = Agent::new(
        config.clone(),
        loaded,
        probing,
        limits,
        Arc::clone(&metrics),
    );
    agent.output.hardening = confined.report;
    let (listeners, takeover) = opened.take_over(&config, agent.observer.as_mut(), port)?;
    agent.succeeded.follow(&takeover);
    // Answers are there before anyone is heard.
    agent.feed(Event::Tick);
    agent.output.publishing = client
        .and_then(|client| begin_to_publish(&config, client, &published, Arc::clone(&metrics)));
    if agent
        .node
        .judge()
        .last
        .is_some_and(|last| last.state.fails())
    {
        // What is remembered is worse than what whoever answers now may know.
        takeover.ready();
    }
    let (ending, ended) = watch::channel(false);
    let (recordings, wanted_recordings) = mpsc::channel(1);
    let admin = admin::AdminState {
        report: published.report.clone(),
        metrics: Arc::clone(&metrics),
        readiness: readiness.clone(),
        heartbeat: heartbeat.clone(),
        recordings,
        now: clock::mono,
    };
    let served = serve_all(&config, listeners, published.answers, admin, ended);
    let mut beside = Beside {
        pending,
        readiness,
        upgrade: None,
        heartbeat,
        takeover: &takeover,
    };
    let mut inputs = Inputs::new(updates, inbox, wanted_recordings).await?;
    let result = loop {
        tokio::select! {
            biased;
            name = shutdown.requested() => {
                tracing::info!(signal = name, "ending");
                break name;
            }
            input = inputs.next() => {
                inputs.devices_known |= matches!(input, Input::Interfaces(_));
                if let Some(pause) = agent.take(input) {
                    inputs.sample.reset_after(pause);
                }
            }
        }
        beside.follow(&agent, inputs.devices_known);
    };
    let grace = match result {
        "SIGTERM" => config.shutdown_grace,
        _ => Duration::ZERO,
    };
    let succeeded = takeover.close(grace, shutdown.requested()).await;
    agent.end(succeeded).await;
    let _ = ending.send(true);
    // Requests under way are answered; a client that does not read must not keep us.
    let _ = tokio::time::timeout(Duration::from_secs(2), served).await;
    Ok(())
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
        let forgotten = api::forget(dir).and_then(|()| state::remove(dir));
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
            Ok(Loaded {
                start: ObserverStart {
                    blind: None,
                    no_pins,
                    continues: observer.continues(),
                },
                observer: Some(observer),
            })
        }
        Err(error) if error.is_permission() => Err(error.into()),
        Err(error) => {
            let why = chain(&error);
            tracing::error!(%why, "there is no observer: the datapath is Unknown");
            Ok(Loaded {
                observer: None,
                start: ObserverStart {
                    blind: Some(why),
                    ..ObserverStart::default()
                },
            })
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
    (health_listener, admin_listener): port::Listeners,
    answers: watch::Receiver<Arc<Answers>>,
    admin: admin::AdminState,
    ended: watch::Receiver<bool>,
) -> tokio::task::JoinHandle<()> {
    let open_files = limits::raise_open_files().unwrap_or(1024);
    let rules = |listener, allow, limits| serve::Rules {
        listener,
        allow,
        limits,
        metrics: Arc::clone(&admin.metrics),
    };
    // Strangers come to the health port.
    let health_limits = serve::Limits::default().within(open_files / 4 * 3);
    let admin_limits = serve::Limits::of_few().within(open_files / 4);
    let end = |mut ended: watch::Receiver<bool>| async move {
        let _ = ended.wait_for(|ended| *ended).await;
    };
    let alive = health::Alive {
        heartbeat: admin.heartbeat.clone(),
        now: clock::mono,
    };
    let health = health::router(health::HealthState {
        answers,
        now: clock::wall,
        metrics: Arc::clone(&admin.metrics),
        loopback: config.drop_in.then_some(alive),
    });
    let health_allow = config.healthz.allow.clone();
    let health_rules = rules(Listener::Healthz, health_allow, health_limits);
    let admin_rules = rules(Listener::Admin, config.admin.allow.clone(), admin_limits);
    let admin = admin::router(admin.clone());
    let health = health_listener
        .map(|listener| serve::serve(listener, health, health_rules, end(ended.clone())));
    let admin =
        admin_listener.map(|listener| serve::serve(listener, admin, admin_rules, end(ended)));
    tokio::spawn(async move {
        tokio::join!(OptionFuture::from(health), OptionFuture::from(admin));
    })
}
