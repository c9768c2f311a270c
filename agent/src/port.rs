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

use crate::args::PortTakeover;
use crate::config::Config;
use crate::datapath::Observer;
use crate::datapath::listeners::{is_opening, sharers};
use crate::datapath::steer::{Behind, Owners, Steer, SteerError, Steering, Succession};
use crate::http::bind::{self, BindAddress, BindError};
use crate::lifecycle::ready::Guard;
use agent_core::event::Successor;
use agent_core::report::{PortReport, PortWay};

/// Who else listens at the port is looked at this often.
const LOOK: Duration = Duration::from_secs(1);
/// The same while the agent waits for its successor.
const WAIT: Duration = Duration::from_millis(50);
/// Whoever answered before does so for this long at most, while the agent reads the cluster.
const SETTLE: Duration = Duration::from_secs(15);
/// Who that is is looked at this often meanwhile.
const WATCH: Duration = Duration::from_millis(200);
/// Handshakes that began before the connections were given up are waited for this long: a client
/// whose answer was lost gets it again after a second.
const HANDSHAKES: Duration = Duration::from_millis(1_200);

/// /healthz and /livez, and the admin port; nothing for what is not served.
pub(crate) type Listeners = (Option<TcpListener>, Option<TcpListener>);

type Opening = Result<TcpListener, BindError>;

/// The listeners, before anything is steered to them.
pub(crate) struct Opened {
    listeners: Listeners,
    aside: bool,
    /// See [`PortSteering`].
    before: BTreeSet<u32>,
}

/// Opens the listeners.
///
/// # Errors
/// An address cannot be had.
pub(crate) fn open(config: &Config) -> Result<Opened, BindError> {
    let healthz = config.healthz.address;
    let aside = config.port_takeover == PortTakeover::Steer && port_of(healthz) != 0;
    let listen = if aside {
        bind::listen_aside
    } else {
        bind::listen
    };
    let admin = match config.drop_in {
        true => "--metrics-bind-address",
        false => "--admin-bind-address",
    };
    let at = |address: Option<BindAddress>, open: &dyn Fn(BindAddress) -> Opening| {
        address.map(open).transpose()
    };
    let listeners = (
        at(healthz, &|address| listen(bind::HEALTHZ, address))?,
        at(config.admin.address, &|address| {
            bind::listen(admin, address)
        })?,
    );
    Ok(Opened {
        before: who_shares(listeners.0.as_ref(), healthz),
        listeners,
        aside,
    })
}

impl Opened {
    /// Has connections come to the listeners: from now on where nobody else answers them, else once
    /// the agent is ready to. `pending` is dropped then. Where they cannot be steered the port is bound
    /// after all.
    ///
    /// # Errors
    /// Then it cannot be bound.
    pub(crate) fn take_over(
        self,
        config: &Config,
        observer: Option<&mut Observer>,
        pending: Guard,
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
                    tracing::warn!(%error, "the healthz port is bound instead");
                    report.problem = Some(error.to_string());
                    let healthz = config.healthz.address;
                    let bound = healthz.map(|address| bind::listen(bind::HEALTHZ, address));
                    listeners.0 = bound.transpose()?;
                    before = who_shares(listeners.0.as_ref(), healthz);
                }
            }
        }
        let steering = PortSteering {
            port: port_of(config.healthz.address),
            serves: listeners.0.is_some(),
            inode: listeners.0.as_ref().and_then(inode),
            before,
            steered,
            stranger: false,
            pending: Some(pending),
            report: watch::Sender::new(report),
        };
        Ok((listeners, Takeover::start(steering)))
    }
}

/// Whether another agent has taken over, and what was last known of that.
#[derive(Default)]
pub(crate) struct Succeeded {
    /// What is asked, where connections are steered.
    succession: Option<Arc<Succession>>,
    /// How connections to the healthz port come here.
    pub(crate) port: Option<watch::Receiver<PortReport>>,
    last: Successor,
    /// Interfaces came or went while a successor had the hooks.
    pub(crate) postponed: bool,
}

impl Succeeded {
    pub(crate) fn follow(&mut self, takeover: &Takeover) {
        self.port = Some(takeover.report.clone());
        self.succession.clone_from(&takeover.succession);
    }

