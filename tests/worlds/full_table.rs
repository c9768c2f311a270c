//! The node is a router too: a BGP daemon has put a million routes into its table, as many as the
//! internet has. An agent that reads all of them for each question never gets to the end.

use node_tests::manifests::Sentinel;
use node_tests::rules::Backend;
use node_tests::scene::Scene;
use node_tests::world::Family;
use node_tests::world::layout::{ROUTER, pick};

use crate::measured::settled;
use crate::parts::flushed;

const ROUTES: u32 = 1_000_000;
const PART: usize = 20_000;

#[test]
fn many_routes_hide_nothing() {
    let mut scene = Scene::bare(Backend::Nftables);
    let router = pick(ROUTER, Family::V4);
    // 20.0.0.0/24 and what follows, in parts: ip keeps all of its input in memory, and more.
    for part in (0..ROUTES).step_by(PART) {
        let batch: String = (part..part + PART as u32)
            .map(|number| {
                let [_, high, middle, low] = number.to_be_bytes();
                let first = 20 + high;
                format!("route add {first}.{middle}.{low}.0/24 via {router}\n")
            })
            .collect();
        scene.world.node.ip_batch(&batch).expect("routes");
    }
    scene.add_sentinel(&Sentinel::default());
    scene.start(&[]);
    scene.wait_probed();
    scene.traffic();
    let watch = settled(&scene);
    flushed(&scene, &watch);
}
