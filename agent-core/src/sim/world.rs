//! Description of a simulated node: its Services, their clients and rates, and acts at given times.
//! Plain data; a test draws it from a seed or writes it down.

use std::net::IpAddr;
use std::time::Duration;

use agent_common::service::{FAMILIES, Family, FrontendKind};

use super::datapath::PORT;
use crate::expect::node::ECHO_SERVICE;
use crate::peers::ECHO_PORT;

/// A least and a most, both included.
pub type Span = (Duration, Duration);

/// Families of a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stack {
    /// IPv4 alone.
    #[default]
    V4,
    /// IPv6 alone.
    V6,
    /// Both, IPv4 first.
    Dual,
}

impl Stack {
    /// Whether it has this family.
    pub fn has(self, family: Family) -> bool {
        match self {
            Stack::V4 => family == Family::V4,
            Stack::V6 => family == Family::V6,
            Stack::Dual => true,
        }
    }

    /// Its families.
    pub fn families(self) -> impl Iterator<Item = Family> {
        Family::ALL
            .into_iter()
            .filter(move |family| self.has(*family))
    }

    /// The addresses of its families.
    pub(super) fn of(self, both: [IpAddr; FAMILIES]) -> Vec<IpAddr> {
        self.families()
            .map(|family| both[family as usize])
            .collect()
    }
}

/// A node's world.
#[derive(Clone, Debug)]
pub struct World {
    /// Its Services, beside the sentinel's.
    pub services: Vec<ServiceSpec>,
    /// Connections of clients to them.
    pub streams: Vec<Stream>,
    /// Acts with their times, counted from the agent's start.
    pub acts: Vec<(Duration, Act)>,
    /// Delay of the agent's view after the API.
    pub view_delay: Span,
    /// Delay of the rules after the API.
    pub proxy_delay: Span,
    /// The sentinel's endpoint moves this often. By default once a minute, as in a large cluster.
    pub rotation: Option<Duration>,
    /// An address of pods is reserved for the sentinel.
    pub pod_lane: bool,
    /// Packets of pods cross a bridge and its port: each is seen twice.
    pub bridged: bool,
    /// Pods are bridged to the uplink: packets for them leave by it.
    pub flat: bool,
    /// Every SYN that comes in is copied, untranslated, to a device of its own.
    pub mirrored: bool,
    /// Only cluster IPs, no node ports: the sentinel has one lane less.
    pub no_node_ports: bool,
    /// Of Services that claim one frontend the last one's rules apply, not the first one's.
    pub claims_win: bool,
    /// Families of the cluster.
    pub stack: Stack,
    /// Pods of other nodes are reached by a tunnel's device, not by the uplink.
    pub overlay: bool,
    /// kube-proxy runs in its iptables mode, not in its nftables mode.
    pub iptables: bool,
}

impl Default for World {
    /// An idle node beside a quick proxy.
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
    /// A node with three Services of two namespaces and both kinds of endpoints, which two pods and
    /// an outsider dial twice a second.
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

    /// With this happening then.
    #[must_use]
    pub fn with(mut self, at: Duration, act: Act) -> Self {
        self.acts.push((at, act));
        self
    }
}

/// Namespace of the tenant, whose objects and pods do as he likes.
pub const TENANT: &str = "tenant";
/// Pods of a node from this number on are the tenant's.
pub const TENANT_PODS: u8 = 10;

/// A Service with TCP ports and node ports.
#[derive(Clone, Debug)]
pub struct ServiceSpec {
    /// Its namespace.
    pub namespace: String,
    /// Its name; one that is made of its place where there is none.
    pub name: Option<String>,
    /// Its first port has a node port too.
    pub has_node_port: bool,
    /// Endpoints on this node.
    pub local: usize,
    /// Endpoints on others.
    pub remote: usize,
    /// It is made by [`Act::Create`], not there from the start.
    pub later: bool,
    /// Its external IPs.
    pub claims: Vec<Claim>,
    /// Its first port; others follow it.
    pub port: u16,
    /// Number of its ports.
    pub ports: u16,
    /// Endpoints of its slice that are no pods of its own, and whether the slice places them on this
    /// node.
    pub foreign: Vec<(Foreign, bool)>,
}

/// An address that a Service claims as an external IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// The cluster IP of another Service, by its place.
    ClusterIp(usize),
    /// The sentinel's cluster IP.
    Sentinel,
    /// The sentinel's endpoint.
    Echo,
    /// The node's address.
    Node,
    /// An address that nobody else has.
    Own(u16),
}

/// An endpoint that is no pod of the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// A pod of another Service, by its place.
    PodOf(usize),
    /// Somebody outside, who answers nothing.
    Outsider(u8),
    /// The sentinel's endpoint.
    Echo,
    /// The node itself.
    Node,
}

impl ServiceSpec {
    /// There from the start.
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

    /// It is the pod probe's.
    pub fn is_pod_probe(&self) -> bool {
        self.name.as_deref() == Some(ECHO_SERVICE)
    }

    /// It is the tenant's.
    pub fn is_tenants(&self) -> bool {
        self.namespace == TENANT
    }
}

