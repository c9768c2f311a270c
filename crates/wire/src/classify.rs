//! Classifies packets that a hook sees: computes a connection's [`Step`] from a [`Segment`] and the content
//! of the maps.
//!
//! This is the only code that decides outcomes. Through [`World`] it runs in the kernel over BPF maps and
//! in the tests over ordinary collections. It never decides whether a packet passes. It only reports
//! packets that may be probes of the sentinel leaving the node, which the caller drops.
//!
//! Rules (for the findings see docs/internal/kernel-findings.md):
//! - A connection is matched by its initial sequence number, never by its tuple. Outcomes are counted per
//!   connection and not per packet seen, so a SYN that crosses a bridge, its port and a VLAN is counted
//!   once (finding 12).
//! - Only a first SYN is evidence of misrouting or staleness. A repeated one follows the old conntrack
//!   entry (finding 11).
//! - If two tuples have the same initial sequence number at the same time, both connections are ambiguous
//!   (finding 13).
//! - Forwarding alone is no proof, because an uplink or a tunnel may lead nowhere (finding 10). Proof is an
//!   answer that is forwarded to the client, or a SYN that leaves for an endpoint of this node by the
//!   device that the route specifies.
//! - An apparent failure may be a copy of the packet, or part of a path that another program provides. So
//!   it counts only if no answer arrives in time. Untranslated packets are evidence only at uplinks.
//! - The sentinel's probes are followed and counted like all connections, but are no evidence of real
//!   traffic: no proof of a path, no anomaly. The agent reads the outcome of each probe from its
//!   stamps and state.
//!
//! Length: one decision, read from top to bottom; its parts share the packet and the maps.

use crate::evidence::{
    Anomaly, Fault, Outcome, Pending, PendingKey, anomaly_flag, range_of, state,
};
use crate::gate::Sampled;
use crate::packet::{Kind, Segment};
use crate::service::{
    Address, EndpointEntry, EndpointKey, ExpectedHandling, FrontendKey, FrontendKind,
    FrontendValue, NEAR, PEER_SHIFT, Port, SourceClass, TCP, device_flag, endpoint_flag,
    frontend_flag,
};
use crate::transition::{self, Sighting, Step, advance, detail};

/// Direction in which a packet crosses the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device into the node.
    Ingress,
    /// From the node out of the device.
    Egress,
}

/// A pending connection, wherever it is stored.
pub trait Connection {
    /// Its fields; `state` may be out of date by the time it is read.
    fn fields(&self) -> &Pending;
    fn state(&self) -> u32;
    /// Moves the state from `from` to `to` if it is still `from`. Returns whether it did.
    fn swap(&self, from: u32, to: u32) -> bool;
    /// Records the time from a datagram's arrival to its first answer, in microseconds.
    fn answered_after(&self, _us: u32) {}
    /// Records the other node that a connection was sent to, or [`NEAR`], the device by which it left, and
    /// the endpoint's range ([`range_of`]).
    fn sent_to(&self, _peer: u16, _device: u32, _range: u32) {}
}