    /// As the kernel says now, where connections are steered. A successor steers them before it
    /// touches anything else that is ours.
    pub(crate) fn ask(&self) -> Successor {
        match (&self.succession, &self.port) {
            (Some(succession), _) => match succession.ask() {
                Behind::Agent { plans: true, .. } => Successor::Plans,
                Behind::Agent { .. } => Successor::Observes,
                Behind::Nobody | Behind::Stranger => Successor::None,
            },
            (None, Some(port)) if port.borrow().succeeded => Successor::Observes,
            (None, _) => Successor::None,
        }
    }

    /// Whether that differs from what was last known.
    pub(crate) fn is_news(&mut self, now: Successor) -> bool {
        std::mem::replace(&mut self.last, now) != now
    }

    /// The maps of expectations are kept from here from now on.
    pub(crate) fn plan(&self) {
        if let Some(succession) = &self.succession {
            succession.plan();
        }
    }
}

fn steer(
    config: &Config,
    (healthz, admin): &Listeners,
    observer: Option<&mut Observer>,
) -> Result<(Steering, Owners), SteerError> {
    let observer = observer.ok_or(SteerError::NoObserver)?;
    // The admin port is bound as well; of two agents at once the later answers.
    let ports = [
        (HEALTHZ, healthz, config.healthz.address, 0),
        (ADMIN, admin, config.admin.address, steer_flag::OURS),
    ];
    let steers = ports
        .into_iter()
        .filter_map(|(index, listener, address, flags)| {
            Some(Steer {
                index,
                rule: rule(address.filter(|_| port_of(address) != 0)?, flags),
                listener: listener.as_ref()?.as_raw_fd(),
            })
        });
    let steers: Vec<Steer> = steers.collect();
    observer.steer(port_of(config.healthz.address), &steers)
}

