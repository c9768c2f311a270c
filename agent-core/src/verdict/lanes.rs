//! The rules that read the sentinel's lanes. They join those of real connections in `judge`, each
//! at its severity.
//!
//! A lane accuses the node only where nothing else explains its failures: it worked before, the
//! sentinel is as it was, no real connection of the same path got through since, and either no
//! filter of the sentinel's own addresses looks like it or real connections fail beside it.
//!
//! A lane whose probes pass accuses too, where they have met an old generation for too long.

mod view;

use std::time::Duration;

use agent_common::service::{Family, SourceClass};

use super::finding::{Evidence, FailedLane, Finding, LaneLacking, NeverWorked, Rule, VoidCause};
use super::judge::Case;
use crate::cause::{Cause, ProbeCause};
use crate::ledger::Streak;
use crate::probes::{LaneLedger, ProbeOutcome, Run, SentinelLedger, VoidReason, lanes_of};
use crate::time::Mono;
use crate::trace::{Lane, ProbePath, Transport};

/// What the failures of a lane come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Too few of them.
    Few,
    /// The sentinel is off.
    Off,
    /// The sentinel changed a moment ago, and none failed since that counts.
    Unsettled,
    /// Its devices were damaged a moment ago, and none failed since that counts.
    Damaged,
    /// A real connection of the same path got through since.
    Contradicted(SourceClass, Mono),
    /// Only the range outside the cluster fails, that of pods does not.
    Filtered,
    /// A filter of the sentinel's addresses could look like it, and no real connection failed.
    Doubtful,
    /// Nobody looked since whether pathproof's own devices are sound.
    Unlooked,
    /// They accuse the node.
    Broken,
}

/// Paths that stand for the node; the host's own is blind to forwarding.
const MAIN: [ProbePath; 3] = [ProbePath::Pod, ProbePath::OffCluster, ProbePath::NodePort];

/// A lane and its failures.
type Failing<'a> = (Lane, &'a Run);