/// Inputs and actions of the rules.
pub trait World {
    /// See [`Connection`].
    type Connection: Connection;
    /// `CLOCK_MONOTONIC` in nanoseconds.
    fn now(&self) -> u64;
    /// Index of the device that the packet crosses.
    fn device(&self) -> u32;
    fn device_flags(&self) -> u32;
    /// Whether the route to the segment's destination leaves by this device.
    fn route_names_device(&self, segment: &Segment) -> bool;
    fn frontend(&self, key: &FrontendKey) -> Option<FrontendValue>;
    fn endpoint(&self, key: &EndpointKey) -> Option<EndpointEntry>;
    /// Records that a new connection was sent to an endpoint ([`EndpointEntry::met_ns`]).
    fn meet(&self, _key: &EndpointKey) {}
    fn source_class(&self, address: &Address) -> SourceClass;
    /// Takes one connection from a source's budget. Returns false if it is used up.
    fn take_budget(&self, source: &Address) -> bool;
    /// Takes one datagram from a Service's budget. Returns false if it is used up.
    fn take_rate(&self, _service: u32) -> bool {
        true
    }
    /// Marks a newly followed datagram, or the connection of a repeated SYN, so that it passes the gate at
    /// every hook.
    fn mark(&self, _segment: &Segment) {}
    /// Marks the client of an answer, whose further answers need not pass the gate.
    fn mark_answered(&self, _answer: &Segment) {}
    /// Watches for data after a sequence number. The number of an answered connection's SYN selects the
    /// client's first data. The last number of that data selects the data that acknowledges it.
    fn watch(&self, _number: u32) {}
    /// Whether the frame is addressed to another host on the link (`PACKET_OTHERHOST`).
    fn is_for_other_host(&self) -> bool {
        false
    }
    /// Decides whether to follow a new connection of a Service, and counts it.
    fn sample(&self, _service: u32, _isn: u32) -> Sampled {
        Sampled::First
    }
    /// Whether the gate selects this connection.
    fn is_sampled(&self, _service: u32, _isn: u32) -> bool {
        true
    }
    /// The connection with an initial sequence number. A connection without progress for some time may be
    /// missing, because it was already reported as failed.
    fn connection(&self, key: &PendingKey) -> Option<Self::Connection>;
    /// Starts to follow a connection. Returns false if the connection is already followed, or if there is
    /// no room. Lack of room is counted as a fault.
    fn follow(&self, key: &PendingKey, pending: &Pending) -> bool;
    fn count(&self, service: u32, class: u8, outcome: Outcome);
    fn prove(&self, family: u32, class: u8);
    fn fault(&self, fault: Fault);
    /// Reports an anomaly within the limits.
    fn report(&self, anomaly: &AnomalyParts<'_>);
}

/// Parts of an [`Anomaly`], which is only built if it is reported.
pub struct AnomalyParts<'a> {
    fields: &'a Pending,
    segment: &'a Segment,
    outcome: Outcome,
    flags: u8,
}

impl AnomalyParts<'_> {
    #[inline(always)]
    pub fn service(&self) -> u32 {
        self.fields.service
    }

    /// The record of a sighting at `at_ns` at `device`.
    #[inline(always)]
    pub fn record(&self, at_ns: u64, device: u32) -> Anomaly {
        let Self {
            fields,
            segment,
            outcome,
            flags,
        } = *self;
        let (destination, destination_port) = match outcome {
            Outcome::Leaked | Outcome::Misrouted | Outcome::Stale => {
                (segment.destination, segment.destination_port)
            }
            _ => ([0; 16], [0; 2]),
        };
        Anomaly {
            at_ns,
            arrived_ns: fields.arrived_ns,
            isn: segment.isn,
            service: fields.service,
            device,
            outcome: outcome as u8,
            class: fields.class,
            kind: fields.kind,
            flags,
            client: fields.client,
            frontend: fields.frontend,
            destination,
            client_port: fields.client_port,
            frontend_port: fields.frontend_port,
            destination_port,
            padding: [0; 2],
        }
    }
}

/// Processes a packet that a hook sees. Returns whether it may be a probe of the sentinel that leaves the
/// node untranslated. The caller must check whether it is a probe, since other clients may dial the
/// sentinel's frontend too.
#[inline(always)]
pub fn observe<W: World>(world: &W, direction: Direction, segment: &Segment) -> bool {
    if segment.kind == Kind::Datagram {
        return false;
    }
    let key = key_of(segment);
    // One lookup for all cases, so that the compiled program contains it once.
    let known = match (world.connection(&key), segment.kind, direction) {
        (None, Kind::Syn, Direction::Ingress) => arrives(world, segment, &key),
        (None, Kind::Syn, Direction::Egress) => return leaves_unseen(world, segment, &key),
        (None, Kind::Data, Direction::Egress) => world.connection(&answered_key(segment)),
        (known, _, _) => known,
    };
    let Some(connection) = known else {
        return false;
    };
    let seen = match (segment.kind, direction) {
        (Kind::Syn, Direction::Ingress) => arrives_again(world, segment, connection),
        (Kind::Syn, Direction::Egress) => leaves(world, segment, connection),
        (Kind::Data, _) => data(world, direction, segment, connection),
        _ => answered(world, direction, segment, connection),
    };
    // One call for all cases, so that the compiled program contains the steps once.
    let Some((connection, sighting)) = seen else {
        return false;
    };
    step(world, &connection, segment, sighting, direction);
    is_stray(connection.fields(), sighting)
}

