//! A total datapath fault in a simulated world, and the promises about it.

use std::time::Duration;

use pathproof_sim::{Act, BEGIN, Fault, SimNode, World};
use proptest::prelude::*;

use crate::{PROMISED, RUN, ms};

/// Breaks the datapath at `at` for `lasts` milliseconds. Asserts 503 within the promised time, and 200 within
/// `repaired_within` of the repair.
pub(crate) fn broken_and_repaired(
    world: World,
    seed: u64,
    at: u64,
    lasts: u64,
    tables: bool,
    repaired_within: Duration,
) -> Result<SimNode, TestCaseError> {
    let fault = if tables {
        Fault::TablesGone
    } else {
        Fault::Flushed
    };
    let (at, repaired) = (ms(at), ms(at + lasts));
    let world = world
        .with(at, Act::Break(fault))
        .with(repaired, Act::Repair(fault));
    let mut node = SimNode::new(0, world, seed);
    node.run(RUN);
    let failed = node.failed_after(BEGIN.plus(at));
    prop_assert!(
        failed.is_some_and(|took| took <= PROMISED),
        "503 after {:?}",
        failed
    );
    let recovered = node.recovered_after(BEGIN.plus(repaired));
    prop_assert!(
        recovered.is_some_and(|took| took <= repaired_within),
        "200 after {:?}",
        recovered
    );
    Ok(node)
}
