//! GKE's intranode visibility on an idle node, where only the sentinel can detect flushed Service rules. The
//! sentinel's packets arrive by a device that is not the uplink, so they too follow the policy routing of
//! [`hairpin`](crate::hairpin).

use node_tests::prelude::*;

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
