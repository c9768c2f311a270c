//! Checks the answers against the clients' results and the actions. Times are counted from the start of the
//! storm.
//!
//! - No 503 while every new connection works, or while only harmless actions happen.
//! - 503 within the promised time if no new connection works, and until one works again.
//! - No silence of the length that makes load balancers give the node up, unless an agent fault explains it.
//! - Each fault that was answered with 503 in the agent's journal, and nothing else.
//! - 503 at /healthz alone exactly while the node is marked for deletion, as far as the agent can know.

use super::plan::{Action, AgentFault, Fault, Harmless, Step, Tenant, Users, World};
use crate::detect::Figure;
use crate::prelude::*;

mod journal;
pub(super) use journal::{Entry, judge_journal};

/// Time after a repair in which 503 is still accepted: 1 s without failures, and the time until open
/// connections and answers complete.
const GRACE: Duration = Duration::from_secs(5);
/// Failed probes do not count for 10 s after the sentinel was created or its devices were damaged.
const UNARMED: Duration = Duration::from_secs(12);
/// Time to 503 for a cause that nothing else explains (docs/internal/benchmarks.md).
const CERTAIN: Duration = Duration::from_millis(1500);
/// Time to 503 from real connections alone: 3 s of failed connections, each of which counts as lost after 1
/// s.
const BY_TRAFFIC: Duration = Duration::from_millis(4500);
/// Time to 503 while packets and probes wait for a processor.
const STARVED: Duration = Duration::from_secs(8);
/// Time that an agent needs after an agent fault to start and to make its first observations.
const BACK: Duration = Duration::from_secs(2);
/// Silence after which a load balancer that polls about once a second withdraws the node.
const SILENCE: Duration = Duration::from_secs(3);
/// Maximum time after an API server is available again until the agent has reconnected and has its current
/// state.
const NEWS: Duration = Duration::from_secs(20);
/// Connections that begin less than this before a repair may succeed because of it.
const AT_THE_END: Duration = Duration::from_secs(1);
/// Minimum number of connections by which a fault can be judged.
const ENOUGH: usize = 20;

/// Minimum share of the faults that must be judged, in percent.
const JUDGED: usize = 80;
/// Minimum share of the time in which 503 at /livez would have been wrong, in percent.
const ALERT: usize = 40;

/// Codes of both paths during some time; 0 means no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) from: Duration,
    pub(super) to: Duration,
    pub(super) codes: Codes,
}

/// All observations of a storm.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// The actions as they were carried out.
    pub(super) steps: Vec<Step>,
    /// Connections of clients: when each began, and whether it was answered.
    pub(super) dialled: Vec<(Duration, bool)>,
    pub(super) answered: Vec<Answered>,
    /// Extra time added to every promise, for busy machines.
    pub(super) slack: Duration,
    pub(super) users: Users,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    /// Wrong answers: time and description.
    pub(super) violations: Vec<(Duration, String)>,
    pub(super) faults: usize,
    /// Times from each judged fault to its 503.
    pub(super) detected: Figure,
    /// First 503 of each judged fault.
    pub(super) told: Vec<(Duration, Action)>,
    /// Faults that were not judged: time, with name and reason.
    pub(super) unjudged: Vec<(Duration, String)>,
    /// Share of the time in which 503 at /livez would have been wrong, in percent.
    pub(super) alert: usize,
}

impl Findings {
    /// Whether the storm is inconclusive because too few faults were judged.
    pub(super) fn are_blind(&self) -> bool {
        (self.faults - self.unjudged.len()) * 100 < self.faults * JUDGED
    }

    /// Whether 503 would have been wrong for enough of the time.
    pub(super) fn were_alert(&self) -> bool {
        self.alert >= ALERT
    }

    pub(super) fn accuse(&mut self, at: Duration, what: impl Into<String>) {
        self.violations.push((at, what.into()));
    }
}

pub(super) fn findings_of(seen: &Seen) -> Findings {
    let mut findings = Findings::default();
    for answered in &seen.answered {
        seen.false_alarm(answered, &mut findings);
        seen.silent(answered, &mut findings);
        for code in [answered.codes.healthz, answered.codes.livez] {
            if ![0, 200, 503].contains(&code) {
                let what = format!("{code} was answered, which is neither 200 nor 503");
                findings.accuse(answered.from, what);
            }
        }
    }
    for step in &seen.steps {
        match step.action {
            Action::Fault(_) => seen.missed(step, &mut findings),
            Action::Harmless(Harmless::NodeMarked) => seen.unmarked(step, &mut findings),
            _ => {}
        }
    }
    findings.violations.sort_by_key(|(at, _)| *at);
    findings.alert = seen.alert();
    findings
}

