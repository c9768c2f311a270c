//! Meaning of the sentinel's probes, and what is kept of them.
//!
//! [`classify`] finds the meaning of one probe, [`SentinelLedger`] records per lane whether it ever
//! worked and the failures since it last did. The verdict reads both; nothing here decides a state.
//! A failure counts only on a lane that is armed, while the sentinel is there and has not changed
//! for a while, and while its devices are sound. Proofs of the sentinel are kept apart from those
//! of real connections.
//!
//! Length: one ledger with all of its methods; a type is not cut over files.

mod bearing;
mod lane;
mod outcome;

#[cfg(test)]
pub(crate) mod tests;

use std::time::Duration;

use agent_common::service::{FAMILIES, Family};
use serde::{Deserialize, Serialize};

use crate::cause::ProbeCause;
use crate::conntrack::Conntrack;
use crate::expect::sentinel::Contest;
use crate::freshness::Lags;
use crate::limits::Limits;
use crate::owners::{DatapathOwners, Owner};
use crate::shape::Told;
use crate::time::Mono;
use crate::trace::{Lane, PROBE_PATHS, ProbePath, ProbeTrace, Transport};
pub(crate) use bearing::Bearing;
use lane::LaneMemory;
pub(crate) use lane::{LaneLedger, Run};
pub use outcome::{KernelFacts, ProbeOutcome, VoidReason, classify};

/// The owners are read every 5 s. Owners that were there for so long were read again meanwhile.
const OWNERS_READ: Duration = Duration::from_secs(7);
const TRANSPORTS: usize = Transport::ALL.len();
const LANES: usize = PROBE_PATHS * FAMILIES * TRANSPORTS;

/// The last conclusion from the sentinel in the cluster view and from the state of its prober, with its
/// time. It outlives the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentinelView {
    /// Its Service and slices are there.
    pub exists: bool,
    /// Difference from the sentinel as pathproof made it, in words.
    pub altered: Option<String>,
    /// Why it is not probed though it is there and sound, in words: pathproof's own parts cannot
    /// work. Nothing counts meanwhile, and nothing is disarmed.
    #[serde(default)]
    pub off: Option<String>,
    /// A hash of all that the datapath makes rules of (addresses, ports, endpoints) but the
    /// generation, the same after a restart of the agent. As long as it stays, nothing has changed.
    pub identity: u64,
    /// When the view changed to this.
    pub changed_at: Mono,
    /// Families in which it has a cluster IP, and this node no address: nobody may have made rules there.
    #[serde(default)]
    pub unaddressed: [bool; FAMILIES],
}

impl SentinelView {
    /// Whether its probes may say anything.
    pub(crate) fn counts(&self) -> bool {
        self.exists && self.altered.is_none() && self.off.is_none()
    }
}

/// All that is known by probes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SentinelLedger {
    limits: Limits,
    lanes: [LaneLedger; LANES],
    pub(crate) view: SentinelView,
    owners: [Ownership; FAMILIES],
    /// This agent has seen owners, by family.
    #[serde(default = "has_seen")]
    has_seen_owners: [bool; FAMILIES],
    damage: Option<Damage>,
    /// When the last look began that found our own parts sound.
    looked: Option<Mono>,
    /// When a probe was last taken in.
    absorbed: Option<Mono>,
    /// Measured by TCP probes of late, by family.
    lags: [Lags; FAMILIES],
    /// Lag measured by the probe that was taken in last, if it was the first to meet a generation:
    /// the time since that generation's receipt.
    pub(crate) measured: Option<Duration>,
    /// Since when the source of the view is away.
    away: Option<Mono>,
    /// The kernel's table of connections, in which probes find room or do not.
    #[serde(default)]
    pub(crate) conntrack: Conntrack,
    /// Effect of the datapath's shape on probes.
    pub(crate) bearing: Bearing,
    /// Lanes whose frontend another Service claims now.
    #[serde(default)]
    contested: Vec<Contest>,
}

/// Owners of the datapath of a family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Ownership {
    /// Under whom the lanes were armed; `None` before one was seen, or was long seen to be missing.
    known: Option<DatapathOwners>,
    /// Seen last.
    present: DatapathOwners,
    /// Since when these are present; `None` before the first look.
    since: Option<Mono>,
    /// When another owner disarmed the lanes; until one works again.
    disarmed: Option<Mono>,
}

/// In recordings that do not tell it: they begin in the middle.
fn has_seen() -> [bool; FAMILIES] {
    [true; FAMILIES]
}

/// The sentinel's devices were damaged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Damage {
    /// When that was last found.
    pub(crate) at: Mono,
    /// Description of the damage.
    pub(crate) sentence: String,
}

/// The part that outlives the agent: lanes that worked, runs of failures that are confirmed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentinelMemory {
    lanes: Vec<LaneMemory>,
    view: SentinelView,
    owners: [Ownership; FAMILIES],
    #[serde(default)]
    lags: [Lags; FAMILIES],
    #[serde(default)]
    away: Option<Mono>,
    #[serde(default)]
    managed: Told,
}

