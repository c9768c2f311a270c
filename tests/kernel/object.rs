//! The checked-in object: its maps have the layout of `pathproof-wire`, and its size and programs stay within
//! budgets, so that growth is noticed in the change that causes it.

use std::mem::size_of;

use aya::maps::{Map, MapData, MapInfo};
use node_tests::observer::Observer;
use pathproof::datapath::load::{ATTACHED, OBJECT, SENTINEL, load_sentinel};
use pathproof_wire::abi::{self, map, program};
use pathproof_wire::dropped::{DropKey, SkbLayout};
use pathproof_wire::evidence::{
    Anomaly, Budget, FAULTS, PROOF_SLOTS, Pending, PendingKey, ServiceCounts, Touched, UdpPorts,
};
use pathproof_wire::gate::{Marks, Rate};
use pathproof_wire::probe::{HostProbe, Probe, ProbeKey};
use pathproof_wire::service::{Address, EndpointEntry, EndpointKey, FrontendKey, FrontendValue};
use pathproof_wire::steer::{PORT_WORDS, RULES, SOCKETS, SteerRule};

/// Maximum bytes of the object, which is part of the agent's binary. Most of it is the observer's four
/// programs. KiB by feature: the sentinel's five programs 45, datagrams 105, drop reasons 8, times of the
/// first connections to endpoints 6, keeping probes on the node 13, removed endpoints that are dialled
/// directly 4, data 4.
const MOST_OBJECT_BYTES: usize = 418 * 1024;
/// Maximum number of instructions that the verifier may process for a program. The kernel's limit is
/// 1,000,000. On older kernels the verifier processes more, because it prunes less.
const MOST_VERIFIED: u32 = 85_000;
/// Maximum size of a program as rewritten by the verifier, in bytes; an instruction has 8. KiB by feature:
/// datagrams 11, the sampling gate 4, its marks of connections 4, keeping probes on the node 8.
const MOST_TRANSLATED: u32 = 68 * 1024;

fn size<T>() -> u32 {
    size_of::<T>() as u32
}

/// A map's name, the sizes of its key and value, and its maximum number of entries.
type Layout = (&'static str, u32, u32, u32);

fn of<K, V>(name: &'static str, entries: u32) -> Layout {
    (name, size::<K>(), size::<V>(), entries)
}

fn pinned() -> [Layout; 16] {
    [
        of::<FrontendKey, FrontendValue>(map::FRONTENDS, abi::MAX_FRONTENDS),
        of::<EndpointKey, EndpointEntry>(map::ENDPOINTS, abi::MAX_ENDPOINTS),
        // A trie's key begins with the prefix length.
        of::<(u32, Address), u32>(map::SOURCES, abi::MAX_SOURCES),
        of::<u32, u32>(map::DEVICES, abi::MAX_DEVICES),
        of::<PendingKey, Pending>(map::PENDING, abi::MAX_PENDING),
        of::<u32, ServiceCounts>(map::COUNTS, abi::MAX_SERVICES),
        of::<u32, Touched>(map::TOUCHED, 1),
        of::<u32, u64>(map::PROOFS, PROOF_SLOTS),
        of::<u32, Budget>(map::BUDGETS, abi::MAX_BUDGETS),
        of::<u32, u64>(map::FAULTS, FAULTS as u32),
        of::<u32, Budget>(map::LIMITER, 1),
        of::<(), ()>(map::ANOMALIES, abi::ANOMALY_BYTES),
        of::<PendingKey, Pending>(map::UDP_PENDING, abi::MAX_UDP_PENDING),
        of::<u32, UdpPorts>(map::UDP_PORTS, 1),
        of::<u32, Budget>(map::UDP_RATES, abi::UDP_RATES),
        of::<u32, Marks>(map::MARKS, 1),
    ]
}

/// Maps of the sentinel, the sampling gate, port steering and drop reasons. They are not pinned, so they end
/// with the agent.
fn unpinned() -> [Layout; 11] {
    [
        of::<ProbeKey, Probe>(map::PROBES, abi::MAX_PROBES),
        of::<u64, HostProbe>(map::HOST_PROBES, abi::MAX_HOST_PROBES),
        of::<(), ()>(map::PROBE_EVENTS, abi::PROBE_EVENT_BYTES),
        of::<u32, Rate>(map::RATES, abi::MAX_SERVICES),
        of::<u32, SteerRule>(map::STEER_RULES, RULES),
        of::<u32, u32>(map::STEER_SOCKETS, SOCKETS),
        of::<u32, u64>(map::STEER_PORTS, PORT_WORDS),
        of::<u32, u64>(map::STEER_UNTIL, 1),
        of::<Address, u32>(map::STEER_OWNERS, abi::MAX_STEER_OWNERS),
        of::<DropKey, u64>(map::DROPS, abi::MAX_DROPS),
        of::<u32, SkbLayout>(map::SKB_LAYOUT, 1),
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
    let observer = Observer::load(&[]);
    let names = pinned().map(|(name, ..)| name);
    assert_eq!(names, map::PINNED, "every pinned map is checked");
    for (name, key, value, entries) in pinned().into_iter().chain(unpinned()) {
        let info = info(observer.ebpf.map(name).expect(name));
        let found = (info.key_size(), info.value_size(), info.max_entries());
        assert_eq!(found, (key, value, entries), "{name}");
        assert_eq!(info.name_as_str(), Some(name));
    }
    for (name, ..) in unpinned() {
        assert!(!map::PINNED.contains(&name), "{name}");
    }
    // The ring buffer has room for the reports of several windows, because its reader empties it only four
    // times a second.
    assert!(abi::ANOMALY_BYTES > abi::CPU_REPORTS * 4 * size::<Anomaly>());
}

#[test]
fn object_and_programs_keep_to_their_budget() {
    assert!(OBJECT.len() <= MOST_OBJECT_BYTES, "{} bytes", OBJECT.len());
    let mut observer = Observer::load(&[]);
    load_sentinel(&mut observer.ebpf).expect("load the sentinel");
    for name in ATTACHED.into_iter().chain(SENTINEL) {
        let info = observer.program(name).info().expect("its information");
        let verified = info.verified_instruction_count().expect("since Linux 5.16");
        let translated = info.size_translated().expect("shown to root");
        println!("{name}: {verified} instructions verified, {translated} bytes");
        assert!(verified <= MOST_VERIFIED, "{name}");
        assert!(translated <= MOST_TRANSLATED, "{name}");
        assert_eq!(info.gpl_compatible(), Some(true));
    }
    let empty = observer.program(program::EMPTY);
    let info = empty.info().expect("its information");
    let verified = info.verified_instruction_count();
    assert_eq!(verified, Some(2), "nothing but a verdict and an exit");
}