impl<'a> Case<'a> {
    fn sentinel(&self) -> &'a SentinelLedger {
        self.ledger.sentinel()
    }

    fn tcp(&self, path: ProbePath) -> (Lane, &'a LaneLedger) {
        let lane = Lane {
            path,
            family: self.family,
            transport: Transport::Tcp,
        };
        (lane, self.sentinel().lane(lane))
    }

    /// Lanes that stand for the node, by TCP.
    fn main(&self) -> impl Iterator<Item = (Lane, &'a LaneLedger)> {
        let stands = |path: &ProbePath| self.sentinel().stands(*path);
        MAIN.into_iter().filter(stands).map(|path| self.tcp(path))
    }

    /// Lanes whose failures may accuse the node: that of the host only where no other is armed.
    fn accusing(&self) -> Vec<(Lane, &'a LaneLedger)> {
        let armed = |(_, lane): &(Lane, &LaneLedger)| lane.armed;
        let main: Vec<_> = self.main().filter(armed).collect();
        if main.is_empty() {
            let silent = self.sentinel().fell_silent(self.family, self.now);
            let host = (!silent).then(|| self.tcp(ProbePath::Host));
            return host.filter(armed).into_iter().collect();
        }
        main
    }

    /// Lanes whose passes prove the family: that of the host only where no other is probed.
    fn proving(&self) -> Vec<(Lane, &'a LaneLedger)> {
        let known = |(_, lane): &(Lane, &LaneLedger)| lane.is_known();
        if self.main().any(|lane| known(&lane)) {
            self.main().collect()
        } else {
            vec![self.tcp(ProbePath::Host)]
        }
    }

    /// The run of a lane, as long as it is young enough to say anything.
    fn run(&self, lane: &'a LaneLedger) -> Option<&'a Run> {
        let run = lane.run.as_ref().filter(|_| lane.armed)?;
        self.is_within_proof_age(run.last).then_some(run)
    }

    fn failing(&self) -> Vec<Failing<'a>> {
        let failing = |(lane, ledger)| Some((lane, self.run(ledger)?));
        self.accusing().into_iter().filter_map(failing).collect()
    }

    /// What a run of failures comes to. The order is that of certainty: what speaks for the node
    /// is asked before what accuses it.
    pub(super) fn standing(&self, (lane, run): Failing<'a>) -> Standing {
        let limits = self.ledger.limits();
        if !run.is_long(limits) {
            return Standing::Few;
        }
        // A real connection is proven by its handshake: that contradicts nothing that comes after.
        let proof = self
            .counterpart(lane.path)
            .filter(|_| run.cause() != ProbeCause::NoData);
        if let Some((class, proof)) = proof {
            if proof > run.since.plus(limits.proof_overlap) {
                return Standing::Contradicted(class, proof);
            }
            // Let through before the fault, answered after it: those before it do not count.
            if proof >= run.confirmed_from() {
                return Standing::Few;
            }
        }
        if let Some(hindrance) = self.hindrance(run) {
            return hindrance;
        }
        if run.is_unambiguous(self.ledger.observer().misrouted_suspended) || self.is_beside(run) {
            return match self.sentinel().is_looked_at(run.since) {
                true => Standing::Broken,
                false => Standing::Unlooked,
            };
        }
        let (_, pod) = self.tcp(ProbePath::Pod);
        if lane.path == ProbePath::OffCluster && self.is_passing(pod) {
            return Standing::Filtered;
        }
        // What drops everything would have dropped this one too. Without it, a 503 for a single
        // connection that was lost beside a filter would stay until a probe passes.
        let after = |class: SourceClass| {
            let at = self.evidence.proofs[class as usize]?;
            (at > run.since.plus(limits.proof_overlap)).then_some(Standing::Contradicted(class, at))
        };
        after(SourceClass::Pod)
            .or_else(|| after(SourceClass::External))
            .unwrap_or(Standing::Doubtful)
    }

    /// The last proof of real connections that take the same way. The node's own are hardly ever
    /// seen: for their path, which accuses only where no other does, any will do.
    fn counterpart(&self, path: ProbePath) -> Option<(SourceClass, Mono)> {
        let classes: &[SourceClass] = match path {
            // Two proxies: what does not come from pods is the other one's.
            ProbePath::Pod | ProbePath::OffCluster if self.sentinel().is_mixed() => {
                &[SourceClass::External]
            }
            ProbePath::Pod | ProbePath::OffCluster => &[SourceClass::Pod],
            ProbePath::NodePort => &[SourceClass::External],
            ProbePath::Host => &SourceClass::ALL,
        };
        let proofs = classes
            .iter()
            .filter_map(|class| Some((*class, self.evidence.proofs[*class as usize]?)));
        proofs.max_by_key(|(_, at)| *at)
    }

    /// What keeps a run from accusing, however it failed.
    fn hindrance(&self, run: &Run) -> Option<Standing> {
        let sentinel = self.sentinel();
        if sentinel.view().off.is_some() {
            Some(Standing::Off)
        } else if !sentinel.is_settled(run.last) {
            Some(Standing::Unsettled)
        } else if sentinel.damage(run.last).is_some() {
            Some(Standing::Damaged)
        } else {
            None
        }
    }

    /// Whether they are such that they decide.
    fn is_beside(&self, run: &Run) -> bool {
        let limits = self.ledger.limits();
        let beside = self.beside(run);
        beside.is_some_and(|streak| streak.bears_out(limits))
    }

    /// Real connections that arrived since the lane began to fail, and did not get through.
    pub(super) fn beside(&self, run: &Run) -> Option<&'a Streak> {
        self.evidence
            .streak
            .as_ref()
            .filter(|streak| streak.arrived >= run.since && self.is_within_proof_age(streak.last))
    }

    fn is_passing(&self, lane: &LaneLedger) -> bool {
        let fresh = |at| self.is_within_proof_age(at);
        lane.armed && lane.run.is_none() && lane.last_pass.is_some_and(fresh)
    }

    pub(super) fn broken_by_probes(&self) -> Option<Finding> {
        let mut broken = self.failing();
        broken.retain(|failing| self.standing(*failing) == Standing::Broken);
        let (_, run) = broken.first()?;
        let evidence = Evidence::Probes {
            lanes: broken.iter().map(|lane| self.failed(*lane)).collect(),
            real: self.broken_by_connections().is_some(),
        };
        Some(caused(Rule::BrokenByProbes, run, evidence))
    }

    fn failed(&self, (lane, run): Failing<'_>) -> FailedLane {
        let suspended = self.ledger.observer().misrouted_suspended;
        FailedLane {
            path: lane.path,
            transport: lane.transport,
            cause: run.cause(),
            failures: run.failures,
            local: run.local,
            clear: run.is_unambiguous(suspended),
            client: self.sentinel().lane(lane).client,
        }
    }

    /// Probes fail where something else says that the path works.
    pub(super) fn degraded_by_probes(&self) -> Option<Finding> {
        self.failing().into_iter().find_map(|failing| {
            let lane = || self.failed(failing);
            let (rule, evidence) = match self.standing(failing) {
                Standing::Contradicted(path, at) => {
                    let lane = lane();
                    let evidence = Evidence::Contradicted { lane, path, at };
                    (Rule::DegradedContradicted, evidence)
                }
                Standing::Filtered => (Rule::DegradedFiltered, Evidence::Probe { lane: lane() }),
                _ => return None,
            };
            Some(caused(rule, failing.1, evidence))
        })
    }

    /// Probes fail on a lane that does not stand for the node.
    pub(super) fn degraded_aside(&self) -> Option<Finding> {
        let aside = self.aside(&self.failing())?;
        let lane = self.failed(aside);
        Some(caused(
            Rule::DegradedAside,
            aside.1,
            Evidence::Probe { lane },
        ))
    }

    /// A lane that does not stand for the node, failing while those that do pass: the host's own
    /// path, or UDP.
    fn aside(&self, failing: &[Failing<'a>]) -> Option<Failing<'a>> {
        let standing_for = self.accusing();
        let passing = |(_, lane): &(Lane, &LaneLedger)| self.is_passing(lane);
        if !failing.is_empty() || !standing_for.iter().any(passing) {
            return None;
        }
        let limits = self.ledger.limits();
        lanes_of(self.family)
            .filter(|lane| self.sentinel().stands(lane.path))
            .filter(|lane| standing_for.iter().all(|(other, _)| other != lane))
            .filter_map(|lane| Some((lane, self.run(self.sentinel().lane(lane))?)))
            .find(|(_, run)| run.is_long(limits) && self.hindrance(run).is_none())
    }

    /// The rules of a path that stands for the node have not followed the API for too long: probes
    /// pass, and meet an old generation.
    pub(super) fn stale_by_probes(&self) -> Option<Finding> {
        self.late(Rule::StaleByProbes, self.accusing().into_iter())
    }

    /// The same of a path that does not stand for the node: UDP, or the host's own.
    pub(super) fn degraded_by_lag(&self) -> Option<Finding> {
        let sentinel = self.sentinel();
        let lanes = lanes_of(self.family)
            .filter(|lane| sentinel.stands(lane.path))
            .map(|lane| (lane, sentinel.lane(lane)));
        self.late(Rule::DegradedByLag, lanes)
    }

    fn late(
        &self,
        rule: Rule,
        lanes: impl Iterator<Item = (Lane, &'a LaneLedger)>,
    ) -> Option<Finding> {
        let (lane, ledger) = self.latest(lanes)?;
        let evidence = Evidence::Late {
            path: lane.path,
            transport: lane.transport,
            owners: self.sentinel().owners(lane.family),
            late: self.lateness(lane, ledger)?,
            generation: ledger.generation,
            wanted: ledger.freshness.wanted(),
        };
        Some(Finding::caused(rule, Cause::Stale, evidence))
    }

    /// Of these lanes, the one that is late for longest, where that is too long.
    fn latest(
        &self,
        lanes: impl Iterator<Item = (Lane, &'a LaneLedger)>,
    ) -> Option<(Lane, &'a LaneLedger)> {
        let limit = self.ledger.limits().lag_after;
        let late = |(lane, ledger): &(Lane, &LaneLedger)| self.lateness(*lane, ledger);
        // Among equals the first.
        lanes
            .filter(|lane| late(lane).is_some_and(|late| late >= limit))
            .reduce(|most, lane| {
                if late(&lane) > late(&most) {
                    lane
                } else {
                    most
                }
            })
    }

    /// For how long the rules of a lane have not followed what this node received: only where its
    /// probes pass, since one that fails says nothing of rules.
    pub(super) fn lateness(&self, lane: Lane, ledger: &LaneLedger) -> Option<Duration> {
        let counts = self.sentinel().view().counts() && self.is_passing(ledger);
        self.sentinel().lateness(lane, self.now).filter(|_| counts)
    }

    pub(super) fn suspect_by_probes(&self) -> Option<Finding> {
        let failing = self.failing();
        // The one that began first: counts change places with every probe.
        let first = *failing.iter().min_by_key(|(_, run)| run.since)?;
        let evidence = Evidence::Unconfirmed {
            lane: self.failed(first),
            lacking: self.lacking(first),
        };
        Some(caused(Rule::SuspectByProbes, first.1, evidence))
    }

    fn lacking(&self, failing: Failing<'a>) -> LaneLacking {
        match self.standing(failing) {
            Standing::Few => LaneLacking::Failures,
            Standing::Off => {
                let off = self.sentinel().view().off.clone();
                LaneLacking::Off(off.unwrap_or_default())
            }
            Standing::Unsettled => LaneLacking::Void(VoidReason::Unsettled),
            Standing::Damaged => LaneLacking::Void(VoidReason::Damaged),
            Standing::Unlooked => LaneLacking::Look,
            _ if self.beside(failing.1).is_some() => LaneLacking::Pod,
            _ => LaneLacking::Connection,
        }
    }

    pub(super) fn proven_by_probe(&self) -> Option<Finding> {
        let (lane, at) = self.fresh_pass()?;
        let evidence = Evidence::Pass {
            path: lane.path,
            transport: lane.transport,
            at,
        };
        Some(Finding::new(Rule::ProvenByProbe, evidence))
    }

    /// The last probe that proves the family, if it is young enough; among equals the first lane.
    pub(super) fn fresh_pass(&self) -> Option<(Lane, Mono)> {
        let passing = |(_, lane): &(Lane, &LaneLedger)| self.is_passing(lane);
        let lanes = self.proving().into_iter().rev().filter(passing);
        lanes
            .filter_map(|(lane, ledger)| Some((lane, ledger.last_pass?)))
            .max_by_key(|(_, at)| *at)
    }

    /// The last probe that proved the family, however long ago.
    pub(super) fn last_pass(&self) -> Option<Mono> {
        let passes = self.proving().into_iter().filter(|(_, lane)| lane.armed);
        passes.filter_map(|(_, lane)| lane.last_pass).max()
    }

    /// When a probe that may accuse last failed, and when those failures began.
    pub(super) fn probe_failures(&self) -> Option<(Mono, Mono)> {
        let failing = self.failing();
        let last = failing.iter().map(|(_, run)| run.last).max()?;
        let since = failing.iter().map(|(_, run)| run.since).min()?;
        Some((since, last))
    }

    /// Probes failed, too long ago to say anything.
    pub(super) fn had_failing_lane(&self) -> bool {
        self.accusing().iter().any(|(_, lane)| lane.run.is_some())
    }

    /// A lane that ought to work and never did, on a node with a sentinel.
    pub(super) fn never_worked(&self) -> Option<Finding> {
        let never = self.never_worked_lane()?;
        let exists = self.inputs.boot.sentinel_exists;
        exists.then(|| Finding::new(Rule::NeverWorked, Evidence::Never(never)))
    }

    /// The first of them.
    pub(super) fn never_worked_lane(&self) -> Option<NeverWorked> {
        let mut paths = ProbePath::ALL
            .into_iter()
            .filter(|path| self.sentinel().stands(*path));
        paths.find_map(|path| {
            let (lane, ledger) = self.tcp(path);
            let cause = Some(ledger.never_worked()?);
            Some(NeverWorked {
                path,
                transport: lane.transport,
                cause,
                client: ledger.client,
            })
        })
    }

    /// A lane whose probes say nothing, lately.
    pub(super) fn void_lane(&self) -> Option<Evidence> {
        let void = |(_, lane): &(Lane, &LaneLedger)| {
            lane.last.is_some_and(|(at, outcome)| {
                matches!(outcome, ProbeOutcome::Void(_)) && self.is_within_proof_age(at)
            })
        };
        let mut lanes = ProbePath::ALL.into_iter().map(|path| self.tcp(path));
        let (lane, ledger) = lanes.find(void)?;
        Some(Evidence::Void {
            path: lane.path,
            transport: lane.transport,
            why: self.void_cause(ledger),
        })
    }

    /// Why a lane's last probe says nothing.
    fn void_cause(&self, ledger: &LaneLedger) -> VoidCause {
        let damage = self.sentinel().damage(self.now);
        match (damage, &ledger.unsent, ledger.last) {
            (Some(damage), _, _) => VoidCause::Damage(damage.sentence.clone()),
            (None, Some(unsent), _) => VoidCause::Unsent(unsent.to_string()),
            (None, None, Some((_, ProbeOutcome::Void(reason)))) => VoidCause::Probe(reason),
            (None, None, _) => VoidCause::Former,
        }
    }
}

fn caused(rule: Rule, run: &Run, evidence: Evidence) -> Finding {
    Finding::caused(rule, run.cause().cause(), evidence)
}

/// Whether the sentinel alone makes a family worth judging.
pub(super) fn is_judged(sentinel: &SentinelLedger, family: Family) -> bool {
    sentinel.view().exists && sentinel.is_armed(family)
}
