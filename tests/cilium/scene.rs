//! A node whose Services the real Cilium translates: control plane, Cilium, Services with servers,
//! and pathproof's agent with the rights that deploy/base gives it.
//!
//! - web: load balancer, endpoints web-1, web-2 (local) and web-3 (remote)
//! - api: node port 30081, endpoint api-1 (local)
//! - far: node port 30082, endpoint web-3 (remote)
//!
//! client-1, client-2 and spare are local pods without a Service.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use node_tests::built::versions::{CILIUM, CILIUM_1_15, Release};
use node_tests::cgroup::Cgroup;
use node_tests::cilium_agent::{CiliumAgent, CiliumMounts, Programs};
use node_tests::cluster::{
    self, Api, ControlPlane, KubeProxy, Mode, Servers, account_kubeconfig, base, namespace,
    put_file,
};
use node_tests::manifests::{Manifests, Service};
use node_tests::skip;
use node_tests::traffic::{Client, Plan, Server, Tally};
use node_tests::wait::until;
use node_tests::watch::{Change, Watch};
use node_tests::world::{Agent, Family, World, agent_binary, write_script};
use serde_json::Value;

/// Far longer than anything here takes, for machines that do much else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// Until faults count: what has just appeared accuses nobody.
pub(crate) const SETTLED: Duration = Duration::from_secs(11);
/// The servers' port.
const PORT: u16 = 8080;

/// Division of the translation between Cilium and kube-proxy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    release: Release,
    /// Options of Cilium's agent.
    options: &'static [&'static str],
    /// Whether kube-proxy runs beside it.
    has_proxy: bool,
}

/// Cilium replaces kube-proxy, as installed: connections of pods are translated as their sockets connect.
pub(crate) const REPLACING: Shape = Shape {
    release: CILIUM,
    options: &["--kube-proxy-replacement=true"],
    has_proxy: false,
};
/// The same, but connections of pods are translated at the pods' interfaces.
pub(crate) const HOST_SOCKETS: Shape = Shape {
    options: &[
        "--kube-proxy-replacement=true",
        "--bpf-lb-sock-hostns-only=true",
    ],
    ..REPLACING
};
/// The same by filters of clsact, as below Linux 6.6.
pub(crate) const CLSACT: Shape = Shape {
    options: &[
        "--kube-proxy-replacement=true",
        "--bpf-lb-sock-hostns-only=true",
        "--enable-tcx=false",
    ],
    ..REPLACING
};
/// The same between nodes by VXLAN.
pub(crate) const TUNNEL: Shape = Shape {
    options: &[
        "--kube-proxy-replacement=true",
        "--bpf-lb-sock-hostns-only=true",
        "--routing-mode=tunnel",
        "--tunnel-protocol=vxlan",
    ],
    ..REPLACING
};
/// Endpoints on other nodes answer clients outside themselves.
pub(crate) const DIRECT_RETURN: Shape = Shape {
    options: &["--kube-proxy-replacement=true", "--bpf-lb-mode=dsr"],
    ..REPLACING
};
/// Connections from outside are translated by XDP.
pub(crate) const XDP: Shape = Shape {
    options: &[
        "--kube-proxy-replacement=true",
        "--bpf-lb-acceleration=native",
    ],
    ..REPLACING
};
/// Cilium serves pods, and kube-proxy everybody else.
pub(crate) const MIXED: Shape = Shape {
    options: &["--kube-proxy-replacement=false"],
    has_proxy: true,
    ..REPLACING
};
/// [`REPLACING`] by the older release.
pub(crate) const OLD: Shape = Shape {
    release: CILIUM_1_15,
    ..REPLACING
};
/// [`MIXED`] by the older release.
pub(crate) const OLD_MIXED: Shape = Shape {
    release: CILIUM_1_15,
    ..MIXED
};

impl Shape {
    pub(crate) fn has_xdp(self) -> bool {
        self.options.contains(&"--bpf-lb-acceleration=native")
    }

    fn has_direct_return(self) -> bool {
        self.options.contains(&"--bpf-lb-mode=dsr")
    }
}

