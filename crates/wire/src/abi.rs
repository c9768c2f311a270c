//! Map names, capacities and the version of this layout, on one page for the programs, the loader and the
//! tests.

/// Version of all layouts in this crate. The directory of pinned maps is named after it, so an agent of
/// another version never reads maps with an unknown layout.
pub const ABI_VERSION: u32 = 9;

/// Names of the maps in the object file.
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
    /// Hash of a source address to its [`Budget`](crate::evidence::Budget) of tracked connections.
    pub const BUDGETS: &str = "BUDGETS";
    /// Per-CPU counters, by [`Fault`](crate::evidence::Fault).
    pub const FAULTS: &str = "FAULTS";
    /// Per-CPU limiter of the ring buffer.
    pub const LIMITER: &str = "LIMITER";
    /// Ring buffer of [`Anomaly`](crate::evidence::Anomaly).
    pub const ANOMALIES: &str = "ANOMALIES";
    /// [`PendingKey`](crate::evidence::PendingKey) to [`Pending`](crate::evidence::Pending), for datagrams
    /// and for the flows that they started.
    pub const UDP_PENDING: &str = "UDP_PENDING";
    /// One value: [`UdpPorts`](crate::evidence::UdpPorts).
    pub const UDP_PORTS: &str = "UDP_PORTS";
    /// [`Budget`](crate::evidence::Budget)s of followed datagrams: the total at index 0, then those of
    /// Services.
    pub const UDP_RATES: &str = "UDP_RATES";
    /// Service id to the [`Rate`](crate::gate::Rate) of its new connections. Not pinned, since it is soon
    /// measured again.
    pub const RATES: &str = "RATES";
    /// One value: [`Marks`](crate::gate::Marks).
    pub const MARKS: &str = "MARKS";
    /// [`ProbeKey`](crate::probe::ProbeKey) to [`Probe`](crate::probe::Probe). Not pinned, since probes do
    /// not outlive their agent.
    pub const PROBES: &str = "PROBES";
    /// Socket cookie to [`HostProbe`](crate::probe::HostProbe). Not pinned.
    pub const HOST_PROBES: &str = "HOST_PROBES";
    /// Ring buffer of [`ProbeEvent`](crate::probe::ProbeEvent). Not pinned.
    pub const PROBE_EVENTS: &str = "PROBE_EVENTS";
    /// Index of a rule to its [`SteerRule`](crate::steer::SteerRule). Neither this map nor the next two are
    /// pinned, since steering ends with the agent.
    pub const STEER_RULES: &str = "STEER_RULES";
    /// Index of a rule to the listener that gets its connections.
    pub const STEER_SOCKETS: &str = "STEER_SOCKETS";
    /// Addresses where another process listens at the healthz port.
    pub const STEER_OWNERS: &str = "STEER_OWNERS";
    /// Bits of the Services' health check node ports, by [`port_bit`](crate::steer::port_bit). Not pinned.
    pub const STEER_PORTS: &str = "STEER_PORTS";
    /// One value: the time until which the agent can be expected to answer, in nanoseconds of
    /// `CLOCK_MONOTONIC`. Not pinned.
    pub const STEER_UNTIL: &str = "STEER_UNTIL";
    /// [`DropKey`](crate::dropped::DropKey) to a number of packets. Neither this map nor the next is
    /// pinned, since each agent counts separately.
    pub const DROPS: &str = "DROPS";
    /// One value: [`SkbLayout`](crate::dropped::SkbLayout).
    pub const SKB_LAYOUT: &str = "SKB_LAYOUT";
    /// Every map whose content outlives an agent, in the order of the list above.
    pub const PINNED: [&str; 16] = [
        FRONTENDS,
        ENDPOINTS,
        SOURCES,
        DEVICES,
        PENDING,
        COUNTS,
        TOUCHED,
        PROOFS,
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

/// Names of the programs. The two `_l3` programs are for devices without a link-layer header (tun,
/// WireGuard, IPIP), whose packets begin with the IP header.
pub mod program {
    /// Packets that arrive from a device with Ethernet headers.
    pub const INGRESS: &str = "pathproof_ingress";
    /// Packets that leave by a device with Ethernet headers.
    pub const EGRESS: &str = "pathproof_egress";
    /// Packets that arrive from a device without link-layer headers.
    pub const INGRESS_L3: &str = "pathproof_ingress_l3";
    /// Packets that leave by a device without link-layer headers.
    pub const EGRESS_L3: &str = "pathproof_egress_l3";
    /// Stamps probes that enter the node: ingress of the client pair's near end.
    pub const ARRIVED: &str = "pathproof_arrived";
    /// Stamps probes that leave for the echo: egress of the server pair's near end.
    pub const TRANSLATED: &str = "pathproof_translated";
    /// Stamps answers that enter the node, and removes those of control probes: ingress of the server
    /// pair's near end.
    pub const RETURNED: &str = "pathproof_returned";
    /// Answers registered probes and drops other packets: ingress of the server pair's far end.
    pub const ECHO: &str = "pathproof_echo";
    /// Reports answers that reach the client, and drops all packets: ingress of the client pair's far end.
    pub const COLLECT: &str = "pathproof_collect";
    /// Steers new connections to the agent's listeners, in the node's network namespace.
    pub const STEER: &str = "pathproof_steer";
    /// Counts dropped packets of followed connections by the kernel's reason: the tracepoint
    /// `skb:kfree_skb`, attached only while connections are being lost.
    pub const DROPPED: &str = "pathproof_dropped";
    /// Returns at once: the reference for benchmarks. The agent never attaches it.
    pub const EMPTY: &str = "pathproof_empty";
    /// Reads one byte of each packet's TCP flags, the minimum cost of any program that searches for SYNs.
    /// For benchmarks only; the agent never attaches it.
    pub const GLANCE: &str = "pathproof_glance";
}

/// Frontends: 30,000 Services with two each, or 10,000 with six. Not preallocated.
pub const MAX_FRONTENDS: u32 = 65_536;
/// Endpoints, each once per Service port. Not preallocated.
pub const MAX_ENDPOINTS: u32 = 262_144;
/// Prefixes that give the class of a source: podCIDRs, this node's addresses, its pods.
pub const MAX_SOURCES: u32 = 4_096;
pub const MAX_DEVICES: u32 = 4_096;
/// Connections followed at a time: 15,000 answered ones (10,000 a second, each kept for 1.5 s), and as many
/// unanswered ones. Preallocated.
pub const MAX_PENDING: u32 = 32_768;
/// Entries of followed datagrams, two for each: one by payload and one by flow. They suffice for
/// [`UDP_PER_WINDOW`] datagrams in every window if each is kept as long as an unanswered one. Preallocated.
pub const MAX_UDP_PENDING: u32 = 8_192;
/// Number of budgets of datagrams: the total, and 64 for Services, selected by the lower bits of the
/// Service id.
pub const UDP_RATES: u32 = 1 + 64;
/// Service ids, one for each Service port and family.
pub const MAX_SERVICES: u32 = 32_768;
/// Budgets of sources, a power of two. A hash of the address selects the budget, so two sources may share
/// one. This affects neither of them if both use less than half.
pub const MAX_BUDGETS: u32 = 8_192;
/// Name of the global with the seed of the hash of sources. It is random and set when the programs are
/// loaded, so nobody outside can know which sources share a budget.
pub const SEED: &str = "SEED";
/// Name of the global with the number of kernel ticks in a window, as a power of two: see
/// [`window_shift`](crate::gate::window_shift).
pub const WINDOW_SHIFT: &str = "WINDOW_SHIFT";
/// Name of the global that makes the programs follow every connection, for tests that fill maps.
pub const FOLLOW_ALL: &str = "FOLLOW_ALL";
/// Size of the ring buffer in bytes.
pub const ANOMALY_BYTES: u32 = 128 * 1024;

/// Maximum number of pending probes: far more than are sent within their timeout.
pub const MAX_PROBES: u32 = 1_024;
/// Maximum number of the agent's sockets whose first SYN is a probe.
pub const MAX_HOST_PROBES: u32 = 256;
/// Size of the ring buffer of probe events in bytes.
pub const PROBE_EVENT_BYTES: u32 = 16 * 1024;

/// Maximum number of addresses where another process listens.
pub const MAX_STEER_OWNERS: u32 = 64;

/// Pairs of Service and reason for which dropped packets are counted. Preallocated: 40 KiB.
pub const MAX_DROPS: u32 = 512;

/// A connection is lost if it arrived and did not leave within this time.
pub const LOSS_WINDOW_NS: u64 = 1_000_000_000;
/// A SYN that is seen again at the same device before this time is the same packet; later it is a
/// retransmission. Linux waits 1 s before the first retransmission, and no stack in use less than 200 ms.
pub const RETRANSMIT_NS: u64 = 20_000_000;
/// Width of a source's budget window as a shift of nanoseconds: 134 ms.
pub const BUDGET_WINDOW_SHIFT: u32 = 27;
/// Connections per source that may be tracked in one budget window: about 1,900 a second.
pub const BUDGET_PER_WINDOW: u32 = 256;
/// Datagrams followed in one budget window ([`BUDGET_WINDOW_SHIFT`]) on all CPUs together: about 950 a
/// second. Further ones are only counted.
pub const UDP_PER_WINDOW: u32 = 128;
/// Part of [`UDP_PER_WINDOW`] that one Service may use, so that a flood to one Service leaves room for
/// others.
pub const UDP_PER_SERVICE: u32 = 64;
/// Minimum interval between two reported anomalies of one Service.
pub const SERVICE_REPORT_NS: u64 = 10_000_000;
/// A CPU reports at most [`CPU_REPORTS`] anomalies in this window, as a shift of nanoseconds.
pub const CPU_REPORT_WINDOW_SHIFT: u32 = 27;
/// See [`CPU_REPORT_WINDOW_SHIFT`].
pub const CPU_REPORTS: u32 = 256;
