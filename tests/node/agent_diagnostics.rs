//! What the agent shows when its map of connections or its log is full.

use std::fs;

use node_tests::prelude::*;
use pathproof::datapath::load;
use pathproof::datapath::pins::Pins;
use pathproof_wire::abi::map;

#[test]
fn a_full_map_of_connections_is_counted() {
    let mut scene = Scene::new(Backend::Nftables, &[]);
    // Replace the pinned maps by ones with room for few connections, as if a former agent had made them.
    scene.take_agent().kill().expect("kill");
    let dir = scene.world.pin_dir().to_owned();
    fs::remove_dir_all(&dir).expect("remove every pin");
    let pins = Pins::open(&dir).expect("a folder for pins");
    load::load_with(Some(&pins), &[(map::PENDING, 16)]).expect("load the programs");
    scene.traffic();

    scene.start(&[]);
    eventually("no room", || scene.fault("pending_full") > 50);
    let status = scene.take_agent().terminate().expect("an end in order");
    assert_eq!(status.code(), Some(0));
}

/// If the log cannot be written (full disk, reader gone), lines are lost, and the agent continues to judge.
#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    scene.take_agent().kill().expect("kill");
    let agent = agent_binary().expect("the agent's binary");
    let full = scene.wrapped("2>/dev/full", &agent);
    scene.spawn_binary(full, &["--log-filter", "debug"]);
    let before = scene.agent().log();
    scene.wait_probed();
    assert_eq!(scene.agent().log(), before, "nothing was written");
    assert_eq!(scene.asked("/healthz"), 200);
}
