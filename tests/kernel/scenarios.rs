//! Runs every scenario of `crates/wire/tests/parts/scenario.rs` through the compiled programs. The results
//! must equal those of the same rules on the host (`crates/wire/tests/classify.rs`).

use std::collections::HashMap;

use node_tests::observer::{Observer, Sandbox, in_sandbox, monotonic};
use node_tests::packet::Packet;
use pathproof_wire::abi::{map, program};
use pathproof_wire::evidence::Outcome;
use pathproof_wire::service::{Family, SourceClass, device_flag, endpoint_flag};
use pathproof_wire::transition::failed;
use rstest::rstest;

use crate::scenario::{self, Device, Reported, SERVICES, Seen, Stage, Step, WEB};

/// A simulated node, which consists of maps.
struct Node {
    observer: Observer,
    sandbox: Sandbox,
    stage: Stage,
    /// The scenario's time. The timestamps of entries are moved to match it.
    now: u64,
    arrived: HashMap<u32, u64>,
}

impl Node {
    fn furnish(&mut self) {
        for (at, value) in self.stage.frontends() {
            self.observer.put_frontend(at, value);
        }
        for (source, class) in self.stage.sources() {
            self.observer.put_source(source.ip(), 128, class);
        }
        let (uplink, redirecting) = (self.sandbox.uplink, self.sandbox.redirecting);
        self.observer.put_device(uplink, device_flag::UPLINK);
        self.observer.put_device(redirecting, device_flag::FOREIGN);
    }

    fn clear(&mut self) {
        self.observer.reset(SERVICES);
        self.now = 0;
        self.arrived.clear();
        for (service, at, flags) in self.stage.endpoints() {
            self.observer.put_endpoint(service, at, flags);
        }
    }

    fn take(&mut self, step: &Step, name: &str) {
        match step {
            Step::In(device, packet) => self.run(program::INGRESS, *device, packet, name),
            Step::Out(device, packet) => self.run(program::EGRESS, *device, packet, name),
            Step::Wait(ms) => self.now += ms * 1_000_000,
            Step::Leaves(at) => {
                let flags = endpoint_flag::LOCAL | endpoint_flag::LEFT;
                self.observer.put_endpoint(WEB, *at, flags);
            }
        }
    }

    fn run(&mut self, hook: &str, device: Device, packet: &Packet, name: &str) {
        let index = match device {
            Device::Client => self.sandbox.client,
            Device::Bridge => self.sandbox.bridge,
            Device::Redirecting => self.sandbox.redirecting,
            Device::Pods => self.sandbox.pods,
            Device::Overlay => self.sandbox.overlay,
            Device::Uplink => self.sandbox.uplink,
        };
        let (now, arrived) = (self.now, &self.arrived);
        self.observer.change_pending(map::PENDING, |key, pending| {
            pending.arrived_ns = match now - arrived.get(&key.isn).copied().unwrap_or(now) {
                // Use a timestamp in the future, which counts as "just now" however slow the machine is.
                0 => monotonic() + 60_000_000_000,
                age => monotonic().saturating_sub(age),
            };
        });
        let bytes = packet.bytes();
        let passed = self.observer.run(hook, &bytes, index);
        assert_eq!((passed.verdict, passed.bytes), (-1, bytes), "{name}");
        for (key, _) in self.observer.pending(map::PENDING) {
            self.arrived.entry(key.isn).or_insert(now);
        }
    }

    fn seen(&mut self) -> Seen {
        let mut seen = Seen::default();
        for class in SourceClass::ALL {
            for service in 0..SERVICES {
                for (outcome, count) in self.observer.outcomes(service, class) {
                    seen.counts.insert((service, class, outcome), count);
                }
            }
            if self.observer.last_proof(self.stage.family, class) != 0 {
                seen.proven.push(class);
            }
        }
        for (_, pending) in self.observer.pending(map::PENDING) {
            let class = SourceClass::from_index(pending.class.into());
            let failed = failed(&pending, u64::MAX);
            seen.failed
                .extend(failed.map(|failed| (pending.service, class, failed)));
        }
        seen.faults = self.observer.faults().into_iter().collect();
        let records = self.observer.anomalies();
        seen.anomalies = records
            .iter()
            .map(|record| Reported {
                outcome: Outcome::from_byte(record.outcome).expect("an outcome"),
                flags: record.flags,
                destination: record.destination,
            })
            .collect();
        seen
    }
}

#[rstest]
fn host_and_kernel_agree(#[values(Family::V4, Family::V6)] family: Family) {
    let observer = Observer::load(&[]);
    let agree = |sandbox| {
        let mut node = Node {
            observer,
            sandbox,
            stage: Stage::new(family),
            now: 0,
            arrived: HashMap::new(),
        };
        node.furnish();
        for scenario in scenario::all(family) {
            node.clear();
            for step in &scenario.steps {
                node.take(step, scenario.name);
            }
            assert_eq!(node.seen(), scenario.seen, "{family:?}: {}", scenario.name);
        }
    };
    in_sandbox(agree).expect("a network namespace");
}
