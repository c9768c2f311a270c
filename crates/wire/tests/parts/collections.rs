//! A node made of ordinary collections. Tests and fuzzers run the rules of `pathproof_wire::classify` on it,
//! as the eBPF programs run them on maps.
//!
//! A file that includes this one must also have the modules `packet` and `scenario`.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use pathproof_wire::abi::BUDGET_PER_WINDOW;
use pathproof_wire::classify::{AnomalyParts, Connection, Direction, World, observe};
use pathproof_wire::evidence::{Fault, Outcome, Pending, PendingKey, proof_slot};
use pathproof_wire::packet::{Link, Segment, parse};
use pathproof_wire::service::{
    Address, EndpointEntry, EndpointKey, EndpointValue, Family, FrontendKey, FrontendValue,
    SourceClass, TCP, device_flag, endpoint_flag,
};
use pathproof_wire::transition::failed;

use crate::packet::{self, flag, mapped};
use crate::scenario::{self, Device, ISN, Reported, Seen, Stage, Step};

struct Entry {
    fields: Pending,
    state: Cell<u32>,
}

#[derive(Clone)]
pub struct Handle(Rc<Entry>);

impl Connection for Handle {
    fn fields(&self) -> &Pending {
        &self.0.fields
    }

    fn state(&self) -> u32 {
        self.0.state.get()
    }

    fn swap(&self, from: u32, to: u32) -> bool {
        assert_eq!(self.0.state.get(), from, "nobody else is here");
        assert_eq!(from & to, from, "a bit of the state was taken back");
        self.0.state.set(to);
        true
    }
}

/// The node. Callers may read and change all of it.
pub struct Node {
    pub stage: Stage,
    /// Time in nanoseconds.
    pub now: Cell<u64>,
    pub device: Cell<Device>,
    pub frontends: HashMap<FrontendKey, FrontendValue>,
    pub endpoints: RefCell<HashMap<EndpointKey, EndpointEntry>>,
    /// Additional flags of every device.
    pub flags: Cell<u32>,
    pub is_for_other_host: Cell<bool>,
    /// Maximum number of followed connections.
    pub room: Cell<usize>,
    spent: RefCell<HashMap<Address, u32>>,
    pending: RefCell<HashMap<PendingKey, Handle>>,
    proofs: RefCell<BTreeSet<u32>>,
    /// Times from arrival to departure, in nanoseconds.
    /// All results except proofs.
    pub seen: RefCell<Seen>,
    /// Number of packets that seemed to be probes leaving the node.
    pub strays: Cell<u32>,
}

impl Node {
    /// A node with the frontends and endpoints of a family's stage.
    pub fn new(family: Family) -> Self {
        let stage = Stage::new(family);
        let mut frontends = HashMap::new();
        for (at, value) in stage.frontends() {
            let key = FrontendKey {
                address: mapped(at.ip()),
                port: at.port().to_be_bytes(),
                protocol: TCP,
                padding: 0,
            };
            frontends.insert(key, value);
        }
        let endpoints = stage.endpoints().into_iter();
        let entry = |flags| EndpointEntry::from(EndpointValue { flags });
        let endpoints = endpoints.map(|(service, at, flags)| (endpoint(service, at), entry(flags)));
        Self {
            stage,
            // Not zero, because no rule may depend on a machine that has just booted.
            now: Cell::new(5_000_000_000),
            device: Cell::new(Device::Client),
            frontends,
            endpoints: RefCell::new(endpoints.collect()),
            flags: Cell::new(0),
            is_for_other_host: Cell::default(),
            room: Cell::new(1_000),
            spent: RefCell::default(),
            pending: RefCell::default(),
            proofs: RefCell::default(),
            seen: RefCell::default(),
            strays: Cell::default(),
        }
    }

    pub fn take(&self, step: &Step) {
        match step {
            Step::In(device, packet) => self.look(*device, Direction::Ingress, &packet.bytes()),
            Step::Out(device, packet) => self.look(*device, Direction::Egress, &packet.bytes()),
            Step::Wait(ms) => self.now.set(self.now.get() + ms * 1_000_000),
            Step::Leaves(at) => {
                let key = endpoint(scenario::WEB, *at);
                let mut endpoints = self.endpoints.borrow_mut();
                let entry = endpoints.get_mut(&key).expect("an endpoint");
                entry.value.flags |= endpoint_flag::LEFT;
                entry.met_ns = 0;
            }
        }
    }

    /// The recorded time of a connection to an endpoint of [`WEB`](scenario::WEB).
    pub fn met(&self, at: std::net::SocketAddr) -> u64 {
        self.endpoints.borrow()[&endpoint(scenario::WEB, at)].met_ns
    }

    pub fn look(&self, device: Device, direction: Direction, bytes: &[u8]) {
        self.device.set(device);
        match parse(&bytes, Link::Ethernet) {
            Ok(Some(segment)) => {
                let stray = observe(self, direction, &segment);
                self.strays.set(self.strays.get() + u32::from(stray));
            }
            Ok(None) => {}
            Err(fault) => self.fault(fault),
        }
    }

    /// All results, including the failures of connections as if every loss window were over.
    pub fn seen(&self) -> Seen {
        let mut seen = self.seen.borrow().clone();
        for (fields, state) in self.connections() {
            let class = SourceClass::from_index(fields.class.into());
            let failed = failed(&Pending { state, ..fields }, u64::MAX);
            seen.failed
                .extend(failed.map(|failed| (fields.service, class, failed)));
        }
        for class in SourceClass::ALL {
            let slot = proof_slot(self.stage.family as u32, class as u8);
            if self.proofs.borrow().contains(&slot) {
                seen.proven.push(class);
            }
        }
        seen
    }

