//! The sentinel's prober and its devices: rounds of probes on every lane of a family, each with a trace of
//! its path through the modelled datapath. Like `agent`'s prober, it is slow while all lanes keep their
//! result, and fast after a change.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use pathproof_facts::time::Mono;
use pathproof_facts::trace::{
    Control, Lane, ProbePath, ProbeSightings, ProbeTrace, Stamps, Transport,
};
use pathproof_wire::evidence::state;
use pathproof_wire::packet::Kind;
use pathproof_wire::probe::{STAGES, Stage};
use pathproof_wire::service::{FAMILIES, Family, FrontendKind};

use super::datapath::addresses::{ECHO, PROBER};
use super::datapath::{PORT, Way};
use super::kernel::{PROBE_CLIENT, PROBE_ECHO, UPLINK};
use super::traffic::{Trip, packet};
use super::world::Fault;
use super::{SimNode, Task, ms};

/// Interval between rounds: idle, and after a change.
const REST: (Duration, Duration) = (ms(420), ms(480));
const DOUBT: (Duration, Duration) = (ms(210), ms(250));
/// Interval while probes reach an old generation, and the maximum number of such rounds.
const HASTE: (Duration, Duration) = (ms(80), ms(100));
const HASTY: u32 = 33;
/// Number of rounds at the faster pace after a change.
const ROUNDS: u32 = 8;
/// Timeout of a probe, and delay until the observer's state is read for an unanswered one.
const TIMEOUT: Duration = ms(200);
const TOLD_AFTER: Duration = ms(5);
/// Observer flags that end a probe early.
const TOLD: u32 = state::LEAKED | state::MISROUTED | state::STALE | state::REFUSED;

/// Lanes of a family as in `agent`'s prober. The host has no UDP lane, because only a SYN identifies its
/// socket.
const LANES: [(ProbePath, Transport); 7] = [
    (ProbePath::Pod, Transport::Tcp),
    (ProbePath::Pod, Transport::Udp),
    (ProbePath::OffCluster, Transport::Tcp),
    (ProbePath::OffCluster, Transport::Udp),
    (ProbePath::NodePort, Transport::Tcp),
    (ProbePath::NodePort, Transport::Udp),
    (ProbePath::Host, Transport::Tcp),
];

/// The running probers of both families.
#[derive(Debug, Default)]
pub(super) struct Probers {
    pub(super) runs: bool,
    by_family: [Prober; FAMILIES],
}

#[derive(Debug, Default)]
struct Prober {
    /// Number of the current plan. Rounds of earlier plans are skipped.
    plan: u32,
    began: Mono,
    doubted: u32,
    hurried: u32,
    wanted: Option<u16>,
    fates: BTreeMap<Lane, (bool, bool, ProbeSightings)>,
}

impl Probers {
    /// Stopped probers for the next agent.
    pub(super) fn anew(&self) -> Self {
        let by_family = Family::ALL.map(|family| Prober {
            plan: self.by_family[family as usize].plan + 1,
            ..Prober::default()
        });
        Self {
            runs: false,
            by_family,
        }
    }
}

impl SimNode {
    /// Makes the probers dial the sentinel that the node found.
    pub(super) fn retarget(&mut self, now: Mono) {
        let Some(agent) = &self.agent else { return };
        let watched = agent
            .node
            .sentinel()
            .filter(|sentinel| sentinel.off().is_none());
        let found = watched.map(|sentinel| sentinel.found().families);
        for family in Family::ALL {
            let found = found.and_then(|found| found[family as usize]);
            let wanted = found.map(|found| found.tcp.generation);
            let prober = &mut self.probers.by_family[family as usize];
            let before = std::mem::replace(&mut prober.wanted, wanted);
            if before != wanted && wanted.is_some() {
                prober.hurried = HASTY;
                let gap = self.dice.between(HASTE);
                self.plan_round(family, now.plus(gap));
            }
        }
    }

    fn plan_round(&mut self, family: Family, at: Mono) {
        let prober = &mut self.probers.by_family[family as usize];
        prober.plan += 1;
        let plan = prober.plan;
        let due = at;
        self.push(at, Task::Round { family, plan, due });
    }

