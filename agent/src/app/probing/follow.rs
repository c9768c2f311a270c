//! What the agent does with what comes from the view and from the sentinel's parts.

use std::time::Duration;

use super::addresses::{generations, taken};
use super::keeper::{Facts, News};
use super::{Content, Message};
use crate::app::agent::Agent;
use crate::datapath::probe_hooks::ProbeHooks;
use agent_core::expect::sentinel::sentinel;
use agent_core::limits::Limits;
use agent_core::probes::{KernelFacts, ProbeOutcome, VoidReason, classify};
use agent_core::time::Mono;
use agent_core::trace::{ProbeTrace, Transport};

/// While probes begin to fail, devices and programs are looked at this often.
const SUSPICION: Duration = Duration::from_millis(100);
/// And this often when they go on failing, or say nothing for reasons that lie there.
const LASTING: Duration = Duration::from_secs(2);
/// Failures in a row that are judged at once; the last of them may confirm.
const SOON: u32 = 5;
/// What the kernel said of itself this long ago says nothing.
const FACTS_AGE: Duration = Duration::from_secs(15);

impl Agent {
    /// The view changed: what it says of the sentinel now.
    pub(in crate::app) fn follow_sentinel(&mut self, now: Mono) {
        let Some(probing) = &mut self.probing else {
            return;
        };
        if !self.view.is_synced() {
            return;
        }
        let state = self.view.state(&probing.rule.service);
        let known = probing.found.altered.clone();
        let found = sentinel(&probing.rule, state, self.view.node());
        let before = std::mem::replace(&mut probing.found, found);
        if before != probing.found {
            probing.follow_again();
        }
        if let Some(altered) = &probing.found.altered
            && known.as_ref() != Some(altered)
        {
            tracing::warn!(%altered, "the sentinel is not probed");
        }
        if probing.searched.is_none() && probing.found.exists {
            self.search_cluster();
        }
        let Some(probing) = &mut self.probing else {
            return;
        };
        let view = probing.view(now);
        let ledger = self.ledger.sentinel_mut();
        ledger.view_changed(now, view);
        ledger.follow_source(self.source_silent, self.view.node(), now);
        for (family, transport, generation) in generations(&probing.found) {
            ledger.want(family, transport, generation, now);
        }
        probing.wish(self.view.node());
        probing.retarget();
    }

    /// Looks whether the cluster uses the sentinel's addresses, where the view changed.
    fn search_cluster(&mut self) {
        let Some(probing) = &mut self.probing else {
            return;
        };
        if !probing.found.exists || probing.searched == Some(self.view_changes) {
            return;
        }
        probing.searched = Some(self.view_changes);
        let taken = taken(&probing.settings, &probing.rule.service, &self.view);
        if let Some(why) = taken.as_ref().filter(|_| taken != probing.taken) {
            tracing::warn!(%why, "the sentinel is off; the node is judged by real traffic alone");
            probing.stop();
        }
        probing.taken = taken;
    }

    /// Every few seconds: what ended is begun again, and what the cluster took is left to it.
    pub(in crate::app) fn check_sentinel(&mut self, now: Mono) {
        let before = self
            .probing
            .as_ref()
            .and_then(|probing| probing.taken.clone());
        self.search_cluster();
        let Some(probing) = &self.probing else {
            return;
        };
        if probing.taken != before {
            self.follow_sentinel(now);
        } else if probing.taken.is_none() && probing.ready.is_some() && !probing.runs() {
            self.start_sentinel(now);
        }
    }

    /// Something came from the sentinel's parts.
    pub(in crate::app) fn take_in(&mut self, message: Message, now: Mono) {
        match message.0 {
            Content::Trace(trace) => self.absorb_trace(&trace, now),
            Content::News(news) => self.hear(news, now),
            Content::Reading(reading) => self.read_afresh(reading, now),
        }
    }

    fn hear(&mut self, news: News, now: Mono) {
        let Some(probing) = &mut self.probing else {
            return;
        };
        match news {
            News::Ready(devices) => {
                probing.ready = Some(devices);
                self.start_sentinel(now);
            }
            News::Off(why) => {
                probing.ready = None;
                self.turn_sentinel(Some(why), now);
            }
            News::Damaged(sentence) => {
                if probing.damage.as_ref() != Some(&sentence) {
                    tracing::warn!(%sentence, "the sentinel's devices are damaged");
                    probing.damage = Some(sentence.clone());
                }
                self.ledger.sentinel_mut().damaged(now, sentence);
            }
            News::Facts(facts) => return self.learn(facts, now),
        }
        self.publish(now);
    }

