//! The node's model of the sentinel: what can be probed, whether the sentinel's parts (devices, programs
//! and prober) are sound, and what each probe means. The shell owns the parts.
//!
//! Length: the sentinel's state and all event handlers that change it, which share its private fields.

use std::hash::Hasher as _;
use std::time::Duration;

use pathproof_facts::cause::{Cause, ProbeCause};
use pathproof_facts::limits::{
    FAILING_INTERVAL, KERNEL_AGE, PROMPT_PROBES, SUSPECT_INTERVAL, TABLE_LOSING_INTERVAL,
    UNCACHED_READ_DOUBLINGS, UNCACHED_READ_INTERVAL,
};
use pathproof_facts::names;
use pathproof_facts::time::Mono;
use pathproof_facts::trace::{LaneConflict, ProbeTrace, Transport};
use pathproof_plan::expect::sentinel::{Sentinel, SentinelFamily};
use pathproof_wire::service::{FAMILIES, Family};
use pathproof_witness::ledger::{OUTSIDE, Reading};
use pathproof_witness::probes::{KernelFacts, ProbeOutcome, SentinelView, VoidReason, classify};
use serde::{Deserialize, Serialize};

use super::judge::Judge;
use crate::effect::{
    DesiredDevices, Effect, Effects, Measurement, Notice, ReadEffect, SentinelEffect,
};
use crate::event::{KernelState, SentinelEvent, ViewFacts};

/// State of the sentinel's devices, programs and prober, and of their checks. Only [`ViewFacts`] has the
/// sentinel's objects in the cluster. The ledger keeps damage, and a summary of objects and parts
/// ([`SentinelView`]).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SentinelState {
    #[serde(rename = "parts")]
    prober: ProberState,
    #[serde(skip)]
    desired: DesiredDevices,
    kernel: Option<(KernelFacts, Mono)>,
    /// When its parts were last checked because of failing probes.
    suspected: Option<Mono>,
    /// Uncached reads of the sentinel; `None` if the agent cannot make them.
    recheck: Option<Recheck>,
    /// Start of the last check that found its parts sound.
    sound: Option<Mono>,
}

/// The sentinel in the cluster view, with the state of its devices, programs and prober.
#[derive(Clone, Copy)]
pub struct SentinelStatus<'a> {
    facts: &'a ViewFacts,
    state: &'a SentinelState,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ProberState {
    /// The devices are not made yet.
    Unmade,
    /// The devices exist; programs and prober are not running.
    Ready,
    Running,
    /// The devices cannot be made, or the programs or the prober not started, for this reason.
    Off(String),
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Recheck {
    asked: Option<Mono>,
    /// Request time of the last answered read.
    answered: Option<Mono>,
    /// How the last answered read differs from the reports of the watches.
    differs: Option<String>,
    /// Number of reads in a row that differed.
    differed: u32,
}

impl Recheck {
    /// Minimum time between two reads, doubled while reads differ: if watches lag for long, all
    /// nodes read from the same API server.
    fn pause(&self) -> Duration {
        UNCACHED_READ_INTERVAL * (1 << self.differed.saturating_sub(1).min(UNCACHED_READ_DOUBLINGS))
    }
}

