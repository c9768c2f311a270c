//! The agent ends, is killed, restarted or removed. The node's traffic is not affected, and observation
//! continues.

use std::fs;

use aya::programs::TcAttachType;
use node_tests::http;
use node_tests::prelude::*;
use node_tests::traffic::Tally;
use node_tests::wait::slowness;
use node_tests::world::HEALTHZ_PORT;
use pathproof_wire::abi::{ABI_VERSION, map};
use pathproof_wire::evidence::Outcome;

use crate::agent_attach::{filters, has_clsact};
use crate::agent_kernel::{counted, link, link_id, links, pending, programs_at};
use crate::commands::{pathproof, told};

/// Starts clients with a high rate on three paths through the node. The rate is lower on an emulated
/// processor.
fn fast_clients(scene: &mut Scene) {
    let rate = 50.0 / f64::from(slowness());
    for family in Family::ALL {
        scene.dial("client-1", "web", family, rate);
        scene.dial("db-2", "db", family, rate);
        scene.dial_outside(0, scene.node_port(30081, family), rate);
    }
}

fn assert_all_counted(scene: &mut Scene) {
    let mut total = Tally::default();
    for client in std::mem::take(&mut scene.clients) {
        let target = client.plan.target;
        let tally = client.finish();
        assert!(tally.failed() == 0, "{target}: {tally:?}");
        total.started += tally.started;
    }
    for outcome in [Outcome::Arrived, Outcome::Proven, Outcome::Answered] {
        let same = until(PATIENCE, || {
            (counted(&scene.world, outcome) == total.started).then_some(())
        });
        let counted = counted(&scene.world, outcome);
        assert!(
            same.is_some(),
            "{outcome:?}: {counted} counted, {} made",
            total.started
        );
    }
    for failure in [
        Outcome::Leaked,
        Outcome::Refused,
        Outcome::Misrouted,
        Outcome::Stale,
    ] {
        assert_eq!(counted(&scene.world, failure), 0, "{failure:?}");
    }
}

/// A restart on a healthy node leaves a gap in the answers, but causes no 503.
#[test]
fn a_restart_misses_no_connection() {
    let mut scene = Scene::new(Backend::Nftables, &[]);
    fast_clients(&mut scene);
    scene.wait_proven();
    let watch = scene.watch();
    for _ in 0..2 {
        thread::sleep(Duration::from_millis(700));
        let status = scene.take_agent().terminate().expect("an end in order");
        assert_eq!(status.code(), Some(0));
        thread::sleep(Duration::from_millis(300));
        scene.start(&[]);
        let first = scene.report();
        let state = &first["verdict"]["state"];
        assert_eq!(state, "proven", "it begins from what it knew: {first:#}");
        scene.wait_proven();
    }
    assert_never_503(&watch);
    assert_all_counted(&mut scene);
}

#[test]
fn a_killed_agent_leaves_the_node_as_it_was() {
    needs!(skip::linux(skip::TCX));
    let mut scene = Scene::new(Backend::Nftables, &[]);
    fast_clients(&mut scene);
    thread::sleep(Duration::from_millis(500));
    scene.wait_proven();
    let pins = |scene: &Scene| {
        let entries = fs::read_dir(links(&scene.world)).expect("the folder of links");
        let mut pins: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
        pins.sort();
        pins.into_iter()
            .map(|pin| (link_id(&pin).expect("a link"), pin))
            .collect::<Vec<_>>()
    };
    let before = pins(&scene);
    // Two pins (ingress and egress) for each of uplink, bridge and eight local pods.
    assert_eq!(before.len(), 20, "{before:?}");
    scene.take_agent().kill().expect("kill");
    assert_eq!(pins(&scene), before, "pins outlive the agent");
    for (device, program) in [("eth0", "pathproof_"), ("veth-client-1", "pathproof_")] {
        for direction in [TcAttachType::Ingress, TcAttachType::Egress] {
            let programs = programs_at(&scene.world.node, device, direction);
            assert!(
                programs.len() == 1 && programs[0].starts_with(program),
                "{programs:?}"
            );
        }
    }
    thread::sleep(Duration::from_secs(1));
    let unseen = counted(&scene.world, Outcome::Proven);
    assert!(unseen > 0, "programs go on counting");
    scene.start(&[]);
    assert_eq!(
        pins(&scene),
        before,
        "the next agent takes over the same links"
    );
    scene.wait_proven();
    assert_all_counted(&mut scene);
}

