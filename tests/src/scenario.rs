//! What the observer must make of sequences of packets, as data: `agent-common`'s tests run them
//! through the rules over ordinary collections, `tests/kernel` through the compiled programs, and
//! both must see the same. Numbers in brackets are kernel findings; each stands beside its innocent
//! twin.
//!
//! Length: data; one scenario after the other.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use agent_common::evidence::Outcome::{
    self, Answered, Arrived, Forwarded, Leaked, Misrouted, Proven, Refused, Rejected,
    Retransmitted, Stale, Unheard,
};
use agent_common::evidence::{Fault, anomaly_flag};
use agent_common::service::SourceClass::{self, External, Host, Pod};
use agent_common::service::{Address, Family, FrontendKind, Owed, endpoint_flag, frontend_flag};
use agent_common::transition::Failed;

use self::Device::{Bridge, Client, Overlay, Pods, Redirecting, Uplink};
use self::Step::{Leaves, Wait};
use crate::packet::{self, Packet, flag};

/// A device of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Device {
    /// Clients that are pods of this node come in by it.
    Client,
    /// A bridge in front of it, or its VLAN: the same packet is seen there again.
    Bridge,
    /// The routes to the pods of this node name it.
    Pods,
    /// A pod's device, flagged: another program there may carry packets past all other hooks.
    Redirecting,
    /// The routes to some pods of other nodes name it: a tunnel.
    Overlay,
    /// The default routes name it, and it is flagged so.
    Uplink,
}

/// One thing that happens.
#[derive(Clone, Debug)]
pub enum Step {
    /// A packet comes in by a device.
    In(Device, Packet),
    /// A packet goes out of a device.
    Out(Device, Packet),
    /// Milliseconds pass.
    Wait(u64),
    /// An endpoint of [`WEB`] leaves its slice.
    Leaves(SocketAddr),
}

/// What must be seen of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// By Service id, class and outcome; zeros left out.
    pub counts: BTreeMap<(u32, SourceClass, Outcome), u32>,
    /// What became of the connections that failed, once the loss window is over.
    pub failed: Vec<(u32, SourceClass, Failed)>,
    /// Paths with a proof.
    pub proven: Vec<SourceClass>,
    /// Zeros left out.
    pub faults: BTreeMap<Fault, u64>,
    /// In order.
    pub anomalies: Vec<Reported>,
}

/// What matters of an anomaly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported {
    /// How it failed.
    pub outcome: Outcome,
    /// Bits of `anomaly_flag`.
    pub flags: u8,
    /// Where it went; zero where that says nothing.
    pub destination: Address,
}

/// A sequence and what it means.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What happens, in words.
    pub name: &'static str,
    /// In order.
    pub steps: Vec<Step>,
    /// In the end.
    pub seen: Seen,
}

/// A Service with endpoints everywhere.
pub const WEB: u32 = 1;
/// externalTrafficPolicy Local without a local endpoint: nothing is owed to the outside.
pub const NO_LOCAL: u32 = 2;
/// Without endpoints: rejecting is right.
pub const EMPTY: u32 = 3;
/// With an endpoint on the node itself.
pub const API: u32 = 4;
/// A load balancer's address with externalTrafficPolicy Local and local endpoints.
pub const LOCAL: u32 = 5;
/// A cluster IP with internalTrafficPolicy Local and local endpoints.
pub const INTERNAL: u32 = 6;
/// Ids above all.
pub const SERVICES: u32 = 7;

/// A frontend of the stage.
#[derive(Clone, Copy, Debug)]
pub struct Frontend {
    /// Service id.
    pub service: u32,
    /// What clients dial.
    pub at: SocketAddr,
    /// Which address of the Service.
    pub kind: FrontendKind,
    /// By [`SourceClass`].
    pub owed: [Owed; 3],
    /// Bits of `frontend_flag`.
    pub flags: u8,
}

/// Who there is, in one family.
#[derive(Clone, Copy, Debug)]
pub struct Stage {
    pub family: Family,
    /// Frontend of [`WEB`], a cluster IP.
    pub web: SocketAddr,
    /// Frontend of [`NO_LOCAL`], a node port.
    pub no_local: SocketAddr,
    /// Frontend of [`EMPTY`], a cluster IP.
    pub empty: SocketAddr,
    /// Frontend of [`API`], a cluster IP.
    pub api: SocketAddr,
    /// Frontend of [`LOCAL`].
    pub local: SocketAddr,
    /// Frontend of [`INTERNAL`].
    pub internal: SocketAddr,
    /// Endpoint that is a pod of this node.
    pub here: SocketAddr,
    /// Endpoint behind the overlay.
    pub tunnelled: SocketAddr,
    /// Endpoint behind the uplink.
    pub routed: SocketAddr,
    /// Former endpoint on this node.
    pub former: SocketAddr,
    /// No endpoint at all.
    pub stranger: SocketAddr,
    /// A pod of this node.
    pub pod: SocketAddr,
    /// Another one.
    pub pod2: SocketAddr,
    /// One without a route of its own: the default route has its packets leave by the uplink.
    pub routeless: SocketAddr,
    pub node: SocketAddr,
    /// Somebody outside.
    pub outside: SocketAddr,
}

