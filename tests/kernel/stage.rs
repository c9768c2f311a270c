//! The observer in a network namespace of its own, and what tests do with it.

use std::net::SocketAddr;

use agent_common::abi::{map, program};
use agent_common::evidence::{Anomaly, Fault, Outcome, Pending};
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

/// The observer with maps of its own, some of other capacities.
pub(crate) fn load(capacities: &[(&'static str, u32)]) -> Observer {
    Observer::load(capacities).expect("load the observer")
}

/// Runs `test` with an observer of its own, with the capacities given, in a network namespace of
/// its own. [`SERVICE`] has one frontend in each family, and all sources in 10.244.0.0/16 and
/// fd00:10:244::/48 are pods.
pub(crate) fn on_stage(capacities: &[(&'static str, u32)], test: impl FnOnce(&mut Stage) + Send) {
    let observer = load(capacities);
    let furnished = |at: Sandbox| {
        let mut stage = Stage { observer, at };
        for (family, pods, bits) in [(V4, "10.244.0.0", 96 + 16), (V6, "fd00:10:244::", 48)] {
            stage.put_frontend(SERVICE, frontend(family), 0);
            let pods = pods.parse().expect("an address");
            let put = stage.observer.put_source(pods, bits, SourceClass::Pod);
            put.expect("room for a source");
        }
        let put = stage.observer.put_device(at.uplink, device_flag::UPLINK);
        put.expect("room for a device");
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

impl Stage {
    pub(crate) fn put_frontend(&mut self, service: u32, at: SocketAddr, flags: u8) {
        let put = self.observer.put_frontend(at, cluster_ip(service, flags));
        put.expect("room for a frontend");
    }

    pub(crate) fn put_udp_frontend(&mut self, service: u32, at: SocketAddr) {
        let put = self.observer.put_udp_frontend(at, cluster_ip(service, 0));
        put.expect("room for a frontend");
    }

    pub(crate) fn put_endpoint(&mut self, service: u32, at: SocketAddr, flags: u32) {
        let put = self.observer.put_endpoint(service, at, flags);
        put.expect("room for an endpoint");
    }

    /// The reader of its evidence; takes the maps that it reads.
    pub(crate) fn sampler(&mut self) -> Sampler {
        Sampler::open(self.observer.ebpf_mut()).expect("the maps")
    }

    /// Forgets all evidence.
    pub(crate) fn reset(&mut self) {
        self.observer.reset(SERVICES).expect("an empty stage");
    }

    /// Runs a packet through a hook of the observer's, which must pass it on as it came.
    pub(crate) fn pass(&self, hook: &str, bytes: &[u8], device: u32) {
        let passed = self.observer.run(hook, bytes, device).expect("a run");
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
        let outcomes = self.observer.outcomes(service, SourceClass::Pod);
        outcomes.expect("counts")
    }

    pub(crate) fn count(&self, service: u32, outcome: Outcome) -> u32 {
        let outcomes = self.outcomes(service).into_iter();
        let counts = outcomes.filter(|(of, _)| *of == outcome);
        counts.map(|(_, count)| count).sum()
    }

    pub(crate) fn faults(&self) -> Vec<(Fault, u64)> {
        self.observer.faults().expect("faults")
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
        let followed = self.observer.pending(name).expect("what is followed");
        followed.into_iter().map(|(_, pending)| pending).collect()
    }

    /// The connection of an initial sequence number, if it is followed.
    pub(crate) fn connection(&self, isn: u32, family: Family) -> Option<Pending> {
        let all = self.observer.pending(map::PENDING).expect("connections");
        let mut all = all.into_iter();
        let found = all.find(|(key, _)| (key.isn, key.family) == (isn, family as u32));
        found.map(|(_, pending)| pending)
    }

    /// When the last proof of a family's pods was seen; zero for never.
    pub(crate) fn last_proof(&self, family: Family) -> u64 {
        let proof = self.observer.last_proof(family, SourceClass::Pod);
        proof.expect("proofs")
    }

    pub(crate) fn anomalies(&mut self) -> Vec<Anomaly> {
        self.observer.anomalies().expect("a ring buffer")
    }
}

/// The failures among these, once the loss window is over.
pub(crate) fn failures(followed: &[Pending]) -> Vec<Failed> {
    let failures = followed.iter().filter_map(|of| failed(of, u64::MAX));
    failures.collect()
}
