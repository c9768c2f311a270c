//! The pin directory, also with pins of other programs and pins of another version of pathproof.

use std::fs;

use aya::programs::TcAttachType;
use node_tests::prelude::*;
use pathproof_wire::abi::{ABI_VERSION, map};

use crate::agent_kernel::{Foreign, link, programs_at};
use crate::commands::{pathproof, told};

/// Pins of other programs. Some of their names resemble a layout version.
const OTHERS: [&str; 5] = ["theirs", "v1-old", "v", "version1/theirs", "vlan/v1/theirs"];

#[test]
fn pins_of_others_are_left_alone() {
    let mut scene = Scene::new(Backend::Nftables, &[]);
    scene.take_agent().kill().expect("kill");
    let pins = scene.world.pin_dir().to_owned();
    let mut foreign = Foreign::load(&scene.world.node);
    let others = OTHERS.map(|name| pins.join(name));
    let old = pins.join(format!("v{}/maps/ours", ABI_VERSION + 1));
    for pin in others.iter().chain([&old]) {
        fs::create_dir_all(pin.parent().expect("a folder")).expect("make a folder");
        foreign.pin(pin);
    }
    drop(foreign);
    let all_there = |when: &str| {
        for pin in &others {
            assert!(pin.exists(), "{} after {when}", pin.display());
        }
    };

    scene.start(&[]);
    eventually("the other version swept", || !old.exists());
    all_there("a start");
    scene.world.remove_pod("client-2").expect("remove a pod");
    let device = "veth-client-2";
    scene.wait("its device gone", |report| {
        node_tests::scene::device_of(report, device).is_none()
    });
    all_there("a sweep of dead links");

    scene.take_agent().terminate().expect("an end in order");
    let folder = pins.to_string_lossy();
    let cleanup = ["cleanup", "--state-dir", "none", "--pin-dir", &folder];
    told(pathproof(&scene.world, &cleanup), 0);
    all_there("cleanup");
    let ours = pins.join(format!("v{ABI_VERSION}"));
    assert!(!ours.exists(), "the agent's pins are removed");
}

/// Programs of another version stay attached until those of this version are attached to every device and
/// pinned.
#[test]
fn another_version_watches_until_all_is_pinned() {
    let mut scene = Scene::new(Backend::Nftables, &[]);
    scene.take_agent().kill().expect("kill");
    let pins = scene.world.pin_dir().to_owned();
    fs::remove_dir_all(&pins).expect("remove every pin");
    let other = pins.join(format!("v{}", ABI_VERSION + 1));
    fs::create_dir_all(other.join("links")).expect("make a folder");
    let (device, hook) = ("veth-client-1", TcAttachType::Ingress);
    let mut foreign = Foreign::load(&scene.world.node);
    foreign.attach(device, hook);
    foreign.pin_link(&other.join("links/1-ingress"));
    drop(foreign);

    // Put a folder in the place of one link's pin, so that this link cannot be pinned.
    let index = scene.world.node.ifindex("veth-client-2").expect("a device");
    let obstacle = link(&scene.world, index, "ingress");
    fs::create_dir_all(&obstacle).expect("make a folder");
    scene.start(&[]);
    scene.wait("all attached, one not pinned", |report| {
        let coverage = &report["verdict"]["coverage"];
        let count = |name: &str| coverage[name].as_u64().unwrap_or_default();
        count("wanted") > 1 && count("attached") == count("wanted") && lacks(report, "no_pins")
    });
    // Watch for longer than the interval between two checks of the hooks.
    throughout(Duration::from_secs(6), || {
        let programs = programs_at(&scene.world.node, device, hook);
        assert!(
            programs.len() == 2 && programs[1].contains("empty"),
            "{programs:?}"
        );
    });
    fs::remove_dir(&obstacle).expect("remove the obstacle");
    eventually("swept", || !other.exists());
    eventually("detached", || {
        let programs = programs_at(&scene.world.node, device, hook);
        programs.len() == 1 && programs[0].starts_with("pathproof_")
    });
}

/// A map's pin is replaced by something else. The agent makes new maps and counts from zero.
#[test]
fn unusable_maps_are_replaced_by_new_ones() {
    let mut scene = Scene::new(Backend::Nftables, &[]);
    scene.take_agent().kill().expect("kill");
    let maps = scene.world.pin_dir().join(format!("v{ABI_VERSION}/maps"));
    let pin = maps.join(map::COUNTS);
    fs::remove_file(&pin).expect("remove a pin");
    fs::create_dir(&pin).expect("make a folder");
    scene.start(&[]);
    assert!(pin.is_file(), "pinned again");
    let log = scene.agent().log();
    assert!(log.contains("creating new ones"), "{log}");
    scene.traffic();
    scene.wait_proven();
}
