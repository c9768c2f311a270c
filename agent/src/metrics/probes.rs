//! Probes of the sentinel, summed up since the agent started.

use std::collections::BTreeMap;

use agent_common::evidence::{DELAY_BUCKETS, Delays, delay_bucket};
use agent_common::probe::{STAGES, Stage};
use agent_common::service::FAMILIES;

use agent_core::trace::{Lane, ProbeTrace};

/// Label of a stage.
pub(super) fn stage_name(stage: Stage) -> &'static str {
    match stage {
        Stage::Arrived => "arrived",
        Stage::Translated => "translated",
        Stage::Echoed => "echoed",
        Stage::Returned => "returned",
        Stage::Collected => "collected",
    }
}

/// Everything counted.
#[derive(Debug)]
pub(super) struct Probes {
    /// By lane and outcome.
    pub(super) counts: BTreeMap<(Lane, &'static str), u64>,
    /// Times from sending to each stage of a handshake, by family and stage.
    pub(super) stages: [[Delays; STAGES]; FAMILIES],
}

impl Default for Probes {
    fn default() -> Self {
        Self {
            counts: BTreeMap::new(),
            stages: [[Delays::default(); STAGES]; FAMILIES],
        }
    }
}

impl Probes {
    pub(super) fn record(&mut self, trace: &ProbeTrace, outcome: &'static str) {
        *self.counts.entry((trace.lane, outcome)).or_default() += 1;
        let family = &mut self.stages[trace.lane.family as usize];
        for (delays, at) in family.iter_mut().zip(trace.handshake) {
            let Some(at) = at else { continue };
            let ns = at.0.saturating_sub(trace.sent.0);
            if let Some(bucket) = delays
                .buckets
                .get_mut(delay_bucket(ns).min(DELAY_BUCKETS - 1))
            {
                *bucket += 1;
            }
            delays.sum_ns = delays.sum_ns.saturating_add(ns);
        }
    }
}
