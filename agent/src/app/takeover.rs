//! How connections to the healthz port come to the agent, and how they go on to whoever answers
//! after it: a successor, or the port's owner (docs/adr/0010-port-takeover.md).

use std::collections::BTreeSet;
use std::fs::File;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use agent_common::steer::{ADMIN, HEALTHZ, SteerRule, mapped, steer_flag};
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::agent::Agent;
use crate::args::PortTakeover;
use crate::config::Config;
use crate::datapath::Observer;
use crate::datapath::listeners::{is_opening, sharers};
use crate::datapath::steer::{Behind, Owners, Steer, SteerError, Steering, Succession};
use crate::http::bind::{self, BindAddress, BindError};
use crate::report::{PortReport, PortWay};

/// Who else listens at the port is looked at this often.
const LOOK: Duration = Duration::from_secs(1);
/// The same while the agent waits for its successor.
const WAIT: Duration = Duration::from_millis(50);
/// Handshakes that began before the connections were given up are waited for this long: a client
/// whose answer was lost gets it again after a second.
const HANDSHAKES: Duration = Duration::from_millis(1_200);

/// /healthz and /livez, and the admin port.
pub(super) type Listeners = (TcpListener, TcpListener);

/// The listeners, before anything is steered to them.
pub(super) struct Opened {
    listeners: Listeners,
    aside: bool,
    /// See [`Door`].
    before: BTreeSet<u32>,
}

/// Opens the listeners.
///
/// # Errors
/// An address cannot be had.
pub(super) fn open(config: &Config) -> Result<Opened, BindError> {
    let healthz = config.healthz.address;
    let aside = config.port_takeover == PortTakeover::Steer && port_of(healthz) != 0;
    let listen = if aside {
        bind::listen_aside
    } else {
        bind::listen
    };
    let listeners = (
        listen(bind::HEALTHZ, healthz)?,
        bind::listen("--admin-bind-address", config.admin.address)?,
    );
    Ok(Opened {
        before: who_shares(&listeners.0, healthz),
        listeners,
        aside,
    })
}

impl Opened {
    /// Has connections come to the listeners, from now on. Where they cannot be steered the port is
    /// bound after all.
    ///
    /// # Errors
    /// Then it cannot be bound.
    pub(super) fn take_over(
        self,
        config: &Config,
        observer: Option<&mut Observer>,
    ) -> Result<(Listeners, Takeover), BindError> {
        let Self {
            mut listeners,
            aside,
            mut before,
        } = self;
        let mut report = PortReport::default();
        let mut steered = None;
        if aside {
            match steer(config, &listeners, observer) {
                Ok(held) => {
                    report.way = PortWay::Steered;
                    steered = Some(held);
                }
                Err(error) => {
                    tracing::warn!(%error, address = %config.healthz.address, "the healthz port is bound instead");
                    report.problem = Some(error.to_string());
                    listeners.0 = bind::listen(bind::HEALTHZ, config.healthz.address)?;
                    before = who_shares(&listeners.0, config.healthz.address);
                }
            }
        }
        let door = Door {
            port: port_of(config.healthz.address),
            inode: inode(&listeners.0),
            before,
            steered,
            stranger: false,
            report: watch::Sender::new(report),
        };
        Ok((listeners, Takeover::start(door)))
    }
}

impl Agent {
    /// Whether another agent has taken over: as the kernel says now, where connections are steered.
    /// A successor steers them before it touches anything else that is ours.
    pub(super) fn is_succeeded(&self) -> bool {
        match (&self.succession, &self.port) {
            (Some(succession), _) => succession.ask() == Behind::Agent,
            (None, Some(port)) => port.borrow().succeeded,
            (None, None) => false,
        }
    }
}

fn steer(
    config: &Config,
    (healthz, admin): &Listeners,
    observer: Option<&mut Observer>,
) -> Result<(Steering, Owners), SteerError> {
    let observer = observer.ok_or(SteerError::NoObserver)?;
    let mut steers = vec![Steer {
        index: HEALTHZ,
        rule: rule(config.healthz.address, 0),
        listener: healthz.as_raw_fd(),
    }];
    if port_of(config.admin.address) != 0 {
        // It is bound as well; of two agents at once the later answers.
        steers.push(Steer {
            index: ADMIN,
            rule: rule(config.admin.address, steer_flag::OURS),
            listener: admin.as_raw_fd(),
        });
    }
    observer.steer(port_of(config.healthz.address), &steers)
}

fn rule(address: BindAddress, flags: u32) -> SteerRule {
    let port = u32::from(port_of(address));
    match address {
        BindAddress::Everywhere(_) => SteerRule {
            port,
            flags: flags | steer_flag::EVERYWHERE,
            ..SteerRule::default()
        },
        BindAddress::One(one) => SteerRule {
            address: match one {
                SocketAddr::V4(v4) => mapped(v4.ip().octets()),
                SocketAddr::V6(v6) => v6.ip().octets(),
            },
            port,
            flags,
        },
    }
}

