//! State of one lane: whether it ever worked, the run of failures since its last success, and its
//! lag behind the API.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use pathproof_facts::cause::{PROBE_CAUSES, ProbeCause};
use pathproof_facts::cluster::NodeFacts;
use pathproof_facts::freshness::{Freshness, Lags};
use pathproof_facts::limits::{FAILURES_COUNT_FOR, Limits, TABLE_FULL};
use pathproof_facts::time::Mono;
use pathproof_facts::trace::{Lane, ProbeTrace, Transport};
use pathproof_wire::probe::{STAGES, Stage};
use pathproof_wire::service::Family;
use serde::{Deserialize, Serialize};

use super::outcome::{ProbeOutcome, VoidReason};
use super::{SentinelLedger, lanes_of, place};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneLedger {
    /// Whether a probe passed in this boot of the node, with the present sentinel and owner.
    pub armed: bool,
    /// Frontend with which it was armed. Success at this frontend does not prove that another one is served.
    pub(crate) frontend: Option<SocketAddr>,
    /// Whether another Service uses its frontend, or did when a probe last passed.
    #[serde(rename = "claimed")]
    pub in_conflict: bool,
    pub last_pass: Option<Mono>,
    /// When a probe last failed, even if the failure was void.
    pub last_failure: Option<Mono>,
    /// When a probe last failed and the failure was not void, so that it counts against the datapath.
    #[serde(rename = "last_counted")]
    pub last_counted_failure: Option<Mono>,
    /// Whether the echo received a probe with another source address than the client's since the lane was
    /// armed.
    pub(crate) masquerade_seen: bool,
    /// Failures since the last pass, without void ones.
    pub run: Option<Run>,
    /// Start of the first run since the last pass that a filter on the sentinel's addresses would explain. A gap
    /// in probing or a restart of the agent ends such a run, but not what caused it.
    pub(crate) failing_since: Option<Mono>,
    /// Failures by cause while the lane is not armed: why it never worked.
    pub(crate) never: [u32; PROBE_CAUSES],
    /// Outcome of the last probe, and when it ended.
    pub last: Option<(Mono, ProbeOutcome)>,
    /// Why the last probe could not be sent.
    pub unsent: Option<Box<str>>,
    pub client: Option<IpAddr>,
    /// Port at which the last probe dialled the echo: the generation on the wire.
    pub generation: Option<u16>,
    /// Delays of the last probe that was sent, in ns from stage to stage.
    pub delays: [Option<u64>; STAGES],
    /// Round trip of the last probe that passed, in ns from sending it to receiving its data.
    pub round_trip: Option<u64>,
    /// Lag of its generation behind the API.
    pub freshness: Freshness,
    /// Passed, failed and void probes since the agent started.
    pub totals: [u64; 3],
}

/// Failures in a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// When the first of them was sent.
    pub since: Mono,
    /// Start of an earlier run that no success has followed.
    #[serde(rename = "earlier")]
    pub(crate) failing_before: Option<Mono>,
    /// When the last of them ended.
    pub last: Mono,
    pub failures: u32,
    /// Whether a refusal accuses the datapath, and not a filter.
    #[serde(rename = "local")]
    pub refusal_clear: bool,
    /// The last failures, as many as confirm a run: when each probe was sent, and the cause.
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

    /// When the lane began to fail, perhaps before a gap in probing.
    pub fn onset(&self) -> Mono {
        self.failing_before.unwrap_or(self.since)
    }

    /// Whether enough probes failed in a row.
    pub fn is_long(&self, limits: &Limits) -> bool {
        self.failures >= limits.probe_failures
    }

    /// Whether most of the last failures have a cause that only a fault of the datapath explains, and no
    /// packet filter does. The first failures of a fault may have another cause, so a majority is enough.
    pub fn is_unambiguous(&self, misrouted_suspended: bool) -> bool {
        let counts = |cause: ProbeCause| {
            cause.is_unambiguous()
                && !(misrouted_suspended && cause == ProbeCause::Misrouted)
                && (self.refusal_clear || cause != ProbeCause::Refused)
        };
        let clear = self.recent.iter().filter(|(_, cause)| counts(*cause));
        2 * clear.count() > self.recent.len()
    }

    /// Whether the run accuses by itself.
    pub(crate) fn is_confirmed(&self, limits: &Limits) -> bool {
        self.is_long(limits) && self.is_unambiguous(false)
    }

    /// The commonest cause of the last failures; the later one among equals.
    pub fn cause(&self) -> ProbeCause {
        let count = |cause: &ProbeCause| {
            self.recent
                .iter()
                .filter(|(_, other)| other == cause)
                .count()
        };
        let causes = self.recent.iter().map(|(_, cause)| *cause);
        let commonest = causes.max_by_key(count);
        commonest.unwrap_or(ProbeCause::LostBeforeLeaving)
    }

    /// When the first of the failures that confirm the run was sent.
    pub fn confirmed_from(&self) -> Mono {
        self.recent.front().map_or(self.since, |(sent, _)| *sent)
    }
}

