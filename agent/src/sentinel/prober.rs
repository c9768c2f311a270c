//! The thread that sends the sentinel's probes and waits for their answers. A few times a second it sends a
//! control probe and then one probe on every path with a target. It delivers a [`ProbeTrace`] for each. It
//! judges nothing: the core interprets the traces.
//!
//! It is a thread, not a task, so that no other work of the agent delays a probe. All times are
//! `CLOCK_MONOTONIC`: a stepped wall clock has no effect, and probes missed while the process was
//! suspended or stopped are not sent later.

use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::ptr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use engine::Engine;
use nix::sys::time::TimeSpec;
use pathproof_facts::time::Mono;
use pathproof_facts::trace::ProbeTrace;
use pathproof_report::sentinel::SentinelAddresses;
use pathproof_wire::service::FAMILIES;
use thiserror::Error;
use tokio::sync::mpsc::UnboundedSender;
use wire::{Network, Sockets};

use super::devices::SentinelDevices;
use crate::probe::Kernel;

mod engine;
mod probe;
mod round;
mod tools;
mod wire;

#[derive(Debug, Error)]
pub enum ProberError {
    #[error("CAP_NET_RAW is missing: the sentinel cannot send probes without it")]
    MissingNetRaw,
    #[error("cannot {operation}: {source}")]
    Refused {
        operation: &'static str,
        source: io::Error,
    },
}

/// The running prober. Dropping it stops the thread.
#[derive(Debug)]
pub struct Prober {
    orders: Sender<Order>,
    /// Wakes the thread after an order was sent.
    wake: UnixStream,
    thread: Option<JoinHandle<()>>,
}

/// New targets of the thread; `None` ends it.
type Order = Option<Vec<SentinelAddresses>>;

impl Prober {
    /// Starts the thread, without targets. `clock` is `CLOCK_MONOTONIC`. The thread ends when this is
    /// dropped, or when the receiver of `results` is.
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

    /// Replaces the targets; without targets the prober sleeps. Probes under way to other targets are
    /// abandoned without a trace.
    pub fn retarget(&self, targets: Vec<SentinelAddresses>) {
        self.order(Some(targets));
    }

    fn order(&self, order: Order) {
        // Errors are ignored: a thread that has ended needs no order, and if the buffer is full, the thread
        // wakes anyway.
        let _ = self.orders.send(order);
        let _ = (&self.wake).write(&[0]);
    }

    /// Whether the thread runs. It ends early only if waiting for events fails.
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
            // An error is a panic of the thread, which was printed already.
            let _ = thread.join();
        }
    }
}

fn run<K: Kernel, N: Network>(
    mut engine: Engine<K, N>,
    inbox: &Receiver<Order>,
    mut woken: &UnixStream,
) {
    'turns: while !engine.results.is_closed() {
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

/// A descriptor, and whether to wait until it is writable rather than readable.
type Waiting = (RawFd, bool);

/// Waits until a descriptor is ready, `wait` has passed or a signal arrives. Without `wait` there is no
/// timeout.
fn poll(
    [events, woken]: [RawFd; 2],
    sockets: [Option<Waiting>; FAMILIES],
    wait: Option<Duration>,
) -> io::Result<()> {
    let [v4, v6] = sockets;
    let waited = [Some((events, false)), Some((woken, false)), v4, v6];
    let mut fds = waited.map(|waiting| {
        // ppoll ignores a negative descriptor.
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
    let wait = wait.map(TimeSpec::from);
    let wait = (wait.as_ref()).map_or(ptr::null(), |wait| ptr::from_ref(wait.as_ref()));
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
