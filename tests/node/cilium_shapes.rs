//! Beside a datapath in the shape of Cilium's, as it was measured with real agents
//! (docs/cilium.md): what is recognised, what proves, what accuses, and what must not.

use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;
use std::time::Duration;

use node_tests::bpf::{Attached, Code, Hook, Program};
use node_tests::cgroup::Cgroup;
use node_tests::cilium::{Datapath, Rule, Then, connector, socket};
use node_tests::manifests::Sentinel;
use node_tests::rules::Backend;
use node_tests::world::{Family, agent_binary, write_script};
use rstest::rstest;
use serde_json::Value;

use node_tests::scene::{
    PATIENCE, PORT, Scene, assert_never_503, family_of, lane_of, path_of, pods, repairs, services,
    throughout, wait_answers,
};

mod migration;
mod mixed;
mod upgrade;

/// The sentinel's interfaces that face the node.
const CLIENT_NEAR: &str = "pathproof-c0";
const SERVER_NEAR: &str = "pathproof-s0";

/// Services and servers, and neither rules nor an agent.
fn bare() -> Scene {
    // Nobody but the datapath translates: a rule that masquerades would take answers up in their
    // middle, whose beginning went past it.
    let world = pods().masquerade_egress(false).build();
    let world = world.expect("build a world");
    let services = services(&world);
    let mut scene = Scene::of(world, services, Backend::Nftables);
    scene.serve_all();
    scene
}

/// The frontends that outside clients dial, with client and endpoint.
fn outside(scene: &Scene) -> Vec<(u8, SocketAddr, &'static str)> {
    let family = Family::V4;
    let vip = scene.manifests.service("web").load_balancer_ip(family);
    vec![
        (0, SocketAddr::new(vip, 80), "web-1"),
        (1, scene.node_port(30081, family), "api-2"),
        (2, scene.node_port(30082, family), "db-1"),
    ]
}

/// What each pod's cluster IPs lead to.
const INSIDE: [(&str, &str); 3] = [("web", "web-2"), ("api", "api-2"), ("db", "db-1")];
const CLIENTS: [&str; 2] = ["client-1", "client-2"];

/// All of it in Cilium's hands.
fn replacing(scene: &Scene) -> Datapath {
    let world = &scene.world;
    let mut datapath = Datapath::new(world, true).expect("Cilium's devices");
    for (client, frontend, pod) in outside(scene) {
        let client = world.outside_client(client, Family::V4);
        let to = (world.pod(pod), PORT);
        datapath
            .outside(world, client, frontend, to)
            .expect("rules");
    }
    from_pods(scene, &mut datapath);
    datapath
}

/// Cluster IPs from pods, at the pods' own interfaces.
fn from_pods(scene: &Scene, datapath: &mut Datapath) {
    from_pods_to(scene, datapath, INSIDE);
}

fn from_pods_to(scene: &Scene, datapath: &mut Datapath, to: [(&str, &str); 3]) {
    let world = &scene.world;
    for client in CLIENTS {
        for (service, pod) in to {
            let frontend = scene.cluster_ip(service, Family::V4);
            let to = (world.pod(pod), PORT);
            datapath
                .pod(world, world.pod(client), frontend, to)
                .expect("rules");
        }
    }
}

fn dial_from_pods(scene: &mut Scene) {
    for client in CLIENTS {
        for (service, _) in INSIDE {
            scene.dial(client, service, Family::V4, 6.0);
        }
    }
}

fn dial_from_outside(scene: &mut Scene) {
    for (client, target, _) in outside(scene) {
        scene.dial_outside(client, target, 6.0);
    }
}

fn v4(report: &Value) -> &Value {
    family_of(report, Family::V4)
}

/// Both paths of IPv4 are proven.
fn wait_both(scene: &Scene) -> Value {
    scene.wait("pods and outside proven", |report| {
        v4(report)["state"] == "proven"
            && ["pod", "external"]
                .iter()
                .all(|path| path_of(report, Family::V4, path) == "proven")
    })
}

fn xdp(scene: &Scene) -> Attached {
    let uplink = scene.world.node.ifindex("eth0").expect("the uplink");
    let attach = || {
        // XDP_PASS.
        let program = Program::load(Hook::Xdp, "cil_xdp_entry", &Code::returning(2));
        program?.attach(uplink)
    };
    scene.world.node.run(attach).expect("an XDP program")
}

/// With no more than these, names of programs cannot be read.
const FOUR_CAPABILITIES: &str =
    "setpriv --no-new-privs --inh-caps -all --bounding-set -all,+bpf,+net_admin,+perfmon,+net_raw";

/// Starts the agent in a cgroup, with no more than `wrapper` leaves it.
fn start_in(scene: &mut Scene, cgroup: &Cgroup, wrapper: &str) {
    let file = in_cgroup(scene, cgroup, wrapper);
    scene.spawn_binary(file, &[]);
    let agent = scene.agent.as_mut().expect("just started");
    agent.wait_ready(PATIENCE).expect("a ready agent");
}

