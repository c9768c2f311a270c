//! Services, endpoints and pods that come and go, for a soak: of a storm what every cluster does
//! every day.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Result;

use super::deed::Hands;
use super::plan::{Deed, Harmless, Plan, Source, Step};

/// What belongs to it.
const KINDS: [Harmless; 4] = [
    Harmless::EndpointMoved,
    Harmless::ServiceAdded,
    Harmless::PodAdded,
    Harmless::BackendKilled,
];

/// What is still to come, and what lasts.
#[derive(Debug)]
pub struct Churn {
    coming: VecDeque<Step>,
    lasting: Option<(Deed, Duration)>,
}

impl Churn {
    /// Of a seed.
    pub fn of(seed: u64, length: Duration) -> Self {
        let steps = Plan::of(seed, length, Source::Folder).steps.into_iter();
        let belongs = |step: &Step| KINDS.iter().any(|kind| step.deed == Deed::Harmless(*kind));
        Self {
            coming: steps.filter(belongs).collect(),
            lasting: None,
        }
    }

    /// Does what is due by now.
    pub fn go_on(&mut self, now: Duration, hands: &mut Hands) -> Result<()> {
        if let Some((deed, end)) = self.lasting {
            if now < end {
                return Ok(());
            }
            hands.end(deed)?;
            self.lasting = None;
        }
        // Of a kind one lasts at a time; what was missed at the end is not begun any more.
        if let Some(step) = self.coming.pop_front_if(|step| step.at <= now)
            && now != Duration::MAX
        {
            hands.begin(step.deed)?;
            self.lasting = Some((step.deed, step.at + step.lasts));
        }
        Ok(())
    }
}
