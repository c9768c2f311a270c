//! Interfaces that appear and disappear, interfaces that are not observed, and hooks at which other programs
//! remove the observer.

use std::fs;

use aya::programs::TcAttachType;
use node_tests::prelude::*;

use crate::agent_kernel::{Foreign, detach, device_of_kind, link, link_id, links, programs_at};

fn is_watched(report: &Value, device: &str) -> bool {
    device_of(report, device).is_some_and(|device| {
        device["attached"] == "tcx"
            && device["ingress_head"] != false
            && device["egress_head"] != false
    })
}

#[rstest]
#[case::routed(Place::Local)]
#[case::bridged(Place::Bridged)]
fn pods_come_and_go_under_traffic(#[case] place: Place) {
    let mut scene = Scene::proven(Backend::Nftables, &[]);
    let watch = scene.watch();
    for round in 0..2 {
        let pod = format!("late-{round}");
        let device = format!("veth-{pod}");
        scene.world.add_pod(&pod, place).expect("add a pod");
        let server = Server::start(scene.world.pod(&pod), PORT).expect("start a server");
        scene.wait("the new device is watched", |report| {
            is_watched(report, &device)
        });

        let endpoint = scene.world.pod(&pod).into();
        scene
            .manifests
            .change("db", |service| service.endpoints.push(endpoint))
            .expect("a new endpoint");
        scene.rules.install().expect("install");
        for family in Family::ALL {
            let before = scene.count("web", family, "pod", "proven");
            scene
                .pod_plan(&pod, scene.cluster_ip("web", family))
                .once(0)
                .expect("an answer");
            eventually("a new pod proven", || {
                scene.count("web", family, "pod", "proven") > before
            });
        }
        eventually("served by the new pod", || server.served() > 0);

        scene
            .manifests
            .change("db", |service| {
                service.endpoints.retain(|one| one.pod != pod)
            })
            .expect("one endpoint less");
        scene.rules.install().expect("install");
        let index = scene.world.node.ifindex(&device).expect("a device");
        let pins = ["ingress", "egress"].map(|direction| link(&scene.world, index, direction));
        assert!(pins.iter().all(|pin| pin.exists()), "pinned: {pins:?}");
        scene.world.remove_pod(&pod).expect("remove the pod");
        drop(server);
        scene.wait("the device is gone", |report| {
            device_of(report, &device).is_none()
        });
        eventually("its pins are gone", || pins.iter().all(|pin| !pin.exists()));
        scene.wait_proven();
    }
    assert_never_503(&watch);
}

#[test]
fn an_excluded_interface_is_left_alone() {
    let extra = ["--interface-exclude", "veth-client-1"];
    let scene = Scene::new(Backend::Nftables, &extra);
    let report = scene.report();
    assert!(device_of(&report, "veth-client-1").is_none(), "{report:#}");
    assert!(is_watched(&report, "veth-client-2"), "{report:#}");
    assert!(device_of(&report, "lo").is_none(), "loopback never is");
    for direction in [TcAttachType::Ingress, TcAttachType::Egress] {
        assert!(programs_at(&scene.world.node, "veth-client-1", direction).is_empty());
    }
    scene.wait("told as coverage", |report| lacks(report, "left_out"));
    let target = scene.cluster_ip("web", Family::V4);
    for pod in ["client-1", "client-2"] {
        for number in 0..3 {
            scene.pod_plan(pod, target).once(number).expect("an answer");
        }
    }
    eventually("the other client is counted", || {
        scene.count("web", Family::V4, "pod", "arrived") == 3
    });
    thread::sleep(Duration::from_millis(600));
    assert_eq!(
        scene.count("web", Family::V4, "pod", "arrived"),
        3,
        "the excluded client is not counted"
    );
}

/// The observer cannot parse packets of an interface of this kind, so the agent reports the gap in its
/// coverage.
#[test]
fn an_interface_of_an_unsupported_kind_is_reported() {
    let scene = Scene::new(Backend::Nftables, &[]);
    let node = &scene.world.node;
    let modem = needs!(device_of_kind(node, "ppp7", libc::ARPHRD_PPP));
    assert!(!lacks(&scene.report(), "left_out"));
    node.ip("link set ppp7 up").expect("up");
    let report = scene.wait("told as coverage", |report| lacks(report, "left_out"));
    assert!(device_of(&report, "ppp7").is_none(), "{report:#}");
    drop(modem);
    scene.wait("all is seen again", |report| !lacks(report, "left_out"));
}

/// Asserts that the agent's program is the first at the hook again, and that connections through it are
/// proven.
fn assert_watched_again(scene: &Scene, direction: TcAttachType) {
    let node = &scene.world.node;
    eventually("ours first again", || {
        let programs = programs_at(node, "veth-client-1", direction);
        programs
            .first()
            .is_some_and(|name| name.starts_with("pathproof_") && !name.contains("empty"))
    });
    let before = scene.count("web", Family::V6, "pod", "proven");
    let plan = scene.pod_plan("client-1", scene.cluster_ip("web", Family::V6));
    for number in 0..3 {
        plan.once(number).expect("an answer");
    }
    eventually("proven again", || {
        scene.count("web", Family::V6, "pod", "proven") == before + 3
    });
    scene.wait("watched again", |report| {
        is_watched(report, "veth-client-1")
    });
}

