//! Whether the answers were right, by what the clients felt and what was done. Times are counted
//! from the start of the storm.
//!
//! - Never 503 where every new connection works, or where nothing but harmless things happen.
//! - Always 503 within the promise where no new connection works.
//! - Never silent for as long as load balancers bear, but where the agent is away.
//! - /healthz alone is 503 while the node is marked, and only then, as far as the agent can know.

use std::fmt;
use std::time::Duration;

use super::plan::{Action, AgentFault, Fault, Harmless, Tenant, World};

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
/// Fewer connections than these say nothing.
const ENOUGH: usize = 20;

/// An action as it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spell {
    /// What it was.
    pub action: Action,
    /// When it began to be done.
    pub from: Duration,
    /// When it was taken back whole.
    pub to: Duration,
}

/// A connection that a client began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dialled {
    /// When.
    pub begun: Duration,
    /// Whether it was answered.
    pub ok: bool,
}

/// Codes of both paths for some time; 0 where nobody answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answered {
    /// From when.
    pub from: Duration,
    /// Until when.
    pub to: Duration,
    pub healthz: u16,
    pub livez: u16,
}

/// Everything that was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    /// What was done.
    pub spells: Vec<Spell>,
    /// What clients felt, in the order of beginnings.
    pub dialled: Vec<Dialled>,
    /// What was answered.
    pub answered: Vec<Answered>,
}

/// An answer that was wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// When.
    pub at: Duration,
    /// What was wrong with it.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {:.1} s: {}", self.at.as_secs_f64(), self.what)
    }
}

/// Least share of the faults that has to be judged, in percent.
const JUDGED: usize = 80;

/// What came of a storm.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Wrong answers.
    pub violations: Vec<Violation>,
    /// Faults, judged or not.
    pub faults: usize,
    /// From each fault that was judged to 503.
    pub detected: Vec<Duration>,
    /// Faults that were not judged, and why.
    pub unjudged: Vec<(Duration, &'static str)>,
    /// Connections that clients began.
    pub connections: usize,
    /// How many of them were not answered.
    pub failed: usize,
    /// Memory that an agent held at most, in KiB.
    pub peak_kib: u64,
}

impl Findings {
    /// Whether too few faults were judged for the storm to show anything.
    pub fn are_blind(&self) -> bool {
        (self.faults - self.unjudged.len()) * 100 < self.faults * JUDGED
    }
}

/// Judges; `slack` is added to what is promised, for machines that do much else.
pub(super) fn judge(seen: &Seen, slack: Duration) -> Findings {
    let mut findings = Findings::default();
    for answered in &seen.answered {
        seen.false_alarm(answered, slack, &mut findings);
        seen.silent(answered, slack, &mut findings);
        for code in [answered.healthz, answered.livez] {
            if ![0, 200, 503].contains(&code) {
                findings.violations.push(Violation {
                    at: answered.from,
                    what: format!("{code} was answered, which is neither 200 nor 503"),
                });
            }
        }
    }
    for spell in &seen.spells {
        match spell.action {
            Action::Fault(fault) => {
                findings.faults += 1;
                seen.missed(spell, fault, slack, &mut findings);
            }
            Action::Harmless(Harmless::NodeMarked) => seen.unmarked(spell, slack, &mut findings),
            _ => {}
        }
    }
    findings.violations.sort_by_key(|violation| violation.at);
    findings
}

impl Seen {
    /// 503 that nothing excuses.
    fn false_alarm(&self, answered: &Answered, slack: Duration, findings: &mut Findings) {
        let mut accuse = |at: Duration, what: &str| {
            findings.violations.push(Violation {
                at,
                what: what.to_owned(),
            });
        };
        let mut moments = moments(answered);
        if answered.livez == 503 {
            if let Some(at) = moments.find(|at| !self.is_broken(*at, slack)) {
                accuse(at, "503 at /livez without a fault in the last seconds");
            } else if self.failed_within(answered, slack) == 0 {
                accuse(answered.from, "503 at /livez while every connection worked");
            }
        } else if answered.healthz == 503
            && let Some(at) = moments.find(|at| !self.is_marked(*at, slack))
        {
            accuse(at, "503 at /healthz alone, and the node was not marked");
        }
    }

