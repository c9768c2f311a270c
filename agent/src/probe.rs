//! The interface between the sentinel's prober and the kernel's maps of probes, so that `sentinel` and
//! `datapath` need not name each other.

use std::os::fd::RawFd;

use pathproof_wire::probe::{HostProbe, Probe, ProbeEvent, ProbeKey};
use pathproof_wire::service::Family;

/// Operations on the kernel's maps of probes. Each error is a sentence for people.
pub trait Kernel: Send + 'static {
    /// Registers a probe that is about to be sent; from now on the echo (the eBPF program at the endpoint)
    /// answers it. `flags`: bits of [`probe_flag`](pathproof_wire::probe::probe_flag). Replaces an earlier
    /// probe with the same key.
    fn register(&mut self, key: ProbeKey, flags: u32) -> Result<(), String>;
    /// The current record of a probe; `None` if it is not registered.
    fn read(&self, key: &ProbeKey) -> Result<Option<Probe>, String>;
    /// Removes a probe, if registered: its packets are no longer answered.
    fn remove(&mut self, key: &ProbeKey);
    /// Makes the first SYN of the socket with this cookie (`SO_COOKIE`) a probe. Call it before
    /// `connect`.
    fn register_socket(&mut self, cookie: u64) -> Result<(), String>;
    /// The current record of a registered socket; `None` if it is not registered.
    fn socket(&self, cookie: u64) -> Option<HostProbe>;
    /// Removes the registration of a socket. The probe that it sent stays until [`remove`](Self::remove).
    fn remove_socket(&mut self, cookie: u64);
    /// The observer's state of the TCP connection with this initial sequence number: bits of
    /// [`state`](pathproof_wire::evidence::state). `None` if the observer does not follow it.
    fn connection_state(&self, isn: u32, family: Family) -> Option<u32>;
    /// Readable while [`next_event`](Self::next_event) has an event.
    fn events_fd(&self) -> RawFd;
    /// The oldest unread event.
    fn next_event(&mut self) -> Option<ProbeEvent>;
}
