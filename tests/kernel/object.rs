//! The checked-in object: its maps are those that `agent-common` says, and its programs stay within
//! a budget, so that a step up is seen when it is made.

use std::mem::size_of;

use agent_common::abi::{self, map, program};
use agent_common::dropped::{DropKey, SkbLayout};
use agent_common::evidence::{
    Anomaly, Budget, Delays, FAULTS, PROOF_SLOTS, Pending, PendingKey, ServiceCounts, Touched,
    UdpPorts,
};
use agent_common::gate::{Marks, Rate};
use agent_common::probe::{HostProbe, Probe, ProbeKey};
use agent_common::service::{
    Address, EndpointEntry, EndpointKey, FAMILIES, FrontendKey, FrontendValue,
};
use agent_common::steer::{PORT_WORDS, RULES, SOCKETS, SteerRule};
use aya::maps::{Map, MapData, MapInfo};
use node_tests::observer::Observer;
use pathproof::datapath::load::{ATTACHED, OBJECT, SENTINEL};

/// Bytes of the object, which the agent's binary holds.
/// The observer's four programs are most of it; the sentinel's five were 45 KiB, datagrams took 105,
/// reasons for drops 8, the times at which endpoints are met 6, probes that must not leave the node 13,
/// endpoints that left and are dialled themselves 4.
const MOST_OBJECT_BYTES: usize = 412 * 1024;
/// Instructions that the verifier looks at, of the 1,000,000 that it may: what is left is for older
/// kernels, which prune less.
const MOST_VERIFIED: u32 = 80_000;
/// Bytes of a program after the verifier's rewriting, of 8 each; 11 KiB of them are for datagrams, 4 for
/// the sampling gate, 4 for its marks of connections, and 8 for probes that must not leave the node.
const MOST_TRANSLATED: u32 = 68 * 1024;

fn size<T>() -> u32 {
    size_of::<T>() as u32
}

/// Name, size of key and value, entries.
fn expected() -> [(&'static str, u32, u32, u32); 17] {
    let word = size::<u32>();
    [
        (
            map::FRONTENDS,
            size::<FrontendKey>(),
            size::<FrontendValue>(),
            abi::MAX_FRONTENDS,
        ),
        (
            map::ENDPOINTS,
            size::<EndpointKey>(),
            size::<EndpointEntry>(),
            abi::MAX_ENDPOINTS,
        ),
        // A trie's key begins with its length.
        (
            map::SOURCES,
            word + size::<Address>(),
            word,
            abi::MAX_SOURCES,
        ),
        (map::DEVICES, word, word, abi::MAX_DEVICES),
        (
            map::PENDING,
            size::<PendingKey>(),
            size::<Pending>(),
            abi::MAX_PENDING,
        ),
        (
            map::COUNTS,
            word,
            size::<ServiceCounts>(),
            abi::MAX_SERVICES,
        ),
        (map::TOUCHED, word, size::<Touched>(), 1),
        (map::PROOFS, word, size::<u64>(), PROOF_SLOTS),
        (map::DELAYS, word, size::<Delays>(), FAMILIES as u32),
        (map::BUDGETS, word, size::<Budget>(), abi::MAX_BUDGETS),
        (map::FAULTS, word, size::<u64>(), FAULTS as u32),
        (map::LIMITER, word, size::<Budget>(), 1),
        (map::ANOMALIES, 0, 0, abi::ANOMALY_BYTES),
        (
            map::UDP_PENDING,
            size::<PendingKey>(),
            size::<Pending>(),
            abi::MAX_UDP_PENDING,
        ),
        (map::UDP_PORTS, word, size::<UdpPorts>(), 1),
        (map::UDP_RATES, word, size::<Budget>(), abi::UDP_RATES),
        (map::MARKS, word, size::<Marks>(), 1),
    ]
}

/// The sentinel's, those of the port and those of drops, which end with the agent.
fn unpinned() -> [(&'static str, u32, u32, u32); 10] {
    let word = size::<u32>();
    [
        (
            map::PROBES,
            size::<ProbeKey>(),
            size::<Probe>(),
            abi::MAX_PROBES,
        ),
        (
            map::HOST_PROBES,
            size::<u64>(),
            size::<HostProbe>(),
            abi::MAX_HOST_PROBES,
        ),
        (map::PROBE_EVENTS, 0, 0, abi::PROBE_EVENT_BYTES),
        (map::RATES, word, size::<Rate>(), abi::MAX_SERVICES),
        (map::STEER_RULES, word, size::<SteerRule>(), RULES),
        (map::STEER_SOCKETS, word, word, SOCKETS),
        (map::STEER_PORTS, word, size::<u64>(), PORT_WORDS),
        (
            map::STEER_OWNERS,
            size::<Address>(),
            word,
            abi::MAX_STEER_OWNERS,
        ),
        (map::DROPS, size::<DropKey>(), size::<u64>(), abi::MAX_DROPS),
        (map::SKB_LAYOUT, word, size::<SkbLayout>(), 1),
    ]
}

fn info(map: &Map) -> MapInfo {
    let data: &MapData = match map {
        Map::Array(data)
        | Map::HashMap(data)
        | Map::LpmTrie(data)
        | Map::PerCpuArray(data)
        | Map::RingBuf(data)
        | Map::SockMap(data) => data,
        other => panic!("a map of another type: {other:?}"),
    };
    data.info().expect("the map's information")
}

#[test]
fn maps_are_those_of_the_layout() {
    let Some(observer) = Observer::load(&[]).expect("load the observer") else {
        return;
    };
    let expected = expected();
    assert_eq!(
        expected.map(|(name, ..)| name),
        map::PINNED,
        "every pinned map is looked at"
    );
    for (name, key, value, entries) in expected {
        let map = observer.ebpf().map(name).expect(name);
        let info = info(map);
        let found = (info.key_size(), info.value_size(), info.max_entries());
        assert_eq!(found, (key, value, entries), "{name}");
        assert_eq!(info.name_as_str(), Some(name));
    }
    for (name, key, value, entries) in unpinned() {
        let info = info(observer.ebpf().map(name).expect(name));
        let found = (info.key_size(), info.value_size(), info.max_entries());
        assert_eq!(found, (key, value, entries), "{name}");
        assert!(!map::PINNED.contains(&name), "{name}");
    }
    // A report has room in the ring buffer many times over: the reader looks four times a second.
    assert!(abi::ANOMALY_BYTES > abi::CPU_REPORTS * 4 * size::<Anomaly>());
}

#[test]
fn object_and_programs_keep_to_their_budget() {
    assert!(OBJECT.len() <= MOST_OBJECT_BYTES, "{} bytes", OBJECT.len());
    let Some(mut observer) = Observer::load(&[]).expect("load the observer") else {
        return;
    };
    observer.load_sentinel().expect("load the sentinel");
    for name in ATTACHED.into_iter().chain(SENTINEL) {
        let info = observer
            .program(name)
            .expect(name)
            .info()
            .expect("its information");
        let verified = info.verified_instruction_count().expect("since Linux 5.16");
        let translated = info.size_translated().expect("shown to root");
        println!("{name}: {verified} instructions verified, {translated} bytes");
        assert!(
            verified <= MOST_VERIFIED,
            "{name}: {verified} instructions verified"
        );
        assert!(translated <= MOST_TRANSLATED, "{name}: {translated} bytes");
        assert_eq!(info.gpl_compatible(), Some(true));
    }
    let empty = observer.program(program::EMPTY).expect("the empty program");
    let verified = empty
        .info()
        .expect("its information")
        .verified_instruction_count();
    assert_eq!(verified, Some(2), "nothing but a verdict and an exit");
}
