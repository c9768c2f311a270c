//! The test world itself: everything that the other tests take for granted.

use std::time::Instant;

use node_tests::skip;
use node_tests::world::{Family, World};

#[test]
fn comes_up_and_routes() {
    if skip::without_root("comes_up_and_routes") {
        return;
    }
    let start = Instant::now();
    let world = World::builder()
        .pods(&["web-1", "web-2", "client-1"])
        .bridged_pods(&["db-1", "db-2"])
        .remote_pods(&["web-3"])
        .build()
        .expect("build a world");
    eprintln!("up after {:?}", start.elapsed());
    for family in Family::ALL {
        for from in world.pods() {
            for to in world.pods() {
                let address = to.address(family);
                let ping = from
                    .ns
                    .command("ping")
                    .args(["-c1", "-W1", &address.to_string()])
                    .output();
                assert!(
                    ping.unwrap().status.success(),
                    "{} -> {} {address}",
                    from.name,
                    to.name
                );
            }
        }
    }
    let start = Instant::now();
    drop(world);
    eprintln!("down after {:?}", start.elapsed());
}
