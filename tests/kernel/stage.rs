//! The observer's programs in a new network namespace, with helpers for tests.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use node_tests::observer::{Observer, Sandbox, in_sandbox};
use node_tests::packet::Packet;
use pathproof::datapath::sample::Sampler;
use pathproof_wire::abi::{map, program};
use pathproof_wire::evidence::{Fault, Outcome, Pending};
use pathproof_wire::service::Family::{self, V4, V6};
use pathproof_wire::service::{
    ExpectedHandling, FrontendKind, FrontendValue, SourceClass, device_flag,
};
use pathproof_wire::transition::{Failed, failed};

/// Id of the Service that every stage has.
pub(crate) const SERVICE: u32 = 17;
/// Upper bound of the Service ids that tests use.
const SERVICES: u32 = 64;
/// `TCX_NEXT`.
pub(crate) const PASS: i32 = -1;

pub(crate) struct Stage {
    pub(crate) observer: Observer,
    pub(crate) at: Sandbox,
}

/// Runs `test` with a new observer in a new network namespace. `capacities` overrides the sizes of its maps.
/// [`SERVICE`] has one frontend per family. Sources in 10.244.0.0/16 and fd00:10:244::/48 are pods.
pub(crate) fn on_stage(capacities: &[(&'static str, u32)], test: impl FnOnce(&mut Stage) + Send) {
    let observer = Observer::load(capacities);
    let furnished = |at: Sandbox| {
        let mut stage = Stage { observer, at };
        for (family, pods, bits) in [(V4, "10.244.0.0", 96 + 16), (V6, "fd00:10:244::", 48)] {
            stage.put_frontend(frontend(family), cluster_ip(SERVICE, 0));
            let pods = pods.parse().expect("an address");
            stage.put_source(pods, bits, SourceClass::Pod);
        }
        stage.put_device(at.uplink, device_flag::UPLINK);
        test(&mut stage);
    };
    in_sandbox(furnished).expect("a network namespace");
}

pub(crate) fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

pub(crate) fn choose<T>(family: Family, v4: T, v6: T) -> T {
    match family {
        V4 => v4,
        V6 => v6,
    }
}

/// Address and port of a pod.
pub(crate) fn client(family: Family) -> SocketAddr {
    at(choose(
        family,
        "10.244.1.5:40001",
        "[fd00:10:244:1::5]:40001",
    ))
}

pub(crate) fn frontend(family: Family) -> SocketAddr {
    at(choose(family, "10.96.0.1:80", "[fd00:10:96::1]:80"))
}

/// A cluster IP whose connections must be forwarded, whatever the client is.
pub(crate) fn cluster_ip(service: u32, flags: u8) -> FrontendValue {
    FrontendValue {
        service,
        kind: FrontendKind::ClusterIp as u8,
        flags,
        owed: [ExpectedHandling::Forward as u8; 3],
        ..FrontendValue::default()
    }
}

impl Deref for Stage {
    type Target = Observer;

    fn deref(&self) -> &Observer {
        &self.observer
    }
}

impl DerefMut for Stage {
    fn deref_mut(&mut self) -> &mut Observer {
        &mut self.observer
    }
}

impl Stage {
    /// A sampler of this observer. It takes the maps that it reads out of the loaded object.
    pub(crate) fn sampler(&mut self) -> Sampler {
        Sampler::open(&mut self.ebpf).expect("the maps")
    }

    pub(crate) fn reset(&mut self) {
        self.observer.reset(SERVICES);
    }

    /// Runs a packet through a hook of the observer. Asserts that it passes unchanged.
    pub(crate) fn pass(&self, hook: &str, bytes: &[u8], device: u32) {
        let passed = self.run(hook, bytes, device);
        let (verdict, passed) = (passed.verdict, passed.bytes.as_slice());
        assert_eq!((verdict, passed), (PASS, bytes), "passed on by {hook}");
    }

    /// Runs a packet through the ingress hook of a device.
    pub(crate) fn comes(&self, packet: &Packet, device: u32) {
        self.pass(program::INGRESS, &packet.bytes(), device);
    }

    /// Runs a packet through the egress hook of a device.
    pub(crate) fn goes(&self, packet: &Packet, device: u32) {
        self.pass(program::EGRESS, &packet.bytes(), device);
    }

    /// Outcomes of pods' connections and datagrams to a Service, with their counts.
    pub(crate) fn outcomes(&self, service: u32) -> Vec<(Outcome, u32)> {
        self.observer.outcomes(service, SourceClass::Pod)
    }

    pub(crate) fn count(&self, service: u32, outcome: Outcome) -> u32 {
        let outcomes = self.outcomes(service).into_iter();
        let counts = outcomes.filter(|(other, _)| *other == outcome);
        counts.map(|(_, count)| count).sum()
    }

    pub(crate) fn fault(&self, fault: Fault) -> u64 {
        let faults = self.faults().into_iter();
        let counts = faults.filter(|(other, _)| *other == fault);
        counts.map(|(_, count)| count).sum()
    }

    pub(crate) fn connections(&self) -> Vec<Pending> {
        self.followed(map::PENDING)
    }

    /// Followed datagrams, and the entries of their flows.
    pub(crate) fn datagrams(&self) -> Vec<Pending> {
        self.followed(map::UDP_PENDING)
    }

    fn followed(&self, name: &str) -> Vec<Pending> {
        let followed = self.pending(name).into_iter();
        followed.map(|(_, pending)| pending).collect()
    }

    pub(crate) fn connection(&self, isn: u32, family: Family) -> Option<Pending> {
        let mut all = self.pending(map::PENDING).into_iter();
        let found = all.find(|(key, _)| (key.isn, key.family) == (isn, family as u32));
        found.map(|(_, pending)| pending)
    }

    /// Time of the last proof of a family's pods, or zero.
    pub(crate) fn last_proof(&self, family: Family) -> u64 {
        self.observer.last_proof(family, SourceClass::Pod)
    }
}

/// Failures among these entries once the loss window has ended.
pub(crate) fn failures(followed: &[Pending]) -> Vec<Failed> {
    let failures = followed
        .iter()
        .filter_map(|pending| failed(pending, u64::MAX));
    failures.collect()
}