/// Whether a followed packet to the sentinel's frontend leaves by an uplink untranslated. No probe should
/// leave its node.
#[inline(always)]
fn is_stray(fields: &Pending, sighting: Sighting) -> bool {
    sighting.kind == transition::Kind::Untranslated && is_probe(fields)
}

/// A followed connection and its sighting; `None` if there is nothing more to do.
pub(crate) type Seen<W> = Option<(<W as World>::Connection, Sighting)>;

#[inline(always)]
fn key_of(segment: &Segment) -> PendingKey {
    PendingKey {
        isn: segment.isn,
        family: segment.family as u32,
    }
}

/// Key of the connection whose first data this data acknowledges.
#[inline(always)]
fn answered_key(segment: &Segment) -> PendingKey {
    PendingKey {
        isn: segment.acknowledged(),
        ..key_of(segment)
    }
}

/// An address as one number, because the compiler compares arrays byte by byte, in a call.
#[inline(always)]
fn number(address: Address) -> u128 {
    u128::from_ne_bytes(address)
}

#[inline(always)]
pub(crate) fn same(one: (Address, Port), other: (Address, Port)) -> bool {
    number(one.0) == number(other.0) && u16::from_ne_bytes(one.1) == u16::from_ne_bytes(other.1)
}

#[inline(always)]
fn frontend_key(address: Address, port: Port) -> FrontendKey {
    FrontendKey {
        address,
        port,
        protocol: TCP,
        padding: 0,
    }
}

/// A SYN enters that has no mark of a followed connection. Returns its connection if there is one
/// nevertheless: the SYN was repeated after the mark expired, or another CPU has just added the connection.
#[inline(always)]
fn arrives<W: World>(world: &W, segment: &Segment, key: &PendingKey) -> Option<W::Connection> {
    let to = frontend_key(segment.destination, segment.destination_port);
    let frontend = world.frontend(&to)?;
    // Ignore a frame for another host (promiscuous mode, flooding) at an uplink, because IP drops it. A
    // bridge forwards such a frame that enters by its port.
    let is_passing_by =
        world.is_for_other_host() && world.device_flags() & device_flag::UPLINK != 0;
    if is_passing_by || is_of_other_nodes(world, &frontend) {
        return None;
    }
    // Probes are never sampled, because they are few and the agent waits for each.
    let sampled = match frontend.flags & frontend_flag::SENTINEL {
        0 => world.sample(frontend.service, segment.isn),
        _ => Sampled::First,
    };
    if sampled == Sampled::Out {
        return None;
    }
    if !world.take_budget(&segment.source) {
        world.fault(Fault::OverBudget);
        return None;
    }
    let class = class_of(world, segment, &frontend);
    let mut pending = pending_of(world, segment, &frontend, class);
    if sampled == Sampled::MaybeAgain {
        // Counts as repeated: a SYN that may follow an old conntrack entry is no evidence of misrouting or
        // staleness.
        pending.state = state::RETRANSMITTED;
    }
    if !world.follow(key, &pending) {
        return world.connection(key);
    }
    if !frontend.is_departed() {
        world.count(frontend.service, class as u8, Outcome::Arrived);
    }
    if segment.payload != 0 {
        add_alias(world, segment, &pending);
    }
    None
}

/// Adds a second key, by which the acknowledgement of a payload finds the connection.
#[inline(always)]
fn add_alias<W: World>(world: &W, segment: &Segment, fields: &Pending) {
    let alias = PendingKey {
        isn: segment.isn.wrapping_add(segment.payload),
        family: segment.family as u32,
    };
    let entry = Pending {
        state: state::ALIAS,
        service: segment.isn,
        ..*fields
    };
    world.follow(&alias, &entry);
}

/// The connection of an entry, and whether the entry is an alias.
#[inline(always)]
fn resolve<W: World>(
    world: &W,
    segment: &Segment,
    connection: W::Connection,
) -> Option<(W::Connection, bool)> {
    if connection.state() & state::ALIAS == 0 {
        return Some((connection, false));
    }
    let key = PendingKey {
        isn: connection.fields().service,
        ..key_of(segment)
    };
    Some((world.connection(&key)?, true))
}

