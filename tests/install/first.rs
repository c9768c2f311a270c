//! From the shipped manifests to the first 200, with exactly the rights that the manifests give.

use std::net::Ipv4Addr;

use node_tests::http;
use node_tests::prelude::*;
use node_tests::world::ADMIN_PORT;

use crate::scene::{PATIENCE, Scene};

/// The four capabilities in the manifests: BPF (39), PERFMON (38), NET_RAW (13) and NET_ADMIN (12).
const FOUR: &str = "000000c000003000";
/// The two capabilities that the running agent keeps (docs/internal/design/shell.md#privileges): NET_RAW and
/// NET_ADMIN.
const TWO: &str = "0000000000003000";
/// Number of seccomp filters that the agent itself installs.
const OWN_FILTERS: u32 = 3;

#[test]
fn the_shipped_manifests_bring_a_node_to_200_with_the_rights_they_name() {
    let scene = needs!(Scene::shipped());
    scene.wait_codes(200, 200);
    scene.wait_condition("True");
    scene.kubectl("-n pathproof rollout status deployment/pathproof-rotator --timeout 60s");
    scene.kubectl("-n pathproof rollout status daemonset/pathproof-echo --timeout 60s");
    // Only the first family is probed: without DNS, the pod probe gets its Service's address from kubelet's
    // environment variable.
    scene.wait("pods' path proven without a setting for this node", || {
        let report = scene.node.verdict().unwrap_or_default();
        path_of(&report, Family::V4, "pod") == "proven"
    });
    scene.assert_restricted("pathproof-echo");
    scene.assert_calm_log();
    scene.assert_lost_network_is_named();

    let pod = scene.agent();
    let container = &pod["status"]["containerStatuses"][0];
    assert_eq!(container["restartCount"], 0, "{pod:#}");
    let shipped = &pod["spec"]["containers"][0]["securityContext"];
    let filtered = shipped["seccompProfile"]["type"] == "RuntimeDefault";
    scene.assert_confined(filtered);
    scene.assert_forwarded(&pod);
    scene.assert_policies_fit();

    // Repeat with the other setting: the agent must work with and without the runtime's seccomp filter.
    let other = if filtered {
        "Unconfined"
    } else {
        "RuntimeDefault"
    };
    scene.patch_agent(&[
        ("add", "/spec/minReadySeconds", json!(1)),
        (
            "replace",
            "/spec/template/spec/containers/0/securityContext/seccompProfile",
            json!({ "type": other }),
        ),
    ]);
    scene.wait_rolled_out();
    scene.assert_confined(!filtered);
}