    /// Silence that nothing excuses: an agent that is stopped, or killed with nobody behind it, says
    /// nothing, and one whose pages are taken away waits for them.
    fn silent(&self, answered: &Answered, slack: Duration, findings: &mut Findings) {
        let lasts = answered.to.saturating_sub(answered.from);
        if (answered.healthz != 0 && answered.livez != 0) || lasts < SILENCE + slack {
            return;
        }
        let excuses = [
            Action::Agent(AgentFault::Stopped),
            Action::Agent(AgentFault::Killed),
            Action::Harmless(Harmless::MemoryTight),
        ];
        let excused = self.spells.iter().any(|spell| {
            let near = spell.from < answered.to && spell.to + BACK + slack > answered.from;
            near && excuses.contains(&spell.action)
        });
        if !excused {
            findings.violations.push(Violation {
                at: answered.from,
                what: format!("no answer for {:.1} s", lasts.as_secs_f64()),
            });
        }
    }

    /// Whether a fault lasts, or ended a moment ago; an agent that was away meanwhile has longer.
    fn is_broken(&self, at: Duration, slack: Duration) -> bool {
        let faults = self.spells.iter().filter(|spell| spell.is_fault());
        faults.clone().any(|fault| {
            let mut end = fault.to + GRACE + slack;
            for spell in self.spells.iter().filter(|spell| spell.is_agent_fault()) {
                if spell.from < end && spell.to > fault.from {
                    end = end.max(spell.to + GRACE + slack);
                }
            }
            (fault.from..end).contains(&at)
        })
    }

    fn is_marked(&self, at: Duration, slack: Duration) -> bool {
        self.spells.iter().any(|spell| {
            let marks = spell.action == Action::Harmless(Harmless::NodeMarked);
            // The two paths are asked one after the other: of a moment of change each may tell its own.
            let changes = spell.is_fault() || spell.is_agent_fault();
            let end = if marks { self.told(spell.to) } else { spell.to };
            (marks || changes) && (spell.from..end + GRACE + slack).contains(&at)
        })
    }

    /// Until when the agent may not have heard of what happened at the API server then.
    fn told(&self, at: Duration) -> Duration {
        let troubles = self.spells.iter().filter(|spell| spell.is_trouble());
        troubles.fold(at, |told, trouble| {
            let unheard = trouble.from <= told && trouble.to + NEWS > told;
            if unheard { trouble.to + NEWS } else { told }
        })
    }

    /// Connections that failed shortly before or while this was answered, or before an agent was away
    /// that answers as before for its first second.
    fn failed_within(&self, answered: &Answered, slack: Duration) -> usize {
        let grace = GRACE + slack;
        let away = self.spells.iter().filter(|spell| {
            spell.is_agent_fault() && spell.from < answered.from && spell.to + grace > answered.from
        });
        let since = away.map(|spell| spell.from).chain([answered.from]);
        let from = since.min().unwrap_or_default().saturating_sub(grace);
        self.dialled(from, answered.to)
            .filter(|one| !one.ok)
            .count()
    }

    fn dialled(&self, from: Duration, to: Duration) -> impl Iterator<Item = &Dialled> {
        self.dialled
            .iter()
            .filter(move |one| (from..to).contains(&one.begun))
    }

    /// A fault that 503 did not follow in time.
    fn missed(&self, fault: &Spell, kind: Fault, slack: Duration, findings: &mut Findings) {
        let promised = match self.promised(fault, kind) {
            Ok(promised) => promised,
            Err(why) => return findings.unjudged.push((fault.from, why)),
        };
        let deadline = fault.from + promised + slack;
        // What was begun at the very end may have met the repair.
        let end = fault.to.saturating_sub(Duration::from_secs(1));
        let mut all = self.dialled(fault.from + Duration::from_millis(500), end);
        let count = self.dialled(fault.from, end).count();
        let why = match () {
            () if deadline > fault.to => "it was mended before 503 was due",
            () if count < ENOUGH => "too few connections were begun",
            () if all.any(|one| one.ok) => "some connection worked",
            () => "",
        };
        if !why.is_empty() {
            return findings.unjudged.push((fault.from, why));
        }
        let first = self.answered.iter().find_map(|answered| {
            let overlaps = answered.livez == 503 && answered.to > fault.from;
            overlaps.then(|| answered.from.max(fault.from))
        });
        match first.filter(|at| *at < fault.to) {
            Some(at) if at <= deadline => findings.detected.push(at - fault.from),
            later => findings.violations.push(Violation {
                at: fault.from,
                what: format!(
                    "{} for {:.1} s, no connection worked, and 503 came {} (promised within {:.1} s, and {:.1} s of slack)",
                    fault.action,
                    (fault.to - fault.from).as_secs_f64(),
                    later.map_or_else(|| "never".to_owned(), |at| {
                        format!("after {:.1} s", (at - fault.from).as_secs_f64())
                    }),
                    promised.as_secs_f64(),
                    slack.as_secs_f64(),
                ),
            }),
        }
    }

