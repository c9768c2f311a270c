//! A node with pathproof installed, and helpers with which tests inspect it.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use aya::programs::SchedClassifier;
use aya::programs::tc::TcAttachType;
use node_tests::cluster::base;
use node_tests::deploy;
use node_tests::prelude::*;
pub(crate) use node_tests::real_node::PATIENCE;
use node_tests::real_node::{RealNode, is_forgotten, is_ready};
use node_tests::world::layout::UPLINK;

pub(crate) const AGENT: &str = "daemonset/pathproof-agent";
pub(crate) const NODE: &str = "/api/v1/nodes/node-1";
/// Answers of a healthy node to requests from outside.
pub(crate) const SOUND: Codes = Codes {
    healthz: 200,
    livez: 200,
};
/// Number of rollouts in this run that Kubernetes' controller stopped syncing (see
/// [`Scene::wait_rolled_out`]).
static TOUCHED: AtomicUsize = AtomicUsize::new(0);
const LABEL: &str = "app.kubernetes.io%2Fcomponent%3Dagent";

pub(crate) struct Scene {
    pub(crate) node: RealNode,
}

impl Scene {
    /// A ready node on which pathproof is not installed.
    pub(crate) fn bare() -> Needed<Self> {
        RealNode::possible()?;
        let pod = Path::new(env!("CARGO_BIN_EXE_pod"));
        let node = RealNode::start(pod).expect("a real node");
        Ok(Self { node })
    }

    /// A node with deploy/base as shipped, which is in audit mode. Waits until its verdict is `proven`.
    pub(crate) fn shipped() -> Needed<Self> {
        let scene = Self::bare()?;
        scene.install_shipped();
        scene.wait_proven();
        Ok(scene)
    }

    /// Installs deploy/base as shipped, and does not wait.
    pub(crate) fn install_shipped(&self) {
        self.install(&base::folder());
    }

    /// A node with deploy/base, in enforce mode. Waits until its verdict is `proven`.
    pub(crate) fn installed() -> Needed<Self> {
        let scene = Self::bare()?;
        let overlay = deploy::overlay_folder("beside-kube-proxy", &["enforce"]);
        scene.install(overlay.expect("an overlay").path());
        scene.wait_proven();
        Ok(scene)
    }

    /// A node with the chart, in enforce mode. Waits until its verdict is `proven`.
    pub(crate) fn with_chart() -> Needed<Self> {
        let scene = Self::bare()?;
        scene
            .helm(&["install", "--create-namespace"])
            .expect("an install");
        scene.wait_proven();
        Ok(scene)
    }

    /// Runs a helm command with options on the release `pathproof`, in enforce mode.
    pub(crate) fn helm(&self, words: &[&str]) -> Result<String> {
        let chart = deploy::folder().join("chart");
        let mut all = vec![words[0], "pathproof", chart.to_str().expect("UTF-8")];
        all.extend(["--namespace", "pathproof"]);
        all.extend(["--set", "agent.enforcement=enforce"]);
        // The name under which the image was loaded.
        all.extend(["--set", "image.registry=docker.io/library"]);
        all.extend(&words[1..]);
        self.node.desk.helm(&all)
    }

    fn install(&self, folder: &Path) {
        self.kubectl(&format!("apply -k {}", folder.display()));
    }

    pub(crate) fn kubectl(&self, words: &str) -> String {
        self.node.desk.kubectl(words).expect("kubectl")
    }

    pub(crate) fn kubectl_with(&self, words: &[&str]) -> String {
        self.node.desk.kubectl_with(words).expect("kubectl")
    }

    pub(crate) fn agents(&self) -> Vec<Value> {
        let path = format!("/api/v1/namespaces/pathproof/pods?labelSelector={LABEL}");
        let list = self.node.api.get(&path).expect("pods");
        list["items"].as_array().cloned().unwrap_or_default()
    }

    pub(crate) fn agent(&self) -> Value {
        let mut pods = self.agents();
        assert_eq!(pods.len(), 1, "{pods:#?}");
        pods.remove(0)
    }

    pub(crate) fn agent_container(&self) -> String {
        container(&self.agent())
    }

    /// Process id of the agent on the node.
    pub(crate) fn agent_process(&self) -> String {
        self.process(&self.agent_container())
    }

    /// Process id on the node of a pod whose label `app` has this value.
    pub(crate) fn pod_process(&self, app: &str) -> String {
        let path = format!("/api/v1/namespaces/default/pods?labelSelector=app%3D{app}");
        let pods = self.node.api.get(&path).expect("pods");
        self.process(&container(&pods["items"][0]))
    }

    fn process(&self, container: &str) -> String {
        let tasks = self.node.ctr(&["task", "list"]).expect("tasks");
        let task = tasks.lines().find_map(|line| line.strip_prefix(container));
        let process = task.and_then(|rest| rest.split_whitespace().next());
        process.expect("a task of the container").to_owned()
    }