impl SentinelLedger {
    /// An empty one. Until [`view_changed`](Self::view_changed) says that there is a sentinel,
    /// nothing counts.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// One that continues where the agent before stopped, in the same boot of the node.
    pub fn restore(limits: Limits, memory: SentinelMemory) -> Self {
        let mut ledger = Self::new(limits);
        ledger.view = memory.view;
        ledger.owners = memory.owners;
        ledger.lags = memory.lags;
        ledger.away = memory.away;
        ledger.bearing.managed = memory.managed;
        for remembered in memory.lanes {
            let (lane, known) = remembered.restore();
            ledger.lanes[place(lane)] = known;
        }
        ledger
    }

    /// State to store for [`SentinelLedger::restore`].
    pub fn memory(&self) -> SentinelMemory {
        let remembered = |lane| LaneMemory::of(lane, self.lane(lane), &self.limits);
        SentinelMemory {
            lanes: all_lanes().filter_map(remembered).collect(),
            view: self.view.clone(),
            owners: self.owners,
            lags: self.lags.clone(),
            away: self.away,
            managed: self.bearing.managed,
        }
    }

    /// Takes in a probe and what [`classify`] made of it. Returns what it means with all that is
    /// remembered: a probe that passed may be [`ProbeCause::NotMasqueraded`].
    pub fn absorb(&mut self, trace: &ProbeTrace, outcome: ProbeOutcome, now: Mono) -> ProbeOutcome {
        let before = self.absorbed.replace(now);
        if before.is_some_and(|before| now.since(before) > self.limits.probe_gap) {
            for lane in &mut self.lanes {
                lane.run.take_if(|run| !run.is_confirmed(&self.limits));
            }
        }
        self.measured = None;
        if self.voids_by_claim(trace.lane, outcome) {
            let lane = &mut self.lanes[place(trace.lane)];
            if !matches!(outcome, ProbeOutcome::Void(_)) {
                // Somebody's rule took it.
                lane.run = None;
            }
            let outcome = ProbeOutcome::Void(VoidReason::Contested);
            lane.note(trace, outcome, now);
            return outcome;
        }
        let lane = &mut self.lanes[place(trace.lane)];
        if lane.armed && lane.frontend != Some(trace.frontend) {
            // Success at one frontend is no proof for another.
            lane.disarm();
        }
        let counts = self.counts(trace.sent);
        let local = self.is_refusal_clear(trace);
        if self.view.counts() && self.is_expected(trace.lane, outcome, local, now) {
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
            // One that was under way when the sentinel or the owner changed says nothing of the new
            // one.
            ProbeOutcome::Passed { .. } if trace.sent < unchanged_since => {}
            ProbeOutcome::Passed { masqueraded } => {
                lane.pass(trace, masqueraded, self.conntrack.is_full(now), now);
                self.owners[trace.lane.family as usize].prove(trace, &self.limits);
                self.measure(trace);
            }
            ProbeOutcome::Failed(cause) => {
                lane.fail(trace, cause, local, counts, &self.limits, now)
            }
            ProbeOutcome::Void(_) => {}
        }
        outcome
    }