/// A segment with data. The client's first data finds the connection by its sequence number. Data that
/// acknowledges it finds the connection by an alias.
#[inline(always)]
fn data<W: World>(
    world: &W,
    direction: Direction,
    segment: &Segment,
    connection: W::Connection,
) -> Seen<W> {
    let (connection, was_alias) = resolve(world, segment, connection)?;
    let mut kind = match was_alias {
        true => transition::Kind::DataAnswered,
        false => transition::Kind::DataIn,
    };
    let fields = connection.fields();
    let is_known = match (kind, direction) {
        (transition::Kind::DataAnswered, Direction::Egress) => {
            reaches_client(world, segment, fields)
        }
        (transition::Kind::DataAnswered, Direction::Ingress) => false,
        (_, Direction::Ingress) => {
            let from = (segment.source, segment.source_port);
            fields.device == world.device() && same((fields.client, fields.client_port), from)
        }
        (_, Direction::Egress) => {
            kind = transition::Kind::DataOut;
            world.endpoint(&destination_of(segment, fields)).is_some()
        }
    };
    if kind == transition::Kind::DataIn && is_known && connection.state() & state::DATA == 0 {
        add_alias(world, segment, fields);
        world.watch(segment.isn.wrapping_add(segment.payload));
    }
    is_known.then_some((connection, Sighting::new(kind, 0)))
}

/// Whether the address of an endpoint that left was dialled from another node. The agent of that node
/// reports such a connection.
#[inline(always)]
pub(crate) fn is_of_other_nodes<W: World>(world: &W, frontend: &FrontendValue) -> bool {
    frontend.is_departed() && world.device_flags() & device_flag::UPLINK != 0
}

/// Class of a client. A connection that enters by an uplink is external, whatever its source. A connection
/// that enters by a pod's device from an address outside the Node's ranges is a pod's if the same treatment
/// is expected for pods and external clients. Otherwise it is external, because only kube-proxy knows to
/// which class it assigns that address.
#[inline(always)]
pub(crate) fn class_of<W: World>(
    world: &W,
    segment: &Segment,
    frontend: &FrontendValue,
) -> SourceClass {
    let flags = world.device_flags();
    if flags & device_flag::UPLINK != 0 {
        return SourceClass::External;
    }
    let class = world.source_class(&segment.source);
    let by_pod = flags & device_flag::PODS != 0;
    let same = frontend.expected_handling(SourceClass::Pod)
        == frontend.expected_handling(SourceClass::External)
        || frontend.is_departed();
    if class == SourceClass::External && by_pod && same {
        return SourceClass::Pod;
    }
    class
}

#[inline(always)]
pub(crate) fn pending_of<W: World>(
    world: &W,
    segment: &Segment,
    frontend: &FrontendValue,
    class: SourceClass,
) -> Pending {
    Pending {
        arrived_ns: world.now(),
        state: match frontend.is_departed() {
            true => state::STALE,
            false => 0,
        },
        service: frontend.service,
        device: world.device(),
        client_port: segment.source_port,
        frontend_port: segment.destination_port,
        client: segment.source,
        frontend: segment.destination,
        class: class as u8,
        owed: frontend.expected_handling(class),
        kind: frontend.kind,
        flags: frontend.flags,
        note: 0,
        left_by: 0,
        range: 0,
    }
}

/// A SYN enters whose initial sequence number is known: a repeated SYN, the same SYN at another device on
/// its way, or another connection with the same number.
#[inline(always)]
fn arrives_again<W: World>(world: &W, segment: &Segment, connection: W::Connection) -> Seen<W> {
    world.mark(segment);
    let fields = connection.fields();
    let same_client = same(
        (fields.client, fields.client_port),
        (segment.source, segment.source_port),
    );
    let same_frontend = same(
        (fields.frontend, fields.frontend_port),
        (segment.destination, segment.destination_port),
    );
    let same_device = fields.device == world.device();
    // At another device, the same packet may appear with other addresses. Its destination may be translated
    // already (a bridge whose ports run netfilter). Its source may be the node's if a router returned or
    // copied the packet. Only a packet with another client that is not the node, and with a frontend as its
    // destination, is another connection there. `&` and `|` leave the verifier fewer paths than `&&` and
    // `||`.
    let shared = if !same_device & !same_client {
        let to = frontend_key(segment.destination, segment.destination_port);
        world.source_class(&segment.source) != SourceClass::Host && world.frontend(&to).is_some()
    } else {
        same_device & (!same_client | !same_frontend)
    };
    if shared {
        return Some((connection, Sighting::new(transition::Kind::Shared, 0)));
    }
    same_device.then_some((connection, Sighting::new(transition::Kind::Again, 0)))
}

