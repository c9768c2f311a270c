//! Two agents at once beside Cilium: neither takes the other's programs for Cilium's.

use std::time::Duration;

use node_tests::cgroup::Cgroup;
use node_tests::cilium::Datapath;
use node_tests::manifests::Sentinel;
use node_tests::world::Family;
use serde_json::Value;

use super::{FOUR_CAPABILITIES, bare, in_cgroup, replacement, start_in, translate_sockets};
use node_tests::scene::{PATIENCE, assert_never_503, lane_of, throughout};

/// Sockets are translated, so that one more program at what leaves by the uplink would look like the
/// replacement. Without names of programs, as in a pod.
#[test]
fn a_successors_programs_are_not_ciliums() {
    let name = "a_successors_programs_are_not_ciliums";
    let Some(cgroup) = Cgroup::new(name) else {
        return;
    };
    let mut scene = bare();
    scene.rules.install().expect("the rules");
    scene.add_sentinel(&Sentinel::default());
    let datapath = Datapath::new(&scene.world, false).expect("Cilium's devices");
    let _programs = datapath.attach(&scene.world).expect("programs");
    let _sockets = translate_sockets(&cgroup);
    start_in(&mut scene, &cgroup, FOUR_CAPABILITIES);
    scene.wait("mixed, and probed", |report| {
        replacement(report) == "no"
            && lane_of(report, Family::V4, "node_port", "tcp")["armed"] == true
    });
    let watch = scene.watch();

    let script = in_cgroup(&scene, &cgroup, FOUR_CAPABILITIES);
    let next = scene.world.spawn_agent(&script, scene.manifests.dir(), &[]);
    let mut next = next.expect("start a successor");
    next.wait_ready(PATIENCE).expect("ready");
    // Longer than either leaves the shape alone while there is a sentinel.
    throughout(Duration::from_secs(8), || {
        // Either answers, and the successor does so before it has looked.
        let report = scene.report();
        let said = [
            replacement(&report),
            &report["datapath"]["sentinel_managed"],
        ];
        let may = |said: &Value| said == "no" || said.is_null() || said == "unknown";
        assert!(said.into_iter().all(may), "{:#}", report["datapath"]);
    });
    // Both write there.
    let log = next.log();
    let looked = log.matches("the recognised datapath changed").count();
    assert!(looked >= 2, "either says its first shape:\n{log}");
    assert!(
        !log.contains("replaces kube-proxy") && !log.contains("may replace"),
        "{log}"
    );
    next.kill().expect("kill");
    scene.wait("the predecessor's lanes are armed still", |report| {
        replacement(report) == "no"
            && lane_of(report, Family::V4, "node_port", "tcp")["armed"] == true
    });
    assert_never_503(&watch);
}
