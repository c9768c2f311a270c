//! State of one lane: whether it ever worked, the run of failures since it last did, and how its
//! rules follow the API.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use agent_common::probe::{STAGES, Stage};
use agent_common::service::Family;
use serde::{Deserialize, Deserializer, Serialize};

use super::outcome::{ProbeOutcome, VoidReason};
use super::{SentinelLedger, lanes_of, place};
use crate::cause::{PROBE_CAUSES, ProbeCause};
use crate::cluster::NodeFacts;
use crate::freshness::{Freshness, Lags};
use crate::limits::{Limits, TABLE_FULL};
use crate::time::Mono;
use crate::trace::{Lane, ProbeTrace, Transport};

/// One lane.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct LaneLedger {
    /// It worked once on this node in this boot, with this sentinel and under this owner.
    pub(crate) armed: bool,
    /// Address that was dialled when it was armed: another one need not be served.
    pub(crate) frontend: Option<SocketAddr>,
    /// Another Service claims what it dials, or did when a probe last passed.
    #[serde(default)]
    pub(crate) claimed: bool,
    /// When a probe last passed.
    pub(crate) last_pass: Option<Mono>,
    /// When one last failed, whether that counted or not.
    pub(crate) last_failure: Option<Mono>,
    /// When one last failed that counted.
    #[serde(default)]
    pub(crate) last_counted: Option<Mono>,
    /// The echo saw another source than the client's since the lane was armed.
    pub(crate) masquerade_seen: bool,
    /// Failures that count, since the last pass.
    pub(crate) run: Option<Run>,
    /// By cause, while it is not armed: why it never worked.
    #[serde(deserialize_with = "as_far_as_known")]
    pub(crate) never: [u32; PROBE_CAUSES],
    /// Outcome of the last probe, and when it ended.
    pub(crate) last: Option<(Mono, ProbeOutcome)>,
    /// Reason why the last one could not be sent.
    pub(crate) unsent: Option<Box<str>>,
    /// Source of the last probe.
    pub(crate) client: Option<IpAddr>,
    /// Port at which the last probe dialled the echo: the generation on the wire.
    pub(crate) generation: Option<u16>,
    /// Delays of the last probe that was sent, ns from stage to stage.
    pub(crate) delays: [Option<u64>; STAGES],
    /// Round trip of the last probe that passed, ns from sending to its data.
    pub(crate) round_trip: Option<u64>,
    /// Progress of its generation after the API's.
    pub(crate) freshness: Freshness,
    /// Passed, failed, void, since the agent began.
    pub(crate) totals: [u64; 3],
}

/// Failures in a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// When the first of them was sent.
    pub(crate) since: Mono,
    /// When the last of them ended.
    pub(crate) last: Mono,
    pub(crate) failures: u32,
    /// The frontend is an address of the node's own: what no rule takes there, it refuses.
    #[serde(default)]
    pub(crate) local: bool,
    /// The last few, as many as it takes to confirm: when sent, and how they failed.
    pub(crate) recent: VecDeque<(Mono, ProbeCause)>,
}

impl Run {
    fn enter(&mut self, sent: Mono, ended: Mono, cause: ProbeCause, limits: &Limits) {
        self.last = self.last.max(ended);
        self.failures = self.failures.saturating_add(1);
        self.recent.push_back((sent, cause));
        while self.recent.len() > limits.probe_failures as usize {
            self.recent.pop_front();
        }
    }

    /// Whether there are enough of them in a row.
    pub(crate) fn is_long(&self, limits: &Limits) -> bool {
        self.failures >= limits.probe_failures
    }

    /// Whether most of the last ones accuse the datapath alone. While a fault sets in, one of them
    /// may look different.
    pub(crate) fn is_unambiguous(&self, misrouted_suspended: bool) -> bool {
        let counts = |cause: ProbeCause| {
            cause.is_unambiguous()
                && !(misrouted_suspended && cause == ProbeCause::Misrouted)
                && (self.local || cause != ProbeCause::Refused)
        };
        let clear = self.recent.iter().filter(|(_, cause)| counts(*cause));
        2 * clear.count() > self.recent.len()
    }

    /// Whether the run accuses by itself.
    pub(crate) fn is_confirmed(&self, limits: &Limits) -> bool {
        self.is_long(limits) && self.is_unambiguous(false)
    }

    /// The commonest of the last failures; among equals the later one.
    pub(crate) fn cause(&self) -> ProbeCause {
        let count = |cause: &ProbeCause| self.recent.iter().filter(|(_, of)| of == cause).count();
        let causes = self.recent.iter().map(|(_, cause)| *cause);
        let commonest = causes.max_by_key(count);
        commonest.unwrap_or(ProbeCause::LostBeforeLeaving)
    }

