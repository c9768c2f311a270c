//! Classifies UDP datagrams that a hook sees, separately from TCP ([`classify`](crate::classify)).
//! Datagrams never prove a path, are never reported as anomalies, and do not use a source's budget of
//! connections.
//!
//! - A datagram is recognised by a hash of its payload ([`payload_hash`]), since it has no initial sequence
//!   number. If two clients send the same payload at the same time, their datagrams cannot be distinguished
//!   after NAT. So the later one is not followed and counts as ambiguous.
//! - Only one datagram of a flow is followed at a time. A flow is identified by the client's address and
//!   port. On port 53 the message's id is part of the flow too, so that one socket can have several pending
//!   queries. The map has a second entry for the flow, by which an answer finds its datagram. All other
//!   datagrams of the flow cost only this lookup.
//! - Followed datagrams are limited per time window. Those above the limit are only counted.
//!
//! [`payload_hash`]: crate::packet::udp::payload_hash

use crate::classify::{
    Connection, Direction, MAX_TRIES, Seen, World, answer_in, class_of, departure,
    is_of_other_nodes, pending_of, reaches_client, same,
};
use crate::evidence::{Fault, Outcome, Pending, PendingKey, state};
use crate::packet::Segment;
use crate::packet::udp::{Hash, MATCHABLE};
use crate::service::{
    Address, ExpectedHandling, FrontendKey, FrontendKind, Port, SourceClass, UDP, device_flag,
};
use crate::transition::{Kind, Sighting, advance, detail};

/// Whether each of a datagram's ports belongs to a Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    /// The source port belongs to a Service, so the datagram may be an answer.
    pub from: bool,
    /// The destination port belongs to a Service, so the datagram may be for a frontend, or on its way to
    /// an endpoint.
    pub to: bool,
}

/// Bit in [`PendingKey::family`] that marks the key of a flow. Keys without it are of payloads.
const FLOW: u32 = 1 << 8;
/// The DNS port. Its messages begin with an id (RFC 1035, section 4.1.1).
pub(crate) const DNS: u16 = 53;

#[inline(always)]
pub fn key_of(segment: &Segment) -> PendingKey {
    PendingKey {
        isn: segment.isn,
        family: segment.family as u32,
    }
}

/// The key of the flow between a client and a Service. `tag` is the DNS message's id; it is ignored on
/// other ports.
#[inline(always)]
pub fn flow_key(client: (&Address, Port), service: Port, tag: [u8; 2], family: u32) -> PendingKey {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *client.0;
    let [port_high, port_low] = client.1;
    let [tag_high, tag_low] = if u16::from_be_bytes(service) == DNS {
        tag
    } else {
        [0; 2]
    };
    let mut hash = Hash::new(0);
    hash.add([
        u32::from_ne_bytes([a, b, c, d]),
        u32::from_ne_bytes([e, f, g, h]),
        u32::from_ne_bytes([i, j, k, l]),
        u32::from_ne_bytes([m, n, o, p]),
        u32::from_ne_bytes([port_high, port_low, tag_high, tag_low]),
    ]);
    PendingKey {
        isn: hash.finish(),
        family: family | FLOW,
    }
}

/// The first two bytes of the payload, which are the id of a DNS message.
#[inline(always)]
fn tag_of(segment: &Segment) -> [u8; 2] {
    let [high, low, _, _] = segment.beginning;
    [high, low]
}

pub fn is_flow(key: &PendingKey) -> bool {
    key.family & FLOW != 0
}

/// Processes a datagram that a hook sees.
#[inline(always)]
pub fn observe<W: World>(world: &W, direction: Direction, segment: &Segment, ports: Ports) {
    let mut seen = None;
    if ports.to {
        seen = match direction {
            Direction::Ingress => arrives(world, segment),
            Direction::Egress => leaves(world, segment),
        };
    }
    if seen.is_none() && ports.from {
        seen = answered(world, direction, segment);
    }
    if let Some((datagram, sighting)) = seen {
        step(world, &datagram, sighting);
    }
}

#[inline(always)]
fn frontend_key(segment: &Segment) -> FrontendKey {
    FrontendKey {
        address: segment.destination,
        port: segment.destination_port,
        protocol: UDP,
        padding: 0,
    }
}

/// A datagram enters.
#[inline(always)]
fn arrives<W: World>(world: &W, segment: &Segment) -> Seen<W> {
    let key = key_of(segment);
    let flow = flow_key(
        (&segment.source, segment.source_port),
        segment.destination_port,
        tag_of(segment),
        segment.family as u32,
    );
    if let Some(followed) = world.connection(&flow) {
        // Other datagrams of the flow are ignored.
        if followed.fields().service != segment.isn {
            return None;
        }
        return arrives_again(world, segment, world.connection(&key)?);
    }
    let frontend = world.frontend(&frontend_key(segment))?;
    if is_of_other_nodes(world, &frontend) {
        return None;
    }
    if segment.payload < MATCHABLE {
        world.fault(Fault::UdpNotMatchable);
        return None;
    }
    if let Some(other) = world.connection(&key) {
        world.fault(Fault::UdpAmbiguous);
        // If the first datagram was already forwarded, its flow is enough to find its answer. If not, it
        // becomes ambiguous, because the payload no longer identifies it.
        let unmoved = other.state() & state::PROGRESS == 0;
        return unmoved.then_some((other, Sighting::new(Kind::Shared, 0)));
    }
    if !world.take_rate(frontend.service) {
        world.fault(Fault::UdpOverRate);
        return None;
    }
    let class = class_of(world, segment, &frontend);
    let mut pending = pending_of(world, segment, &frontend, class);
    if world.follow(&key, &pending) {
        world.mark(segment);
        if !frontend.is_departed() {
            world.count(frontend.service, class as u8, Outcome::Arrived);
        }
        pending.state = state::ALIAS;
        pending.service = segment.isn;
        world.follow(&flow, &pending);
    }
    None
}

