//! The sentinel's probes: the outcome of each, and the record of all.
//!
//! [`classify`] determines the outcome of one probe. [`SentinelLedger`] records for each lane
//! whether it ever worked, and its failures since the last success. The verdict reads both; nothing
//! here decides a state. A failure counts only on an armed lane, while the sentinel exists and has
//! not changed for a moment, and while its devices are sound. Proofs by the sentinel are separate
//! from those by real connections.
//!
//! Length: the sentinel's ledger with most of its methods, which share its private fields.

mod applicability;
mod lane;
mod outcome;

#[cfg(test)]
mod tests;

use std::time::Duration;

pub(crate) use applicability::ProbeApplicability;
pub use lane::{LaneLedger, Run};
pub use outcome::{KernelFacts, ProbeOutcome, VoidReason, classify};
use pathproof_facts::cause::ProbeCause;
use pathproof_facts::freshness::Lags;
use pathproof_facts::limits::Limits;
use pathproof_facts::owners::{DatapathOwners, Owner};
use pathproof_facts::time::Mono;
use pathproof_facts::trace::{Lane, LaneConflict, PROBE_PATHS, ProbePath, ProbeTrace, Transport};
use pathproof_wire::service::{FAMILIES, Family};
use serde::{Deserialize, Serialize};

use crate::conntrack::Conntrack;
use crate::topology::Tristate;

/// Time after which present owners have been read at least once more: they are read every 5 s.
const OWNERS_READ: Duration = Duration::from_secs(7);
const TRANSPORTS: usize = Transport::ALL.len();
const LANES: usize = PROBE_PATHS * FAMILIES * TRANSPORTS;

/// Last known state of the sentinel: its objects in the cluster, whether it can be probed, and since when.
/// It is stored for the next agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentinelView {
    /// Whether its Service and slices exist.
    pub exists: bool,
    /// How the sentinel differs from the one that pathproof made, as a sentence.
    pub altered: Option<String>,
    /// Why an existing, unaltered sentinel is not probed, as a sentence: a fault of pathproof's parts. While
    /// this is set, no probe counts, and no lane is disarmed.
    pub off: Option<String>,
    /// Hash of everything in the sentinel that the datapath makes rules from (addresses, ports, endpoints),
    /// except the generation. It is the same after a restart of the agent; a new hash means a new sentinel.
    pub identity: u64,
    /// When this state began.
    pub changed_at: Mono,
    /// Families in which the sentinel has a cluster IP but the node has no address: the proxy may have no
    /// rules there.
    pub unaddressed: [bool; FAMILIES],
}

impl SentinelView {
    /// Whether probes of this sentinel can count.
    pub fn counts(&self) -> bool {
        self.exists && self.altered.is_none() && self.off.is_none()
    }
}

/// Everything known from probes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SentinelLedger {
    limits: Limits,
    lanes: [LaneLedger; LANES],
    pub view: SentinelView,
    owners: [Ownership; FAMILIES],
    /// Families for which this agent has read who owns the datapath.
    has_seen_owners: [bool; FAMILIES],
    damage: Option<Damage>,
    /// Start of the last check that found the sentinel's parts sound.
    looked: Option<Mono>,
    /// When a probe was last recorded.
    absorbed: Option<Mono>,
    /// Recent lags of TCP probes, by family.
    lags: [Lags; FAMILIES],
    /// Lag measured by the last recorded probe: the time since the receipt of its generation. `None` if an
    /// earlier probe had already reached that generation.
    pub measured: Option<Duration>,
    /// When the source of the cluster view became unreachable.
    away: Option<Mono>,
    /// The kernel's connection table, which must have room for probes.
    pub conntrack: Conntrack,
    /// Effect of the datapath's topology on probes.
    #[serde(rename = "bearing")]
    pub applicability: ProbeApplicability,
    /// Lanes whose frontend another Service uses.
    #[serde(rename = "contested")]
    conflicts: Vec<LaneConflict>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Ownership {
    /// Owners under which the lanes were armed; `None` before any was found, empty if probes passed
    /// while none was present.
    known: Option<DatapathOwners>,
    /// Owners in the last read.
    present: DatapathOwners,
    /// When these appeared; `None` before the first read.
    since: Option<Mono>,
    /// When another owner disarmed the lanes; `None` once a lane other than the host lane works again.
    disarmed: Option<Mono>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Damage {
    pub(crate) at: Mono,
    pub sentence: String,
}

/// The part that outlives the agent: lanes that worked, and confirmed runs of failures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentinelMemory {
    lanes: Vec<(Lane, LaneLedger)>,
    view: SentinelView,
    owners: [Ownership; FAMILIES],
    lags: [Lags; FAMILIES],
    away: Option<Mono>,
    managed: Tristate,
}

