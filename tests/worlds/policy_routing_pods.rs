//! Policy routing per pod without the sentinel: real connections alone accuse, and those of pods alone.
//! The Node states no range of pods' addresses, so the agent has to know pods by the devices that their
//! packets come in by.

use node_tests::scene::path_of;
use node_tests::world::Family;

use crate::parts::{SOUND, everybody_is_served, flushed, stays};
use crate::policy_routing::two_uplinks;

#[test]
fn pods_beyond_the_stated_ranges_accuse() {
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