    fn learn(&mut self, facts: Facts, now: Mono) {
        let Some(probing) = &mut self.probing else {
            return;
        };
        probing.kernel.forwarding = facts.forwarding;
        probing.told = Some(now);
        self.look_at_shape(facts.owners, now);
        let Some(probing) = &mut self.probing else {
            return;
        };
        if let Some(began) = facts.sound_since {
            probing.damage = None;
            probing.sound = Some(began);
            self.conclude_look();
        }
    }

    fn start_sentinel(&mut self, now: Mono) {
        let (Some(probing), Some(observer)) = (&mut self.probing, &mut self.observer) else {
            return self.turn_sentinel(Some("there is no observer".to_owned()), now);
        };
        let started = probing.start(observer);
        self.turn_sentinel(started.err(), now);
    }

    /// The sentinel is on from now on, or off for a reason.
    fn turn_sentinel(&mut self, off: Option<String>, now: Mono) {
        let Some(probing) = &mut self.probing else {
            return;
        };
        match &off {
            Some(why) if off != probing.off => {
                tracing::warn!(%why, "the sentinel is off; the node is judged by real traffic alone");
            }
            None if probing.off.is_some() => tracing::info!("the sentinel is on again"),
            _ => {}
        }
        if off.is_some() {
            probing.stop();
        }
        probing.off = off;
        let view = probing.view(now);
        self.ledger.sentinel_mut().view_changed(now, view);
        probing.retarget();
    }

    fn absorb_trace(&mut self, trace: &ProbeTrace, now: Mono) {
        let Some(probing) = &self.probing else {
            return;
        };
        let old = probing.told.is_none_or(|at| now.since(at) > FACTS_AGE);
        let kernel = if old {
            KernelFacts::default()
        } else {
            probing.kernel
        };
        let outcome = classify(trace, &kernel, &Limits::default());
        let ledger = self.ledger.sentinel_mut();
        let before = ledger.failures(trace.lane);
        let outcome = ledger.absorb(trace, outcome, now);
        let after = ledger.failures(trace.lane);
        if let Some(lag) = ledger.measured()
            && trace.lane.transport == Transport::Tcp
        {
            self.metrics.record_rotation(trace.lane.family, lag);
        }
        self.metrics.record_probe(trace, name(outcome));
        if after > 0 {
            let pause = if after <= SOON { SUSPICION } else { LASTING };
            self.suspect(pause, now);
        } else if is_own_fault(outcome) {
            self.suspect(LASTING, now);
        }
        // Everything else waits for the next turn: a path that always fails must cost no more than
        // one that works.
        if before != after && after <= SOON {
            tracing::debug!(
                ?trace,
                outcome = name(outcome),
                "a path begins or ceases to fail"
            );
            self.publish(now);
        }
    }

    /// A probe did not come back: are the sentinel's own parts sound?
    fn suspect(&mut self, pause: Duration, now: Mono) {
        let suspected = self.probing.as_ref().and_then(|probing| probing.suspected);
        // A successor has them.
        if suspected.is_some_and(|at| now.since(at) < pause) || self.is_succeeded() {
            return;
        }
        let Some(probing) = &mut self.probing else {
            return;
        };
        probing.suspected = Some(now);
        probing.ask();
        self.ask_afresh(now);
        let Some(probing) = &mut self.probing else {
            return;
        };
        if probing.hooks.as_ref().is_none_or(ProbeHooks::stand) {
            return;
        }
        let sentence = "a program of the sentinel's was detached by something else".to_owned();
        tracing::warn!(%sentence, "the sentinel's programs are put back");
        self.ledger.sentinel_mut().damaged(now, sentence);
        probing.hooks = None;
        self.start_sentinel(now);
    }
}

/// Whether a probe was lost between our own devices, where only our own programs answer it. It says
/// nothing of the node, and without a look at them none would again.
fn is_own_fault(outcome: ProbeOutcome) -> bool {
    matches!(
        outcome,
        ProbeOutcome::Void(
            VoidReason::ControlFailed | VoidReason::NotEchoed | VoidReason::NotArrived
        )
    )
}

/// Label of an outcome in metrics.
fn name(outcome: ProbeOutcome) -> &'static str {
    match outcome {
        ProbeOutcome::Passed { .. } => "passed",
        ProbeOutcome::Failed(cause) => cause.name(),
        ProbeOutcome::Void(_) => "void",
    }
}
