//! The real CNI plugins bandwidth and portmap, chained after the pods' plugin as with k3s and containerd. A
//! pod's packets pass an ifb device, which shapes them, and return to the pod's device. Host ports have rules
//! in addition to kube-proxy's.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use node_tests::built;
use node_tests::built::versions::CNI;
use node_tests::prelude::*;
use node_tests::world::Pod;

use crate::parts::{everybody_is_served, idle_then_busy, packets};

/// A host port of the node that leads to `web-1`.
const HOST_PORT: u16 = 18_080;

#[test]
fn a_detour_through_an_ifb_is_no_leak() {
    let plugins = needs!(plugins());
    let mut scene = Scene::idle(Backend::IptablesNft, &[]);
    let here = scene.world.pods().filter(|pod| pod.place != Place::Remote);
    for pod in here {
        add(&scene.world.node, &plugins, "bandwidth", pod, rate());
    }
    let web = scene.world.pod("web-1");
    let ports = json!([{ "hostPort": HOST_PORT, "containerPort": 8080, "protocol": "tcp" }]);
    let config = json!({ "runtimeConfig": { "portMappings": ports }, "snat": true });
    add(&scene.world.node, &plugins, "portmap", web, config);
    let host_port = scene.node_port(HOST_PORT, Family::V4);
    scene.dial_outside(0, host_port, 10.0);
    idle_then_busy(&mut scene);
    let shaped = packets(&scene.world.node, "type ifb");
    assert!(shaped > 1_000, "{shaped} packets passed the ifb devices");
}

/// Without TCX the agent adds a qdisc to a pod's device. If the device is new, the agent must wait, because
/// the plugin adds a conflicting qdisc a moment later.
#[test]
fn the_plugin_finds_no_qdisc_of_the_agent() {
    let plugins = needs!(plugins());
    let mut scene = Scene::busy(Backend::IptablesNft, &["--attach", "clsact"]);
    let watch = scene.watch();
    let names = ["plain", "shaped"];
    for name in names {
        scene.world.add_pod(name, Place::Local).expect("a new pod");
        for family in Family::ALL {
            scene.dial(name, "web", family, 10.0);
        }
    }
    let attached = |report: &Value, pod: &str| {
        let device = device_of(report, &scene.world.pod(pod).device)?;
        Some((device["attached"] != "none", device["problem"].to_string()))
    };
    let is_new = |report: &Value, pod| {
        attached(report, pod).is_some_and(|(is, problem)| !is && problem.contains("it is new"))
    };
    // A new device without the observer is neither a loss of coverage nor a fault.
    let report = scene.wait("both left alone", |report| {
        names.iter().all(|name| is_new(report, name))
    });
    assert!(!lacks(&report, "detached"), "{report:#}");
    thread::sleep(Duration::from_millis(200));
    let shaped = scene.world.pod("shaped");
    add(&scene.world.node, &plugins, "bandwidth", shaped, rate());
    let report = scene.wait("the other pod observed", |report| {
        attached(report, "plain").is_some_and(|(is, _)| is)
    });
    let (is, problem) = attached(&report, "shaped").expect("listed");
    assert!(
        !is && problem.contains("qdisc of kind ingress"),
        "{report:#}"
    );
    assert!(lacks(&report, "detached"), "{report:#}");
    everybody_is_served(&scene);
    for (family, failure) in Family::ALL.into_iter().flat_map(|family| {
        ["leaked", "lost", "refused", "misrouted", "stale"].map(|failure| (family, failure))
    }) {
        let count = scene.count("web", family, "pod", failure);
        assert_eq!(count, 0, "{family:?} {failure}");
    }
    assert_never_503(&watch);
}

fn rate() -> Value {
    json!({
        "ingressRate": 100_000_000, "ingressBurst": 10_000_000,
        "egressRate": 100_000_000, "egressBurst": 10_000_000,
    })
}

/// Folder of the plugins, which `cargo xtask test --worlds` builds.
fn plugins() -> Needed<PathBuf> {
    let folder = built::folder("cni", CNI);
    for name in ["bandwidth", "portmap"] {
        skip::needed(built::program(&folder, name).context(name))?;
    }
    Ok(folder)
}

/// Runs a plugin for a pod, as a container runtime does after it created the pod's device.
fn add(node: &Namespace, plugins: &Path, plugin: &str, pod: &Pod, config: Value) {
    let sandbox = format!("/run/netns/{}", pod.ns.name());
    let mut conf = json!({
        "cniVersion": "1.0.0", "name": "pods", "type": plugin,
        "prevResult": {
            "cniVersion": "1.0.0",
            "interfaces": [{ "name": pod.device }, { "name": "eth0", "sandbox": sandbox }],
            "ips": [
                { "interface": 1, "address": format!("{}/32", pod.v4) },
                { "interface": 1, "address": format!("{}/128", pod.v6) },
            ],
        },
    });
    let whole = conf.as_object_mut().expect("an object");
    whole.extend(config.as_object().expect("an object").clone());
    let env = [
        ("CNI_COMMAND", OsStr::new("ADD")),
        ("CNI_CONTAINERID", OsStr::new(&pod.name)),
        ("CNI_NETNS", OsStr::new(&sandbox)),
        ("CNI_IFNAME", OsStr::new("eth0")),
        ("CNI_PATH", plugins.as_os_str()),
    ];
    let program = plugins.join(plugin).to_string_lossy().into_owned();
    let done = node.feed_with(&program, &[], &env, &conf.to_string());
    done.expect("a plugin that adds");
}
