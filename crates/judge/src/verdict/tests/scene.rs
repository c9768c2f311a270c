//! A world with a sentinel: rounds of probes every 250 ms, each followed by a sample.

use pathproof_facts::cause::Failure;
use pathproof_facts::limits::Limits;
use pathproof_facts::owners::{DatapathOwners, Owner};
use pathproof_facts::time::Mono;
use pathproof_facts::trace::{Control, Lane, ProbePath, ProbeTrace, Transport};
use pathproof_wire::probe::Stage;
use pathproof_wire::service::Family;
use pathproof_wire::service::SourceClass::Pod;
use pathproof_witness::ledger::Ledger;
use pathproof_witness::probes::{KernelFacts, SentinelView, classify};
use pathproof_witness::testing::traces::{passed, stuck};

use super::world::*;
use crate::verdict::{LaneView, Verdict};

/// Lanes of a node without a reserved pod address.
pub(super) const USUAL: [ProbePath; 3] =
    [ProbePath::OffCluster, ProbePath::NodePort, ProbePath::Host];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Pass,
    /// Arrives and is not forwarded.
    Drop,
    Leak,
    Refuse,
    /// Refused by an ICMP error.
    Reject,
    Misroute,
    /// Arrives while the kernel does not forward.
    ForwardingOff,
    /// The handshake completes, but the data is dropped.
    Mute,
    LoseAnswer,
    /// Passes with the client's address unchanged.
    Unmasqueraded,
    /// Fails together with its control probe.
    ControlFails,
    /// Leaves the node, which lost the dialled address.
    Away,
    /// Leaks, and is sent 300 ms after it was due.
    Late,
    /// Leaks, and ends 600 ms after it was sent.
    SeenLate,
    /// Never enters the node.
    Vanish,
}

impl Fate {
    pub(super) fn trace(self, lane: Lane, sent: Mono) -> ProbeTrace {
        let arrives = || stuck(lane, sent, Some(Stage::Arrived));
        let mut trace = match self {
            Fate::Pass => return passed(lane, sent),
            Fate::Unmasqueraded | Fate::Mute => passed(lane, sent),
            Fate::LoseAnswer => stuck(lane, sent, Some(Stage::Returned)),
            Fate::Vanish => stuck(lane, sent, None),
            _ => arrives(),
        };
        match self {
            // No process listens on the node port.
            Fate::Leak if lane.path == ProbePath::NodePort => trace.sightings.refused = true,
            Fate::Leak | Fate::Away | Fate::ControlFails | Fate::Late | Fate::SeenLate => {
                trace.sightings.leaked = true;
            }
            Fate::Refuse => trace.sightings.refused = true,
            Fate::Reject => trace.sightings.unreachable = true,
            Fate::Misroute => trace.sightings.misrouted = true,
            Fate::Unmasqueraded => trace.echo_saw = Some(trace.client),
            Fate::Mute => {
                let arrived = stuck(lane, sent, Some(Stage::Arrived));
                trace.ended = arrived.ended;
                match lane.transport {
                    Transport::Tcp => trace.data = arrived.handshake,
                    Transport::Udp => trace.data = arrived.data,
                }
            }
            _ => {}
        }
        match self {
            Fate::ControlFails => trace.control = Control::Failed,
            Fate::Late => trace.due = Mono(sent.0 - 300_000_000),
            Fate::SeenLate => trace.ended = Mono(sent.0 + 600_000_000),
            _ => {}
        }
        trace
    }
}

/// A sentinel that was created long ago.
pub(super) fn sentinel_view() -> SentinelView {
    SentinelView {
        exists: true,
        identity: 1,
        ..SentinelView::default()
    }
}

pub(super) fn owners(owners: &[Owner]) -> DatapathOwners {
    owners.iter().copied().collect()
}

/// A lane over IPv4.
pub(super) fn lane(path: ProbePath, transport: Transport) -> Lane {
    Lane {
        path,
        family: Family::V4,
        transport,
    }
}

impl World {
    /// A world with an old sentinel under kube-proxy, and without probes yet.
    pub(super) fn with_sentinel() -> Self {
        Self::limited(Limits::default())
    }

    /// Like `with_sentinel`, with these limits.
    pub(super) fn limited(limits: Limits) -> Self {
        let mut world = Self::new();
        world.ledger = Ledger::new(limits);
        world.all_worked();
        world.look(0);
        world.inputs.sentinel_exists = true;
        let sentinel = &mut world.ledger.sentinel;
        sentinel.view_changed(ms(0), sentinel_view());
        for family in Family::ALL {
            sentinel.owner_seen(family, owners(&[Owner::KubeProxyIptables]), ms(0));
        }
        world
    }

    /// Like `with_sentinel`, after probes of these paths (TCP and UDP) passed from 250 ms to 2 s.
    pub(super) fn probed(paths: &[ProbePath]) -> Self {
        let mut world = Self::with_sentinel();
        world.rounds(250, 2_000, paths, |_| Fate::Pass);
        world
    }

    /// One probe, judged when it ends.
    pub(super) fn probe(&mut self, lane: Lane, fate: Fate, at: u64) -> &mut Self {
        let trace = fate.trace(lane, ms(at));
        let facts = KernelFacts {
            forwarding: [Some(fate != Fate::ForwardingOff); 2],
            ..KernelFacts::default()
        };
        let outcome = classify(&trace, &facts, &Limits::default());
        let sentinel = &mut self.ledger.sentinel;
        sentinel.absorb(&trace, outcome, trace.ended);
        self
    }

    /// Rounds of probes every 250 ms over IPv4, TCP and UDP, each followed by a sample.
    pub(super) fn rounds(
        &mut self,
        from: u64,
        to: u64,
        paths: &[ProbePath],
        fate: impl Fn(Lane) -> Fate,
    ) -> &mut Self {
        for at in (from..=to).step_by(250) {
            for path in paths {
                for transport in Transport::ALL {
                    let lane = lane(*path, transport);
                    self.probe(lane, fate(lane), at);
                }
            }
            self.look(at + 200);
        }
        self
    }

    /// Probes pass until 2 s; then the lanes have this fate until `to`.
    pub(super) fn faulty(to: u64, fate: impl Fn(Lane) -> Fate) -> Self {
        let mut world = Self::probed(&USUAL);
        world.rounds(2_250, to, &USUAL, fate);
        world
    }

    /// Two pods lose connections to two Services.
    pub(super) fn lose(&mut self, arrived: u64) -> &mut Self {
        for (service, client) in [(WEB, 1), (API, 2), (WEB, 1), (API, 2)] {
            self.fail(service, Pod, client, Failure::Lost, arrived + 1_000);
        }
        self
    }
}

/// Fates of probes from outside the node and of the host path.
pub(super) fn outside(fate: Fate, host: Fate) -> impl Fn(Lane) -> Fate {
    move |lane| {
        if lane.path == ProbePath::Host {
            host
        } else {
            fate
        }
    }
}

/// State, cause and reason.
pub(super) fn told(
    verdict: &Verdict,
) -> (pathproof_facts::cause::State, &'static str, &'static str) {
    let cause = verdict.cause.map_or("", |cause| cause.name());
    (verdict.state, cause, verdict.reason().leak())
}

/// The sentence about a lane over IPv4.
pub(super) fn said(lane: &LaneView, verdict: &Verdict) -> String {
    crate::explain::sentence(Family::V4, lane, verdict.at)
}
