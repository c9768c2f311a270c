//! All maps on one page. Layouts are in `pathproof_wire`, names and capacities in `pathproof_wire::abi`.

use aya_ebpf::bindings::BPF_F_NO_PREALLOC;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LpmTrie, PerCpuArray, RingBuf, SockMap};
use pathproof_wire::abi;
use pathproof_wire::dropped::{DropKey, SkbLayout};
use pathproof_wire::evidence::{
    Budget, FAULTS as FAULT_COUNT, PROOF_SLOTS, Pending, PendingKey, ServiceCounts, Touched,
    UdpPorts,
};
use pathproof_wire::gate::{Marks, Rate};
use pathproof_wire::packet::Segment;
use pathproof_wire::probe::{HostProbe, Probe, ProbeKey};
use pathproof_wire::service::{Address, EndpointEntry, EndpointKey, FrontendKey, FrontendValue};
use pathproof_wire::steer::{PORT_WORDS, RULES, SOCKETS, SteerRule};

/// Frontend to its expectations. Writer: agent. Reader: programs, for every SYN.
#[map]
pub static FRONTENDS: HashMap<FrontendKey, FrontendValue> =
    HashMap::with_max_entries(abi::MAX_FRONTENDS, BPF_F_NO_PREALLOC);

/// Service id and address to an endpoint. Writer: agent; programs, for the time of a connection to it
/// (`met_ns`). Reader: programs, for SYNs that leave and answers that enter; agent.
#[map]
pub static ENDPOINTS: HashMap<EndpointKey, EndpointEntry> =
    HashMap::with_max_entries(abi::MAX_ENDPOINTS, BPF_F_NO_PREALLOC);

/// Prefix of a source to its class. Writer: agent. Reader: programs, once per connection.
#[map]
pub static SOURCES: LpmTrie<Address, u32> =
    LpmTrie::with_max_entries(abi::MAX_SOURCES, BPF_F_NO_PREALLOC);

/// Interface index to `device_flag` bits. Writer: agent. Reader: programs, for SYNs that leave and possible
/// packets of probes.
#[map]
pub static DEVICES: HashMap<u32, u32> =
    HashMap::with_max_entries(abi::MAX_DEVICES, BPF_F_NO_PREALLOC);

/// Pending connections. Writer: programs insert entries and move the state; the agent deletes.
#[map]
pub static PENDING: HashMap<PendingKey, Pending> = HashMap::with_max_entries(abi::MAX_PENDING, 0);

/// Service id to its counts. Writer: programs; the agent clears one before its id is reused.
#[map]
pub static COUNTS: Array<ServiceCounts> = Array::with_max_entries(abi::MAX_SERVICES, 0);

/// Chunks of COUNTS that changed. Writer: programs. Reader: agent, each tick.
#[map]
pub static TOUCHED: Array<Touched> = Array::with_max_entries(1, 0);

/// `proof_slot` to the time of the last proof. Writer: programs. Reader: agent, each tick.
#[map]
pub static PROOFS: Array<u64> = Array::with_max_entries(PROOF_SLOTS, 0);

/// Hash of a source to its budget of tracked connections. Writer and reader: programs.
#[map]
pub static BUDGETS: Array<Budget> = Array::with_max_entries(abi::MAX_BUDGETS, 0);

/// `Fault` to a count. Writer: programs. Reader: agent.
#[map]
pub static FAULTS: PerCpuArray<u64> = PerCpuArray::with_max_entries(FAULT_COUNT as u32, 0);

/// One entry: the ring buffer's budget on this CPU. Writer and reader: programs.
#[map]
pub static LIMITER: PerCpuArray<Budget> = PerCpuArray::with_max_entries(1, 0);

/// `Anomaly` records. Writer: programs, limited. Reader: agent, each tick.
#[map]
pub static ANOMALIES: RingBuf = RingBuf::with_byte_size(abi::ANOMALY_BYTES, 0);