fn rule(address: BindAddress, flags: u32) -> SteerRule {
    let port = u32::from(port_of(Some(address)));
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

/// 0 where there is none.
fn port_of(address: Option<BindAddress>) -> u16 {
    match address {
        None => 0,
        Some(BindAddress::Everywhere(port)) => port,
        Some(BindAddress::One(address)) => address.port(),
    }
}

/// The kernel's number of a socket. Nothing where it cannot be told.
fn inode(listener: &TcpListener) -> Option<u32> {
    let file = File::from(listener.as_fd().try_clone_to_owned().ok()?);
    // Sockets have inodes of 32 bits.
    u32::try_from(file.metadata().ok()?.ino()).ok()
}

/// Who shares the listener's address and port with it, by their sockets.
fn who_shares(listener: Option<&TcpListener>, address: Option<BindAddress>) -> BTreeSet<u32> {
    let inode = listener.and_then(inode).filter(|_| port_of(address) != 0);
    inode
        .and_then(|inode| sharers(port_of(address), inode).ok())
        .unwrap_or_default()
}

/// The way that connections take, looked after by a task of its own until it is closed.
pub(crate) struct Takeover {
    /// How connections come here, as last looked at.
    pub(crate) report: watch::Receiver<PortReport>,
    /// What is asked for a successor, where connections are steered.
    pub(crate) succession: Option<Arc<Succession>>,
    ready: watch::Sender<bool>,
    stop: oneshot::Sender<()>,
    steering: JoinHandle<PortSteering>,
}

impl Takeover {
    fn start(mut steering: PortSteering) -> Self {
        let report = steering.report.subscribe();
        let steered = steering.steered.as_ref();
        let succession = steered.map(|(steering, _)| Arc::clone(steering.succession()));
        let (stop, stopped) = oneshot::channel();
        let (ready, readied) = watch::channel(false);
        steering.look();
        if !steering.waits() {
            steering.pending = None;
        }
        let steering = tokio::spawn(steering.keep(readied, stopped));
        Self {
            report,
            succession,
            ready,
            stop,
            steering,
        }
    }

    /// What the agent answers is worth hearing: load balancers' connections come here from now on.
    pub(crate) fn ready(&self) {
        self.ready
            .send_if_modified(|ready| !std::mem::replace(ready, true));
    }

    /// Gives connections up to who answers next. Where that would be nobody, waits for a successor
    /// for `grace`, unless `hurry` completes. All that were begun are in the listener's queue when
    /// this returns. Says whether there is a successor.
    pub(crate) async fn close(self, grace: Duration, hurry: impl Future) -> bool {
        let Self {
            stop,
            steering,
            ready,
            ..
        } = self;
        drop((stop, ready));
        let Ok(mut steering) = steering.await else {
            return false;
        };
        steering.wait(grace, hurry).await;
        steering.give_up().await
    }
}

struct PortSteering {
    port: u16,
    /// Whether /healthz and /livez are served: else nobody waits for who does it next.
    serves: bool,
    /// Of the listener.
    inode: Option<u32>,
    /// Who shared the port already when this agent bound it: predecessors.
    before: BTreeSet<u32>,
    /// Nothing where the port is bound.
    steered: Option<(Steering, Owners)>,
    /// Somebody else's program stands behind ours.
    stranger: bool,
    /// Dropped once load balancers' connections come here.
    pending: Option<Guard>,
    report: watch::Sender<PortReport>,
}

impl PortSteering {
    async fn keep(
        mut self,
        mut ready: watch::Receiver<bool>,
        mut stop: oneshot::Receiver<()>,
    ) -> Self {
        let end = Instant::now() + SETTLE;
        loop {
            let waits = self.waits();
            tokio::select! {
                biased;
                _ = &mut stop => return self,
                Ok(_) = ready.wait_for(|ready| *ready), if waits => self.answer(),
                () = tokio::time::sleep(if waits { WATCH } else { LOOK }) => {}
            }
            // Whoever answered may be gone.
            if !self.look() || Instant::now() >= end {
                self.answer();
            }
        }
    }

    /// Whether somebody else still answers load balancers.
    fn waits(&self) -> bool {
        let steering = self.steered.as_ref().map(|(steering, _)| steering);
        steering.is_some_and(|steering| !steering.answers())
    }

    /// Has their connections come here. Where that fails it is tried again with the next look.
    fn answer(&mut self) {
        if let Some((steering, _)) = &mut self.steered
            && !steering.answers()
            && let Err(error) = steering.answer()
        {
            tracing::warn!(%error, "whoever answered load balancers before still does");
            return;
        }
        self.pending = None;
    }

    /// Looks who listens and who took over; says whether anyone but this agent answers outsiders, or
    /// may: of a program of somebody else's that cannot be known.
    fn look(&mut self) -> bool {
        let waits = self.waits();
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
                let later = matches!(behind, Behind::Agent { answers: true, .. });
                let before = !steering.answers() && steering.succession().follows_an_agent();
                let answers = later || stranger || before || owners.answer_outsiders();
                (owner, later, answers)
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
            let now = (owner, succeeded, waits);
            let changed = (report.owner, report.succeeded, report.waits) != now;
            if succeeded && !report.succeeded {
                tracing::info!("another agent has taken over");
            }
            (report.owner, report.succeeded, report.waits) = now;
            changed
        });
        answers
    }

    async fn wait(&mut self, grace: Duration, hurry: impl Future) {
        let end = Instant::now() + grace;
        let mut hurry = pin!(hurry);
        while self.serves && !self.look() && Instant::now() < end {
            tokio::select! {
                () = tokio::time::sleep(WAIT) => {}
                _ = &mut hurry => return,
            }
        }
    }

    /// No connection comes any more; those that are being opened are waited for. Says whether there
    /// is a successor, whether or not it answers yet.
    async fn give_up(mut self) -> bool {
        // Afresh: afterwards it cannot be told any more.
        self.look();
        let succeeded = match &self.steered {
            Some((steering, _)) => matches!(steering.succession().ask(), Behind::Agent { .. }),
            None => self.report.borrow().succeeded,
        };
        if self.steered.take().is_none() {
            return succeeded;
        }
        finish_handshakes(|| is_opening(self.port).unwrap_or(true)).await;
        succeeded
    }
}

async fn finish_handshakes(is_opening: impl Fn() -> bool) {
    let end = Instant::now() + HANDSHAKES;
    // Once at least: one may be on its way through the kernel.
    tokio::time::sleep(WAIT).await;
    while Instant::now() < end && is_opening() {
        tokio::time::sleep(WAIT).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    // Time until the last handshake completes, and bounds of the wait, in milliseconds.
    #[rstest]
    #[case::none_is_open(0, 1..=100)]
    #[case::an_answer_was_lost_once(1_000, 1_000..=1_100)]
    #[case::a_client_that_never_answers(u64::MAX, 1_000..=2_000)]
    #[tokio::test(start_paused = true)]
    async fn handshakes_are_waited_for(
        #[case] last: u64,
        #[case] waits: std::ops::RangeInclusive<u64>,
    ) {
        let start = Instant::now();
        finish_handshakes(|| start.elapsed() < Duration::from_millis(last)).await;
        let waited = start.elapsed().as_millis() as u64;
        assert!(waits.contains(&waited), "{waited} ms");
    }
}
