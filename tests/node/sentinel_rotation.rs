//! The sentinel's endpoint moves from one generation to the next. The agent measures the lag of the rules,
//! and a rotation causes no failure. `pathproof_judge::verdict` tests that rules count as stale after two
//! minutes.

use node_tests::prelude::*;

const PATHS: [&str; 3] = ["off_cluster", "node_port", "host"];

/// Changes the generation in the agent's view. The rules do not follow.
fn move_endpoint(scene: &Scene, generation: u16) {
    let sentinel = Sentinel {
        generation,
        ..Sentinel::default()
    };
    scene
        .manifests
        .put_sentinel(&sentinel)
        .expect("the sentinel");
}

/// Whether the condition holds for every TCP lane.
fn every(report: &Value, says: impl Fn(&Value) -> bool) -> bool {
    let lanes = |family| PATHS.map(|path| lane_of(report, family, path, "tcp"));
    Family::ALL
        .into_iter()
        .all(|family| lanes(family).iter().all(|lane| says(lane)))
}

#[test]
fn the_lag_of_the_rules_is_measured() {
    let scene = Scene::idle(Backend::Nftables, &[]);
    let watch = scene.watch();
    wait_answers(&watch, 200);
    let mut expected = Vec::new();
    for generation in [20_002_u16, 20_003, 20_004] {
        let begun = Instant::now();
        move_endpoint(&scene, generation);
        let behind = scene.wait("every lane is late", |report| {
            every(report, |lane| {
                lane["wanted"] == generation && lane["late"].is_u64()
            })
        });
        let received = begun.elapsed();
        assert!(
            every(&behind, |lane| lane["state"] == "passing"),
            "{behind:#}"
        );
        std::thread::sleep(Duration::from_millis(700));
        let least = begun.elapsed().saturating_sub(received);
        scene.rules.install().expect("the rules follow");
        let most = begun.elapsed();
        let followed = scene.wait("every lane follows", |report| {
            every(report, |lane| {
                lane["generation"] == generation && lane["late"].is_null()
            })
        });
        // The lag counts from the time when the agent read the file. That is after the file was written, and
        // before the lanes were reported as late.
        assert!(
            every(&followed, |lane| {
                let lag = Duration::from_nanos(lane["lag"].as_u64().unwrap_or_default());
                least <= lag && lag <= most + Duration::from_millis(600)
            }),
            "between {least:?} and {most:?}: {followed:#}"
        );
        expected.push(most);
    }
    assert_never_503(&watch);
    let metrics = scene.metrics();
    for family in ["IPv4", "IPv6"] {
        for path in PATHS {
            let series =
                format!("pathproof_programming_lag_seconds{{family=\"{family}\",path=\"{path}\"}}");
            assert!(metrics.contains(&series), "{series}\n{metrics}");
        }
    }
    let series = "pathproof_rotation_lag_seconds_count 18";
    assert!(metrics.contains(series), "{series}\n{metrics}");
    // Neither the lag nor its end may count as a failure.
    let report = scene.report();
    assert!(every(&report, |lane| lane["failed"] == 0), "{report:#}");
    assert_eq!(report["verdict"]["state"], "proven");
}

/// The rules follow a new generation before the agent has read it, so they lead to an endpoint that is not in
/// the agent's view.
#[test]
fn rules_that_are_ahead_are_no_fault() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let watch = scene.watch();
    wait_answers(&watch, 200);
    for (held, ahead) in [
        ("198.18.0.2:20001", "198.18.0.2:20002"),
        ("[2001:2::2]:20001", "[2001:2::2]:20002"),
    ] {
        let address = |text: &str| text.parse().expect("an address");
        scene
            .rules
            .redirect(address(held), address(ahead))
            .expect("redirect");
    }
    scene.wait("probes go ahead", |report| {
        every(report, |lane| {
            lane["wanted"] == 20_001 && lane["generation"] == 20_002
        })
    });
    std::thread::sleep(Duration::from_secs(3));
    let report = scene.report();
    assert!(
        every(&report, |lane| lane["failed"] == 0
            && lane["late"].is_null()),
        "{report:#}"
    );
    assert_eq!(report["verdict"]["state"], "proven");
    // When the agent's view follows, the measured lag is zero.
    move_endpoint(&scene, 20_002);
    scene.wait("no lag", |report| {
        every(report, |lane| lane["wanted"] == 20_002 && lane["lag"] == 0)
    });
    assert_never_503(&watch);
}