/// Pending datagrams, and the flows that they started. Writer: programs insert entries and move the state;
/// the agent deletes.
#[map]
pub static UDP_PENDING: HashMap<PendingKey, Pending> =
    HashMap::with_max_entries(abi::MAX_UDP_PENDING, 0);

/// Ports of UDP Services. Writer: agent. Reader: programs, for every datagram.
#[map]
pub static UDP_PORTS: Array<UdpPorts> = Array::with_max_entries(1, 0);

/// Budgets of followed datagrams: the total, then those of Services by the lower bits of their ids. Writer
/// and reader: programs.
#[map]
pub static UDP_RATES: Array<Budget> = Array::with_max_entries(abi::UDP_RATES, 0);

/// Service id to the rate of its new connections. Writer and reader: programs. Not pinned.
#[map]
pub static RATES: Array<Rate> = Array::with_max_entries(abi::MAX_SERVICES, 0);

/// The gate's marks. Writer and reader: programs.
#[map]
pub static MARKS: Array<Marks> = Array::with_max_entries(1, 0);

/// One entry: the parsed packet. Writer and reader: the program that runs on this CPU.
#[map]
pub static SCRATCH: PerCpuArray<Segment> = PerCpuArray::with_max_entries(1, 0);

/// A probe's token to its stamps. Writer: the agent inserts and deletes; the sentinel's programs add
/// stamps, and insert the probes of the agent's sockets. Reader: agent; the observer's programs at uplinks.
/// Not pinned.
#[map]
pub static PROBES: HashMap<ProbeKey, Probe> = HashMap::with_max_entries(abi::MAX_PROBES, 0);

/// Cookie of an agent's socket to the token of its SYN. Writer: the agent inserts and deletes;
/// `pathproof_translated` fills in the token. Reader: agent; the observer's programs at uplinks. Not
/// pinned.
#[map]
pub static HOST_PROBES: HashMap<u64, HostProbe> =
    HashMap::with_max_entries(abi::MAX_HOST_PROBES, 0);

/// `ProbeEvent` records. Writer: the sentinel's programs, once for each stage of a registered probe that
/// the agent waits for. Reader: agent, at once. Not pinned.
#[map]
pub static PROBE_EVENTS: RingBuf = RingBuf::with_byte_size(abi::PROBE_EVENT_BYTES, 0);

/// Steering rules. Writer: agent, before it attaches the program, and when it is ready. Reader:
/// `pathproof_steer`. Not pinned.
#[map]
pub static STEER_RULES: Array<SteerRule> = Array::with_max_entries(RULES, 0);

/// The agent's listeners, by rule. Writer: agent. Reader: `pathproof_steer`. Not pinned.
#[map]
pub static STEER_SOCKETS: SockMap = SockMap::with_max_entries(SOCKETS, 0);

/// Health check node ports of Services, one bit each. Writer: agent. Reader: `pathproof_steer`. Not pinned.
#[map]
pub static STEER_PORTS: Array<u64> = Array::with_max_entries(PORT_WORDS, 0);

/// Time until which the agent can be expected to answer. Writer: the agent's answering thread. Reader:
/// `pathproof_steer`. Not pinned.
#[map]
pub static STEER_UNTIL: Array<u64> = Array::with_max_entries(1, 0);

/// Addresses where another process listens. Writer: agent, once a second. Reader: `pathproof_steer`, for
/// the node's connections, and for all connections while the agent is frozen or not ready. Not pinned.
#[map]
pub static STEER_OWNERS: HashMap<Address, u32> =
    HashMap::with_max_entries(abi::MAX_STEER_OWNERS, 0);

/// Service id and reason to a number of dropped packets. Writer: `pathproof_dropped`; the agent deletes.
/// Not pinned.
#[map]
pub static DROPS: HashMap<DropKey, u64> = HashMap::with_max_entries(abi::MAX_DROPS, 0);

/// One entry: offsets of the fields of `struct sk_buff`. Writer: agent, before it attaches the program.
/// Reader: `pathproof_dropped`. Not pinned.
#[map]
pub static SKB_LAYOUT: Array<SkbLayout> = Array::with_max_entries(1, 0);
