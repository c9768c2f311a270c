//! Description of a simulated node: Services, clients with their rates, and acts at given times. It is
//! plain data; a test writes it or draws it from a seed.

use std::net::IpAddr;
use std::time::Duration;

use pathproof_facts::node_context::ECHO_SERVICE;
use pathproof_wire::service::{FAMILIES, Family, FrontendKind};
use pathproof_witness::peers::ECHO_PORT;

use super::datapath::PORT;

/// Minimum and maximum, both inclusive.
pub type Span = (Duration, Duration);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stack {
    #[default]
    V4,
    V6,
    /// Both, IPv4 first.
    Dual,
}

impl Stack {
    pub fn has(self, family: Family) -> bool {
        match self {
            Stack::V4 => family == Family::V4,
            Stack::V6 => family == Family::V6,
            Stack::Dual => true,
        }
    }

    pub fn families(self) -> impl Iterator<Item = Family> {
        Family::ALL
            .into_iter()
            .filter(move |family| self.has(*family))
    }

    pub(super) fn of(self, both: [IpAddr; FAMILIES]) -> Vec<IpAddr> {
        self.families()
            .map(|family| both[family as usize])
            .collect()
    }
}

#[derive(Clone, Debug)]
pub struct World {
    /// Services in addition to the sentinel's.
    pub services: Vec<ServiceSpec>,
    /// Connections of clients to them.
    pub streams: Vec<Stream>,
    /// Acts with their times after the agent's start.
    pub acts: Vec<(Duration, Act)>,
    /// Delay of the agent's view behind the API.
    pub view_delay: Span,
    /// Delay of the rules behind the API.
    pub proxy_delay: Span,
    /// Interval of the sentinel's rotation. The default is that of a large cluster.
    pub rotation: Option<Duration>,
    /// Whether an address of the pods' range is reserved for the sentinel.
    pub pod_lane: bool,
    /// Whether packets of pods cross a bridge and its port, so that each is seen twice.
    pub bridged: bool,
    /// Whether pods are bridged to the uplink, so that packets to them leave by it.
    pub flat: bool,
    /// Whether every SYN that enters is copied, untranslated, to a separate device.
    pub mirrored: bool,
    /// Whether there are no node ports, so that the sentinel has one lane less.
    pub no_node_ports: bool,
    /// Whether the last Service that claims a frontend gets it, rather than the first.
    pub claims_win: bool,
    pub stack: Stack,
    /// Whether a tunnel's device leads to pods of other nodes, rather than the uplink.
    pub overlay: bool,
    /// Whether kube-proxy runs in iptables mode rather than nftables mode.
    pub iptables: bool,
}

impl Default for World {
    /// An idle node with a fast proxy.
    fn default() -> Self {
        let ms = Duration::from_millis;
        Self {
            services: Vec::new(),
            streams: Vec::new(),
            acts: Vec::new(),
            view_delay: (ms(5), ms(50)),
            proxy_delay: (ms(50), ms(500)),
            rotation: Some(Duration::from_secs(60)),
            pod_lane: false,
            bridged: false,
            flat: false,
            mirrored: false,
            no_node_ports: false,
            claims_win: false,
            stack: Stack::V4,
            overlay: false,
            iptables: false,
        }
    }
}

impl World {
    /// A node with three Services in two namespaces and both kinds of endpoints. Two pods and a client
    /// outside dial each of them twice a second.
    pub fn busy() -> Self {
        let every = Duration::from_millis(500);
        let mut streams = Vec::new();
        for service in 0..3 {
            for pod in 0..2 {
                streams.push(Stream::of_pod(pod, service, every));
            }
            streams.push(Stream::of_outsider(0, service, every));
        }
        Self {
            services: vec![
                ServiceSpec::new("shop", 2, 2),
                ServiceSpec::new("shop", 1, 3),
                ServiceSpec::new("bank", 2, 1),
            ],
            streams,
            ..Self::default()
        }
    }

