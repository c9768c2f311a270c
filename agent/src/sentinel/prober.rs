//! The thread that sends the sentinel's probes and waits for them. A few times a second (`pace`) it
//! sends one probe on every path that has a target, with a control probe just before, and hands
//! a [`ProbeTrace`] over for each. It judges nothing: what a trace means is `agent-core`'s to say.
//!
//! It is a thread of its own, not a task, so that nothing the agent is busy with makes a probe
//! late. Everything about time is `CLOCK_MONOTONIC`: a stepped wall clock is not noticed, and what
//! a suspended or stopped process missed is not made up for.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use agent_common::probe::{HostProbe, Probe, ProbeEvent, ProbeKey};
use agent_common::service::{FAMILIES, Family};
use thiserror::Error;
use tokio::sync::mpsc::UnboundedSender;

use super::frame::Mac;
use agent_core::time::Mono;
use agent_core::trace::ProbeTrace;
use dice::Dice;
use engine::Engine;
use poll::{Wake, poll};
use wire::{Network, Sockets};

mod call;
mod dice;
mod engine;
mod flight;
mod pace;
mod poll;
mod ports;
mod round;
mod tools;
mod trace;
mod wire;

/// What the prober needs of the kernel's maps.
pub trait Kernel: Send + 'static {
    /// Why a map could not be written or read.
    type Error: fmt::Display;
    /// Makes a probe known before it is sent, with flags of
    /// [`probe_flag`](agent_common::probe::probe_flag).
    fn register(&mut self, key: ProbeKey, flags: u32) -> Result<(), Self::Error>;
    /// What is known of a probe by now; nothing where it is not registered.
    fn read(&self, key: &ProbeKey) -> Result<Option<Probe>, Self::Error>;
    /// Forgets a probe.
    fn remove(&mut self, key: &ProbeKey);
    /// Makes a socket known, by its cookie, before it connects.
    fn register_socket(&mut self, cookie: u64) -> Result<(), Self::Error>;
    /// What was seen of a socket by now.
    fn socket(&self, cookie: u64) -> Option<HostProbe>;
    /// Forgets a socket.
    fn remove_socket(&mut self, cookie: u64);
    /// Bits of [`state`](agent_common::evidence::state): what the observer saw of the connection
    /// with this initial sequence number.
    fn connection_state(&self, isn: u32, family: Family) -> Option<u32>;
    /// Readable once [`next_event`](Self::next_event) has something.
    fn events_fd(&self) -> RawFd;
    /// The next event, or nothing.
    fn next_event(&mut self) -> Option<ProbeEvent>;
}

/// One end of a pair of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Interface index.
    pub ifindex: u32,
    /// Hardware address.
    pub mac: Mac,
}

/// The devices that probes go through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// Far end of the client pair (`-c1`): probes are written to it.
    pub client_far: End,
    /// Hardware address of its near end (`-c0`).
    pub client_near: Mac,
    /// Near end of the server pair (`-s0`): control probes are written to it.
    pub server_near: End,
    /// Hardware address of its far end (`-s1`), where the echo is.
    pub server_far: Mac,
}

/// What is dialled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frontend {
    /// Cluster IP, or an address of this node for the node port.
    pub address: IpAddr,
    /// TCP port.
    pub tcp: u16,
    /// UDP port, where the sentinel has one.
    pub udp: Option<u16>,
}

/// What is probed in one family. All addresses are of that family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyTargets {
    /// The sentinel's cluster IP.
    pub cluster_ip: Option<Frontend>,
    /// Its node port on an address of this node.
    pub node_port: Option<Frontend>,
    /// Source of probes from outside the cluster's ranges.
    pub client: IpAddr,
    /// Source of probes as a pod's, where the operator reserved one.
    pub pod_client: Option<IpAddr>,
    /// The sentinel's TCP endpoint, for control probes.
    pub echo: SocketAddr,
}

/// What is probed, by [`Family`]. Nothing at all: the prober sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Targets {
    /// By family.
    pub families: [Option<FamilyTargets>; FAMILIES],
}

