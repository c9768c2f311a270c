//! The minimal requirements: a node that kube-proxy serves is proven, and a node that is being removed
//! answers 503 at once.

use node_tests::prelude::*;

use crate::scene::{Scene, wait_healthz};

#[test]
fn a_node_that_is_being_removed_answers_503_at_once() {
    let mut scene = needs!(Scene::proven(Mode::Nftables, &[]));
    let (theirs, ours) = scene.ask("/healthz");
    assert_eq!((theirs.status, ours.status), (200, 200));
    let watch = scene.watch();
    let mut times = Vec::new();
    for _ in 0..10 {
        wait_healthz(&watch, 200);
        let start = Instant::now();
        scene.taint(&[AUTOSCALER_TAINT]);
        let seen = wait_healthz(&watch, 503);
        times.push(seen.saturating_duration_since(start));
        assert_eq!(
            watch.now().livez,
            200,
            "/livez depends on the node's removal"
        );
        scene.taint(&[]);
    }
    times.sort();
    println!("from the write of the taint to 503: {times:?}");
    // The median counts, because a busy machine may delay one of them.
    assert!(
        times[times.len() / 2] < Duration::from_millis(200),
        "{times:?}"
    );
    drop(watch);
    drop(scene.agent.take());
    who_watches_no_services_never_calls_a_node_quiet(&mut scene);
}

/// With `--view sentinel` the agent does not observe traffic from outside, so it must never report that the
/// node is quiet.
fn who_watches_no_services_never_calls_a_node_quiet(scene: &mut Scene) {
    scene.start_agent(&["--view", "sentinel"]);
    scene.wait_proven();
    let answer = scene.agent().admin("/drainz?quiet=1&waited=60");
    let answer = answer.expect("an answer");
    assert_eq!(answer.status, 503, "{answer:?}");
    let said = answer
        .body
        .contains("only the sentinel's Service is watched");
    assert!(said, "{answer:?}");
}
