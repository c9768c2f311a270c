//! Map names, capacities and the version of this layout: one page that the programs, the loader
//! and the tests agree on.

/// Version of every layout in this crate. Maps are pinned under a directory named by it, so an
/// agent of another version never reads maps whose layout it does not know.
pub const ABI_VERSION: u32 = 8;

/// Names of the maps as they stand in the object.
pub mod map {
    /// [`FrontendKey`](crate::service::FrontendKey) to [`FrontendValue`](crate::service::FrontendValue).
    pub const FRONTENDS: &str = "FRONTENDS";
    /// [`EndpointKey`](crate::service::EndpointKey) to [`EndpointEntry`](crate::service::EndpointEntry).
    pub const ENDPOINTS: &str = "ENDPOINTS";
    /// Longest prefix of a source address to [`SourceClass`](crate::service::SourceClass) as `u32`.
    pub const SOURCES: &str = "SOURCES";
    /// Interface index to device flags.
    pub const DEVICES: &str = "DEVICES";
    /// [`PendingKey`](crate::evidence::PendingKey) to [`Pending`](crate::evidence::Pending).
    pub const PENDING: &str = "PENDING";
    /// Service id to [`ServiceCounts`](crate::evidence::ServiceCounts).
    pub const COUNTS: &str = "COUNTS";
    /// One value: [`Touched`](crate::evidence::Touched).
    pub const TOUCHED: &str = "TOUCHED";
    /// Family and path to the monotonic time of the last proof.
    pub const PROOFS: &str = "PROOFS";
    /// Family to [`Delays`](crate::evidence::Delays).
    pub const DELAYS: &str = "DELAYS";
    /// Hash of a source address to its [`Budget`](crate::evidence::Budget) of tracked connections.
    pub const BUDGETS: &str = "BUDGETS";
    /// Per-CPU counters of what could not be done, by [`Fault`](crate::evidence::Fault).
    pub const FAULTS: &str = "FAULTS";
    /// Per-CPU limiter of the ring buffer.
    pub const LIMITER: &str = "LIMITER";
    /// Ring buffer of [`Anomaly`](crate::evidence::Anomaly).
    pub const ANOMALIES: &str = "ANOMALIES";
    /// [`PendingKey`](crate::evidence::PendingKey) to [`Pending`](crate::evidence::Pending), of
    /// datagrams and of the flows that they began.
    pub const UDP_PENDING: &str = "UDP_PENDING";
    /// One value: [`UdpPorts`](crate::evidence::UdpPorts).
    pub const UDP_PORTS: &str = "UDP_PORTS";
    /// [`Budget`](crate::evidence::Budget)s of followed datagrams: of all, then of Services.
    pub const UDP_RATES: &str = "UDP_RATES";
    /// Service id to the [`Rate`](crate::gate::Rate) of its new connections. Not pinned: it is known
    /// again after a moment.
    pub const RATES: &str = "RATES";
    /// One value: [`Marks`](crate::gate::Marks).
    pub const MARKS: &str = "MARKS";
    /// [`ProbeKey`](crate::probe::ProbeKey) to [`Probe`](crate::probe::Probe). Not pinned: probes do
    /// not outlive the agent that sent them.
    pub const PROBES: &str = "PROBES";
    /// Socket cookie to [`HostProbe`](crate::probe::HostProbe). Not pinned.
    pub const HOST_PROBES: &str = "HOST_PROBES";
    /// Ring buffer of [`ProbeEvent`](crate::probe::ProbeEvent). Not pinned.
    pub const PROBE_EVENTS: &str = "PROBE_EVENTS";
    /// Index of a rule to its [`SteerRule`](crate::steer::SteerRule). Not pinned: steering ends with
    /// the agent, and so do the next two maps.
    pub const STEER_RULES: &str = "STEER_RULES";
    /// Index of a rule to the listener that its connections are given to.
    pub const STEER_SOCKETS: &str = "STEER_SOCKETS";
    /// Address that another process listens at, at the healthz port.
    pub const STEER_OWNERS: &str = "STEER_OWNERS";
    /// Bits of the health check node ports of Services, by [`port_bit`](crate::steer::port_bit). Not
    /// pinned either.
    pub const STEER_PORTS: &str = "STEER_PORTS";
    /// [`DropKey`](crate::dropped::DropKey) to a number of packets. Not pinned: an agent counts for
    /// itself, and the next map is its own too.
    pub const DROPS: &str = "DROPS";
    /// One value: [`SkbLayout`](crate::dropped::SkbLayout).
    pub const SKB_LAYOUT: &str = "SKB_LAYOUT";
    /// Every map whose content outlives an agent, in the order of the list above.
    pub const PINNED: [&str; 17] = [
        FRONTENDS,
        ENDPOINTS,
        SOURCES,
        DEVICES,
        PENDING,
        COUNTS,
        TOUCHED,
        PROOFS,
        DELAYS,
        BUDGETS,
        FAULTS,
        LIMITER,
        ANOMALIES,
        UDP_PENDING,
        UDP_PORTS,
        UDP_RATES,
        MARKS,
    ];
}