impl SentinelLedger {
    /// An empty ledger. No probe counts until [`view_changed`](Self::view_changed) reports a sentinel.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// A ledger that continues where the previous agent stopped, in the same boot of the node.
    pub fn restore(limits: Limits, memory: SentinelMemory) -> Self {
        let mut ledger = Self::new(limits);
        ledger.view = memory.view;
        ledger.owners = memory.owners;
        ledger.lags = memory.lags;
        ledger.away = memory.away;
        ledger.applicability.managed = memory.managed;
        for (lane, known) in memory.lanes {
            ledger.lanes[place(lane)] = known;
        }
        ledger
    }

    /// State to store for [`SentinelLedger::restore`].
    pub fn memory(&self) -> SentinelMemory {
        let remembered = |lane| Some((lane, self.lane(lane).memory(&self.limits)?));
        SentinelMemory {
            lanes: all_lanes().filter_map(remembered).collect(),
            view: self.view.clone(),
            owners: self.owners,
            lags: self.lags.clone(),
            away: self.away,
            managed: self.applicability.managed,
        }
    }

    /// Records a probe with the outcome of [`classify`]. Returns the outcome after a comparison with earlier
    /// probes: a probe that passed may have failed by [`ProbeCause::NotMasqueraded`].
    pub fn absorb(&mut self, trace: &ProbeTrace, outcome: ProbeOutcome, now: Mono) -> ProbeOutcome {
        let before = self.absorbed.replace(now);
        if before.is_some_and(|before| now.since(before) > self.limits.probe_gap) {
            for lane in &mut self.lanes {
                lane.run.take_if(|run| !run.is_confirmed(&self.limits));
            }
        }
        self.measured = None;
        if self.voids_by_conflict(trace.lane, outcome) {
            let lane = &mut self.lanes[place(trace.lane)];
            if !matches!(outcome, ProbeOutcome::Void(_)) {
                // A rule of the other Service took the probe, so earlier failures are no evidence either.
                lane.run = None;
            }
            let outcome = ProbeOutcome::Void(VoidReason::FrontendConflict);
            lane.note(trace, outcome, now);
            return outcome;
        }
        let lane = &mut self.lanes[place(trace.lane)];
        if lane.armed && lane.frontend != Some(trace.frontend) {
            // Success at one frontend is no proof for another.
            lane.disarm();
        }
        let counts = self.counts(trace.sent);
        let refusal_clear = self.is_refusal_clear(trace);
        if self.view.counts() && self.is_expected(trace.lane, outcome, refusal_clear, now) {
            let lane = &mut self.lanes[place(trace.lane)];
            (lane.armed, lane.frontend) = (true, Some(trace.frontend));
        }
        let outcome = self.with_memory(trace, outcome);
        let disarmed = self.owners[trace.lane.family as usize].disarmed;
        let unchanged_since = self.view.changed_at.max(disarmed.unwrap_or_default());
        let lane = &mut self.lanes[place(trace.lane)];
        lane.note(trace, outcome, now);
        if !self.view.counts() {
            return outcome;
        }
        match outcome {
            // A probe from before the change of the sentinel or the owner is no proof for the new one.
            ProbeOutcome::Passed { .. } if trace.sent < unchanged_since => {}
            ProbeOutcome::Passed { masqueraded } => {
                lane.pass(trace, masqueraded, self.conntrack.is_full(now), now);
                self.owners[trace.lane.family as usize].prove(trace, &self.limits);
                self.measure(trace);
            }
            ProbeOutcome::Failed(cause) => {
                lane.fail(trace, cause, refusal_clear, counts, &self.limits, now)
            }
            ProbeOutcome::Void(_) => {}
        }
        outcome
    }

