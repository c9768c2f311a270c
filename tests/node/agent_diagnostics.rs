//! Diagnostics for developers: messages of the eBPF programs, and a log that cannot be written.

use std::fs;

use node_tests::prelude::*;
use pathproof::datapath::load;
use pathproof::datapath::pins::Pins;
use pathproof_wire::abi::map;

/// Message of the programs for each connection that the map has no room for.
const SAID: &str = "connection not followed";

#[test]
fn the_programs_log_only_on_request() {
    let mut scene = Scene::new(Backend::Nftables, &[]);
    // Replace the pinned maps by ones with room for few connections, as if a former agent had made them.
    scene.take_agent().kill().expect("kill");
    let dir = scene.world.pin_dir().to_owned();
    fs::remove_dir_all(&dir).expect("remove every pin");
    let pins = Pins::open(&dir).expect("a folder for pins");
    load::load_with(Some(&pins), &[(map::PENDING, 16)]).expect("load the programs");
    scene.traffic();

    let verbose = ["--log-filter", "debug"];
    scene.start(&verbose);
    eventually("no room", || scene.fault("pending_full") > 50);
    let log = scene.agent().log();
    assert!(!log.contains(SAID), "{log}");
    let status = scene.take_agent().terminate().expect("an end in order");
    assert_eq!(status.code(), Some(0));

    let agent = agent_binary().expect("the agent's binary");
    let asking = scene.wrapped("env PATHPROOF_EBPF_LOG=4", &agent);
    scene.spawn_binary(asking, &verbose);
    eventually("said", || scene.agent().log().contains(SAID));
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