/// Names of the programs. The two `_l3` programs serve devices without a link-layer header (tun,
/// WireGuard, IPIP), where the packet begins with its IP header.
pub mod program {
    /// Packets that arrive from a device with Ethernet headers.
    pub const INGRESS: &str = "pathproof_ingress";
    /// Packets that leave by a device with Ethernet headers.
    pub const EGRESS: &str = "pathproof_egress";
    /// Packets that arrive from a device without link-layer headers.
    pub const INGRESS_L3: &str = "pathproof_ingress_l3";
    /// Packets that leave by a device without link-layer headers.
    pub const EGRESS_L3: &str = "pathproof_egress_l3";
    /// Stamps probes that come into the node: ingress of the client pair's near end.
    pub const ARRIVED: &str = "pathproof_arrived";
    /// Stamps probes that leave for the echo: egress of the server pair's near end.
    pub const TRANSLATED: &str = "pathproof_translated";
    /// Stamps answers that come into the node, and takes those of control probes away: ingress of
    /// the server pair's near end.
    pub const RETURNED: &str = "pathproof_returned";
    /// Answers registered probes and drops everything: ingress of the server pair's far end.
    pub const ECHO: &str = "pathproof_echo";
    /// Takes answers in and drops everything: ingress of the client pair's far end.
    pub const COLLECT: &str = "pathproof_collect";
    /// Gives new connections to the agent's own listeners: the node's network namespace.
    pub const STEER: &str = "pathproof_steer";
    /// Counts dropped packets of connections that are followed, by the kernel's reason: the
    /// tracepoint `skb:kfree_skb`, while connections are lost.
    pub const DROPPED: &str = "pathproof_dropped";
    /// Returns at once. The benchmarks' peer; the agent never attaches it.
    pub const EMPTY: &str = "pathproof_empty";
    /// Reads one byte of each packet's TCP flags. The least that any program costs which looks for
    /// SYNs; for benchmarks, and never attached by the agent.
    pub const GLANCE: &str = "pathproof_glance";
}

/// Frontends: 30,000 Services of two, or 10,000 of six. Not preallocated.
pub const MAX_FRONTENDS: u32 = 65_536;
/// Endpoints, once for every Service port that has them. Not preallocated.
pub const MAX_ENDPOINTS: u32 = 262_144;
/// Prefixes that tell where a source is: podCIDRs, this node's addresses, its pods.
pub const MAX_SOURCES: u32 = 4_096;
/// Interfaces.
pub const MAX_DEVICES: u32 = 4_096;
/// Connections followed at a time: 10,000 a second for the 1.5 s that an answered one is kept,
/// and as many again for those that wait. Preallocated.
pub const MAX_PENDING: u32 = 32_768;
/// Datagrams followed at a time, each with its flow: [`UDP_PER_WINDOW`] for as long as one that is
/// not answered is kept. Preallocated.
pub const MAX_UDP_PENDING: u32 = 8_192;
/// Budgets of datagrams: the first is that of all, the others' is found by the Service's id.
pub const UDP_RATES: u32 = 1 + 64;
/// Service ids: one for each Service port and family.
pub const MAX_SERVICES: u32 = 32_768;
/// Budgets of sources, a power of two. A source's is found by a hash: two that share one share what
/// it allows, which no source that keeps below half of it notices.
pub const MAX_BUDGETS: u32 = 8_192;
/// Name of the global that the hash of sources begins with, set at random when the programs are
/// loaded: nobody outside can tell which sources share a budget with which.
pub const SEED: &str = "SEED";
/// Name of the global that says how many of the kernel's ticks are a window, as a power of two: see
/// [`window_shift`](crate::gate::window_shift).
pub const WINDOW_SHIFT: &str = "WINDOW_SHIFT";
/// Name of the global that lets every connection be followed, at any rate: tests fill maps.
pub const FOLLOW_ALL: &str = "FOLLOW_ALL";
/// Bytes of the ring buffer.
pub const ANOMALY_BYTES: u32 = 128 * 1024;

/// Probes under way: far more than are sent within their timeout.
pub const MAX_PROBES: u32 = 1_024;
/// Sockets of the agent's that are known as probes at a time.
pub const MAX_HOST_PROBES: u32 = 256;
/// Bytes of the ring buffer of probe events.
pub const PROBE_EVENT_BYTES: u32 = 16 * 1024;

/// Addresses that another process is known to listen at.
pub const MAX_STEER_OWNERS: u32 = 64;

/// Services and reasons for which dropped packets are counted at a time. Preallocated: 40 KiB.
pub const MAX_DROPS: u32 = 512;

/// A connection that was seen arriving and not leaving for this long is lost.
pub const LOSS_WINDOW_NS: u64 = 1_000_000_000;
/// The same SYN at the same device again after this long is a retransmission; Linux waits 1 s at
/// first, and no stack in use less than 200 ms.
pub const RETRANSMIT_NS: u64 = 20_000_000;
/// Width of a source's budget window as a shift of nanoseconds: 134 ms.
pub const BUDGET_WINDOW_SHIFT: u32 = 27;
/// Connections a source may have tracked in one budget window: about 1,900 a second.
pub const BUDGET_PER_WINDOW: u32 = 256;
/// Datagrams followed in one budget window ([`BUDGET_WINDOW_SHIFT`]) on all CPUs together: about
/// 950 a second. Those beyond are passed and counted.
pub const UDP_PER_WINDOW: u32 = 128;
/// Maximum of those for one Service: a flood of one leaves room for the others.
pub const UDP_PER_SERVICE: u32 = 64;
/// The same Service reports an anomaly at most this often.
pub const SERVICE_REPORT_NS: u64 = 10_000_000;
/// A CPU reports at most [`CPU_REPORTS`] anomalies in this window, as a shift of nanoseconds.
pub const CPU_REPORT_WINDOW_SHIFT: u32 = 27;
/// See [`CPU_REPORT_WINDOW_SHIFT`].
pub const CPU_REPORTS: u32 = 256;
