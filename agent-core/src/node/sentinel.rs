//! The sentinel as the node follows it: what of it there is to probe, whether pathproof's own parts
//! are sound, and what each probe means. What the devices and programs are is the shell's.

use std::hash::Hasher as _;
use std::time::Duration;

use agent_common::service::{FAMILIES, Family};
use serde::{Deserialize, Serialize};

use super::judge::Judge;
use crate::cause::{Cause, ProbeCause};
use crate::effect::{
    DesiredDevices, Effect, Effects, Measurement, Notice, ReadEffect, SentinelEffect,
};
use crate::event::{KernelState, Parts};
use crate::expect::sentinel::{Contest, Sentinel, SentinelFamily, SentinelRule};
use crate::ledger::Reading;
use crate::limits::{
    FAILING_INTERVAL, KERNEL_AGE, READING_DOUBLES, READING_SERVES, SOON, SUSPECT_INTERVAL,
    TABLE_LOSING_INTERVAL,
};
use crate::names;
use crate::probes::{KernelFacts, ProbeOutcome, SentinelView, VoidReason, classify};
use crate::time::Mono;
use crate::trace::{ProbeTrace, Transport};

/// The sentinel as far as the node follows it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Watched {
    rule: SentinelRule,
    /// The sentinel in the cluster view.
    found: Sentinel,
    parts: Own,
    #[serde(skip)]
    desired: DesiredDevices,
    /// An address of its own that the cluster uses otherwise, in words.
    taken: Option<String>,
    kernel: Option<(KernelFacts, Mono)>,
    /// When its parts were last checked because probes failed.
    suspected: Option<Mono>,
    /// Damage that was logged last.
    damage: Option<String>,
    /// Uncached reads of the sentinel; `None` if the agent cannot make them.
    recheck: Option<Recheck>,
    /// When the last check began that found its parts sound.
    sound: Option<Mono>,
}

