//! A node in a real cluster: control plane, kube-proxy, Services with servers, and the agent with
//! the rights that deploy/base gives it.
//!
//! - web: load balancer, endpoints web-1, web-2 (local) and web-3 (remote)
//! - api: node port 30081, endpoint api-1 (local)
//!
//! client-1, client-2 and spare are local pods without a Service.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use node_tests::cluster::{
    self, Api, ControlPlane, KubeProxy, Mode, Process, Relay, Servers, account_kubeconfig, base,
    namespace, put_file,
};
use node_tests::http::Response;
use node_tests::manifests::{Manifests, Service};
use node_tests::scene::is_probed;
use node_tests::skip;
use node_tests::traffic::{Client, Plan, Server};
pub(crate) use node_tests::wait::until;
use node_tests::watch::Watch;
use node_tests::world::{Agent, Family, NODE_NAME, Namespace, World, agent_binary};
use serde_json::{Value, json};

/// Far longer than anything here takes, for machines that do much else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// The servers' port.
pub(crate) const PORT: u16 = 8080;
/// The Node under test.
pub(crate) const NODE: &str = "/api/v1/nodes/node-1";

/// The sentinel's slice that bears the count of the fleet.
pub(crate) const SLICE: &str =
    "/apis/discovery.k8s.io/v1/namespaces/pathproof/endpointslices/pathproof-sentinel-ipv4";

