//! Events of all kinds with arbitrary contents, sensible or not. Length: one generator for each kind, of parts
//! that the kinds share.

mod view;

use std::net::{IpAddr, SocketAddr};

use pathproof_facts::cause::Failure;
use pathproof_facts::cluster::ObjectName;
use pathproof_facts::directory::{Missing, ServiceInfo};
use pathproof_facts::fleet_report::{Count, Published};
use pathproof_facts::limits::Limits;
use pathproof_facts::node_context::SourcePrefix;
use pathproof_facts::owners::{Owner, OwnersRead};
use pathproof_facts::switches::Enforcement;
use pathproof_facts::time::{Mono, Wall};
use pathproof_facts::trace::{
    Control, Lane, LaneConflict, ProbePath, ProbeSightings, ProbeTrace, Stamps, Transport,
};
use pathproof_judge::answer::UnknownPolicy;
use pathproof_judge::damping::DWELL_DEFAULT;
use pathproof_judge::drain::ProbeRanges;
use pathproof_judge::eligibility::TerminatingMarks;
use pathproof_judge::verdict::CountedFamilies;
use pathproof_node::event::{
    Event, KernelSample, KernelState, SentinelEvent, Service, Successor, ViewFacts,
};
use pathproof_node::{Settings, Start};
use pathproof_plan::expect::sentinel::{Sentinel, SentinelFamily, SentinelPort, SentinelRule};
use pathproof_plan::{Installed, MapChange};
use pathproof_wire::evidence::{FAULTS, OUTCOMES};
use pathproof_wire::probe::STAGES;
use pathproof_wire::service::{
    EndpointKey, EndpointValue, FAMILIES, Family, FrontendKey, FrontendValue, SOURCE_CLASSES,
    SourceClass,
};
use pathproof_witness::coverage::{Hook, Hooks, ObserverStart};
use pathproof_witness::evidence::{CountDelta, FailedConnection};
use pathproof_witness::topology;
use proptest::prelude::*;
use proptest::sample::select;
use view::{changes, node_facts, view};

pub(crate) fn settings() -> Settings {
    Settings {
        node: "node-0".to_owned(),
        limits: Limits::default(),
        terminating: TerminatingMarks::default(),
        unknown_policy: UnknownPolicy::Open,
        enforcement: Enforcement::Enforce,
        enforce_nodes: None,
        families: CountedFamilies::default(),
        flap_dwell: DWELL_DEFAULT,
        fleet_brake: Some(20),
        leaving_brake: Some(20),
        drain_ignore: ProbeRanges::default(),
        watches_services: true,
        own_ports: Vec::new(),
        sentinel: Some(SentinelRule {
            service: name(0),
            echo: [address(0), "2001:2::2".parse().expect("an address")],
            clients: Vec::new(),
            pods: Vec::new(),
        }),
        rereads: true,
    }
}

/// A start at this time without a persisted state.
pub(crate) fn start(now: Mono) -> Start {
    Start {
        now,
        wall: Wall(1_700_000_000_000_000_000),
        observer: ObserverStart::default(),
        persisted: None,
    }
}

/// Times in a node's life, and sometimes the limits of the clock.
pub(crate) fn time() -> impl Strategy<Value = Mono> {
    prop_oneof![
        20 => (0..200_000_u64).prop_map(|ms| Mono(ms * 1_000_000)),
        1 => any::<u64>().prop_map(Mono),
        1 => select(vec![Mono(0), Mono(1), Mono(u64::MAX)]),
    ]
}

fn name(number: u8) -> ObjectName {
    match number {
        0 => ObjectName::new("pathproof", "pathproof-sentinel"),
        _ => ObjectName::new("shop", &format!("service-{number}")),
    }
}

fn names() -> impl Strategy<Value = ObjectName> {
    (0..4_u8).prop_map(name)
}

fn address(number: u8) -> IpAddr {
    match number {
        0 => IpAddr::from([198, 18, 0, 2]),
        1..8 => IpAddr::from([10, 96, 0, number]),
        8..12 => IpAddr::from([10, 128, 0, number]),
        _ => IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, u16::from(number)]),
    }
}

fn addresses() -> impl Strategy<Value = IpAddr> {
    (0..16_u8).prop_map(address)
}

fn sockets() -> impl Strategy<Value = SocketAddr> {
    (addresses(), ports()).prop_map(SocketAddr::from)
}

fn ports() -> impl Strategy<Value = u16> {
    select(vec![0, 1, 80, 20_001, 20_002, 20_999, 30_000, u16::MAX])
}

