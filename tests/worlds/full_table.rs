//! The node is a router too: a BGP daemon has put a million routes into its table, as many as the
//! internet has. An agent that reads all of them for each question never gets to the end.

use node_tests::manifests::Sentinel;
use node_tests::rules::Backend;
use node_tests::scene::{Scene, assert_never_503};
use node_tests::usage;
use node_tests::world::layout::{ROUTER, pick};
use node_tests::world::{Family, Namespace};

use crate::measured::settled;
use crate::parts::flushed;

const ROUTES: u32 = 1_000_000;
const CHANGED: u32 = 200_000;
const PART: usize = 20_000;
/// Memory that the agent's container may have (deploy/base), in KiB.
const MEMORY: u64 = 128 * 1024;

#[test]
fn many_routes_hide_nothing() {
    let mut scene = Scene::bare(Backend::Nftables);
    let router = pick(ROUTER, Family::V4);
    // 20.0.0.0/24 and what follows, in parts: ip keeps all of its input in memory, and more.
    let change = |node: &Namespace, verb: &str, routes: u32| {
        for part in (0..routes).step_by(PART) {
            let batch: String = (part..part + PART as u32)
                .map(|number| {
                    let [_, high, middle, low] = number.to_be_bytes();
                    let first = 20 + high;
                    format!("route {verb} {first}.{middle}.{low}.0/24 via {router}\n")
                })
                .collect();
            node.ip_batch(&batch).expect("routes");
        }
    };
    change(&scene.world.node, "add", ROUTES);
    scene.add_sentinel(&Sentinel::default());
    scene.start(&[]);
    let watch = scene.watch();
    scene.wait_probed();
    scene.traffic();
    // A peer goes and comes back.
    change(&scene.world.node, "del", CHANGED);
    change(&scene.world.node, "add", CHANGED);
    drop(settled(&scene));
    assert_never_503(&watch);
    let memory = usage::memory(scene.agent().pid()).expect("its memory");
    assert!(memory.peak_kib < MEMORY, "{memory:?}");
    flushed(&scene, &watch);
}