/// Overall state of the sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition<'a> {
    /// Its Service is not in the cluster, or the view is not complete.
    Absent,
    /// Its objects differ from those that were installed.
    Altered(&'a str),
    /// It cannot be probed, because its devices or programs do not work or its addresses are in use.
    Off(&'a str),
    /// Its devices are being made.
    Settling,
    Probing,
}

impl<'a> SentinelStatus<'a> {
    /// The sentinel in the cluster view.
    pub fn found(self) -> &'a Sentinel {
        self.facts.sentinel()
    }

    /// Whether probes should be sent.
    pub fn exists(self) -> bool {
        self.found().exists && self.off().is_none()
    }

    /// Why an existing sentinel is not probed, as a sentence.
    pub fn off(self) -> Option<&'a str> {
        let prober = match &self.state.prober {
            ProberState::Off(why) => Some(why),
            ProberState::Unmade | ProberState::Ready | ProberState::Running => None,
        };
        self.facts.taken.as_ref().or(prober).map(String::as_str)
    }

    pub fn is_running(self) -> bool {
        self.state.prober == ProberState::Running && self.facts.taken.is_none()
    }

    pub fn condition(self) -> Condition<'a> {
        let found = self.found();
        if let Some(altered) = &found.altered {
            Condition::Altered(altered)
        } else if !found.exists {
            Condition::Absent
        } else if let Some(why) = self.off() {
            Condition::Off(why)
        } else if !self.is_running() {
            Condition::Settling
        } else {
            Condition::Probing
        }
    }

    /// The state that the ledger keeps, also for the next agent.
    fn view(self, now: Mono) -> SentinelView {
        let found = self.found();
        let differs = self
            .state
            .recheck
            .as_ref()
            .and_then(|recheck| recheck.differs.as_ref());
        let addressed = |found: &SentinelFamily| found.node_address.is_some();
        // If no family has a node address, the Node may be unknown or may have no address yet.
        let is_known = found.families.iter().flatten().any(addressed);
        SentinelView {
            exists: found.exists,
            off: self.off().map(str::to_owned),
            altered: differs.or(found.altered.as_ref()).cloned(),
            identity: self.identity(),
            changed_at: now,
            unaddressed: found
                .families
                .map(|family| is_known && family.is_some_and(|family| !addressed(&family))),
        }
    }

    /// The state file contains this hash, so it must be the same after a restart and with another compiler.
    pub(super) fn identity(self) -> u64 {
        let mut hasher = fnv::FnvHasher::default();
        let (_, families) = self.found().fixed();
        hasher.write(&serde_json::to_vec(&families).unwrap_or_default());
        hasher.finish()
    }
}

impl SentinelState {
    pub(super) fn new(rereads: bool) -> Self {
        Self {
            prober: ProberState::Unmade,
            desired: DesiredDevices::default(),
            kernel: None,
            suspected: None,
            recheck: rereads.then(Recheck::default),
            sound: None,
        }
    }

    /// Once made, the devices stay while the sentinel is deleted or edited.
    fn desire(&mut self, facts: &ViewFacts) -> DesiredDevices {
        let mut families = Family::ALL.to_vec();
        families.retain(|family| facts.sentinel.families[*family as usize].is_some());
        let needed = self.desired.needed || !families.is_empty();
        self.desired.needed = needed && facts.taken.is_none();
        if !families.is_empty() {
            self.desired.families = families;
        }
        self.desired.tries.clone_from(&facts.tries);
        self.desired.clone()
    }

    fn kernel(&self, now: Mono) -> Option<KernelFacts> {
        let young = |(_, read): &(KernelFacts, Mono)| now.since(*read) <= KERNEL_AGE;
        self.kernel.filter(young).map(|(facts, _)| facts)
    }
}