fn mapped() -> impl Strategy<Value = [u8; 16]> {
    prop_oneof![
        addresses().prop_map(|ip| match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        }),
        any::<[u8; 16]>(),
    ]
}

fn families() -> impl Strategy<Value = Family> {
    select(&Family::ALL[..])
}

fn classes() -> impl Strategy<Value = SourceClass> {
    select(&SourceClass::ALL[..])
}

fn maybe_time() -> impl Strategy<Value = Option<Mono>> {
    prop::option::of(time())
}

fn conflict() -> impl Strategy<Value = LaneConflict> {
    (lane(), any::<bool>()).prop_map(|(lane, loops)| LaneConflict {
        lane,
        service: ObjectName::new("shop", "claim"),
        loops,
    })
}

prop_compose! {
    fn lane()(
        path in select(&ProbePath::ALL[..]),
        family in families(),
        transport in select(&Transport::ALL[..]),
    ) -> Lane {
        Lane { path, family, transport }
    }
}

fn stamps() -> impl Strategy<Value = Stamps> {
    prop_oneof![
        Just([None; STAGES]),
        time().prop_map(|at| [Some(at); STAGES]),
        prop::array::uniform5(maybe_time()),
    ]
}

fn sightings() -> impl Strategy<Value = ProbeSightings> {
    any::<[bool; 5]>().prop_map(
        |[leaked, misrouted, stale, refused, unreachable]| ProbeSightings {
            leaked,
            misrouted,
            stale,
            refused,
            unreachable,
        },
    )
}

prop_compose! {
    fn trace()(
        lane in lane(),
        times in prop::array::uniform3(time()),
        ends in (sockets(), sockets(), prop::option::of(sockets())),
        stamps in (stamps(), stamps()),
        generation in prop::option::of(ports()),
        sightings in sightings(),
        passed in any::<bool>(),
        unsent in prop::option::weighted(0.1, Just("no wire".to_owned())),
    ) -> ProbeTrace {
        let [due, sent, ended] = times;
        ProbeTrace {
            lane,
            due,
            sent,
            ended,
            client: ends.0,
            frontend: ends.1,
            handshake: stamps.0,
            data: stamps.1,
            echo_saw: ends.2,
            generation,
            sightings,
            control: if passed { Control::Passed } else { Control::Failed },
            unsent,
        }
    }
}

prop_compose! {
    fn sighting()(
        times in (time(), time(), maybe_time()),
        service in prop_oneof![0..8_u32, any::<u32>()],
        class in classes(),
        failure in select(&Failure::ALL[..]),
        ends in (addresses(), sockets(), prop::option::of(sockets())),
        device: u32,
        flags: [bool; 3],
    ) -> FailedConnection {
        FailedConnection {
            at: times.0,
            arrived: times.1,
            service,
            class,
            failure,
            client: ends.0,
            client_port: ends.1.port(),
            frontend: ends.1,
            destination: ends.2,
            device,
            misdelivered: flags[0],
            icmp: flags[1],
            answer_lost: flags[2],
            left_since: times.2,
        }
    }
}

prop_compose! {
    fn count()(
        service in prop_oneof![0..8_u32, any::<u32>()],
        class in classes(),
        counts in prop_oneof![
            prop::collection::vec(0..5_u32, OUTCOMES),
            prop::collection::vec(any::<u32>(), OUTCOMES),
        ],
        lost in prop_oneof![0..5_u32, any::<u32>()],
    ) -> CountDelta {
        let mut delta = CountDelta { service, class, counts: [0; OUTCOMES], lost };
        delta.counts.copy_from_slice(&counts);
        delta
    }
}

prop_compose! {
    fn sample()(
        counts in prop::collection::vec(count(), 0..6),
        failed_connections in prop::collection::vec(sighting(), 0..6),
        proofs in prop::collection::vec(maybe_time(), FAMILIES * SOURCE_CLASSES),
        faults in prop::collection::vec(any::<u64>(), FAULTS),
        forgotten_early in prop_oneof![Just(0), any::<usize>()],
    ) -> KernelSample {
        let mut sample = KernelSample { counts, failed_connections, forgotten_early, ..KernelSample::default() };
        sample.faults.copy_from_slice(&faults);
        for (place, at) in proofs.into_iter().enumerate() {
            sample.last_proofs[place / SOURCE_CLASSES][place % SOURCE_CLASSES] = at;
        }
        sample
    }
}

