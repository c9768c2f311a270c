//! Faults of the datapath that real rules and routes cause, and the agent's answers to them.

use node_tests::manifests::Manifests;
use node_tests::prelude::*;
use node_tests::rules::Rules;

/// The fault that this project began with: the chain of all Services is flushed.
#[test]
fn a_flushed_chain_is_503_until_it_is_mended() {
    let scene = Scene::proven(Backend::Nftables, &[]);
    let watch = scene.watch();
    wait_answers(&watch, 200);
    let logged = scene.agent().log().len();
    scene.rules.flush_services().expect("flush");
    wait_answers(&watch, 503);
    let report = scene.wait("broken in both families", |report| {
        in_both(report, |family| family["state"] == "broken")
    });
    let cause = report["verdict"]["cause"].as_str().unwrap_or_default();
    assert!(["leaked", "refused"].contains(&cause), "{report:#}");
    let body = scene.get("/healthz", Family::V6);
    assert_eq!(body.status, 503);
    assert!(body.body.contains("\"healthy\":false"), "{}", body.body);

    scene.rules.install().expect("install again");
    wait_answers(&watch, 200);
    scene.wait_proven();
    for (level, change) in [
        ("ERROR", "old=\"200\" new=\"503\""),
        ("INFO", "old=\"503\" new=\"200\""),
    ] {
        let words = [level, "the answer of /healthz changed", NODE_NAME, change];
        let is_change = |line: &str| words.iter().all(|word| line.contains(word));
        eventually("the change of the answer is logged", || {
            scene.agent().log()[logged..].lines().any(is_change)
        });
    }
}

/// If every Service that worked for clients outside refuses them, this is a total outage, which no policy
/// causes.
#[test]
fn outside_clients_that_are_refused_everywhere_are_503() {
    let scene = Scene::proven(Backend::Nftables, &[]);
    let watch = scene.watch();
    // ClusterIPs still work; node ports, load balancer and external addresses are gone.
    let mut inside = services(&scene.world);
    for service in &mut inside {
        (
            service.node_port,
            service.load_balancer,
            service.external_ips,
        ) = (None, false, false);
    }
    let folder = scene.world.dir().join("inside");
    let inside = Manifests::write_to(folder, inside).expect("write manifests");
    let rules = Rules::new(&scene.world, Backend::Nftables, inside.dir());
    rules.install().expect("install");
    scene.wait("the outsiders' path failing", |report| {
        path_of(report, Family::V4, "external") == "failing"
            && path_of(report, Family::V6, "external") == "failing"
    });
    wait_answers(&watch, 503);
    assert_eq!(path_of(&scene.report(), Family::V4, "pod"), "proven");
    scene.rules.install().expect("install again");
    wait_answers(&watch, 200);
}

/// The SYN is translated correctly, but leaves by the default route, because the route to the endpoint is
/// gone [finding 10].
#[test]
fn the_wrong_device_proves_nothing() {
    let mut scene = Scene::proven(Backend::Nftables, &[]);
    let spare = scene.world.pod("spare").clone();
    scene.add(Service::new("solo", 3, [&spare]));
    for family in Family::ALL {
        scene.dial("client-1", "solo", family, 10.0);
    }
    let proven = |family| scene.count("solo", family, "pod", "proven");
    eventually("solo proven", || {
        Family::ALL.iter().all(|family| proven(*family) > 3)
    });

    scene.world.cut_route("spare").expect("cut the route");
    let report = scene.wait("solo blamed", |report| {
        report["verdict"]["state"] == "degraded" && blames(report, "demo/solo")
    });
    assert_eq!(report["verdict"]["cause"], "misrouted", "{report:#}");
    let sighting = report["sightings"].as_array().and_then(|all| {
        all.iter().find(|one| {
            one["service"]
                .as_str()
                .is_some_and(|name| name.contains("solo"))
        })
    });
    let sighting = sighting.unwrap_or_else(|| panic!("no sighting of solo: {report:#}"));
    assert_eq!(sighting["device"], "eth0", "{sighting:#}");
    let before = Family::ALL.map(proven);
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(
        Family::ALL.map(proven),
        before,
        "a SYN that leaves by the wrong device is no proof"
    );

    scene.world.mend_route("spare").expect("mend the route");
    eventually("solo proven again", || {
        Family::ALL
            .iter()
            .zip(before)
            .all(|(family, before)| proven(*family) > before)
    });
    scene.wait_proven();
}
