//! The node is also a router, and a BGP daemon has added a million routes, about as many as the internet has.
//! If the agent read all of them for each lookup, it would never finish.

use node_tests::prelude::*;
use node_tests::usage;
use node_tests::world::layout::{ROUTER, pick};

use crate::measured::settled;
use crate::parts::flushed;

const ROUTES: u32 = 1_000_000;
const CHANGED: u32 = 200_000;
const PART: usize = 20_000;
/// Memory limit of the agent's container in deploy/base, in KiB.
const MEMORY: u64 = 128 * 1024;

#[test]
fn many_routes_hide_nothing() {
    let mut scene = Scene::bare(Backend::Nftables);
    let router = pick(ROUTER, Family::V4);
    // Add routes from 20.0.0.0/24 on. Use batches, because ip keeps its whole input in memory.
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
    // Delete and add routes, as if a BGP peer disappeared and returned.
    change(&scene.world.node, "del", CHANGED);
    change(&scene.world.node, "add", CHANGED);
    drop(settled(&scene));
    assert_never_503(&watch);
    let memory = usage::memory(scene.agent().pid()).expect("its memory");
    assert!(memory.peak_kib < MEMORY, "{memory:?}");
    flushed(&scene, &watch);
}
