//! The sentinel's lanes as witnesses: which of them fail, what keeps a failing lane from accusing the node,
//! and the findings about them. Only [`decision`](super::decision) accuses.
//!
//! A lane accuses only if it worked before, the sentinel is unaltered, and no real connection that needs
//! the same part of the datapath succeeded since.

use std::cmp::Reverse;
use std::time::Duration;

use pathproof_facts::cause::{Cause, Failure, ProbeCause};
use pathproof_facts::limits::IN_USE_FOR;
use pathproof_facts::time::Mono;
use pathproof_facts::trace::{Lane, ProbePath, Transport};
use pathproof_wire::service::SourceClass;
use pathproof_witness::ledger::WINDOW;
use pathproof_witness::probes::{LaneLedger, ProbeOutcome, Run, VoidReason, lanes_of};

use super::case::{Case, Grounds};
use super::finding::{Evidence, FailedLane, LaneLacking, NeverWorked, Scope, VoidCause};
use super::witnesses::Group;

/// Judgement on a lane's failures.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LaneJudgement {
    /// The failures do not accuse the node, because this condition is missing.
    Lacks(LaneLacking),
    /// A real connection of the same path succeeded since.
    Contradicted(SourceClass, Mono),
    /// Probes from outside the cluster's ranges fail while probes from pod addresses pass.
    Filtered,
    /// Node ports refuse only probes, so the proxy may no longer serve node ports at that address. Or
    /// only one path is misrouted, so another Service may use the address that it dials.
    SecondaryPath,
    /// No filter on the sentinel's addresses explains the failures.
    Accuses,
    /// A filter on the sentinel's addresses would explain the failures: they accuse the node only beside a
    /// witness of another scope.
    NeedsWitness,
}

/// Paths that represent the node. The host path does not, since it needs no forwarding.
pub(super) const MAIN: [ProbePath; 3] =
    [ProbePath::Pod, ProbePath::OffCluster, ProbePath::NodePort];

/// `Probed` is a lane with its ledger, `Failing` is a lane with its failures.
pub(super) type Probed<'a> = (Lane, &'a LaneLedger);
pub(super) type Failing<'a> = (Lane, &'a Run);

