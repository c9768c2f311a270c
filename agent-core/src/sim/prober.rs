//! The sentinel's prober and its devices: a round of probes on every lane, each a trace of what the
//! modelled datapath did with it. The pace is that of `agent`'s prober: slow while every lane fares
//! as it did, quick after a change.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use agent_common::evidence::state;
use agent_common::packet::Kind;
use agent_common::probe::{STAGES, Stage};
use agent_common::service::{Family, FrontendKind};

use super::datapath::{ECHO, PROBER, Way};
use super::kernel::{PROBE_CLIENT, PROBE_ECHO, UPLINK};
use super::traffic::{Trip, packet};
use super::world::Client;
use super::{SimNode, Task, ms};
use crate::time::Mono;
use crate::trace::{
    Control, Lane, PROBE_PATHS, ProbePath, ProbeSightings, ProbeTrace, Stamps, Transport,
};

/// From round to round, at rest and after a change.
const REST: (Duration, Duration) = (ms(420), ms(480));
const DOUBT: (Duration, Duration) = (ms(210), ms(250));
/// While probes meet an old generation, for at most so many rounds.
const HASTE: (Duration, Duration) = (ms(80), ms(100));
const HASTY: u32 = 33;
/// So many rounds after a change.
const ROUNDS: u32 = 8;
/// A probe's time, and when the observer is asked about one without an answer.
const TIMEOUT: Duration = ms(200);
const TOLD_AFTER: Duration = ms(5);
/// Flags of the observer that end a probe before its time.
const TOLD: u32 = state::LEAKED | state::MISROUTED | state::STALE | state::REFUSED;

/// The running prober.
#[derive(Debug, Default)]
pub(super) struct Prober {
    pub(super) runs: bool,
    /// Rounds that were planned before the last plan are not held.
    plan: u32,
    began: Mono,
    doubted: u32,
    hurried: u32,
    wanted: Option<u16>,
    fates: [Option<(bool, bool, ProbeSightings)>; PROBE_PATHS],
}

impl Prober {
    /// The next agent's, which does not run yet.
    pub(super) fn anew(&self) -> Self {
        Self {
            plan: self.plan + 1,
            ..Self::default()
        }
    }
}

impl SimNode {
    /// The prober dials what the node found of the sentinel, from now on.
    pub(super) fn retarget(&mut self, now: Mono) {
        let Some(agent) = &self.agent else { return };
        let watched = agent.node.sentinel().filter(|of| of.off().is_none());
        let found = watched.and_then(|of| of.found().families[Family::V4 as usize]);
        let wanted = found.map(|found| found.tcp.generation);
        let before = std::mem::replace(&mut self.prober.wanted, wanted);
        if before != wanted && wanted.is_some() {
            self.prober.hurried = HASTY;
            let gap = self.dice.between(HASTE);
            self.plan_round(now.plus(gap));
        }
    }

    fn plan_round(&mut self, at: Mono) {
        self.prober.plan += 1;
        self.push(at, Task::Round(self.prober.plan, at));
    }

    /// One probe on every lane.
    pub(super) fn round(&mut self, plan: u32, due: Mono, now: Mono) {
        if plan != self.prober.plan || !self.prober.runs || self.prober.wanted.is_none() {
            return;
        }
        self.prober.began = now;
        let control = match self.damaged(now) {
            true => Control::Failed,
            false => Control::Passed,
        };
        let mut passed = Vec::new();
        let mut behind = false;
        for path in ProbePath::ALL {
            let Some(trace) = self.probe(path, due, now, control) else {
                continue;
            };
            behind |= trace.generation.is_some() && trace.generation != self.prober.wanted;
            match trace.data[Stage::Collected as usize] {
                Some(_) => passed.push(trace),
                None => self.push(trace.ended, Task::Traces(self.epoch, vec![trace])),
            }
        }
        if let Some(last) = passed.iter().map(|trace| trace.ended).max() {
            self.push(last, Task::Traces(self.epoch, passed));
        }
        let prober = &mut self.prober;
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
        self.plan_round(now.plus(gap));
    }

    /// Sees how a probe fared: a change is a reason to hurry.
    pub(super) fn note(&mut self, trace: &ProbeTrace, now: Mono) {
        let own = trace.echo_saw.map(|saw| saw.ip()) == Some(trace.client.ip());
        let returned = trace.data[Stage::Collected as usize].is_some();
        let fate = Some((returned, own, trace.sightings));
        let known = &mut self.prober.fates[trace.lane.path as usize];
        if std::mem::replace(known, fate) == fate {
            return;
        }
        self.prober.doubted = ROUNDS;
        let gap = self.dice.between(DOUBT);
        let next = self.prober.began.plus(gap).max(now);
        self.plan_round(next);
    }

