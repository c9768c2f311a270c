//! A total fault: the tables of the proxy are gone, and with them its owner's mark. Nobody took over.

use node_tests::rules::Backend;
use node_tests::scene::{Scene, wait_answers};
use rstest::rstest;

#[rstest]
#[case::idle(false)]
#[case::busy(true)]
fn an_owner_that_vanished_is_a_fault(#[case] busy: bool) {
    let name = "table_deleted";
    let scene = if busy {
        Scene::busy(name, Backend::Nftables, &[])
    } else {
        Scene::idle(name, Backend::Nftables, &[])
    };
    let Some(scene) = scene else { return };
    let watch = scene.watch();
    scene.rules.remove().expect("remove the tables");
    wait_answers(&watch, 503);
    scene.rules.install().expect("install again");
    wait_answers(&watch, 200);
}
