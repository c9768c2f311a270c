//! A node in a real cluster behind kube-proxy, and what tests do with it.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use node_tests::cluster::{self, KubeProxy, Mode, Process, Servers, base, services};
pub(crate) use node_tests::cluster::{PATIENCE, PORT};
use node_tests::http::Response;
use node_tests::skip;
use node_tests::traffic::Plan;
pub(crate) use node_tests::wait::until;
use node_tests::watch::Watch;
use node_tests::world::{Family, NODE_NAME, Namespace, World, agent_binary};
use serde_json::{Value, json};

/// The Node under test.
pub(crate) const NODE: &str = "/api/v1/nodes/node-1";

/// Everything that is up.
pub(crate) struct Scene(cluster::Scene);

impl Deref for Scene {
    type Target = cluster::Scene;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl DerefMut for Scene {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.0
    }
}

impl Scene {
    /// A cluster with its Services and kube-proxy, without an agent. Nothing, loudly, where the
    /// machine lacks what it takes.
    pub(crate) fn bare(test: &str, mode: Mode) -> Option<Self> {
        Self::bare_with(test, mode, || Servers::or_skip(test))
    }

    /// The same with these programs.
    pub(crate) fn bare_with(
        test: &str,
        mode: Mode,
        programs: impl FnOnce() -> Option<Servers>,
    ) -> Option<Self> {
        if skip::without_root(test) || skip::without_tool(test, mode.tool()) {
            return None;
        }
        let mut scene = cluster::Scene::new(World::builder(), programs()?, mode, services);
        scene.start_proxy();
        Some(Self(scene))
    }

    /// With an agent, and the node proven in both families by probes.
    pub(crate) fn proven(test: &str, mode: Mode, extra: &[&str]) -> Option<Self> {
        let mut scene = Self::bare(test, mode)?;
        scene.start_agent(extra);
        scene.wait_proven();
        Some(scene)
    }

    /// Starts kube-proxy with its health server at this port, and does not wait.
    pub(crate) fn start_proxy_at(&mut self, port: u16, more: &[&str]) {
        let config = self.control.proxy_kubeconfig(self.far());
        let (world, programs) = (&self.world, &self.programs);
        let proxy = KubeProxy::spawn(world, programs, self.mode, &config, port, more);
        self.proxy = Some(proxy.expect("a kube-proxy"));
    }

    /// Replaces the agent as a DaemonSet does with a surge: the new one is ready before the old one
    /// is asked to end.
    pub(crate) fn upgrade_agent(&mut self) {
        let old = self.agent.take().expect("an agent runs");
        self.start_agent(&["--shutdown-grace", "5s"]);
        old.terminate().expect("the old agent ends");
        self.wait_proven();
    }

    /// Starts a rotator that has something to count, and does not rotate meanwhile.
    pub(crate) fn rotator(&self, name: &str, more: &[&str]) -> Process {
        let mut command = self.world.node.command(agent_binary().expect("a binary"));
        command
            .args(["rotate", "--interval", "600", "--kubeconfig"])
            .arg(self.kubeconfig_of(base::ROTATOR))
            .args(more);
        Process::start(command, name, self.world.dir()).expect("a rotator")
    }

    /// Waits until the agent knows this count. A rotator leads as soon as the lease of one that was killed
    /// has run out.
    pub(crate) fn counted(&self, unsound: u64, nodes: u64) {
        let mut last = Value::Null;
        let seen = until(2 * PATIENCE, || {
            last = self.agent().verdict().ok()?["fleet"].clone();
            let count = &last["count"];
            (count["unsound"] == unsound && count["nodes"] == nodes).then_some(())
        });
        let slices = "/apis/discovery.k8s.io/v1/namespaces/pathproof/endpointslices";
        let slices = || self.api.get(slices);
        let what = format!("{unsound} of {nodes} nodes");
        assert!(seen.is_some(), "not {what}: {last:#}, {:#?}", slices());
    }

    /// Answers of both health servers to the same request: kube-proxy's and ours.
    pub(crate) fn ask(&self, path: &str) -> (Response, Response) {
        let theirs = until(PATIENCE, || self.proxy().ask(path).ok()).expect("kube-proxy answers");
        let ours = until(PATIENCE, || self.agent().outside(path, Family::V4).ok());
        (theirs, ours.expect("the agent answers"))
    }

    /// Asks kube-proxy's.
    pub(crate) fn watch_proxy(&self) -> Watch {
        let (from, address) = (&self.world.outside, self.proxy().address);
        Watch::start_at(from, address, Duration::from_millis(20)).expect("a poller")
    }

    /// Writes the Node's taints.
    pub(crate) fn taint(&self, keys: &[&str]) {
        let taint = |key| json!({ "key": key, "value": "1", "effect": "NoSchedule" });
        let taints: Vec<Value> = keys.iter().map(taint).collect();
        let change = json!({ "spec": { "taints": taints } });
        self.api.patch(NODE, &change).expect("taint the Node");
    }

    /// Removes a Service and its slices.
    pub(crate) fn remove(&mut self, service: &str) {
        let core = format!("/api/v1/namespaces/demo/services/{service}");
        self.api.delete(&core).expect("delete a Service");
        for family in ["v4", "v6"] {
            let slices = "/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices";
            // A controller of the API server's own may have been faster.
            let _ = self.api.delete(&format!("{slices}/{service}-{family}"));
        }
        self.manifests.remove(service).expect("remove its manifest");
    }

    /// Starts clients: two pods and an outsider to each Service, in both families.
    pub(crate) fn traffic(&mut self) {
        self.traffic_at(7.0);
    }

    /// The same with so many connections a second for each.
    pub(crate) fn traffic_at(&mut self, rate: f64) {
        for family in Family::ALL {
            for (service, pod) in [
                ("web", "client-1"),
                ("web", "client-2"),
                ("api", "client-1"),
                ("api", "client-2"),
            ] {
                let target = self.inside(service, family);
                let plan = Plan::from_pod(&self.world, self.world.pod(pod), target);
                self.run(plan.rate(rate));
            }
            let plan = self.outside_plan(30081, family).rate(rate);
            self.run(plan);
        }
    }
}

/// Flushes kube-proxy's Service chains (nftables mode); gives the script that adds their rules again.
pub(crate) fn flush(node: &Namespace) -> String {
    cluster::flush_services(node).expect("flush")
}

/// The name is fixed by the world.
#[test]
fn the_node_is_the_worlds() {
    assert_eq!(NODE, format!("/api/v1/nodes/{NODE_NAME}"));
}
