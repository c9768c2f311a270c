//! The proxy is frozen while an endpoint terminates gracefully: the endpoint is removed from its slice, but
//! still gets connections and answers them.

use node_tests::prelude::*;

use crate::parts::{NAMED, everybody_is_served, flushed, stays};

#[test]
fn a_removed_endpoint_that_still_answers_is_no_fault() {
    let mut scene = Scene::busy(Backend::Nftables, &[]);
    let watch = scene.watch();
    let endpoints = |report: &Value| report["expectations"]["endpoints"].as_u64();
    let before = endpoints(&scene.report());
    let left = (scene.manifests).change("api", |service| {
        service.endpoints.retain(|endpoint| endpoint.pod != "api-1");
    });
    left.expect("it leaves its slice");
    scene.wait("the slice read", |report| endpoints(report) < before);
    stays(&scene, &watch, &NAMED);
    everybody_is_served(&scene);
    scene.rules.install().expect("the rules follow");
    flushed(&scene, &watch);
}
