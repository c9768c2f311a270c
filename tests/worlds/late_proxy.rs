//! A late proxy: pods of a quiet node dial two new Services at once, and the rules follow after 5 s.

use node_tests::prelude::*;

use crate::parts::{NAMED, SOUND, flushed, some_fail, stays};

#[test]
fn new_services_are_no_fault_of_the_node() {
    let mut scene = Scene::idle(Backend::IptablesNft, &[]);
    let watch = scene.watch();
    for (name, index, pod, client) in [
        ("new-one", 4, "web-1", "client-1"),
        ("new-two", 5, "api-1", "client-2"),
    ] {
        let pod = scene.world.pod(pod).clone();
        scene
            .manifests
            .add(Service::new(name, index, [&pod]))
            .expect("add a Service");
        for family in Family::ALL {
            scene.dial(client, name, family, 5.0);
        }
    }
    some_fail(&scene);
    thread::sleep(Duration::from_secs(5));
    scene.rules.install().expect("the rules follow");
    stays(&scene, &watch, &NAMED);
    stays(&scene, &watch, &SOUND);
    flushed(&scene, &watch);
}
