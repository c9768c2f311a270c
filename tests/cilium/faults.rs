//! Faults that Cilium's own health endpoint does not see, as clients felt them.

use std::thread;
use std::time::{Duration, Instant};

use crate::scene::{HOST_SOCKETS, REPLACING, Scene};

#[test]
fn emptied_tables_are_503_until_they_are_filled_again() {
    let Some(scene) = Scene::proven(
        "emptied_tables_are_503_until_they_are_filled_again",
        REPLACING,
    ) else {
        return;
    };
    let watch = scene.watch();
    thread::sleep(Duration::from_secs(11));
    let tables = scene
        .cilium
        .as_ref()
        .expect("Cilium")
        .frontends()
        .expect("its tables");
    let start = Instant::now();
    let entries = tables
        .each_ref()
        .map(|table| table.empty().expect("empty a table"));
    let took = scene.answers(&watch, 503, start);
    eprintln!("503 after {took:?}\n{}", scene.status());
    let start = Instant::now();
    for (table, entries) in tables.iter().zip(&entries) {
        table.fill(entries).expect("fill a table");
    }
    let took = scene.answers(&watch, 200, start);
    eprintln!("200 after {took:?}");
}

#[test]
fn without_forwarding_node_ports_are_503() {
    let Some(mut scene) = Scene::proven("without_forwarding_node_ports_are_503", HOST_SOCKETS)
    else {
        return;
    };
    let watch = scene.watch();
    scene.traffic();
    thread::sleep(Duration::from_secs(11));
    eprintln!("before {:?}", scene.felt());
    let before = scene.felt();
    let start = Instant::now();
    scene.world.set_forwarding(false).expect("no forwarding");
    thread::sleep(Duration::from_secs(10));
    for client in &scene.clients {
        eprintln!(
            "{} {}: {:?}",
            client.plan().name,
            client.plan().target,
            client.tally()
        );
    }
    eprintln!(
        "felt {:?} {:?}\n{}",
        scene.felt() - before,
        watch.changes(),
        scene.status()
    );
    eprintln!("503 after {:?}", scene.answers(&watch, 503, start));
    scene.world.set_forwarding(true).expect("forwarding");
    let start = Instant::now();
    eprintln!("200 after {:?}", scene.answers(&watch, 200, start));
}

#[test]
fn a_detached_program_at_the_uplink() {
    let Some(mut scene) = Scene::proven("a_detached_program_at_the_uplink", REPLACING) else {
        return;
    };
    let watch = scene.watch();
    scene.traffic();
    thread::sleep(Duration::from_secs(11));
    let before = scene.felt();
    let cilium = scene.cilium.as_ref().expect("Cilium");
    cilium.detach("eth0", "cil_from_netdev").expect("detach");
    thread::sleep(Duration::from_secs(10));
    for client in &scene.clients {
        eprintln!(
            "{} {}: {:?}",
            client.plan().name,
            client.plan().target,
            client.tally()
        );
    }
    eprintln!(
        "felt {:?} {:?}\n{}",
        scene.felt() - before,
        watch.changes(),
        scene.status()
    );
}