/// Moments at intervals of 0.1 s.
fn tenths(from: Duration, to: Duration) -> impl Iterator<Item = Duration> {
    let moments = (0..).map(move |tenth| from + tenth * Duration::from_millis(100));
    moments.take_while(move |at| *at < to)
}

impl Seen {
    fn grace(&self) -> Duration {
        GRACE + self.slack
    }

    /// Whether one of these actions is in force in this time span, or ended less than `after` before it.
    fn has(&self, actions: &[Action], from: Duration, to: Duration, after: Duration) -> bool {
        let mut steps = self.steps.iter();
        steps.any(|step| actions.contains(&step.action) && step.touches(from, to, after))
    }

    /// Whether an action explains that a request in this time span got no answer.
    pub(super) fn explains_silence(&self, from: Duration, to: Duration) -> bool {
        self.has(&SILENCING, from, to, self.grace())
    }

    /// Whether an action that takes processor time explains a late answer in this time span.
    pub(super) fn explains_delay(&self, from: Duration, to: Duration) -> bool {
        self.has(&STARVING, from, to, self.grace())
    }

    fn alert(&self) -> usize {
        let end = self.answered.last().map_or(Duration::ZERO, |last| last.to);
        let moments: Vec<_> = tenths(Duration::ZERO, end).collect();
        let alert = moments.iter().filter(|at| !self.is_broken(**at));
        alert.count() * 100 / moments.len().max(1)
    }