    /// Whether a lane counts although it never worked. This takes a declared proxy that should have written
    /// rules by now, and a failure that no filter explains: a filter may be part of the cluster's design. A
    /// node without an address in a family need not forward that family. The proxy gets a grace period after
    /// boot, after a change of the sentinel, and after another proxy took over. Changes within the period
    /// after boot do not extend it.
    fn is_expected(
        &self,
        lane: Lane,
        outcome: ProbeOutcome,
        refusal_clear: bool,
        now: Mono,
    ) -> bool {
        let clear = match outcome {
            // A refused node port does not count: the proxy may serve node ports only on other addresses. If
            // it wrote no rules, cluster IPs show that.
            ProbeOutcome::Failed(ProbeCause::Refused) => {
                refusal_clear && lane.path != ProbePath::NodePort
            }
            ProbeOutcome::Failed(cause) => cause.is_unambiguous(),
            ProbeOutcome::Passed { .. } | ProbeOutcome::Void(_) => false,
        };
        let owners = self.owners(lane.family);
        let declared = self.limits.declared;
        let disarmed = self.owners[lane.family as usize].disarmed;
        let since = self.view.changed_at.max(disarmed.unwrap_or_default());
        let (boot, grace) = (Mono(0), self.limits.boot_deadline);
        let since = if since < boot.plus(grace) {
            boot
        } else {
            since
        };
        let late = now.since(since) >= grace;
        let wanted = || declared.is_some_and(|declared| declared.fits(owners));
        let addressed = !self.view.unaddressed[lane.family as usize];
        self.limits.assume_armed || (late && clear && addressed && wanted())
    }

    /// Records the state of the sentinel in a complete cluster view: in an incomplete view, a sentinel
    /// that is yet to be delivered would seem deleted. Call it after each change of the view and once
    /// after a start; an unchanged state has no effect.
    pub fn view_changed(&mut self, now: Mono, view: SentinelView) {
        let essentials = |view: &SentinelView| {
            let off = view.off.is_some();
            (view.exists, view.altered.clone(), off, view.identity)
        };
        if essentials(&self.view) == essentials(&view) {
            self.view.off = view.off;
            self.view.unaddressed = view.unaddressed;
            return;
        }
        let changed_at = view.changed_at.min(now);
        for lane in &mut self.lanes {
            if !view.exists {
                lane.disarm();
                lane.freshness = Default::default();
            }
            if view.altered.is_some() {
                lane.run = None;
            }
            // A failure that began shortly before may be due to the change, which this node received late. An
            // older run stays, because a change of the sentinel repairs nothing.
            lane.end_young(changed_at, &self.limits);
        }
        self.view = SentinelView { changed_at, ..view };
    }

    /// Records the owners of a family's datapath. A new owner disarms the lanes, because its rules may take
    /// over the traffic at any moment. A missing owner is a fault and changes nothing. The first owner
    /// changes nothing either: on a fresh node, probes may pass before the next read finds it. Unknown
    /// programs change nothing beside kube-proxy's rules. Without those rules the unknown programs may have
    /// replaced kube-proxy, and may not serve the sentinel's interfaces.
    pub fn owner_seen(&mut self, family: Family, owners: DatapathOwners, now: Mono) {
        let ownership = &mut self.owners[family as usize];
        let is_first = !std::mem::replace(&mut self.has_seen_owners[family as usize], true);
        if ownership.since.is_none() || ownership.present != owners {
            ownership.since = Some(now);
        }
        ownership.present = owners;
        if owners.is_empty() {
            return;
        }
        let mut known = ownership.known.unwrap_or(owners);
        if is_first && owners == DatapathOwners::from_iter([Owner::KubeProxyIptables]) {
            // kube-proxy's iptables table counts as known: a new agent cannot know whether it is a leftover
            // that was already there beside the former owner.
            known = known.iter().chain(owners.iter()).collect();
        }
        ownership.known = Some(known);
        let left_alone = owners.is_unknown() && !known.is_unknown();
        let new = owners.beyond(known).beyond(DatapathOwners::unknown());
        if new.is_empty() && !left_alone {
            return;
        }
        ownership.known = Some(owners);
        for lane in lanes_of(family) {
            let lane = &mut self.lanes[place(lane)];
            if lane.armed {
                lane.disarm();
                ownership.disarmed = Some(now);
            }
        }
    }

