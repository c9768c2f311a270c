//! Nodes that work are never 503, whatever Cilium translates and where.

use std::thread;
use std::time::Duration;

use rstest::rstest;

use crate::scene::{
    CLSACT, HOST_SOCKETS, MIXED, REPLACING, Scene, Shape, TUNNEL, assert_never_503,
};

/// Idle, then busy, then through a restart of Cilium's agent.
#[rstest]
#[case::replacing(REPLACING)]
#[case::host_sockets(HOST_SOCKETS)]
#[case::clsact(CLSACT)]
#[case::tunnel(TUNNEL)]
#[case::mixed(MIXED)]
fn a_healthy_node_is_never_503(#[case] shape: Shape) {
    let Some(mut scene) = Scene::proven("a_healthy_node_is_never_503", shape) else {
        return;
    };
    let watch = scene.watch();
    thread::sleep(Duration::from_secs(5));
    scene.traffic();
    thread::sleep(Duration::from_secs(10));
    scene.restart_cilium();
    thread::sleep(Duration::from_secs(15));
    println!("{shape:?}: clients felt {:?}", scene.felt());
    assert_never_503(&watch);
    scene.wait_for("proven", 200, Duration::from_secs(20));
}
