//! Attachment of the observer without pins, and by clsact filters instead of TCX links.

use aya::programs::TcAttachType;
use node_tests::prelude::*;

use crate::agent_kernel::programs_at;

#[test]
fn an_agent_without_pins_works_and_reports_it() {
    let mut scene = Scene::bare(Backend::Nftables);
    let pins = scene
        .world
        .dir()
        .join("no-bpffs")
        .to_string_lossy()
        .into_owned();
    scene.start(&["--pin-dir", &pins]);
    scene.traffic();
    let report = scene.wait_proven();
    assert!(lacks(&report, "no_pins"), "{report:#}");
    assert!(
        report.to_string().contains("mount -t bpf"),
        "the remedy: {report:#}"
    );
    assert!(!scene.world.pin_dir().exists());
    scene.take_agent().kill().expect("kill");
    for direction in [TcAttachType::Ingress, TcAttachType::Egress] {
        eventually("detached with its agent", || {
            programs_at(&scene.world.node, "eth0", direction).is_empty()
        });
    }
    scene.start(&["--pin-dir", "none"]);
    scene.wait_proven();
}

pub(crate) fn tc(scene: &Scene, words: &str) -> String {
    let mut tc = scene.world.node.command("tc");
    let output = tc.args(words.split(' ')).output().expect("run tc");
    assert!(output.status.success(), "tc {words}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn filters(scene: &Scene, device: &str) -> usize {
    let list = |direction: &str| {
        tc(scene, &format!("filter show dev {device} {direction}"))
            .matches("handle 0x")
            .count()
    };
    list("ingress") + list("egress")
}

pub(crate) fn has_clsact(scene: &Scene, device: &str) -> bool {
    tc(scene, &format!("qdisc show dev {device}")).contains("qdisc clsact")
}

#[test]
fn clsact_works_as_well() {
    let extra = ["--attach", "clsact"];
    let mut scene = Scene::proven(Backend::IptablesLegacy, &extra);
    let report = scene.report();
    let devices = report["devices"].as_array().expect("devices");
    assert!(
        devices.iter().all(|device| device["attached"] == "clsact"),
        "{report:#}"
    );
    assert_eq!(filters(&scene, "eth0"), 2);

    let watch = scene.watch();
    scene.break_and_mend(&watch);
    drop(watch);

    // A killed agent leaves its filters. The next agent takes them over instead of adding more.
    scene.take_agent().kill().expect("kill");
    assert_eq!(filters(&scene, "eth0"), 2);
    scene.start(&extra);
    assert_eq!(filters(&scene, "eth0"), 2);
    scene.wait_proven();
    let before = scene.count("web", Family::V4, "pod", "arrived");
    eventually("counting goes on", || {
        scene.count("web", Family::V4, "pod", "arrived") > before
    });

    // An agent that exits after SIGTERM removes its filters.
    scene.take_agent().terminate().expect("an end in order");
    assert_eq!(filters(&scene, "eth0"), 0);

    // An agent that uses TCX has no filters.
    scene.start(&[]);
    scene.wait_proven();
    assert_eq!(filters(&scene, "eth0"), 0);
}

#[rstest]
#[case::the_qdisc("qdisc del dev veth-client-1 clsact", 2)]
#[case::a_filter("filter del dev veth-client-1 ingress", 1)]
fn a_removed_filter_is_put_back(#[case] words: &str, #[case] removed: usize) {
    let extra = ["--attach", "clsact"];
    let scene = Scene::new(Backend::Nftables, &extra);
    assert_eq!(filters(&scene, "veth-client-1"), 2);
    tc(&scene, words);
    // Do not assert that the filters are gone: the agent may have restored them already.
    eventually("the repair counted", || repairs(&scene) == removed as u64);
    assert_eq!(filters(&scene, "veth-client-1"), 2, "it stays attached");
    scene
        .pod_plan("client-1", scene.cluster_ip("web", Family::V4))
        .once(0)
        .expect("an answer");
    eventually("proven behind it", || {
        scene.count("web", Family::V4, "pod", "proven") == 1
    });
    assert_eq!(repairs(&scene), removed as u64, "once");
}

/// At an interface with an `ingress` qdisc, the kernel would attach egress filters at ingress. So the agent
/// skips such an interface and reports it.
#[test]
fn an_ingress_qdisc_is_left_alone() {
    let mut scene = Scene::bare(Backend::Nftables);
    tc(&scene, "qdisc add dev veth-client-2 ingress");
    scene.start(&["--attach", "clsact"]);
    scene.traffic();
    let report = scene.wait_proven();
    let device = device_of(&report, "veth-client-2").expect("listed");
    assert_eq!(device["attached"], "none", "{report:#}");
    let problem = device["problem"].as_str().unwrap_or_default();
    assert!(problem.contains("qdisc of kind ingress"), "{problem}");
    assert!(lacks(&report, "detached"), "{report:#}");
    throughout(Duration::from_secs(12), || {
        assert_eq!(repairs(&scene), 0);
        // Filters of both directions are counted, because tc shows them together.
        assert_eq!(filters(&scene, "veth-client-2"), 0);
    });
}

/// An agent that attaches links removes the filters of a killed agent. If they stayed beside the links, every
/// packet would be counted twice.
#[test]
fn links_follow_the_filters_of_a_killed_agent() {
    needs!(skip::linux(skip::TCX));
    let mut scene = Scene::new(Backend::Nftables, &["--attach", "clsact"]);
    scene.take_agent().kill().expect("kill");
    assert_eq!(filters(&scene, "eth0"), 2);
    scene.start(&[]);
    scene.traffic();
    scene.wait_proven();
    for device in ["eth0", "veth-client-1"] {
        assert_eq!(filters(&scene, device), 0, "{device}");
        assert!(!has_clsact(&scene, device), "{device}");
    }
}

/// The agent deletes the clsact qdiscs that it or a killed agent added, because an empty one would prevent
/// other programs from adding their `ingress` qdisc. It keeps qdiscs that another program added or has
/// filters in.
#[rstest]
#[case::ended(false)]
#[case::killed_before(true)]
fn qdiscs_go_with_their_agent(#[case] killed: bool) {
    let extra = ["--attach", "clsact"];
    let mut scene = Scene::bare(Backend::Nftables);
    tc(&scene, "qdisc add dev veth-spare clsact");
    scene.start(&extra);
    let other = "filter add dev veth-client-2 egress pref 5 protocol all u32 match u32 0 0";
    tc(&scene, other);
    for device in ["eth0", "veth-client-1", "veth-client-2", "veth-spare"] {
        assert!(has_clsact(&scene, device), "{device}");
    }
    if killed {
        scene.take_agent().kill().expect("kill");
        assert!(has_clsact(&scene, "eth0"));
        scene
            .world
            .add_pod("late", Place::Local)
            .expect("a new pod");
        scene.start(&extra);
        let report = scene.report();
        let late = device_of(&report, "veth-late").expect("listed");
        assert!(late["problem"].to_string().contains("it is new"), "{late}");
        let known = device_of(&report, "veth-client-1").expect("listed");
        assert_eq!(known["attached"], "clsact");
    }
    scene.take_agent().terminate().expect("an end in order");
    for (device, stays) in [
        ("eth0", false),
        ("veth-client-1", false),
        ("veth-client-2", true),
        ("veth-spare", true),
    ] {
        assert_eq!(has_clsact(&scene, device), stays, "{device}");
    }
    tc(&scene, "qdisc add dev veth-client-1 ingress");
    assert!(
        tc(&scene, "filter show dev veth-client-2 egress").contains("u32"),
        "the other program's filter"
    );
}

/// The CNI plugins bridge and ptp make a veth pair in the pod's namespace and move one end out, which keeps
/// its index. So interfaces of two pods may have the same index. Here the second interface replaces the first
/// one while the agent is stopped.
#[rstest]
#[case::tcx("auto")]
#[case::clsact("clsact")]
fn an_index_that_is_given_again_is_another_interface(#[case] attach: &str) {
    let has_tcx = attach == "auto";
    if has_tcx {
        needs!(skip::linux(skip::TCX));
    }
    let mut scene = Scene::bare(Backend::Nftables);
    let peer = "index 4000 type veth peer name veth-peer";
    let ip = |scene: &Scene, words: &str| drop(scene.world.node.ip(words).expect("ip"));
    ip(&scene, &format!("link add veth-first {peer}"));
    scene.start(&["--attach", attach]);
    let reported = |name: &str| device_of(&scene.report(), name).cloned();
    eventually("the first is observed", || {
        reported("veth-first").is_some_and(|device| device["attached"] != "none")
    });
    assert!(scene.agent().signal(libc::SIGSTOP));
    ip(&scene, "link del veth-first");
    ip(&scene, &format!("link add veth-second {peer}"));
    assert!(scene.agent().signal(libc::SIGCONT));
    eventually("the second is known", || reported("veth-second").is_some());
    let second = reported("veth-second").expect("listed");
    match has_tcx {
        true => {
            let programs = programs_at(&scene.world.node, "veth-second", TcAttachType::Ingress);
            assert_eq!(programs.len(), 1, "{second}");
        }
        // The agent adds no qdisc to a new interface at first, because a CNI plugin may add its own.
        false => {
            assert!(
                second["problem"].to_string().contains("it is new"),
                "{second}"
            );
            assert!(!has_clsact(&scene, "veth-second"));
        }
    }
    assert_eq!(repairs(&scene), 0, "nobody took a hook away");
}
