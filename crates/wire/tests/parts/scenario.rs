//! Sequences of packets with the results that the observer must give. `tests/classify.rs` runs them through
//! the rules over ordinary collections, and `tests/kernel` of node-tests through the compiled programs.
//! Both must give the same results. Numbers in brackets refer to docs/internal/kernel-findings.md. Each
//! such scenario has a negative control beside it.
//!
//! Length: data; one scenario after the other.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use pathproof_wire::evidence::Outcome::{
    self, AnswerNotDelivered, Answered, Arrived, Forwarded, Leaked, Misrouted, Proven, Refused,
    Rejected, Retransmitted, Stale,
};
use pathproof_wire::evidence::{Fault, anomaly_flag};
use pathproof_wire::service::SourceClass::{self, External, Host, Pod};
use pathproof_wire::service::{
    Address, ExpectedHandling, Family, FrontendKind, FrontendValue, endpoint_flag, frontend_flag,
};
use pathproof_wire::transition::Failed;

use self::Device::{Bridge, Client, Overlay, Pods, Redirecting, Uplink};
use crate::packet::{self, Packet, flag, mapped};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Device {
    /// Ingress of clients that are pods of this node.
    Client,
    /// A bridge in front of [`Client`](Self::Client), or its VLAN, which sees the same packet again.
    Bridge,
    /// The device in the routes to the pods of this node.
    Pods,
    /// A pod's device with the flag `FOREIGN`: another program there may redirect packets past all other
    /// hooks.
    Redirecting,
    /// A tunnel, the device in the routes to some pods of other nodes.
    Overlay,
    /// The device in the default routes, flagged as an uplink.
    Uplink,
}

#[derive(Clone, Debug)]
pub enum Step {
    /// A packet at a device's ingress.
    In(Device, Packet),
    /// A packet at a device's egress.
    Out(Device, Packet),
    /// Time passes, in milliseconds.
    Wait(u64),
    /// An endpoint of [`WEB`] is removed from its slice.
    Leaves(SocketAddr),
}

/// Expected results of a scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Counts by Service ID, class and outcome, without zeros.
    pub counts: BTreeMap<(u32, SourceClass, Outcome), u32>,
    /// Failed connections after the loss window.
    pub failed: Vec<(u32, SourceClass, Failed)>,
    pub proven: Vec<SourceClass>,
    /// Faults, without zeros.
    pub faults: BTreeMap<Fault, u64>,
    pub anomalies: Vec<Reported>,
}

/// The relevant fields of an anomaly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported {
    pub outcome: Outcome,
    /// Bits of `anomaly_flag`.
    pub flags: u8,
    /// Destination; zero if it is not relevant.
    pub destination: Address,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub name: &'static str,
    pub steps: Vec<Step>,
    pub seen: Seen,
}

/// A Service with endpoints everywhere.
pub const WEB: u32 = 1;
/// externalTrafficPolicy Local without a local endpoint: nothing is expected for outside clients.
pub const NO_LOCAL: u32 = 2;
/// Without endpoints: a rejection is expected.
pub const EMPTY: u32 = 3;
/// With an endpoint on the node itself.
pub const API: u32 = 4;
/// A load balancer's address with externalTrafficPolicy Local and local endpoints.
pub const LOCAL: u32 = 5;
/// A cluster IP with internalTrafficPolicy Local and local endpoints.
pub const INTERNAL: u32 = 6;
/// Exclusive upper bound of the IDs.
pub const SERVICES: u32 = 7;

/// Addresses of a family.
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
    /// Local endpoint.
    pub here: SocketAddr,
    /// Endpoint behind the overlay.
    pub tunnelled: SocketAddr,
    /// Endpoint behind the uplink.
    pub routed: SocketAddr,
    /// Removed endpoint on this node.
    pub former: SocketAddr,
    /// An address that is no endpoint.
    pub stranger: SocketAddr,
    pub pod: SocketAddr,
    pub pod2: SocketAddr,
    /// A pod without a route, whose packets leave by the default route and the uplink.
    pub routeless: SocketAddr,
    pub node: SocketAddr,
    /// A client outside.
    pub outside: SocketAddr,
}