/// Devices, programs and prober.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Own {
    /// The devices are not made yet.
    Unmade,
    /// The devices are there, programs and prober are not running.
    Ready,
    /// Everything runs.
    Running,
    /// They cannot be had, in words.
    Off(String),
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Recheck {
    asked: Option<Mono>,
    /// When the question was asked that was answered last.
    answered: Option<Mono>,
    /// Difference between the sentinel and what the watches reported of it.
    differs: Option<String>,
    /// Readings in a row that differed.
    #[serde(default, skip_serializing_if = "is_zero")]
    differed: u32,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

impl Recheck {
    /// Least time between two questions. Where watches lag for long every node has this difference, and
    /// all of them ask the same API server.
    fn pause(&self) -> Duration {
        READING_SERVES * (1 << self.differed.saturating_sub(1).min(READING_DOUBLES))
    }
}

/// Overall condition of the sentinel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition<'a> {
    /// Its Service is not in the cluster, or the view is not complete.
    Absent,
    /// It is not as it was installed.
    Altered(&'a str),
    /// It cannot be probed, for reasons of pathproof's own.
    Off(&'a str),
    /// Its devices are being made.
    Settling,
    /// It is probed.
    Probing,
}

impl Watched {
    pub(super) fn new(rule: SentinelRule, rereads: bool) -> Self {
        Self {
            rule,
            found: Sentinel::default(),
            parts: Own::Unmade,
            desired: DesiredDevices::default(),
            taken: None,
            kernel: None,
            suspected: None,
            damage: None,
            recheck: rereads.then(Recheck::default),
            sound: None,
        }
    }

    /// The sentinel in the cluster view.
    pub fn found(&self) -> &Sentinel {
        &self.found
    }

    /// Whether probes are to be expected.
    pub fn exists(&self) -> bool {
        self.found.exists && self.off().is_none()
    }

    /// Reason why nothing is probed although the sentinel is there, in words.
    pub fn off(&self) -> Option<&str> {
        let parts = match &self.parts {
            Own::Off(why) => Some(why),
            Own::Unmade | Own::Ready | Own::Running => None,
        };
        self.taken.as_ref().or(parts).map(String::as_str)
    }

    /// Whether probes are sent.
    pub fn is_running(&self) -> bool {
        self.parts == Own::Running && self.taken.is_none()
    }

    pub fn condition(&self) -> Condition<'_> {
        if let Some(altered) = &self.found.altered {
            Condition::Altered(altered)
        } else if !self.found.exists {
            Condition::Absent
        } else if let Some(why) = self.off() {
            Condition::Off(why)
        } else if !self.is_running() {
            Condition::Settling
        } else {
            Condition::Probing
        }
    }

    /// The sentinel in the view, as the ledger takes it.
    fn view(&self, now: Mono) -> SentinelView {
        let differs = self.recheck.as_ref().and_then(|of| of.differs.as_ref());
        let addressed = |found: &SentinelFamily| found.node_address.is_some();
        let families = self.found.families;
        // A Node that is not known, or has no address yet, says nothing.
        let is_known = families.iter().flatten().any(addressed);
        SentinelView {
            exists: self.found.exists,
            off: self.off().map(str::to_owned),
            altered: differs.or(self.found.altered.as_ref()).cloned(),
            identity: self.identity(),
            changed_at: now,
            unaddressed: families
                .map(|family| is_known && family.is_some_and(|family| !addressed(&family))),
        }
    }

    /// The same after a restart, and with another compiler: it is written down.
    pub(super) fn identity(&self) -> u64 {
        let mut hasher = fnv::FnvHasher::default();
        let (_, families) = self.found.fixed();
        hasher.write(&serde_json::to_vec(&families).unwrap_or_default());
        hasher.finish()
    }

    /// Once made, the devices stay while the sentinel is deleted or edited.
    fn desire(&mut self) -> DesiredDevices {
        let mut families = Family::ALL.to_vec();
        families.retain(|family| self.found.families[*family as usize].is_some());
        self.desired.needed = (self.desired.needed || !families.is_empty()) && self.taken.is_none();
        if !families.is_empty() {
            self.desired.families = families;
        }
        self.desired.clone()
    }

    /// Addresses that the cluster uses otherwise are left to it.
    fn take_addresses(&mut self, taken: Option<String>, effects: &mut Effects) {
        if self.taken == taken {
            return;
        }
        if let Some(why) = &taken {
            effects.push(Effect::Log(Notice::SentinelOff(why.clone())));
            effects.push(Effect::Sentinel(SentinelEffect::Stop));
        }
        // The devices go with the addresses, and are made anew without the conflict. Those that could
        // not be had before may not be had then either, which is not reported a second time.
        if !matches!(self.parts, Own::Off(_)) {
            self.parts = Own::Unmade;
        }
        self.taken = taken;
    }

    /// Has programs and prober started, unless the devices are about to be removed. Until the answer
    /// comes, parts that were off are off.
    fn start(&mut self, parts: Own, effects: &mut Effects) {
        if self.taken.is_some() {
            return;
        }
        if !matches!(self.parts, Own::Off(_)) {
            self.parts = parts;
        }
        effects.push(Effect::Sentinel(SentinelEffect::Start { anew: false }));
    }

    /// Facts last read of the kernel, if that is not too long ago.
    fn kernel(&self, now: Mono) -> Option<KernelFacts> {
        let young = |(_, read): &(KernelFacts, Mono)| now.since(*read) <= KERNEL_AGE;
        self.kernel.filter(young).map(|(facts, _)| facts)
    }
}

impl Judge {
    /// The view changed: what it says of the sentinel now.
    pub(super) fn follow_sentinel(&mut self, effects: &mut Effects) {
        let Some(watched) = self.sentinel.as_mut().filter(|_| self.facts.synced) else {
            return;
        };
        let found = self.facts.sentinel.clone();
        let before = std::mem::replace(&mut watched.found, found);
        if let Some(published) = watched.found.fleet {
            let wall = self.anchor.wall_of(self.now);
            self.brake.record(published, wall, self.now);
        }
        if watched.found.fleet_error != before.fleet_error
            && let Some(error) = &watched.found.fleet_error
        {
            effects.push(Effect::Log(Notice::Ignored(error.clone())));
        }
        let as_watched = |of: &Sentinel| Sentinel {
            contested: Vec::new(),
            ..of.clone()
        };
        if as_watched(&before) != as_watched(&watched.found)
            && let Some(recheck) = &mut watched.recheck
        {
            // The watches reported something: they count again.
            (recheck.differs, recheck.differed) = (None, 0);
        }
        if let Some(altered) = &watched.found.altered
            && before.altered.as_ref() != Some(altered)
        {
            effects.push(Effect::Log(Notice::Altered(altered.clone())));
        }
        let new = watched.found.contested.iter();
        let known = |lane| before.contested.iter().any(|of| of.lane == lane);
        for Contest { lane, rival, .. } in new.filter(|of| !known(of.lane)) {
            let family = names::of_family(lane.family);
            let path = format!("{family} {} ({})", lane.path.name(), lane.transport.name());
            effects.push(Effect::Log(Notice::Contested(path, rival.clone())));
        }
        watched.take_addresses(self.facts.taken.clone(), effects);
        let desired = watched.desire();
        let ledger = &mut self.ledger.sentinel;
        ledger.view_changed(self.now, watched.view(self.now));
        ledger.contested(watched.found.contested.clone(), self.now);
        for (family, transport, generation) in watched.found.generations() {
            ledger.want(family, transport, generation, self.now);
        }
        effects.push(Effect::Sentinel(SentinelEffect::Devices(desired)));
        effects.push(Effect::Sentinel(SentinelEffect::Retarget));
    }

    /// Something came from the sentinel's own parts.
    pub(super) fn parts(&mut self, parts: Parts, effects: &mut Effects) {
        let Some(watched) = &mut self.sentinel else {
            return;
        };
        match parts {
            Parts::Ready if watched.parts == Own::Running => watched.start(Own::Running, effects),
            Parts::Ready | Parts::Ended => watched.start(Own::Ready, effects),
            Parts::Started(None) => self.turn(Own::Running, effects),
            Parts::Started(Some(why)) | Parts::Off(why) => self.turn(Own::Off(why), effects),
            Parts::Damaged(sentence) => {
                if watched.damage.as_ref() != Some(&sentence) {
                    effects.push(Effect::Log(Notice::Damaged(sentence.clone())));
                    watched.damage = Some(sentence.clone());
                }
                self.ledger.sentinel.damaged(self.now, sentence);
            }
            Parts::Detached => {
                let sentence = "another program detached one of the sentinel's BPF programs";
                effects.push(Effect::Log(Notice::Detached));
                self.ledger.sentinel.damaged(self.now, sentence.to_owned());
                effects.push(Effect::Sentinel(SentinelEffect::Start { anew: true }));
            }
            Parts::Kernel(state) => return self.read_kernel(state, effects),
        }
        self.publish(effects);
    }

    /// Facts that keep clients outside from being served, as they were last read.
    pub(super) fn note_obstacles(&mut self) {
        // Without a sentinel nobody reads whether the kernel forwards.
        let read = match &self.sentinel {
            Some(watched) => watched.kernel(self.now).map(|facts| facts.forwarding),
            None => Some([Some(true); FAMILIES]),
        };
        let missing = !self.shape.unhooked.is_empty();
        let unread = self.shape.hooks_unread || self.shape_read.is_none();
        for family in Family::ALL {
            let forwards = read.map(|forwarding| forwarding[family as usize]);
            let reading = match (forwards, missing) {
                (Some(Some(false)), _) => Reading::Present(Cause::ForwardingOff),
                (_, true) => Reading::Present(Cause::ProgramMissing),
                // Where some interfaces forward and others do not, pods may be served.
                (Some(_), false) if !unread => Reading::Absent,
                _ => Reading::Unread,
            };
            self.ledger.obstacle(family, reading, self.now);
        }
    }

    fn read_kernel(&mut self, state: KernelState, effects: &mut Effects) {
        let Some(watched) = &mut self.sentinel else {
            return;
        };
        let forwarding = state.forwarding;
        let facts = KernelFacts {
            forwarding,
            ..KernelFacts::default()
        };
        watched.kernel = Some((facts, self.now));
        effects.push(Effect::Read(ReadEffect::Shape(Some(state.owners))));
        if let Some(began) = state.sound_since {
            watched.damage = None;
            watched.sound = Some(began);
            self.conclude_check();
        }
        self.note_obstacles();
    }

    /// The sentinel is on from now on, or off for a reason.
    fn turn(&mut self, parts: Own, effects: &mut Effects) {
        let Some(watched) = &mut self.sentinel else {
            return;
        };
        let before = std::mem::replace(&mut watched.parts, parts);
        match (&before, &watched.parts) {
            (Own::Off(old), Own::Off(why)) if old == why => {}
            (_, Own::Off(why)) => effects.push(Effect::Log(Notice::SentinelOff(why.clone()))),
            (Own::Off(_), _) => effects.push(Effect::Log(Notice::SentinelOn)),
            _ => {}
        }
        if matches!(watched.parts, Own::Off(_)) {
            effects.push(Effect::Sentinel(SentinelEffect::Stop));
        }
        let view = watched.view(self.now);
        self.ledger.sentinel.view_changed(self.now, view);
        effects.push(Effect::Sentinel(SentinelEffect::Retarget));
    }

    /// A probe ended.
    pub(super) fn trace(&mut self, trace: Box<ProbeTrace>, effects: &mut Effects) {
        let Some(watched) = &self.sentinel else {
            return;
        };
        let facts = KernelFacts {
            table_full: self.ledger.sentinel.conntrack.is_full(self.now),
            ..watched.kernel(self.now).unwrap_or_default()
        };
        let outcome = classify(&trace, &facts, &self.settings.limits);
        // While the sentinel is read as another one no failure counts, so the next reading has to end it.
        let recheck = watched.recheck.as_ref();
        let failed = matches!(outcome, ProbeOutcome::Failed(_));
        let is_in_doubt = failed && recheck.is_some_and(|of| of.differs.is_some());
        let lane = trace.lane;
        let ledger = &mut self.ledger.sentinel;
        let before = ledger.failures(lane);
        let outcome = ledger.absorb(&trace, outcome, self.now);
        let after = ledger.failures(lane);
        let lag = ledger.measured.filter(|_| lane.transport == Transport::Tcp);
        effects.push(Effect::Measure(Measurement::Probe {
            trace,
            outcome,
            lag,
        }));
        if after <= SOON && outcome == ProbeOutcome::Failed(ProbeCause::LostBeforeLeaving) {
            self.follow_table(TABLE_LOSING_INTERVAL, effects);
        }
        if after > 0 {
            self.watch_drops(effects);
        }
        if after > 0 && after <= SOON {
            self.suspect(SUSPECT_INTERVAL, effects);
        } else if after > 0 || is_in_doubt || is_own_fault(outcome) {
            self.suspect(FAILING_INTERVAL, effects);
        }
        // Everything else waits for the next sample: a path that always fails must cost no more than
        // one that works.
        if before != after && after <= SOON {
            effects.push(Effect::Log(Notice::Lane(outcome.name())));
            self.publish(effects);
        }
    }

    /// A probe did not come back: are the sentinel's own parts sound?
    fn suspect(&mut self, pause: Duration, effects: &mut Effects) {
        let accused = self.is_accused();
        // A successor has them.
        let Some(watched) = self.sentinel.as_mut().filter(|_| !self.successor.exists()) else {
            return;
        };
        let lately = |at: Mono| self.now.since(at) < pause;
        if watched.suspected.is_some_and(lately) {
            return;
        }
        let before = watched.suspected.replace(self.now);
        effects.push(Effect::Sentinel(SentinelEffect::Check));
        if let Some(recheck) = &mut watched.recheck
            && before.is_none_or(|at| self.now.since(at) >= READING_SERVES)
        {
            // Probes passed meanwhile: this is another question.
            recheck.differed = 0;
        }
        // A verdict that holds needs no proof.
        if let Some(recheck) = watched.recheck.as_mut().filter(|_| !accused)
            && recheck
                .asked
                .is_none_or(|at| self.now.since(at) >= recheck.pause())
        {
            recheck.asked = Some(self.now);
            effects.push(Effect::Sentinel(SentinelEffect::Reread));
        }
    }

    /// The API server answered, or did not: a difference stands until it is answered again.
    pub(super) fn rechecked(&mut self, began: Mono, differs: Option<bool>, effects: &mut Effects) {
        let Some(watched) = &mut self.sentinel else {
            return;
        };
        let service = &watched.rule.service;
        if let Some(recheck) = &mut watched.recheck {
            recheck.answered = Some(began);
            let before = recheck.differs.clone();
            match differs {
                Some(true) => {
                    recheck.differed = recheck.differed.saturating_add(1);
                    recheck.differs = Some(format!(
                        "Service {service} or its EndpointSlices differ from what the watches \
                         reported: the watches lag"
                    ));
                }
                Some(false) => (recheck.differs, recheck.differed) = (None, 0),
                None => {}
            }
            if before != recheck.differs {
                effects.push(Effect::Log(Notice::Rechecked(recheck.differs.clone())));
                let view = watched.view(self.now);
                self.ledger.sentinel.view_changed(self.now, view);
            }
        }
        self.conclude_check();
    }

    /// Failures that follow both a check of our own parts and an uncached reading count.
    fn conclude_check(&mut self) {
        let accused = self.is_accused();
        let Some(watched) = &self.sentinel else {
            return;
        };
        let read = match &watched.recheck {
            Some(recheck) if !accused => recheck.answered.map(|at| at.plus(READING_SERVES)),
            _ => watched.sound,
        };
        if let (Some(sound), Some(read)) = (watched.sound, read) {
            self.ledger.sentinel.looked(sound.min(read));
        }
    }
}

/// Whether a probe was lost between our own devices, where only our own programs answer it. It says
/// nothing of the node, and without a check of them none would again.
fn is_own_fault(outcome: ProbeOutcome) -> bool {
    use VoidReason::{ControlFailed, NotArrived, NotEchoed};
    matches!(
        outcome,
        ProbeOutcome::Void(ControlFailed | NotEchoed | NotArrived)
    )
}