/// A known SYN leaves.
#[inline(always)]
fn leaves<W: World>(world: &W, segment: &Segment, connection: W::Connection) -> Seen<W> {
    let sighting = departure(world, segment, connection.fields())?;
    let is_local = sighting.has(detail::PROVEN | detail::ASIDE);
    // Exclude connections of a pod to itself: network policies always allow them, so an answer shows
    // nothing about policies.
    let is_near = is_local & (number(segment.destination) != number(connection.fields().client));
    let peer = match is_near {
        true => NEAR,
        false => (sighting.details >> PEER_SHIFT) as u16,
    };
    if peer != 0 {
        connection.sent_to(peer, world.device(), range_of(&segment.destination));
    }
    Some((connection, sighting))
}

/// Classifies a followed packet that leaves, by its destination. An untranslated packet is a sighting only
/// at an uplink. At any other device it is a copy, or will still be translated.
#[inline(always)]
pub(crate) fn departure<W: World>(
    world: &W,
    segment: &Segment,
    fields: &Pending,
) -> Option<Sighting> {
    let uplink = world.device_flags() & device_flag::UPLINK != 0;
    if same(
        (fields.frontend, fields.frontend_port),
        (segment.destination, segment.destination_port),
    ) {
        return uplink.then_some(Sighting::new(transition::Kind::Untranslated, 0));
    }
    let Some(endpoint) = world.endpoint(&destination_of(segment, fields)) else {
        return Some(Sighting::new(transition::Kind::ToStranger, 0));
    };
    let flags = endpoint.value.flags;
    let kind = to_endpoint(fields, flags, uplink);
    let local = flags & endpoint_flag::LOCAL != 0;
    let way = match kind == transition::Kind::ToEndpoint && local {
        true if world.route_names_device(segment) => detail::PROVEN,
        true => detail::ASIDE,
        false => flags & detail::PEER,
    };
    let unmet = if endpoint.met_ns == 0 {
        detail::UNMET
    } else {
        0
    };
    Some(Sighting::new(kind, way | unmet))
}

#[inline(always)]
fn destination_of(segment: &Segment, fields: &Pending) -> EndpointKey {
    EndpointKey {
        service: fields.service,
        address: segment.destination,
        port: segment.destination_port,
        padding: [0; 2],
    }
}

#[inline(always)]
fn to_endpoint(fields: &Pending, flags: u32, uplink: bool) -> transition::Kind {
    if flags & endpoint_flag::LEFT != 0 {
        return transition::Kind::ToLeft;
    }
    let local = flags & endpoint_flag::LOCAL != 0;
    if local && uplink {
        return transition::Kind::Misdelivered;
    }
    // With an internal traffic policy Local, an endpoint on another node is always wrong. With an external
    // traffic policy Local it may be right: kube-proxy forwards connections of other nodes' pods to all
    // endpoints, if it can distinguish these pods from clients outside.
    let cluster_ip = FrontendKind::from_byte(fields.kind) == FrontendKind::ClusterIp;
    if !local
        && ExpectedHandling::from_byte(fields.owed) == ExpectedHandling::LocalOnly
        && cluster_ip
    {
        return transition::Kind::ToStranger;
    }
    transition::Kind::ToEndpoint
}