    fn agent_faults(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.is_agent_fault())
    }

    /// Results of the connections that began in this time span: whether each was answered.
    fn dialled(&self, from: Duration, to: Duration) -> impl Iterator<Item = bool> {
        let dialled = self.dialled.iter();
        dialled.filter_map(move |(begun, ok)| (from..to).contains(begun).then_some(*ok))
    }

    /// Reports a 503 that no action justifies.
    pub(super) fn false_alarm(&self, answered: &Answered, findings: &mut Findings) {
        let (from, to) = (answered.from, answered.to);
        let mut moments = tenths(from, to);
        if answered.codes.livez == 503 {
            if let Some(at) = moments.find(|at| !self.is_broken(*at)) {
                findings.accuse(at, "503 at /livez without a fault in the last seconds");
            } else if !self.was_felt(answered) {
                let what = "503 at /livez while every connection worked";
                findings.accuse(from, what);
            }
        } else if answered.codes.healthz == 503
            && let Some(at) = moments.find(|at| !self.is_marked(*at))
        {
            findings.accuse(at, "503 at /healthz alone, and the node was not marked");
        }
    }

    /// Whether a fault is in force, or its 503 may still last.
    fn is_broken(&self, at: Duration) -> bool {
        let mut faults = self.steps.iter().filter(|step| step.is_fault());
        faults.any(|fault| (fault.from..self.forgiven(fault)).contains(&at))
    }

    /// Latest accepted end of 503 for a fault. If an agent fault occurred meanwhile, more time is accepted.
    /// Once the agent has answered 200 after the fault, another 503 is wrong.
    fn forgiven(&self, fault: &Step) -> Duration {
        let mut end = fault.to + self.grace();
        for away in self.agent_faults() {
            if away.touches(fault.from, end, Duration::ZERO) {
                end = end.max(away.to + self.grace());
            }
        }
        let mut answered = self.answered.iter();
        let mended = answered.find(|one| one.codes.livez == 200 && one.from >= fault.to);
        mended.map_or(end, |mended| end.min(mended.from))
    }

    /// Whether a connection failed during this answer or shortly before it. After an agent fault, the agent
    /// repeats its earlier answer for one second, so failures from before the agent fault count too.
    fn was_felt(&self, answered: &Answered) -> bool {
        let (at, away) = (answered.from, self.agent_faults());
        let away = away.filter(|step| step.touches(at, at, self.grace()));
        let since = away.map(|step| step.from).fold(at, Duration::min);
        let mut dialled = self.dialled(since.saturating_sub(self.grace()), answered.to);
        dialled.any(|ok| !ok)
    }

    fn is_marked(&self, at: Duration) -> bool {
        self.steps.iter().any(|step| {
            let end = match step.action {
                Action::Harmless(Harmless::NodeMarked) => self.learned_by(step.to),
                // Faults and agent faults change both codes. Around a change the codes may differ, because
                // the two paths are polled one after the other.
                Action::Fault(_) | Action::Agent(_) => step.to,
                _ => return false,
            };
            (step.from..end + self.grace()).contains(&at)
        })
    }

    /// Latest time at which the agent may learn of an event at the API server.
    fn learned_by(&self, mut at: Duration) -> Duration {
        for step in &self.steps {
            if matches!(step.action, Action::Api(_)) && step.from <= at {
                at = at.max(step.to + NEWS);
            }
        }
        at
    }

    /// Reports silence that no action explains. A stopped agent, or a killed one without a successor, cannot
    /// answer. With tight memory, an agent has to wait for its reclaimed pages.
    fn silent(&self, answered: &Answered, findings: &mut Findings) {
        let (from, to) = (answered.from, answered.to);
        let lasts = to.saturating_sub(from);
        let is_silent = answered.codes.healthz == 0 || answered.codes.livez == 0;
        let is_excused = self.has(&SILENCING, from, to, BACK + self.slack);
        if is_silent && lasts >= SILENCE + self.slack && !is_excused {
            findings.accuse(from, format!("no answer for {lasts:.1?}"));
        }
    }

    /// Reports a fault that 503 did not follow in time.
    fn missed(&self, fault: &Step, findings: &mut Findings) {
        findings.faults += 1;
        let lasts = |one: &Answered| one.to > fault.from && one.from < fault.to;
        let mut answered = self.answered.iter();
        let first = answered.find(|one| one.codes.livez == 503 && lasts(one));
        let first_503 = first.map_or(fault.to, |first| first.from);
        let action = fault.action;
        let promised = match self.promised(fault, first_503) {
            Ok(promised) => promised,
            Err(why) => {
                let unjudged = (fault.from, format!("{action:?}: {why}"));
                return findings.unjudged.push(unjudged);
            }
        };
        let after = first.map(|first| first.from.saturating_sub(fault.from));
        if let Some(after) = after.filter(|after| *after <= promised) {
            self.taken_back(fault, first_503, findings);
            findings.told.push((first_503, action));
            return findings.detected.note(Some(after));
        }
        let came = after.map_or("never".to_owned(), |after| format!("after {after:.1?}"));
        let lasts = fault.to - fault.from;
        let what = format!(
            "{action:?} for {lasts:.1?}, no connection worked, and 503 came {came} \
             (promised, with the slack, within {promised:.1?})"
        );
        findings.accuse(fault.from, what);
    }

    /// Reports 200 during a fault, after its 503, although no connection has worked since. One case is
    /// accepted: the sentinel is disturbed, and there is only one kind of clients. The disturbance may
    /// explain failed probes, which then no longer count, and one kind of clients is not enough to replace
    /// them at once.
    fn taken_back(&self, fault: &Step, first_503: Duration, findings: &mut Findings) {
        let mut steps = self.steps.iter();
        let is_blinded = steps.any(|step| {
            BLINDING.contains(&step.action) && step.touches(fault.from, fault.to, UNARMED)
        });
        if is_blinded && self.users != Users::Everybody {
            return;
        }
        // A connection that began at the very end may have succeeded through the repair.
        let end = fault.to.saturating_sub(AT_THE_END);
        let mut answered = self.answered.iter();
        let again =
            answered.find(|one| one.codes.livez == 200 && (first_503..end).contains(&one.from));
        if let Some(again) = again
            && !self.dialled(first_503, again.to.min(end)).any(|ok| ok)
        {
            let action = fault.action;
            let what = format!("{action:?}: 200 at /livez again, and no connection worked");
            findings.accuse(again.from, what);
        }
    }

    /// Time from the fault's beginning within which 503 must come, including the slack, or the reason why 503
    /// may be missing. If there was no 503, `first_503` is the end of the fault.
    fn promised(&self, fault: &Step, first_503: Duration) -> Result<Duration, &'static str> {
        let (from, to) = (fault.from, fault.to);
        if first_503 < from {
            return Err("the 503 of the fault before still stood");
        }
        let mut steps = self.steps.clone();
        steps
            .iter_mut()
            .for_each(|step| step.to = self.followed(step));
        if let Some(why) = steps.iter().find_map(|step| step.hides(fault)) {
            return Err(why);
        }
        let beside = |actions: &[Action], after| {
            let mut steps = steps.iter();
            steps.any(|step| actions.contains(&step.action) && step.touches(from, to, after))
        };
        // If only one kind of clients fails, a filter or a policy may explain these faults as well.
        let needs_two = matches!(
            fault.action,
            Action::Fault(Fault::ForwardDropped | Fault::DataDropped)
        );
        let is_alone = self.users != Users::Everybody && beside(&BLINDING, UNARMED);
        if is_alone && needs_two {
            return Err("the sentinel was disturbed, and one kind of clients is no second witness");
        }
        let end = to.saturating_sub(AT_THE_END);
        // Count from the last connection that worked, because until then 200 is right: on a busy machine the
        // command that breaks the node takes some time.
        let settled = from + Duration::from_millis(500)..end.min(first_503);
        let worked = self.dialled.iter();
        let worked = worked.filter(|(begun, ok)| *ok && settled.contains(begun));
        let since = worked.map(|(begun, _)| *begun).max().unwrap_or(from);
        let promised = match fault.action {
            _ if beside(&STARVING, GRACE) => STARVED,
            // The agent reads the forwarding sysctl every 5 s, and so finds this fault without other
            // evidence.
            Action::Fault(Fault::ForwardingOff) if is_alone => STARVED,
            // The sentinel has separate routes, so its probes pass even without the routes to the pods.
            Action::Fault(Fault::ForwardDropped | Fault::RoutesGone) => BY_TRAFFIC,
            // Once a working connection has contradicted failing probes, they stay contradicted until a probe
            // passes (docs/internal/design/sentinel.md#lanes).
            _ if since > from || beside(&BLINDING, UNARMED) => BY_TRAFFIC,
            _ => CERTAIN,
        };
        let promised = since - from + promised + self.slack;
        if from + promised <= to && self.dialled(since, end).count() >= ENOUGH {
            Ok(promised)
        } else if since > from {
            Err("some connection worked")
        } else {
            Err("it was mended before 503 was due, or too few connections were begun")
        }
    }

    /// Time at which an action ends, including its effect on the rules. A sentinel that returns while the
    /// proxy is frozen may have no rules until the proxy runs again.
    fn followed(&self, step: &Step) -> Duration {
        if step.action != Action::Harmless(Harmless::SentinelDeleted) {
            return step.to;
        }
        let mut steps = self.steps.iter();
        let frozen = steps.find(|one| {
            let is_frozen = one.action == Action::World(World::ProxyFrozen);
            is_frozen && (one.from..one.to).contains(&step.to)
        });
        frozen.map_or(step.to, |frozen| frozen.to)
    }

    /// Reports a node that is marked for deletion while /healthz is still 200.
    fn unmarked(&self, marked: &Step, findings: &mut Findings) {
        let from = self.learned_by(marked.from) + Duration::from_secs(1) + self.slack;
        let mut answers = self.answered.iter().filter(|one| one.codes.healthz == 200);
        let wrong = answers.find(|one| one.to > from && one.from < marked.to);
        let away = |step: &Step| step.touches(marked.from, marked.to, GRACE);
        if from < marked.to
            && !self.agent_faults().any(away)
            && let Some(wrong) = wrong
        {
            let what = "200 at /healthz while the node is marked for deletion";
            findings.accuse(wrong.from.max(from), what);
        }
    }
}