/// Everything that is up. Dropped in this order.
pub(crate) struct Scene {
    pub(crate) clients: Vec<Client>,
    pub(crate) servers: BTreeMap<String, Server>,
    pub(crate) agent: Option<Agent>,
    pub(crate) proxy: Option<KubeProxy>,
    /// The lock of iptables, held against kube-proxy.
    pub(crate) lock: Option<File>,
    pub(crate) relay: Relay,
    pub(crate) api: Api,
    pub(crate) control: ControlPlane,
    pub(crate) manifests: Manifests,
    pub(crate) programs: Servers,
    mode: Mode,
    pub(crate) world: World,
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
        let programs = programs()?;
        let world = World::builder()
            .pods(&["web-1", "web-2", "api-1", "spare", "client-1", "client-2"])
            .remote_pods(&["web-3"])
            .build()
            .expect("build a world");
        let control = ControlPlane::start(&world, &programs).expect("a control plane");
        let mut near = ControlPlane::address();
        near.set_port(near.port() + 1);
        let relay = Relay::start(&world.worker, near, ControlPlane::address()).expect("a relay");
        let api = control.api().expect("a client");
        let manifests = Manifests::write(&world, services(&world)).expect("write manifests");
        install(&api, &manifests);
        let mut scene = Self {
            clients: Vec::new(),
            servers: BTreeMap::new(),
            agent: None,
            proxy: None,
            lock: None,
            relay,
            api,
            control,
            manifests,
            programs,
            mode,
            world,
        };
        scene.start_proxy();
        for pod in ["web-1", "web-2", "web-3", "api-1", "spare"] {
            scene.serve(pod);
        }
        Some(scene)
    }

    /// With an agent, and the node proven in both families by probes.
    pub(crate) fn proven(test: &str, mode: Mode, extra: &[&str]) -> Option<Self> {
        let mut scene = Self::bare(test, mode)?;
        scene.start_agent(extra);
        scene.wait_proven();
        Some(scene)
    }

    /// Starts kube-proxy and waits for its first sync.
    pub(crate) fn start_proxy(&mut self) {
        self.start_proxy_by(self.far());
    }

    /// The same, by a way of its own to the API server.
    pub(crate) fn start_proxy_by(&mut self, server: SocketAddr) {
        let config = self.control.proxy_kubeconfig(server);
        let proxy = KubeProxy::start(&self.world, &self.programs, self.mode, &config);
        self.proxy = Some(proxy.expect("a kube-proxy"));
    }

    /// Starts kube-proxy with its health server where it usually is, and does not wait.
    pub(crate) fn start_proxy_at(&mut self, port: u16, more: &[&str]) {
        let config = self.control.proxy_kubeconfig(self.far());
        let (programs, mode) = (&self.programs, self.mode);
        let proxy = KubeProxy::spawn_at(&self.world, programs, mode, &config, port, more);
        self.proxy = Some(proxy.expect("a kube-proxy"));
    }

    /// The API server's address as the node has it: through the relay.
    pub(crate) fn far(&self) -> SocketAddr {
        let mut address = ControlPlane::address();
        address.set_port(address.port() + 1);
        address
    }

    /// Writes a kubeconfig for a ServiceAccount of deploy/base, with a token for its pod on the node.
    pub(crate) fn kubeconfig_of(&self, account: &str) -> PathBuf {
        let (server, ca) = (self.far(), self.control.ca());
        account_kubeconfig(&self.world, &self.api, server, ca, account).expect("a kubeconfig")
    }

    /// Starts the agent and waits until it is ready.
    pub(crate) fn start_agent(&mut self, extra: &[&str]) {
        let file = self.kubeconfig_of(base::AGENT);
        let mut options = vec!["--kubeconfig", file.to_str().expect("a path in UTF-8")];
        options.extend(extra);
        let binary = agent_binary().expect("the agent's binary");
        let agent = self
            .world
            .spawn_agent(&binary, self.manifests.dir(), &options);
        let agent = self.agent.insert(agent.expect("start the agent"));
        agent.wait_ready(PATIENCE).expect("a ready agent");
    }

    /// Replaces the agent as a DaemonSet does with a surge: the new one is ready before the old one
    /// is asked to end.
    pub(crate) fn upgrade_agent(&mut self) {
        let old = self.agent.take().expect("an agent runs");
        self.start_agent(&["--shutdown-grace", "5s"]);
        old.terminate().expect("the old agent ends");
        self.wait_proven();
    }

    /// The agent.
    pub(crate) fn agent(&self) -> &Agent {
        self.agent.as_ref().expect("an agent runs")
    }

    /// kube-proxy.
    pub(crate) fn proxy(&self) -> &KubeProxy {
        self.proxy.as_ref().expect("a kube-proxy runs")
    }

    /// Waits until every path of the sentinel is armed and the node is proven in both families.
    pub(crate) fn wait_proven(&self) {
        proven(self.agent());
    }

    /// A report; a loaded machine may delay one request for too long.
    pub(crate) fn report(&self) -> Value {
        until(PATIENCE, || self.agent().verdict().ok()).expect("a verdict")
    }

    /// Waits until the report is so, and gives it.
    pub(crate) fn wait(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.wait_within(PATIENCE, what, wanted)
    }

    pub(crate) fn wait_within(
        &self,
        patience: Duration,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut last = Value::Null;
        let seen = until(patience, || {
            last = self.agent().verdict().ok()?;
            wanted(&last).then_some(())
        });
        assert!(seen.is_some(), "never seen: {what}: {last:#}");
        last
    }

    /// Waits for a state with this status on both endpoints.
    pub(crate) fn wait_for(&self, state: &str, status: u64, within: Duration) -> Value {
        self.wait_within(within, &format!("{state} and {status}"), |report| {
            let answers = &report["answers"];
            let answered = |of: &&str| answers[of]["status"] == status;
            report["verdict"]["state"] == state && ["healthz", "livez"].iter().all(answered)
        })
    }

    /// Starts a rotator that has something to count, and does not rotate meanwhile.
    pub(crate) fn rotator(&self, name: &str) -> Process {
        let mut command = self.world.node.command(agent_binary().expect("a binary"));
        command
            .args(["rotate", "--interval", "600", "--kubeconfig"])
            .arg(self.kubeconfig_of(base::ROTATOR));
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
        let slice = || self.api.get(SLICE).expect("a slice");
        assert!(
            seen.is_some(),
            "not {unsound} of {nodes}: {last:#}, {:#}",
            slice()
        );
    }

    /// Answers of both health servers to the same request: kube-proxy's and ours.
    pub(crate) fn ask(&self, path: &str) -> (Response, Response) {
        let theirs = until(PATIENCE, || self.proxy().ask(path).ok()).expect("kube-proxy answers");
        let ours = until(PATIENCE, || self.agent().outside(path, Family::V4).ok());
        (theirs, ours.expect("the agent answers"))
    }

    /// Asks our /healthz and /livez from outside from now on.
    pub(crate) fn watch(&self) -> Watch {
        Watch::start(&self.world, Duration::from_millis(20)).expect("a poller")
    }

    /// The same, once it has seen 200.
    pub(crate) fn watch_healthy(&self) -> Watch {
        let watch = self.watch();
        watch
            .wait(PATIENCE, |codes| codes.healthz == 200)
            .expect("200");
        watch
    }

    /// Asks kube-proxy's.
    pub(crate) fn watch_proxy(&self) -> Watch {
        let address = self.proxy().address();
        Watch::start_at(&self.world.outside, address, Duration::from_millis(20)).expect("a poller")
    }

    /// Writes the Node's taints.
    pub(crate) fn taint(&self, keys: &[&str]) {
        let taints: Vec<Value> = keys
            .iter()
            .map(|key| json!({ "key": key, "value": "1", "effect": "NoSchedule" }))
            .collect();
        let change = json!({ "spec": { "taints": taints } });
        self.api.patch(NODE, &change).expect("taint the Node");
    }

    /// Brings a Service of the manifests to the API as it is now.
    pub(crate) fn put(&self, service: &str) {
        let file = self.manifests.dir().join(format!("service-{service}.yaml"));
        put_file(&self.api, &file).expect("a manifest fits the API");
    }

    /// Starts a pod's server.
    pub(crate) fn serve(&mut self, pod: &str) {
        let server = Server::start(self.world.pod(pod), PORT).expect("start a server");
        self.servers.insert(pod.to_owned(), server);
    }

    /// Puts one pod in another's place in the slices of a Service, at the API too.
    pub(crate) fn replace(&mut self, service: &str, from: &str, to: &str) {
        let to = self.world.pod(to).clone();
        self.manifests
            .swap_endpoint(service, from, &to)
            .expect("swap an endpoint");
        self.put(service);
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

    /// Who writes the rules.
    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// Starts clients: two pods and an outsider to each Service, in both families.
    pub(crate) fn traffic(&mut self) {
        self.traffic_at(7.0);
    }

    /// The same with so many connections a second for each.
    pub(crate) fn traffic_at(&mut self, rate: f64) {
        for family in Family::ALL {
            for service in ["web", "api"] {
                let inside =
                    SocketAddr::new(self.manifests.service(service).cluster_ip(family), 80);
                for pod in ["client-1", "client-2"] {
                    let plan = Plan::from_pod(&self.world, self.world.pod(pod), inside);
                    self.clients
                        .push(plan.rate(rate).start().expect("a client"));
                }
            }
            let port = SocketAddr::new(self.world.node_address(family), 30081);
            let plan = Plan::from_outside(&self.world, 0, port).rate(rate);
            self.clients.push(plan.start().expect("a client"));
        }
    }
}

