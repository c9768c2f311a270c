//! The rules over ordinary collections: the scenarios of `parts/scenario.rs`, which tests/kernel also runs
//! with the compiled programs, and properties of arbitrary sequences of sightings.

use std::collections::BTreeMap;

use collections::{Handle, Node, steps};
use pathproof_wire::abi::{BUDGET_PER_WINDOW, LOSS_WINDOW_NS};
use pathproof_wire::classify::{AnomalyParts, Connection, Direction, World, observe};
use pathproof_wire::evidence::{Fault, Outcome, Pending, PendingKey, anomaly_flag, state};
use pathproof_wire::packet::{Link, Segment, parse};
use pathproof_wire::service::{
    Address, EndpointEntry, EndpointKey, ExpectedHandling, Family, FrontendKey, FrontendKind,
    FrontendValue, SourceClass, device_flag, frontend_flag,
};
use pathproof_wire::transition::{Failed, Kind, Sighting, advance, failed};
use proptest::prelude::*;
use rstest::rstest;
use scenario::{Device, ISN, Stage, Step};

#[path = "parts/collections.rs"]
pub mod collections;
#[path = "../../../tests/src/packet.rs"]
pub mod packet;
#[path = "parts/scenario.rs"]
pub mod scenario;

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

/// A current endpoint keeps the time of its first new connection, and a removed one that of the last.
#[test]
fn an_endpoint_keeps_the_time_of_its_connections() {
    let node = Node::new(Family::V4);
    let stage = node.stage;
    let dial = |isn, endpoint| {
        let arrives = Step::In(Device::Client, packet::syn(stage.pod, stage.web, isn));
        node.take(&arrives);
        node.take(&Step::Wait(2));
        node.take(&Step::Out(
            Device::Pods,
            packet::syn(stage.pod, endpoint, isn),
        ));
        node.now()
    };
    let first = dial(1, stage.here);
    dial(2, stage.here);
    assert_eq!(node.met(stage.here), first);
    assert_eq!(node.met(stage.routed), 0);
    node.take(&Step::Leaves(stage.here));
    assert_eq!(node.met(stage.here), 0);
    dial(3, stage.here);
    let last = dial(4, stage.here);
    assert_eq!(node.met(stage.here), last);
    // A late SYN only follows the connection's old conntrack entry.
    node.take(&Step::Wait(30));
    let again = Step::Out(Device::Pods, packet::syn(stage.pod, stage.here, 4));
    node.take(&again);
    assert_eq!(node.met(stage.here), last);
}

/// Probes of the sentinel are counted like all connections, but give no evidence.
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
        assert_eq!(seen.failed, scenario.seen.failed, "{family:?}: {name}");
        assert_eq!(seen.proven, [], "{family:?}: {name}");
        assert_eq!(seen.anomalies, [], "{family:?}: {name}");
    }
}

/// Only a packet to the sentinel that leaves an uplink untranslated is a stray.
#[rstest]
#[case::probe(frontend_flag::SENTINEL, Device::Uplink, true, true)]
#[case::of_a_user(0, Device::Uplink, true, false)]
#[case::within_the_node(frontend_flag::SENTINEL, Device::Bridge, true, false)]
#[case::translated(frontend_flag::SENTINEL, Device::Pods, false, false)]
fn a_probe_that_leaves_untranslated_is_a_stray(
    #[case] flag: u8,
    #[case] device: Device,
    #[case] untranslated: bool,
    #[case] is_stray: bool,
) {
    let mut node = Node::new(Family::V4);
    for frontend in node.frontends.values_mut() {
        frontend.flags |= flag;
    }
    let stage = node.stage;
    let to = if untranslated { stage.web } else { stage.here };
    node.take(&Step::In(
        Device::Client,
        packet::syn(stage.pod, stage.web, ISN),
    ));
    assert_eq!(node.strays.get(), 0);
    node.take(&Step::Out(device, packet::syn(stage.pod, to, ISN)));
    assert_eq!(node.strays.get() > 0, is_stray);
}

/// One sender must not use up the whole map (finding 14).
#[rstest]
#[case::arrivals(Direction::Ingress, Device::Client)]
#[case::leaks_without_arrival(Direction::Egress, Device::Uplink)]
fn budget(#[case] direction: Direction, #[case] device: Device) {
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
    assert_eq!(node.connections().len(), BUDGET_PER_WINDOW as usize);
    assert_eq!(
        node.seen().faults,
        BTreeMap::from([(Fault::OverBudget, 44)])
    );
    look(pod2, 1_000_000);
    assert_eq!(
        node.connections().len(),
        BUDGET_PER_WINDOW as usize + 1,
        "another source has a budget of its own"
    );
}