/// The followed datagram enters again: repeated, or at another device on its way. The same payload after
/// its answer is a new query, and is ignored like the rest of the flow.
#[inline(always)]
fn arrives_again<W: World>(world: &W, segment: &Segment, datagram: W::Connection) -> Seen<W> {
    let fields = datagram.fields();
    let again = fields.device == world.device()
        && datagram.state() & state::ANSWERED == 0
        && same(
            (fields.frontend, fields.frontend_port),
            (segment.destination, segment.destination_port),
        );
    again.then_some((datagram, Sighting::new(Kind::Again, 0)))
}

/// A datagram leaves.
#[inline(always)]
fn leaves<W: World>(world: &W, segment: &Segment) -> Seen<W> {
    if segment.payload < MATCHABLE {
        return None;
    }
    let Some(datagram) = world.connection(&key_of(segment)) else {
        leaves_unseen(world, segment);
        return None;
    };
    let sighting = departure(world, segment, datagram.fields())?;
    Some((datagram, sighting))
}

/// A datagram leaves and its arrival was not seen. The rules are the same as for connections in `classify`.
#[inline(always)]
fn leaves_unseen<W: World>(world: &W, segment: &Segment) {
    let Some(frontend) = world.frontend(&frontend_key(segment)) else {
        return;
    };
    if FrontendKind::from_byte(frontend.kind) != FrontendKind::ClusterIp
        || world.device_flags() & device_flag::UPLINK == 0
    {
        return;
    }
    let class = world.source_class(&segment.source);
    if class == SourceClass::External
        || !ExpectedHandling::from_byte(frontend.expected_handling(class)).is_forward()
    {
        return;
    }
    if !world.take_rate(frontend.service) {
        return world.fault(Fault::UdpOverRate);
    }
    let mut pending = pending_of(world, segment, &frontend, class);
    pending.state = state::LEAKED;
    // Add no entry for its flow: neither its answer nor its appearance at other hooks matters.
    world.follow(&key_of(segment), &pending);
}

/// Classifies a datagram that may be an answer in a followed flow. After the first answer, other datagrams
/// of the flow cost one lookup.
#[inline(always)]
fn answered<W: World>(world: &W, direction: Direction, segment: &Segment) -> Seen<W> {
    let flow = world.connection(&flow_key(
        (&segment.destination, segment.destination_port),
        segment.source_port,
        tag_of(segment),
        segment.family as u32,
    ))?;
    let old = flow.state();
    if old & state::ANSWERED != 0 {
        return None;
    }
    let datagram = world.connection(&PendingKey {
        isn: flow.fields().service,
        family: segment.family as u32,
    })?;
    let fields: &Pending = datagram.fields();
    let client = (fields.client, fields.client_port);
    if !same(client, (segment.destination, segment.destination_port)) {
        return None;
    }
    if direction == Direction::Ingress {
        let sighting = answer_in(world, segment, fields, true);
        if !sighting.has(detail::FROM_ENDPOINT) {
            return None;
        }
        if sighting.has(detail::LAST) {
            flow.swap(old, old | state::ANSWER_OUT);
            world.mark_answered(segment);
        }
        return Some((datagram, sighting));
    }
    if !reaches_client(world, segment, fields) {
        return None;
    }
    flow.swap(old, old | state::ANSWER_OUT);
    world.mark_answered(segment);
    Some((datagram, Sighting::new(Kind::AnswerOut, 0)))
}

/// Updates a datagram's state. Only the CPU that changed the state counts the outcome, so it is counted
/// once.
#[inline(always)]
fn step<W: World>(world: &W, datagram: &W::Connection, sighting: Sighting) {
    let fields = datagram.fields();
    let age = world.now().saturating_sub(fields.arrived_ns);
    for _ in 0..MAX_TRIES {
        let old = datagram.state();
        let step = advance(old, sighting, fields, age);
        if step.state != old && !datagram.swap(old, step.state) {
            continue;
        }
        if fields.is_direct() {
            return;
        }
        if step.proof {
            world.count(fields.service, fields.class, Outcome::Proven);
        }
        if let Some(outcome) = step.outcome {
            world.count(fields.service, fields.class, outcome);
            if outcome == Outcome::Answered {
                datagram.answered_after((age / 1_000).min(u64::from(u32::MAX)) as u32);
            }
        }
        return;
    }
    world.fault(Fault::Contended);
}
