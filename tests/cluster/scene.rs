//! A node in a real cluster with kube-proxy, and the operations that tests perform on it.

use std::ops::{Deref, DerefMut};

use node_tests::cluster::{self, KubeProxy, Process, Servers, base, services};
pub(crate) use node_tests::cluster::{PATIENCE, PORT};
use node_tests::http::Response;
use node_tests::prelude::*;

/// Waits until /healthz answers with this status. Returns the time of the answer.
#[track_caller]
pub(crate) fn wait_healthz(watch: &Watch, status: u16) -> Instant {
    let seen = watch.wait(PATIENCE, |codes| codes.healthz == status);
    seen.unwrap_or_else(|why| panic!("{status}: {why:#}"))
}

pub(crate) const NODE: &str = "/api/v1/nodes/node-1";

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
    /// A cluster with Services and kube-proxy, without an agent.
    pub(crate) fn bare(mode: Mode) -> Needed<Self> {
        Self::bare_with(mode, Servers::needed())
    }

    pub(crate) fn bare_with(mode: Mode, programs: Needed<Servers>) -> Needed<Self> {
        skip::root()?;
        skip::tool(mode.tool())?;
        let mut scene = cluster::Scene::new(World::builder(), programs?, mode, services);
        scene.start_proxy();
        Ok(Self(scene))
    }

    /// [`Self::bare`] with an agent. Waits until probes have proven the node in both families.
    pub(crate) fn proven(mode: Mode, extra: &[&str]) -> Needed<Self> {
        let mut scene = Self::bare(mode)?;
        scene.start_agent(extra);
        scene.wait_proven();
        Ok(scene)
    }

    /// Starts kube-proxy with its health server at this port, without waiting for it.
    pub(crate) fn start_proxy_at(&mut self, port: u16, more: &[&str]) {
        let config = self.control.proxy_kubeconfig(self.far());
        let (world, programs) = (&self.world, &self.programs);
        let proxy = KubeProxy::spawn(world, programs, self.mode, &config, port, more);
        self.proxy = Some(proxy.expect("a kube-proxy"));
    }

    /// Replaces the agent as a DaemonSet with a surge does: the new one is ready before the old one
    /// gets SIGTERM.
    pub(crate) fn upgrade_agent(&mut self) {
        let old = self.agent.take().expect("an agent runs");
        self.start_agent(&["--shutdown-grace", "5s"]);
        old.terminate().expect("the old agent ends");
        self.wait_proven();
    }

    /// Starts a rotator that counts nodes. Its interval is so long that it does not rotate during the test.
    pub(crate) fn rotator(&self, name: &str, more: &[&str]) -> Process {
        let mut command = self.world.node.command(agent_binary().expect("a binary"));
        command
            .args(["rotate", "--interval", "600", "--kubeconfig"])
            .arg(self.kubeconfig_of(base::ROTATOR))
            .args(more);
        Process::start(command, name, self.world.dir()).expect("a rotator")
    }

    /// Waits until the agent reports this count. This may take as long as the lease of a killed rotator,
    /// because the next one leads only after the lease has expired.
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

    /// Answers of kube-proxy and of the agent to the same request.
    pub(crate) fn ask(&self, path: &str) -> (Response, Response) {
        let theirs = until(PATIENCE, || self.proxy().ask(path).ok()).expect("kube-proxy answers");
        let ours = until(PATIENCE, || self.agent().outside(path, Family::V4).ok());
        (theirs, ours.expect("the agent answers"))
    }

    pub(crate) fn watch_proxy(&self) -> Watch {
        let (from, address) = (&self.world.outside, self.proxy().address);
        Watch::start_at(from, address, Duration::from_millis(20)).expect("a poller")
    }

    pub(crate) fn taint(&self, keys: &[&str]) {
        let taint = |key| json!({ "key": key, "value": "1", "effect": "NoSchedule" });
        let taints: Vec<Value> = keys.iter().map(taint).collect();
        let change = json!({ "spec": { "taints": taints } });
        self.api.patch(NODE, &change).expect("taint the Node");
    }

    pub(crate) fn remove(&mut self, service: &str) {
        let core = format!("/api/v1/namespaces/demo/services/{service}");
        self.api.delete(&core).expect("delete a Service");
        for family in ["v4", "v6"] {
            let slices = "/apis/discovery.k8s.io/v1/namespaces/demo/endpointslices";
            // Ignore the error: a controller of the API server may already have deleted the slice.
            let _ = self.api.delete(&format!("{slices}/{service}-{family}"));
        }
        self.manifests.remove(service).expect("remove its manifest");
    }

    /// Starts clients in both families: two pods that dial web and api, and an outside client of api.
    pub(crate) fn traffic(&mut self) {
        self.traffic_at(7.0);
    }

    /// Like [`Self::traffic`], but each client opens this number of connections per second.
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

/// Flushes kube-proxy's Service chains in nftables mode. Returns the script that restores their rules.
pub(crate) fn flush(node: &Namespace) -> String {
    cluster::flush_services(node).expect("flush")
}

/// [`NODE`] names the same node as the world.
#[test]
fn the_node_is_the_worlds() {
    assert_eq!(NODE, format!("/api/v1/nodes/{NODE_NAME}"));
}
