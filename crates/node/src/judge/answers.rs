//! The answers that follow from a verdict, and what holds back a 503.

use std::sync::Arc;

use pathproof_facts::cause::State;
use pathproof_judge::answer::{Endpoint, Refuses, UnknownPolicy, answer, is_eligible};
use pathproof_judge::verdict::Verdict;

use super::Judge;
use crate::effect::{Answers, Effect, Effects, Notice, UnservedServices};

impl Judge {
    pub(super) fn answer(&mut self, verdict: &Verdict, effects: &mut Effects) -> Answers {
        let policy = self.settings.unknown_policy;
        let audit = self.switches.audit(self.settings.enforcement);
        let served = self.damping.step(verdict, policy);
        let broken_services = self.broken_services(served.healthy, effects);
        let anchor = &self.anchor;
        // A 503 for an unknown verdict is due to the setting `unknown_policy`, so the fleet brake does not
        // apply.
        let unknown = verdict.state == State::Unknown && policy == UnknownPolicy::Closed;
        let fails = !served.healthy && !unknown;
        let certain = verdict.finding.is_certain();
        let held = self.brake.step(fails, certain, verdict.at);
        let held = held.filter(|_| audit.is_none());
        let services_fail = !broken_services.is_empty() && audit.is_none();
        let services_held = self.brake.hold_services(services_fail, verdict.at);
        let limited = verdict.eligibility.is_limited();
        let leaving_held = self.leaving_brake.hold_leaving(limited, verdict.at);
        let refuses = match (&audit, &held) {
            (Some(_), _) => Refuses::Nothing,
            (None, Some(_)) => Refuses::BootOnly,
            (None, None) => Refuses::All,
        };
        let waits = self.waits_for_boot || verdict.state == State::Starting;
        let eligible = leaving_held.is_some() || is_eligible(&verdict.eligibility, policy);
        let answer_of =
            |endpoint| answer(endpoint, verdict, &served, waits, eligible, refuses, anchor);
        Answers {
            healthz: answer_of(Endpoint::Healthz),
            livez: answer_of(Endpoint::Livez),
            audit,
            held,
            leaving_held,
            services_held,
            broken_services,
        }
    }

    fn broken_services(&mut self, healthy: bool, effects: &mut Effects) -> UnservedServices {
        if !healthy {
            // The node's fault explains the Services' failures: forget them.
            self.ledger.external_failures.excuse();
        }
        let broken = self.ledger.external_failures.broken(self.now);
        if *broken != *self.broken {
            let new = broken
                .iter()
                .filter(|service| !self.broken.contains(service));
            let notice = new
                .cloned()
                .map(|(name, family)| Notice::Unserved(name, family));
            effects.extend(notice.map(Effect::Log));
            self.broken = broken.into();
        }
        Arc::clone(&self.broken)
    }
}
