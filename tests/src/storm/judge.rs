//! Whether the answers were right, by what the clients felt and what was done. Times are counted
//! from the start of the storm.
//!
//! - Never 503 where every new connection works, or where nothing but harmless things happen.
//! - Always 503 within the promise where no new connection works, and until some do.
//! - Never silent for as long as load balancers bear, but where the agent is away.
//! - /healthz alone is 503 while the node is marked, and only then, as far as the agent can know.

use std::time::Duration;

use super::plan::{Action, AgentFault, Fault, Harmless, Step, Tenant, World};
use crate::detect::Figure;
use crate::watch::Codes;

/// How long after a repair 503 may stand: 1 s without failures, and what a connection and an answer
/// take to be over.
const GRACE: Duration = Duration::from_secs(5);
/// A new sentinel, and one whose devices were damaged, accuses nobody for 10 s.
const UNARMED: Duration = Duration::from_secs(12);
/// 503 for a cause that nothing else explains (design.md, section 9).
const CERTAIN: Duration = Duration::from_millis(1500);
/// 503 by real connections alone: 3 s of them, lost after 1 s each.
const BY_TRAFFIC: Duration = Duration::from_millis(4500);
/// The same where packets and probes wait for a processor.
const STARVED: Duration = Duration::from_secs(8);
/// After an agent fault: what a start takes, and what is seen after it.
const BACK: Duration = Duration::from_secs(2);
/// Silence that a load balancer, which asks every second or so, takes for the node's end.
const SILENCE: Duration = Duration::from_secs(3);
/// An API server that was away is asked again at least this often, and then tells all.
const NEWS: Duration = Duration::from_secs(20);
/// Connections that begin so shortly before a repair may meet it.
const AT_THE_END: Duration = Duration::from_secs(1);
/// Fewer connections than these say nothing.
const ENOUGH: usize = 20;

/// Least share of the faults that has to be judged, in percent.
const JUDGED: usize = 80;
/// Least share of the time in which 503 at /livez would be wrong, in percent.
const ALERT: usize = 40;

/// Codes of both paths for some time; 0 where nobody answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answered {
    /// From when.
    pub(super) from: Duration,
    /// Until when.
    pub(super) to: Duration,
    pub(super) codes: Codes,
}

/// Everything that was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// What was done.
    pub(super) steps: Vec<Step>,
    /// Connections of clients: when each was begun, and whether it was answered.
    pub(super) dialled: Vec<(Duration, bool)>,
    /// What was answered.
    pub(super) answered: Vec<Answered>,
    /// Added to what is promised, for machines that do much else.
    pub(super) slack: Duration,
}

/// What came of a storm.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    /// When an answer was wrong, and what was wrong with it.
    pub(super) violations: Vec<(Duration, String)>,
    /// Faults, judged or not.
    pub(super) faults: usize,
    /// From each fault that was judged to 503.
    pub(super) detected: Figure,
    /// Faults that were not judged: beginning, name and reason.
    pub(super) unjudged: Vec<(Duration, String)>,
    /// Share of the time in which 503 at /livez would have been wrong, in percent.
    pub(super) alert: usize,
}

impl Findings {
    /// Whether too few faults were judged for the storm to show anything.
    pub(super) fn are_blind(&self) -> bool {
        (self.faults - self.unjudged.len()) * 100 < self.faults * JUDGED
    }

    /// Whether 503 would have been wrong for long enough.
    pub(super) fn were_alert(&self) -> bool {
        self.alert >= ALERT
    }

    pub(super) fn accuse(&mut self, at: Duration, what: impl Into<String>) {
        self.violations.push((at, what.into()));
    }
}

