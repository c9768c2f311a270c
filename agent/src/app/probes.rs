//! Where the sentinel's prober meets the maps of its programs: neither names the other.

use std::os::fd::RawFd;

use agent_common::probe::{HostProbe, Probe, ProbeEvent, ProbeKey};
use agent_common::service::Family;

use crate::datapath::probes::{ProbeMapError, ProbeMaps};
use crate::sentinel::prober::Kernel;

impl Kernel for ProbeMaps {
    type Error = ProbeMapError;

    fn register(&mut self, key: ProbeKey, flags: u32) -> Result<(), ProbeMapError> {
        self.register(key, flags)
    }

    fn read(&self, key: &ProbeKey) -> Result<Option<Probe>, ProbeMapError> {
        self.read(key)
    }

    fn remove(&mut self, key: &ProbeKey) {
        self.remove(key);
    }

    fn register_socket(&mut self, cookie: u64) -> Result<(), ProbeMapError> {
        self.register_socket(cookie)
    }

    fn socket(&self, cookie: u64) -> Option<HostProbe> {
        self.socket(cookie)
    }

    fn remove_socket(&mut self, cookie: u64) {
        self.remove_socket(cookie);
    }

    fn connection_state(&self, isn: u32, family: Family) -> Option<u32> {
        self.connection_state(isn, family)
    }

    fn events_fd(&self) -> RawFd {
        self.events_fd()
    }

    fn next_event(&mut self) -> Option<ProbeEvent> {
        self.next_event()
    }
}