/// Everything that is up. Dropped in this order.
pub(crate) struct Scene {
    pub(crate) clients: Vec<Client>,
    pub(crate) servers: BTreeMap<String, Server>,
    pub(crate) agent: Option<Agent>,
    pub(crate) cilium: Option<CiliumAgent>,
    pub(crate) proxy: Option<KubeProxy>,
    pub(crate) mounts: CiliumMounts,
    pub(crate) programs: Programs,
    pub(crate) cgroup: Cgroup,
    pub(crate) api: Api,
    pub(crate) control: ControlPlane,
    pub(crate) manifests: Manifests,
    shape: Shape,
    pub(crate) world: World,
}

impl Scene {
    /// A cluster with its Services and Cilium, without pathproof. Nothing, loudly, where the machine
    /// lacks what it takes.
    pub(crate) fn bare(test: &str, shape: Shape) -> Option<Self> {
        if skip::without_root(test) {
            return None;
        }
        let servers = Servers::or_skip(test)?;
        let programs = Programs::or_skip(test, shape.release)?;
        let cgroup = Cgroup::of_threads(test)?;
        let world = World::builder()
            .pods(&["web-1", "web-2", "api-1", "spare", "client-1", "client-2"])
            .remote_pods(&["web-3"])
            .masquerade_egress(false)
            .build()
            .expect("build a world");
        let control = ControlPlane::start(&world, &servers).expect("a control plane");
        let api = control.api().expect("a client");
        let manifests = Manifests::write(&world, services(&world)).expect("write manifests");
        cluster::install(&api, &manifests.dir().join("node.yaml")).expect("deploy/base and a Node");
        programs.install(&api).expect("Cilium's kinds of objects");
        namespace(&api, "demo").expect("a namespace");
        for service in manifests.services() {
            let file = format!("service-{}.yaml", service.name);
            put_file(&api, &manifests.dir().join(file)).expect("a Service");
        }
        let mounts = CiliumMounts::new(&world, &cgroup).expect("Cilium's mounts");
        let mut scene = Self {
            clients: Vec::new(),
            servers: BTreeMap::new(),
            agent: None,
            cilium: None,
            proxy: None,
            mounts,
            programs,
            cgroup,
            api,
            control,
            manifests,
            shape,
            world,
        };
        if shape.has_proxy {
            let config = scene.control.proxy_kubeconfig(ControlPlane::address());
            let proxy = KubeProxy::start(&scene.world, &servers, Mode::Nftables, &config);
            scene.proxy = Some(proxy.expect("a kube-proxy"));
        }
        if shape.has_direct_return() {
            scene.return_directly();
        }
        scene.start_cilium();
        for pod in ["web-1", "web-2", "web-3", "api-1", "spare"] {
            scene.serve(pod);
        }
        scene.wait_served();
        Some(scene)
    }

    /// The other node answers clients outside as the node port that they dialled, as its Cilium would.
    fn return_directly(&self) {
        for (family, word) in [(Family::V4, "ip"), (Family::V6, "ip6")] {
            let pod = self.world.pod("web-3").address(family);
            let client = self.world.outside_client(0, family);
            let node_port = self.node_port("far", family);
            let (node, port) = (node_port.ip(), node_port.port());
            let table = format!(
                "table {word} dsr {{ chain out {{ type filter hook postrouting priority 300; \
                 {word} saddr {pod} {word} daddr {client} tcp sport {PORT} \
                 {word} saddr set {node} tcp sport set {port}; }}\n}}\n"
            );
            self.world.worker.nft(&table).expect("direct return");
        }
    }

    /// With pathproof, idle and proven in both families.
    pub(crate) fn proven(test: &str, shape: Shape) -> Option<Self> {
        let mut scene = Self::bare(test, shape)?;
        scene.start_agent(&[]);
        scene.wait_for("proven", 200, PATIENCE);
        Some(scene)
    }

    /// Until Services are served on every way, in both families: Cilium is ready before it has compiled
    /// its programs.
    fn wait_served(&self) {
        for plan in self.plans() {
            let mut skip = 0;
            let mut last = None;
            let served = until(PATIENCE, || {
                skip += 1;
                last = plan.once(skip).err();
                last.is_none().then_some(())
            });
            assert!(
                served.is_some(),
                "{} to {}: {last:?}",
                plan.name,
                plan.target
            );
        }
    }