impl<'a> Case<'a> {
    pub(super) fn tcp(&self, path: ProbePath) -> Probed<'a> {
        let lane = Lane {
            path,
            family: self.family,
            transport: Transport::Tcp,
        };
        (lane, self.ledger.sentinel.lane(lane))
    }

    /// Lanes that represent real connections, TCP first.
    fn applicable_lanes(&self) -> impl Iterator<Item = Probed<'a>> {
        let sentinel = &self.ledger.sentinel;
        let lanes = lanes_of(self.family).filter(|lane| sentinel.is_applicable(*lane));
        lanes.map(|lane| (lane, sentinel.lane(lane)))
    }

    /// TCP lanes that represent the node.
    pub(super) fn main(&self) -> impl Iterator<Item = Probed<'a>> {
        let applicable = |(lane, _): &Probed<'_>| self.ledger.sentinel.is_applicable(*lane);
        let lanes = MAIN.map(|path| self.tcp(path));
        lanes.into_iter().filter(applicable)
    }

    /// Lanes whose failures may accuse the node. The host lane counts only if no other lane is armed.
    pub(super) fn accusing(&self) -> Vec<Probed<'a>> {
        let sentinel = &self.ledger.sentinel;
        let mut lanes: Vec<_> = self.main().filter(|(_, lane)| lane.armed).collect();
        if lanes.is_empty() && !sentinel.is_recently_inapplicable(self.family, self.now) {
            let host = Some(self.tcp(ProbePath::Host));
            lanes.extend(host.filter(|(_, lane)| lane.armed && !lane.in_conflict));
        }
        lanes
    }

    /// Lanes whose passes prove the family. The host lane counts only if no other lane is probed.
    fn proving(&self) -> Vec<Probed<'a>> {
        match self.main().any(|(_, lane)| lane.is_known()) {
            true => self.main().collect(),
            false => vec![self.tcp(ProbePath::Host)],
        }
    }

    /// The lane's run of failures, if it is recent.
    pub(super) fn run(&self, lane: &'a LaneLedger) -> Option<&'a Run> {
        let run = lane.run.as_ref().filter(|_| lane.armed)?;
        self.is_within_proof_age(run.last).then_some(run)
    }

    pub(super) fn failing(&self) -> Vec<Failing<'a>> {
        let failing = |(lane, ledger)| Some((lane, self.run(ledger)?));
        self.accusing().into_iter().filter_map(failing).collect()
    }

    /// Judges a run of failures. Evidence in the node's favour is evaluated first.
    pub(super) fn judgement(&self, (lane, run): Failing<'a>) -> LaneJudgement {
        let limits = &self.ledger.limits;
        if !run.is_long(limits) {
            return LaneJudgement::Lacks(LaneLacking::Failures);
        }
        // A connection that found room in a full table does not contradict a probe that found none. Nor does
        // a connection to the node itself, which needs no forwarding, contradict that forwarding is off.
        let proof = self.counterpart(lane.path, run);
        let stands = matches!(
            run.cause(),
            ProbeCause::ConntrackFull | ProbeCause::ForwardingOff
        ) || self.affects_clients(run);
        if let Some((class, proof)) = proof.filter(|_| !stands) {
            // Clients that are served contradict missing masquerade: those that need it would fail.
            let in_use =
                run.cause() == ProbeCause::NotMasqueraded && self.now.since(proof) <= WINDOW;
            if proof > run.since.plus(limits.proof_overlap) || in_use {
                return LaneJudgement::Contradicted(class, proof);
            }
            // The proof is too close to the first failure to contradict the run: the connection may have been
            // forwarded before the fault and answered during it. But failures before the answer do not count.
            if proof >= run.confirmed_from() {
                return LaneJudgement::Lacks(LaneLacking::Failures);
            }
        }
        if let Some(hindrance) = self.hindrance(run) {
            return LaneJudgement::Lacks(hindrance);
        }
        if let Some(judgement) = self.fails_alone(lane, run) {
            return judgement;
        }
        if self.is_data_of_users_untried(run, proof) {
            return self.with_checked_devices(run, LaneJudgement::NeedsWitness);
        }
        if run.is_unambiguous(self.ledger.observer.misrouted_suspended) {
            return self.with_checked_devices(run, LaneJudgement::Accuses);
        }
        let (_, pod) = self.tcp(ProbePath::Pod);
        if lane.path == ProbePath::OffCluster && self.is_passing(pod) {
            return LaneJudgement::Filtered;
        }
        // A fault that drops everything would have dropped a later connection too. Connections from outside
        // are masqueraded, so they need less than the pod lane and do not contradict it.
        let classes: &[SourceClass] = match lane.path {
            ProbePath::Pod => &[SourceClass::Pod],
            _ => &[SourceClass::Pod, SourceClass::External],
        };
        let last = |class: &SourceClass| Some((*class, self.proof_against(run, *class)?));
        let later = |(_, at): &(SourceClass, Mono)| *at > run.since.plus(limits.proof_overlap);
        match classes.iter().filter_map(last).find(later) {
            Some((class, at)) => LaneJudgement::Contradicted(class, at),
            None => self.with_checked_devices(run, LaneJudgement::NeedsWitness),
        }
    }

    /// Whether only probes have lost data so far on a node whose users do send data. An inline filter may drop
    /// what it does not recognize, such as the sentinel's bytes, so the next user decides.
    fn is_data_of_users_untried(&self, run: &Run, proof: Option<(SourceClass, Mono)>) -> bool {
        let is_used = proof.is_some_and(|(_, at)| self.now.since(at) <= IN_USE_FOR);
        let lost = SourceClass::ALL.map(|class| self.evidence.data.lost(class));
        let is_lost = lost.iter().flatten().any(|lost| lost.last >= run.since);
        run.cause() == ProbeCause::NoData && is_used && !is_lost
    }

    /// Requires that pathproof's devices were checked and found sound after the failures began.
    fn with_checked_devices(&self, run: &Run, judgement: LaneJudgement) -> LaneJudgement {
        match self.ledger.sentinel.is_checked_since(run.since) {
            true => judgement,
            false => LaneJudgement::Lacks(LaneLacking::DeviceCheck),
        }
    }

    /// Whether missing masquerade affects clients: forwarded connections from outside stay unanswered for
    /// long. Endpoints of this node work without masquerade, so their answers contradict nothing. After load
    /// balancers leave, the last unanswered connections count until a later connection succeeds.
    fn affects_clients(&self, run: &Run) -> bool {
        let limits = &self.ledger.limits;
        let unanswered_for_long = self.evidence.unanswered.is_some_and(|(first, last)| {
            let first = first.max(run.since);
            let late = self.evidence.proofs[SourceClass::External as usize]
                .is_some_and(|proof| proof.since(last) > WINDOW);
            !late
                && self.ledger.seen(self.now).since(first) >= limits.partial_after
                && last.since(first) >= limits.partial_after.saturating_sub(limits.broken_fresh)
        });
        unanswered_for_long && run.cause() == ProbeCause::NotMasqueraded
    }

    /// Judgement on a lane that fails alone. If node ports refuse probes but no client outside, the proxy may
    /// serve node ports on other addresses now. If only one path is misrouted, another Service may use its
    /// address, although the view does not show that Service yet or at all (a pod's `hostPort`).
    fn fails_alone(&self, lane: Lane, run: &Run) -> Option<LaneJudgement> {
        let limits = &self.ledger.limits;
        let refused = lane.path == ProbePath::NodePort
            && run.cause() == ProbeCause::Refused
            && !self.is_outside_refused(run.since);
        let astray = |run: &Run| run.cause() == ProbeCause::Misrouted;
        if !refused && !astray(run) {
            return None;
        }
        let is_other = |(other, ledger): &Probed<'_>| ledger.armed && *other != lane;
        let others: Vec<_> = self.main().filter(is_other).collect();
        if others.is_empty() {
            let mut main = MAIN.into_iter().map(|path| self.tcp(path));
            let nobody_tells = refused && main.any(|(at, ledger)| at != lane && ledger.in_conflict);
            return nobody_tells.then_some(LaneJudgement::Lacks(LaneLacking::Others));
        }
        let counts = |other: &Run| other.is_long(limits) || (astray(run) && astray(other));
        let fails = |(_, ledger): &Probed<'_>| self.run(ledger).is_some_and(counts);
        if others.iter().any(fails) {
            return None;
        }
        // While a fault begins or ends, the other lanes follow a moment later.
        let long_ago = |at| self.now.since(at) > limits.proof_overlap;
        let passes = |(_, ledger): &Probed<'_>| {
            self.is_passing(ledger) && ledger.last_counted_failure.is_none_or(long_ago)
        };
        Some(match others.iter().all(passes) {
            true => LaneJudgement::SecondaryPath,
            false => LaneJudgement::Lacks(LaneLacking::Others),
        })
    }

    /// Whether clients outside whose Services worked before are refused too.
    fn is_outside_refused(&self, since: Mono) -> bool {
        let outside = self.group(Scope::Outside, Some((since, since)));
        outside.is_some_and(|group| {
            group.are_enough(self) && group.failures()[Failure::Refused as usize] > 0
        })
    }

    /// The last proof by real connections of the same path. Connections of the node itself are rarely seen,
    /// so any client contradicts the host lane, which accuses only if no other lane can.
    fn counterpart(&self, path: ProbePath, run: &Run) -> Option<(SourceClass, Mono)> {
        if run.cause() == ProbeCause::NoData {
            // Only data contradicts missing data. Data of an established connection is handled alike for all
            // clients, unless there are two proxies.
            return match self.ledger.sentinel.applicability.mixed {
                true => self.evidence.data.latest_outside(),
                false => self.evidence.data.latest(),
            };
        }
        let classes: &[SourceClass] = match path {
            // With two proxies, the other one translates pods' connections.
            ProbePath::Pod | ProbePath::OffCluster if self.ledger.sentinel.applicability.mixed => {
                &[SourceClass::External]
            }
            ProbePath::Pod | ProbePath::OffCluster => &[SourceClass::Pod],
            ProbePath::NodePort => &[SourceClass::External],
            ProbePath::Host => &SourceClass::ALL,
        };
        let proof = |class: &SourceClass| Some((*class, self.proof_against(run, *class)?));
        let proofs = classes.iter().filter_map(proof);
        proofs.max_by_key(|(_, at)| *at)
    }

    /// The last proof by clients of this class, if it may contradict a run. If answers to probes and to
    /// these clients are both lost, a SYN that left is no proof.
    fn proof_against(&self, run: &Run, class: SourceClass) -> Option<Mono> {
        let lost = run.cause() == ProbeCause::AnswerLost && self.evidence.answers.is_stuck(class);
        self.evidence.proofs[class as usize].filter(|_| !lost)
    }

    /// Condition that keeps a run from accusing the node, whatever its cause.
    fn hindrance(&self, run: &Run) -> Option<LaneLacking> {
        let sentinel = &self.ledger.sentinel;
        if let Some(why) = &sentinel.view.off {
            Some(LaneLacking::Off(why.clone()))
        } else if !sentinel.is_settled(run.last) {
            Some(LaneLacking::Void(VoidReason::Unsettled))
        } else {
            let damage = sentinel.damage(run.last);
            damage.map(|_| LaneLacking::Void(VoidReason::Damaged))
        }
    }

    /// Evidence of failed lanes, and of connections that fail beside them.
    pub(super) fn probes(&self, lanes: &[Failing<'a>], beside: Vec<Group<'a>>) -> Evidence {
        Evidence::Probes {
            lanes: lanes.iter().map(|lane| self.failed(*lane)).collect(),
            beside: self.beside(beside),
        }
    }

    pub(super) fn failed(&self, (lane, run): Failing<'_>) -> FailedLane {
        FailedLane {
            path: lane.path,
            transport: lane.transport,
            cause: run.cause(),
            failures: run.failures,
            refusal_clear: run.refusal_clear,
            client: self.ledger.sentinel.lane(lane).client,
        }
    }

    /// The first failing lane that other evidence excuses.
    fn excused(&self) -> Option<(Failing<'a>, LaneJudgement)> {
        let judgement = |failing| (failing, self.judgement(failing));
        let mut judgements = self.failing().into_iter().map(judgement);
        let is_excuse = |judgement: &LaneJudgement| {
            use LaneJudgement::{Contradicted, Filtered, SecondaryPath};
            matches!(judgement, Contradicted(..) | Filtered | SecondaryPath)
        };
        judgements.find(|(_, judgement)| is_excuse(judgement))
    }

    pub(super) fn degraded_contradicted(&self) -> Option<Grounds> {
        let (failing, LaneJudgement::Contradicted(path, at)) = self.excused()? else {
            return None;
        };
        let lane = self.failed(failing);
        Some(caused(&failing, Evidence::Contradicted { lane, path, at }))
    }

    /// Probes from outside the cluster's ranges fail while probes from pod addresses pass.
    pub(super) fn degraded_filtered(&self) -> Option<Grounds> {
        let (failing, LaneJudgement::Filtered) = self.excused()? else {
            return None;
        };
        let lane = self.failed(failing);
        Some(caused(&failing, Evidence::Probe { lane }))
    }

    /// A lane fails that does not represent the node (the host path, UDP), or one that fails alone: node
    /// ports that refuse only probes, or one misrouted path.
    pub(super) fn degraded_secondary_path(&self) -> Option<Grounds> {
        if let Some((failing, LaneJudgement::SecondaryPath)) = self.excused() {
            let lane = self.failed(failing);
            return Some(caused(&failing, Evidence::Probe { lane }));
        }
        let accusing = self.accusing();
        let passing = |(_, lane): &Probed<'_>| self.is_passing(lane);
        if !self.failing().is_empty() || !accusing.iter().any(passing) {
            return None;
        }
        let limits = &self.ledger.limits;
        let secondary = self
            .applicable_lanes()
            .filter(|(lane, _)| accusing.iter().all(|(other, _)| other != lane))
            .filter_map(|(lane, ledger)| Some((lane, self.run(ledger)?)))
            .find(|(_, run)| run.is_long(limits) && self.hindrance(run).is_none())?;
        let lane = self.failed(secondary);
        Some(caused(&secondary, Evidence::Probe { lane }))
    }

    /// The rules of any lane do not follow the API, including UDP and the host path.
    pub(super) fn degraded_by_lag(&self) -> Option<Grounds> {
        self.late(self.applicable_lanes())
    }

    /// The lane that has been late for longest, if that is too long.
    pub(super) fn late(&self, lanes: impl Iterator<Item = Probed<'a>>) -> Option<Grounds> {
        let late = |(lane, ledger): Probed<'a>| Some((self.lateness(lane, ledger)?, lane, ledger));
        let late = lanes.filter_map(late);
        let late = late.filter(|(late, ..)| *late >= self.ledger.limits.lag_after);
        // If several are equally late, the first one.
        let (late, lane, ledger) = late.min_by_key(|(late, ..)| Reverse(*late))?;
        let evidence = Evidence::Late {
            path: lane.path,
            transport: lane.transport,
            owners: self.ledger.sentinel.owners(lane.family),
            late,
            generation: ledger.generation,
            wanted: ledger.freshness.wanted(),
        };
        Some((Some(Cause::Stale), evidence))
    }

    /// Time for which a lane's rules have not followed what this node received. Only passing lanes have
    /// one, since a failed probe shows nothing about rules.
    pub(super) fn lateness(&self, lane: Lane, ledger: &LaneLedger) -> Option<Duration> {
        let sentinel = &self.ledger.sentinel;
        let counts = sentinel.view.counts() && self.is_passing(ledger);
        sentinel.lateness(lane, self.now).filter(|_| counts)
    }

    pub(super) fn suspect_by_probes(&self) -> Option<Grounds> {
        // The lane that failed first. An order by number of failures would change with every probe.
        let failing = self.failing().into_iter();
        let first = failing.min_by_key(|(_, run)| run.since)?;
        let lacking = match self.judgement(first) {
            LaneJudgement::Lacks(lacking) => lacking,
            LaneJudgement::NeedsWitness if self.beside_lane(&first).is_empty() => {
                self.lacking_witness(first)
            }
            _ => return None,
        };
        let lane = self.failed(first);
        Some(caused(&first, Evidence::Unconfirmed { lane, lacking }))
    }

    /// Why real connections do not confirm that this lane fails.
    fn lacking_witness(&self, (_, run): Failing<'a>) -> LaneLacking {
        let failed = self.evidence.streak.as_ref().map(|streak| streak.last);
        if failed < Some(run.since) {
            return LaneLacking::Connection;
        }
        match self.missing_breadth(&self.groups()) {
            Some(lacking) => LaneLacking::Breadth(lacking),
            None => LaneLacking::Connection,
        }
    }

    pub(super) fn is_passing(&self, lane: &LaneLedger) -> bool {
        let fresh = |at| self.is_within_proof_age(at);
        lane.armed && !lane.in_conflict && lane.run.is_none() && lane.last_pass.is_some_and(fresh)
    }

    pub(super) fn proven_by_probe(&self) -> Option<Grounds> {
        let (lane, at) = self.fresh_pass()?;
        let evidence = Evidence::Pass {
            path: lane.path,
            transport: lane.transport,
            at,
        };
        Some((None, evidence))
    }

    /// The last probe that proves the family, if it is recent; if several are equally recent, that
    /// of the first lane.
    pub(super) fn fresh_pass(&self) -> Option<(Lane, Mono)> {
        let lanes = self.proving().into_iter().rev();
        lanes
            .filter(|(_, ledger)| self.is_passing(ledger))
            .filter_map(|(lane, ledger)| Some((lane, ledger.last_pass?)))
            .max_by_key(|(_, at)| *at)
    }

    /// The last probe that proved the family, however long ago.
    pub(super) fn last_pass(&self) -> Option<Mono> {
        let passes = self.proving().into_iter().filter(|(_, lane)| lane.armed);
        passes.filter_map(|(_, lane)| lane.last_pass).max()
    }

    /// Times of the first and the last probe failure that may accuse the node.
    pub(super) fn probe_failures(&self) -> (Option<Mono>, Option<Mono>) {
        let failing = self.failing();
        let since = failing.iter().map(|(_, run)| run.since).min();
        (since, failing.iter().map(|(_, run)| run.last).max())
    }

    /// Whether probes failed, even too long ago to count.
    pub(super) fn had_failing_lane(&self) -> bool {
        self.accusing().iter().any(|(_, lane)| lane.run.is_some())
    }

    pub(super) fn never_worked(&self) -> Option<Grounds> {
        let never = self.never_worked_lane()?;
        let exists = self.inputs.sentinel_exists;
        exists.then_some((None, Evidence::Never(never)))
    }

    /// The first TCP lane that never worked.
    pub(super) fn never_worked_lane(&self) -> Option<NeverWorked> {
        let mut lanes = self.applicable_lanes();
        let never = |(lane, ledger): &Probed<'_>| {
            lane.transport == Transport::Tcp && ledger.never_worked().is_some()
        };
        let (lane, ledger) = lanes.find(never)?;
        Some(NeverWorked {
            path: lane.path,
            transport: lane.transport,
            cause: ledger.never_worked(),
            client: ledger.client,
        })
    }

    /// A lane whose recent probes are no evidence.
    pub(super) fn void_lane(&self) -> Option<Evidence> {
        let void = |(_, lane): &Probed<'_>| {
            let fresh = lane.last.filter(|(at, _)| self.is_within_proof_age(*at));
            matches!(fresh, Some((_, ProbeOutcome::Void(_))))
        };
        let mut lanes = ProbePath::ALL.into_iter().map(|path| self.tcp(path));
        let (lane, ledger) = lanes.find(void)?;
        Some(Evidence::Void {
            path: lane.path,
            transport: lane.transport,
            why: self.void_cause(ledger),
        })
    }

    /// Reason why a lane's last probe is no evidence.
    pub(super) fn void_cause(&self, ledger: &LaneLedger) -> VoidCause {
        let damage = self.ledger.sentinel.damage(self.now);
        match (damage, &ledger.unsent, ledger.last) {
            (Some(damage), _, _) => VoidCause::Damage(damage.sentence.clone()),
            (None, Some(unsent), _) => VoidCause::Unsent(unsent.to_string()),
            (None, None, Some((_, ProbeOutcome::Void(reason)))) => VoidCause::Probe(reason),
            (None, None, _) => VoidCause::Former,
        }
    }
}

fn caused((_, run): &Failing<'_>, evidence: Evidence) -> Grounds {
    (Some(run.cause().cause()), evidence)
}