/// Source of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Client {
    /// A pod of this node.
    Pod(u8),
    /// The pod probe of this node.
    PodProbe,
    /// The node itself.
    Host,
    /// Somebody outside; dials node ports.
    Outsider(u8),
}

/// New connections at a rate.
#[derive(Clone, Debug)]
pub struct Stream {
    pub client: Client,
    /// Place of the Service in [`World::services`].
    pub service: usize,
    /// Kind of the address that is dialled.
    pub kind: FrontendKind,
    /// Its family.
    pub family: Family,
    /// Time between two, a fifth more or less.
    pub every: Duration,
    /// Not before then, and not after.
    pub during: Span,
    /// Every connection has the same source port: until one is answered, they go to the endpoint of the
    /// first one.
    pub keeps_port: bool,
}

impl Stream {
    const ALWAYS: Span = (Duration::ZERO, Duration::MAX);

    /// A pod dials the cluster IP.
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

    /// The pod probe dials its Service, once a second as the real one.
    pub fn of_pod_probe(service: usize) -> Self {
        Self {
            client: Client::PodProbe,
            ..Self::of_pod(0, service, Duration::from_secs(1))
        }
    }

    /// The node itself dials the cluster IP.
    pub fn of_host(service: usize, every: Duration) -> Self {
        Self {
            client: Client::Host,
            ..Self::of_pod(0, service, every)
        }
    }

    /// The same in another family.
    #[must_use]
    pub fn over(self, family: Family) -> Self {
        Self { family, ..self }
    }

    /// Somebody outside dials the node port.
    pub fn of_outsider(outsider: u8, service: usize, every: Duration) -> Self {
        Self {
            client: Client::Outsider(outsider),
            kind: FrontendKind::NodePort,
            ..Self::of_pod(0, service, every)
        }
    }
}

/// Something that is wrong with the node's datapath.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The Service chains are empty; tables and owner are still there.
    Flushed,
    /// The tables are gone, and with them every sign of an owner.
    TablesGone,
    /// One Service's chain is empty.
    Emptied(usize),
    /// The routes to this node's pods are gone: what is for them leaves by the uplink.
    PodRoutesGone,
    /// The routes to the pods of other nodes are gone, with the same effect.
    RemoteRoutesGone,
    /// The kernel does not forward.
    ForwardingOff,
    /// The table of tracked connections is full: new ones are dropped. One table serves both families.
    ConntrackFull,
    /// A rule drops everything that is forwarded.
    ForwardDropped,
    /// A rule rejects everything that is forwarded, by ICMP.
    ForwardRejected,
    /// The FORWARD chain has the policy DROP, as Docker sets it: connections that kube-proxy masquerades
    /// pass, those with pods' own addresses are dropped.
    ForwardPolicy,
    /// Traffic that has to be masqueraded keeps its source.
    NotMasqueraded,
    /// The rules of all Services but the sentinel's are gone.
    OthersGone,
    /// A rule drops the data of connections and not their handshakes. The sentinel's data passes.
    DataDropped,
    /// The rules of all Services but the sentinel's lead to addresses that were never endpoints.
    Astray,
}

/// Effect of a network policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denial {
    /// Nothing comes back.
    Drop,
    /// An ICMP error comes back.
    Reject,
}

/// Failure mode of an application.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sickness {
    /// It does not answer.
    Silent,
    /// It refuses connections.
    Refuses,
}

/// Something that happens to a node.
#[derive(Clone, Debug)]
pub enum Act {
    /// The datapath gets a fault.
    Break(Fault),
    /// It gets the fault in one family alone.
    BreakIn(Family, Fault),
    /// It is repaired; the rules are as the API has them then.
    Repair(Fault),
    /// The proxy stops following the API.
    FreezeProxy,
    /// It goes on, and catches up.
    ThawProxy,
    /// The Service comes into being.
    Create(usize),
    /// The Service and its slice are deleted.
    Delete(usize),
    /// Every endpoint of a Service leaves its slice, and others take their places. Those that left go
    /// on answering for the time given.
    Roll(usize, Duration),
    /// The same of one endpoint, by its place in the Service.
    Replace(usize, usize, Duration),
    /// The current endpoints of a Service stop serving and stay in its slice.
    Sicken(usize, Sickness),
    /// From now on these connections are denied: of this client or all, to this Service or all.
    Deny(Option<Client>, Option<usize>, Denial),
    /// The sentinel's range is filtered, as bogon filters do.
    FilterSentinel,
    /// The same, by a rule that rejects with ICMP.
    RejectSentinel,
    /// An inline filter drops the data of the sentinel's connections, which it does not know, and not their
    /// handshakes.
    InspectSentinel,
    /// The agent ends, and another starts after this time.
    Restart(Duration),
    /// The agent is not scheduled for this long.
    Starve(Duration),
    /// The API server is away for `span`; the agent notices after `noticed`.
    Silence {
        /// Duration of the outage.
        span: Duration,
        /// When the watches fail; a black hole takes long.
        noticed: Duration,
    },
    /// The kernel's maps cannot be read for this long.
    Unreadable(Duration),
    /// The ring buffer of failures is full for this long.
    LoseSightings(Duration),
    /// The sentinel's devices are damaged for this long.
    DamageDevices(Duration),
}
