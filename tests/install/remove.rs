//! Removal: kube-proxy answers at 10256 again at once, and after the cleanup nothing is left on the node.

use node_tests::deploy;
use node_tests::prelude::*;

use crate::scene::{PATIENCE, Scene};

#[test]
fn an_uninstall_leaves_10256_answered_and_a_cleanup_leaves_nothing() {
    let scene = needs!(Scene::with_chart());
    let prober = scene.node.watch().expect("a prober");
    let devices = || scene.node.world.node.ip("-o link show").expect("devices");
    assert!(devices().contains("pathproof"), "the sentinel has devices");
    let uninstall = [
        "uninstall",
        "pathproof",
        "-n",
        "pathproof",
        "--wait",
        "--timeout=60s",
    ];
    scene.node.desk.helm(&uninstall).expect("an uninstall");
    scene.wait("no agent answers", || scene.node.admin("/verdict").is_err());
    // An agent that exits removes its devices, but leaves its programs for the next agent.
    let left = until(PATIENCE, || {
        (!devices().contains("pathproof")).then_some(())
    });
    assert!(left.is_some(), "{}", devices());
    let pins = || {
        scene
            .node
            .run("find", &["/sys/fs/bpf", "-path", "*pathproof*"])
    };
    assert!(
        pins().expect("pins").contains("pathproof"),
        "the pins are gone"
    );
    assert!(scene.programs() > 0, "no program is attached");

    let cleanup = deploy::folder().join("cleanup");
    let cleanup = cleanup.to_str().expect("UTF-8");
    scene.kubectl_with(&["apply", "-k", cleanup]);
    scene.kubectl("-n pathproof-cleanup rollout status daemonset/pathproof-cleanup --timeout 60s");
    let pods = "-n pathproof-cleanup get pods -o name";
    let pod = scene.kubectl(pods);
    let log = scene.kubectl(&format!(
        "-n pathproof-cleanup logs -c cleanup {}",
        pod.trim()
    ));
    assert!(log.contains("the observer is detached"), "{log}");
    scene.kubectl_with(&["delete", "-k", cleanup, "--timeout=60s"]);
    assert_eq!(pins().expect("pins"), "");
    assert_eq!(scene.programs(), 0, "still attached");
    let folders = ["/run/pathproof", "/var/lib/pathproof", "-mindepth", "1"];
    let kept = scene.node.run("find", &folders);
    assert_eq!(kept.expect("the agent's folders"), "");

    // The patch of docs/operations.md that removes the condition.
    let delete = r#"{"status":{"conditions":[{"type":"ServiceDatapathReady","$patch":"delete"}]}}"#;
    let patch = [
        "patch",
        "node/node-1",
        "--subresource=status",
        "--type=strategic",
        "-p",
        delete,
    ];
    scene.kubectl_with(&patch);
    assert_eq!(scene.node.condition("ServiceDatapathReady"), "");
    assert_eq!(scene.node.condition("Ready"), "True", "kubelet's is gone");

    scene.assert_always_200(&prober);
    drop(prober);
    let proxy = scene.node.proxy();
    assert_eq!(
        proxy.ask("/healthz").expect("kube-proxy answers").status,
        200
    );
}
