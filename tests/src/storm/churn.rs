//! Services, endpoints and pods that come and go, for a soak: of a storm what every cluster does
//! every day.

use std::collections::VecDeque;
use std::time::Duration;

use anyhow::Result;

use super::action::Injector;
use super::plan::{Action, Harmless, Plan, Source, Step};

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
    lasting: Option<(Action, Duration)>,
}

impl Churn {
    /// Of a seed.
    pub fn of(seed: u64, length: Duration) -> Self {
        let steps = Plan::of(seed, length, Source::Folder).steps.into_iter();
        let belongs = |step: &Step| {
            KINDS
                .iter()
                .any(|kind| step.action == Action::Harmless(*kind))
        };
        Self {
            coming: steps.filter(belongs).collect(),
            lasting: None,
        }
    }

    /// Does what is due by now.
    pub fn go_on(&mut self, now: Duration, injector: &mut Injector) -> Result<()> {
        if let Some((action, end)) = self.lasting {
            if now < end {
                return Ok(());
            }
            injector.end(action)?;
            self.lasting = None;
        }
        // Of a kind one lasts at a time; what was missed at the end is not begun any more.
        if let Some(step) = self.coming.pop_front_if(|step| step.at <= now)
            && now != Duration::MAX
        {
            injector.begin(step.action)?;
            self.lasting = Some((step.action, step.at + step.lasts));
        }
        Ok(())
    }
}
