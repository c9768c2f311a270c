//! How connections to the healthz port come to the agent, and how they go on to whoever answers
//! after it: a successor, or the port's owner (docs/adr/0010-port-takeover.md).

use std::fs::File;
use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::MetadataExt as _;
use std::pin::pin;
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
use crate::datapath::listeners::{is_opening, listeners};
use crate::datapath::steer::{Owners, Steer, SteerError, Steering};
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
    Ok(Opened {
        listeners: (
            listen(bind::HEALTHZ, healthz)?,
            bind::listen("--admin-bind-address", config.admin.address)?,
        ),
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
                }
            }
        }
        let door = Door {
            port: port_of(config.healthz.address),
            inode: inode(&listeners.0),
            steered,
            report: watch::Sender::new(report),
        };
        Ok((listeners, Takeover::start(door)))
    }
}

impl Agent {
    /// Whether another agent has taken over.
    pub(super) fn is_succeeded(&self) -> bool {
        self.port
            .as_ref()
            .is_some_and(|port| port.borrow().succeeded)
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

/// The way that connections take, looked after by a task of its own until it is closed.
pub(super) struct Takeover {
    /// How connections come here, as last looked at.
    pub(super) report: watch::Receiver<PortReport>,
    stop: oneshot::Sender<()>,
    door: JoinHandle<Door>,
}

impl Takeover {
    fn start(mut door: Door) -> Self {
        let report = door.report.subscribe();
        let (stop, stopped) = oneshot::channel();
        door.look();
        let door = tokio::spawn(door.keep(stopped));
        Self { report, stop, door }
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
    /// Nothing where the port is bound.
    steered: Option<(Steering, Owners)>,
    report: watch::Sender<PortReport>,
}

impl Door {
    async fn keep(mut self, mut stop: oneshot::Receiver<()>) -> Self {
        while tokio::time::timeout(LOOK, &mut stop).await.is_err() {
            self.look();
        }
        self
    }

    /// Looks who listens and who took over; says whether anyone but this agent answers outsiders.
    fn look(&mut self) -> bool {
        let (owner, succeeded, answers) = match &mut self.steered {
            Some((steering, owners)) => {
                let owner = owners.look().ok();
                let succeeded = steering.is_succeeded();
                (owner, succeeded, succeeded || owners.answer_outsiders())
            }
            // Who shares the port is of our kind: others were refused it, or we would be.
            None => {
                let others = listeners(self.port, self.inode).unwrap_or_default();
                let succeeded = self.inode.is_some() && self.port != 0 && !others.is_empty();
                (None, succeeded, succeeded)
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
