//! Adds to connections that went to removed endpoints when these endpoints left their slices.

use std::collections::BTreeSet;

use pathproof_facts::cause::Failure;
use pathproof_facts::node_context::address;
use pathproof_plan::Planner;
use pathproof_wire::evidence::Outcome;
use pathproof_witness::evidence::{CountDelta, FailedConnection};

use crate::event::KernelSample;

/// Dates stale connections. The kernel does not know an endpoint that is no longer in the map, so to it a
/// client that reuses the port of an old connection is misrouted. That connection is stale too, and so are
/// those of the same sample without a report, because the kernel limits its reports.
pub(crate) fn date(sample: &mut KernelSample, planner: &Planner) {
    let mut reused = BTreeSet::new();
    for sighting in &mut sample.sightings {
        let (None, Some(to)) = (sighting.left_since, sighting.destination) else {
            continue;
        };
        let (address, port) = (address(&to.ip()), to.port().to_be_bytes());
        if sighting.failure == Failure::Stale {
            sighting.left_since = planner.left_since(sighting.service, address, port);
        } else if is_misrouted(sighting)
            && let Some(left) = planner.left_before(address, port)
        {
            sighting.left_since = Some(left);
            reused.insert((sighting.service, sighting.class));
        }
    }
    for sighting in &mut sample.sightings {
        let (service, class) = (sighting.service, sighting.class);
        let is_former = sighting.left_since.is_some() || sighting.destination.is_none();
        if is_misrouted(sighting) && is_former && reused.contains(&(service, class)) {
            sighting.failure = Failure::Stale;
            let is_its = |delta: &&mut CountDelta| (delta.service, delta.class) == (service, class);
            if let Some(delta) = sample.counts.iter_mut().find(is_its) {
                let [misrouted, stale] =
                    [Outcome::Misrouted, Outcome::Stale].map(|outcome| outcome as usize);
                let moved = delta.counts[misrouted].min(1);
                delta.counts[misrouted] -= moved;
                delta.counts[stale] += moved;
            }
        }
    }
}

/// Whether a connection went to no endpoint, rather than to one of this node by an uplink.
fn is_misrouted(sighting: &FailedConnection) -> bool {
    sighting.failure == Failure::Misrouted && !sighting.misdelivered
}