/// A SYN leaves and its arrival was not seen, for example because its client is on the node itself. A SYN
/// to a cluster IP that leaves by an uplink is leaked if its source is this node or one of its pods. Any
/// other source may belong to a nested cluster with the same range (finding 17). Returns the same as
/// [`observe`].
#[inline(always)]
fn leaves_unseen<W: World>(world: &W, segment: &Segment, key: &PendingKey) -> bool {
    if world.device_flags() & device_flag::UPLINK == 0 {
        return false;
    }
    let to = frontend_key(segment.destination, segment.destination_port);
    let Some(frontend) = world.frontend(&to) else {
        return false;
    };
    let of_sentinel = frontend.flags & frontend_flag::SENTINEL != 0;
    if FrontendKind::from_byte(frontend.kind) != FrontendKind::ClusterIp {
        return of_sentinel;
    }
    let class = world.source_class(&segment.source);
    if class == SourceClass::External
        || !ExpectedHandling::from_byte(frontend.expected_handling(class)).is_forward()
    {
        return of_sentinel;
    }
    // A SYN that arrived also gets here if it was not followed, because the gate did not select it or its
    // source was over its budget. The same limits apply again.
    if !of_sentinel && !world.is_sampled(frontend.service, segment.isn) {
        return false;
    }
    if !world.take_budget(&segment.source) {
        world.fault(Fault::OverBudget);
        return of_sentinel;
    }
    let mut pending = pending_of(world, segment, &frontend, class);
    pending.state = state::LEAKED;
    if world.follow(key, &pending) && !of_sentinel {
        let flags = anomaly_flag::UNSEEN_ARRIVAL;
        world.report(&AnomalyParts {
            fields: &pending,
            segment,
            outcome: Outcome::Leaked,
            flags,
        });
    }
    of_sentinel
}

/// A SYN-ACK, RST or ICMP error about a followed connection.
#[inline(always)]
fn answered<W: World>(
    world: &W,
    direction: Direction,
    segment: &Segment,
    connection: W::Connection,
) -> Seen<W> {
    let (connection, _) = resolve(world, segment, connection)?;
    let fields = connection.fields();
    if direction == Direction::Egress && !reaches_client(world, segment, fields) {
        return None;
    }
    let sighting = match (direction, segment.kind) {
        (Direction::Ingress, Kind::Unreachable) => return None,
        (Direction::Ingress, kind) => answer_in(world, segment, fields, kind == Kind::SynAck),
        (Direction::Egress, Kind::SynAck) => Sighting::new(transition::Kind::AnswerOut, 0),
        (Direction::Egress, kind) => {
            let icmp = kind != Kind::Reset;
            let details = if icmp { detail::ICMP } else { 0 };
            Sighting::new(transition::Kind::RefusalOut, details)
        }
    };
    Some((connection, sighting))
}

/// Sighting of an answer that enters.
#[inline(always)]
pub(crate) fn answer_in<W: World>(
    world: &W,
    segment: &Segment,
    fields: &Pending,
    accepts: bool,
) -> Sighting {
    let mut details = if accepts { detail::ACCEPTS } else { 0 };
    if is_current(world, segment, fields) {
        details |= detail::FROM_ENDPOINT;
    }
    let last = match SourceClass::from_index(u32::from(fields.class)) {
        SourceClass::Host => true,
        SourceClass::Pod => world.device_flags() & device_flag::FOREIGN != 0,
        SourceClass::External => false,
    };
    if last {
        details |= detail::LAST;
    }
    Sighting::new(transition::Kind::AnswerIn, details)
}

/// Whether a packet comes from a current endpoint of the Service, or from the departed one that was dialled
/// directly.
#[inline(always)]
pub(crate) fn is_current<W: World>(world: &W, segment: &Segment, fields: &Pending) -> bool {
    if fields.is_direct() {
        return same(
            (fields.frontend, fields.frontend_port),
            (segment.source, segment.source_port),
        );
    }
    let endpoint = world.endpoint(&EndpointKey {
        service: fields.service,
        address: segment.source,
        port: segment.source_port,
        padding: [0; 2],
    });
    endpoint.is_some_and(|entry| entry.value.flags & endpoint_flag::LEFT == 0)
}

/// Whether a packet that leaves here is on its way to the client. Its source must be the frontend, because
/// the client would not recognise another one. It may be an endpoint if another program behind this hook
/// may still translate it. The source of an ICMP error does not matter.
///
/// The packet must leave by the device by which the client's packet entered, or by the one that the route
/// specifies. For a pod, a route by an uplink does not count: it is the default route, so the route to the
/// pod is gone.
///
/// For a client outside, any uplink counts. Any other device counts too if the source is the frontend: the
/// kernel selects the route by rules for the endpoint's address, before it sets the source to the frontend.
/// So a route lookup here may return another device.
#[inline(always)]
pub(crate) fn reaches_client<W: World>(world: &W, segment: &Segment, fields: &Pending) -> bool {
    if number(fields.client) != number(segment.destination) {
        return false;
    }
    let outside = fields.class == SourceClass::External as u8;
    let pod = fields.class == SourceClass::Pod as u8;
    let uplink = world.device_flags() & device_flag::UPLINK != 0;
    let foreign = world.device_flags() & device_flag::FOREIGN != 0;
    let from = (segment.source, segment.source_port);
    let translated = same((fields.frontend, fields.frontend_port), from);
    if segment.kind != Kind::Unreachable
        && !translated
        && !(foreign && is_current(world, segment, fields))
    {
        return false;
    }
    world.device() == fields.device
        || (outside && (uplink || translated))
        || (!(pod && uplink) && world.route_names_device(segment))
}