impl LaneLedger {
    /// Records the fields that do not depend on the outcome.
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

    /// Records a pass. While the connection table is full (`full`), a probe that found room in it does not
    /// end the run of probes that found none.
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
        self.failing_since = None;
        self.never = [0; PROBE_CAUSES];
        let done = trace.data[Stage::Collected as usize].unwrap_or(trace.ended);
        self.round_trip = Some(done.0.saturating_sub(trace.sent.0));
    }

    /// Records a failure. `counts` is whether it counts against the datapath, or why it is void; `refusal_clear` is
    /// [`Run::refusal_clear`].
    pub(super) fn fail(
        &mut self,
        trace: &ProbeTrace,
        cause: ProbeCause,
        refusal_clear: bool,
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
        self.last_counted_failure = self.last_counted_failure.max(Some(ended));
        // A gap ends an unconfirmed run, because probes in between were void or never sent. A confirmed
        // run continues until it is too old to accuse.
        let follows = |run: &Run| {
            let sent = run.recent.back().map_or(run.since, |(sent, _)| *sent);
            trace.sent.since(sent) <= limits.probe_gap
                || (run.is_confirmed(limits) && trace.sent.since(run.last) <= limits.proof_age)
        };
        let run = match &mut self.run {
            Some(run) if follows(run) => run,
            run => run.insert(Run {
                since: trace.sent,
                failing_before: self.failing_since,
                last: trace.sent,
                ..Run::default()
            }),
        };
        run.refusal_clear = refusal_clear;
        run.enter(trace.sent, ended, cause, limits);
        if run.is_long(limits) && !run.is_unambiguous(false) {
            self.failing_since.get_or_insert(run.since);
        }
    }

    /// Ends the run, unless it is confirmed and began long before `at`.
    pub(super) fn end_young(&mut self, at: Mono, limits: &Limits) {
        let long_before = |run: &Run| run.since.plus(limits.sentinel_settled) <= at;
        let young = |run: &Run| !run.is_confirmed(limits) || !long_before(run);
        self.run.take_if(|run| young(run));
        let is_young = |since: &Mono| since.plus(limits.sentinel_settled) > at;
        self.failing_since.take_if(|since| is_young(since));
    }

    /// Forgets that the lane worked: only a new pass arms it again.
    pub(super) fn disarm(&mut self) {
        self.armed = false;
        self.masquerade_seen = false;
        self.run = None;
        self.failing_since = None;
        self.never = [0; PROBE_CAUSES];
    }

    /// The part of an armed lane that outlives the agent: a run of failures only if it is confirmed. Other
    /// lanes have none.
    pub(super) fn memory(&self, limits: &Limits) -> Option<Self> {
        let run = self.run.clone().filter(|run| run.is_confirmed(limits));
        self.armed.then(|| Self {
            armed: true,
            frontend: self.frontend,
            in_conflict: self.in_conflict,
            last_pass: self.last_pass,
            last_failure: run.as_ref().map(|run| run.last),
            last_counted_failure: self.last_counted_failure,
            masquerade_seen: self.masquerade_seen,
            freshness: self.freshness.clone(),
            run,
            failing_since: self.failing_since,
            ..Self::default()
        })
    }

    /// Since when the lane failed before its run ended without a pass: by a gap in probing, damaged devices or a
    /// restart of the agent. `None` if its last failure that counted was more than [`FAILURES_COUNT_FOR`] ago.
    pub fn failed_before(&self, now: Mono) -> Option<Mono> {
        let is_recent = self
            .last_counted_failure
            .is_some_and(|at| now.since(at) <= FAILURES_COUNT_FOR);
        self.failing_since.filter(|_| is_recent)
    }

    /// Whether this agent or the previous one ever probed it.
    pub fn is_known(&self) -> bool {
        self.armed || self.last.is_some()
    }

    /// The commonest failure of a lane that is not armed.
    pub fn never_worked(&self) -> Option<ProbeCause> {
        if self.armed {
            return None;
        }
        let most = self.never.iter().max().copied().filter(|n| *n > 0)?;
        let is_most = |cause: &ProbeCause| self.never[*cause as usize] == most;
        ProbeCause::ALL.into_iter().find(is_most)
    }
}

