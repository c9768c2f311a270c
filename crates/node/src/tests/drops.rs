//! When the kernel's drop reasons are read.

use pathproof_facts::trace::ProbePath;
use pathproof_witness::drops::{DropCount, DropWatch};

use super::scene::*;
use crate::event::{Event, KernelSample};

fn lose(scene: &mut Scene) -> Effects {
    let sent = scene.later(250).now();
    scene.probe(arriving(ProbePath::NodePort, sent))
}

#[test]
fn reasons_are_read_from_the_first_lost_probe_on_until_none_is_lost() {
    let mut scene = Scene::probed();
    assert!(!scene.idle().has("watch drops"));
    assert!(lose(&mut scene).has("watch drops"));
    scene.feed(Event::DropWatch(DropWatch::On));
    assert!(!lose(&mut scene).has("watch drops"), "they are read");
    scene.later(9_000);
    assert!(!scene.idle().has("leave drops"));
    scene.later(2_000);
    assert!(scene.idle().has("leave drops"));
}

/// Reasons only explain: states and answers are the same without them.
#[test]
fn reasons_accuse_nobody() {
    let state = |drops: Vec<DropCount>| {
        let mut scene = Scene::probed();
        lose(&mut scene);
        scene.sample(KernelSample {
            drops,
            ..KernelSample::default()
        });
        let last = scene.node.judge().last.expect("a verdict");
        (last.state, last.cause)
    };
    let dropped = DropCount {
        service: 1,
        reason: "NETFILTER_DROP".to_owned(),
        packets: 1_000,
    };
    assert_eq!(state(vec![dropped]), state(Vec::new()));
}