    /// One probe on every lane of a family.
    pub(super) fn round(&mut self, family: Family, (plan, due): (u32, Mono), now: Mono) {
        let runs = self.probers.runs;
        let prober = &mut self.probers.by_family[family as usize];
        if plan != prober.plan || !runs || prober.wanted.is_none() {
            return;
        }
        prober.began = now;
        let wanted = prober.wanted;
        let mut passed = Vec::new();
        let mut behind = false;
        for (path, transport) in LANES {
            let lane = Lane {
                path,
                family,
                transport,
            };
            let Some(trace) = self.probe(lane, due, now) else {
                continue;
            };
            behind |= trace.generation.is_some() && trace.generation != wanted;
            match trace.data[Stage::Collected as usize] {
                Some(_) => passed.push(trace),
                None => self.push(trace.ended, Task::Traces(self.epoch, vec![trace])),
            }
        }
        if let Some(last) = passed.iter().map(|trace| trace.ended).max() {
            self.push(last, Task::Traces(self.epoch, passed));
        }
        self.plan_next_round(family, behind, now);
    }

    fn plan_next_round(&mut self, family: Family, behind: bool, now: Mono) {
        let prober = &mut self.probers.by_family[family as usize];
        let gap = if behind && prober.hurried > 0 {
            prober.hurried -= 1;
            HASTE
        } else if prober.doubted > 0 {
            DOUBT
        } else {
            REST
        };
        prober.doubted = prober.doubted.saturating_sub(1);
        let gap = self.dice.between(gap);
        self.plan_round(family, now.plus(gap));
    }

    /// Records the result of a probe. A change makes the pace faster.
    pub(super) fn note(&mut self, trace: &ProbeTrace, now: Mono) {
        let own = trace.echo_saw.map(|saw| saw.ip()) == Some(trace.client.ip());
        let returned = trace.data[Stage::Collected as usize].is_some();
        let fate = (returned, own, trace.sightings);
        let prober = &mut self.probers.by_family[trace.lane.family as usize];
        if prober.fates.insert(trace.lane, fate) == Some(fate) {
            return;
        }
        prober.doubted = ROUNDS;
        let began = prober.began;
        let gap = self.dice.between(DOUBT);
        self.plan_round(trace.lane.family, began.plus(gap).max(now));
    }

    /// Sends a probe through the datapath.
    fn probe(&mut self, lane: Lane, due: Mono, now: Mono) -> Option<ProbeTrace> {
        let family = lane.family;
        let client: IpAddr = match lane.path {
            ProbePath::Pod if !self.world.pod_lane => return None,
            ProbePath::Pod => self.datapath.pod_prober(family),
            ProbePath::OffCluster | ProbePath::NodePort => PROBER[family as usize],
            ProbePath::Host => self.datapath.address[family as usize],
        };
        let kind = match lane.path {
            ProbePath::NodePort => FrontendKind::NodePort,
            _ => FrontendKind::ClusterIp,
        };
        let frontend = self.datapath.probed(kind, family)?;
        self.port = self.port.wrapping_add(1).max(20_000);
        let ends = (SocketAddr::new(client, self.port), frontend);
        let control = match self.damaged(now) {
            true => Control::Failed,
            false => Control::Passed,
        };
        let mut trace = ProbeTrace {
            ended: now.plus(TIMEOUT),
            control,
            ..ProbeTrace::sent(lane, ends, due, now)
        };
        let isn = self.dice.word() as u32;
        let lost = self.datapath.has(Fault::ConntrackFull, family);
        self.dropped_by_table += u64::from(lost);
        // Nothing enters by a damaged veth pair.
        if !self.damaged(now) || lane.path == ProbePath::Host {
            match lane.transport {
                Transport::Tcp => self.follow_connection(&mut trace, isn, now),
                Transport::Udp => self.follow_datagram(&mut trace, now),
            }
        }
        Some(trace)
    }

    fn way_of(&self, trace: &ProbeTrace) -> (Way, Option<u16>) {
        let Lane {
            path,
            family,
            transport,
        } = trace.lane;
        let lane = (path, transport, family);
        self.datapath.way_of_probe(lane, &trace.frontend)
    }

    /// Source address that the echo sees.
    fn shown_source(&self, trace: &ProbeTrace) -> SocketAddr {
        let family = trace.lane.family;
        let is_masqueraded = matches!(trace.lane.path, ProbePath::OffCluster | ProbePath::NodePort);
        match is_masqueraded && self.datapath.masquerades(family) {
            true => SocketAddr::new(self.datapath.address[family as usize], trace.client.port()),
            false => trace.client,
        }
    }