fn port_of(address: BindAddress) -> u16 {
    match address {
        BindAddress::Everywhere(port) => port,
        BindAddress::One(address) => address.port(),
    }
}

/// The kernel's number of a socket. Nothing where it cannot be told.
fn inode(listener: &TcpListener) -> Option<u32> {
    let file = File::from(listener.as_fd().try_clone_to_owned().ok()?);
    // Sockets have inodes of 32 bits.
    u32::try_from(file.metadata().ok()?.ino()).ok()
}

/// Who shares the listener's address and port with it, by their sockets.
fn who_shares(listener: &TcpListener, address: BindAddress) -> BTreeSet<u32> {
    let inode = inode(listener).filter(|_| port_of(address) != 0);
    inode
        .and_then(|inode| sharers(port_of(address), inode).ok())
        .unwrap_or_default()
}

/// The way that connections take, looked after by a task of its own until it is closed.
pub(super) struct Takeover {
    /// How connections come here, as last looked at.
    pub(super) report: watch::Receiver<PortReport>,
    /// What is asked for a successor, where connections are steered.
    pub(super) succession: Option<Arc<Succession>>,
    stop: oneshot::Sender<()>,
    door: JoinHandle<Door>,
}

impl Takeover {
    fn start(mut door: Door) -> Self {
        let report = door.report.subscribe();
        let steered = door.steered.as_ref();
        let succession = steered.map(|(steering, _)| Arc::clone(steering.succession()));
        let (stop, stopped) = oneshot::channel();
        door.look();
        let door = tokio::spawn(door.keep(stopped));
        Self {
            report,
            succession,
            stop,
            door,
        }
    }

    /// Gives connections up to who answers next. Where that would be nobody, waits for a successor
    /// for `grace`, unless `hurry` completes. All that were begun are in the listener's queue when
    /// this returns. Says whether there is a successor.
    pub(super) async fn close(self, grace: Duration, hurry: impl Future) -> bool {
        let Self { stop, door, .. } = self;
        drop(stop);
        let Ok(mut door) = door.await else {
            return false;
        };
        door.wait(grace, hurry).await;
        door.give_up().await
    }
}

struct Door {
    port: u16,
    /// Of the listener.
    inode: Option<u32>,
    /// Who shared the port already when this agent bound it: predecessors.
    before: BTreeSet<u32>,
    /// Nothing where the port is bound.
    steered: Option<(Steering, Owners)>,
    /// Somebody else's program stands behind ours.
    stranger: bool,
    report: watch::Sender<PortReport>,
}

impl Door {
    async fn keep(mut self, mut stop: oneshot::Receiver<()>) -> Self {
        while tokio::time::timeout(LOOK, &mut stop).await.is_err() {
            self.look();
        }
        self
    }

    /// Looks who listens and who took over; says whether anyone but this agent answers outsiders, or
    /// may: of a program of somebody else's that cannot be known.
    fn look(&mut self) -> bool {
        let (owner, succeeded, answers) = match &mut self.steered {
            Some((steering, owners)) => {
                let owner = owners.look().ok();
                let behind = steering.succession().ask();
                let stranger = behind == Behind::Stranger;
                if stranger && !std::mem::replace(&mut self.stranger, stranger) {
                    tracing::warn!(
                        "another program of type sk_lookup was attached later, and no agent says that it is its own: it may take connections to the healthz port"
                    );
                }
                self.stranger = stranger;
                let answers = behind != Behind::Nobody || owners.answer_outsiders();
                (owner, behind == Behind::Agent, answers)
            }
            // Who shares the port is of our kind: others were refused it, or we would be.
            None => {
                let shared = self
                    .inode
                    .filter(|_| self.port != 0)
                    .and_then(|inode| sharers(self.port, inode).ok());
                let later = shared.is_some_and(|shared| !shared.is_subset(&self.before));
                (None, later, later)
            }
        };
        self.report.send_if_modified(|report| {
            let changed = (report.owner, report.succeeded) != (owner, succeeded);
            if succeeded && !report.succeeded {
                tracing::info!("another agent has taken over");
            }
            (report.owner, report.succeeded) = (owner, succeeded);
            changed
        });
        answers
    }

    async fn wait(&mut self, grace: Duration, hurry: impl Future) {
        let end = Instant::now() + grace;
        let mut hurry = pin!(hurry);
        while !self.look() && Instant::now() < end {
            tokio::select! {
                () = tokio::time::sleep(WAIT) => {}
                _ = &mut hurry => return,
            }
        }
    }

    /// No connection comes any more; those that are being opened are waited for.
    async fn give_up(mut self) -> bool {
        // Afresh: afterwards it cannot be told any more.
        self.look();
        let succeeded = self.report.borrow().succeeded;
        if self.steered.take().is_none() {
            return succeeded;
        }
        let end = Instant::now() + HANDSHAKES;
        // Once at least: one may be on its way through the kernel.
        tokio::time::sleep(WAIT).await;
        while Instant::now() < end && is_opening(self.port).unwrap_or(true) {
            tokio::time::sleep(WAIT).await;
        }
        succeeded
    }
}
