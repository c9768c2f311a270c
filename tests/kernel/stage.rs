//! The observer in a network namespace of its own, and what tests do with it.

use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};

use agent_common::abi::{map, program};
use agent_common::evidence::{Fault, Outcome, Pending};
use agent_common::service::Family::{self, V4, V6};
use agent_common::service::{FrontendKind, FrontendValue, Owed, SourceClass, device_flag};
use agent_common::transition::{Failed, failed};
use node_tests::observer::{Observer, Sandbox, in_sandbox};
use node_tests::packet::Packet;
use pathproof::datapath::sample::Sampler;

/// Id of the Service of a stage.
pub(crate) const SERVICE: u32 = 17;
/// Ids of the tests' Services are below.
const SERVICES: u32 = 64;
/// `TCX_NEXT`.
pub(crate) const PASS: i32 = -1;

/// The observer and the devices of its namespace.
pub(crate) struct Stage {
    pub(crate) observer: Observer,
    pub(crate) at: Sandbox,
}

/// Runs `test` with an observer of its own, with the capacities given, in a network namespace of
/// its own. [`SERVICE`] has one frontend in each family, and all sources in 10.244.0.0/16 and
/// fd00:10:244::/48 are pods.
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

/// An address and port.
pub(crate) fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

pub(crate) fn choose<T>(family: Family, v4: T, v6: T) -> T {
    match family {
        V4 => v4,
        V6 => v6,
    }
}

/// A pod.
pub(crate) fn client(family: Family) -> SocketAddr {
    at(choose(
        family,
        "10.244.1.5:40001",
        "[fd00:10:244:1::5]:40001",
    ))
}

/// The frontend of [`SERVICE`].
pub(crate) fn frontend(family: Family) -> SocketAddr {
    at(choose(family, "10.96.0.1:80", "[fd00:10:96::1]:80"))
}

/// A cluster IP, of which every client is owed an endpoint.
pub(crate) fn cluster_ip(service: u32, flags: u8) -> FrontendValue {
    FrontendValue {
        service,
        kind: FrontendKind::ClusterIp as u8,
        flags,
        owed: [Owed::Forward as u8; 3],
        ..FrontendValue::default()
    }
}

/// What the observer does, its stage does.
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
    /// The reader of its evidence; takes the maps that it reads.
    pub(crate) fn sampler(&mut self) -> Sampler {
        Sampler::open(&mut self.ebpf).expect("the maps")
    }

    /// Forgets all evidence.
    pub(crate) fn reset(&mut self) {
        self.observer.reset(SERVICES);
    }

    /// Runs a packet through a hook of the observer's, which must pass it on as it came.
    pub(crate) fn pass(&self, hook: &str, bytes: &[u8], device: u32) {
        let passed = self.run(hook, bytes, device);
        let (verdict, passed) = (passed.verdict, passed.bytes.as_slice());
        assert_eq!((verdict, passed), (PASS, bytes), "passed on by {hook}");
    }

    /// A packet comes in by a device.
    pub(crate) fn comes(&self, packet: &Packet, device: u32) {
        self.pass(program::INGRESS, &packet.bytes(), device);
    }

    /// A packet goes out by a device.
    pub(crate) fn goes(&self, packet: &Packet, device: u32) {
        self.pass(program::EGRESS, &packet.bytes(), device);
    }

    /// Counts of the outcomes of pods' connections and datagrams to a Service.
    pub(crate) fn outcomes(&self, service: u32) -> Vec<(Outcome, u32)> {
        self.observer.outcomes(service, SourceClass::Pod)
    }

    pub(crate) fn count(&self, service: u32, outcome: Outcome) -> u32 {
        let outcomes = self.outcomes(service).into_iter();
        let counts = outcomes.filter(|(of, _)| *of == outcome);
        counts.map(|(_, count)| count).sum()
    }

    pub(crate) fn fault(&self, fault: Fault) -> u64 {
        let faults = self.faults().into_iter();
        let counts = faults.filter(|(of, _)| *of == fault);
        counts.map(|(_, count)| count).sum()
    }

    /// Connections that are followed.
    pub(crate) fn connections(&self) -> Vec<Pending> {
        self.followed(map::PENDING)
    }

    /// Datagrams and flows that are followed.
    pub(crate) fn datagrams(&self) -> Vec<Pending> {
        self.followed(map::UDP_PENDING)
    }

    fn followed(&self, name: &str) -> Vec<Pending> {
        let followed = self.pending(name).into_iter();
        followed.map(|(_, pending)| pending).collect()
    }

    /// The connection of an initial sequence number, if it is followed.
    pub(crate) fn connection(&self, isn: u32, family: Family) -> Option<Pending> {
        let mut all = self.pending(map::PENDING).into_iter();
        let found = all.find(|(key, _)| (key.isn, key.family) == (isn, family as u32));
        found.map(|(_, pending)| pending)
    }

    /// When the last proof of a family's pods was seen; zero for never.
    pub(crate) fn last_proof(&self, family: Family) -> u64 {
        self.observer.last_proof(family, SourceClass::Pod)
    }
}

/// The failures among these, once the loss window is over.
pub(crate) fn failures(followed: &[Pending]) -> Vec<Failed> {
    let failures = followed.iter().filter_map(|of| failed(of, u64::MAX));
    failures.collect()
}
