//! What the drain insight is told: whether the node leaves, what came from outside, and whether
//! anything may have come unseen.

use super::Agent;
use crate::datapath::Observer;
use agent_core::drain::Outside;
use agent_core::evidence::{CoverageLoss, ObserverHealth};
use agent_core::time::Mono;

impl Agent {
    /// The node leaves, or does not.
    pub(super) fn follow_drain(&mut self, now: Mono) {
        self.drain.follow(&self.eligibility, now);
        if self.observer.is_none() {
            let why = self.blind.as_deref().unwrap_or_default();
            let why = format!("the observer is not in the kernel: {why}");
            self.drain.cannot_see(&why);
        }
    }

    /// A look brought this from outside.
    pub(super) fn see_outside(&mut self, outside: &Outside, health: &ObserverHealth) {
        let blind = self.unseen(health);
        self.drain.look(outside, blind);
    }

    /// Why connections from outside may come unseen. What is missing of pods' interfaces and of
    /// outcomes does not matter here.
    fn unseen(&self, health: &ObserverHealth) -> Option<String> {
        let observer = self.observer.as_ref()?;
        if !self.config.source.has_services() {
            return Some(
                "Services are not watched, only the sentinel (--view=sentinel)".to_owned(),
            );
        }
        if !self.view.is_synced() && !observer.continues() {
            return Some("the cluster view was never complete".to_owned());
        }
        let missed = health.reasons.iter().find(|loss| hides(loss));
        missed
            .map(ToString::to_string)
            .or_else(|| no_uplink(observer, health))
    }
}

/// Whether what comes from outside may come unseen for this. A source that is over its budget is
/// seen all the same, up to it.
fn hides(loss: &CoverageLoss) -> bool {
    matches!(
        loss,
        CoverageLoss::FrontendsFull { .. }
            | CoverageLoss::ServicesFull { .. }
            | CoverageLoss::PendingFull { .. }
    )
}

/// What says that the interfaces to the outside are not observed: those of default routes.
fn no_uplink(observer: &Observer, health: &ObserverHealth) -> Option<String> {
    let mut uplinks = observer
        .attachments()
        .filter(|attachment| attachment.device.uplink)
        .peekable();
    let left_out = |loss: &CoverageLoss| matches!(loss, CoverageLoss::LeftOut { .. });
    if health.attached == 0 {
        return Some("no interface is observed".to_owned());
    }
    if uplinks.peek().is_none() && health.reasons.iter().any(left_out) {
        return Some(
            "no interface of a default route is observed, and some are left out".to_owned(),
        );
    }
    let detached = uplinks.find(|attachment| attachment.mechanism().is_none())?;
    Some(format!("{} is not observed", detached.device.name))
}