#[test]
fn a_full_map_is_counted_and_causes_no_verdict() {
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

/// A pod whose address is outside the Node's pod ranges.
#[rstest]
#[case::by_its_device(device_flag::PODS, scenario::WEB, SourceClass::Pod)]
#[case::by_any_other(0, scenario::WEB, SourceClass::External)]
#[case::to_be_handled_otherwise(device_flag::PODS, scenario::NO_LOCAL, SourceClass::External)]
fn a_pod_is_known_by_its_device(
    #[case] flags: u32,
    #[case] service: u32,
    #[case] expected: SourceClass,
) {
    let node = Node::new(Family::V4);
    node.flags.set(flags);
    let stage = node.stage;
    let frontends = stage.frontends();
    let dialled = frontends
        .iter()
        .find(|(_, frontend)| frontend.service == service);
    let (to, _) = *dialled.expect("one of the stage's");
    node.take(&Step::In(
        Device::Client,
        packet::syn(stage.outside, to, ISN),
    ));
    assert_eq!(outcome(&node, service, expected, Outcome::Arrived), 1);
}

/// A pod whose address is outside the Node's pod ranges dials a removed endpoint. Clients outside are not
/// expected to be forwarded there.
#[rstest]
#[case::by_its_device(device_flag::PODS, Some(Failed::Stale))]
#[case::by_any_other(0, None)]
fn a_pod_that_dials_an_endpoint_that_left_is_known_by_its_device(
    #[case] flags: u32,
    #[case] expected: Option<Failed>,
) {
    let node = Node::new(Family::V4);
    node.flags.set(flags);
    let Stage {
        outside, former, ..
    } = node.stage;
    node.take(&Step::In(Device::Client, packet::syn(outside, former, ISN)));
    let failed = node.seen().failed.into_iter().map(|(.., failed)| failed);
    assert_eq!(failed.collect::<Vec<_>>(), Vec::from_iter(expected));
}

/// Such connections come from pods of other nodes, whose agents report them.
#[test]
fn connections_from_an_uplink_to_a_removed_endpoint_are_not_followed() {
    let node = Node::new(Family::V4);
    let Stage {
        outside, former, ..
    } = node.stage;
    node.take(&Step::In(Device::Uplink, packet::syn(outside, former, ISN)));
    assert_eq!(node.state(), None);
}

/// A packet from an uplink is from outside, even if its source is the address of a pod or of the node.
#[rstest]
#[case::by_a_pods_device(Device::Client, SourceClass::Pod)]
#[case::by_an_uplink(Device::Uplink, SourceClass::External)]
fn a_source_that_comes_in_by_an_uplink_is_outside(
    #[case] device: Device,
    #[case] expected: SourceClass,
) {
    let node = Node::new(Family::V4);
    let Stage { pod, web, .. } = node.stage;
    node.take(&Step::In(device, packet::syn(pod, web, ISN)));
    assert_eq!(outcome(&node, scenario::WEB, expected, Outcome::Arrived), 1);
}

/// A node where other processors change every state between a read and its update.
struct Busy<'a>(&'a Node);

/// A connection of [`Busy`]: each update fails.
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
        endpoint(key: &EndpointKey) -> Option<EndpointEntry>;
        meet(key: &EndpointKey);
        source_class(address: &Address) -> SourceClass;
        take_budget(source: &Address) -> bool;
        follow(key: &PendingKey, pending: &Pending) -> bool;
        count(service: u32, class: u8, outcome: Outcome);
        prove(family: u32, class: u8);
        fault(fault: Fault);
        report(anomaly: &AnomalyParts<'_>);
    }

    fn connection(&self, key: &PendingKey) -> Option<Moved> {
        self.0.connection(key).map(Moved)
    }
}

#[test]
fn a_contended_update_is_abandoned_and_counted() {
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

proptest! {
    /// `Handle::swap` also asserts that no bit is ever cleared.
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
        let got_through = |node: &Node| {
            let counts = node.seen().counts;
            let of = |(_, _, outcome): &(u32, SourceClass, Outcome)| {
                matches!(outcome, Outcome::Forwarded | Outcome::Answered)
            };
            counts.into_iter().filter(|(key, _)| of(key)).collect::<BTreeMap<_, _>>()
        };
        let mut told = None;
        for pick in picks {
            node.take(pick.get(&steps));
            let age = node.now() - began;
            let failed = node.connections().into_iter().any(|(fields, state)| {
                failed(&Pending { state, ..fields }, age).is_some()
            });
            if failed && told.is_none() {
                told = Some(got_through(&node));
            }
        }
        let seen = node.seen();
        let mut sums = BTreeMap::<Outcome, u32>::new();
        for ((_, _, outcome), count) in &seen.counts {
            *sums.entry(*outcome).or_default() += count;
        }
        for (outcome, count) in &sums {
            if *outcome != Outcome::Retransmitted {
                prop_assert!(*count <= 1, "{outcome:?} counted {count} times");
            }
        }
        prop_assert!(seen.failed.is_empty() || !sums.contains_key(&Outcome::Answered), "{sums:?}");
        if let Some(told) = told {
            prop_assert_eq!(told, got_through(&node), "a failure is the end of the account");
        }
        prop_assert_eq!(sums.contains_key(&Outcome::Proven), !seen.proven.is_empty());
    }

    /// From any state: a transition clears no bit. One that sets no bit counts nothing but retransmissions.
    #[test]
    fn states_go_forward(
        old in 0..1_u32 << 15,
        which in 0..10_usize,
        details in 0..1_u32 << 5,
        owed in 0..5_u8,
        host: bool,
        age in prop_oneof![Just(0), 0..2 * LOSS_WINDOW_NS],
    ) {
        let kind = [
            Kind::Again,
            Kind::Shared,
            Kind::ToEndpoint,
            Kind::ToLeft,
            Kind::ToStranger,
            Kind::Misdelivered,
            Kind::Untranslated,
            Kind::AnswerIn,
            Kind::AnswerOut,
            Kind::RefusalOut,
        ][which];
        let sighting = Sighting::new(kind, details);
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
        if old & state::REJECTED != 0 && step.outcome != again {
            prop_assert_eq!(step.outcome, None);
            prop_assert_eq!(step.doubt, None);
        }
        let is_expected_to_pass = matches!(ExpectedHandling::from_byte(owed), ExpectedHandling::Forward | ExpectedHandling::LocalOnly);
        if step.doubt.is_some() {
            prop_assert!(is_expected_to_pass && step.state & state::FAILING != old & state::FAILING);
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
