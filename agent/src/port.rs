//! Steers connections to the healthz port to the agent and, when the agent ends, to the next responder: a
//! successor, or the port's owner (docs/internal/design/shell.md#port-takeover).

use std::collections::BTreeSet;
use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsRawFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use nix::sys::stat::fstat;
use pathproof_node::event::Successor;
use pathproof_report::{PortReport, PortWay};
use pathproof_shared::bind_address::BindAddress;
use pathproof_wire::steer::{ADMIN, HEALTHZ, SteerRule, mapped, steer_flag};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::config::{Config, OrNone, PortRange, PortTakeover, Switch};
use crate::datapath::Observer;
use crate::datapath::listeners::{is_opening, sharers};
use crate::datapath::steer::{Attached, Owners, Pulse, Steer, SteerError, Steering};
use crate::datapath::succession::{Behind, Succession};
use crate::http::bind::{self, BindError};
use crate::lifecycle::Readiness;

mod kept;
mod services;

use kept::Kept;
pub(crate) use services::{SteeredServices, steered};

/// Interval between checks for other listeners on the port.
const LOOK: Duration = Duration::from_secs(1);
/// Interval between checks while the agent waits for its successor.
const WAIT: Duration = Duration::from_millis(50);
/// Maximum time for which the previous responder keeps the port, while the agent reads the cluster.
const SETTLE: Duration = Duration::from_secs(15);
/// Interval between checks while the previous responder keeps the port.
const WATCH: Duration = Duration::from_millis(200);
/// Maximum wait for handshakes that began before the agent released the port. If a SYN-ACK was lost, the
/// kernel sends it again after a second.
const HANDSHAKES: Duration = Duration::from_millis(1_200);
/// Name of the healthz port in the readiness report.
const PART: &str = "healthz port";

/// Listeners of the agent; `None` for those that are turned off.
#[derive(Default)]
pub(crate) struct Listeners {
    pub(crate) healthz: Option<TcpListener>,
    pub(crate) admin: Option<TcpListener>,
    /// Target of steered connections to Services' health check node ports.
    pub(crate) services: Option<TcpListener>,
    /// By which the thread that answers shows that it runs, if connections are steered.
    pub(crate) pulse: Option<Pulse>,
}

/// Opens the listeners, and directs connections to them: those that nothing else answers at once, all others
/// once the agent is ready. If connections cannot be steered, the agent binds the port.
pub(crate) fn take_over(
    config: &Config,
    observer: Option<&mut Observer>,
    readiness: Readiness,
) -> Result<(Listeners, Takeover, SuccessorWatch, Option<SteeredServices>), BindError> {
    let option = match config.drop_in {
        true => "--metrics-bind-address",
        false => "--admin-bind-address",
    };
    let admin = config.admin.address.map(|at| bind::listen(option, at));
    let admin = admin.transpose()?;
    let healthz = config.healthz.address;
    let port = port(config);
    let aside = config.healthz.port_takeover == PortTakeover::Steer && port != 0;
    let open = |listen: fn(&'static str, BindAddress) -> Result<TcpListener, BindError>| {
        healthz.map(|at| listen(bind::HEALTHZ, at)).transpose()
    };
    let mut report = PortReport::default();
    if healthz.is_none() {
        report.way = PortWay::Off;
    }
    let (mut steered, mut services) = (None, None);
    let range = config.healthz.health_check_node_ports.clone();
    let mut listeners = Listeners {
        healthz: match aside {
            true => open(bind::listen_aside)?,
            false => open(bind::listen)?,
        },
        admin,
        services: (aside && range.is_some())
            .then(|| bind::listen_aside(bind::SERVICES, BindAddress::Everywhere(0)))
            .transpose()?,
        pulse: None,
    };
    if aside {
        match steer(config, &listeners, observer) {
            Ok(all) => {
                report.way = PortWay::Steered;
                steered = Some((all.steering, all.owners));
                listeners.pulse = Some(all.pulse);
                services = range.clone().map(|range| SteeredServices {
                    ports: all.ports,
                    range,
                    table: watch::Sender::default(),
                    refusals: watch::Sender::default(),
                });
            }
            Err(error) => {
                tracing::warn!(%error, "connections to the healthz port cannot be steered: the \
                                        agent listens on the port instead");
                report.problem = Some(error.to_string());
                listeners.healthz = open(bind::listen)?;
            }
        }
    }
    let is_bound = port != 0 && steered.is_none();
    let bound = listeners.healthz.as_ref().filter(|_| is_bound);
    let bound = bound.and_then(inode).map(|inode| Bound {
        inode,
        before: sharers(port, inode).unwrap_or_default(),
    });
    let report = watch::Sender::new(report);
    let succession = steered.as_ref();
    let succession = succession.map(|(steering, _)| Arc::clone(&steering.succession));
    let successor = SuccessorWatch {
        planners: (succession.as_ref()).map_or_else(BTreeSet::new, |known| known.planners()),
        succession,
        port: report.clone(),
        last: Successor::None,
    };
    let rule = healthz.map(|address| rule(address, 0)).unwrap_or_default();
    let ends = config.healthz.end_kept_connections == Switch::On;
    let mut steering = PortSteering {
        port,
        service_ports: range,
        bound,
        steered,
        kept: Kept::new(rule, services.as_ref(), ends),
        foreign: false,
        readiness,
        report,
    };
    steering.look();
    steering.readiness.set(PART, !steering.waits());
    let (ready, readied) = watch::channel(false);
    let steering = tokio::spawn(steering.keep(readied));
    let takeover = Takeover { ready, steering };
    Ok((listeners, takeover, successor, services))
}