    /// One probe, and what the datapath does with it.
    fn probe(
        &mut self,
        path: ProbePath,
        due: Mono,
        now: Mono,
        control: Control,
    ) -> Option<ProbeTrace> {
        let client: Ipv4Addr = match path {
            ProbePath::Pod if !self.world.pod_lane => return None,
            ProbePath::Pod => self.datapath.pod_prober(),
            ProbePath::OffCluster | ProbePath::NodePort => PROBER,
            ProbePath::Host => self.datapath.address,
        };
        let kind = match path {
            ProbePath::NodePort => FrontendKind::NodePort,
            _ => FrontendKind::ClusterIp,
        };
        let frontend = self.datapath.probed(kind)?;
        self.port = self.port.wrapping_add(1).max(20_000);
        let ends = (SocketAddr::new(client.into(), self.port), frontend);
        let lane = Lane {
            path,
            family: Family::V4,
            transport: Transport::Tcp,
        };
        let mut trace = ProbeTrace {
            ended: now.plus(TIMEOUT),
            control,
            ..ProbeTrace::sent(lane, ends, due, now)
        };
        let isn = self.dice.word() as u32;
        self.follow_probe(&mut trace, isn, now);
        Some(trace)
    }

    fn follow_probe(&self, trace: &mut ProbeTrace, isn: u32, now: Mono) {
        let ends = (trace.client, trace.frontend);
        let is_host = trace.lane.path == ProbePath::Host;
        let mut trip = Trip {
            kernel: &self.kernel,
            now,
        };
        let syn = packet(Kind::Syn, ends, isn);
        let stamps = &mut trace.handshake;
        // A damaged pair lets nothing in.
        if self.damaged(now) && !is_host {
            return;
        }
        if !is_host {
            stamps[Stage::Arrived as usize] = Some(trip.enters(PROBE_CLIENT, &syn));
        }
        match self.way_of_probe(trace.lane.path, &trace.frontend) {
            (Way::Untranslated, _) => {
                trip.leaves(UPLINK, &syn);
            }
            (Way::Reset, _) => {
                trip.leaves(PROBE_CLIENT, &packet(Kind::Reset, (ends.1, ends.0), isn));
            }
            // Another's endpoint: it knows nothing of tokens.
            (Way::To(pod), None) => {
                let device = self.datapath.devices.get(&pod.ip).copied();
                let to = SocketAddr::new(pod.ip.into(), super::datapath::PORT);
                trip.leaves(
                    device.unwrap_or(UPLINK),
                    &packet(Kind::Syn, (ends.0, to), isn),
                );
            }
            (Way::To(_), Some(generation)) => {
                let masqueraded = self.datapath.masquerades()
                    && matches!(trace.lane.path, ProbePath::OffCluster | ProbePath::NodePort);
                let saw = match masqueraded {
                    true => SocketAddr::new(self.datapath.address.into(), ends.0.port()),
                    false => ends.0,
                };
                let echo = SocketAddr::new(ECHO.into(), generation);
                let at = trip.leaves(PROBE_ECHO, &packet(Kind::Syn, (saw, echo), isn));
                stamps[Stage::Translated as usize] = Some(at);
                stamps[Stage::Echoed as usize] = Some(at);
                let answer = packet(Kind::SynAck, (echo, saw), isn);
                stamps[Stage::Returned as usize] = Some(trip.enters(PROBE_ECHO, &answer));
                if !is_host {
                    trip.leaves(PROBE_CLIENT, &packet(Kind::SynAck, (ends.1, ends.0), isn));
                }
                stamps[Stage::Collected as usize] = Some(trip.now);
                trace.data = later(stamps, trip.now.since(now));
                trace.ended = trip.now.plus(trip.now.since(now));
                (trace.echo_saw, trace.generation) = (Some(saw), Some(generation));
            }
            _ => {}
        }
        let seen = self.kernel.state(isn);
        trace.sightings = ProbeSightings {
            leaked: seen & state::LEAKED != 0,
            misrouted: seen & state::MISROUTED != 0,
            stale: seen & state::STALE != 0,
            refused: seen & state::REFUSED != 0,
            unreachable: false,
        };
        if trace.data == [None; STAGES] && seen & TOLD != 0 {
            trace.ended = now.plus(TOLD_AFTER);
        }
    }

    fn way_of_probe(&self, path: ProbePath, frontend: &SocketAddr) -> (Way, Option<u16>) {
        let (client, kind) = match path {
            ProbePath::Pod => (Client::Pod(0), FrontendKind::ClusterIp),
            ProbePath::OffCluster => (Client::Outsider(0), FrontendKind::ClusterIp),
            ProbePath::NodePort => (Client::Outsider(0), FrontendKind::NodePort),
            ProbePath::Host => (Client::Host, FrontendKind::ClusterIp),
        };
        let datapath = &self.datapath;
        if datapath.is_flushed() {
            return (datapath.unruled(client, kind), None);
        }
        let stopped = !datapath.forwards() || (datapath.filtered && path != ProbePath::Pod);
        if stopped && client != Client::Host {
            return (Way::Dropped, None);
        }
        match datapath.thief(frontend) {
            Some(Some(pod)) => return (Way::To(pod), None),
            Some(None) => return (Way::Rejected, None),
            None => {}
        }
        let echo_pod = super::datapath::Pod {
            ip: ECHO,
            local: true,
        };
        (Way::To(echo_pod), Some(datapath.echo))
    }
}

/// The data take the way of the handshake, a moment later.
fn later(stamps: &Stamps, by: Duration) -> Stamps {
    stamps.map(|stamp| stamp.map(|at| at.plus(by)))
}