/// Waits until every path of the sentinel is armed and the node is proven in both families.
pub(crate) fn proven(agent: &Agent) {
    let mut last = Value::Null;
    let seen = until(PATIENCE, || {
        last = agent.verdict().ok()?;
        let healthy = last["answers"]["healthz"]["status"] == 200;
        (healthy && is_probed(&last)).then_some(())
    });
    assert!(seen.is_some(), "never proven: {last:#}");
}

/// Flushes kube-proxy's Service chains (nftables mode); gives the script that adds their rules again.
pub(crate) fn flush(node: &Namespace) -> String {
    cluster::flush_services(node).expect("flush")
}

fn services(world: &World) -> Vec<Service> {
    let pods = |names: &[&str]| names.iter().map(|name| world.pod(name)).collect::<Vec<_>>();
    vec![
        Service::new("web", 0, pods(&["web-1", "web-2", "web-3"])).load_balancer(30080),
        Service::new("api", 1, pods(&["api-1"])).node_port(30081),
    ]
}

/// Everything that the cluster is to hold: deploy/base whole, the Node, the Services.
pub(crate) fn install(api: &Api, manifests: &Manifests) {
    cluster::install(api, &manifests.dir().join("node.yaml")).expect("deploy/base and a Node");
    namespace(api, "demo").expect("a namespace");
    for service in manifests.services() {
        let file = format!("service-{}.yaml", service.name);
        put_file(api, &manifests.dir().join(file)).expect("a Service");
    }
}

/// The name is fixed by the world.
#[test]
fn the_node_is_the_worlds() {
    assert_eq!(NODE, format!("/api/v1/nodes/{NODE_NAME}"));
}
