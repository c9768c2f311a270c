//! The rules over ordinary collections: every scenario of `tests/src/scenario.rs`, which the
//! compiled programs run too (tests/kernel), and properties of any sequence of sightings.
//!
//! Length: tables of sequences, one a finding.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use agent_common::abi::{BUDGET_PER_WINDOW, LOSS_WINDOW_NS};
use agent_common::classify::{Connection, Direction, Evidence, World, observe};
use agent_common::evidence::{
    Fault, Outcome, Pending, PendingKey, anomaly_flag, delay_bucket, proof_slot, state,
};
use agent_common::packet::{Link, Segment, parse};
use agent_common::service::{
    Address, EndpointKey, EndpointValue, Family, FrontendKey, FrontendKind, FrontendValue, Owed,
    SourceClass, TCP, device_flag, endpoint_flag, frontend_flag,
};
use agent_common::transition::{Sighting, advance};
use proptest::prelude::*;
use rstest::rstest;
use scenario::{Device, ISN, Reported, Seen, Stage, Step, mapped};

#[path = "../../tests/src/packet.rs"]
pub mod packet;
#[path = "../../tests/src/scenario.rs"]
pub mod scenario;

/// A connection and its state.
struct Entry {
    fields: Pending,
    state: Cell<u32>,
}

/// A connection's handle.
#[derive(Clone)]
struct Handle(Rc<Entry>);

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

/// A node made of collections.
struct Node {
    stage: Stage,
    now: Cell<u64>,
    device: Cell<Device>,
    frontends: HashMap<FrontendKey, FrontendValue>,
    endpoints: RefCell<HashMap<EndpointKey, u32>>,
    room: Cell<usize>,
    spent: RefCell<HashMap<Address, u32>>,
    pending: RefCell<HashMap<PendingKey, Handle>>,
    proofs: RefCell<BTreeSet<u32>>,
    delays: RefCell<Vec<u64>>,
    seen: RefCell<Seen>,
}

impl Node {
    fn new(family: Family) -> Self {
        let stage = Stage::new(family);
        let mut frontends = HashMap::new();
        for frontend in stage.frontends() {
            let key = FrontendKey {
                address: mapped(frontend.at.ip()),
                port: frontend.at.port().to_be_bytes(),
                protocol: TCP,
                padding: 0,
            };
            let value = FrontendValue {
                service: frontend.service,
                kind: frontend.kind as u8,
                flags: frontend.flags,
                owed: frontend.owed.map(|owed| owed as u8),
                padding: [0; 3],
            };
            frontends.insert(key, value);
        }
        let endpoints = stage.endpoints().into_iter();
        let endpoints = endpoints.map(|(service, at, flags)| (endpoint(service, at), flags));
        Self {
            stage,
            // Not zero: nothing may depend on the machine having started just now.
            now: Cell::new(5_000_000_000),
            device: Cell::new(Device::Client),
            frontends,
            endpoints: RefCell::new(endpoints.collect()),
            room: Cell::new(1_000),
            spent: RefCell::default(),
            pending: RefCell::default(),
            proofs: RefCell::default(),
            delays: RefCell::default(),
            seen: RefCell::default(),
        }
    }

    fn take(&self, step: &Step) {
        match step {
            Step::In(device, packet) => self.look(*device, Direction::Ingress, &packet.bytes()),
            Step::Out(device, packet) => self.look(*device, Direction::Egress, &packet.bytes()),
            Step::Wait(ms) => self.now.set(self.now.get() + ms * 1_000_000),
            Step::Leaves(at) => {
                let key = endpoint(scenario::WEB, *at);
                let mut endpoints = self.endpoints.borrow_mut();
                *endpoints.get_mut(&key).expect("an endpoint") |= endpoint_flag::LEFT;
            }
        }
    }

    fn look(&self, device: Device, direction: Direction, bytes: &[u8]) {
        self.device.set(device);
        match parse(&bytes, Link::Ethernet) {
            Ok(Some(segment)) => observe(self, direction, &segment),
            Ok(None) => {}
            Err(fault) => self.fault(fault),
        }
    }

    fn seen(&self) -> Seen {
        let mut seen = self.seen.borrow().clone();
        for class in SourceClass::ALL {
            let slot = proof_slot(self.stage.family as u32, class as u8);
            if self.proofs.borrow().contains(&slot) {
                seen.proven.push(class);
            }
        }
        seen
    }

