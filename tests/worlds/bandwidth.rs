//! The CNI plugins bandwidth and portmap as they ship, chained behind the pods' own plugin as k3s and
//! containerd do it: a pod's packets pass an ifb device, which shapes them, and come back to the pod's
//! device; host ports have rules of their own beside kube-proxy's.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use node_tests::built;
use node_tests::built::versions::CNI;
use node_tests::rules::Backend;
use node_tests::scene::Scene;
use node_tests::world::{Family, Namespace, Place, Pod};
use serde_json::{Value, json};

use crate::parts::{idle_then_busy, packets};

/// A port of the node that leads to `web-1`.
const HOST_PORT: u16 = 18_080;

#[test]
fn the_way_by_an_ifb_is_no_leak() {
    let Some(plugins) = plugins() else { return };
    let mut scene = Scene::idle(Backend::IptablesNft, &[]);
    let here = scene.world.pods().filter(|pod| pod.place != Place::Remote);
    for pod in here {
        let rate = json!({
            "ingressRate": 100_000_000, "ingressBurst": 10_000_000,
            "egressRate": 100_000_000, "egressBurst": 10_000_000,
        });
        add(&scene.world.node, &plugins, "bandwidth", pod, rate);
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

/// Their folder; nothing, loudly, where they were not built.
fn plugins() -> Option<PathBuf> {
    let folder = built::folder("cni", CNI);
    let missing = ["bandwidth", "portmap"].map(|name| folder.join(name));
    if let Some(missing) = missing.iter().find(|file| !file.is_file()) {
        let missing = missing.display();
        eprintln!("SKIPPED: bandwidth needs {missing} (run `cargo xtask test --worlds`)");
        return None;
    }
    Some(folder)
}

/// Runs a plugin for a pod, as a container runtime does after the plugin that made the pod's device.
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