impl Stage {
    /// In a family; the addresses fit the routes of `observer::Sandbox`.
    pub fn new(family: Family) -> Self {
        let at = |v4: &str, v6: &str, port| {
            let ip: IpAddr = match family {
                Family::V4 => v4.parse().expect("an IPv4 address"),
                Family::V6 => v6.parse().expect("an IPv6 address"),
            };
            SocketAddr::new(ip, port)
        };
        Self {
            family,
            web: at("10.96.0.1", "fd00:10:96::1", 80),
            no_local: at("192.0.2.2", "2001:db8::2", 30080),
            empty: at("10.96.0.3", "fd00:10:96::3", 80),
            api: at("10.96.0.4", "fd00:10:96::4", 443),
            local: at("198.51.100.5", "2001:db8:5::5", 80),
            internal: at("10.96.0.6", "fd00:10:96::6", 80),
            here: at("10.244.1.10", "fd00:10:244:1::10", 8080),
            tunnelled: at("10.245.0.10", "fd00:10:245::10", 8080),
            routed: at("10.246.0.10", "fd00:10:246::10", 8080),
            former: at("10.244.1.99", "fd00:10:244:1::99", 8080),
            stranger: at("10.244.1.77", "fd00:10:244:1::77", 8080),
            pod: at("10.244.1.5", "fd00:10:244:1::5", 40001),
            pod2: at("10.244.1.6", "fd00:10:244:1::6", 40001),
            routeless: at("10.247.1.7", "fd00:10:247:1::7", 40001),
            node: at("192.0.2.2", "2001:db8::2", 40001),
            outside: at("203.0.113.9", "2001:db8:113::9", 40001),
        }
    }

    /// Every frontend.
    pub fn frontends(&self) -> [Frontend; 7] {
        use FrontendKind::{ClusterIp, LoadBalancer, NodePort};
        use Owed::{Forward, LocalOnly, Nothing, Reject};
        let frontend = |service, at, kind, owed, flags| Frontend {
            service,
            at,
            kind,
            owed,
            flags,
        };
        [
            frontend(WEB, self.web, ClusterIp, [Forward; 3], 0),
            frontend(
                NO_LOCAL,
                self.no_local,
                NodePort,
                [Forward, Forward, Nothing],
                0,
            ),
            frontend(EMPTY, self.empty, ClusterIp, [Reject; 3], 0),
            frontend(INTERNAL, self.internal, ClusterIp, [LocalOnly; 3], 0),
            frontend(
                API,
                self.api,
                ClusterIp,
                [Forward; 3],
                frontend_flag::HOST_ENDPOINT,
            ),
            frontend(
                LOCAL,
                self.local,
                LoadBalancer,
                [Forward, Forward, LocalOnly],
                0,
            ),
            frontend(
                WEB,
                self.former,
                FrontendKind::ExternalIp,
                [Forward, Nothing, Nothing],
                frontend_flag::DEPARTED,
            ),
        ]
    }

    /// Every endpoint with its flags.
    pub fn endpoints(&self) -> Vec<(u32, SocketAddr, u32)> {
        let left = endpoint_flag::LOCAL | endpoint_flag::LEFT;
        vec![
            (WEB, self.here, endpoint_flag::LOCAL),
            (WEB, self.tunnelled, 0),
            (WEB, self.routed, 0),
            (WEB, self.former, left),
            (NO_LOCAL, self.tunnelled, 0),
            (LOCAL, self.here, endpoint_flag::LOCAL),
            (LOCAL, self.tunnelled, 0),
            (INTERNAL, self.here, endpoint_flag::LOCAL),
            (INTERNAL, self.tunnelled, 0),
        ]
    }

    /// Sources whose class is not external.
    pub fn sources(&self) -> [(SocketAddr, SourceClass); 4] {
        [
            (self.pod, SourceClass::Pod),
            (self.pod2, SourceClass::Pod),
            (self.routeless, SourceClass::Pod),
            (self.node, SourceClass::Host),
        ]
    }
}