    /// When the oldest of the failures that confirm it was sent.
    pub(crate) fn confirmed_from(&self) -> Mono {
        self.recent.front().map_or(self.since, |(sent, _)| *sent)
    }
}

impl LaneLedger {
    /// Records what every probe leaves, whatever its outcome.
    pub(super) fn note(&mut self, trace: &ProbeTrace, outcome: ProbeOutcome, now: Mono) {
        self.last = Some((trace.ended.min(now), outcome));
        self.unsent = trace.unsent.as_deref().map(Into::into);
        let place = match outcome {
            ProbeOutcome::Passed { .. } => 0,
            ProbeOutcome::Failed(_) => 1,
            ProbeOutcome::Void(_) => 2,
        };
        self.totals[place] = self.totals[place].saturating_add(1);
        if trace.unsent.is_none() {
            self.client = Some(trace.client.ip().to_canonical());
            self.delays = delays(trace);
            self.generation = trace.generation.or(self.generation);
        }
    }

    /// A probe passed. One that found room in a full table (`full`) does not end the run of those that
    /// found none.
    pub(super) fn pass(&mut self, trace: &ProbeTrace, masqueraded: bool, full: bool, now: Mono) {
        self.armed = true;
        self.frontend = Some(trace.frontend);
        self.last_pass = self.last_pass.max(Some(trace.ended.min(now)));
        self.masquerade_seen |= masqueraded;
        let goes_on = |run: &Run| {
            full && run.cause() == ProbeCause::ConntrackFull
                && trace.sent.since(run.last) <= TABLE_FULL
        };
        self.run.take_if(|run| !goes_on(run));
        self.never = [0; PROBE_CAUSES];
        let done = trace.data[Stage::Collected as usize].unwrap_or(trace.ended);
        self.round_trip = Some(done.0.saturating_sub(trace.sent.0));
    }

    /// A failure; `counts` says whether it may accuse, `local` what [`Run::local`] does.
    pub(super) fn fail(
        &mut self,
        trace: &ProbeTrace,
        cause: ProbeCause,
        local: bool,
        counts: Result<(), VoidReason>,
        limits: &Limits,
        now: Mono,
    ) {
        let ended = trace.ended.min(now);
        self.last_failure = self.last_failure.max(Some(ended));
        if !self.armed {
            let never = &mut self.never[cause as usize];
            *never = never.saturating_add(1);
        }
        if let Err(reason) = counts {
            self.last = Some((ended, ProbeOutcome::Void(reason)));
            return;
        }
        self.last_counted = self.last_counted.max(Some(ended));
        // In a row means one after the other: what lies between was void or never sent. What is too
        // old to accuse is not continued either.
        let follows = |run: &Run| {
            let sent = run.recent.back().map_or(run.since, |(sent, _)| *sent);
            trace.sent.since(sent) <= limits.probe_gap
                || (run.is_confirmed(limits) && trace.sent.since(run.last) <= limits.proof_age)
        };
        let run = match &mut self.run {
            Some(run) if follows(run) => run,
            run => run.insert(Run {
                since: trace.sent,
                last: trace.sent,
                ..Run::default()
            }),
        };
        run.local = local;
        run.enter(trace.sent, ended, cause, limits);
    }

    /// Ends the run unless it was confirmed long before `at`.
    pub(super) fn end_young(&mut self, at: Mono, limits: &Limits) {
        let long_before = |run: &Run| run.since.plus(limits.sentinel_settled) <= at;
        let young = |run: &Run| !run.is_confirmed(limits) || !long_before(run);
        self.run.take_if(|run| young(run));
    }

    /// It has to work again before it counts.
    pub(super) fn disarm(&mut self) {
        self.armed = false;
        self.masquerade_seen = false;
        self.run = None;
        self.never = [0; PROBE_CAUSES];
    }

    /// Whether it was ever probed by this agent or the one before.
    pub(crate) fn is_known(&self) -> bool {
        self.armed || self.last.is_some()
    }

    /// The commonest failure since it last worked, where it does not work.
    pub(crate) fn never_worked(&self) -> Option<ProbeCause> {
        if self.armed {
            return None;
        }
        let most = self.never.iter().max().copied().filter(|n| *n > 0)?;
        let is_most = |cause: &ProbeCause| self.never[*cause as usize] == most;
        ProbeCause::ALL.into_iter().find(is_most)
    }
}

/// Recordings of agents that knew fewer causes have fewer counts.
fn as_far_as_known<'de, D: Deserializer<'de>>(from: D) -> Result<[u32; PROBE_CAUSES], D::Error> {
    let known = Vec::<u32>::deserialize(from)?;
    let mut counts = [0; PROBE_CAUSES];
    counts.iter_mut().zip(known).for_each(|(to, of)| *to = of);
    Ok(counts)
}