impl Judge {
    /// The sentinel; `None` if turned off.
    pub(super) fn sentinel(&self) -> Option<SentinelStatus<'_>> {
        let (facts, state) = (&*self.facts, self.sentinel.as_ref()?);
        Some(SentinelStatus { facts, state })
    }

    /// Follows the sentinel in the view; `before` are the previous facts.
    pub(super) fn follow_sentinel(&mut self, before: &ViewFacts, effects: &mut Effects) {
        let facts = &*self.facts;
        let Some(state) = self.sentinel.as_mut().filter(|_| facts.synced) else {
            return;
        };
        let (was, is) = (before.sentinel(), &facts.sentinel);
        if let Some(published) = is.fleet {
            let wall = self.anchor.wall_of(self.now);
            self.brake.record(published, wall, self.now);
            if let Some(leaving) = published.of_leaving() {
                self.leaving_brake.record(leaving, wall, self.now);
            }
        }
        if was.fleet_error != is.fleet_error
            && let Some(error) = &is.fleet_error
        {
            effects.push(Effect::Log(Notice::Ignored(error.clone())));
        }
        let as_watched = |sentinel: &Sentinel| Sentinel {
            conflicts: Vec::new(),
            ..sentinel.clone()
        };
        if as_watched(was) != as_watched(is)
            && let Some(recheck) = &mut state.recheck
        {
            // The watches reported a change, so the result of the uncached read no longer counts.
            (recheck.differs, recheck.differed) = (None, 0);
        }
        if let Some(altered) = &is.altered
            && was.altered.as_ref() != Some(altered)
        {
            // The Service of a new sentinel comes first, then one slice after the other.
            let is_new = !was.exists || was.awaits_slice;
            let notice = match is_new && is.awaits_slice {
                true => Notice::Awaited,
                false => Notice::Altered,
            };
            effects.push(Effect::Log(notice(altered.clone())));
        }
        let known = |lane| was.conflicts.iter().any(|conflict| conflict.lane == lane);
        for LaneConflict { lane, service, .. } in
            is.conflicts.iter().filter(|conflict| !known(conflict.lane))
        {
            let family = names::of_family(lane.family);
            let path = format!("{family} {} ({})", lane.path.name(), lane.transport.name());
            effects.push(Effect::Log(Notice::FrontendConflict(path, service.clone())));
        }
        if before.taken != facts.taken {
            // The cluster uses the addresses for something else, so the sentinel stops using them.
            if let Some(why) = &facts.taken {
                effects.push(Effect::Log(Notice::SentinelOff(why.clone())));
                effects.push(Effect::Sentinel(SentinelEffect::Stop));
            }
            // The devices are removed with their addresses, and made again once the conflict is over. The
            // state Off stays, so that a failure to make devices is reported only once.
            if !matches!(state.prober, ProberState::Off(_)) {
                state.prober = ProberState::Unmade;
            }
        }
        let desired = state.desire(facts);
        let view = SentinelStatus { facts, state }.view(self.now);
        let ledger = &mut self.ledger.sentinel;
        ledger.view_changed(self.now, view);
        ledger.set_conflicts(is.conflicts.clone(), self.now);
        for (family, transport, generation) in is.generations() {
            ledger.want(family, transport, generation, self.now);
        }
        effects.push(Effect::Sentinel(SentinelEffect::Devices(desired)));
        effects.push(Effect::Sentinel(SentinelEffect::Retarget));
    }

    /// Passes a change of the prober, or an uncached read, to the ledger.
    fn view_sentinel(&mut self) {
        if let Some(view) = self.sentinel().map(|sentinel| sentinel.view(self.now)) {
            self.ledger.sentinel.view_changed(self.now, view);
        }
    }

    pub(super) fn sentinel_changed(&mut self, event: SentinelEvent, effects: &mut Effects) {
        let Some(state) = &self.sentinel else {
            return;
        };
        match event {
            SentinelEvent::Ready if state.prober == ProberState::Running => {
                self.start(ProberState::Running, effects);
            }
            SentinelEvent::Ready | SentinelEvent::Ended => self.start(ProberState::Ready, effects),
            SentinelEvent::Started(None) => self.turn(ProberState::Running, effects),
            SentinelEvent::Started(Some(why)) | SentinelEvent::Off(why) => {
                self.turn(ProberState::Off(why), effects);
            }
            SentinelEvent::Damaged(sentence) => {
                // Damage that lasts is logged only once. If a check in between found the parts sound, it is
                // new damage.
                let lasts = |at: Mono| state.sound.is_none_or(|sound| sound < at);
                if !self.ledger.sentinel.is_damage(&sentence, lasts) {
                    effects.push(Effect::Log(Notice::Damaged(sentence.clone())));
                }
                self.ledger.sentinel.damaged(self.now, sentence);
            }
            SentinelEvent::Detached => {
                let sentence = "another program detached one of the sentinel's BPF programs";
                effects.push(Effect::Log(Notice::Detached));
                self.ledger.sentinel.damaged(self.now, sentence.to_owned());
                effects.push(Effect::Sentinel(SentinelEffect::Start { anew: true }));
            }
            SentinelEvent::Kernel(state) => return self.read_kernel(state, effects),
        }
        self.judge_and_publish(effects);
    }

    /// Starts programs and prober, unless the devices are about to be removed. If the prober is off, it
    /// counts as off until the result arrives.
    fn start(&mut self, prober: ProberState, effects: &mut Effects) {
        let is_taken = self.facts.taken.is_some();
        let Some(state) = self.sentinel.as_mut().filter(|_| !is_taken) else {
            return;
        };
        if !matches!(state.prober, ProberState::Off(_)) {
            state.prober = prober;
        }
        effects.push(Effect::Sentinel(SentinelEffect::Start { anew: false }));
    }

    /// Updates the ledger with the last known obstacles between this node and its clients.
    pub(super) fn note_obstacles(&mut self) {
        // Forwarding is read only together with the sentinel's devices. Without a sentinel it counts as on.
        let read = match &self.sentinel {
            Some(own) => own.kernel(self.now).map(|facts| facts.forwarding),
            None => Some([Some(true); FAMILIES]),
        };
        let missing = !self.topology.unhooked.is_empty();
        let unread = self.topology.hooks_unread || self.topology_read.is_none();
        for family in Family::ALL {
            let forwards = read.map(|forwarding| forwarding[family as usize]);
            let looked_up = self.lookups.obstacle(family, self.now);
            let is_over = self.ledger.family(family).obstacle.is_looked_up();
            let reading = match (forwards, missing, looked_up) {
                (Some(Some(false)), ..) => Reading::Present(Cause::ForwardingOff, OUTSIDE),
                (_, true, _) => Reading::Present(Cause::ProgramMissing, OUTSIDE),
                (.., Some((cause, concerns))) => Reading::Present(cause, concerns),
                _ if self.waits_for_lookups(family) => Reading::Unread,
                // If only some interfaces forward, pods may still be served, so this is no obstacle.
                (Some(_), false, None) if !unread => Reading::Absent,
                _ if is_over => Reading::Absent,
                _ => Reading::Unread,
            };
            self.ledger.obstacle(family, reading, self.now);
        }
    }

    fn read_kernel(&mut self, state: KernelState, effects: &mut Effects) {
        let Some(own) = &mut self.sentinel else {
            return;
        };
        let forwarding = state.forwarding;
        let facts = KernelFacts {
            forwarding,
            ..KernelFacts::default()
        };
        own.kernel = Some((facts, self.now));
        effects.push(Effect::Read(ReadEffect::Topology(Some(state.owners))));
        if let Some(began) = state.sound_since {
            own.sound = Some(began);
            self.conclude_check();
        }
        self.note_obstacles();
    }

    /// The sentinel is on from now on, or off for a reason.
    fn turn(&mut self, prober: ProberState, effects: &mut Effects) {
        use ProberState::Off;
        let Some(state) = &mut self.sentinel else {
            return;
        };
        let before = std::mem::replace(&mut state.prober, prober);
        match (&before, &state.prober) {
            (Off(old), Off(why)) if old == why => {}
            (_, Off(why)) => effects.push(Effect::Log(Notice::SentinelOff(why.clone()))),
            (Off(_), _) => effects.push(Effect::Log(Notice::SentinelOn)),
            _ => {}
        }
        if matches!(state.prober, Off(_)) {
            effects.push(Effect::Sentinel(SentinelEffect::Stop));
        }
        self.view_sentinel();
        effects.push(Effect::Sentinel(SentinelEffect::Retarget));
    }

    /// Classifies and records a probe that ended.
    pub(super) fn trace(&mut self, trace: Box<ProbeTrace>, effects: &mut Effects) {
        let Some(state) = &self.sentinel else {
            return;
        };
        let facts = KernelFacts {
            table_full: self.ledger.sentinel.conntrack.is_full(self.now),
            ..state.kernel(self.now).unwrap_or_default()
        };
        let outcome = classify(&trace, &facts, &self.settings.limits);
        // While an uncached read differs from the watches, no failure counts. So another read must confirm
        // the difference or end it.
        let recheck = state.recheck.as_ref();
        let failed = matches!(outcome, ProbeOutcome::Failed(_));
        let is_in_doubt = failed && recheck.is_some_and(|recheck| recheck.differs.is_some());
        let lane = trace.lane;
        let ledger = &mut self.ledger.sentinel;
        let before = ledger.failures(lane);
        let outcome = ledger.absorb(&trace, outcome, self.now);
        let after = ledger.failures(lane);
        let lag = ledger.measured.filter(|_| lane.transport == Transport::Tcp);
        effects.push(Effect::Measure(Measurement {
            trace,
            outcome,
            lag,
        }));
        if after <= PROMPT_PROBES && outcome == ProbeOutcome::Failed(ProbeCause::LostBeforeLeaving)
        {
            self.follow_table(TABLE_LOSING_INTERVAL, effects);
        }
        if after > 0 {
            self.watch_drops(effects);
        }
        if after > 0 && after <= PROMPT_PROBES {
            self.suspect(SUSPECT_INTERVAL, effects);
        } else if after > 0 || is_in_doubt || is_own_fault(outcome) {
            self.suspect(FAILING_INTERVAL, effects);
        }
        // Further failures are judged with the next sample, so that a path that always fails costs no more
        // than one that works.
        if before != after && after <= PROMPT_PROBES {
            effects.push(Effect::Log(Notice::Lane(outcome.name())));
            self.judge_and_publish(effects);
        }
    }

    /// After a failed probe: has the sentinel's parts checked, and the sentinel read uncached.
    fn suspect(&mut self, pause: Duration, effects: &mut Effects) {
        let accused = self.is_accused();
        // With a successor, nothing is checked here: the successor owns the parts.
        let Some(state) = self.sentinel.as_mut().filter(|_| !self.successor.exists()) else {
            return;
        };
        let lately = |at: Mono| self.now.since(at) < pause;
        if state.suspected.is_some_and(lately) {
            return;
        }
        let before = state.suspected.replace(self.now);
        effects.push(Effect::Sentinel(SentinelEffect::Check));
        if let Some(recheck) = &mut state.recheck
            && before.is_none_or(|at| self.now.since(at) >= UNCACHED_READ_INTERVAL)
        {
            // Probes passed since the last check, so the back-off begins again.
            recheck.differed = 0;
        }
        // A verdict that already accuses the node needs no confirmation.
        if let Some(recheck) = state.recheck.as_mut().filter(|_| !accused)
            && recheck
                .asked
                .is_none_or(|at| self.now.since(at) >= recheck.pause())
        {
            recheck.asked = Some(self.now);
            effects.push(Effect::Sentinel(SentinelEffect::Reread));
        }
    }

    /// Records an uncached read. A difference stays until another read is answered.
    pub(super) fn rechecked(&mut self, began: Mono, differs: Option<bool>, effects: &mut Effects) {
        let rule = self.settings.sentinel.as_ref();
        let Some((state, rule)) = self.sentinel.as_mut().zip(rule) else {
            return;
        };
        if let Some(recheck) = &mut state.recheck {
            recheck.answered = Some(began);
            let before = recheck.differs.clone();
            match differs {
                Some(true) => {
                    recheck.differed = recheck.differed.saturating_add(1);
                    recheck.differs = Some(format!(
                        "Service {} or its EndpointSlices differ from what the watches reported: \
                         the watches lag",
                        rule.service
                    ));
                }
                Some(false) => (recheck.differs, recheck.differed) = (None, 0),
                None => {}
            }
            if before != recheck.differs {
                effects.push(Effect::Log(Notice::Rechecked(recheck.differs.clone())));
                self.view_sentinel();
            }
        }
        self.conclude_check();
    }

    /// Passes to the ledger up to which time failures may accuse the node. They need both a check of the
    /// sentinel's parts and an uncached read, so the earlier of the two times counts.
    fn conclude_check(&mut self) {
        let accused = self.is_accused();
        let Some(state) = &self.sentinel else {
            return;
        };
        let read = match &state.recheck {
            Some(recheck) if !accused => recheck.answered.map(|at| at.plus(UNCACHED_READ_INTERVAL)),
            _ => state.sound,
        };
        if let (Some(sound), Some(read)) = (state.sound, read) {
            self.ledger.sentinel.looked(sound.min(read));
        }
    }
}

/// Whether a probe was lost between pathproof's devices, where only pathproof's programs answer. Such
/// a loss is no evidence about the node; probes stay void until a check repairs the devices.
fn is_own_fault(outcome: ProbeOutcome) -> bool {
    use VoidReason::{ControlFailed, NotArrived, NotEchoed};
    matches!(
        outcome,
        ProbeOutcome::Void(ControlFailed | NotEchoed | NotArrived)
    )
}
