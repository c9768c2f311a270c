//! A fault in one family, on nodes whose clients use both families, one of them, or none.

use std::time::Duration;

use pathproof_facts::cause::State;
use pathproof_node::effect::VerdictUpdate;
use pathproof_node::replay::replay;
use pathproof_sim::{Act, BEGIN, Fault, SimNode, Stack, Stream, World};
use pathproof_wire::service::Family;
use rstest::rstest;

const FAULT: Duration = Duration::from_secs(20);
/// Promised maximum time to 503 for a fault with an unambiguous cause.
const PROMISED: Duration = Duration::from_millis(1_500);

/// A node with these clients of each family, where IPv6 is broken.
fn node(v4: Vec<Stream>, v6: Vec<Stream>) -> SimNode {
    let v6 = v6.into_iter().map(|stream| stream.over(Family::V6));
    let world = World {
        streams: v4.into_iter().chain(v6).collect(),
        stack: Stack::Dual,
        ..World::busy()
    };
    let world = world.with(FAULT, Act::BreakIn(Family::V6, Fault::Flushed));
    SimNode::new(0, world, 7).logged()
}

fn pod() -> Stream {
    Stream::of_pod(0, 0, Duration::from_millis(500))
}

fn outsider() -> Stream {
    Stream::of_outsider(0, 1, Duration::from_millis(500))
}

fn failed(node: &SimNode) -> Option<Duration> {
    node.failed_after(BEGIN.plus(FAULT))
}

fn last(node: &SimNode) -> VerdictUpdate {
    let update = node.log().and_then(|log| log.updates.last());
    update.expect("a verdict").clone()
}

#[rstest]
#[case::of_a_pod(pod())]
#[case::of_a_client_outside(outsider())]
fn a_family_that_nobody_uses_is_a_finding_until_it_is_dialled(#[case] user: Stream) {
    let dialled = FAULT + Duration::from_secs(60);
    let late = Stream {
        during: (dialled, Duration::MAX),
        ..user.clone()
    };
    let mut node = node(vec![user], vec![late]);
    node.run(dialled);
    assert_eq!(failed(&node), None);
    let VerdictUpdate { verdict, .. } = last(&node);
    assert_eq!(verdict.state, State::Degraded);
    let reason = verdict.reason();
    let said = "IPv6 does not count (--families=used): no pod and no client outside used it";
    assert!(
        reason.starts_with("IPv6 cluster IPs: ") && reason.contains(said),
        "{reason}"
    );
    node.run(Duration::from_secs(3));
    let after = node.failed_after(BEGIN.plus(dialled));
    assert!(after.is_some_and(|after| after <= PROMISED), "{after:?}");
    let recording = node.node().expect("an agent").recording();
    let replayed = replay(&recording, None).expect("a recording");
    assert_eq!(replayed.differs, None);
    assert_eq!(replayed.latest.expect("a verdict").update, last(&node));
}

/// After the 503, the broken family has no clients any more. The next agent must remember that it had some.
#[test]
fn a_restart_forgets_no_user() {
    let both = Stream {
        during: (Duration::ZERO, FAULT),
        ..outsider()
    };
    let mut node = node(vec![pod()], vec![both]);
    node.run(FAULT + Duration::from_secs(5));
    node.act(Act::Restart(Duration::from_secs(2)));
    node.run(Duration::from_secs(60));
    assert!(failed(&node).is_some());
    let later = FAULT + Duration::from_secs(5);
    assert_eq!(node.recovered_after(BEGIN.plus(later)), None);
}