prop_compose! {
    fn frontend()(
        address in mapped(),
        port in ports(),
        protocol: u8,
        service in prop_oneof![0..8_u32, any::<u32>()],
        kind: u8,
        flags: u8,
        owed: [u8; SOURCE_CLASSES],
    ) -> (FrontendKey, FrontendValue) {
        let key = FrontendKey { address, port: port.to_be_bytes(), protocol, padding: 0 };
        (key, FrontendValue { service, kind, flags, owed, padding: [0; 3] })
    }
}

prop_compose! {
    fn endpoint()(
        address in mapped(),
        port in ports(),
        service in prop_oneof![0..8_u32, any::<u32>()],
        flags: u32,
    ) -> (EndpointKey, EndpointValue) {
        let key = EndpointKey { service, address, port: port.to_be_bytes(), padding: [0; 2] };
        (key, EndpointValue { flags })
    }
}

fn source() -> impl Strategy<Value = (SourcePrefix, SourceClass)> {
    (mapped(), 0..=128_u32, classes())
        .prop_map(|(address, bits, class)| (SourcePrefix { address, bits }, class))
}

prop_compose! {
    fn installed()(
        frontends in prop::collection::vec(frontend(), 0..5),
        endpoints in prop::collection::vec(endpoint(), 0..5),
        sources in prop::collection::vec(source(), 0..5),
    ) -> Installed {
        Installed { frontends, endpoints, sources }
    }
}

fn full() -> impl Strategy<Value = MapChange> {
    prop_oneof![
        (0..8_u32).prop_map(|service| MapChange::ResetCounts { service }),
        source().prop_map(|(prefix, class)| MapChange::PutSource { prefix, class }),
        source().prop_map(|(prefix, _)| MapChange::DeleteSource { prefix }),
        frontend().prop_map(|(key, value)| MapChange::PutFrontend { key, value }),
        frontend().prop_map(|(key, _)| MapChange::DeleteFrontend { key }),
        endpoint().prop_map(|(key, value)| MapChange::PutEndpoint { key, value }),
        endpoint().prop_map(|(key, value)| MapChange::RetireEndpoint { key, value }),
        endpoint().prop_map(|(key, _)| MapChange::DeleteEndpoint { key }),
    ]
}

fn owners() -> impl Strategy<Value = OwnersRead> {
    let one = prop::collection::vec(select(&Owner::ALL[..]), 0..3);
    prop::array::uniform2(prop::option::of(
        one.prop_map(|owners| owners.into_iter().collect()),
    ))
}

prop_compose! {
    fn sentinel_family()(
        cluster_ip in addresses(),
        echo in sockets(),
        node_address in prop::option::of(addresses()),
        numbers in prop::array::uniform4(ports()),
        udp: bool,
    ) -> SentinelFamily {
        let [port, node_port, generation, other] = numbers;
        let tcp = SentinelPort { port, node_port: Some(node_port), generation };
        let udp = udp.then_some(SentinelPort { generation: other, ..tcp });
        SentinelFamily { cluster_ip, tcp, udp, node_address, echo }
    }
}

prop_compose! {
    fn facts()(
        flags: [bool; 5],
        pods_expected: [bool; 2],
        node in prop::option::of(node_facts()),
        missing: [u64; 4],
        families in prop::array::uniform2(prop::option::of(sentinel_family())),
        texts in prop::array::uniform2(prop::option::weighted(0.2, Just("otherwise".to_owned()))),
        whole in any::<bool>(),
        fleet in prop::option::of((any::<u32>(), any::<u32>())),
        conflicts in prop::collection::vec(conflict(), 0..3),
    ) -> ViewFacts {
        let fleet = fleet.map(|(unsound, nodes)| Published {
            count: Count { unsound, nodes },
            domains: [Count { unsound: nodes / 3, nodes }; 4],
            leaving: Some(nodes / 2),
            written: i64::from(unsound),
        });
        let [synced, silent, v4, v6, exists] = flags;
        let [altered, taken] = texts;
        let [frontends, endpoints, sources, services] = missing;
        let missing = Missing { frontends, endpoints, sources, services };
        ViewFacts {
            synced,
            silent,
            node,
            families: [v4, v6],
            missing: if whole { Missing::default() } else { missing },
            unknown_frontends: None,
            sentinel: Sentinel { exists, altered, awaits_slice: false, families, conflicts, fleet, fleet_error: None, in_use: None, enforcement: None },
            pods_expected,
            taken,
            tries: Vec::new(),
        }
    }
}