pub(super) fn judge(seen: &Seen) -> Findings {
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

/// Every tenth of a second.
fn tenths(from: Duration, to: Duration) -> impl Iterator<Item = Duration> {
    let moments = (0..).map(move |tenth| from + tenth * Duration::from_millis(100));
    moments.take_while(move |at| *at < to)
}

impl Seen {
    fn grace(&self) -> Duration {
        GRACE + self.slack
    }

    /// Share of the time in which 503 at /livez would be wrong, in percent.
    fn alert(&self) -> usize {
        let end = self.answered.last().map_or(Duration::ZERO, |last| last.to);
        let moments: Vec<_> = tenths(Duration::ZERO, end).collect();
        let alert = moments.iter().filter(|at| !self.is_broken(**at));
        alert.count() * 100 / moments.len().max(1)
    }

    fn agent_faults(&self) -> impl Iterator<Item = &Step> {
        self.steps.iter().filter(|step| step.is_agent_fault())
    }

    /// Of each connection that was begun in a time, whether it was answered.
    fn dialled(&self, from: Duration, to: Duration) -> impl Iterator<Item = bool> {
        let dialled = self.dialled.iter();
        dialled.filter_map(move |(begun, ok)| (from..to).contains(begun).then_some(*ok))
    }

    /// 503 that nothing excuses.
    fn false_alarm(&self, answered: &Answered, findings: &mut Findings) {
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

    /// Whether a fault lasts, or ended a moment ago.
    fn is_broken(&self, at: Duration) -> bool {
        let mut faults = self.steps.iter().filter(|step| step.is_fault());
        faults.any(|fault| (fault.from..self.forgiven(fault)).contains(&at))
    }

    /// Time by which the last 503 for a fault has to be over: an agent that was away meanwhile has longer, and who
    /// has said 200 after it has no reason to say 503 again.
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

    /// Whether a connection failed shortly before or while this was answered, or before an agent was away
    /// that answers as before for its first second.
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
                Action::Harmless(Harmless::NodeMarked) => self.told(step.to),
                // The two paths are asked one after the other: of a moment of change each may tell its own.
                Action::Fault(_) | Action::Agent(_) => step.to,
                _ => return false,
            };
            (step.from..end + self.grace()).contains(&at)
        })
    }

    /// Until when the agent may not have heard of what happened at the API server then.
    fn told(&self, mut at: Duration) -> Duration {
        for step in &self.steps {
            if matches!(step.action, Action::Api(_)) && step.from <= at {
                at = at.max(step.to + NEWS);
            }
        }
        at
    }

    /// Silence that nothing excuses: an agent that is stopped, or killed with nobody behind it, says
    /// nothing, and one whose pages are taken away waits for them.
    fn silent(&self, answered: &Answered, findings: &mut Findings) {
        const EXCUSES: [Action; 3] = [
            Action::Agent(AgentFault::Stopped),
            Action::Agent(AgentFault::Killed),
            Action::Harmless(Harmless::MemoryTight),
        ];
        let (from, to) = (answered.from, answered.to);
        let lasts = to.saturating_sub(from);
        let is_silent = answered.codes.healthz == 0 || answered.codes.livez == 0;
        let is_excused = self.steps.iter().any(|step| {
            EXCUSES.contains(&step.action) && step.touches(from, to, BACK + self.slack)
        });
        if is_silent && lasts >= SILENCE + self.slack && !is_excused {
            findings.accuse(from, format!("no answer for {lasts:.1?}"));
        }
    }

    /// A fault that 503 did not follow in time.
    fn missed(&self, fault: &Step, findings: &mut Findings) {
        findings.faults += 1;
        let lasts = |one: &Answered| one.to > fault.from && one.from < fault.to;
        let mut answered = self.answered.iter();
        let first = answered.find(|one| one.codes.livez == 503 && lasts(one));
        let told = first.map_or(fault.to, |first| first.from);
        let action = fault.action;
        let promised = match self.promised(fault, told) {
            Ok(promised) => promised,
            Err(why) => {
                let unjudged = (fault.from, format!("{action:?}: {why}"));
                return findings.unjudged.push(unjudged);
            }
        };
        let after = first.map(|first| first.from.saturating_sub(fault.from));
        if let Some(after) = after.filter(|after| *after <= promised) {
            self.taken_back(fault, told, findings);
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

    /// 200 again while the fault goes on, and no connection has worked since it was told.
    fn taken_back(&self, fault: &Step, told: Duration, findings: &mut Findings) {
        // A connection that was begun at the very end may have met the repair.
        let end = fault.to.saturating_sub(AT_THE_END);
        let mut answered = self.answered.iter();
        let again = answered.find(|one| one.codes.livez == 200 && (told..end).contains(&one.from));
        if let Some(again) = again
            && !self.dialled(told, again.to.min(end)).any(|ok| ok)
        {
            let action = fault.action;
            let what = format!("{action:?}: 200 at /livez again, and no connection worked");
            findings.accuse(again.from, what);
        }
    }

    /// Time from its beginning within which 503 has to be there, with the slack, or the reason why it need
    /// not. `told`: the moment of the 503, or the fault's end.
    fn promised(&self, fault: &Step, told: Duration) -> Result<Duration, &'static str> {
        let (from, to) = (fault.from, fault.to);
        if told < from {
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
        let end = to.saturating_sub(AT_THE_END);
        // While connections work 200 is right: a command that breaks the node takes its time on a busy
        // machine.
        let settled = from + Duration::from_millis(500)..end.min(told);
        let worked = self.dialled.iter();
        let worked = worked.filter(|(begun, ok)| *ok && settled.contains(begun));
        let since = worked.map(|(begun, _)| *begun).max().unwrap_or(from);
        let promised = match fault.action {
            _ if beside(&STARVING, GRACE) => STARVED,
            // The sentinel's own routes are no pods': its probes pass without those.
            Action::Fault(Fault::ForwardDropped | Fault::RoutesGone) => BY_TRAFFIC,
            // Probes that such a connection contradicted are contradicted until one passes (ADR 7).
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

    /// Until when an action lasts, with its rules. A sentinel that comes back while the proxy is frozen may
    /// have none until that is over.
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

    /// A marked node that /healthz does not tell.
    fn unmarked(&self, marked: &Step, findings: &mut Findings) {
        let from = self.told(marked.from) + Duration::from_secs(1) + self.slack;
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

/// Actions that take away or disturb what the sentinel knows by.
const BLINDING: [Action; 4] = [
    Action::Harmless(Harmless::RangeDropped),
    Action::Harmless(Harmless::SentinelDeleted),
    Action::Harmless(Harmless::DeviceDeleted),
    Action::Tenant(Tenant::ClaimsProbed),
];
/// Actions that take processors.
const STARVING: [Action; 3] = [
    Action::Harmless(Harmless::SynFlood),
    Action::Harmless(Harmless::ProcessorsTaken),
    Action::Harmless(Harmless::MemoryTight),
];

impl Step {
    /// Why a fault cannot be judged beside this action.
    pub(super) fn hides(&self, fault: &Self) -> Option<&'static str> {
        let (after, why) = match (self.action, fault.action) {
            (Action::Agent(_), _) => (BACK, "the agent was away"),
            // He may deny his own pods besides (ADR 33).
            (Action::Tenant(Tenant::ClaimsProbed), Action::Fault(Fault::ForwardDropped)) => (
                UNARMED,
                "a tenant claimed all that probes dial, and pods that are denied look the same",
            ),
            // Real traffic shows handshakes, and they work.
            (action, Action::Fault(Fault::DataDropped)) if BLINDING.contains(&action) => (
                UNARMED,
                "only the sentinel sends data, and it was disturbed",
            ),
            // Its questions to the kernel are refused, and what it cannot check accuses nobody.
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
