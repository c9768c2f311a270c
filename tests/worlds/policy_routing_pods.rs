//! Policy routing per pod without the sentinel, so that only connections of pods can show a fault. The Node
//! has no pod range, so the agent must recognise pods by the devices from which their packets arrive.

use node_tests::prelude::*;

use crate::parts::{SOUND, everybody_is_served, flushed, stays};
use crate::policy_routing::two_uplinks;

#[test]
fn pods_outside_the_known_ranges_show_a_fault() {
    let mut scene = two_uplinks();
    scene.start(&[]);
    scene.pod_traffic();
    let watch = scene.watch();
    let is = |path, state| {
        let families = Family::ALL.into_iter();
        scene.wait(&format!("{path} {state}"), |report| {
            let mut states = families.clone().map(|family| path_of(report, family, path));
            states.all(|seen| seen == state)
        });
    };
    is("pod", "proven");
    is("external", "quiet");
    stays(&scene, &watch, &SOUND);
    everybody_is_served(&scene);
    flushed(&scene, &watch);
}
