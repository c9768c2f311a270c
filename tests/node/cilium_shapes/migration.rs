//! From kube-proxy to Cilium's replacement: whose rules may go.

use std::time::Duration;

use node_tests::bpf::{Attached, Code, Hook, Program};
use node_tests::cgroup::Cgroup;
use node_tests::cilium::Datapath;
use node_tests::manifests::Sentinel;
use node_tests::world::Family;
use rstest::rstest;
use serde_json::json;

use super::{
    assert_served, bare, dial_from_outside, dial_from_pods, from_pods, recognised, replacement,
    replacing, start_in, translate_sockets, wait_both,
};
use node_tests::scene::{assert_never_503, lane_of, throughout, wait_answers};

/// Cilium keeps the agent's cgroup from binding node ports, as where it serves these.
fn guard_node_ports(cgroup: &Cgroup) -> Attached {
    let pass = Code::returning(1);
    let program = Program::load(Hook::PostBind4, "cil_sock4_post_bind", &pass);
    program
        .expect("a program")
        .attach(cgroup.handle() as u32)
        .expect("at the cgroup")
}

/// kube-proxy's rules go when Cilium has taken its part over; the same without Cilium's is a fault.
#[rstest]
#[case::taken_over(true)]
#[case::not_taken_over(false)]
fn rules_that_kube_proxy_leaves_behind_may_go(#[case] taken_over: bool) {
    let name = "rules_that_kube_proxy_leaves_behind_may_go";
    let Some(cgroup) = Cgroup::new(name) else {
        return;
    };
    let mut scene = bare();
    scene.rules.install().expect("the rules");
    scene.add_sentinel(&Sentinel::default());
    start_in(&mut scene, &cgroup, "");
    scene.wait_probed();
    let watch = scene.watch();
    let mut datapath = match taken_over {
        true => replacing(&scene),
        false => Datapath::new(&scene.world, false).expect("Cilium's devices"),
    };
    from_pods(&scene, &mut datapath);
    let _programs = datapath.attach(&scene.world).expect("programs");
    let sockets = taken_over.then(|| (translate_sockets(&cgroup), guard_node_ports(&cgroup)));
    let expected = if taken_over { "yes" } else { "no" };
    scene.wait("recognised", |report| {
        replacement(report) == expected && recognised(report, "pod")["owners"] == json!(["cilium"])
    });
    scene.wait("armed again", |report| {
        lane_of(report, Family::V4, "host", "tcp")["armed"] == true
            && lane_of(report, Family::V4, "off_cluster", "tcp")["state"] == "passing"
    });
    scene.rules.remove().expect("remove");
    if !taken_over {
        wait_answers(&watch, 503);
        return;
    }
    throughout(Duration::from_secs(8), || {
        assert_eq!(scene.asked("/healthz"), 200)
    });
    dial_from_pods(&mut scene);
    dial_from_outside(&mut scene);
    assert_served(&scene);
    wait_both(&scene);
    assert_never_503(&watch);
    drop(sockets);
}