    fn follow_connection(&self, trace: &mut ProbeTrace, isn: u32, now: Mono) {
        let ends = (trace.client, trace.frontend);
        let family = trace.lane.family;
        let is_host = trace.lane.path == ProbePath::Host;
        let mut trip = Trip {
            kernel: &self.kernel,
            now,
        };
        let syn = packet(Kind::Syn, ends, isn);
        let back = |kind| packet(kind, (ends.1, ends.0), isn);
        if !is_host {
            trace.handshake[Stage::Arrived as usize] = Some(trip.enters(PROBE_CLIENT, &syn));
        }
        let mut rejected = false;
        match self.way_of(trace) {
            (Way::Untranslated, _) => {
                trip.leaves(UPLINK, &syn);
            }
            (Way::Reset, _) => {
                trip.leaves(PROBE_CLIENT, &back(Kind::Reset));
            }
            (Way::Rejected, _) => {
                trip.leaves(PROBE_CLIENT, &back(Kind::Unreachable));
                rejected = true;
            }
            // Another Service's endpoint receives the probe, and does not answer as the echo does.
            (Way::To(pod), None) => {
                let device = self.datapath.devices.get(&pod.ip(family)).copied();
                let to = SocketAddr::new(pod.ip(family), PORT);
                let syn = packet(Kind::Syn, (ends.0, to), isn);
                trip.leaves(device.unwrap_or(UPLINK), &syn);
            }
            (Way::To(_), Some(generation)) => {
                self.follow_to_echo(trace, generation, isn, &mut trip);
            }
            (Way::Dropped, _) => {}
        }
        self.note_sightings(trace, isn, rejected, now);
    }

    /// Completes a handshake and an exchange of data with the echo.
    fn follow_to_echo(
        &self,
        trace: &mut ProbeTrace,
        generation: u16,
        isn: u32,
        trip: &mut Trip<'_>,
    ) {
        let began = trip.now;
        let saw = self.shown_source(trace);
        let echo = SocketAddr::new(ECHO[trace.lane.family as usize], generation);
        let stamps = &mut trace.handshake;
        let at = trip.leaves(PROBE_ECHO, &packet(Kind::Syn, (saw, echo), isn));
        stamps[Stage::Translated as usize] = Some(at);
        stamps[Stage::Echoed as usize] = Some(at);
        let answer = packet(Kind::SynAck, (echo, saw), isn);
        stamps[Stage::Returned as usize] = Some(trip.enters(PROBE_ECHO, &answer));
        if trace.lane.path != ProbePath::Host {
            let answer = packet(Kind::SynAck, (trace.frontend, trace.client), isn);
            trip.leaves(PROBE_CLIENT, &answer);
        }
        stamps[Stage::Collected as usize] = Some(trip.now);
        let took = trip.now.since(began);
        (trace.echo_saw, trace.generation) = (Some(saw), Some(generation));
        if self.datapath.inspected {
            trace.data[Stage::Arrived as usize] = Some(trip.now);
            return;
        }
        trace.data = later(stamps, took);
        trace.ended = trip.now.plus(took);
    }

    fn note_sightings(&self, trace: &mut ProbeTrace, isn: u32, rejected: bool, now: Mono) {
        let seen = self.kernel.state(isn, trace.lane.family);
        trace.sightings = ProbeSightings {
            leaked: seen & state::LEAKED != 0,
            misrouted: seen & state::MISROUTED != 0,
            stale: seen & state::STALE != 0,
            refused: seen & state::REFUSED != 0 && !rejected,
            unreachable: rejected,
        };
        if trace.data == [None; STAGES] && (rejected || seen & TOLD != 0) {
            trace.ended = now.plus(TOLD_AFTER);
        }
    }

    /// Datagrams of probes are not tracked by the observer, so the trace has only time stamps and refusals.
    fn follow_datagram(&self, trace: &mut ProbeTrace, now: Mono) {
        let hop = |hops: u32| Some(now.plus(super::traffic::HOP * hops));
        trace.data[Stage::Arrived as usize] = hop(1);
        let way = self.way_of(trace);
        if matches!(way.0, Way::Reset | Way::Rejected) {
            trace.sightings.unreachable = true;
            trace.ended = now.plus(TOLD_AFTER);
        }
        let (Way::To(_), Some(generation)) = way else {
            return;
        };
        trace.data = [hop(1), hop(2), hop(2), hop(3), hop(4)];
        trace.ended = now.plus(super::traffic::HOP * 5);
        (trace.echo_saw, trace.generation) = (Some(self.shown_source(trace)), Some(generation));
    }
}

/// The data takes the same path as the handshake, a moment later.
fn later(stamps: &Stamps, by: Duration) -> Stamps {
    stamps.map(|stamp| stamp.map(|at| at.plus(by)))
}