/// Detects whether another agent has taken over, and remembers the last result.
#[derive(Default)]
pub(crate) struct SuccessorWatch {
    /// The kernel's record of a successor, if connections are steered.
    succession: Option<Arc<Succession>>,
    /// How connections to the healthz port reach the agent.
    pub(crate) port: watch::Sender<PortReport>,
    last: Successor,
    /// Programs of agents that are known to have maintained the maps.
    planners: BTreeSet<u32>,
}

impl SuccessorWatch {
    /// The current successor. If connections are steered, the kernel's record shows it. Steering is a
    /// successor's first step, before it changes anything else of this agent.
    pub(crate) fn ask(&self) -> Successor {
        match self.succession.as_ref().map(|succession| succession.ask()) {
            Some(Behind::Agent { plans: true, .. }) => Successor::Plans,
            Some(Behind::Agent { .. }) => Successor::Observes,
            Some(Behind::Nobody | Behind::Foreign) => Successor::None,
            None if self.port.borrow().succeeded => Successor::Observes,
            None => Successor::None,
        }
    }

    /// Changes since the last call, in order. A successor that maintained the maps and ended in
    /// between is reported too, because it has changed them.
    pub(crate) fn news(&mut self) -> Vec<Successor> {
        let now = self.ask();
        let planners =
            (self.succession.as_ref()).map_or_else(BTreeSet::new, |known| known.planners());
        let missed = now != Successor::Plans
            && self.last != Successor::Plans
            && !planners.is_subset(&self.planners);
        self.planners = planners;
        let passed = missed.then_some(Successor::Plans);
        let differs = std::mem::replace(&mut self.last, now) != now;
        passed
            .into_iter()
            .chain((missed || differs).then_some(now))
            .collect()
    }

    /// Whether there was a successor at the last call of [`Self::news`].
    pub(crate) fn exists(&self) -> bool {
        self.last.exists()
    }

    /// Records that this agent maintains the maps of expectations from now on.
    pub(crate) fn plan(&self) {
        if let Some(succession) = &self.succession {
            succession.plan();
        }
    }
}