    fn state(&self) -> Option<u32> {
        let key = PendingKey {
            isn: ISN,
            family: self.stage.family as u32,
        };
        self.connection(&key).map(|handle| handle.state())
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
        match self.device.get() {
            Device::Uplink => device_flag::UPLINK,
            _ => 0,
        }
    }

    fn route_names_device(&self, segment: &Segment) -> bool {
        let named = match segment.destination {
            to if to == mapped(self.stage.tunnelled.ip()) => Device::Overlay,
            to if to == mapped(self.stage.routed.ip()) => Device::Uplink,
            _ => Device::Pods,
        };
        named == self.device.get()
    }

    fn frontend(&self, key: &FrontendKey) -> Option<FrontendValue> {
        self.frontends.get(key).copied()
    }

    fn endpoint(&self, key: &EndpointKey) -> Option<EndpointValue> {
        let flags = self.endpoints.borrow().get(key).copied()?;
        Some(EndpointValue { flags })
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

    fn delay(&self, family: u32, ns: u64) {
        assert_eq!(family, self.stage.family as u32);
        self.delays.borrow_mut().push(ns);
    }

    fn fault(&self, fault: Fault) {
        *self.seen.borrow_mut().faults.entry(fault).or_default() += 1;
    }

    fn report(&self, anomaly: &Evidence<'_>) {
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

fn outcome(node: &Node, service: u32, class: SourceClass, outcome: Outcome) -> u32 {
    let seen = node.seen.borrow();
    seen.counts
        .get(&(service, class, outcome))
        .copied()
        .unwrap_or(0)
}

#[rstest]
fn scenarios(#[values(Family::V4, Family::V6)] family: Family) {
    for scenario in scenario::all(family) {
        let node = Node::new(family);
        for step in &scenario.steps {
            node.take(step);
        }
        assert_eq!(node.seen(), scenario.seen, "{family:?}: {}", scenario.name);
    }
}

/// Probes of the sentinel are counted as all connections are, and are evidence of nothing.
#[rstest]
fn probes_leave_no_evidence(#[values(Family::V4, Family::V6)] family: Family) {
    for scenario in scenario::all(family) {
        let mut node = Node::new(family);
        for frontend in node.frontends.values_mut() {
            frontend.flags |= frontend_flag::SENTINEL;
        }
        for step in &scenario.steps {
            node.take(step);
        }
        let seen = node.seen();
        let name = scenario.name;
        assert_eq!(seen.counts, scenario.seen.counts, "{family:?}: {name}");
        assert_eq!(seen.proven, [], "{family:?}: {name}");
        assert_eq!(seen.anomalies, [], "{family:?}: {name}");
        assert!(node.delays.borrow().is_empty(), "{family:?}: {name}");
    }
}

#[test]
fn a_delay_is_that_of_a_first_syn() {
    let node = Node::new(Family::V4);
    let stage = node.stage;
    let arrives = Step::In(Device::Client, packet::syn(stage.pod, stage.web, ISN));
    let leaves = Step::Out(Device::Pods, packet::syn(stage.pod, stage.here, ISN));
    for step in [&arrives, &Step::Wait(3), &leaves, &leaves] {
        node.take(step);
    }
    assert_eq!(*node.delays.borrow(), [3_000_000]);

    let node = Node::new(Family::V4);
    for step in [&arrives, &Step::Wait(300), &arrives, &leaves] {
        node.take(step);
    }
    assert_eq!(
        outcome(&node, scenario::WEB, SourceClass::Pod, Outcome::Forwarded),
        1
    );
    assert!(node.delays.borrow().is_empty(), "its SYN came again");
}

/// One sender must not use up the room of all (finding 14).
#[rstest]
#[case::arrivals(Direction::Ingress, Device::Client, Outcome::Arrived)]
#[case::leaks_without_arrival(Direction::Egress, Device::Uplink, Outcome::Leaked)]
fn budget(#[case] direction: Direction, #[case] device: Device, #[case] counted: Outcome) {
    let node = Node::new(Family::V4);
    node.room.set(10_000);
    let Stage { pod, pod2, web, .. } = node.stage;
    let look = |client, isn| {
        node.device.set(device);
        let bytes = packet::syn(client, web, isn).bytes();
        let segment = parse(&bytes.as_slice(), Link::Ethernet).expect("sound");
        observe(&node, direction, &segment.expect("a SYN"));
    };
    for isn in 0..BUDGET_PER_WINDOW + 44 {
        look(pod, isn);
    }
    assert_eq!(
        outcome(&node, scenario::WEB, SourceClass::Pod, counted),
        BUDGET_PER_WINDOW
    );
    assert_eq!(
        node.seen().faults,
        BTreeMap::from([(Fault::OverBudget, 44)])
    );
    look(pod2, 1_000_000);
    assert_eq!(
        outcome(&node, scenario::WEB, SourceClass::Pod, counted),
        BUDGET_PER_WINDOW + 1,
        "another source has a budget of its own"
    );
}

#[test]
fn a_full_map_is_counted_and_judges_nobody() {
    let node = Node::new(Family::V4);
    node.room.set(0);
    let Stage {
        pod, web, stranger, ..
    } = node.stage;
    node.take(&Step::In(Device::Client, packet::syn(pod, web, ISN)));
    node.take(&Step::Out(Device::Pods, packet::syn(pod, stranger, ISN)));
    assert!(node.seen().counts.is_empty());
    assert_eq!(
        node.seen().faults,
        BTreeMap::from([(Fault::PendingFull, 1)])
    );
}

/// The node, while other processors move every state between a look and a step.
struct Busy<'a>(&'a Node);

/// See [`Busy`].
struct Moved(Handle);

impl Connection for Moved {
    fn fields(&self) -> &Pending {
        self.0.fields()
    }

    fn state(&self) -> u32 {
        self.0.state()
    }

    fn swap(&self, _: u32, _: u32) -> bool {
        false
    }
}

macro_rules! delegate {
    ($($name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        $(fn $name(&self, $($argument: $type),*) $(-> $result)? { self.0.$name($($argument),*) })*
    };
}

impl World for Busy<'_> {
    type Connection = Moved;
    delegate! {
        now() -> u64;
        device() -> u32;
        device_flags() -> u32;
        route_names_device(segment: &Segment) -> bool;
        frontend(key: &FrontendKey) -> Option<FrontendValue>;
        endpoint(key: &EndpointKey) -> Option<EndpointValue>;
        source_class(address: &Address) -> SourceClass;
        take_budget(source: &Address) -> bool;
        follow(key: &PendingKey, pending: &Pending) -> bool;
        count(service: u32, class: u8, outcome: Outcome);
        prove(family: u32, class: u8);
        delay(family: u32, ns: u64);
        fault(fault: Fault);
        report(anomaly: &Evidence<'_>);
    }

    fn connection(&self, key: &PendingKey) -> Option<Moved> {
        self.0.connection(key).map(Moved)
    }
}

#[test]
fn a_contended_state_is_given_up_and_counted() {
    let node = Node::new(Family::V4);
    let Stage {
        pod, web, stranger, ..
    } = node.stage;
    node.take(&Step::In(Device::Client, packet::syn(pod, web, ISN)));
    let bytes = packet::syn(pod, stranger, ISN).bytes();
    let segment = parse(&bytes.as_slice(), Link::Ethernet).expect("sound");
    observe(&Busy(&node), Direction::Egress, &segment.expect("a SYN"));
    assert_eq!(node.seen().faults, BTreeMap::from([(Fault::Contended, 1)]));
    assert_eq!(
        outcome(&node, scenario::WEB, SourceClass::Pod, Outcome::Misrouted),
        0
    );
}

#[rstest]
#[case(0, 0)]
#[case(1, 0)]
#[case(2, 1)]
#[case(3, 1)]
#[case(1 << 31, 31)]
#[case(u64::MAX, 31)]
fn delay_buckets(#[case] ns: u64, #[case] bucket: usize) {
    assert_eq!(delay_bucket(ns), bucket);
}

/// Everything that can be seen of one connection, sensible or not.
fn steps(stage: &Stage) -> Vec<Step> {
    let devices = [
        Device::Client,
        Device::Bridge,
        Device::Pods,
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
                    packet::syn_with_data(client, target, ISN, b"early"),
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

const FAILURES: [Outcome; 5] = [
    Outcome::Refused,
    Outcome::Leaked,
    Outcome::Misrouted,
    Outcome::Stale,
    Outcome::Rejected,
];

proptest! {
    /// `Handle::swap` asserts besides that no bit is ever taken back.
    #[test]
    fn one_connection_one_outcome(
        v6: bool,
        first in 0..4_usize,
        picks in prop::collection::vec(any::<prop::sample::Index>(), 0..40),
    ) {
        let node = Node::new(if v6 { Family::V6 } else { Family::V4 });
        let stage = node.stage;
        let frontend = [stage.web, stage.local, stage.no_local, stage.api][first];
        node.take(&Step::In(Device::Client, packet::syn(stage.pod, frontend, ISN)));
        let steps = steps(&stage);
        let began = node.now();
        let mut lost = false;
        for pick in picks {
            node.take(pick.get(&steps));
            let state = node.state().expect("an entry stays until it is swept");
            lost |= node.now() - began > LOSS_WINDOW_NS && state & state::PROGRESS == 0;
        }
        let seen = node.seen();
        let mut sums = BTreeMap::<Outcome, u32>::new();
        for ((_, _, outcome), count) in &seen.counts {
            *sums.entry(*outcome).or_default() += count;
        }
        let failures: u32 = FAILURES.iter().filter_map(|failure| sums.get(failure)).sum();
        prop_assert!(failures + u32::from(lost) <= 1, "{failures} failures, lost: {lost}, {sums:?}");
        for (outcome, count) in &sums {
            if *outcome != Outcome::Retransmitted {
                prop_assert!(*count <= 1, "{outcome:?} counted {count} times");
            }
        }
        if lost {
            prop_assert!(!sums.contains_key(&Outcome::Forwarded), "{sums:?}");
            prop_assert!(!sums.contains_key(&Outcome::Answered), "{sums:?}");
        }
        prop_assert_eq!(sums.contains_key(&Outcome::Proven), !seen.proven.is_empty());
    }

    /// The transition alone, from any state: bits only come, and nothing is counted without one.
    #[test]
    fn states_go_forward(
        old in 0..1_u32 << 14,
        which in 0..12_usize,
        owed in 0..5_u8,
        host: bool,
        age in prop_oneof![Just(0), 0..2 * LOSS_WINDOW_NS],
    ) {
        let sighting = [
            Sighting::Again,
            Sighting::Shared,
            Sighting::ToEndpoint { proven: true },
            Sighting::ToEndpoint { proven: false },
            Sighting::ToLeft,
            Sighting::ToStranger,
            Sighting::Misdelivered,
            Sighting::Untranslated,
            Sighting::AnswerIn { from_endpoint: which % 2 == 0 },
            Sighting::AnswerOut,
            Sighting::RefusalOut { icmp: true },
            Sighting::RefusalOut { icmp: false },
        ][which];
        let fields = Pending {
            owed,
            flags: if host { frontend_flag::HOST_ENDPOINT } else { 0 },
            kind: FrontendKind::ClusterIp as u8,
            ..Pending::default()
        };
        let step = advance(old, sighting, &fields, age);
        prop_assert_eq!(step.state & old, old);
        let again = Some(Outcome::Retransmitted);
        if step.state == old {
            prop_assert!(!step.proof);
            prop_assert!(step.outcome.is_none() || step.outcome == again);
        }
        if old & state::AMBIGUOUS != 0 {
            prop_assert_eq!(step.state, old);
            prop_assert_eq!(step.outcome, None);
        }
        if old & state::ENDED != 0 && step.outcome != again {
            prop_assert_eq!(step.outcome, None);
        }
        let is_owed = matches!(Owed::from_byte(owed), Owed::Forward | Owed::LocalOnly);
        if let Some(Outcome::Refused | Outcome::Leaked | Outcome::Misrouted | Outcome::Stale) = step.outcome {
            prop_assert!(is_owed);
        }
    }
}

#[test]
fn flags_of_anomalies_are_bits() {
    let all = [
        anomaly_flag::UNSEEN_ARRIVAL,
        anomaly_flag::MISDELIVERED,
        anomaly_flag::ICMP,
    ];
    assert_eq!(all.iter().fold(0, |sum, bit| sum | bit).count_ones(), 3);
}