    /// Starts Cilium's agent, which takes the pods.
    pub(crate) fn start_cilium(&mut self) {
        let options = self.shape.options;
        let config = self.control.admin_kubeconfig();
        let (world, programs) = (&self.world, &self.programs);
        let cilium = CiliumAgent::start(world, programs, &self.mounts, &config, options);
        let cilium = self.cilium.insert(cilium.expect("Cilium's agent"));
        cilium.adopt(world, world.pods()).expect("pods of Cilium's");
    }

    /// Starts pathproof in a cgroup below Cilium's, as every pod is, and waits until it is ready.
    pub(crate) fn start_agent(&mut self, extra: &[&str]) {
        let file = account_kubeconfig(
            &self.world,
            &self.api,
            ControlPlane::address(),
            self.control.ca(),
            base::AGENT,
        )
        .expect("a kubeconfig");
        let mut options = vec!["--kubeconfig", file.to_str().expect("a path in UTF-8")];
        options.extend(extra);
        let binary = agent_binary().expect("the agent's binary");
        let wrapped = self.world.dir().join("in-cgroup");
        let text = format!(
            "#!/bin/sh\nset -e\necho $$ > {}\nexec {} \"$@\"\n",
            self.cgroup.procs(),
            binary.display()
        );
        write_script(&wrapped, &text).expect("write a script");
        let agent = self
            .world
            .spawn_agent(&wrapped, self.manifests.dir(), &options);
        let agent = self.agent.insert(agent.expect("start the agent"));
        agent.wait_ready(PATIENCE).expect("a ready agent");
    }

    /// The agent.
    pub(crate) fn agent(&self) -> &Agent {
        self.agent.as_ref().expect("an agent runs")
    }

    /// Waits for a state with this status on both endpoints.
    pub(crate) fn wait_for(&self, state: &str, status: u64, within: Duration) -> Value {
        self.wait(&format!("{state} and {status}"), within, |report| {
            let answers = &report["answers"];
            report["verdict"]["state"] == state
                && ["healthz", "livez"]
                    .iter()
                    .all(|of| answers[of]["status"] == status)
        })
    }

    /// Waits for something in `/verdict`.
    pub(crate) fn wait(
        &self,
        what: &str,
        within: Duration,
        wanted: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut last = Value::Null;
        let seen = until(within, || {
            last = self.agent().verdict().ok()?;
            wanted(&last).then_some(())
        });
        assert!(seen.is_some(), "never {what}: {last:#}");
        last
    }

    /// Starts a pod's server.
    pub(crate) fn serve(&mut self, pod: &str) {
        let server = Server::start(self.world.pod(pod), PORT).expect("start a server");
        self.servers.insert(pod.to_owned(), server);
    }

    /// An address of a Service inside the cluster.
    pub(crate) fn inside(&self, service: &str, family: Family) -> SocketAddr {
        SocketAddr::new(self.manifests.service(service).cluster_ip(family), 80)
    }

    /// The node port of a Service.
    pub(crate) fn node_port(&self, service: &str, family: Family) -> SocketAddr {
        let port = match service {
            "web" => 30_080,
            "api" => 30_081,
            _ => 30_082,
        };
        SocketAddr::new(self.world.node_address(family), port)
    }

    /// A client in a pod, in a cgroup below Cilium's as all pods are.
    pub(crate) fn pod_plan(&self, pod: &str, target: SocketAddr) -> Plan {
        let mut plan = Plan::from_pod(&self.world, self.world.pod(pod), target);
        plan.ns = plan.ns.in_cgroup(&self.cgroup.threads());
        plan
    }

    /// Two pods to web and api, and an outsider to the node port of api, in both families. With direct return
    /// another outsider to that of far.
    fn plans(&self) -> Vec<Plan> {
        let mut plans = Vec::new();
        for family in Family::ALL {
            for service in ["web", "api"] {
                for pod in ["client-1", "client-2"] {
                    plans.push(self.pod_plan(pod, self.inside(service, family)));
                }
            }
            plans.push(self.outside_plan(family));
            if self.shape.has_direct_return() {
                let far = self.node_port("far", family);
                plans.push(Plan::from_outside(&self.world, 0, far));
            }
        }
        plans
    }

    /// A client outside, at the node port of api.
    pub(crate) fn outside_plan(&self, family: Family) -> Plan {
        Plan::from_outside(&self.world, 0, self.node_port("api", family))
    }

