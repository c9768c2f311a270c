//! GKE's intranode visibility on a node where nobody dials: the sentinel alone has to see that the
//! Service rules are flushed. Its packets come in by a device that is not the uplink, so the policy
//! routing of [`hairpin`](crate::hairpin) is theirs too.

use node_tests::rules::Backend;
use node_tests::scene::Scene;

use crate::hairpin::turn_back;
use crate::parts::{SOUND, flushed, stays};

#[test]
fn a_flush_on_an_idle_node_is_seen() {
    let scene = Scene::idle(Backend::IptablesNft, &[]);
    turn_back(&scene);
    let watch = scene.watch();
    stays(&scene, &watch, &SOUND);
    flushed(&scene, &watch);
}
