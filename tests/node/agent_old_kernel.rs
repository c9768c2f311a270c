//! Kernels without features that the observer needs. The agent reports that nothing is observed, which is no
//! fault of the node. It still answers 503 while the node is being removed.

use node_tests::prelude::*;
use node_tests::world::OldKernel;
use pathproof_wire::evidence::Outcome;

use crate::agent_kernel::counted;

/// Asserts that the verdict is Unknown for this reason, and that it stays Unknown while there is traffic.
fn assert_blind(scene: &Scene, loss: &str, why: &str) {
    let blind = |report: &Value| {
        report["verdict"]["state"] == "unknown"
            && lacks(report, loss)
            && in_both(report, |family| family["state"] != "proven")
    };
    let report = scene.wait("unknown", |report| {
        blind(report)
            && report["verdict"]["reason"]
                .as_str()
                .is_some_and(|reason| reason.starts_with("nothing is observed: "))
    });
    assert!(report["verdict"].to_string().contains(why), "{report:#}");
    let text = scene.metrics();
    let loss = [format!("loss=\"{loss}\"")];
    assert!(
        metric(&text, "pathproof_coverage_loss", &loss) > 0,
        "{text}"
    );
    let unknown = ["state=\"unknown\""];
    assert_eq!(
        metric(&text, "pathproof_state", &unknown),
        2,
        "one for each family: {text}"
    );
    let none: [&str; 0] = [];
    let attached = metric(&text, "pathproof_observer_devices_attached", &none);
    assert_eq!(attached, 0, "{text}");
    let log = scene.agent().log();
    assert!(log.contains(why), "{log}");
    throughout(std::time::Duration::from_secs(2), || {
        let report = scene.report();
        assert!(blind(&report), "{report:#}");
    });
}

#[test]
fn a_kernel_that_refuses_the_observer_is_unknown() {
    let mut scene = Scene::bare(Backend::Nftables);
    scene.pod_traffic();
    for (kernel, said) in [
        (OldKernel::NoBpf, "(os error 38)"),
        (OldKernel::NoMaps, "(os error 22)"),
        // Here the reason has no error number: the loader finds out by test programs, and does not report
        // one.
        (OldKernel::NoPrograms, "error"),
    ] {
        println!("{kernel:?}");
        scene.start_on(kernel, &[]);
        assert_blind(&scene, "not_loaded", "it needs Linux 6.1 or newer");
        let reason = scene.report()["verdict"]["reason"].to_string();
        assert!(reason.contains(said), "{reason}");
        assert!(reason.len() < 1000, "a sentence: {reason}");
        let log = scene.agent().log();
        assert!(log.contains("the verdict is Unknown"), "{log}");

        // In state Unknown the default answer is 200, but 503 while the node is being removed.
        assert_eq!(scene.asked("/healthz"), 200);
        scene.manifests.taint(AUTOSCALER_TAINT).expect("taint");
        eventually("503", || scene.asked("/healthz") == 503);
        assert_eq!(scene.asked("/livez"), 200);
        scene.manifests.untaint().expect("no taint");
        let status = scene.take_agent().terminate().expect("an end in order");
        assert_eq!(status.code(), Some(0));
    }
    // On a kernel with all features, the node is proven.
    scene.start(&[]);
    scene.wait_proven();
}

/// If the kernel refuses the agent, perhaps for lack of memory, the agent keeps the maps that an earlier
/// agent pinned. That agent's programs continue to count in them, and the next agent takes the maps over.
#[test]
fn a_refusal_leaves_pinned_maps_alone() {
    let mut scene = Scene::new(Backend::Nftables, &[]);
    let plan = scene.pod_plan("client-1", scene.cluster_ip("web", Family::V4));
    for (turn, kernel) in [OldKernel::NoMaps, OldKernel::NoPrograms]
        .into_iter()
        .enumerate()
    {
        let turn = turn as u16;
        scene.take_agent().kill().expect("kill");
        scene.start_on(kernel, &[]);
        scene.wait("no observer", |report| lacks(report, "not_loaded"));
        plan.once(turn).expect("an answer");
        let proven = || counted(&scene.world, Outcome::Proven);
        let wanted = u64::from(turn) + 1;
        eventually("counted all the same", || proven() == wanted);
        scene.take_agent().terminate().expect("an end in order");
        scene.start(&[]);
        assert_eq!(counted(&scene.world, Outcome::Proven), wanted);
    }
}

#[test]
fn requiring_tcx_on_a_kernel_without_it_is_unknown() {
    let mut scene = Scene::bare(Backend::Nftables);
    scene.start_on(OldKernel::NoTcx, &["--attach", "tcx"]);
    scene.pod_traffic();
    assert_blind(&scene, "detached", "cannot attach to ");
    let report = scene.report();
    let device = device_of(&report, "veth-client-1").expect("listed");
    assert_eq!(device["attached"], "none", "{report:#}");
    assert!(device["problem"].is_string(), "{report:#}");
    let log = scene.agent().log();
    let told = log.matches("not attached device=veth-client-1 ").count();
    assert_eq!(told, 1, "the problem is logged once: {log}");
    assert_eq!(scene.asked("/healthz"), 200);
}

/// Linux before 6.6 has no TCX, so the agent attaches clsact filters.
#[test]
fn without_tcx_filters_do_the_same() {
    let mut scene = Scene::bare(Backend::Nftables);
    scene.start_on(OldKernel::NoTcx, &[]);
    scene.traffic();
    let report = scene.wait_proven();
    let devices = report["devices"].as_array().expect("devices");
    assert!(
        !devices.is_empty() && devices.iter().all(|one| one["attached"] == "clsact"),
        "{report:#}"
    );
    let watch = scene.watch();
    scene.break_and_mend(&watch);
    scene.wait_proven();
}