    /// Starts clients of all kinds.
    pub(crate) fn traffic(&mut self) {
        for plan in self.plans() {
            self.start(plan);
        }
    }

    fn start(&mut self, plan: Plan) {
        let client = plan.rate(7.0).start().expect("a client");
        self.clients.push(client);
    }

    /// Results of clients outside during this time.
    pub(crate) fn outside_felt(&self, time: Duration) -> Tally {
        // Connections from before are none of it.
        thread::sleep(Duration::from_secs(1));
        let clients = Family::ALL.map(|family| {
            let plan = self.outside_plan(family).rate(7.0);
            plan.start().expect("a client")
        });
        thread::sleep(time);
        clients.into_iter().map(Client::finish).sum()
    }

    /// Results of all clients so far.
    pub(crate) fn felt(&self) -> Tally {
        self.clients.iter().map(Client::tally).sum()
    }

    /// Asks /healthz and /livez from outside from now on, once they have been 200.
    pub(crate) fn watch(&self) -> Watch {
        let watch = Watch::start(&self.world, Duration::from_millis(20)).expect("a poller");
        let healthy = watch.wait(PATIENCE, |codes| codes.healthz == 200 && codes.livez == 200);
        healthy.expect("200");
        watch
    }

    /// Waits for a code of both; gives how long it took since `start`.
    pub(crate) fn answers(&self, watch: &Watch, code: u16, start: Instant) -> Duration {
        let answered = watch.wait(PATIENCE, |codes| {
            codes.healthz == code && codes.livez == code
        });
        match answered {
            Ok(at) => at.saturating_duration_since(start),
            Err(error) => panic!(
                "never {code}: {error:#}; felt: {:?}; {}",
                self.felt(),
                self.status()
            ),
        }
    }

    /// Fails unless the verdict is for this cause.
    pub(crate) fn assert_cause(&self, cause: &str) {
        let report = self.agent().verdict().expect("a verdict");
        assert_eq!(report["verdict"]["cause"], cause, "{}", self.status());
    }

    /// Status of a path, as asked from outside now.
    pub(crate) fn asked(&self, path: &str) -> u16 {
        let answer = self.agent().outside(path, Family::V4);
        answer.expect("an answer").status
    }

    /// Ends Cilium's agent, and starts it again with what it remembers.
    pub(crate) fn restart_cilium(&mut self) {
        self.cilium = None;
        self.start_cilium();
    }

    /// Ends Cilium's agent, and starts it again with the options of another shape.
    pub(crate) fn restart_cilium_as(&mut self, shape: Shape) {
        self.shape = shape;
        self.restart_cilium();
        self.wait_served();
    }

    /// One local pod takes another one's place behind `web`.
    pub(crate) fn swap_endpoint(&mut self, from: &str, to: &str) {
        let to = self.world.pod(to).clone();
        let swapped = self.manifests.swap_endpoint("web", from, &to);
        swapped.expect("swap an endpoint");
        let file = self.manifests.dir().join("service-web.yaml");
        put_file(&self.api, &file).expect("another endpoint");
    }

    /// Output of `pathproof status`.
    pub(crate) fn status(&self) -> String {
        let output = self.agent().command(&["status"]).output();
        String::from_utf8_lossy(&output.expect("run the agent").stdout).into_owned()
    }
}

/// Fails if 503 was answered, or if nobody answers now.
pub(crate) fn assert_never_503(watch: &Watch) {
    let changes = watch.changes();
    let failing = |change: &&Change| [change.codes.healthz, change.codes.livez].contains(&503);
    let bad: Vec<_> = changes.iter().filter(failing).collect();
    assert!(bad.is_empty(), "{bad:?}");
    assert_eq!(watch.now().healthz, 200);
}

fn services(world: &World) -> Vec<Service> {
    let pods = |names: &[&str]| names.iter().map(|name| world.pod(name)).collect::<Vec<_>>();
    vec![
        Service::new("web", 0, pods(&["web-1", "web-2", "web-3"])).load_balancer(30080),
        Service::new("api", 1, pods(&["api-1"])).node_port(30081),
        Service::new("far", 2, pods(&["web-3"])).node_port(30082),
    ]
}