prop_compose! {
    fn known()(id in 0..8_u32, known in prop::option::of((names(), families(), any::<u32>(), any::<[bool; 4]>())))
    -> Service {
        let known = known.map(|(name, family, endpoints, [udp, dns, sentinel, on_host])| ServiceInfo {
            name,
            port: "".into(),
            family,
            endpoints,
            udp,
            dns,
            sentinel,
            echo: dns,
            on_host,
            conflict_changed: None,
            since: on_host.then_some(Mono(0)),
        });
        Service { id, known }
    }
}

fn parts() -> impl Strategy<Value = SentinelEvent> {
    let kernel = (maybe_time(), any::<[Option<bool>; FAMILIES]>(), owners());
    prop_oneof![
        3 => Just(SentinelEvent::Ready),
        1 => Just(SentinelEvent::Off("no device".to_owned())),
        1 => Just(SentinelEvent::Damaged("an address is gone".to_owned())),
        1 => Just(SentinelEvent::Detached),
        3 => Just(SentinelEvent::Started(None)),
        1 => Just(SentinelEvent::Started(Some("no socket".to_owned()))),
        1 => Just(SentinelEvent::Ended),
        3 => kernel.prop_map(|(sound_since, forwarding, owners)| SentinelEvent::Kernel(KernelState {
            sound_since,
            forwarding,
            owners,
        })),
    ]
}

fn hooks() -> impl Strategy<Value = Hooks> {
    let hook = (
        any::<[bool; 3]>(),
        prop::option::of(Just("busy".to_owned())),
    )
        .prop_map(|([uplink, attached, first], problem)| Hook {
            device: "eth0".to_owned(),
            uplink,
            attached,
            first,
            problem,
        });
    let counts = [0..3_u64, 0..3, 0..3];
    (prop::collection::vec(hook, 0..4), counts).prop_map(|(devices, [left_out, unseen, new])| {
        Hooks {
            devices,
            left_out,
            unseen,
            new,
            not_pinned: None,
        }
    })
}

fn topologies() -> impl Strategy<Value = topology::TopologyFacts> {
    let device = (
        select(vec!["eth0", "cilium_host", "cilium_vxlan", "pathproof-c0"]),
        select(vec![
            topology::Role::Uplink,
            topology::Role::Sentinel,
            topology::Role::Cilium,
        ]),
        any::<bool>(),
        prop::option::of(select(vec!["cil_to_netdev", "cil_from_netdev", "other"])),
    )
        .prop_map(|(name, role, xdp, program)| {
            let at = |program: &str| topology::ForeignPrograms {
                links: vec![Some(program.to_owned())],
                filters: Vec::new(),
            };
            topology::DeviceFacts {
                name: name.to_owned(),
                role,
                xdp,
                hooks: program.map(|program| [at(program), topology::ForeignPrograms::default()]),
            }
        });
    (prop::collection::vec(device, 0..5), 0..2_u32, owners()).prop_map(
        |(devices, netkit, owners)| topology::TopologyFacts {
            devices,
            netkit,
            owners,
            ..topology::TopologyFacts::default()
        },
    )
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    let successor = select(vec![Successor::None, Successor::Observes, Successor::Plans]);
    prop_oneof![
        4 => view().prop_map(|view| Event::View(Box::new(view))),
        1 => installed().prop_map(Event::Installed),
        1 => prop::collection::vec(full(), 0..4).prop_map(Event::Full),
        1 => (time(), prop::option::of(changes())).prop_map(|(at, found)| Event::Reread(at, found)),
        2 => facts().prop_map(|facts| Event::Facts(Box::new(facts))),
        1 => prop::collection::vec(known(), 0..4).prop_map(Event::Services),
        1 => (time(), any::<Option<bool>>()).prop_map(|(at, differs)| Event::Rechecked(at, differs)),
        1 => successor.prop_map(Event::Successor),
        2 => hooks().prop_map(Event::Hooks),
        1 => time().prop_map(Event::HooksRepaired),
        6 => sample().prop_map(|sample| Event::Sample(Box::new(sample))),
        1 => Just(Event::SampleFailed("no map".to_owned())),
        2 => Just(Event::Tick),
        2 => Just(Event::Check),
        1 => any::<i64>().prop_map(|at| Event::ClockSet(Wall(at))),
        2 => topologies().prop_map(|facts| Event::Topology(Box::new(facts))),
        3 => parts().prop_map(Event::Sentinel),
        8 => trace().prop_map(|trace| Event::Trace(Box::new(trace))),
    ]
}