    pub fn state(&self) -> Option<u32> {
        let key = PendingKey {
            isn: ISN,
            family: self.stage.family as u32,
        };
        self.connection(&key).map(|handle| handle.state())
    }

    pub fn connections(&self) -> Vec<(Pending, u32)> {
        let pending = self.pending.borrow();
        let entries = pending.values().map(|Handle(entry)| entry);
        entries.map(|e| (e.fields, e.state.get())).collect()
    }
}

fn endpoint(service: u32, at: std::net::SocketAddr) -> EndpointKey {
    EndpointKey {
        service,
        address: mapped(at.ip()),
        port: at.port().to_be_bytes(),
        padding: [0; 2],
    }
}

impl World for Node {
    type Connection = Handle;

    fn now(&self) -> u64 {
        self.now.get()
    }

    fn device(&self) -> u32 {
        self.device.get() as u32
    }

    fn device_flags(&self) -> u32 {
        let own = match self.device.get() {
            Device::Uplink => device_flag::UPLINK,
            Device::Redirecting => device_flag::FOREIGN,
            _ => 0,
        };
        own | self.flags.get()
    }

    fn is_for_other_host(&self) -> bool {
        self.is_for_other_host.get()
    }

    fn route_names_device(&self, segment: &Segment) -> bool {
        let named = match segment.destination {
            to if to == mapped(self.stage.tunnelled.ip()) => Device::Overlay,
            to if to == mapped(self.stage.routed.ip()) => Device::Uplink,
            to if to == mapped(self.stage.outside.ip()) => Device::Uplink,
            to if to == mapped(self.stage.routeless.ip()) => Device::Uplink,
            _ => Device::Pods,
        };
        named == self.device.get()
    }

    fn frontend(&self, key: &FrontendKey) -> Option<FrontendValue> {
        self.frontends.get(key).copied()
    }

    fn endpoint(&self, key: &EndpointKey) -> Option<EndpointEntry> {
        self.endpoints.borrow().get(key).copied()
    }

    fn meet(&self, key: &EndpointKey) {
        let mut endpoints = self.endpoints.borrow_mut();
        endpoints.get_mut(key).expect("an endpoint").met_ns = self.now();
    }

    fn source_class(&self, address: &Address) -> SourceClass {
        let sources = self.stage.sources();
        let found = sources.iter().find(|(at, _)| mapped(at.ip()) == *address);
        found.map_or(SourceClass::External, |(_, class)| *class)
    }

    fn take_budget(&self, source: &Address) -> bool {
        let mut spent = self.spent.borrow_mut();
        let spent = spent.entry(*source).or_default();
        *spent += 1;
        *spent <= BUDGET_PER_WINDOW
    }

    fn connection(&self, key: &PendingKey) -> Option<Handle> {
        self.pending.borrow().get(key).cloned()
    }

    fn follow(&self, key: &PendingKey, pending: &Pending) -> bool {
        let mut map = self.pending.borrow_mut();
        if map.contains_key(key) {
            return false;
        }
        if map.len() >= self.room.get() {
            self.fault(Fault::PendingFull);
            return false;
        }
        let entry = Entry {
            fields: *pending,
            state: Cell::new(pending.state),
        };
        map.insert(*key, Handle(Rc::new(entry)));
        true
    }

    fn count(&self, service: u32, class: u8, outcome: Outcome) {
        let key = (service, SourceClass::from_index(class.into()), outcome);
        *self.seen.borrow_mut().counts.entry(key).or_default() += 1;
    }

    fn prove(&self, family: u32, class: u8) {
        self.proofs.borrow_mut().insert(proof_slot(family, class));
    }

    fn fault(&self, fault: Fault) {
        *self.seen.borrow_mut().faults.entry(fault).or_default() += 1;
    }

    fn report(&self, anomaly: &AnomalyParts<'_>) {
        let record = anomaly.record(self.now(), self.device());
        assert_eq!(record.service, anomaly.service());
        let outcome = Outcome::from_byte(record.outcome).expect("an outcome");
        self.seen.borrow_mut().anomalies.push(Reported {
            outcome,
            flags: record.flags,
            destination: record.destination,
        });
    }
}

/// All steps that can concern one connection, sensible or not.
pub fn steps(stage: &Stage) -> Vec<Step> {
    let devices = [
        Device::Client,
        Device::Bridge,
        Device::Pods,
        Device::Redirecting,
        Device::Overlay,
        Device::Uplink,
    ];
    let targets = [
        stage.web,
        stage.local,
        stage.no_local,
        stage.api,
        stage.here,
        stage.tunnelled,
        stage.routed,
        stage.former,
        stage.stranger,
    ];
    let clients = [stage.pod, stage.pod2, stage.node, stage.outside];
    let mut steps = vec![Step::Leaves(stage.here)];
    steps.extend([1, 15, 30, 300, 1_100].map(Step::Wait));
    for device in devices {
        for client in clients {
            for target in targets {
                let about = packet::syn(client, target, ISN);
                let (kind, code) = if target.is_ipv4() { (3, 3) } else { (1, 4) };
                for packet in [
                    about.clone(),
                    packet::tcp(client, target, flag::SYN, ISN, 0, b"early"),
                    packet::syn_ack(target, client, ISN),
                    packet::syn_ack(target, client, ISN.wrapping_add(5)),
                    packet::reset(target, client, ISN),
                    packet::icmp_error(target.ip(), client.ip(), kind, code, &about),
                ] {
                    steps.push(Step::In(device, packet.clone()));
                    steps.push(Step::Out(device, packet));
                }
            }
        }
    }
    steps
}
