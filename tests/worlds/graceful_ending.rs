//! A proxy is frozen while an endpoint ends gracefully: it has left its slice, connections still go
//! to it, and it answers them.

use node_tests::rules::Backend;
use node_tests::scene::Scene;

use crate::parts::{NAMED, everybody_is_served, flushed, stays};

#[test]
fn who_left_and_still_answers_harms_nobody() {
    let mut scene = Scene::busy(Backend::Nftables, &[]);
    let watch = scene.watch();
    scene.swap_endpoint("api", "api-1", "spare");
    stays(&scene, &watch, &NAMED);
    everybody_is_served(&scene);
    scene.rules.install().expect("the rules follow");
    flushed(&scene, &watch);
}
