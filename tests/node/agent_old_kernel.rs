//! Kernels that lack what the observer takes. The agent runs on: that nothing is observed is no
//! fault of the node, and is said; whether the node is being removed is still answered.

use agent_common::evidence::Outcome;
use node_tests::manifests::AUTOSCALER_TAINT;
use node_tests::rules::Backend;
use node_tests::world::{Family, OldKernel};
use serde_json::Value;

use crate::agent_kernel::counted;
use node_tests::scene::{Scene, device_of, eventually, in_both, lacks, metric, throughout};

/// The verdict is Unknown for want of an observer, for this reason, and traffic changes nothing.
fn assert_blind(scene: &Scene, loss: &str, why: &str) {
    let blind = |report: &Value| {
        report["verdict"]["state"] == "unknown"
            && lacks(report, loss)
            && in_both(report, |of| of["state"] != "proven")
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
        // The loader finds out by programs of its own, and has no number to show.
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

        // 200 is the default for what is not known. A node that is being removed is known.
        assert_eq!(scene.asked("/healthz"), 200);
        scene.manifests.taint(AUTOSCALER_TAINT).expect("taint");
        eventually("503", || scene.asked("/healthz") == 503);
        assert_eq!(scene.asked("/livez"), 200);
        scene.manifests.untaint().expect("no taint");
        let status = scene.take_agent().terminate().expect("an end in order");
        assert_eq!(status.code(), Some(0));
    }
    // On a better kernel it sees.
    scene.start(&[]);
    scene.wait_proven();
}

/// A kernel that refuses, for want of memory perhaps, says nothing against the maps that a former
/// agent pinned: its programs go on counting in them, and the next agent finds them.
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

/// Told to use TCX alone where there is none.
#[test]
fn nothing_but_tcx_where_there_is_none_is_unknown() {
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
    assert_eq!(told, 1, "it stays the same: {log}");
    assert_eq!(scene.asked("/healthz"), 200);
}

/// Linux before 6.6.
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