/// Delays from stage to stage; the first delay starts when the probe is sent.
fn delays(trace: &ProbeTrace) -> [Option<u64>; STAGES] {
    let mut before = trace.sent;
    trace.first_packet().map(|stamp| {
        let at = stamp?;
        let delay = at.0.saturating_sub(before.0);
        before = at;
        Some(delay)
    })
}

/// Lag of the datapath behind the API, measured by the sentinel's generations.
impl SentinelLedger {
    /// Records the port of the sentinel's endpoint for this transport in the cluster view, received
    /// at `now`. Call it after [`view_changed`](Self::view_changed) whenever the view changed and
    /// the sentinel is unaltered. An unchanged port has no effect.
    pub fn want(&mut self, family: Family, transport: Transport, generation: u16, now: Mono) {
        let gap = self.limits.probe_gap;
        for lane in lanes_of(family).filter(|lane| lane.transport == transport) {
            self.lanes[place(lane)].freshness.want(generation, now, gap);
        }
    }

    /// Records that the source of the cluster view is unreachable, or was not reached yet after a restart.
    /// The datapath uses the same API server. It may not receive changes in this time, so it is not late with
    /// them.
    pub fn source_away(&mut self, now: Mono) {
        self.away.get_or_insert(now);
    }

    /// Records that the source of the cluster view is reachable again. The time without it does not count as
    /// lag.
    pub fn source_back(&mut self, now: Mono) {
        let Some(away) = self.away.take() else { return };
        for lane in &mut self.lanes {
            lane.freshness.excuse(away, now);
        }
    }

    /// Records whether the writer of this node's rules can receive changes. This requires that the view's
    /// source is reachable, and that the control plane receives the kubelet's reports. The kubelet reaches
    /// the API server by the same route as kube-proxy. The agent uses another route, so it may receive
    /// changes when those two cannot.
    pub fn follow_source(&mut self, is_silent: bool, node: Option<&NodeFacts>, now: Mono) {
        if is_silent || node.is_some_and(|node| node.kubelet_silent) {
            self.source_away(now);
        } else {
            self.source_back(now);
        }
    }

    /// Usual lag of this node's datapath behind the API: the median of the last measurements in the slower
    /// family. `None` if there are too few.
    pub fn usual_lag(&self) -> Option<Duration> {
        self.lags.iter().filter_map(Lags::usual).max()
    }

    /// Records the generation of a probe that passed, and when the probe left for it.
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

    /// Time for which a lane's generation has been behind the one that this node received from the API;
    /// `None` if it is not behind. Time without the source of the view does not count.
    pub fn lateness(&self, lane: Lane, now: Mono) -> Option<Duration> {
        let since = self.lane(lane).freshness.unmet_since()?;
        Some(self.away.map_or(now, |away| away.min(now)).since(since))
    }
}
