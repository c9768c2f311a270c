//! What the upstream's voice is worth. It says whether a sync loop keeps up; what the sentinel's
//! generations measure is better, so they outweigh it where there are any. Where there are none it
//! is believed as load balancers would have believed it without pathproof.

use std::time::Duration;

use super::finding::{Evidence, Finding, Rule};
use super::judge::Case;
use crate::cause::Cause;
use crate::upstream::{Kind, Voice};

impl<'a> Case<'a> {
    /// What the upstream says of this family.
    fn voice(&self) -> Option<&'a Voice> {
        let voice = self.inputs.upstream.as_ref()?;
        voice.families[self.family as usize].then_some(voice)
    }

    /// The upstream says that its rules are late, and nothing that was measured says otherwise; or
    /// both say so. One that is silent may be upgraded: rules that lag meanwhile are as late as any.
    pub(super) fn stale_by_upstream(&self) -> Option<Finding> {
        let voice = self.voice().filter(|voice| voice.kind == Kind::Unhealthy)?;
        let late = self.late_generation();
        // While the API is away it says so on every node at once, and nothing has to be followed.
        let unmeasured = !self.follows() && !self.ledger.sentinel().is_source_away();
        (late.is_some() || unmeasured).then(|| self.finding(Rule::StaleByUpstream, voice, late))
    }

    /// The upstream says so alone: worth knowing, where new connections get through.
    pub(super) fn degraded_by_upstream(&self) -> Option<Finding> {
        let voice = self.voice()?;
        self.is_proven()
            .then(|| self.finding(Rule::DegradedByUpstream, voice, None))
    }

    fn finding(&self, rule: Rule, voice: &Voice, late: Option<Duration>) -> Finding {
        let cause = match voice.kind {
            Kind::Unhealthy => Cause::UpstreamUnhealthy,
            Kind::Silent => Cause::UpstreamSilent,
        };
        let evidence = Evidence::upstream(voice.kind, &voice.said, voice.since, late);
        Finding::caused(rule, cause, evidence)
    }
}