    /// Adds an act at this time.
    #[must_use]
    pub fn with(mut self, at: Duration, act: Act) -> Self {
        self.acts.push((at, act));
        self
    }
}

/// Namespace of the tenant, who controls its objects and pods.
pub const TENANT: &str = "tenant";
/// First number of the tenant's pods on a node.
pub const TENANT_PODS: u8 = 10;

/// A Service with TCP ports and node ports.
#[derive(Clone, Debug)]
pub struct ServiceSpec {
    pub namespace: String,
    /// Its name; by default derived from its index.
    pub name: Option<String>,
    /// Whether its first port also has a node port.
    pub has_node_port: bool,
    /// Endpoints on this node.
    pub local: usize,
    /// Endpoints on other nodes.
    pub remote: usize,
    /// Whether it is missing at the start, until [`Act::Create`].
    pub later: bool,
    pub claims: Vec<Claim>,
    /// Its first port; the others follow.
    pub port: u16,
    pub ports: u16,
    /// Endpoints in its slice that are not its pods, each with whether the slice places it on this node.
    pub foreign: Vec<(Foreign, bool)>,
}

/// An address that a Service claims as an external IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The cluster IP of another Service, by index.
    ClusterIp(usize),
    /// The sentinel's cluster IP.
    Sentinel,
    /// The sentinel's endpoint.
    Echo,
    Node,
    /// An otherwise unused address.
    Own(u16),
}

/// An endpoint that is not a pod of the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// A pod of another Service, by index.
    PodOf(usize),
    /// A silent host outside.
    Outsider(u8),
    /// The sentinel's endpoint.
    Echo,
    /// The node itself.
    Node,
}

impl ServiceSpec {
    /// A Service that exists from the start.
    pub fn new(namespace: &str, local: usize, remote: usize) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: None,
            has_node_port: true,
            local,
            remote,
            later: false,
            claims: Vec::new(),
            port: PORT,
            ports: 1,
            foreign: Vec::new(),
        }
    }

    /// The Service of the pod probe: one pod on this node, and one on each of `others` other nodes.
    pub fn pod_probe(others: usize) -> Self {
        Self {
            name: Some(ECHO_SERVICE.to_owned()),
            has_node_port: false,
            port: ECHO_PORT,
            ..Self::new("pathproof", 1, others)
        }
    }

    pub fn is_pod_probe(&self) -> bool {
        self.name.as_deref() == Some(ECHO_SERVICE)
    }

    pub fn is_tenants(&self) -> bool {
        self.namespace == TENANT
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client {
    /// A pod of this node.
    Pod(u8),
    /// The pod probe of this node.
    PodProbe,
    /// The node itself.
    Host,
    /// A client outside, which dials node ports.
    Outsider(u8),
}

/// A stream of new connections.
#[derive(Clone, Debug)]
pub struct Stream {
    pub client: Client,
    /// Index of the Service in [`World::services`].
    pub service: usize,
    /// Kind of the address that is dialled.
    pub kind: FrontendKind,
    pub family: Family,
    /// Interval between connections, plus or minus a fifth.
    pub every: Duration,
    /// Start and end.
    pub during: Span,
    /// Whether all connections use one source port: until one is answered, conntrack sends them to the
    /// endpoint of the first.
    pub keeps_port: bool,
}

impl Stream {
    const ALWAYS: Span = (Duration::ZERO, Duration::MAX);

    /// A pod that dials the cluster IP.
    pub fn of_pod(pod: u8, service: usize, every: Duration) -> Self {
        Self {
            client: Client::Pod(pod),
            service,
            kind: FrontendKind::ClusterIp,
            family: Family::V4,
            every,
            during: Self::ALWAYS,
            keeps_port: false,
        }
    }

    /// The pod probe, which dials its Service once a second like the real one.
    pub fn of_pod_probe(service: usize) -> Self {
        Self {
            client: Client::PodProbe,
            ..Self::of_pod(0, service, Duration::from_secs(1))
        }
    }

    /// The node itself, which dials the cluster IP.
    pub fn of_host(service: usize, every: Duration) -> Self {
        Self {
            client: Client::Host,
            ..Self::of_pod(0, service, every)
        }
    }

    #[must_use]
    pub fn over(self, family: Family) -> Self {
        Self { family, ..self }
    }

    /// A client outside that dials the node port.
    pub fn of_outsider(outsider: u8, service: usize, every: Duration) -> Self {
        Self {
            client: Client::Outsider(outsider),
            kind: FrontendKind::NodePort,
            ..Self::of_pod(0, service, every)
        }
    }
}

/// A fault of the node's datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The Service chains are empty, but the tables and their owner remain.
    Flushed,
    /// The tables are gone, and with them all signs of an owner.
    TablesGone,
    /// One Service's chain is empty.
    Emptied(usize),
    /// The routes to this node's pods are gone, so packets to them leave by the uplink.
    PodRoutesGone,
    /// The routes to the pods of other nodes are gone, so packets to them leave by the uplink.
    RemoteRoutesGone,
    ForwardingOff,
    /// The connection table, which both families share, is full, so new connections are dropped.
    ConntrackFull,
    /// A rule drops everything that is forwarded.
    ForwardDropped,
    /// A rule rejects everything that is forwarded, by ICMP.
    ForwardRejected,
    /// The FORWARD chain has the policy DROP, as Docker sets it. Connections that kube-proxy masquerades
    /// pass, and those with pods' addresses are dropped.
    ForwardPolicy,
    /// Traffic that must be masqueraded keeps its source.
    NotMasqueraded,
    /// The rules of all Services but the sentinel's are gone.
    OthersGone,
    /// A rule drops the data of connections but not their handshakes. The sentinel's data passes.
    DataDropped,
    /// The rules of all Services but the sentinel's point to addresses that have long been without an
    /// endpoint.
    Astray,
}