    /// Applies a JSON patch to the agent's DaemonSet: operations, paths and values.
    pub(crate) fn patch_agent(&self, operations: &[(&str, &str, Value)]) {
        let operations = operations
            .iter()
            .map(|(op, path, value)| json!({ "op": op, "path": path, "value": value }));
        let patch = Value::from_iter(operations).to_string();
        let words = ["-n", "pathproof", "patch", AGENT, "--type=json", "-p"];
        self.kubectl_with(&[&words[..], &[&patch]].concat());
    }

    /// Waits until a rollout is complete and the agent has been ready for `minReadySeconds`. If Kubernetes'
    /// controller forgets the rollout, this function changes the DaemonSet, so that the controller syncs
    /// again (docs/known-issues.md). It prints the first such change of a run, and fails at the second.
    pub(crate) fn wait_rolled_out(&self) {
        let status = format!("-n pathproof rollout status {AGENT} --timeout 40s");
        if let Err(why) = self.node.desk.kubectl(&status) {
            assert!(is_forgotten(&self.agents()), "{why:#}\n{}", self.told());
            let count = TOUCHED.fetch_add(1, Ordering::Relaxed) + 1;
            println!("TOUCHED the DaemonSet, {count} times in this run: its rollout was forgotten");
            assert!(count < 2, "more than one rollout was forgotten in this run");
            self.kubectl(&format!(
                "-n pathproof annotate --overwrite {AGENT} example.com/touched={count}"
            ));
            let again = self.node.desk.kubectl(&status);
            again.unwrap_or_else(|why| panic!("{why:#}\n{}", self.told()));
        }
        self.wait("one agent", || self.agents().len() == 1);
        self.wait_proven();
    }

    /// Number of programs at the hooks of the node's uplink.
    pub(crate) fn programs(&self) -> usize {
        let at = |hook| {
            let query = || SchedClassifier::query_tcx(UPLINK, hook).expect("ask the kernel");
            self.node.world.node.run(query).1.len()
        };
        at(TcAttachType::Ingress) + at(TcAttachType::Egress)
    }

    pub(crate) fn agent_log(&self) -> String {
        let pods = self.agents();
        let names = pods.iter().map(|pod| pod["metadata"]["name"].as_str());
        let log = |name: &str| self.try_kubectl(&format!("-n pathproof logs {name}"));
        names.flatten().map(log).collect()
    }

    /// Waits until `holds` returns true. On timeout, panics with the node's state.
    pub(crate) fn wait(&self, what: &str, mut holds: impl FnMut() -> bool) {
        let seen = until(PATIENCE, || holds().then_some(()));
        assert!(
            seen.is_some(),
            "{what}: not within {PATIENCE:?}\n{}",
            self.told()
        );
    }

    /// The node's state, for the message of a failed test.
    pub(crate) fn told(&self) -> String {
        let objects = self.try_kubectl("get node,pod -A -o wide");
        let events = self.try_kubectl("get events -A");
        let verdict = self.node.verdict().unwrap_or_default();
        format!("{objects}{events}\n{}\n{verdict:#}", self.agent_log())
    }

    fn try_kubectl(&self, words: &str) -> String {
        let output = self.node.desk.kubectl(words);
        output.unwrap_or_else(|error| format!("{error:#}\n"))
    }

    /// Waits until the agent's pod is ready, the sentinel's paths are armed and the node is proven.
    pub(crate) fn wait_proven(&self) {
        self.wait("a ready agent, the node proven", || {
            let ready = self.agents().iter().any(is_ready);
            ready && self.node.verdict().is_ok_and(|verdict| is_probed(&verdict))
        });
    }

    pub(crate) fn wait_condition(&self, status: &str) {
        let kind = "ServiceDatapathReady";
        let holds = || self.node.condition(kind) == status;
        self.wait(&format!("condition {kind} {status}"), holds);
    }

    pub(crate) fn assert_always_200(&self, prober: &Watch) {
        let changes = prober.changes();
        let sound = !changes.is_empty() && changes.iter().all(|change| change.codes == SOUND);
        assert!(sound, "{changes:#?}\n{}", self.told());
    }

    /// Waits for these codes at 10256 from outside. Returns the time that it took.
    pub(crate) fn wait_codes(&self, healthz: u16, livez: u16) -> Duration {
        let start = std::time::Instant::now();
        self.wait(&format!("/healthz {healthz}, /livez {livez}"), || {
            let code = |path| self.node.ask(path).map_or(0, |answer| answer.status);
            code("/healthz") == healthz && code("/livez") == livez
        });
        start.elapsed()
    }
}

/// Id of a pod's first container.
fn container(pod: &Value) -> String {
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str();
    let id = id.and_then(|id| id.strip_prefix("containerd://"));
    id.unwrap_or_else(|| panic!("no container in {pod:#}"))
        .to_owned()
}