impl Scene {
    /// Without the CNI's configuration, running pods are not affected, but a new pod gets no address.
    fn assert_lost_network_is_named(&self) {
        let cause = || {
            let report = self.node.verdict().unwrap_or_default();
            report["verdict"]["cause"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        };
        let folder = self
            .node
            .world
            .quick_dir()
            .expect("a folder")
            .join("node/cni");
        let (file, aside) = (
            folder.join("10-pods.conflist"),
            folder.join("10-pods.aside"),
        );
        std::fs::rename(&file, &aside).expect("take the CNI's configuration away");
        self.wait("cni is named", || cause() == "cni");
        let asked = self.node.ask("/healthz").expect("an answer");
        assert_eq!(
            asked.status, 200,
            "a lost CNI must not be 503: {}",
            asked.body
        );
        std::fs::rename(&aside, &file).expect("give it back");
        self.wait("proven again", || cause().is_empty());
        self.wait("the Node is ready", || {
            self.node.condition("Ready") == "True"
        });
    }

    /// Asserts that the pods of a DaemonSet are accepted at the strictest Pod Security level.
    fn assert_restricted(&self, set: &str) {
        let strict = "pod-security.kubernetes.io/enforce=restricted";
        self.kubectl("create namespace strict");
        self.kubectl(&format!("label namespace strict {strict}"));
        let path = format!("/apis/apps/v1/namespaces/pathproof/daemonsets/{set}");
        let found = self.node.api.get(&path).expect("the DaemonSet");
        let pod = json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": { "name": "tried", "namespace": "strict" },
            "spec": found["spec"]["template"]["spec"],
        });
        let file = std::env::temp_dir().join(format!("pathproof-{}-pod.json", std::process::id()));
        std::fs::write(&file, pod.to_string()).expect("write a pod");
        let said = self.kubectl(&format!("create --dry-run=server -f {}", file.display()));
        assert!(said.contains("tried created"), "{said}");
        self.kubectl("delete namespace strict --wait=false");
        std::fs::remove_file(file).expect("remove it");
    }

    /// Asserts that the control plane's type check finds no unknown field in the policies' expressions.
    fn assert_policies_fit(&self) {
        let path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
        let status = |policy: &Value| policy["status"]["typeChecking"].clone();
        let checked = || {
            let list = self.node.api.get(path).expect("policies");
            let policies = list["items"].as_array().cloned().unwrap_or_default();
            assert_eq!(policies.len(), 5, "{policies:#?}");
            let all: Vec<Value> = policies.iter().map(status).collect();
            all.iter().all(Value::is_object).then_some(all)
        };
        let all = until(PATIENCE, checked).expect("policies are never checked");
        assert!(all.iter().all(|one| *one == json!({})), "{all:#?}");
    }

    /// Checks the agent's process in /proc. `by_runtime`: whether the container runtime adds a seccomp
    /// filter.
    fn assert_confined(&self, by_runtime: bool) {
        let process = self.agent_process();
        let status = self.node.run("cat", &[&format!("/proc/{process}/status")]);
        let status = status.expect("the agent's status");
        let field = |name| field(&status, name);
        for (set, left) in [("CapPrm:", TWO), ("CapEff:", TWO), ("CapBnd:", FOUR)] {
            assert_eq!(field(set), left, "{set}");
        }
        for set in ["CapInh:", "CapAmb:"] {
            assert_eq!(field(set), "0000000000000000", "{set}");
        }
        assert_eq!(field("NoNewPrivs:"), "1");
        assert_eq!(field("Seccomp:"), "2");
        // Subtract the filters of the test process, which the agent inherits.
        let own = std::fs::read_to_string("/proc/self/status").expect("procfs");
        let filters = |text: &str| text.parse::<u32>().expect("a number");
        assert_eq!(
            filters(field("Seccomp_filters:")),
            filters(self::field(&own, "Seccomp_filters:")) + OWN_FILTERS + u32::from(by_runtime)
        );
        let mounts = self
            .node
            .run("cat", &[&format!("/proc/{process}/mountinfo")]);
        let mounts = mounts.expect("the agent's mounts");
        let root = mounts
            .lines()
            .find(|line| line.split(' ').nth(4) == Some("/"));
        let options = root
            .and_then(|line| line.split(' ').nth(5))
            .expect("a root");
        assert!(options.split(',').any(|option| option == "ro"), "{options}");
    }

    fn assert_calm_log(&self) {
        let log = self.agent_log();
        let loud = |line: &&str| line.contains(" WARN ") || line.contains(" ERROR ");
        let loud: Vec<&str> = log.lines().filter(loud).collect();
        assert!(loud.is_empty(), "{loud:#?}");
        assert!(log.contains(" INFO "), "{log}");
    }

    /// Asserts that `kubectl port-forward` reaches the admin port, which listens only on the node's loopback.
    fn assert_forwarded(&self, pod: &Value) {
        let name = pod["metadata"]["name"].as_str().expect("a name");
        let desk = &self.node.desk;
        let _forward = desk
            .forward("pathproof", name, ADMIN_PORT)
            .expect("a forward");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, ADMIN_PORT));
        let get = |path| {
            let ask = || http::get(address, path, Duration::from_secs(5));
            desk.place.run(ask).expect("an answer")
        };
        let verdict: Value = serde_json::from_str(&get("/verdict").body).expect("JSON");
        assert_eq!(verdict["verdict"]["state"], "proven", "{verdict:#}");
        assert!(get("/metrics").body.contains("pathproof_"));
    }
}

/// A field of /proc/PID/status, such as `CapEff:`.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("no {name} in {status}"))
        .trim()
}