/// Whether a connection is a probe of the sentinel.
#[inline(always)]
fn is_probe(fields: &Pending) -> bool {
    fields.flags & frontend_flag::SENTINEL != 0
}

/// Number of attempts to move a contended state before a fault is counted instead.
pub const MAX_TRIES: usize = 4;

/// Updates a connection's state. Only the CPU that changed the state counts the outcome, so it is counted
/// once.
#[inline(always)]
fn step<W: World>(
    world: &W,
    connection: &W::Connection,
    segment: &Segment,
    sighting: Sighting,
    direction: Direction,
) {
    let fields = connection.fields();
    let age = world.now().saturating_sub(fields.arrived_ns);
    for _ in 0..MAX_TRIES {
        let old = connection.state();
        if old & state::ALIAS != 0 {
            return;
        }
        let step = advance(old, sighting, fields, age);
        // There is nothing to account for. Without this return LLVM copies the code behind it, and the
        // verifier follows each copy.
        if step == Step::stay(old) {
            return;
        }
        if step.state != old && !connection.swap(old, step.state) {
            continue;
        }
        if matches!(direction, Direction::Egress)
            && sighting.kind == transition::Kind::AnswerOut
            && step.state & !old & state::ANSWER_OUT != 0
            && !is_probe(fields)
        {
            world.watch(segment.isn);
        }
        return account(world, fields, segment, sighting, &step, old);
    }
    world.fault(Fault::Contended);
}

#[inline(always)]
fn account<W: World>(
    world: &W,
    fields: &Pending,
    segment: &Segment,
    sighting: Sighting,
    step: &Step,
    old: u32,
) {
    if fields.is_direct() {
        return;
    }
    // A SYN that is repeated after it was forwarded is no proof: it follows the conntrack entry of the
    // first one, even if all rules are gone (finding 11). It is proof if the first SYN was lost (`LATE`),
    // because a lost SYN leaves no entry. It is also proof if the answer came in time, because the state
    // may be `RETRANSMITTED` only because the gate might have ignored an earlier SYN
    // ([`Sampled::MaybeAgain`]).
    let (again, slow) = (state::RETRANSMITTED, state::SLOW);
    let follows_former = step.state & (again | slow | state::LATE) == again | slow;
    if step.proof && !follows_former {
        if !is_probe(fields) {
            world.prove(segment.family as u32, fields.class);
        }
        world.count(fields.service, fields.class, Outcome::Proven);
    }
    if sighting.kind == transition::Kind::Shared {
        world.fault(Fault::Ambiguous);
    }
    if let Some(outcome) = step.outcome {
        world.count(fields.service, fields.class, outcome);
    }
    let is_first = match step.doubt.or(step.outcome) {
        Some(Outcome::Forwarded) => sighting.has(detail::UNMET) && old & state::RETRANSMITTED == 0,
        Some(Outcome::Stale) => true,
        _ => false,
    };
    if is_first {
        world.meet(&destination_of(segment, fields));
    }
    if is_probe(fields) {
        return;
    }
    match step.doubt.or(step.outcome) {
        Some(Outcome::Answered) if step.state & state::PROVEN == 0 => {
            world.fault(Fault::AnsweredLocally);
        }
        Some(
            outcome @ (Outcome::Refused
            | Outcome::Leaked
            | Outcome::Misrouted
            | Outcome::Stale
            | Outcome::AnswerNotDelivered),
        ) => {
            let flags = match sighting.kind {
                transition::Kind::Misdelivered => anomaly_flag::MISDELIVERED,
                transition::Kind::RefusalOut if sighting.has(detail::ICMP) => anomaly_flag::ICMP,
                _ => 0,
            };
            world.report(&AnomalyParts {
                fields,
                segment,
                outcome,
                flags,
            });
        }
        _ => {}
    }
}