    /// When 503 has to be there, or why it need not.
    fn promised(&self, fault: &Spell, kind: Fault) -> Result<Duration, &'static str> {
        let beside = |actions: &[Action], before: Duration| {
            self.spells.iter().any(|spell| {
                actions.contains(&spell.action)
                    && spell.from < fault.to
                    && self.followed(spell) + before > fault.from
            })
        };
        let away = self.spells.iter().any(|spell| {
            spell.is_agent_fault() && spell.from < fault.to && spell.to + BACK > fault.from
        });
        let blind = [
            Action::Harmless(Harmless::RangeDropped),
            Action::Harmless(Harmless::SentinelDeleted),
            Action::Harmless(Harmless::DeviceDeleted),
            Action::Tenant(Tenant::ClaimsProbed),
        ];
        let starved = [
            Action::Harmless(Harmless::SynFlood),
            Action::Harmless(Harmless::ProcessorsTaken),
            Action::Harmless(Harmless::MemoryTight),
        ];
        let is_blind = beside(&blind, UNARMED);
        match kind {
            _ if away => Err("the agent was away"),
            // He may deny his own pods besides (ADR 33).
            Fault::ForwardDropped if beside(&[Action::Tenant(Tenant::ClaimsProbed)], UNARMED) => {
                Err("a tenant claimed all that probes dial, and pods that are denied look the same")
            }
            // Real traffic shows handshakes, and they work.
            Fault::DataDropped if is_blind => {
                Err("only the sentinel sends data, and it was disturbed")
            }
            _ if beside(&starved, GRACE) => Ok(STARVED),
            // The sentinel's own routes are no pods': its probes pass without those.
            Fault::ForwardDropped | Fault::RoutesGone => Ok(BY_TRAFFIC),
            _ if is_blind => Ok(BY_TRAFFIC),
            _ => Ok(CERTAIN),
        }
    }

    /// When the rules are again what the cluster's view is. A sentinel that comes back while the
    /// proxy is frozen may have none until then.
    fn followed(&self, spell: &Spell) -> Duration {
        if spell.action != Action::Harmless(Harmless::SentinelDeleted) {
            return spell.to;
        }
        let frozen = self.spells.iter().filter(|one| {
            one.action == Action::World(World::ProxyFrozen)
                && (one.from..one.to).contains(&spell.to)
        });
        frozen.map(|one| one.to).fold(spell.to, Duration::max)
    }

    /// A marked node that /healthz does not tell.
    fn unmarked(&self, marked: &Spell, slack: Duration, findings: &mut Findings) {
        let from = self.told(marked.from) + Duration::from_secs(1) + slack;
        let away = self.spells.iter().any(|spell| {
            spell.is_agent_fault() && spell.from < marked.to && spell.to + GRACE > marked.from
        });
        let told = self.answered.iter().find(|answered| {
            answered.healthz == 200 && answered.to > from && answered.from < marked.to
        });
        if let Some(answered) = told
            && !away
            && from < marked.to
        {
            findings.violations.push(Violation {
                at: answered.from.max(from),
                what: "200 at /healthz while the node is marked for deletion".to_owned(),
            });
        }
    }
}

impl Spell {
    fn is_fault(&self) -> bool {
        matches!(self.action, Action::Fault(_))
    }

    fn is_trouble(&self) -> bool {
        matches!(self.action, Action::Api(_))
    }

    fn is_agent_fault(&self) -> bool {
        matches!(self.action, Action::Agent(_))
    }
}

/// A moment every tenth of a second, the first among them.
fn moments(answered: &Answered) -> impl Iterator<Item = Duration> {
    const EVERY: Duration = Duration::from_millis(100);
    let to = answered.to;
    std::iter::successors(Some(answered.from), move |at| {
        (*at + EVERY < to).then_some(*at + EVERY)
    })
}

#[cfg(test)]
mod tests;
