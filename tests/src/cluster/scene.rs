//! A node in a real cluster: control plane, kube-proxy, Services with servers, and the agent with the
//! rights of deploy/base. The node reaches the API server through a relay.
//!
//! - web: load balancer, endpoints web-1, web-2 (local) and web-3 (remote)
//! - api: node port 30081, endpoint api-1 (local)
//!
//! client-1, client-2 and spare are local pods without a Service.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;

use super::{Api, ControlPlane, KubeProxy, Mode, Relay, Servers, base, install, put_file};
use crate::manifests::{Manifests, Service};
use crate::scene::{is_probed, wait_report};
use crate::traffic::{Client, Plan, Server};
use crate::watch::Watch;
use crate::world::{Agent, Builder, Family, World, agent_binary};

/// Timeout of each wait, far longer than any step takes, for busy machines.
pub const PATIENCE: Duration = Duration::from_secs(60);
pub const PORT: u16 = 8080;

/// Everything that runs in the scene. Its parts are dropped in this order.
pub struct Scene {
    pub clients: Vec<Client>,
    pub servers: BTreeMap<String, Server>,
    pub agent: Option<Agent>,
    pub proxy: Option<KubeProxy>,
    pub relay: Relay,
    pub api: Api,
    pub control: ControlPlane,
    pub manifests: Manifests,
    pub programs: Servers,
    /// Mode of kube-proxy.
    pub mode: Mode,
    pub world: World,
}

pub fn services(world: &World) -> Vec<Service> {
    let pods = |names: &[&str]| names.iter().map(|name| world.pod(name)).collect::<Vec<_>>();
    vec![
        Service::new("web", 0, pods(&["web-1", "web-2", "web-3"])).load_balancer(30080),
        Service::new("api", 1, pods(&["api-1"])).node_port(30081),
    ]
}

impl Scene {
    /// The cluster with Services and their servers, but without kube-proxy or agent.
    pub fn new(
        world: Builder,
        programs: Servers,
        mode: Mode,
        services: fn(&World) -> Vec<Service>,
    ) -> Self {
        let world = world
            .pods(&["web-1", "web-2", "api-1", "spare", "client-1", "client-2"])
            .remote_pods(&["web-3"])
            .build()
            .expect("build a world");
        let control = ControlPlane::start(&world, &programs).expect("a control plane");
        let api = control.api().expect("a client");
        let manifests = Manifests::write(&world, services(&world)).expect("write manifests");
        install(&api, &manifests).expect("deploy/base, a Node and Services");
        let mut scene = Self {
            clients: Vec::new(),
            servers: BTreeMap::new(),
            agent: None,
            proxy: None,
            relay: control.relay().expect("a relay"),
            api,
            control,
            manifests,
            programs,
            mode,
            world,
        };
        for pod in ["web-1", "web-2", "web-3", "api-1", "spare"] {
            scene.serve(pod);
        }
        scene
    }

    /// Address at which the node reaches the API server: that of the relay.
    pub fn far(&self) -> SocketAddr {
        self.relay.address()
    }

    /// Starts kube-proxy and waits for its first sync.
    pub fn start_proxy(&mut self) {
        self.start_proxy_by(self.far());
    }

    /// Starts kube-proxy with `server` as its API server's address, and waits for its first sync.
    pub fn start_proxy_by(&mut self, server: SocketAddr) {
        let config = self.control.proxy_kubeconfig(server);
        let proxy = KubeProxy::start(&self.world, &self.programs, self.mode, &config);
        self.proxy = Some(proxy.expect("a kube-proxy"));
    }

    /// Writes a kubeconfig for a ServiceAccount of deploy/base, with a token for its pod on the node.
    pub fn kubeconfig_of(&self, account: &str) -> PathBuf {
        let config = self
            .control
            .account_kubeconfig(&self.world, self.far(), account);
        config.expect("a kubeconfig")
    }

    /// Starts the agent and waits until it is ready.
    pub fn start_agent(&mut self, extra: &[&str]) {
        self.start_as_agent(&agent_binary().expect("the agent's binary"), extra);
    }