/// Entries of lost connections stay in the kernel's map for minutes. The next agent must not report them
/// again.
#[test]
fn lost_connections_are_reported_once() {
    const LOST: u64 = 5;
    let mut scene = Scene::new(Backend::Nftables, &[]);
    let address = scene.world.pod("db-1").v4;
    let drop_forwarded = format!(
        "table inet lossy {{\n chain drops {{\n type filter hook forward priority -5;\n \
         ip daddr {address} drop\n }}\n}}\n"
    );
    let target = scene.cluster_ip("db", Family::V4);
    let lose = |scene: &Scene, skip: u16| {
        scene.nft(&drop_forwarded);
        let plan = scene.pod_plan("client-1", target);
        let plan = plan.patience(Duration::from_millis(100));
        for number in 0..LOST as u16 {
            plan.once(skip + number).expect_err("nobody answers");
        }
        let lost = || scene.count("db", Family::V4, "pod", "lost");
        eventually("told", || lost() == LOST);
        let mend = "delete table inet lossy\n";
        scene.nft(mend);
    };
    lose(&scene, 0);
    scene.take_agent().kill().expect("kill");
    assert!(
        pending(&scene.world) >= LOST as usize,
        "still in the kernel"
    );

    scene.start(&[]);
    let plan = scene.pod_plan("client-1", target);
    plan.once(10).expect("an answer");
    eventually("the maps were read", || {
        scene.count("db", Family::V4, "pod", "proven") == 1
    });
    assert_eq!(
        scene.count("db", Family::V4, "", "lost"),
        0,
        "reported before"
    );
    // New losses must be reported.
    lose(&scene, 20);
}

/// Devices that are removed while no agent runs leave dead pins, even if a new device has the same name.
#[test]
fn dead_pins_are_swept() {
    let mut scene = Scene::new(Backend::Nftables, &[]);
    let pins_of = |scene: &Scene, device: &str| {
        let index = scene.world.node.ifindex(device).expect("a device");
        ["ingress", "egress"].map(|direction| link(&scene.world, index, direction))
    };
    let (gone, back) = (
        pins_of(&scene, "veth-spare"),
        pins_of(&scene, "veth-client-2"),
    );
    scene.take_agent().kill().expect("kill");
    scene.servers.remove("spare");
    scene.world.remove_pod("spare").expect("remove a pod");
    scene.world.remove_pod("client-2").expect("remove a pod");
    scene
        .world
        .add_pod("client-2", Place::Local)
        .expect("the same name again");
    assert!(
        gone.iter().chain(&back).all(|pin| pin.exists()),
        "the pins are still there"
    );
    scene.start(&[]);
    eventually("dead pins swept", || {
        gone.iter().chain(&back).all(|pin| !pin.exists())
    });
    assert!(
        pins_of(&scene, "veth-client-2")
            .iter()
            .all(|pin| pin.exists()),
        "the new device's links are pinned"
    );
    scene
        .pod_plan("client-2", scene.cluster_ip("web", Family::V4))
        .once(0)
        .expect("an answer");
    eventually("proven behind the new device", || {
        scene.count("web", Family::V4, "pod", "proven") == 1
    });
}

/// A new device has the index of a removed one, and the pinned link for this index is dead [finding 22].
#[test]
fn a_dead_link_under_a_living_index_is_replaced() {
    let mut scene = Scene::new(Backend::Nftables, &[]);
    let index = scene.world.node.ifindex("veth-client-2").expect("a device");
    scene.take_agent().kill().expect("kill");
    scene.world.remove_pod("client-2").expect("remove a pod");
    // Reuse the index, as the kernel does after its counter wraps.
    let device = format!("link add veth-twin index {index} type veth peer name veth-peer");
    scene
        .world
        .node
        .ip(&device)
        .expect("a device of the same index");
    scene.world.node.ip("link set veth-twin up").expect("up");
    scene.start(&[]);
    scene.wait("the new device watched", |report| {
        node_tests::scene::device_of(report, "veth-twin")
            .is_some_and(|device| device["attached"] == "tcx")
    });
    for direction in [TcAttachType::Ingress, TcAttachType::Egress] {
        let programs = programs_at(&scene.world.node, "veth-twin", direction);
        assert_eq!(programs.len(), 1, "{programs:?}");
    }
}

/// Cleanup removes links with their pins, and the filters and qdiscs that a killed agent left.
#[rstest]
#[case::links("tcx", false)]
#[case::links_of_a_killed_agent("tcx", true)]
#[case::filters("clsact", false)]
#[case::filters_of_a_killed_agent("clsact", true)]
fn cleanup_removes_everything(#[case] attach: &str, #[case] kill: bool) {
    if attach == "tcx" {
        needs!(skip::linux(skip::TCX));
    }
    let mut scene = Scene::new(Backend::Nftables, &["--attach", attach]);
    let state = scene.world.dir().join("state");
    eventually("state kept", || state.join("state.json").exists());
    let agent = scene.take_agent();
    if kill {
        agent.kill().expect("kill");
    } else {
        let status = agent.terminate().expect("an end in order");
        assert_eq!(status.code(), Some(0));
        // An agent that exits leaves links. It removes filters, and then also the pins of its maps: from
        // missing pins the next agent infers a gap in the observation.
        let maps = scene.world.pin_dir().join(format!("v{ABI_VERSION}/maps"));
        assert_eq!(maps.join(map::PROOFS).exists(), attach == "tcx");
    }
    let links = programs_at(&scene.world.node, "eth0", TcAttachType::Ingress);
    assert_eq!(links.is_empty(), attach == "clsact", "{links:?}");
    let left = usize::from(kill && attach == "clsact");
    assert_eq!(filters(&scene, "eth0"), 2 * left);
    let mut cleanup = pathproof(&scene.world, &["cleanup", "--pin-dir"]);
    cleanup.arg(scene.world.pin_dir());
    cleanup.arg("--state-dir").arg(&state);
    let said = told(cleanup, 0);
    assert!(said.starts_with("removed "), "{said}");
    assert!(!scene.world.pin_dir().exists(), "no pins");
    assert!(!state.join("state.json").exists(), "no state");
    for device in ["eth0", "veth-client-1", "cni0"] {
        for direction in [TcAttachType::Ingress, TcAttachType::Egress] {
            eventually("detached", || {
                programs_at(&scene.world.node, device, direction).is_empty()
            });
        }
        assert_eq!(filters(&scene, device), 0);
        assert!(!has_clsact(&scene, device), "{device}");
    }
}