#[test]
fn a_detached_link_is_put_back() {
    let scene = Scene::new(Backend::Nftables, &[]);
    assert_eq!(repairs(&scene), 0);
    let index = scene.world.node.ifindex("veth-client-1").expect("a device");
    for (made, direction, hook) in [
        (1, "ingress", TcAttachType::Ingress),
        (2, "egress", TcAttachType::Egress),
    ] {
        detach(&link(&scene.world, index, direction)).expect("detach");
        eventually("the repair counted", || repairs(&scene) == made);
        assert_watched_again(&scene, hook);
        assert_eq!(repairs(&scene), made, "{direction}");
    }
}

/// The pins are deleted while the agent runs. The agent keeps the links attached and pins them again, so that
/// the next restart leaves no gap.
#[test]
fn a_removed_pin_is_put_back() {
    let mut scene = Scene::proven(Backend::Nftables, &[]);
    let watch = scene.watch();
    let index = scene.world.node.ifindex("veth-client-1").expect("a device");
    let pins = ["ingress", "egress"].map(|direction| link(&scene.world, index, direction));
    fs::remove_dir_all(scene.world.pin_dir()).expect("remove every pin");
    scene
        .world
        .add_pod("late", Place::Local)
        .expect("add a pod");
    scene.wait("the new device is watched", |report| {
        is_watched(report, "veth-late")
    });
    eventually("pinned again", || {
        pins.iter().all(|pin| link_id(pin).is_some())
    });
    for direction in [TcAttachType::Ingress, TcAttachType::Egress] {
        let one = || programs_at(&scene.world.node, "veth-client-1", direction).len() == 1;
        eventually("and attached once", one);
    }
    scene.wait_proven();
    assert_never_503(&watch);
}

/// Devices vanish while the agent attaches to them, as on a node with pods in a crash loop.
#[test]
fn devices_that_vanish_at_once_leave_nothing() {
    let scene = Scene::proven(Backend::Nftables, &[]);
    let watch = scene.watch();
    let names = |report: &Value| {
        let devices = report["devices"].as_array().cloned().unwrap_or_default();
        devices
            .iter()
            .map(|device| device["name"].to_string())
            .collect::<Vec<_>>()
    };
    let before = names(&scene.report());
    for round in 0..40 {
        let node = &scene.world.node;
        let add = format!("link add brief{round} type veth peer name peer{round}\n");
        node.ip_batch(&add).expect("add");
        // The delay grows from round to round, so that some devices vanish in the middle of the agent's work.
        thread::sleep(Duration::from_millis(round * 2));
        node.ip_batch(&format!("link del brief{round}\n"))
            .expect("remove");
    }
    let report = scene.wait("the same devices as before", |report| {
        names(report) == before
    });
    let devices = report["devices"].as_array().expect("devices");
    assert!(
        devices.iter().all(|device| device["problem"].is_null()),
        "{report:#}"
    );
    let pinned = || fs::read_dir(links(&scene.world)).map_or(0, Iterator::count);
    eventually("no pins but theirs", || pinned() == before.len() * 2);
    scene.wait_proven();
    assert_never_503(&watch);
}

/// If another program is first at the hook, the agent moves ahead of it, but at a bounded rate: two programs
/// that both insist on being first must not waste the node's time.
#[test]
fn a_rival_at_the_head_is_answered_at_a_bounded_rate() {
    let scene = Scene::new(Backend::Nftables, &[]);
    let hook = TcAttachType::Ingress;
    let mut rival = Foreign::load(&scene.world.node);
    rival.attach("veth-client-1", hook);
    assert_watched_again(&scene, hook);
    let programs = programs_at(&scene.world.node, "veth-client-1", hook);
    assert!(
        programs.iter().any(|name| name.contains("empty")),
        "it runs behind: {programs:?}"
    );

    let (before, start) = (repairs(&scene), Instant::now());
    throughout(Duration::from_secs(12), || {
        let programs = programs_at(&scene.world.node, "veth-client-1", hook);
        if !programs.first().is_some_and(|name| name.contains("empty")) {
            rival.attach("veth-client-1", hook);
        }
        let report = scene.report();
        let coverage = &report["verdict"]["coverage"];
        assert_eq!(coverage["attached"], coverage["wanted"], "{report:#}");
    });
    let fair = start.elapsed().as_secs() / 10 + 1;
    let made = repairs(&scene) - before;
    assert!(made <= fair, "{made} repairs in {:?}", start.elapsed());
    scene.wait("told as coverage", |report| lacks(report, "not_first"));
    drop(rival);
    // The node's traffic is not affected.
    let plan = Plan::from_outside(&scene.world, 0, scene.node_port(30081, Family::V4));
    plan.once(0).expect("an answer");
    assert_eq!(scene.asked("/healthz"), 200);
}