    /// Records that the sentinel's devices were found damaged, or were just repaired. Failures shortly before
    /// and after do not count. A confirmed run that began earlier stays, because damage to the devices
    /// repairs nothing.
    pub fn damaged(&mut self, now: Mono, sentence: String) {
        for lane in &mut self.lanes {
            lane.end_young(now, &self.limits);
        }
        self.damage = Some(Damage { at: now, sentence });
    }

    /// Whether `sentence` is the damage found last, and `lasts` is true for the time of that damage.
    pub fn is_damage(&self, sentence: &str, lasts: impl Fn(Mono) -> bool) -> bool {
        let damage = self.damage.as_ref();
        damage.is_some_and(|damage| damage.sentence == sentence && lasts(damage.at))
    }

    /// Records that a check, which started at `began`, found the sentinel's devices, routes and programs
    /// sound. Failures accuse only after such a check.
    pub fn looked(&mut self, began: Mono) {
        self.looked = self.looked.max(Some(began));
    }

    /// Whether an armed lane of the family is failing. If so, the datapath's owners and the sentinel are read
    /// again.
    pub fn is_failing(&self, family: Family) -> bool {
        let failing = |lane: Lane| {
            self.is_applicable(lane) && self.lane(lane).armed && self.lane(lane).run.is_some()
        };
        lanes_of(family).any(failing)
    }

    /// Number of failures in a row that count on this lane.
    pub fn failures(&self, lane: Lane) -> u32 {
        self.lane(lane).run.as_ref().map_or(0, |run| run.failures)
    }

    /// Missing masquerade is a fault if kube-proxy owns the path, must masquerade it, and did so before.
    fn with_memory(&self, trace: &ProbeTrace, outcome: ProbeOutcome) -> ProbeOutcome {
        let lane = trace.lane;
        if outcome == (ProbeOutcome::Passed { masqueraded: false })
            && self.owners(lane.family).is_kube_proxy()
            && self.lane(lane).masquerade_seen
            && self.is_masquerade_owed(lane, trace.sent)
        {
            return ProbeOutcome::Failed(ProbeCause::NotMasqueraded);
        }
        outcome
    }

    /// kube-proxy always masquerades traffic from outside to node ports; for cluster IPs it depends on the
    /// configuration. So missing masquerade of a cluster IP counts only if node ports have lost theirs too.
    fn is_masquerade_owed(&self, lane: Lane, sent: Mono) -> bool {
        let node_port = Lane {
            path: ProbePath::NodePort,
            ..lane
        };
        match lane.path {
            ProbePath::NodePort => true,
            ProbePath::OffCluster => {
                self.failed_beside(node_port, ProbeCause::NotMasqueraded, sent)
            }
            ProbePath::Pod | ProbePath::Host => false,
        }
    }

    /// Whether the last probe of a lane failed for this cause, at most a moment before `sent`. The time of
    /// evaluation does not matter, because a busy machine evaluates late.
    fn failed_beside(&self, lane: Lane, cause: ProbeCause, sent: Mono) -> bool {
        let last = self.lane(lane).last;
        let last = last.filter(|(at, _)| sent.since(*at) <= self.limits.probe_gap);
        last.is_some_and(|(_, outcome)| outcome == ProbeOutcome::Failed(cause))
    }