fn steer(
    config: &Config,
    listeners: &Listeners,
    observer: Option<&mut Observer>,
) -> Result<Attached, SteerError> {
    let observer = observer.ok_or(SteerError::NoObserver)?;
    let mut steers = Vec::new();
    // The admin port is steered as well as bound: while two agents run, the later one answers.
    let (healthz, admin) = (config.healthz.address, config.admin.address);
    for (index, listener, address, flags) in [
        (HEALTHZ, &listeners.healthz, healthz, 0),
        (ADMIN, &listeners.admin, admin, steer_flag::OURS),
    ] {
        if let (Some(listener), Some(address)) = (listener, address)
            && address.port() != 0
        {
            steers.push(Steer {
                index,
                rule: rule(address, flags),
                listener: listener.as_raw_fd(),
            });
        }
    }
    let services = listeners.services.as_ref().map(AsRawFd::as_raw_fd);
    let state_dir = config.kept.state_dir.as_deref();
    observer.steer(port(config), &steers, services, state_dir)
}

/// Port of /healthz and /livez; 0 if there is none, or if the kernel picks it.
fn port(config: &Config) -> u16 {
    config.healthz.address.map_or(0, |address| address.port())
}

fn rule(address: BindAddress, flags: u32) -> SteerRule {
    let mut rule = SteerRule {
        port: u32::from(address.port()),
        flags,
        ..SteerRule::default()
    };
    match address {
        BindAddress::Everywhere(_) => rule.flags |= steer_flag::EVERYWHERE,
        BindAddress::One(SocketAddr::V4(v4)) => rule.address = mapped(v4.ip().octets()),
        BindAddress::One(SocketAddr::V6(v6)) => rule.address = v6.ip().octets(),
    }
    rule
}

/// Inode of a socket, if the kernel reports it.
fn inode(listener: &TcpListener) -> Option<u32> {
    // Sockets have inodes of 32 bits.
    u32::try_from(fstat(listener).ok()?.st_ino).ok()
}

/// Handle of the task that maintains the steering until [`Takeover::close`].
pub(crate) struct Takeover {
    /// Dropping it ends the task.
    ready: watch::Sender<bool>,
    steering: JoinHandle<PortSteering>,
}

impl Takeover {
    /// Directs load balancers' connections to the agent from now on, because its answers are valid now.
    pub(crate) fn ready(&self) {
        self.ready
            .send_if_modified(|ready| !std::mem::replace(ready, true));
    }

    /// Releases connections to the next responder. If there is none, it waits for a successor for
    /// `grace`, unless `hurry` completes. On return, all connections that were started are in the
    /// listener's queue. Returns whether there is a successor.
    pub(crate) async fn close(self, grace: Duration, hurry: impl Future) -> bool {
        drop(self.ready);
        let Ok(mut steering) = self.steering.await else {
            return false;
        };
        steering.wait(grace, hurry).await;
        steering.release().await
    }
}

/// The listener at a port that the agent holds.
struct Bound {
    inode: u32,
    /// Sockets that shared the port when this agent bound it: those of its predecessors.
    before: BTreeSet<u32>,
}

struct PortSteering {
    port: u16,
    /// Range of Services' ports that may be steered too.
    service_ports: OrNone<PortRange>,
    /// `None` if the port is steered, or picked by the kernel.
    bound: Option<Bound>,
    /// `None` if the port is bound.
    steered: Option<(Steering, Owners)>,
    kept: Kept,
    /// Whether an unknown program was attached behind the agent's.
    foreign: bool,
    /// Not ready until load balancers' connections reach the agent.
    readiness: Readiness,
    report: watch::Sender<PortReport>,
}

impl PortSteering {
    async fn keep(mut self, mut ready: watch::Receiver<bool>) -> Self {
        let end = Instant::now() + SETTLE;
        loop {
            let pause = if self.waits() { WATCH } else { LOOK };
            tokio::select! {
                biased;
                changed = ready.changed() => if changed.is_err() {
                    return self;
                },
                () = tokio::time::sleep(pause) => {}
            }
            // Answer if nothing else does, once the agent is ready, or after [`SETTLE`].
            if !self.look() || *ready.borrow() || Instant::now() >= end {
                self.answer();
            }
            self.end_kept();
        }
    }

