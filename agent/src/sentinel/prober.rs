//! The thread that sends the sentinel's probes and waits for them. A few times a second it sends one
//! probe on every path that has a target, with a control probe just before, and hands a
//! [`ProbeTrace`] over for each. It judges nothing: what a trace means is `agent-core`'s to say.
//!
//! It is a thread of its own, not a task, so that nothing the agent is busy with makes a probe
//! late. Everything about time is `CLOCK_MONOTONIC`: a stepped wall clock is not noticed, and what
//! a suspended or stopped process missed is not made up for.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use agent_common::probe::{HostProbe, Probe, ProbeEvent, ProbeKey};
use agent_common::service::{FAMILIES, Family};
use agent_core::report::sentinel::SentinelAddresses;
use agent_core::time::Mono;
use agent_core::trace::ProbeTrace;
use thiserror::Error;
use tokio::sync::mpsc::UnboundedSender;

use super::devices::SentinelDevices;
use engine::Engine;
use wire::{Network, Sockets};

mod engine;
mod probe;
mod round;
mod tools;
mod wire;

/// Operations of the prober on the kernel's maps. Errors are in words.
pub trait Kernel: Send + 'static {
    /// Makes a probe known before it is sent, with flags of
    /// [`probe_flag`](agent_common::probe::probe_flag).
    fn register(&mut self, key: ProbeKey, flags: u32) -> Result<(), String>;
    /// The record of a probe by now; nothing where it is not registered.
    fn read(&self, key: &ProbeKey) -> Result<Option<Probe>, String>;
    /// Forgets a probe.
    fn remove(&mut self, key: &ProbeKey);
    /// Makes a socket known, by its cookie, before it connects.
    fn register_socket(&mut self, cookie: u64) -> Result<(), String>;
    /// The record of a socket by now.
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

/// Reason why there is no prober.
#[derive(Debug, Error)]
pub enum ProberError {
    /// Packet sockets are not allowed.
    #[error("CAP_NET_RAW is missing: the sentinel cannot send probes without it")]
    MissingNetRaw,
    /// The kernel refused something.
    #[error("cannot {operation}: {source}")]
    Refused {
        operation: &'static str,
        source: io::Error,
    },
}

/// The running prober. Dropping it ends the thread at once.
#[derive(Debug)]
pub struct Prober {
    orders: Sender<Order>,
    /// Readable for the thread once there is an order.
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

/// Targets of the thread from now on; nothing: it is to end.
type Order = Option<Vec<SentinelAddresses>>;

impl Prober {
    /// Starts the thread, without targets yet. `clock` is `CLOCK_MONOTONIC`. The thread ends when
    /// this is dropped, or nobody reads `results` any more.
    pub fn start<K: Kernel>(
        kernel: K,
        devices: &SentinelDevices,
        clock: fn() -> Mono,
        results: UnboundedSender<ProbeTrace>,
    ) -> Result<Self, ProberError> {
        let sockets = Sockets::open(devices)?;
        Self::spawn(Engine::new(kernel, sockets, clock, tools::random, results))
    }

    fn spawn<K: Kernel, N: Network + Send + 'static>(
        engine: Engine<K, N>,
    ) -> Result<Self, ProberError>
    where
        N::Socket: Send,
    {
        let refused = |operation| move |source| ProberError::Refused { operation, source };
        let (wake, woken) = UnixStream::pair()
            .and_then(|(wake, woken)| {
                woken.set_nonblocking(true)?;
                wake.set_nonblocking(true)?;
                Ok((wake, woken))
            })
            .map_err(refused("make a pair of sockets"))?;
        let (orders, inbox) = channel();
        let thread = std::thread::Builder::new()
            .name("sentinel".to_owned())
            .spawn(move || run(engine, &inbox, &woken))
            .map_err(refused("start the thread that sends probes"))?;
        Ok(Self {
            orders,
            wake,
            thread: Some(thread),
        })
    }

    /// Probes these and no others from now on; the prober sleeps where there are none. Probes under
    /// way to what is no longer a target are given up without a trace.
    pub fn retarget(&self, targets: Vec<SentinelAddresses>) {
        self.order(Some(targets));
    }

    fn order(&self, order: Order) {
        // A thread that ended needs none; a full buffer is as readable as can be.
        let _ = self.orders.send(order);
        let _ = (&self.wake).write(&[0]);
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
        self.order(None);
        if let Some(thread) = self.thread.take() {
            // An error is a panic in the thread, which was printed there.
            let _ = thread.join();
        }
    }
}

fn run<K: Kernel, N: Network>(
    mut engine: Engine<K, N>,
    inbox: &Receiver<Order>,
    mut woken: &UnixStream,
) {
    'turns: while !engine.is_unheard() {
        while let Ok(1..) = woken.read(&mut [0; 16]) {}
        while let Ok(order) = inbox.try_recv() {
            let Some(targets) = order else {
                break 'turns;
            };
            engine.retarget(&targets);
        }
        engine.advance();
        let wait = engine.next_deadline().map(|at| at.since(engine.now()));
        let fds = [engine.events_fd(), woken.as_raw_fd()];
        if let Err(error) = poll(fds, engine.sockets(), wait) {
            tracing::error!(%error, "the sentinel's thread cannot wait for events and ends");
            break;
        }
    }
    engine.retarget(&[]);
}

/// A descriptor and whether it is waited for to be writable rather than readable.
type Waiting = (RawFd, bool);

/// Waits until one of the descriptors is ready, `wait` is over or a signal came; without `wait`
/// for as long as it takes.
fn poll(
    [events, woken]: [RawFd; 2],
    sockets: [Option<Waiting>; FAMILIES],
    wait: Option<Duration>,
) -> io::Result<()> {
    let [v4, v6] = sockets;
    let waited = [Some((events, false)), Some((woken, false)), v4, v6];
    let mut fds = waited.map(|waiting| {
        // A negative descriptor is passed over.
        let (fd, writable) = waiting.unwrap_or((-1, false));
        let events = if writable {
            libc::POLLOUT
        } else {
            libc::POLLIN
        };
        libc::pollfd {
            fd,
            events,
            revents: 0,
        }
    });
    let wait = wait.map(|wait| libc::timespec {
        tv_sec: libc::time_t::try_from(wait.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: wait.subsec_nanos().into(),
    });
    let wait = wait.as_ref().map_or(ptr::null(), ptr::from_ref);
    let count = fds.len() as libc::nfds_t;
    // SAFETY: the array and the time live through the call; no signal mask is given.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), count, wait, ptr::null()) };
    match io::Error::last_os_error() {
        error if ready < 0 && error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
