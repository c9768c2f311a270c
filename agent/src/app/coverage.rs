//! How well the observer sees, from what its parts report: what is missing, what is suspended.

use std::time::Duration;

use agent_common::evidence::{FAULTS, Fault};

use crate::datapath::Observer;
use crate::datapath::sample::Look;
use agent_core::evidence::{CoverageLoss, ObserverHealth};
use agent_core::plan::Missing;
use agent_core::time::Mono;

/// After programs were loaded or exchanged, connections may have been seen in part only.
const SETTLING: Duration = Duration::from_secs(2);
/// A loss of connections is told for this long.
const RECENT: Duration = Duration::from_secs(10);
/// How long clients send a SYN again: as long as one may be that was forgotten.
const RETRIES: Duration = Duration::from_secs(130);
/// A source that was silent is caught up with for this long: its resources come back one by one,
/// and kube-proxy may be later than the agent.
const CATCH_UP: Duration = Duration::from_secs(30);

/// What is remembered from look to look.
#[derive(Debug, Default)]
pub(super) struct Eyesight {
    settling_until: Option<Mono>,
    uncertain_until: Option<Mono>,
    source: Source,
    pending_full: Recent,
    over_budget: Recent,
    /// Devices that the rule leaves out, or whose headers are not followed.
    pub(super) left_out: usize,
    /// The last look failed, in words.
    pub(super) unread: Option<String>,
}

/// Whether the source of the cluster view tells what happens now.
#[derive(Clone, Copy, Debug, Default)]
enum Source {
    #[default]
    Heard,
    Silent,
    /// Heard again, since then.
    Back(Mono),
}

/// A count that only its recent growth matters of.
#[derive(Debug, Default)]
struct Recent {
    last: Option<u64>,
    missed: u64,
    until: Option<Mono>,
}

impl Recent {
    fn note(&mut self, count: u64, now: Mono) {
        if self.until.is_some_and(|until| now >= until) {
            (self.missed, self.until) = (0, None);
        }
        let grown = count.saturating_sub(self.last.unwrap_or(count));
        self.last = Some(count);
        if grown > 0 {
            self.missed += grown;
            self.until = Some(now.plus(RECENT));
        }
    }

    fn missed(&self) -> Option<u64> {
        self.until.map(|_| self.missed)
    }
}

impl Eyesight {
    /// Programs were loaded or exchanged.
    pub(super) fn settle(&mut self, now: Mono) {
        self.settling_until = Some(now.plus(SETTLING));
    }

    /// Whether the source of the cluster view is silent now.
    pub(super) fn hear(&mut self, is_silent: bool, now: Mono) {
        self.source = match (is_silent, self.source) {
            (true, _) => Source::Silent,
            (false, Source::Silent) => Source::Back(now),
            (false, before) => before,
        };
    }

    /// Whether endpoints may have come and gone that nobody told of.
    fn is_behind(&self, now: Mono) -> bool {
        match self.source {
            Source::Heard => false,
            Source::Silent => true,
            Source::Back(since) => now.since(since) < CATCH_UP,
        }
    }

    /// Takes in what a look brought beside evidence.
    pub(super) fn note(&mut self, look: &Look, now: Mono) {
        let faults: &[u64; FAULTS] = &look.faults;
        self.pending_full
            .note(faults[Fault::PendingFull as usize], now);
        self.over_budget
            .note(faults[Fault::OverBudget as usize], now);
        if look.swept.forgotten_early > 0 {
            self.uncertain_until = Some(now.plus(RETRIES));
        }
    }