/// Effect of a network policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denial {
    /// Drops silently.
    Drop,
    /// Sends an ICMP error.
    Reject,
}

/// Failure mode of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sickness {
    Silent,
    Refuses,
}

/// An event on a node.
#[derive(Clone, Debug)]
pub enum Act {
    /// The datapath gets a fault.
    Break(Fault),
    /// The datapath gets a fault in one family.
    BreakIn(Family, Fault),
    /// A fault is repaired; the rules then match the API.
    Repair(Fault),
    /// The proxy stops following the API.
    FreezeProxy,
    /// The proxy continues and catches up.
    ThawProxy,
    Create(usize),
    /// The Service and its slice are deleted.
    Delete(usize),
    /// All endpoints of a Service leave its slice and are replaced. The old ones continue to answer for
    /// this long.
    Roll(usize, Duration),
    /// Like [`Act::Roll`], but only the Service's endpoint with this index leaves and is replaced.
    Replace(usize, usize, Duration),
    /// The current endpoints of a Service stop serving and stay in its slice.
    Sicken(usize, Sickness),
    /// Connections of this client (`None`: of all) to this Service (`None`: to all) are denied from now on.
    Deny(Option<Client>, Option<usize>, Denial),
    /// The sentinel's range is filtered, as bogon filters do.
    FilterSentinel,
    /// The sentinel's range is rejected with an ICMP error.
    RejectSentinel,
    /// An inline filter drops the data of the sentinel's connections, whose protocol is unknown to it, but
    /// not their handshakes.
    InspectSentinel,
    /// The agent ends, and another starts after this pause.
    Restart(Duration),
    /// The agent is not scheduled for this long.
    Starve(Duration),
    /// The API server is away for `span`, and the agent notices it after `noticed`.
    Silence {
        span: Duration,
        /// Time until the watches fail, which is long for a black hole.
        noticed: Duration,
    },
    /// The kernel's maps cannot be read for this long.
    Unreadable(Duration),
    /// The ring buffer of failures is full for this long.
    LoseSightings(Duration),
    /// The sentinel's devices are damaged for this long.
    DamageDevices(Duration),
    /// The wall clock is set this many seconds ahead, or back.
    SetClock(i64),
}