/// While the Node cannot be read, the next agent answers from the saved state, if this was saved in the same
/// boot.
#[rstest]
#[case::of_this_boot(true)]
#[case::of_another_boot(false)]
fn a_marked_node_stays_marked_over_a_kill(#[case] same_boot: bool) {
    let mut scene = Scene::new(Backend::Nftables, &[]);
    scene.manifests.taint(AUTOSCALER_TAINT).expect("taint");
    eventually("503", || {
        scene.agent().healthz().is_ok_and(|code| code == 503)
    });
    scene.take_agent().kill().expect("kill");
    if !same_boot {
        let file = scene.world.dir().join("state/state.json");
        let text = fs::read_to_string(&file).expect("the state");
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot id");
        let other = text.replace(boot.trim(), "00000000-0000-4000-8000-000000000000");
        assert_ne!(text, other, "the state names the boot: {text}");
        fs::write(&file, other).expect("write the state");
    }
    // An empty folder of manifests gives the agent no view.
    let empty = scene.world.dir().join("empty");
    fs::create_dir(&empty).expect("make a folder");
    scene.spawn(&["--manifests", empty.to_str().expect("a path")]);
    let address = SocketAddr::new(scene.world.node_address(Family::V4), HEALTHZ_PORT);
    let ask = || http::get(address, "/healthz", Duration::from_secs(2)).ok();
    let first = scene
        .world
        .outside
        .run(|| until(PATIENCE, ask))
        .expect("an answer");
    let wanted = if same_boot { 503 } else { 200 };
    assert_eq!(first.status, wanted, "the first answer: {}", first.body);
    thread::sleep(Duration::from_secs(1));
    assert_eq!(scene.asked("/healthz"), wanted);
    assert_eq!(scene.asked("/livez"), 200);
}

/// After a restart of the agent, a fault that was confirmed before is still answered with 503.
#[test]
fn a_broken_node_stays_broken_over_a_kill() {
    let mut scene = Scene::proven(Backend::Nftables, &[]);
    let watch = scene.watch();
    scene.rules.flush_services().expect("flush");
    wait_answers(&watch, 503);
    scene.take_agent().kill().expect("kill");
    watch
        .wait(PATIENCE, |codes| codes.healthz == 0)
        .expect("nobody answers");
    let seen = watch.changes().len();
    scene.start(&[]);
    thread::sleep(Duration::from_secs(2));
    let after = watch.changes().split_off(seen);
    let flipped = |code: u16| code == 200;
    let any = after
        .iter()
        .any(|one| flipped(one.codes.healthz) || flipped(one.codes.livez));
    assert!(!after.is_empty() && !any, "{after:?}");
    scene.rules.install().expect("install again");
    wait_answers(&watch, 200);
}

/// The agent is stopped for longer than any confirmation takes, while connections come and go. Afterwards it
/// must not take the accumulated evidence for a series of failures. It must also read this evidence before it
/// judges: with `--unknown-policy closed`, an unknown state would be a 503.
#[rstest]
fn a_frozen_agent_wakes_up_sound(#[values("open", "closed")] policy: &str) {
    let mut scene = Scene::busy(Backend::Nftables, &["--unknown-policy", policy]);
    // Wait for 200 first: before the first proof, the policy may cause a 503.
    wait_answers(&scene.watch(), 200);
    let watch = scene.watch();
    assert!(scene.agent().signal(libc::SIGSTOP));
    thread::sleep(Duration::from_secs(2));
    // Change interfaces and the Node while the agent is stopped.
    let node = &scene.world.node;
    node.ip("link add news type veth peer name swen")
        .expect("an interface");
    scene.manifests.taint("news").expect("a taint");
    scene.rules.flush_services().expect("flush");
    // Longer in all than a main loop may hang before the policy decides: a frozen process does not hang.
    thread::sleep(Duration::from_secs(10));
    scene.rules.install().expect("install again");
    scene.clients.clear();
    thread::sleep(Duration::from_millis(200));
    assert!(scene.agent().signal(libc::SIGCONT));
    watch
        .wait(PATIENCE, |codes| codes.healthz == 200)
        .expect("it answers again");
    thread::sleep(Duration::from_secs(3));
    assert_never_503(&watch);
    scene.traffic();
    scene.wait_probed();
    assert_never_503(&watch);
}