/// Actions that remove or disturb the sentinel's evidence.
const BLINDING: [Action; 4] = [
    Action::Harmless(Harmless::RangeDropped),
    Action::Harmless(Harmless::SentinelDeleted),
    Action::Harmless(Harmless::DeviceDeleted),
    Action::Tenant(Tenant::ClaimsProbed),
];
/// Actions during which the agent may be unable to answer.
const SILENCING: [Action; 3] = [
    Action::Agent(AgentFault::Stopped),
    Action::Agent(AgentFault::Killed),
    Action::Harmless(Harmless::MemoryTight),
];
/// Actions that take processor time from the agent.
const STARVING: [Action; 3] = [
    Action::Harmless(Harmless::SynFlood),
    Action::Harmless(Harmless::ProcessorsTaken),
    Action::Harmless(Harmless::MemoryTight),
];

impl Step {
    /// The reason why a fault cannot be judged beside this action, if any.
    pub(super) fn hides(&self, fault: &Self) -> Option<&'static str> {
        let (after, why) = match (self.action, fault.action) {
            (Action::Agent(_), _) => (BACK, "the agent was away"),
            // Nothing distinguishes this fault from a tenant that denies its own pods
            // (docs/internal/design/decision.md#tenants).
            (Action::Tenant(Tenant::ClaimsProbed), Action::Fault(Fault::ForwardDropped)) => (
                UNARMED,
                "a tenant claimed all that probes dial, and pods that are denied look the same",
            ),
            // The fault affects data only. Real traffic proves handshakes only, and those succeed.
            (action, Action::Fault(Fault::DataDropped)) if BLINDING.contains(&action) => (
                UNARMED,
                "only the sentinel sends data, and it was disturbed",
            ),
            // Without memory the kernel refuses the agent's requests. Failures that cannot be verified do not
            // count.
            (Action::Harmless(Harmless::MemoryTight), Action::Fault(Fault::DataDropped)) => (
                UNARMED,
                "only the sentinel sends data, and the agent was refused the memory for it",
            ),
            _ => return None,
        };
        self.touches(fault.from, fault.to, after).then_some(why)
    }
}

#[cfg(test)]
mod tests;