    /// How well the observer sees now.
    pub(super) fn health(
        &self,
        observer: Option<&Observer>,
        missing: Missing,
        blind: Option<&str>,
        no_pins: Option<&str>,
        now: Mono,
    ) -> ObserverHealth {
        let mut reasons = Vec::new();
        let (attached, wanted) =
            observer.map_or((0, 0), |observer| devices(observer, &mut reasons));
        if let Some(why) = blind {
            reasons.push(CoverageLoss::NotLoaded {
                why: why.to_owned(),
            });
        }
        if let Some(why) = no_pins {
            reasons.push(CoverageLoss::NoPins {
                why: why.to_owned(),
            });
        }
        if let Some(why) = &self.unread {
            reasons.push(CoverageLoss::NotRead { why: why.clone() });
        }
        if self.left_out > 0 {
            reasons.push(CoverageLoss::LeftOut {
                devices: self.left_out as u64,
            });
        }
        absent(missing, &mut reasons);
        let settling = self.settling_until.is_some_and(|until| now < until);
        if settling {
            reasons.push(CoverageLoss::Settling);
        }
        let uncertain = self.uncertain_until.is_some_and(|until| now < until);
        if uncertain {
            reasons.push(CoverageLoss::FirstSynUncertain);
        }
        let behind = self.is_behind(now);
        if behind {
            reasons.push(CoverageLoss::SourceSilent);
        }
        let full = self.pending_full.missed();
        reasons.extend(full.map(|missed| CoverageLoss::PendingFull { missed }));
        let over = self.over_budget.missed();
        reasons.extend(over.map(|missed| CoverageLoss::OverBudget { missed }));
        ObserverHealth {
            attached,
            wanted,
            reasons,
            // A connection that leaves by a device that is not seen looks lost.
            lost_suspended: settling || full.is_some() || attached < wanted || self.left_out > 0,
            // An endpoint that found no place in the map, or that only kube-proxy has heard of, looks
            // like a stranger.
            misrouted_suspended: settling || uncertain || behind || missing.endpoints > 0,
        }
    }
}

fn devices(observer: &Observer, reasons: &mut Vec<CoverageLoss>) -> (u32, u32) {
    let (mut attached, mut wanted) = (0, 0);
    for attachment in observer.attachments() {
        wanted += 1;
        let device = attachment.device.name.clone();
        if attachment.mechanism().is_some() {
            attached += 1;
            if attachment.first.contains(&Some(false)) {
                reasons.push(CoverageLoss::NotFirst { device });
            }
        } else {
            let why = attachment.problem.clone().unwrap_or_default();
            reasons.push(CoverageLoss::Detached { device, why });
        }
    }
    (attached, wanted)
}

fn absent(missing: Missing, reasons: &mut Vec<CoverageLoss>) {
    let Missing {
        frontends,
        endpoints,
        sources,
        services,
    } = missing;
    let losses = [
        (
            frontends,
            CoverageLoss::FrontendsFull { missing: frontends },
        ),
        (
            endpoints,
            CoverageLoss::EndpointsFull { missing: endpoints },
        ),
        (sources, CoverageLoss::SourcesFull { missing: sources }),
        (services, CoverageLoss::ServicesFull { missing: services }),
    ];
    reasons.extend(
        losses
            .into_iter()
            .filter(|(count, _)| *count > 0)
            .map(|(_, loss)| loss),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Mono {
        Mono(0).plus(Duration::from_secs(seconds))
    }

    /// Whether strangers are judged, and whether it is said why not.
    fn judged(eyes: &Eyesight, seconds: u64) -> (bool, bool) {
        let health = eyes.health(None, Missing::default(), None, None, at(seconds));
        let told = health.reasons.contains(&CoverageLoss::SourceSilent);
        (!health.misrouted_suspended, told)
    }

    #[test]
    fn a_silent_source_suspends_judgement_of_where_connections_go() {
        let mut eyes = Eyesight::default();
        eyes.hear(false, at(1));
        assert_eq!(judged(&eyes, 1), (true, false), "it was never silent");
        eyes.hear(true, at(10));
        assert_eq!(judged(&eyes, 500), (false, true));
        eyes.hear(false, at(500));
        eyes.hear(false, at(520));
        assert_eq!(judged(&eyes, 529), (false, true), "it is caught up with");
        assert_eq!(judged(&eyes, 530), (true, false));
    }
}
