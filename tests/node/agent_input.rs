//! Bad input while the agent runs: the agent reports the problem and keeps the last valid view. The file also
//! tests the answers in audit mode and in state Unknown.

use std::fs;

use node_tests::prelude::*;

fn problems(report: &Value) -> Vec<String> {
    let problems = report["cluster"]["problems"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    problems
        .iter()
        .map(|one| one.as_str().unwrap_or_default().to_owned())
        .collect()
}

/// A broken file or an invalid object is reported with its line, and the last valid view stays in force.
#[test]
fn a_broken_file_leaves_the_last_good_view() {
    let scene = Scene::proven(Backend::Nftables, &[]);
    let watch = scene.watch();
    let manifests = &scene.manifests;
    let file = |name: &str| fs::read_to_string(manifests.dir().join(name)).expect("a manifest");
    let good = file("service-api.yaml");
    let size = scene.report()["expectations"].clone();

    let broken = good.replacen("  ports:\n", "  ports: [\n", 1);
    assert_ne!(broken, good);
    manifests
        .write_file("service-api.yaml", &broken)
        .expect("break a file");
    let report = scene.wait("the broken file named", |report| {
        problems(report)
            .iter()
            .any(|problem| problem.contains("service-api.yaml:"))
    });
    assert_eq!(
        report["expectations"], size,
        "the last good view stays: {report:#}"
    );
    eventually("in metrics", || {
        let none: [&str; 0] = [];
        let text = scene.metrics();
        metric(&text, "pathproof_view_problems", &none) > 0
    });
    assert!(
        scene.agent().log().contains("service-api.yaml:"),
        "and in the log"
    );

    let invalid = good.replacen("port: 80\n", "port: 80000\n", 1);
    manifests
        .write_file("service-api.yaml", &invalid)
        .expect("write");
    let report = scene.wait("the invalid object named", |report| {
        problems(report)
            .iter()
            .any(|problem| problem.contains("service-api.yaml:") && problem.contains("80000"))
    });
    assert_eq!(report["expectations"], size, "{report:#}");

    manifests
        .write_file("service-api.yaml", &good)
        .expect("mend the file");
    scene.wait("no problems", |report| problems(report).is_empty());

    manifests.write_file("twice.yaml", &good).expect("write");
    scene.wait("the duplicate named", |report| {
        problems(report)
            .iter()
            .any(|problem| problem.contains("twice.yaml") && problem.contains("service-api.yaml"))
    });
    fs::remove_file(manifests.dir().join("twice.yaml")).expect("remove");
    let report = scene.wait("no problems", |report| problems(report).is_empty());
    assert_eq!(report["expectations"], size, "{report:#}");

    // An object of another kind is ignored and not reported as a problem.
    let other = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: x\n";
    manifests.write_file("other.yaml", other).expect("write");
    scene.wait("counted as ignored", |report| {
        report["cluster"]["ignored"] == 1
    });
    scene.wait_proven();
    node_tests::scene::assert_never_503(&watch);
}

#[rstest]
#[case::open("open", 200)]
#[case::closed("closed", 503)]
fn an_empty_folder_is_unknown(#[case] policy: &str, #[case] status: u16) {
    let mut scene = Scene::bare(Backend::Nftables);
    let empty = scene.world.dir().join("empty");
    fs::create_dir(&empty).expect("make a folder");
    let folder = empty.to_string_lossy().into_owned();
    scene.spawn(&["--manifests", &folder, "--unknown-policy", policy]);
    let report = scene.wait("unknown", |report| {
        report["verdict"]["why"] == "nothing_expected" && report["cluster"]["synced"] == true
    });
    assert_eq!(report["verdict"]["state"], "unknown", "{report:#}");
    assert_eq!(
        report["verdict"]["eligibility"]["state"], "never_seen",
        "{report:#}"
    );
    let missing = report["cluster"]["missing_node"].to_string();
    assert!(missing.contains("no Node is named"), "{report:#}");
    assert_eq!(scene.asked("/healthz"), status);
    let livez = scene.asked("/livez");
    assert_eq!(livez, status, "{:#}", scene.report());
    // The agent reads files that are added to the folder later.
    for file in fs::read_dir(scene.manifests.dir()).expect("list").flatten() {
        fs::copy(file.path(), empty.join(file.file_name())).expect("copy");
    }
    scene.traffic();
    scene.wait_proven();
    eventually("200", || {
        scene.agent().healthz().is_ok_and(|code| code == 200)
    });
}

/// The manifests' folder vanishes while the agent runs. The agent reports this and keeps the last valid view.
#[test]
fn a_folder_that_vanishes_is_reported() {
    let scene = Scene::proven(Backend::Nftables, &[]);
    let away = scene.world.dir().join("away");
    fs::rename(scene.manifests.dir(), &away).expect("move the folder");
    scene.wait("told", |report| !problems(report).is_empty());
    let report = scene.report();
    assert_eq!(report["expectations"]["services"], 3, "{report:#}");
    fs::rename(&away, scene.manifests.dir()).expect("move it back");
    scene.wait("no problems", |report| problems(report).is_empty());
    scene.wait_proven();
}

/// In audit mode, the agent judges and reports as usual, but the datapath never causes a 503.
#[test]
fn audit_answers_200_and_reports_what_it_would_do() {
    let extra = ["--enforcement", "audit"];
    let mut scene = Scene::proven(Backend::Nftables, &extra);
    let watch = scene.watch();
    let agent = scene.take_agent();
    let would_fail = || {
        let text = agent.metrics().expect("metrics");
        ["healthz", "livez"].map(|check| {
            let label = [format!("check=\"{check}\"")];
            metric(&text, "pathproof_would_fail", &label)
        })
    };
    assert_eq!(would_fail(), [0, 0]);
    scene.rules.flush_services().expect("flush");
    let broken = || {
        agent
            .verdict()
            .is_ok_and(|report| report["verdict"]["state"] == "broken")
    };
    eventually("broken", broken);
    eventually("would fail", || would_fail() == [1, 1]);
    thread::sleep(Duration::from_millis(500));
    node_tests::scene::assert_never_503(&watch);
    assert!(
        watch
            .wait(PATIENCE, |codes| codes.healthz == 200 && codes.livez == 200)
            .is_ok()
    );
    scene.rules.install().expect("install again");
    eventually("would not fail", || would_fail() == [0, 0]);
    // Audit mode affects the datapath only: a node that is being removed still answers 503.
    scene.manifests.taint(AUTOSCALER_TAINT).expect("taint");
    watch
        .wait(PATIENCE, |codes| codes.healthz == 503 && codes.livez == 200)
        .expect("503");
}

/// No problem and no loss of coverage is reported on a healthy node once the start is over.
#[test]
fn a_sound_node_has_no_complaints() {
    let scene = Scene::proven(Backend::Nftables, &[]);
    let report = scene.wait("settled", |report| !lacks(report, "settling"));
    assert_eq!(
        report["verdict"]["coverage"]["losses"]
            .as_array()
            .map(Vec::len),
        Some(0)
    );
    assert!(problems(&report).is_empty(), "{report:#}");
    throughout(Duration::from_secs(1), || {
        assert_eq!(scene.report()["verdict"]["state"], "proven");
    });
    let log = scene.agent().log();
    assert!(!log.contains("WARN") && !log.contains("ERROR"), "{log}");
}