    /// Ends connections from before the agent answered, unless another program may take new ones.
    fn end_kept(&mut self) {
        let answers = self
            .steered
            .as_ref()
            .is_some_and(|(steering, _)| steering.answers() && steering.succession.answers_alone());
        let kept = self.kept.check(answers, Instant::now());
        self.report.send_modify(|report| report.kept = kept);
    }

    /// Whether the previous responder still answers load balancers.
    fn waits(&self) -> bool {
        let steering = self.steered.as_ref().map(|(steering, _)| steering);
        steering.is_some_and(|steering| !steering.answers())
    }

    /// Directs load balancers' connections to the agent. A failure is retried at the next check.
    fn answer(&mut self) {
        if let Some((steering, _)) = &mut self.steered
            && let Err(error) = steering.answer()
        {
            tracing::warn!(%error, "connections cannot be steered yet: the previous process still \
                                    answers load balancers");
            return;
        }
        self.readiness.set(PART, true);
    }

    /// Reads who listens and who took over. Returns whether another process answers outside clients, or may
    /// do so: an unknown program cannot be queried.
    fn look(&mut self) -> bool {
        let waits = self.waits();
        let (owner, has_successor, answers) = match &mut self.steered {
            Some((steering, owners)) => {
                let owner = owners.look().ok();
                let behind = steering.succession.ask();
                let foreign = behind == Behind::Foreign;
                if foreign && !self.foreign {
                    tracing::warn!(
                        "another sk_lookup program was attached after the agent's, and not by an \
                         agent: it may take connections to the healthz port"
                    );
                }
                self.foreign = foreign;
                let later = matches!(behind, Behind::Agent { answers: true, .. });
                let before = !steering.answers() && steering.succession.follows_an_agent();
                let answers = later || foreign || before || owners.answer_outsiders();
                (owner, later, answers)
            }
            // If the port is bound, only another agent can share it.
            None => {
                let later = self.bound.as_ref().is_some_and(|bound| {
                    let shared = sharers(self.port, bound.inode);
                    shared.is_ok_and(|shared| !shared.is_subset(&bound.before))
                });
                (None, later, later)
            }
        };
        self.report.send_modify(|report| {
            if has_successor && !report.succeeded {
                tracing::info!("another agent has taken over");
            }
            (report.owner, report.succeeded, report.waits) = (owner, has_successor, waits);
        });
        answers
    }

    async fn wait(&mut self, grace: Duration, hurry: impl Future) {
        let end = Instant::now() + grace;
        let mut hurry = pin!(hurry);
        // Without a known port there is no next responder.
        let serves = self.steered.is_some() || self.bound.is_some();
        while serves && !self.look() && Instant::now() < end {
            tokio::select! {
                () = tokio::time::sleep(WAIT) => {}
                _ = &mut hurry => return,
            }
        }
    }

    /// Stops taking connections, and waits for handshakes in progress. Returns whether there is a
    /// successor, even if it does not answer yet.
    async fn release(mut self) -> bool {
        // Read the state first: it is not available once `steered` is dropped.
        self.look();
        let Some((steering, _)) = &self.steered else {
            return self.report.borrow().succeeded;
        };
        let has_successor = matches!(steering.succession.ask(), Behind::Agent { .. });
        self.steered = None;
        let services = self.service_ports.as_ref();
        let is_ours =
            |port| port == self.port || services.is_some_and(|ports| ports.contains(&port));
        finish_handshakes(|| is_opening(is_ours).unwrap_or(true)).await;
        has_successor
    }
}

async fn finish_handshakes(is_opening: impl Fn() -> bool) {
    let end = Instant::now() + HANDSHAKES;
    // Wait at least once: a SYN may be on its way through the kernel.
    tokio::time::sleep(WAIT).await;
    while Instant::now() < end && is_opening() {
        tokio::time::sleep(WAIT).await;
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

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