/// A program that runs the agent so.
fn in_cgroup(scene: &Scene, cgroup: &Cgroup, wrapper: &str) -> PathBuf {
    let agent = agent_binary().expect("the agent's binary");
    let file = scene.world.dir().join("in-cgroup");
    let (cgroup, agent) = (cgroup.path().display(), agent.display());
    let script =
        format!("#!/bin/sh\necho $$ > {cgroup}/cgroup.procs\nexec {wrapper} {agent} \"$@\"\n");
    write_script(&file, &script).expect("a script");
    file
}

/// The sentinel's cluster IP and its endpoint.
fn sentinel(family: Family) -> (SocketAddr, SocketAddr) {
    let frontend = SocketAddr::new(Sentinel::cluster_ip(family), Sentinel::PORT);
    let endpoint = Sentinel::default().endpoints[family as usize];
    (frontend, SocketAddr::new(endpoint, 20_001))
}

/// Sockets of a cgroup that connect to the sentinel are translated.
fn translate_sockets(cgroup: &Cgroup) -> [Attached; 2] {
    let handle = cgroup.handle();
    let hooks = [(Family::V4, Hook::Connect4), (Family::V6, Hook::Connect6)];
    hooks.map(|(family, hook)| {
        let (frontend, endpoint) = sentinel(family);
        let program = Program::load(hook, "cil_sock_lb", &connector(frontend, endpoint));
        program
            .expect("a program")
            .attach(handle as u32)
            .expect("at the cgroup")
    })
}

/// The report's entry for a path; null if there is none.
fn recognised<'a>(report: &'a Value, path: &str) -> &'a Value {
    let paths = report["datapath"]["paths"].as_array();
    let of_path = paths.and_then(|all| all.iter().find(|one| one["path"] == path));
    of_path.unwrap_or(&Value::Null)
}

fn replacement(report: &Value) -> &Value {
    &report["datapath"]["cilium"]["replacement"]
}

/// Everybody got answers since.
fn assert_served(scene: &Scene) {
    for client in &scene.clients {
        let (plan, before) = (client.plan(), client.tally());
        let served =
            node_tests::wait::until(PATIENCE, || (client.tally().ok > before.ok).then_some(()));
        assert!(
            served.is_some(),
            "{} to {}: {before:?}",
            plan.name,
            plan.target
        );
    }
}

#[test]
fn past_every_egress_hook_answers_prove() {
    let mut scene = bare();
    let datapath = replacing(&scene);
    let replaced = datapath.attach(&scene.world).expect("programs");
    scene.start(&[]);
    dial_from_pods(&mut scene);
    dial_from_outside(&mut scene);
    let report = wait_both(&scene);
    // No socket is translated, and nobody else is there.
    assert_eq!(replacement(&report), "unknown");
    assert_eq!(scene.fault("answered_locally"), 0);
    let watch = scene.watch();

    // New programs come before the old ones go: a gap between them would be an outage.
    let mut programs = datapath.attach(&scene.world).expect("programs");
    drop(replaced);
    assert_served(&scene);
    wait_both(&scene);
    assert_eq!(repairs(&scene), 0);
    assert_never_503(&watch);

    // The map of Services is emptied: all of it leaks, or is refused.
    let devices = CLIENTS.map(|client| scene.world.pod(client).device.as_str());
    for device in devices.into_iter().chain(["eth0"]) {
        programs.empty(&scene.world, device).expect("programs");
    }
    wait_answers(&watch, 503);
    let report = scene.report();
    assert_eq!(report["verdict"]["state"], "broken", "{report:#}");
    assert_eq!(path_of(&report, Family::V4, "pod"), "failing");
}

#[test]
fn an_xdp_program_at_the_uplink_is_told() {
    let mut scene = bare();
    let _programs = replacing(&scene).attach(&scene.world).expect("programs");
    scene.start(&[]);
    dial_from_outside(&mut scene);
    let seen = |report: &Value, wanted| recognised(report, "external")["seen"] == wanted;
    scene.wait("all of it seen", |report| seen(report, "full"));
    let program = xdp(&scene);
    // A link brings no notification: another change of the interface does.
    let node = &scene.world.node;
    node.ip("link set eth0 alias uplink").expect("a change");
    let report = scene.wait("a part of it seen", |report| seen(report, "partial"));
    assert_eq!(report["datapath"]["accelerated"][0], "eth0");
    let metrics = scene.metrics();
    assert!(metrics.contains("xdp=\"yes\""), "{metrics}");
    drop(program);
    node.ip("link set eth0 alias again").expect("a change");
    scene.wait("all of it seen", |report| seen(report, "full"));
    assert_eq!(scene.asked("/healthz"), 200);
}