/// The 16 bytes that stand for an address everywhere.
pub fn mapped(ip: IpAddr) -> Address {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

impl Seen {
    /// Outcomes of one Service and class, once each. What failed is under `failed`.
    fn of(service: u32, class: SourceClass, outcomes: &[Outcome]) -> Self {
        let mut seen = Self::default();
        for outcome in outcomes {
            let failed = match outcome {
                Refused => Failed::Refused,
                Leaked => Failed::Leaked,
                Misrouted => Failed::Misrouted,
                Stale => Failed::Stale,
                _ => {
                    *seen.counts.entry((service, class, *outcome)).or_default() += 1;
                    continue;
                }
            };
            seen.failed.push((service, class, failed));
        }
        if outcomes.contains(&Outcome::Proven) {
            seen.proven.push(class);
        }
        seen
    }

    /// Nothing was seen of it but its arrival, or its answer did not go on.
    fn lost(mut self, service: u32, class: SourceClass) -> Self {
        self.failed.push((service, class, Failed::Lost));
        self
    }

    fn fault(mut self, fault: Fault) -> Self {
        *self.faults.entry(fault).or_default() += 1;
        self
    }

    fn reported(mut self, outcome: Outcome, flags: u8, destination: Option<SocketAddr>) -> Self {
        let destination = destination.map_or([0; 16], |at| mapped(at.ip()));
        self.anomalies.push(Reported {
            outcome,
            flags,
            destination,
        });
        self
    }
}

/// The one initial sequence number of all scenarios: what is reckoned from it wraps around.
pub const ISN: u32 = u32::MAX - 4;

/// Every scenario in a family. Each begins on an empty stage.
pub fn all(family: Family) -> Vec<Scenario> {
    let stage = Stage::new(family);
    let parts = [
        forwarding,
        first_syns,
        one_connection,
        shared,
        owed,
        fast_open,
        leaks,
        answers,
        refusals,
        lateness,
        departed,
    ];
    parts.iter().flat_map(|part| part(&stage)).collect()
}

fn scenario(name: &'static str, steps: Vec<Step>, seen: Seen) -> Scenario {
    Scenario { name, steps, seen }
}

fn syn_in(by: Device, client: SocketAddr, to: SocketAddr) -> Step {
    Step::In(by, packet::syn(client, to, ISN))
}

fn syn_out(by: Device, client: SocketAddr, to: SocketAddr) -> Step {
    Step::Out(by, packet::syn(client, to, ISN))
}

fn answer_in(by: Device, from: SocketAddr, client: SocketAddr) -> Step {
    Step::In(by, packet::syn_ack(from, client, ISN))
}

fn answer_out(by: Device, from: SocketAddr, client: SocketAddr) -> Step {
    Step::Out(by, packet::syn_ack(from, client, ISN))
}

fn reset_out(by: Device, from: SocketAddr, client: SocketAddr) -> Step {
    Step::Out(by, packet::reset(from, client, ISN))
}

/// An ICMP error about the client's SYN, on its way to the client.
fn unreachable_out(by: Device, from: SocketAddr, client: SocketAddr, to: SocketAddr) -> Step {
    let about = packet::syn(client, to, ISN);
    // Port unreachable.
    let (kind, code) = if from.is_ipv4() { (3, 3) } else { (1, 4) };
    let error = packet::icmp_error(from.ip(), client.ip(), kind, code, &about);
    Step::Out(by, error)
}

/// Forwarded is progress; proof is leaving by the device that the route names, or an answer (finding 10).
fn forwarding(s: &Stage) -> Vec<Scenario> {
    let arrives = syn_in(Client, s.pod, s.web);
    vec![
        scenario(
            "forwarded to a pod of this node, and answered",
            vec![
                arrives.clone(),
                syn_out(Pods, s.pod, s.here),
                answer_in(Pods, s.here, s.pod),
                answer_out(Client, s.web, s.pod),
            ],
            Seen::of(WEB, Pod, &[Arrived, Forwarded, Proven, Answered]),
        ),
        scenario(
            "forwarded to a pod of this node",
            vec![arrives.clone(), syn_out(Pods, s.pod, s.here)],
            Seen::of(WEB, Pod, &[Arrived, Forwarded, Proven]),
        ),
        scenario(
            "the route to a pod of this node is gone [10]",
            vec![arrives.clone(), syn_out(Uplink, s.pod, s.here)],
            Seen::of(WEB, Pod, &[Arrived, Misrouted]).reported(
                Misrouted,
                anomaly_flag::MISDELIVERED,
                Some(s.here),
            ),
        ),
        scenario(
            "forwarded into the tunnel that the route names, which may lead nowhere",
            vec![arrives.clone(), syn_out(Overlay, s.pod, s.tunnelled)],
            Seen::of(WEB, Pod, &[Arrived, Forwarded]),
        ),
        scenario(
            "forwarded into the tunnel, and answered",
            vec![
                arrives.clone(),
                syn_out(Overlay, s.pod, s.tunnelled),
                answer_in(Overlay, s.tunnelled, s.pod),
                answer_out(Client, s.web, s.pod),
            ],
            Seen::of(WEB, Pod, &[Arrived, Forwarded, Answered, Proven]),
        ),
        scenario(
            "forwarded by a device that the route does not name [10]",
            vec![arrives.clone(), syn_out(Pods, s.pod, s.tunnelled)],
            Seen::of(WEB, Pod, &[Arrived, Forwarded]),
        ),
        scenario(
            "forwarded by the uplink, where the next hop may lead nowhere [10]",
            vec![arrives.clone(), syn_out(Uplink, s.node, s.routed)],
            Seen::of(WEB, Pod, &[Arrived, Forwarded]),
        ),
        scenario(
            "forwarded by the uplink, and answered",
            vec![
                arrives.clone(),
                syn_out(Uplink, s.node, s.routed),
                answer_in(Uplink, s.routed, s.node),
                answer_out(Client, s.web, s.pod),
            ],
            Seen::of(WEB, Pod, &[Arrived, Forwarded, Answered, Proven]),
        ),
        scenario(
            "forwarded by the uplink, and a router behind it knows no way [10]",
            vec![
                arrives,
                syn_out(Uplink, s.node, s.routed),
                unreachable_out(Client, s.outside, s.pod, s.web),
            ],
            Seen::of(WEB, Pod, &[Arrived, Forwarded]),
        ),
        scenario(
            "from outside, masqueraded",
            vec![
                syn_in(Uplink, s.outside, s.local),
                syn_out(Pods, s.node, s.here),
            ],
            Seen::of(LOCAL, External, &[Arrived, Forwarded, Proven]),
        ),
        scenario(
            "to somebody else",
            vec![
                syn_in(Client, s.pod, s.stranger),
                syn_out(Pods, s.pod, s.stranger),
                answer_in(Pods, s.stranger, s.pod),
                reset_out(Client, s.stranger, s.pod),
            ],
            Seen::default(),
        ),
    ]
}

/// A retransmitted SYN follows the old conntrack entry: only a first one is evidence (finding 11).
fn first_syns(s: &Stage) -> Vec<Scenario> {
    let arrives = syn_in(Client, s.pod, s.web);
    vec![
        scenario(
            "a first SYN to an endpoint that left [11]",
            vec![arrives.clone(), syn_out(Pods, s.pod, s.former)],
            Seen::of(WEB, Pod, &[Arrived, Stale]).reported(Stale, 0, Some(s.former)),
        ),
        scenario(
            "an endpoint leaves while its client tries again [11]",
            vec![
                arrives.clone(),
                syn_out(Pods, s.pod, s.here),
                Leaves(s.here),
                Wait(1_100),
                arrives.clone(),
                syn_out(Pods, s.pod, s.here),
            ],
            Seen::of(WEB, Pod, &[Arrived, Forwarded, Proven, Retransmitted]),
        ),
        scenario(
            "a first SYN to no endpoint",
            vec![arrives.clone(), syn_out(Pods, s.pod, s.stranger)],
            Seen::of(WEB, Pod, &[Arrived, Misrouted]).reported(Misrouted, 0, Some(s.stranger)),
        ),
        scenario(
            "a SYN that came again, to no endpoint [11]",
            vec![
                arrives.clone(),
                Wait(300),
                arrives.clone(),
                syn_out(Pods, s.pod, s.stranger),
            ],
            Seen::of(WEB, Pod, &[Arrived, Retransmitted]).lost(WEB, Pod),
        ),
        scenario(
            "a SYN that came again, to an endpoint that left [11]",
            vec![
                arrives.clone(),
                Wait(300),
                arrives,
                syn_out(Pods, s.pod, s.former),
            ],
            Seen::of(WEB, Pod, &[Arrived, Retransmitted]).lost(WEB, Pod),
        ),
    ]
}

/// An outcome belongs to the connection, however many devices it crosses (finding 12).
fn one_connection(s: &Stage) -> Vec<Scenario> {
    let arrives = syn_in(Client, s.pod, s.web);
    let tagged = packet::syn(s.pod, s.web, ISN).tagged(packet::VLAN);
    vec![
        scenario(
            "one SYN at a port, its VLAN and the bridge [12]",
            vec![
                Step::In(Client, tagged),
                syn_in(Bridge, s.pod, s.web),
                syn_out(Pods, s.pod, s.here),
                syn_out(Bridge, s.pod, s.here),
            ],
            Seen::of(WEB, Pod, &[Arrived, Forwarded, Proven]),
        ),
        scenario(
            "translated between a port and its bridge [12]",
            vec![
                arrives.clone(),
                syn_in(Bridge, s.pod, s.here),
                syn_out(Pods, s.pod, s.here),
            ],
            Seen::of(WEB, Pod, &[Arrived, Forwarded, Proven]),
        ),
        scenario(
            "leaked out of a VLAN and its parent [12]",
            vec![
                arrives.clone(),
                syn_out(Bridge, s.pod, s.web),
                syn_out(Uplink, s.pod, s.web),
            ],
            Seen::of(WEB, Pod, &[Arrived, Leaked]).reported(Leaked, 0, Some(s.web)),
        ),
        scenario(
            "seen twice at one device, while links are exchanged",
            vec![
                arrives.clone(),
                arrives.clone(),
                syn_out(Pods, s.pod, s.here),
                syn_out(Pods, s.pod, s.here),
            ],
            Seen::of(WEB, Pod, &[Arrived, Forwarded, Proven]),
        ),
        scenario(
            "leaked, turned back by a router, forwarded, and answered",
            vec![
                arrives,
                syn_out(Uplink, s.pod, s.web),
                syn_in(Uplink, s.pod, s.web),
                syn_out(Pods, s.pod, s.here),
                answer_in(Pods, s.here, s.pod),
                answer_out(Uplink, s.here, s.pod),
                answer_in(Uplink, s.web, s.pod),
                answer_out(Client, s.web, s.pod),
            ],
            Seen::of(WEB, Pod, &[Arrived, Forwarded, Answered, Proven]).reported(
                Leaked,
                0,
                Some(s.web),
            ),
        ),
    ]
}

/// Two connections under one initial sequence number are evidence of neither (finding 13).
fn shared(s: &Stage) -> Vec<Scenario> {
    let arrives = syn_in(Client, s.pod, s.web);
    vec![
        scenario(
            "another client, the same number [13]",
            vec![
                arrives.clone(),
                syn_in(Client, s.pod2, s.web),
                syn_out(Pods, s.pod, s.stranger),
            ],
            Seen::of(WEB, Pod, &[Arrived]).fault(Fault::Ambiguous),
        ),
        scenario(
            "another client at another device, the same number [13]",
            vec![
                arrives.clone(),
                syn_in(Bridge, s.pod2, s.web),
                syn_out(Pods, s.pod, s.stranger),
            ],
            Seen::of(WEB, Pod, &[Arrived]).fault(Fault::Ambiguous),
        ),
        scenario(
            "another client at another device, another frontend, the same number [13]",
            vec![
                arrives.clone(),
                syn_in(Uplink, s.outside, s.local),
                syn_out(Pods, s.pod, s.stranger),
            ],
            Seen::of(WEB, Pod, &[Arrived]).fault(Fault::Ambiguous),
        ),
        scenario(
            "leaked with the node's address, and turned back by a router",
            vec![
                arrives.clone(),
                syn_out(Uplink, s.node, s.web),
                syn_in(Uplink, s.node, s.web),
                syn_out(Uplink, s.node, s.web),
            ],
            Seen::of(WEB, Pod, &[Arrived, Leaked]).reported(Leaked, 0, Some(s.web)),
        ),
        scenario(
            "misdelivered with the node's address, and turned back by a router",
            vec![
                arrives.clone(),
                syn_out(Uplink, s.node, s.here),
                syn_in(Uplink, s.node, s.here),
                syn_out(Uplink, s.node, s.here),
            ],
            Seen::of(WEB, Pod, &[Arrived, Misrouted]).reported(
                Misrouted,
                anomaly_flag::MISDELIVERED,
                Some(s.here),
            ),
        ),
        scenario(
            "misdelivered, and a copy leaves by another device",
            vec![
                arrives.clone(),
                syn_out(Uplink, s.pod, s.here),
                syn_out(Bridge, s.pod, s.here),
            ],
            Seen::of(WEB, Pod, &[Arrived, Misrouted]).reported(
                Misrouted,
                anomaly_flag::MISDELIVERED,
                Some(s.here),
            ),
        ),
        scenario(
            "a scanner with a constant number, two frontends [13]",
            vec![
                arrives.clone(),
                syn_in(Client, s.pod, s.empty),
                syn_out(Pods, s.pod, s.stranger),
                syn_out(Uplink, s.pod, s.web),
            ],
            Seen::of(WEB, Pod, &[Arrived]).fault(Fault::Ambiguous),
        ),
        scenario(
            "the same number in the answer to somebody else",
            vec![arrives, reset_out(Client, s.web, s.pod2)],
            Seen::of(WEB, Pod, &[Arrived]).lost(WEB, Pod),
        ),
    ]
}

/// What is owed depends on where a connection comes from (finding 15).
fn owed(s: &Stage) -> Vec<Scenario> {
    vec![
        scenario(
            "policy Local without a local endpoint: refused to the outside [15]",
            vec![
                syn_in(Uplink, s.outside, s.no_local),
                reset_out(Uplink, s.no_local, s.outside),
            ],
            Seen::of(NO_LOCAL, External, &[Arrived, Rejected]),
        ),
        scenario(
            "policy Local without a local endpoint: refused to a pod [15]",
            vec![
                syn_in(Client, s.pod, s.no_local),
                reset_out(Client, s.no_local, s.pod),
            ],
            Seen::of(NO_LOCAL, Pod, &[Arrived, Refused]).reported(Refused, 0, None),
        ),
        scenario(
            "policy Local: from outside to another node [15]",
            vec![
                syn_in(Uplink, s.outside, s.local),
                syn_out(Overlay, s.outside, s.tunnelled),
            ],
            // Perhaps a pod of another node, which may be taken there: no proof, no failure.
            Seen::of(LOCAL, External, &[Arrived, Forwarded]),
        ),
        scenario(
            "internal policy Local: from a pod to another node [15]",
            vec![
                syn_in(Client, s.pod, s.internal),
                syn_out(Overlay, s.pod, s.tunnelled),
            ],
            Seen::of(INTERNAL, Pod, &[Arrived, Misrouted]).reported(
                Misrouted,
                0,
                Some(s.tunnelled),
            ),
        ),
        scenario(
            "policy Local: from a pod to another node [15]",
            vec![
                syn_in(Client, s.pod, s.local),
                syn_out(Overlay, s.pod, s.tunnelled),
            ],
            Seen::of(LOCAL, Pod, &[Arrived, Forwarded]),
        ),
        scenario(
            "no endpoints: rejected",
            vec![
                syn_in(Client, s.pod, s.empty),
                unreachable_out(Client, s.empty, s.pod, s.empty),
            ],
            Seen::of(EMPTY, Pod, &[Arrived, Rejected]),
        ),
    ]
}

/// The answer to a SYN with payload may acknowledge it (finding 16).
fn fast_open(s: &Stage) -> Vec<Scenario> {
    let data = [7; 10];
    let begins = || {
        vec![
            Step::In(Client, packet::syn_with_data(s.pod, s.web, ISN, &data)),
            Step::Out(Pods, packet::syn_with_data(s.pod, s.here, ISN, &data)),
        ]
    };
    let flags = flag::SYN | flag::ACK;
    let accepts = packet::tcp(s.here, s.pod, flags, 1, ISN.wrapping_add(11), &[]);
    let with = |last| [begins(), vec![last, answer_out(Client, s.web, s.pod)]].concat();
    let seen = Seen::of(WEB, Pod, &[Arrived, Forwarded, Proven, Answered]);
    vec![
        scenario(
            "fast open, accepted [16]",
            with(Step::In(Pods, accepts)),
            seen.clone(),
        ),
        scenario(
            "fast open, declined [16]",
            with(answer_in(Pods, s.here, s.pod)),
            seen,
        ),
    ]
}

/// Clients on the node have no arrival; nested clusters may have the same ranges (finding 17).
fn leaks(s: &Stage) -> Vec<Scenario> {
    let unseen = |class| {
        Seen::of(WEB, class, &[Leaked]).reported(Leaked, anomaly_flag::UNSEEN_ARRIVAL, Some(s.web))
    };
    let none = Seen::default;
    vec![
        scenario(
            "leaked, from a pod",
            vec![syn_in(Client, s.pod, s.web), syn_out(Uplink, s.pod, s.web)],
            Seen::of(WEB, Pod, &[Arrived, Leaked]).reported(Leaked, 0, Some(s.web)),
        ),
        scenario(
            "leaked, from a pod, masqueraded",
            vec![syn_in(Client, s.pod, s.web), syn_out(Uplink, s.node, s.web)],
            Seen::of(WEB, Pod, &[Arrived, Leaked]).reported(Leaked, 0, Some(s.web)),
        ),
        scenario(
            "leaked, from the node [17]",
            vec![syn_out(Uplink, s.node, s.web)],
            unseen(Host),
        ),
        scenario(
            "leaked, from a pod whose arrival was not seen [17]",
            vec![syn_out(Uplink, s.pod, s.web)],
            unseen(Pod),
        ),
        scenario(
            "leaked, and tried again",
            vec![
                syn_out(Uplink, s.node, s.web),
                Wait(1_100),
                syn_out(Uplink, s.node, s.web),
            ],
            unseen(Host),
        ),
        scenario(
            "a cluster IP passes through, of a nested cluster [17]",
            vec![syn_out(Uplink, s.outside, s.web)],
            none(),
        ),
        scenario(
            "a load balancer's address leaves on purpose [17]",
            vec![syn_out(Uplink, s.node, s.local)],
            none(),
        ),
        scenario(
            "a cluster IP leaves by a device that is no uplink [17]",
            vec![syn_out(Pods, s.node, s.web)],
            none(),
        ),
        scenario(
            "a cluster IP without endpoints leaves [17]",
            vec![syn_out(Uplink, s.node, s.empty)],
            none(),
        ),
    ]
}

/// What answers prove.
fn answers(s: &Stage) -> Vec<Scenario> {
    let arrives = syn_in(Client, s.pod, s.web);
    let answered = || {
        vec![
            arrives.clone(),
            syn_out(Pods, s.pod, s.here),
            answer_in(Pods, s.here, s.pod),
            answer_out(Client, s.web, s.pod),
            Wait(1_100),
            arrives.clone(),
        ]
    };
    let leaves_by_the_uplink = |came_in| {
        vec![
            syn_in(came_in, s.routeless, s.web),
            syn_out(Pods, s.routeless, s.here),
            answer_in(Pods, s.here, s.routeless),
            answer_out(Uplink, s.web, s.routeless),
        ]
    };
    let again = [Arrived, Forwarded, Proven, Answered, Unheard];
    vec![
        scenario(
            "the answer is not heard",
            answered(),
            Seen::of(WEB, Pod, &again).reported(Unheard, 0, None),
        ),
        scenario(
            "the answer is not heard, twice",
            [answered(), vec![Wait(200), arrives.clone()]].concat(),
            Seen::of(WEB, Pod, &[again.as_slice(), &[Retransmitted]].concat())
                .reported(Unheard, 0, None),
        ),
        scenario(
            "redirected to the peer: an endpoint answers, and a program may carry that past all hooks",
            vec![arrives.clone(), answer_in(Redirecting, s.here, s.pod)],
            Seen::of(WEB, Pod, &[Arrived, Answered, Proven]),
        ),
        scenario(
            "an endpoint answers, and that does not go on to the pod",
            vec![arrives.clone(), answer_in(Pods, s.here, s.pod)],
            Seen::of(WEB, Pod, &[Arrived]).lost(WEB, Pod),
        ),
        scenario(
            "an endpoint answers a client outside, and that leaves by no uplink",
            vec![
                syn_in(Uplink, s.outside, s.local),
                answer_in(Redirecting, s.here, s.outside),
            ],
            Seen::of(LOCAL, External, &[Arrived]).lost(LOCAL, External),
        ),
        scenario(
            "an endpoint answers a client outside, and that leaves by an uplink",
            vec![
                syn_in(Uplink, s.outside, s.local),
                answer_in(Redirecting, s.here, s.outside),
                answer_out(Uplink, s.local, s.outside),
            ],
            Seen::of(LOCAL, External, &[Arrived, Answered, Proven]),
        ),
        scenario(
            "an answer that leaves as the endpoint's own, which its client could not know",
            vec![
                arrives.clone(),
                syn_out(Pods, s.pod, s.here),
                answer_in(Pods, s.here, s.pod),
                answer_out(Client, s.here, s.pod),
            ],
            Seen::of(WEB, Pod, &[Arrived, Forwarded, Proven]).lost(WEB, Pod),
        ),
        scenario(
            "an answer that leaves as the endpoint's own, and a program behind translates it",
            vec![
                syn_in(Redirecting, s.pod, s.web),
                syn_out(Pods, s.pod, s.here),
                answer_in(Pods, s.here, s.pod),
                answer_out(Redirecting, s.here, s.pod),
            ],
            Seen::of(WEB, Pod, &[Arrived, Forwarded, Proven, Answered]),
        ),
        scenario(
            "a copy of an answer leaves by another device",
            vec![
                arrives.clone(),
                syn_out(Pods, s.pod, s.here),
                answer_in(Pods, s.here, s.pod),
                answer_out(Bridge, s.web, s.pod),
            ],
            Seen::of(WEB, Pod, &[Arrived, Forwarded, Proven]).lost(WEB, Pod),
        ),
        scenario(
            "an answer for a pod without a route leaves by the uplink, which the default route names",
            leaves_by_the_uplink(Client),
            Seen::of(WEB, Pod, &[Arrived, Forwarded, Proven]).lost(WEB, Pod),
        ),
        scenario(
            "a client that comes in by the uplink under a pod's address is outside, and answered there",
            leaves_by_the_uplink(Uplink),
            Seen::of(WEB, External, &[Arrived, Forwarded, Proven, Answered]),
        ),
        scenario(
            "a copy of a SYN leaves by another device",
            vec![
                arrives.clone(),
                syn_out(Bridge, s.pod, s.web),
                syn_out(Pods, s.pod, s.here),
                answer_in(Pods, s.here, s.pod),
                answer_out(Client, s.web, s.pod),
            ],
            Seen::of(WEB, Pod, &[Arrived, Forwarded, Proven, Answered]),
        ),
        scenario(
            "an endpoint that left still answers",
            vec![
                arrives.clone(),
                syn_out(Pods, s.pod, s.former),
                answer_in(Pods, s.former, s.pod),
                answer_out(Client, s.web, s.pod),
            ],
            Seen::of(WEB, Pod, &[Arrived, Answered, Proven]).reported(Stale, 0, Some(s.former)),
        ),
        scenario(
            "who is no endpoint refuses",
            vec![
                arrives.clone(),
                syn_out(Pods, s.pod, s.stranger),
                Step::In(Pods, packet::reset(s.stranger, s.pod, ISN)),
                reset_out(Client, s.web, s.pod),
            ],
            Seen::of(WEB, Pod, &[Arrived, Misrouted]).reported(Misrouted, 0, Some(s.stranger)),
        ),
        scenario(
            "a former endpoint answers that nothing was seen leaving for",
            vec![arrives.clone(), answer_in(Pods, s.former, s.pod)],
            Seen::of(WEB, Pod, &[Arrived]).lost(WEB, Pod),
        ),
        scenario(
            "answered on this node by something else",
            vec![arrives.clone(), answer_out(Client, s.web, s.pod)],
            Seen::of(WEB, Pod, &[Arrived, Answered]).fault(Fault::AnsweredLocally),
        ),
        scenario(
            "answered by an endpoint on the node itself",
            vec![
                syn_in(Client, s.pod, s.api),
                answer_out(Client, s.api, s.pod),
            ],
            Seen::of(API, Pod, &[Arrived, Answered, Proven]),
        ),
        scenario(
            "refused by an endpoint of the Service",
            vec![
                arrives.clone(),
                syn_out(Pods, s.pod, s.here),
                Step::In(Pods, packet::reset(s.here, s.pod, ISN)),
                reset_out(Client, s.web, s.pod),
            ],
            Seen::of(WEB, Pod, &[Arrived, Forwarded, Proven, Answered]),
        ),
    ]
}

/// Who refused.
fn refusals(s: &Stage) -> Vec<Scenario> {
    let arrives = syn_in(Client, s.pod, s.web);
    let refused = || Seen::of(WEB, Pod, &[Arrived, Refused]);
    vec![
        scenario(
            "refused by the node",
            vec![arrives.clone(), reset_out(Client, s.web, s.pod)],
            refused().reported(Refused, 0, None),
        ),
        scenario(
            "refused by the node by ICMP",
            vec![arrives, unreachable_out(Client, s.web, s.pod, s.web)],
            refused().reported(Refused, anomaly_flag::ICMP, None),
        ),
        scenario(
            "refused, perhaps by the endpoint on the node itself",
            vec![
                syn_in(Client, s.pod, s.api),
                reset_out(Client, s.api, s.pod),
            ],
            Seen::of(API, Pod, &[Arrived]),
        ),
    ]
}

/// After the loss window a connection is told as lost: no second outcome.
fn lateness(s: &Stage) -> Vec<Scenario> {
    let arrives = syn_in(Client, s.pod, s.web);
    let late = |last: Vec<Step>| [vec![arrives.clone(), Wait(1_500)], last].concat();
    vec![
        scenario(
            "lost, then through: proof, and no second outcome",
            late(vec![
                arrives.clone(),
                syn_out(Pods, s.pod, s.here),
                answer_in(Pods, s.here, s.pod),
                answer_out(Client, s.web, s.pod),
            ]),
            Seen::of(WEB, Pod, &[Arrived, Retransmitted, Proven]),
        ),
        scenario(
            "lost, then redirected to the peer",
            late(vec![answer_in(Redirecting, s.here, s.pod)]),
            Seen::of(WEB, Pod, &[Arrived, Proven]),
        ),
        scenario(
            "lost, then leaked",
            late(vec![syn_out(Uplink, s.pod, s.web)]),
            Seen::of(WEB, Pod, &[Arrived]).lost(WEB, Pod),
        ),
        scenario(
            "lost, then misrouted",
            late(vec![syn_out(Pods, s.pod, s.stranger)]),
            Seen::of(WEB, Pod, &[Arrived]).lost(WEB, Pod),
        ),
        scenario(
            "lost, then refused",
            late(vec![reset_out(Client, s.web, s.pod)]),
            Seen::of(WEB, Pod, &[Arrived]).lost(WEB, Pod),
        ),
        scenario(
            "forwarded in time, answered late",
            vec![
                arrives,
                syn_out(Pods, s.pod, s.here),
                Wait(1_500),
                answer_in(Pods, s.here, s.pod),
                answer_out(Client, s.web, s.pod),
            ],
            Seen::of(WEB, Pod, &[Arrived, Forwarded, Proven, Answered]),
        ),
    ]
}

/// A pod dials an endpoint that left by the endpoint's own address: a failure only while it stays
/// unanswered, and never a proof.
fn departed(s: &Stage) -> Vec<Scenario> {
    let dialled = vec![
        syn_in(Client, s.pod, s.former),
        syn_out(Uplink, s.pod, s.former),
    ];
    let then = |last: Vec<Step>| [dialled.clone(), last].concat();
    vec![
        scenario(
            "an endpoint that left is dialled, and silent",
            then(vec![Wait(1_500), syn_in(Client, s.pod, s.former)]),
            Seen::of(WEB, Pod, &[Stale]),
        ),
        scenario(
            "an endpoint that left is dialled, and answers",
            then(vec![
                answer_in(Pods, s.former, s.pod),
                answer_out(Client, s.former, s.pod),
            ]),
            Seen::default(),
        ),
        scenario(
            "an endpoint that left is dialled, and its answer is redirected to the pod",
            then(vec![answer_in(Pods, s.former, s.pod)]),
            Seen::default(),
        ),
        scenario(
            "an endpoint that left is dialled, and refuses",
            then(vec![Step::In(Pods, packet::reset(s.former, s.pod, ISN))]),
            Seen::default(),
        ),
        scenario(
            "an endpoint that left is dialled from outside",
            vec![syn_in(Uplink, s.outside, s.former)],
            Seen::default(),
        ),
        scenario(
            "an endpoint that left is dialled by the node",
            vec![syn_out(Uplink, s.node, s.former)],
            Seen::default(),
        ),
    ]
}
