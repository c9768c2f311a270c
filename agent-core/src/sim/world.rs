//! Description of a simulated node: its Services, their clients and rates, and acts at given times.
//! Plain data; a test draws it from a seed or writes it down.

use std::time::Duration;

use agent_common::service::FrontendKind;

use super::datapath::PORT;

/// A least and a most, both included.
pub type Span = (Duration, Duration);

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
    /// The sentinel's endpoint moves this often.
    pub rotation: Option<Duration>,
    /// An address of pods is reserved for the sentinel.
    pub pod_lane: bool,
    /// Packets of pods cross a bridge and its port: each is seen twice.
    pub bridged: bool,
    /// Every SYN that comes in is copied, untranslated, to a device of its own.
    pub mirrored: bool,
    /// Only cluster IPs, no node ports: the sentinel has one lane less.
    pub no_node_ports: bool,
    /// Of Services that claim one frontend the last one's rules apply, not the first one's.
    pub claims_win: bool,
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
            mirrored: false,
            no_node_ports: false,
            claims_win: false,
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
            local,
            remote,
            later: false,
            claims: Vec::new(),
            port: PORT,
            ports: 1,
            foreign: Vec::new(),
        }
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
            every,
            during: Self::ALWAYS,
            keeps_port: false,
        }
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
    /// The kernel does not forward.
    ForwardingOff,
    /// Traffic that has to be masqueraded keeps its source.
    NotMasqueraded,
}

/// Effect of a network policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denial {
    /// Nothing comes back.
    Drop,
    /// An ICMP error comes back.
    Reject,
}

/// Something that happens to a node.
#[derive(Clone, Debug)]
pub enum Act {
    /// The datapath gets a fault.
    Break(Fault),
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
    /// From now on these connections are denied: of this client or all, to this Service or all.
    Deny(Option<Client>, Option<usize>, Denial),
    /// The sentinel's range is filtered, as bogon filters do.
    FilterSentinel,
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