    /// Whether a lane counts though it never worked. What a filter explains may be how the cluster is
    /// made, whatever is declared. A node with no address in a family does not forward that family. And
    /// the proxy gets a grace period after boot, after the sentinel changed, and after another proxy took
    /// over; what happened in the first of these extends it no further.
    fn is_expected(&self, lane: Lane, outcome: ProbeOutcome, local: bool, now: Mono) -> bool {
        let clear = match outcome {
            // The proxy may serve node ports on other addresses: where it wrote nothing, cluster IPs
            // tell.
            ProbeOutcome::Failed(ProbeCause::Refused) => local && lane.path != ProbePath::NodePort,
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

    /// The cluster view was read, and is whole: a sentinel that was not delivered yet is not gone.
    /// To be called whenever the view changed, and once after a start; one that says the same as
    /// the last changes nothing.
    pub fn view_changed(&mut self, now: Mono, view: SentinelView) {
        let told = |view: &SentinelView| {
            let off = view.off.is_some();
            (view.exists, view.altered.clone(), off, view.identity)
        };
        if told(&self.view) == told(&view) {
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
            // A failure that began shortly before may be explained by the change, which reached us
            // late. An older one stays: a rotation heals nothing.
            lane.end_young(changed_at, &self.limits);
        }
        self.view = SentinelView { changed_at, ..view };
    }

    /// The owners of a family's datapath were read. Another one disarms the lanes: its rules may
    /// take the traffic over at any moment. One that is gone is a fault, and changes nothing. Nor does
    /// the first: looks are seconds apart, and on a fresh node probes get through between its coming
    /// and the look that finds it. Programs that nobody knows change nothing beside kube-proxy's rules;
    /// left alone they may have taken its place, and need not serve the sentinel's interfaces.
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
            // Of a legacy table a new agent does not know whether it was there beside the former owner.
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

    /// The sentinel's devices were found damaged, or were just repaired. No failure of the last
    /// moments counts, nor those of the next. What accused the node before stays, as after a change
    /// of the view: damage that passes heals nothing. `sentence` says what was found.
    pub fn damaged(&mut self, now: Mono, sentence: String) {
        for lane in &mut self.lanes {
            lane.end_young(now, &self.limits);
        }
        self.damage = Some(Damage { at: now, sentence });
    }

    /// Whether this is the damage that was found last, and `lasts` since then.
    pub(crate) fn is_damage(&self, sentence: &str, lasts: impl Fn(Mono) -> bool) -> bool {
        let damage = self.damage.as_ref();
        damage.is_some_and(|of| of.sentence == sentence && lasts(of.at))
    }

    /// The sentinel's own devices, routes and programs were looked at from `began` on, and all of
    /// them are sound. Only what such a look follows may accuse.
    pub fn looked(&mut self, began: Mono) {
        self.looked = self.looked.max(Some(began));
    }

    /// Whether failures of armed lanes of a family are running: the moment to read afresh who owns
    /// the datapath and what the sentinel is.
    pub fn is_failing(&self, family: Family) -> bool {
        let failing = |lane: Lane| {
            self.stands(lane) && self.lane(lane).armed && self.lane(lane).run.is_some()
        };
        lanes_of(family).any(failing)
    }

    /// Failures of a lane in a row that count.
    pub fn failures(&self, lane: Lane) -> u32 {
        self.lane(lane).run.as_ref().map_or(0, |run| run.failures)
    }

    /// Missing masquerade is a fault where kube-proxy owns the path and owes it, and did it before.
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

    /// Traffic from outside to a node port is always masqueraded, to a cluster IP as kube-proxy was
    /// configured: a cluster IP misses it only where node ports, which worked, miss it too.
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

    /// Whether the last probe of a lane failed in this way, and ended at most a moment before another one was
    /// sent. It does not matter how late a busy machine hears of either.
    fn failed_beside(&self, lane: Lane, cause: ProbeCause, sent: Mono) -> bool {
        let last = self.lane(lane).last;
        let last = last.filter(|(at, _)| sent.since(*at) <= self.limits.probe_gap);
        last.is_some_and(|(_, outcome)| outcome == ProbeOutcome::Failed(cause))
    }

    /// Whether a RST on this lane accuses the datapath: the frontend is an address of the node's own,
    /// which refuses what no rule takes. A cluster IP is one only with IPVS; elsewhere nobody but a
    /// filter refuses what is sent there, from the node itself too, and such a filter refuses what goes to
    /// the node port as well.
    fn is_refusal_clear(&self, trace: &ProbeTrace) -> bool {
        let (lane, path) = (trace.lane, ProbePath::OffCluster);
        let cluster_ip = Lane { path, ..lane };
        match lane.path {
            _ if self.owners(lane.family).contains(Owner::Ipvs) => true,
            ProbePath::NodePort => {
                let refused = self.failed_beside(cluster_ip, ProbeCause::Refused, trace.sent);
                !refused && !self.lane(cluster_ip).claimed
            }
            ProbePath::Pod | ProbePath::OffCluster | ProbePath::Host => false,
        }
    }

    /// Whether a failure of a probe sent at `at` may accuse.
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
}

/// Accessors for the judgement.
impl SentinelLedger {
    pub(crate) fn lane(&self, lane: Lane) -> &LaneLedger {
        &self.lanes[place(lane)]
    }

    /// The sentinel is there, as pathproof made it, and has not changed for a while.
    pub(crate) fn is_settled(&self, at: Mono) -> bool {
        let settled = self.view.changed_at.plus(self.limits.sentinel_settled);
        self.view.counts() && at >= settled
    }

    /// Our own parts were found sound by a look that began since then.
    pub(crate) fn is_looked_at(&self, since: Mono) -> bool {
        self.looked.is_some_and(|began| began >= since)
    }

    /// Damage that was found within the time that it keeps failures from counting.
    pub(crate) fn damage(&self, now: Mono) -> Option<&Damage> {
        let lately = |damage: &&Damage| now.since(damage.at) < self.limits.sentinel_settled;
        self.damage.as_ref().filter(lately)
    }

    /// Owners of the family's datapath since its lanes were disarmed, where none worked since.
    pub(crate) fn changed_hands(&self, family: Family) -> Option<DatapathOwners> {
        let ownership = &self.owners[family as usize];
        ownership.disarmed.map(|_| ownership.present)
    }

    /// Owners of the family's datapath, as far as they are known.
    pub(crate) fn owners(&self, family: Family) -> DatapathOwners {
        self.owners[family as usize].known.unwrap_or_default()
    }

    /// Whether a lane of this family ever worked.
    pub(crate) fn is_armed(&self, family: Family) -> bool {
        lanes_of(family).any(|lane| self.lane(lane).armed)
    }
}

impl Ownership {
    /// A probe passed: those present for a while are the owners, and one that is gone is one no
    /// more.
    fn prove(&mut self, trace: &ProbeTrace, limits: &Limits) {
        // The host's path may work while the others wait for the new owner.
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
pub(crate) fn lanes_of(family: Family) -> impl Iterator<Item = Lane> {
    Transport::ALL.into_iter().flat_map(move |transport| {
        ProbePath::ALL.into_iter().map(move |path| Lane {
            path,
            family,
            transport,
        })
    })
}