/// Where the wire never carries a cluster IP the node's own probes tell, with the four capabilities
/// that read no names of programs too.
#[rstest]
#[case::as_root("")]
#[case::with_four_capabilities(FOUR_CAPABILITIES)]
fn sockets_that_are_translated_are_probed_from_the_node(#[case] wrapper: &str) {
    let name = "sockets_that_are_translated_are_probed_from_the_node";
    let Some(cgroup) = Cgroup::new(name) else {
        return;
    };
    let mut scene = bare();
    let default = Sentinel::default();
    scene.manifests.put_sentinel(&default).expect("a sentinel");
    let datapath = replacing(&scene);
    let _programs = datapath.attach(&scene.world).expect("programs");
    let [sockets, _v6] = translate_sockets(&cgroup);
    start_in(&mut scene, &cgroup, wrapper);
    let report = scene.wait("proven by the node's own probes", |report| {
        v4(report)["state"] == "proven"
            && replacement(report) == "yes"
            && lane_of(report, Family::V4, "host", "tcp")["armed"] == true
            && lane_of(report, Family::V4, "off_cluster", "tcp")["failed"].as_u64() > Some(0)
    });
    let lane = lane_of(&report, Family::V4, "off_cluster", "tcp");
    assert_eq!(lane["state"], "off", "{lane:#}");
    let notes = report["datapath"]["notes"].to_string();
    assert!(notes.contains(CLIENT_NEAR), "{notes}");
    assert_eq!(scene.asked("/healthz"), 200);
    let watch = scene.watch();

    // Users outside the cluster are served though sockets are not translated any more.
    dial_from_outside(&mut scene);
    scene.wait("outside proven", |report| {
        path_of(report, Family::V4, "external") == "proven"
    });
    drop(sockets);
    scene.wait("degraded", |report| v4(report)["state"] == "degraded");
    throughout(Duration::from_secs(2), || {
        assert_eq!(scene.asked("/healthz"), 200)
    });
    assert_never_503(&watch);
    // Nobody speaks for the node then.
    scene.clients.clear();
    let [sockets, _v6] = translate_sockets(&cgroup);
    scene.wait("proven again", |report| v4(report)["state"] == "proven");
    drop(sockets);
    wait_answers(&watch, 503);
    let _sockets = translate_sockets(&cgroup);
    wait_answers(&watch, 200);
}

/// The sentinel's interfaces in Cilium's hands: its programs end the chain there too.
#[rstest]
#[case::let_go(true)]
#[case::emptied(false)]
fn the_sentinels_interfaces_on_ciliums_list(#[case] let_go: bool) {
    let name = "the_sentinels_interfaces_on_ciliums_list";
    let Some(cgroup) = Cgroup::new(name) else {
        return;
    };
    let mut scene = bare();
    let default = Sentinel::default();
    scene.manifests.put_sentinel(&default).expect("a sentinel");
    let mut datapath = replacing(&scene);
    let _sockets = translate_sockets(&cgroup);
    let programs = datapath.attach(&scene.world).expect("programs");
    start_in(&mut scene, &cgroup, "");
    scene.wait("proven from the node", |report| {
        v4(report)["state"] == "proven"
    });
    drop(programs);
    let (frontend, endpoint) = sentinel(Family::V4);
    let (frontend, endpoint) = (socket(frontend), socket(endpoint));
    datapath.at(CLIENT_NEAR, Hook::Ingress).push(Rule {
        to: Some(frontend),
        destination: Some(endpoint),
        ..Rule::default()
    });
    let client_near = scene.world.node.ifindex(CLIENT_NEAR);
    datapath.at(SERVER_NEAR, Hook::Ingress).push(Rule {
        from: Some(endpoint),
        to: Some(SocketAddrV4::new([198, 18, 0, 1].into(), 0)),
        source: Some(frontend),
        // Past the stack, as Cilium does: the interface has no address, and a reverse path filter
        // would drop what comes in by it from elsewhere.
        then: Then::Neighbour(client_near.expect("an interface")),
        ..Rule::default()
    });
    datapath.at(SERVER_NEAR, Hook::Egress);
    let mut programs = datapath.attach(&scene.world).expect("programs");
    // The next agent finds Cilium's programs there before its own.
    scene.take_agent().kill().expect("kill");
    start_in(&mut scene, &cgroup, "");
    let armed = |report: &Value| {
        let lane = lane_of(report, Family::V4, "off_cluster", "tcp");
        lane["armed"] == true && lane["state"] == "passing"
    };
    let report = scene.wait("armed", armed);
    assert_eq!(report["datapath"]["sentinel_managed"], "yes", "{report:#}");
    let watch = scene.watch();
    if let_go {
        // Taken off the list: nobody's users meet these interfaces.
        programs.detach(CLIENT_NEAR);
        programs.detach(SERVER_NEAR);
        scene.wait("let go", |report| {
            report["datapath"]["sentinel_managed"] == "no"
        });
        throughout(Duration::from_secs(5), || {
            assert_eq!(scene.asked("/healthz"), 200)
        });
        assert_never_503(&watch);
    } else {
        programs.empty(&scene.world, CLIENT_NEAR).expect("programs");
        wait_answers(&watch, 503);
        let report = scene.report();
        assert_eq!(report["verdict"]["cause"], "leaked", "{report:#}");
    }
}