/// Why there is no prober.
#[derive(Debug, Error)]
pub enum ProberError {
    /// Packet sockets are not allowed.
    #[error("CAP_NET_RAW is missing: the sentinel cannot send probes without it")]
    MissingNetRaw,
    /// A packet socket could not be opened.
    #[error("cannot open a packet socket on the device with index {ifindex}: {source}")]
    Socket {
        /// The device's index.
        ifindex: u32,
        /// Why not.
        source: io::Error,
    },
    /// No random numbers.
    #[error("cannot draw random numbers: {0}")]
    Random(#[source] io::Error),
    /// No descriptor to wake the thread by.
    #[error("cannot make an event descriptor: {0}")]
    Wake(#[source] io::Error),
    /// No thread.
    #[error("cannot start the thread that sends probes: {0}")]
    Thread(#[source] io::Error),
}

impl ProberError {
    /// Whether more privileges would help.
    pub fn is_permission(&self) -> bool {
        matches!(self, Self::MissingNetRaw)
    }
}

/// The running prober. Dropping it ends the thread at once.
#[derive(Debug)]
pub struct Prober {
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is told; later words replace earlier ones.
#[derive(Debug, Default)]
struct Mail {
    targets: Option<Targets>,
    sockets: Option<Sockets>,
    stop: bool,
}

#[derive(Debug)]
struct Mailbox {
    mail: Mutex<Mail>,
    wake: Wake,
}

impl Mailbox {
    fn open(&self) -> MutexGuard<'_, Mail> {
        // Each field is replaced whole: a panic elsewhere leaves nothing half done.
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, write: impl FnOnce(&mut Mail)) {
        write(&mut self.open());
        self.wake.raise();
    }
}

impl Prober {
    /// Starts the thread, without targets yet. `clock` is `CLOCK_MONOTONIC`. The thread ends when
    /// this is dropped, or nobody reads `results` any more.
    pub fn start<K: Kernel>(
        kernel: K,
        wire: &Wire,
        clock: fn() -> Mono,
        results: UnboundedSender<ProbeTrace>,
    ) -> Result<Self, ProberError> {
        let dice = Dice::of_the_kernel().map_err(ProberError::Random)?;
        let sockets = Sockets::open(wire)?;
        Self::spawn(Engine::new(kernel, sockets, clock, dice, results))
    }

    fn spawn<K: Kernel, N: Network + Send + 'static>(
        engine: Engine<K, N>,
    ) -> Result<Self, ProberError>
    where
        N::Socket: Send,
    {
        let mailbox = Arc::new(Mailbox {
            mail: Mutex::default(),
            wake: Wake::new().map_err(ProberError::Wake)?,
        });
        let inbox = Arc::clone(&mailbox);
        let thread = std::thread::Builder::new()
            .name("sentinel".to_owned())
            .spawn(move || run(engine, &inbox))
            .map_err(ProberError::Thread)?;
        Ok(Self {
            mailbox,
            thread: Some(thread),
        })
    }

    /// Probes these and no others from now on. Probes under way to what is no longer a target are
    /// given up without a trace.
    pub fn retarget(&self, targets: Targets) {
        self.mailbox.tell(|mail| mail.targets = Some(targets));
    }

    /// Sends through these devices from now on: after they were made anew.
    pub fn rewire(&self, wire: &Wire) -> Result<(), ProberError> {
        let sockets = Sockets::open(wire)?;
        self.mailbox.tell(|mail| mail.sockets = Some(sockets));
        Ok(())
    }

    /// Whether the thread runs. It ends by itself only where the kernel refuses to let it wait.
    pub fn is_running(&self) -> bool {
        self.thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished())
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.mailbox.tell(|mail| mail.stop = true);
        if let Some(thread) = self.thread.take() {
            // An error is a panic in the thread, which was printed there.
            let _ = thread.join();
        }
    }
}

fn run<K: Kernel, N: Network>(mut engine: Engine<K, N>, mailbox: &Mailbox) {
    loop {
        mailbox.wake.lower();
        let mail = std::mem::take(&mut *mailbox.open());
        if mail.stop || engine.is_unheard() {
            break;
        }
        if let Some(sockets) = mail.sockets {
            engine.rewire(sockets);
        }
        if let Some(targets) = mail.targets {
            engine.retarget(targets);
        }
        engine.advance();
        let wait = engine.next_deadline().map(|at| at.since(engine.now()));
        let fds = [engine.events_fd(), mailbox.wake.as_raw_fd()];
        if let Err(error) = poll(&fds, &engine.sockets(), wait) {
            tracing::error!(%error, "the sentinel's thread cannot wait and ends");
            break;
        }
    }
    engine.retarget(Targets::default());
}

#[cfg(test)]
mod fake;
#[cfg(test)]
mod tests;
