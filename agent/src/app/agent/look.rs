//! Looking at the kernel's evidence, and how often.

use std::time::Duration;

use agent_common::service::Family;

use super::Agent;
use crate::datapath::sample::Look;
use crate::domain::evidence::{CountDelta, Directory as _, Sample, Sighting};
use crate::domain::time::Mono;
use crate::domain::verdict::{LastVerdict, State};
use crate::report::SIGHTINGS_SHOWN;

/// The kernel's evidence is looked at this often.
pub(in crate::app) const TICK: Duration = Duration::from_millis(250);
/// And this often while all is well and no connection came since the last look: an idle node pays
/// half, and nothing that takes seconds to confirm comes late.
const REST: Duration = Duration::from_millis(500);
/// Endpoints that left long ago are looked for this often.
const EXPIRE: Duration = Duration::from_secs(5);

impl Agent {
    /// Looks at the kernel's evidence and judges. Returns when to look again.
    pub(in crate::app) fn tick(&mut self, now: Mono) -> Duration {
        let mut calm = true;
        if self.expired.is_none_or(|at| now.since(at) >= EXPIRE) {
            self.expired = Some(now);
            self.expire(now);
        }
        if let Some(look) = self.look(now) {
            let sample = self.sample(look, now);
            calm = sample.anomalies.is_empty() && self.is_our_own(&sample.counts);
            self.metrics.record(&sample.counts, &self.planner);
            self.ledger.absorb(&sample, &self.planner);
        }
        self.publish(now);
        if calm && self.is_well() { REST } else { TICK }
    }

    /// Nobody but the sentinel was dialled.
    fn is_our_own(&self, counts: &[CountDelta]) -> bool {
        let service = |count: &CountDelta| self.planner.service(count.service);
        let own = |count| service(count).is_some_and(|info| info.sentinel);
        counts.iter().all(own)
    }

    /// Everything is proven, nothing fails, and that is what is answered.
    pub(super) fn is_well(&self) -> bool {
        let proven = |last: &LastVerdict| last.state == State::Proven;
        let failing = |family| self.ledger.sentinel().is_failing(family);
        self.last.as_ref().is_some_and(proven)
            && self.kept == [200; 2]
            && !Family::ALL.into_iter().any(failing)
    }

    /// The node is Broken or Stale already, whatever is answered for it: 200 in audit.
    pub(in crate::app) fn is_accused(&self) -> bool {
        let accused = |last: &LastVerdict| matches!(last.state, State::Broken | State::Stale);
        self.last.as_ref().is_some_and(accused)
    }

    fn look(&mut self, now: Mono) -> Option<Look> {
        let planner = &self.planner;
        let left_since = |service, address: &[u8; 16], port| {
            planner
                .left_since(service, *address, port)
                .map(|Mono(at)| at)
        };
        match self.observer.as_mut()?.look(now, left_since) {
            Ok(look) => {
                self.eyesight.unread = None;
                Some(look)
            }
            Err(error) => {
                let why = error.to_string();
                if self.eyesight.unread.as_ref() != Some(&why) {
                    tracing::warn!(%why, "the evidence cannot be read");
                }
                self.eyesight.unread = Some(why);
                None
            }
        }
    }

    /// A new connection to an endpoint that had left: how long the rules keep it.
    fn measure_left(&self, sighting: &Sighting) {
        let Some(left) = sighting.left_since else {
            return;
        };
        if let Some(info) = self.planner.service(sighting.service) {
            let age = sighting.arrived.since(left);
            self.metrics.record_left(info.family, age);
        }
    }

    /// Counts what was seen of UDP Services, and gives what is left: the connections.
    fn take_datagrams(&self, look: &mut Look) -> Vec<CountDelta> {
        let is_udp = |delta: &CountDelta| {
            let info = self.planner.service(delta.service);
            info.is_some_and(|info| info.udp)
        };
        let counts = std::mem::take(&mut look.counts);
        let (datagrams, connections) = counts.into_iter().partition::<Vec<_>, _>(is_udp);
        let answers = std::mem::take(&mut look.answers);
        let answers = answers.iter().map(|of| (of.service, of.after_us));
        self.metrics
            .record_datagrams(&datagrams, answers, &self.planner);
        connections
    }

    fn sample(&mut self, mut look: Look, now: Mono) -> Sample {
        self.eyesight.note(&look, now);
        self.anomalies += look.sightings.len() as u64;
        for sighting in &look.sightings {
            self.measure_left(sighting);
            self.sightings.push_front(sighting.clone());
        }
        self.sightings.truncate(SIGHTINGS_SHOWN);
        let counts = self.take_datagrams(&mut look);
        let sample = Sample {
            at: now,
            counts,
            anomalies: std::mem::take(&mut look.sightings),
            last_proofs: look.last_proofs,
            observer: self.eyesight.health(
                self.observer.as_ref(),
                self.planner.missing(),
                self.blind.as_deref(),
                self.no_pins.as_deref(),
                now,
            ),
        };
        self.see_outside(&std::mem::take(&mut look.outside), &sample.observer);
        self.faults = Some(look);
        sample
    }
}
