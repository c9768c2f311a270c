//! Properties of a node over simulated worlds, in which the truth is known: which connections were
//! answered.
//!
//! Worlds that are healthy and turn a node to 503 all the same, and faults that go unnoticed, are
//! tests of their own named `known_...`: a change of the rules has to turn them round.

use std::time::Duration;

use agent_core::sim::{Act, BEGIN, Fault, SimNode, World};

fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[test]
fn a_flush_is_a_503_and_its_repair_a_200() {
    for world in [World::default(), World::busy()] {
        let world = world
            .with(s(60), Act::Break(Fault::Flushed))
            .with(s(90), Act::Repair(Fault::Flushed));
        let mut node = SimNode::new(0, world, 1);
        node.run(s(120));
        println!("{:?} {:?}", node.truth(), node.answers());
        let failed = node.failed_after(BEGIN.plus(s(60)));
        assert!(failed < Some(Duration::from_millis(1_500)), "{failed:?}");
        let recovered = node.recovered_after(BEGIN.plus(s(90)));
        assert!(recovered < Some(s(2)), "{recovered:?}");
    }
}