    /// Starts a program that executes the agent, and waits until the agent is ready.
    pub fn start_as_agent(&mut self, program: &Path, extra: &[&str]) {
        let file = self.kubeconfig_of(base::AGENT);
        let mut options = vec!["--kubeconfig", file.to_str().expect("a path in UTF-8")];
        options.extend(extra);
        let folder = self.manifests.dir();
        let agent = self.world.spawn_agent(program, folder, &options);
        let agent = self.agent.insert(agent.expect("start the agent"));
        agent.wait_ready(PATIENCE).expect("a ready agent");
    }

    pub fn agent(&self) -> &Agent {
        self.agent.as_ref().expect("an agent runs")
    }

    pub fn proxy(&self) -> &KubeProxy {
        self.proxy.as_ref().expect("a kube-proxy runs")
    }

    /// Waits until every path of the sentinel is armed and the node is proven in both families.
    pub fn wait_proven(&self) {
        wait_proven(self.agent());
    }

    /// The report at /verdict. Retries, because one request may time out on a busy machine.
    pub fn report(&self) -> Value {
        self.wait("a verdict", |_| true)
    }

    /// Waits until a report fulfils a condition, and returns it.
    pub fn wait(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        self.wait_within(PATIENCE, what, wanted)
    }

    pub fn wait_within(
        &self,
        patience: Duration,
        what: &str,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        wait_report(self.agent(), patience, what, wanted)
    }

    /// Waits for a state with this status at /healthz and /livez.
    pub fn wait_for(&self, state: &str, status: u64, within: Duration) -> Value {
        self.wait_within(within, &format!("{state} and {status}"), |report| {
            let answered = |endpoint: &str| report["answers"][endpoint]["status"] == status;
            report["verdict"]["state"] == state && answered("healthz") && answered("livez")
        })
    }

    /// Polls /healthz and /livez from outside, from now on.
    pub fn watch(&self) -> Watch {
        Watch::start(&self.world, Duration::from_millis(20)).expect("a poller")
    }

    /// Polls /healthz and /livez from outside, and waits for the first 200 at /healthz.
    pub fn watch_healthy(&self) -> Watch {
        let watch = self.watch();
        let healthy = watch.wait(PATIENCE, |codes| codes.healthz == 200);
        healthy.expect("200");
        watch
    }

    /// Applies a Service's manifest file, as it is now, to the API.
    pub fn put(&self, service: &str) {
        let file = Manifests::service_file(service);
        put_file(&self.api, &self.manifests.dir().join(file)).expect("a manifest fits the API");
    }

    /// Replaces one pod by another in the slices of a Service, in the manifests and at the API.
    pub fn replace(&mut self, service: &str, from: &str, to: &str) {
        let swapped = self
            .manifests
            .swap_endpoint(service, from, self.world.pod(to));
        swapped.expect("swap an endpoint");
        self.put(service);
    }

    pub fn serve(&mut self, pod: &str) {
        let server = Server::start(self.world.pod(pod), PORT).expect("start a server");
        self.servers.insert(pod.to_owned(), server);
    }

    pub fn run(&mut self, plan: Plan) {
        self.clients.push(plan.start().expect("a client"));
    }

    /// ClusterIP and port of a Service.
    pub fn inside(&self, service: &str, family: Family) -> SocketAddr {
        SocketAddr::new(self.manifests.service(service).cluster_ip(family), 80)
    }

    /// An outside client that dials a node port.
    pub fn outside_plan(&self, port: u16, family: Family) -> Plan {
        let target = SocketAddr::new(self.world.node_address(family), port);
        Plan::from_outside(&self.world, 0, target)
    }
}

/// Waits until every path of the sentinel is armed and the node is proven in both families.
pub fn wait_proven(agent: &Agent) {
    wait_report(agent, PATIENCE, "proven", |report| {
        report["answers"]["healthz"]["status"] == 200 && is_probed(report)
    });
}
