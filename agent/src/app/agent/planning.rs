//! From the view to the maps, and who of two agents keeps them.

use agent_common::service::Family;

use super::Agent;
use crate::datapath::Observer;
use agent_core::plan::{MapChange, Planner};
use agent_core::time::Mono;
use agent_core::view::Applied;

impl Agent {
    /// Nothing is planned before the view is whole: what it does not know yet must not be taken
    /// out of maps that a former agent filled.
    pub(super) fn plan(&mut self, applied: &Applied, now: Mono) -> Vec<MapChange> {
        if let Some(plan) = self.plan_of_successor(now) {
            plan
        } else if applied.synced {
            self.adopt(now)
        } else if self.view.is_synced() {
            self.planner.plan(&self.view, applied, now)
        } else {
            Vec::new()
        }
    }

    /// What a successor makes of every plan: nothing while it keeps the maps, and once it is gone one
    /// that takes them over as it left them.
    fn plan_of_successor(&mut self, now: Mono) -> Option<Vec<MapChange>> {
        if self.is_planned_by_another() {
            self.unread_maps = true;
            return Some(Vec::new());
        }
        (self.unread_maps && self.view.is_synced()).then(|| self.adopt(now))
    }

    fn adopt(&mut self, now: Mono) -> Vec<MapChange> {
        if std::mem::take(&mut self.unread_maps) {
            let sentinel = self.config.sentinel.as_ref().map(|of| of.service.clone());
            self.planner = Planner::new().with_sentinel(sentinel);
        }
        if let Some(succession) = &self.succession {
            succession.plan();
        }
        let installed = self.observer.as_ref().map(Observer::installed);
        self.planner
            .adopt(&self.view, installed.unwrap_or_default(), now)
    }

    /// Endpoints that left long ago go; and whose successor died has its maps back.
    pub(super) fn expire(&mut self, now: Mono) {
        match self.plan_of_successor(now) {
            Some(plan) => {
                self.program(&plan);
                self.follow_plan();
            }
            None => {
                let plan = self.planner.expire(&self.view, now);
                self.program(&plan);
            }
        }
    }

    /// What is told of Services is what the plan has.
    pub(super) fn follow_plan(&mut self) {
        self.families = Family::ALL.map(|family| self.planner.has_frontends(family));
        self.metrics.retain(&self.planner);
    }

    /// Applies a plan, and the plans that follow from what found no place.
    pub(super) fn program(&mut self, plan: &[MapChange]) {
        let Some(observer) = &mut self.observer else {
            return;
        };
        let mut outcome = observer.apply(plan);
        // Each round gives up at least one entry, so this ends; one round nearly always suffices.
        loop {
            if let Some(error) = &outcome.error {
                tracing::warn!(%error, "a map could not be changed");
            }
            if outcome.full.is_empty() {
                return;
            }
            let next = self.planner.report_full(&self.view, &outcome.full);
            outcome = observer.apply(&next);
        }
    }
}
