//! The sentinel as the referee: whether its lanes pass while real connections fail. What a policy denies
//! is no fault then. Whether a lane's own failures accuse the node is told in `lanes`.

use super::judge::Case;
use super::lanes::MAIN;
use crate::ledger::Lacking;
use crate::probes::{LaneLedger, Run};
use crate::time::Mono;
use crate::trace::{Lane, ProbePath};

impl Case<'_> {
    /// Breadth that is lacking to real connections that arrived since the lane began to fail, and did
    /// not get through; `None` where there are none. While a lane nearer to the pods' own way passes, that is
    /// the referee: one lane may be filtered, and pods denied besides. A nearer lane that others claim is a
    /// referee that cannot be asked.
    pub(super) fn beside(&self, lane: Lane, run: &Run) -> Option<Option<Lacking>> {
        let limits = &self.ledger.limits;
        let streak = self.evidence.streak.as_ref()?;
        let since = streak.arrived >= run.since && self.is_within_proof_age(streak.last);
        let nearer: &[ProbePath] = match lane.path {
            ProbePath::NodePort => &[ProbePath::Pod, ProbePath::OffCluster],
            ProbePath::OffCluster => &[ProbePath::Pod],
            ProbePath::Pod | ProbePath::Host => &[],
        };
        let takes_the_way = |path: &&ProbePath| self.ledger.sentinel.takes_the_way(**path);
        let nearer = nearer.iter().filter(takes_the_way);
        let nearer: Vec<_> = nearer.map(|path| self.tcp(*path).1).collect();
        let passes = |of: &&LaneLedger| {
            let later = of.last_pass > Some(run.since.plus(limits.proof_overlap));
            later && self.is_passing(of)
        };
        let mut scope = self.ledger.scope(self.family, self.now);
        scope.referee_passes |= nearer.iter().any(passes);
        let is_silenced = |of: &&LaneLedger| of.armed && of.claimed && of.run.is_none();
        scope.referee_claimed |= nearer.iter().any(is_silenced);
        since.then(|| streak.lacking_breadth(limits, scope))
    }

    /// The sentinel is the referee: every armed lane of the family that stands for the node passed
    /// since then, and none fails.
    pub(super) fn passes_since(&self, since: Mono) -> bool {
        let mut armed = self.main().filter(|(_, lane)| lane.armed).peekable();
        let passed = |lane: &LaneLedger| lane.last_pass.is_some_and(|at| at > since);
        armed.peek().is_some() && armed.all(|(_, lane)| self.is_passing(lane) && passed(lane))
    }

    /// Whether the referee is silenced: other Services claim the frontends of all lanes that stood for
    /// the node.
    pub(super) fn is_referee_claimed(&self) -> bool {
        let mut main = MAIN.into_iter().map(|path| self.tcp(path));
        main.any(|(_, lane)| lane.armed && lane.claimed) && self.main().all(|(_, lane)| !lane.armed)
    }

    /// Whether only the node's own path is probed in the way of real connections, and passes: Cilium
    /// translates at interfaces that it manages, and the sentinel's are none.
    pub(super) fn is_referee_aside(&self) -> bool {
        let sentinel = &self.ledger.sentinel;
        let aside = MAIN.iter().all(|path| !sentinel.takes_the_way(*path));
        aside && self.is_passing(self.tcp(ProbePath::Host).1)
    }

    /// When a probe of these lanes last passed, whatever became of them since.
    pub(super) fn last_refereed(&self) -> Mono {
        let passes = self.main().filter_map(|(_, lane)| lane.last_pass);
        passes.max().unwrap_or_default()
    }

    pub(super) fn is_passing(&self, lane: &LaneLedger) -> bool {
        let fresh = |at| self.is_within_proof_age(at);
        lane.armed && !lane.claimed && lane.run.is_none() && lane.last_pass.is_some_and(fresh)
    }
}