/// From stage to stage; the first one from sending.
fn delays(trace: &ProbeTrace) -> [Option<u64>; STAGES] {
    let mut before = trace.sent;
    trace.first_packet().map(|stamp| {
        let at = stamp?;
        let delay = at.0.saturating_sub(before.0);
        before = at;
        Some(delay)
    })
}

/// The part of a lane that outlives the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LaneMemory {
    #[serde(flatten)]
    lane: Lane,
    last_pass: Option<Mono>,
    #[serde(default)]
    last_counted: Option<Mono>,
    #[serde(default)]
    frontend: Option<SocketAddr>,
    #[serde(default)]
    claimed: bool,
    #[serde(default)]
    masquerade_seen: bool,
    #[serde(default)]
    freshness: Freshness,
    /// Only where it is confirmed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    run: Option<Run>,
}

impl LaneMemory {
    /// Memory of an armed lane; others have nothing to remember.
    pub(super) fn of(lane: Lane, ledger: &LaneLedger, limits: &Limits) -> Option<Self> {
        ledger.armed.then(|| Self {
            lane,
            last_pass: ledger.last_pass,
            last_counted: ledger.last_counted,
            frontend: ledger.frontend,
            claimed: ledger.claimed,
            masquerade_seen: ledger.masquerade_seen,
            freshness: ledger.freshness.clone(),
            run: ledger.run.clone().filter(|run| run.is_confirmed(limits)),
        })
    }

    pub(super) fn restore(self) -> (Lane, LaneLedger) {
        let ledger = LaneLedger {
            armed: true,
            last_pass: self.last_pass,
            last_failure: self.run.as_ref().map(|run| run.last),
            last_counted: self.last_counted,
            frontend: self.frontend,
            claimed: self.claimed,
            masquerade_seen: self.masquerade_seen,
            freshness: self.freshness,
            run: self.run,
            ..LaneLedger::default()
        };
        (self.lane, ledger)
    }
}

/// Lag of the datapath behind the API, as the sentinel's generations show it.
impl SentinelLedger {
    /// The cluster view says that the sentinel's endpoint for this transport is at this port, as
    /// received at `now`. To be called whenever the view changed and the sentinel is as pathproof
    /// made it, after [`view_changed`](Self::view_changed); the same again changes nothing.
    pub fn want(&mut self, family: Family, transport: Transport, generation: u16, now: Mono) {
        let gap = self.limits.probe_gap;
        for lane in lanes_of(family).filter(|lane| lane.transport == transport) {
            self.lanes[place(lane)].freshness.want(generation, now, gap);
        }
    }

    /// The source of the cluster view went away, or was not heard yet after a restart: what the
    /// datapath may have missed meanwhile, with the same API server gone, does not make it late.
    pub fn source_away(&mut self, now: Mono) {
        self.away.get_or_insert(now);
    }

    /// The source of the cluster view is back. The time that it was away counts for nothing.
    pub fn source_back(&mut self, now: Mono) {
        let Some(away) = self.away.take() else { return };
        for lane in &mut self.lanes {
            lane.freshness.excuse(away, now);
        }
    }

    /// Follows whether the writer of this node's rules can receive changes: the source of the view
    /// is there, and the control plane receives reports of the kubelet, which reaches it by the way
    /// that kube-proxy takes. The agent, which goes past that way, may receive changes when they
    /// cannot.
    pub fn follow_source(&mut self, is_silent: bool, node: Option<&NodeFacts>, now: Mono) {
        if is_silent || node.is_some_and(|node| node.unheard) {
            self.source_away(now);
        } else {
            self.source_back(now);
        }
    }

    /// Usual lag of this node's datapath behind the API: the median of the last measures of the
    /// family that lags more. `None` before a few were taken.
    pub fn usual_lag(&self) -> Option<Duration> {
        self.lags.iter().filter_map(Lags::usual).max()
    }

    /// A probe came through: which generation it met, and when it left for it.
    pub(super) fn measure(&mut self, trace: &ProbeTrace) {
        let Some(generation) = trace.generation else {
            return;
        };
        let translated = trace.first_packet()[Stage::Translated as usize];
        let at = translated.unwrap_or(trace.sent);
        let lane = &mut self.lanes[place(trace.lane)];
        self.measured = lane.freshness.see(generation, at, self.limits.probe_gap);
        if let Some(lag) = self.measured
            && trace.lane.transport == Transport::Tcp
        {
            self.lags[trace.lane.family as usize].add(lag);
        }
    }

    /// Time for which a lane's generation has been behind what this node received; `None` if it is
    /// not. Only time in which the source of the view was there counts.
    pub(crate) fn lateness(&self, lane: Lane, now: Mono) -> Option<Duration> {
        let since = self.lane(lane).freshness.unmet_since()?;
        Some(self.away.map_or(now, |away| away.min(now)).since(since))
    }
}
