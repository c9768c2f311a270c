//! The observer's maps as the prober asks for them: `sentinel` knows no `datapath`, nor the other
//! way round.

use std::os::fd::RawFd;

use agent_common::probe::{HostProbe, Probe, ProbeEvent, ProbeKey};
use agent_common::service::Family;

use crate::datapath::load::MapsError;
use crate::datapath::probes::ProbeMaps;
use crate::sentinel::prober::Kernel;

impl Kernel for ProbeMaps {
    type Error = MapsError;

    fn register(&mut self, key: ProbeKey, flags: u32) -> Result<(), MapsError> {
        ProbeMaps::register(self, key, flags)
    }

    fn read(&self, key: &ProbeKey) -> Result<Option<Probe>, MapsError> {
        ProbeMaps::read(self, key)
    }

    fn remove(&mut self, key: &ProbeKey) {
        ProbeMaps::remove(self, key);
    }

    fn register_socket(&mut self, cookie: u64) -> Result<(), MapsError> {
        ProbeMaps::register_socket(self, cookie)
    }

    fn socket(&self, cookie: u64) -> Option<HostProbe> {
        ProbeMaps::socket(self, cookie)
    }

    fn remove_socket(&mut self, cookie: u64) {
        ProbeMaps::remove_socket(self, cookie);
    }

    fn connection_state(&self, isn: u32, family: Family) -> Option<u32> {
        ProbeMaps::connection_state(self, isn, family)
    }

    fn events_fd(&self) -> RawFd {
        ProbeMaps::events_fd(self)
    }

    fn next_event(&mut self) -> Option<ProbeEvent> {
        ProbeMaps::next_event(self)
    }
}