impl Stage {
    /// The addresses fit the routes of `node_tests::observer::Sandbox`.
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

    /// Every frontend with its value in the map.
    pub fn frontends(&self) -> [(SocketAddr, FrontendValue); 7] {
        use ExpectedHandling::{Forward, LocalOnly, Nothing, Reject};
        use FrontendKind::{ClusterIp, ExternalIp, LoadBalancer, NodePort};
        let frontend = |at, service, kind: FrontendKind, owed: [ExpectedHandling; 3], flags| {
            let value = FrontendValue {
                service,
                kind: kind as u8,
                flags,
                owed: owed.map(|owed| owed as u8),
                ..FrontendValue::default()
            };
            (at, value)
        };
        // Expectations of policy Local, without and with a local endpoint.
        let (without, with) = ([Forward, Forward, Nothing], [Forward, Forward, LocalOnly]);
        let departed = [Forward, Nothing, Nothing];
        let (on_host, gone) = (frontend_flag::HOST_ENDPOINT, frontend_flag::DEPARTED);
        [
            frontend(self.web, WEB, ClusterIp, [Forward; 3], 0),
            frontend(self.no_local, NO_LOCAL, NodePort, without, 0),
            frontend(self.empty, EMPTY, ClusterIp, [Reject; 3], 0),
            frontend(self.internal, INTERNAL, ClusterIp, [LocalOnly; 3], 0),
            frontend(self.local, LOCAL, LoadBalancer, with, 0),
            frontend(self.api, API, ClusterIp, [Forward; 3], on_host),
            frontend(self.former, WEB, ExternalIp, departed, gone),
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

    /// A pod dials [`WEB`].
    fn dialled(&self, name: &'static str) -> Scenario {
        scenario(name).syn_in(Client, self.pod, self.web)
    }

    /// Like [`dialled`](Self::dialled), and the SYN is forwarded to a pod of this node.
    fn forwarded(&self, name: &'static str) -> Scenario {
        self.dialled(name).syn_out(Pods, self.pod, self.here)
    }

    /// Like [`forwarded`](Self::forwarded), and the pod's answer is forwarded too.
    fn answered(&self, name: &'static str) -> Scenario {
        self.forwarded(name)
            .answer_in(Pods, self.here, self.pod)
            .answer_out(Client, self.web, self.pod)
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

/// The initial sequence number of all scenarios, so high that sums wrap around.
pub const ISN: u32 = u32::MAX - 4;

fn scenario(name: &'static str) -> Scenario {
    Scenario {
        name,
        steps: Vec::new(),
        seen: Seen::default(),
    }
}

impl Scenario {
    fn step(mut self, step: Step) -> Self {
        self.steps.push(step);
        self
    }

    fn syn_in(self, by: Device, client: SocketAddr, to: SocketAddr) -> Self {
        self.step(Step::In(by, packet::syn(client, to, ISN)))
    }

    fn syn_out(self, by: Device, client: SocketAddr, to: SocketAddr) -> Self {
        self.step(Step::Out(by, packet::syn(client, to, ISN)))
    }

    fn answer_in(self, by: Device, from: SocketAddr, client: SocketAddr) -> Self {
        self.step(Step::In(by, packet::syn_ack(from, client, ISN)))
    }

    fn answer_out(self, by: Device, from: SocketAddr, client: SocketAddr) -> Self {
        self.step(Step::Out(by, packet::syn_ack(from, client, ISN)))
    }

    fn reset_in(self, by: Device, from: SocketAddr, client: SocketAddr) -> Self {
        self.step(Step::In(by, packet::reset(from, client, ISN)))
    }

    fn reset_out(self, by: Device, from: SocketAddr, client: SocketAddr) -> Self {
        self.step(Step::Out(by, packet::reset(from, client, ISN)))
    }

    /// An ICMP error about the client's SYN, on its way to the client.
    fn unreachable_out(
        self,
        by: Device,
        from: SocketAddr,
        client: SocketAddr,
        to: SocketAddr,
    ) -> Self {
        let about = packet::syn(client, to, ISN);
        // Port unreachable.
        let (kind, code) = if from.is_ipv4() { (3, 3) } else { (1, 4) };
        let error = packet::icmp_error(from.ip(), client.ip(), kind, code, &about);
        self.step(Step::Out(by, error))
    }

    fn wait(self, milliseconds: u64) -> Self {
        self.step(Step::Wait(milliseconds))
    }
}

impl Scenario {
    /// Adds outcomes of a Service and class, once each; failures are added to `failed`.
    fn seen(mut self, service: u32, class: SourceClass, outcomes: &[Outcome]) -> Self {
        for outcome in outcomes {
            let failed = match outcome {
                Refused => Failed::Refused,
                Leaked => Failed::Leaked,
                Misrouted => Failed::Misrouted,
                Stale => Failed::Stale,
                _ => {
                    let count = self.seen.counts.entry((service, class, *outcome));
                    *count.or_default() += 1;
                    continue;
                }
            };
            self.seen.failed.push((service, class, failed));
        }
        if outcomes.contains(&Proven) {
            self.seen.proven.push(class);
        }
        self
    }

    /// Like [`seen`](Self::seen), for a lost connection, whose SYN or answer was not forwarded.
    fn lost(self, service: u32, class: SourceClass, outcomes: &[Outcome]) -> Self {
        let mut lost = self.seen(service, class, outcomes);
        lost.seen.failed.push((service, class, Failed::Lost));
        lost
    }

    fn fault(mut self, fault: Fault) -> Self {
        *self.seen.faults.entry(fault).or_default() += 1;
        self
    }

    fn reported(mut self, outcome: Outcome, flags: u8, destination: Option<SocketAddr>) -> Self {
        let destination = destination.map_or([0; 16], |at| mapped(at.ip()));
        self.seen.anomalies.push(Reported {
            outcome,
            flags,
            destination,
        });
        self
    }
}

/// All scenarios of a family. Each starts with an empty map of connections.
pub fn all(family: Family) -> Vec<Scenario> {
    let stage = Stage::new(family);
    let parts = [
        forwarding,
        first_syns,
        one_connection,
        shared,
        expected_handling,
        fast_open,
        leaks,
        answers,
        refusals,
        lateness,
        departed,
    ];
    parts.iter().flat_map(|part| part(&stage)).collect()
}

/// Forwarding alone is no proof. The packet must leave by the device in the route, or be answered (finding
/// 10).
fn forwarding(s: &Stage) -> Vec<Scenario> {
    let answered = [Arrived, Forwarded, Proven, Answered];
    vec![
        s.answered("forwarded to a pod of this node, and answered")
            .seen(WEB, Pod, &answered),
        s.dialled("the route to a pod of this node is gone [10]")
            .syn_out(Uplink, s.pod, s.here)
            .seen(WEB, Pod, &[Arrived, Misrouted])
            .reported(Misrouted, anomaly_flag::MISDELIVERED, Some(s.here)),
        s.dialled("forwarded into the tunnel that the route names, which may lead nowhere")
            .syn_out(Overlay, s.pod, s.tunnelled)
            .seen(WEB, Pod, &[Arrived, Forwarded]),
        s.dialled("forwarded into the tunnel, and answered")
            .syn_out(Overlay, s.pod, s.tunnelled)
            .answer_in(Overlay, s.tunnelled, s.pod)
            .answer_out(Client, s.web, s.pod)
            .seen(WEB, Pod, &answered),
        s.dialled("forwarded by a device that the route does not name [10]")
            .syn_out(Pods, s.pod, s.tunnelled)
            .seen(WEB, Pod, &[Arrived, Forwarded]),
        s.dialled("forwarded by the uplink, where the next hop may lead nowhere [10]")
            .syn_out(Uplink, s.node, s.routed)
            .seen(WEB, Pod, &[Arrived, Forwarded]),
        s.dialled("forwarded by the uplink, and answered")
            .syn_out(Uplink, s.node, s.routed)
            .answer_in(Uplink, s.routed, s.node)
            .answer_out(Client, s.web, s.pod)
            .seen(WEB, Pod, &answered),
        s.dialled("forwarded by the uplink, and a router behind it knows no way [10]")
            .syn_out(Uplink, s.node, s.routed)
            .unreachable_out(Client, s.outside, s.pod, s.web)
            .seen(WEB, Pod, &[Arrived, Forwarded]),
        scenario("from outside, masqueraded")
            .syn_in(Uplink, s.outside, s.local)
            .syn_out(Pods, s.node, s.here)
            .seen(LOCAL, External, &[Arrived, Forwarded, Proven]),
        scenario("to somebody else")
            .syn_in(Client, s.pod, s.stranger)
            .syn_out(Pods, s.pod, s.stranger)
            .answer_in(Pods, s.stranger, s.pod)
            .reset_out(Client, s.stranger, s.pod),
    ]
}

/// Only a first SYN is evidence, because a retransmitted one follows the old conntrack entry (finding 11).
fn first_syns(s: &Stage) -> Vec<Scenario> {
    vec![
        s.dialled("a first SYN to an endpoint that left [11]")
            .syn_out(Pods, s.pod, s.former)
            .seen(WEB, Pod, &[Arrived, Stale])
            .reported(Stale, 0, Some(s.former)),
        s.forwarded("an endpoint leaves while its client tries again [11]")
            .step(Step::Leaves(s.here))
            .wait(1_100)
            .syn_in(Client, s.pod, s.web)
            .syn_out(Pods, s.pod, s.here)
            .seen(WEB, Pod, &[Arrived, Forwarded, Proven, Retransmitted]),
        s.dialled("a first SYN to no endpoint")
            .syn_out(Pods, s.pod, s.stranger)
            .seen(WEB, Pod, &[Arrived, Misrouted])
            .reported(Misrouted, 0, Some(s.stranger)),
        s.dialled("a SYN that came again, to no endpoint [11]")
            .wait(300)
            .syn_in(Client, s.pod, s.web)
            .syn_out(Pods, s.pod, s.stranger)
            .lost(WEB, Pod, &[Arrived, Retransmitted]),
        s.dialled("a SYN that came again, to an endpoint that left [11]")
            .wait(300)
            .syn_in(Client, s.pod, s.web)
            .syn_out(Pods, s.pod, s.former)
            .lost(WEB, Pod, &[Arrived, Retransmitted]),
    ]
}

/// A connection has one outcome, however many devices it crosses (finding 12).
fn one_connection(s: &Stage) -> Vec<Scenario> {
    let tagged = packet::syn(s.pod, s.web, ISN).tagged(packet::VLAN);
    let proven = [Arrived, Forwarded, Proven];
    vec![
        scenario("one SYN at a port, its VLAN and the bridge [12]")
            .step(Step::In(Client, tagged))
            .syn_in(Bridge, s.pod, s.web)
            .syn_out(Pods, s.pod, s.here)
            .syn_out(Bridge, s.pod, s.here)
            .seen(WEB, Pod, &proven),
        s.dialled("translated between a port and its bridge [12]")
            .syn_in(Bridge, s.pod, s.here)
            .syn_out(Pods, s.pod, s.here)
            .seen(WEB, Pod, &proven),
        s.dialled("leaked out of a VLAN and its parent [12]")
            .syn_out(Bridge, s.pod, s.web)
            .syn_out(Uplink, s.pod, s.web)
            .seen(WEB, Pod, &[Arrived, Leaked])
            .reported(Leaked, 0, Some(s.web)),
        s.dialled("seen twice at one device, while links are exchanged")
            .syn_in(Client, s.pod, s.web)
            .syn_out(Pods, s.pod, s.here)
            .syn_out(Pods, s.pod, s.here)
            .seen(WEB, Pod, &proven),
        s.dialled("leaked, turned back by a router, forwarded, and answered")
            .syn_out(Uplink, s.pod, s.web)
            .syn_in(Uplink, s.pod, s.web)
            .syn_out(Pods, s.pod, s.here)
            .answer_in(Pods, s.here, s.pod)
            .answer_out(Uplink, s.here, s.pod)
            .answer_in(Uplink, s.web, s.pod)
            .answer_out(Client, s.web, s.pod)
            .seen(WEB, Pod, &[Arrived, Forwarded, Answered, Proven])
            .reported(Leaked, 0, Some(s.web)),
    ]
}

/// Two connections with the same initial sequence number give no evidence (finding 13).
fn shared(s: &Stage) -> Vec<Scenario> {
    vec![
        s.dialled("another client, the same number [13]")
            .syn_in(Client, s.pod2, s.web)
            .syn_out(Pods, s.pod, s.stranger)
            .seen(WEB, Pod, &[Arrived])
            .fault(Fault::Ambiguous),
        s.dialled("another client at another device, the same number [13]")
            .syn_in(Bridge, s.pod2, s.web)
            .syn_out(Pods, s.pod, s.stranger)
            .seen(WEB, Pod, &[Arrived])
            .fault(Fault::Ambiguous),
        s.dialled("another client at another device, another frontend, the same number [13]")
            .syn_in(Uplink, s.outside, s.local)
            .syn_out(Pods, s.pod, s.stranger)
            .seen(WEB, Pod, &[Arrived])
            .fault(Fault::Ambiguous),
        s.dialled("leaked with the node's address, and turned back by a router")
            .syn_out(Uplink, s.node, s.web)
            .syn_in(Uplink, s.node, s.web)
            .syn_out(Uplink, s.node, s.web)
            .seen(WEB, Pod, &[Arrived, Leaked])
            .reported(Leaked, 0, Some(s.web)),
        s.dialled("misdelivered with the node's address, and turned back by a router")
            .syn_out(Uplink, s.node, s.here)
            .syn_in(Uplink, s.node, s.here)
            .syn_out(Uplink, s.node, s.here)
            .seen(WEB, Pod, &[Arrived, Misrouted])
            .reported(Misrouted, anomaly_flag::MISDELIVERED, Some(s.here)),
        s.dialled("misdelivered, and a copy leaves by another device")
            .syn_out(Uplink, s.pod, s.here)
            .syn_out(Bridge, s.pod, s.here)
            .seen(WEB, Pod, &[Arrived, Misrouted])
            .reported(Misrouted, anomaly_flag::MISDELIVERED, Some(s.here)),
        s.dialled("a scanner with a constant number, two frontends [13]")
            .syn_in(Client, s.pod, s.empty)
            .syn_out(Pods, s.pod, s.stranger)
            .syn_out(Uplink, s.pod, s.web)
            .seen(WEB, Pod, &[Arrived])
            .fault(Fault::Ambiguous),
        s.dialled("the same number in the answer to somebody else")
            .reset_out(Client, s.web, s.pod2)
            .lost(WEB, Pod, &[Arrived]),
    ]
}

/// The expected outcome depends on the source of a connection (finding 15).
fn expected_handling(s: &Stage) -> Vec<Scenario> {
    vec![
        scenario("policy Local without a local endpoint: refused to the outside [15]")
            .syn_in(Uplink, s.outside, s.no_local)
            .reset_out(Uplink, s.no_local, s.outside)
            .seen(NO_LOCAL, External, &[Arrived, Rejected]),
        scenario("policy Local without a local endpoint: refused to a pod [15]")
            .syn_in(Client, s.pod, s.no_local)
            .reset_out(Client, s.no_local, s.pod)
            .seen(NO_LOCAL, Pod, &[Arrived, Refused])
            .reported(Refused, 0, None),
        // This is neither proof nor failure, because the source may be a pod of another node, for which it
        // is allowed.
        scenario("policy Local: from outside to another node [15]")
            .syn_in(Uplink, s.outside, s.local)
            .syn_out(Overlay, s.outside, s.tunnelled)
            .seen(LOCAL, External, &[Arrived, Forwarded]),
        scenario("internal policy Local: from a pod to another node [15]")
            .syn_in(Client, s.pod, s.internal)
            .syn_out(Overlay, s.pod, s.tunnelled)
            .seen(INTERNAL, Pod, &[Arrived, Misrouted])
            .reported(Misrouted, 0, Some(s.tunnelled)),
        scenario("policy Local: from a pod to another node [15]")
            .syn_in(Client, s.pod, s.local)
            .syn_out(Overlay, s.pod, s.tunnelled)
            .seen(LOCAL, Pod, &[Arrived, Forwarded]),
        scenario("no endpoints: rejected")
            .syn_in(Client, s.pod, s.empty)
            .unreachable_out(Client, s.empty, s.pod, s.empty)
            .seen(EMPTY, Pod, &[Arrived, Rejected]),
    ]
}

/// The answer to a SYN with payload may acknowledge the payload (finding 16).
fn fast_open(s: &Stage) -> Vec<Scenario> {
    let data = [7; 10];
    let dials = |to| packet::tcp(s.pod, to, flag::SYN, ISN, 0, &data);
    let begins = |name| {
        scenario(name)
            .step(Step::In(Client, dials(s.web)))
            .step(Step::Out(Pods, dials(s.here)))
    };
    let flags = flag::SYN | flag::ACK;
    let accepts = packet::tcp(s.here, s.pod, flags, 1, ISN.wrapping_add(11), &[]);
    let answered = [Arrived, Forwarded, Proven, Answered];
    vec![
        begins("fast open, accepted [16]")
            .step(Step::In(Pods, accepts))
            .answer_out(Client, s.web, s.pod)
            .seen(WEB, Pod, &answered),
        begins("fast open, declined [16]")
            .answer_in(Pods, s.here, s.pod)
            .answer_out(Client, s.web, s.pod)
            .seen(WEB, Pod, &answered),
    ]
}

/// Connections of the node itself have no arrival, and nested clusters may use the same ranges (finding 17).
fn leaks(s: &Stage) -> Vec<Scenario> {
    let unseen = anomaly_flag::UNSEEN_ARRIVAL;
    vec![
        s.dialled("leaked, from a pod")
            .syn_out(Uplink, s.pod, s.web)
            .seen(WEB, Pod, &[Arrived, Leaked])
            .reported(Leaked, 0, Some(s.web)),
        s.dialled("leaked, from a pod, masqueraded")
            .syn_out(Uplink, s.node, s.web)
            .seen(WEB, Pod, &[Arrived, Leaked])
            .reported(Leaked, 0, Some(s.web)),
        scenario("leaked, from the node [17]")
            .syn_out(Uplink, s.node, s.web)
            .seen(WEB, Host, &[Leaked])
            .reported(Leaked, unseen, Some(s.web)),
        scenario("leaked, from a pod whose arrival was not seen [17]")
            .syn_out(Uplink, s.pod, s.web)
            .seen(WEB, Pod, &[Leaked])
            .reported(Leaked, unseen, Some(s.web)),
        scenario("leaked, and tried again")
            .syn_out(Uplink, s.node, s.web)
            .wait(1_100)
            .syn_out(Uplink, s.node, s.web)
            .seen(WEB, Host, &[Leaked])
            .reported(Leaked, unseen, Some(s.web)),
        scenario("a cluster IP passes through, of a nested cluster [17]")
            .syn_out(Uplink, s.outside, s.web),
        scenario("a load balancer's address leaves on purpose [17]")
            .syn_out(Uplink, s.node, s.local),
        scenario("a cluster IP leaves by a device that is no uplink [17]")
            .syn_out(Pods, s.node, s.web),
        scenario("a cluster IP without endpoints leaves [17]").syn_out(Uplink, s.node, s.empty),
    ]
}

fn answers(s: &Stage) -> Vec<Scenario> {
    let proven = [Arrived, Forwarded, Proven];
    let answered = [Arrived, Forwarded, Proven, Answered];
    let not_delivered = |name| {
        s.answered(name)
            .wait(1_100)
            .syn_in(Client, s.pod, s.web)
            .seen(WEB, Pod, &answered)
            .seen(WEB, Pod, &[AnswerNotDelivered])
            .reported(AnswerNotDelivered, 0, None)
    };
    let leaves_by_the_uplink = |name, came_in| {
        scenario(name)
            .syn_in(came_in, s.routeless, s.web)
            .syn_out(Pods, s.routeless, s.here)
            .answer_in(Pods, s.here, s.routeless)
            .answer_out(Uplink, s.web, s.routeless)
    };
    vec![
        not_delivered("the answer is not heard"),
        not_delivered("the answer is not heard, twice")
            .wait(200)
            .syn_in(Client, s.pod, s.web)
            .seen(WEB, Pod, &[Retransmitted]),
        s.dialled("redirected to the peer: an endpoint answers, and a program may carry that past all hooks")
            .answer_in(Redirecting, s.here, s.pod)
            .seen(WEB, Pod, &[Arrived, Answered, Proven]),
        s.dialled("an endpoint answers, and that does not go on to the pod")
            .answer_in(Pods, s.here, s.pod)
            .lost(WEB, Pod, &[Arrived]),
        scenario("an endpoint answers a client outside, and that leaves by no uplink")
            .syn_in(Uplink, s.outside, s.local)
            .answer_in(Redirecting, s.here, s.outside)
            .lost(LOCAL, External, &[Arrived]),
        scenario("an endpoint answers a client outside, and that leaves by an uplink")
            .syn_in(Uplink, s.outside, s.local)
            .answer_in(Redirecting, s.here, s.outside)
            .answer_out(Uplink, s.local, s.outside)
            .seen(LOCAL, External, &[Arrived, Answered, Proven]),
        scenario("an endpoint answers a client outside, by a network that no default route names")
            .syn_in(Uplink, s.outside, s.local)
            .answer_in(Pods, s.here, s.outside)
            .answer_out(Overlay, s.local, s.outside)
            .seen(LOCAL, External, &[Arrived, Answered, Proven]),
        scenario("a copy of an answer to a client outside leaves as the endpoint's own")
            .syn_in(Uplink, s.outside, s.local)
            .answer_in(Pods, s.here, s.outside)
            .answer_out(Overlay, s.here, s.outside)
            .lost(LOCAL, External, &[Arrived]),
        scenario("the same by a device where a program of others runs")
            .syn_in(Uplink, s.outside, s.local)
            .answer_in(Pods, s.here, s.outside)
            .answer_out(Redirecting, s.here, s.outside)
            .lost(LOCAL, External, &[Arrived]),
        s.forwarded("an answer that leaves as the endpoint's own, which its client could not know")
            .answer_in(Pods, s.here, s.pod)
            .answer_out(Client, s.here, s.pod)
            .lost(WEB, Pod, &proven),
        scenario("an answer that leaves as the endpoint's own, and a program behind translates it")
            .syn_in(Redirecting, s.pod, s.web)
            .syn_out(Pods, s.pod, s.here)
            .answer_in(Pods, s.here, s.pod)
            .answer_out(Redirecting, s.here, s.pod)
            .seen(WEB, Pod, &answered),
        s.forwarded("a copy of an answer leaves by another device")
            .answer_in(Pods, s.here, s.pod)
            .answer_out(Bridge, s.web, s.pod)
            .lost(WEB, Pod, &proven),
        leaves_by_the_uplink(
            "an answer for a pod without a route leaves by the uplink, which the default route names",
            Client,
        )
        .lost(WEB, Pod, &proven),
        leaves_by_the_uplink(
            "a client that comes in by the uplink under a pod's address is outside, and answered there",
            Uplink,
        )
        .seen(WEB, External, &answered),
        s.dialled("a copy of a SYN leaves by another device")
            .syn_out(Bridge, s.pod, s.web)
            .syn_out(Pods, s.pod, s.here)
            .answer_in(Pods, s.here, s.pod)
            .answer_out(Client, s.web, s.pod)
            .seen(WEB, Pod, &answered),
        s.dialled("an endpoint that left still answers")
            .syn_out(Pods, s.pod, s.former)
            .answer_in(Pods, s.former, s.pod)
            .answer_out(Client, s.web, s.pod)
            .seen(WEB, Pod, &[Arrived, Answered, Proven])
            .reported(Stale, 0, Some(s.former)),
        s.dialled("who is no endpoint refuses")
            .syn_out(Pods, s.pod, s.stranger)
            .reset_in(Pods, s.stranger, s.pod)
            .reset_out(Client, s.web, s.pod)
            .seen(WEB, Pod, &[Arrived, Misrouted])
            .reported(Misrouted, 0, Some(s.stranger)),
        s.dialled("a former endpoint answers that nothing was seen leaving for")
            .answer_in(Pods, s.former, s.pod)
            .lost(WEB, Pod, &[Arrived]),
        s.dialled("answered on this node by something else")
            .answer_out(Client, s.web, s.pod)
            .seen(WEB, Pod, &[Arrived, Answered])
            .fault(Fault::AnsweredLocally),
        scenario("answered by an endpoint on the node itself")
            .syn_in(Client, s.pod, s.api)
            .answer_out(Client, s.api, s.pod)
            .seen(API, Pod, &[Arrived, Answered, Proven]),
        s.forwarded("refused by an endpoint of the Service")
            .reset_in(Pods, s.here, s.pod)
            .reset_out(Client, s.web, s.pod)
            .seen(WEB, Pod, &answered),
    ]
}

fn refusals(s: &Stage) -> Vec<Scenario> {
    vec![
        s.dialled("refused by the node")
            .reset_out(Client, s.web, s.pod)
            .seen(WEB, Pod, &[Arrived, Refused])
            .reported(Refused, 0, None),
        s.dialled("refused by the node by ICMP")
            .unreachable_out(Client, s.web, s.pod, s.web)
            .seen(WEB, Pod, &[Arrived, Refused])
            .reported(Refused, anomaly_flag::ICMP, None),
        scenario("refused, perhaps by the endpoint on the node itself")
            .syn_in(Client, s.pod, s.api)
            .reset_out(Client, s.api, s.pod)
            .seen(API, Pod, &[Arrived]),
    ]
}

/// After the loss window a connection counts as lost, and gets no second outcome.
fn lateness(s: &Stage) -> Vec<Scenario> {
    let late = |name| s.dialled(name).wait(1_500);
    let lost = |scenario: Scenario| scenario.lost(WEB, Pod, &[Arrived]);
    vec![
        late("lost, then through: proof, and no second outcome")
            .syn_in(Client, s.pod, s.web)
            .syn_out(Pods, s.pod, s.here)
            .answer_in(Pods, s.here, s.pod)
            .answer_out(Client, s.web, s.pod)
            .seen(WEB, Pod, &[Arrived, Retransmitted, Proven]),
        late("lost, then redirected to the peer")
            .answer_in(Redirecting, s.here, s.pod)
            .seen(WEB, Pod, &[Arrived, Proven]),
        lost(late("lost, then leaked").syn_out(Uplink, s.pod, s.web)),
        lost(late("lost, then misrouted").syn_out(Pods, s.pod, s.stranger)),
        lost(late("lost, then refused").reset_out(Client, s.web, s.pod)),
        s.dialled("sent on before the rules went, and answered when it came again [11]")
            .syn_out(Uplink, s.pod, s.routed)
            .wait(1_500)
            .syn_in(Client, s.pod, s.web)
            .syn_out(Uplink, s.pod, s.routed)
            .answer_in(Uplink, s.routed, s.pod)
            .answer_out(Client, s.web, s.pod)
            .seen(WEB, Pod, &[Arrived, Forwarded, Retransmitted, Answered]),
        s.forwarded("forwarded in time, answered late")
            .wait(1_500)
            .answer_in(Pods, s.here, s.pod)
            .answer_out(Client, s.web, s.pod)
            .seen(WEB, Pod, &[Arrived, Forwarded, Proven, Answered]),
    ]
}

/// A pod dials the address of a removed endpoint directly. That is a failure only while it is unanswered,
/// and never a proof.
fn departed(s: &Stage) -> Vec<Scenario> {
    let dialled = |name| {
        scenario(name)
            .syn_in(Client, s.pod, s.former)
            .syn_out(Uplink, s.pod, s.former)
    };
    vec![
        dialled("an endpoint that left is dialled, and silent")
            .wait(1_500)
            .syn_in(Client, s.pod, s.former)
            .seen(WEB, Pod, &[Stale]),
        dialled("an endpoint that left is dialled, and answers")
            .answer_in(Pods, s.former, s.pod)
            .answer_out(Client, s.former, s.pod),
        dialled("an endpoint that left is dialled, and its answer is redirected to the pod")
            .answer_in(Pods, s.former, s.pod),
        dialled("an endpoint that left is dialled, and refuses").reset_in(Pods, s.former, s.pod),
        scenario("an endpoint that left is dialled from outside")
            .syn_in(Uplink, s.outside, s.former),
        scenario("an endpoint that left is dialled by the node").syn_out(Uplink, s.node, s.former),
    ]
}
