//! What the upstream's voice is worth. It says whether a sync loop keeps up; what the sentinel's
//! generations measure is better, so they outweigh it where there are any. Where there are none it
//! is believed as load balancers would have believed it without pathproof.

use std::time::Duration;

use super::judge::{Case, Finding};
use crate::cause::{Cause, State};
use crate::names;
use crate::time::Spoken;
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
        (late.is_some() || unmeasured).then(|| self.finding(State::Stale, voice, late))
    }

    /// The upstream says so alone: worth knowing, where new connections get through.
    pub(super) fn degraded_by_upstream(&self) -> Option<Finding> {
        let voice = self.voice()?;
        self.is_proven()
            .then(|| self.finding(State::Degraded, voice, None))
    }

    fn finding(&self, state: State, voice: &Voice, late: Option<Duration>) -> Finding {
        let family = names::of_family(self.family);
        let span = Spoken(self.now.since(voice.since));
        let said = &voice.said;
        let (cause, mut reason) = match voice.kind {
            Kind::Unhealthy => (
                Cause::UpstreamUnhealthy,
                format!(
                    "{family}: the node's own proxy has said for {span} that it is unhealthy ({said})"
                ),
            ),
            Kind::Silent => (
                Cause::UpstreamSilent,
                format!("{family}: the node's own proxy has not answered for {span} ({said})"),
            ),
        };
        match (late, state) {
            (Some(late), _) => reason.push_str(&format!(
                "; its rules have not followed the sentinel for {}",
                Spoken(late)
            )),
            (None, State::Degraded) => {
                reason.push_str("; connections get through, and changes may not be followed");
            }
            (None, _) => {}
        }
        Finding::caused(state, cause, reason)
    }
}