    /// Whether an RST on this lane accuses the datapath. It does if the frontend is an address of the node:
    /// without a rule, the node itself refuses the connection. Cluster IPs are addresses of the node only
    /// with IPVS. In other modes an RST from a cluster IP comes from a filter. That filter refuses node ports
    /// too, so node ports do not accuse if cluster IPs are refused as well.
    fn is_refusal_clear(&self, trace: &ProbeTrace) -> bool {
        let (lane, path) = (trace.lane, ProbePath::OffCluster);
        let cluster_ip = Lane { path, ..lane };
        match lane.path {
            _ if self.owners(lane.family).contains(Owner::Ipvs) => true,
            ProbePath::NodePort => {
                let refused = self.failed_beside(cluster_ip, ProbeCause::Refused, trace.sent);
                !refused && !self.lane(cluster_ip).in_conflict
            }
            ProbePath::Pod | ProbePath::OffCluster | ProbePath::Host => false,
        }
    }

    /// Whether the failure of a probe sent at `at` counts, or why it is void.
    fn counts(&self, at: Mono) -> Result<(), VoidReason> {
        let after = |damage: &Damage| at >= damage.at.plus(self.limits.sentinel_settled);
        if !self.is_settled(at) {
            Err(VoidReason::Unsettled)
        } else if !self.damage.as_ref().is_none_or(after) {
            Err(VoidReason::Damaged)
        } else {
            Ok(())
        }
    }

    pub fn lane(&self, lane: Lane) -> &LaneLedger {
        &self.lanes[place(lane)]
    }

    /// Whether the sentinel exists unaltered, and has not changed for a moment.
    pub fn is_settled(&self, at: Mono) -> bool {
        let settled = self.view.changed_at.plus(self.limits.sentinel_settled);
        self.view.counts() && at >= settled
    }

    /// Whether a check that began after `since` found the sentinel's parts sound.
    pub fn is_checked_since(&self, since: Mono) -> bool {
        self.looked.is_some_and(|began| began >= since)
    }

    /// Recent damage, while it prevents failures from counting.
    pub fn damage(&self, now: Mono) -> Option<&Damage> {
        let lately = |damage: &&Damage| now.since(damage.at) < self.limits.sentinel_settled;
        self.damage.as_ref().filter(lately)
    }

    /// Owners of the family's datapath, if they disarmed its lanes and no lane but the host lane worked
    /// since.
    pub fn changed_hands(&self, family: Family) -> Option<DatapathOwners> {
        let ownership = &self.owners[family as usize];
        ownership.disarmed.map(|_| ownership.present)
    }

    pub fn owners(&self, family: Family) -> DatapathOwners {
        self.owners[family as usize].known.unwrap_or_default()
    }

    /// Whether a lane of this family ever worked.
    pub fn is_armed(&self, family: Family) -> bool {
        lanes_of(family).any(|lane| self.lane(lane).armed)
    }
}

impl Ownership {
    /// Records that a probe passed: owners present for some time are confirmed, and missing ones are dropped.
    fn prove(&mut self, trace: &ProbeTrace, limits: &Limits) {
        // The host path may work while the other paths are not served by the new owner yet.
        if trace.lane.path != ProbePath::Host {
            self.disarmed = None;
        }
        let wait = limits.sentinel_settled.max(OWNERS_READ);
        if (self.since).is_some_and(|since| trace.sent >= since.plus(wait)) {
            self.known = Some(self.present);
        }
    }
}

fn place(lane: Lane) -> usize {
    (lane.path as usize * FAMILIES + lane.family as usize) * TRANSPORTS + lane.transport as usize
}

fn all_lanes() -> impl Iterator<Item = Lane> {
    Family::ALL.into_iter().flat_map(lanes_of)
}

/// Lanes of a family: TCP first, in the order of paths.
pub fn lanes_of(family: Family) -> impl Iterator<Item = Lane> {
    Transport::ALL.into_iter().flat_map(move |transport| {
        ProbePath::ALL.into_iter().map(move |path| Lane {
            path,
            family,
            transport,
        })
    })
}
