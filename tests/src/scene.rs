//! A node with three Services, their servers and rules, and the agent, plus helpers to query it.
//!
//! - web: load balancer, endpoints web-1, web-2 (local) and web-3 (remote)
//! - api: node port 30081, endpoints api-1 (local) and api-2 (remote)
//! - db: node port 30082 and external IPs, endpoint db-1 (bridged)
//!
//! client-1, client-2 and spare are local pods without a Service; db-2 is bridged.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::http::Response;
use crate::manifests::{Manifests, Sentinel, Service};
use crate::rules::{Backend, Rules};
use crate::traffic::{Client, Plan, Server};
pub use crate::wait::until;
use crate::watch::{Codes, Watch};
use crate::world::{Agent, Builder, Family, OldKernel, World, agent_binary, write_script};

/// Timeout of each wait, far longer than any step takes, for busy machines.
pub const PATIENCE: Duration = Duration::from_secs(40);
pub const PORT: u16 = 8080;

/// Everything that runs. Parts are dropped in this order: clients, servers, the agent, the world.
pub struct Scene {
    pub clients: Vec<Client>,
    pub servers: BTreeMap<String, Server>,
    pub agent: Option<Agent>,
    pub rules: Rules,
    pub manifests: Manifests,
    pub world: World,
}

/// The builder of the scene's world, for tests that customise the world.
pub fn pods() -> Builder {
    World::builder()
        .pods(&["web-1", "web-2", "api-1", "spare", "client-1", "client-2"])
        .bridged_pods(&["db-1", "db-2"])
        .remote_pods(&["web-3", "api-2"])
}

pub fn services(world: &World) -> Vec<Service> {
    let pods = |names: &[&str]| names.iter().map(|name| world.pod(name)).collect::<Vec<_>>();
    vec![
        Service::new("web", 0, pods(&["web-1", "web-2", "web-3"])).load_balancer(30080),
        Service::new("api", 1, pods(&["api-1", "api-2"])).node_port(30081),
        Service::new("db", 2, pods(&["db-1"]))
            .node_port(30082)
            .external_ips(),
    ]
}

impl Scene {
    /// World, Services, servers and rules, without an agent.
    pub fn bare(backend: Backend) -> Self {
        let world = pods().build().expect("build a world");
        let services = services(&world);
        let mut scene = Self::of(world, services, backend);
        scene.rules.install().expect("install the rules");
        scene.serve_all();
        scene
    }

    /// A world with Services, but without servers, rules or an agent.
    pub fn of(world: World, services: Vec<Service>, backend: Backend) -> Self {
        let manifests = Manifests::write(&world, services).expect("write manifests");
        Self {
            clients: Vec::new(),
            servers: BTreeMap::new(),
            agent: None,
            rules: Rules::new(&world, backend, manifests.dir()),
            manifests,
            world,
        }
    }

    /// [`Scene::bare`] with a ready agent.
    pub fn new(backend: Backend, extra: &[&str]) -> Self {
        let mut scene = Self::bare(backend);
        scene.start(extra);
        scene
    }

    /// [`Scene::new`] with traffic. Waits until the node is proven in both families.
    pub fn proven(backend: Backend, extra: &[&str]) -> Self {
        let mut scene = Self::new(backend, extra);
        scene.traffic();
        scene.wait_proven();
        scene
    }

    /// An idle node with a sentinel and an agent, proven in both families by probes alone.
    pub fn idle(backend: Backend, extra: &[&str]) -> Self {
        let mut scene = Self::bare(backend);
        scene.add_sentinel(&Sentinel::default());
        scene.start(extra);
        scene.wait_probed();
        scene
    }

    /// [`Scene::idle`] with the usual traffic.
    pub fn busy(backend: Backend, extra: &[&str]) -> Self {
        let mut scene = Self::idle(backend, extra);
        scene.traffic();
        scene.wait("pods' traffic proven", are_pods_proven);
        scene
    }

    /// Adds the sentinel's manifest and installs its rules.
    pub fn add_sentinel(&self, sentinel: &Sentinel) {
        self.manifests.put_sentinel(sentinel).expect("the sentinel");
        self.rules.install().expect("its rules");
    }

    /// Waits until every path of the sentinel is armed and the node is proven in both families.
    pub fn wait_probed(&self) -> Value {
        self.wait("every path probed", is_probed)
    }

    /// Starts the servers of all Services, and one in the spare pod.
    pub fn serve_all(&mut self) {
        for pod in ["web-1", "web-2", "web-3", "api-1", "api-2", "db-1", "spare"] {
            self.serve(pod);
        }
    }

    pub fn serve(&mut self, pod: &str) {
        let server = Server::start(self.world.pod(pod), PORT).expect("start a server");
        self.servers.insert(pod.to_owned(), server);
    }

    /// Starts the agent and waits until it is ready.
    pub fn start(&mut self, extra: &[&str]) {
        self.spawn(extra);
        self.wait_ready();
    }

    pub fn wait_ready(&mut self) {
        let agent = self.agent.as_mut().expect("just started");
        agent.wait_ready(PATIENCE).expect("a ready agent");
    }

    /// Starts the agent without waiting.
    pub fn spawn(&mut self, extra: &[&str]) {
        self.spawn_binary(agent_binary().expect("the agent's binary"), extra);
    }

    /// Starts a second agent beside the current one.
    pub fn spawn_beside(&self, extra: &[&str]) -> Agent {
        let binary = agent_binary().expect("the agent's binary");
        let agent = self.world.spawn_agent(&binary, self.manifests.dir(), extra);
        agent.expect("start an agent")
    }

    /// Starts this binary as the agent.
    pub fn spawn_binary(&mut self, binary: PathBuf, extra: &[&str]) {
        let agent = self.world.spawn_agent(&binary, self.manifests.dir(), extra);
        self.agent = Some(agent.expect("start the agent"));
    }

    /// Writes a script that starts the agent (or a copy of it) through another program.
    pub fn wrapped(&self, wrapper: &str, agent: &Path) -> PathBuf {
        let file = self.world.dir().join("wrapped");
        let script = format!("#!/bin/sh\nexec {wrapper} {} \"$@\"\n", agent.display());
        write_script(&file, &script).expect("a script");
        file
    }

    /// Starts the agent as on a kernel that lacks features, and waits until it is ready.
    pub fn start_on(&mut self, kernel: OldKernel, extra: &[&str]) {
        let binary = agent_binary().expect("the agent's binary");
        let (world, folder) = (&self.world, self.manifests.dir());
        let agent = world.spawn_agent_on(Some(kernel), &binary, folder, extra);
        self.agent = Some(agent.expect("start the agent"));
        self.wait_ready();
    }

    pub fn agent(&self) -> &Agent {
        self.agent.as_ref().expect("an agent runs")
    }

    /// Takes the agent out of the scene, so that the test can end it.
    pub fn take_agent(&mut self) -> Agent {
        self.agent.take().expect("an agent runs")
    }

    /// Starts the usual clients: 20 connections a second to each Service and family, from two pods and
    /// from outside.
    pub fn traffic(&mut self) {
        self.pod_traffic();
        self.outside_traffic();
    }

    /// Starts the clients in two pods, which dial ClusterIPs.
    pub fn pod_traffic(&mut self) {
        self.traffic_of("client-1");
        self.traffic_of("client-2");
    }

    /// Starts the clients in one pod, which dial ClusterIPs.
    pub fn traffic_of(&mut self, pod: &str) {
        for service in ["web", "api", "db"] {
            for family in Family::ALL {
                self.dial(pod, service, family, 7.0);
            }
        }
    }

    /// Starts the outside clients, which dial the load balancer address and node ports.
    pub fn outside_traffic(&mut self) {
        for family in Family::ALL {
            let vip = self.manifests.service("web").load_balancer_ip(family);
            let targets = [
                (0, SocketAddr::new(vip, 80)),
                (1, self.node_port(30081, family)),
                (1, self.node_port(30082, family)),
            ];
            for (client, target) in targets {
                self.dial_outside(client, target, 6.0);
            }
        }
    }

    pub fn run(&mut self, plan: Plan) {
        self.clients.push(plan.start().expect("start a client"));
    }

    /// Starts a client in a pod that opens `rate` connections a second to a ClusterIP.
    pub fn dial(&mut self, pod: &str, service: &str, family: Family, rate: f64) {
        let plan = self.pod_plan(pod, self.cluster_ip(service, family));
        self.run(plan.rate(rate));
    }

    pub fn dial_outside(&mut self, client: u8, target: SocketAddr, rate: f64) {
        let plan = Plan::from_outside(&self.world, client, target);
        self.run(plan.rate(rate));
    }

    /// Adds a Service and installs its rules.
    pub fn add(&mut self, service: Service) {
        self.manifests.add(service).expect("add a Service");
        self.rules.install().expect("its rules");
    }

    /// Replaces an endpoint by another pod in the manifests only; the rules stay.
    pub fn swap_endpoint(&mut self, service: &str, from: &str, to: &str) {
        let to = self.world.pod(to);
        let swapped = self.manifests.swap_endpoint(service, from, to);
        swapped.expect("swap an endpoint");
    }

    pub fn nft(&self, script: &str) {
        self.world.node.nft(script).expect("nft");
    }

    /// A client in a pod.
    pub fn pod_plan(&self, pod: &str, target: SocketAddr) -> Plan {
        Plan::from_pod(&self.world, self.world.pod(pod), target)
    }

    pub fn cluster_ip(&self, service: &str, family: Family) -> SocketAddr {
        SocketAddr::new(self.manifests.service(service).cluster_ip(family), 80)
    }

    pub fn node_port(&self, port: u16, family: Family) -> SocketAddr {
        SocketAddr::new(self.world.node_address(family), port)
    }

    /// The agent's report at /verdict.
    pub fn report(&self) -> Value {
        // Retry, because a single request may time out on a busy machine.
        until(PATIENCE, || self.agent().verdict().ok()).expect("a verdict")
    }

    /// Requests /healthz or /livez from outside until the agent answers. A test of whether requests are
    /// answered must not use this function, because it hides requests that time out.
    pub fn get(&self, path: &str, family: Family) -> Response {
        let answer = until(PATIENCE, || {
            let answer = self.agent().outside(path, family);
            answer.inspect_err(|why| println!("{path}: {why:#}")).ok()
        });
        answer.unwrap_or_else(|| panic!("no answer at {path}"))
    }

    /// Status code of an answer to an IPv4 request.
    pub fn asked(&self, path: &str) -> u16 {
        self.get(path, Family::V4).status
    }

    /// The page at /metrics.
    pub fn metrics(&self) -> String {
        until(PATIENCE, || self.agent().metrics().ok()).expect("metrics")
    }

    /// Waits until the report at /verdict fulfils a condition, and returns it.
    pub fn wait(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait_report(self.agent(), PATIENCE, what, wanted)
    }

    pub fn wait_proven(&self) -> Value {
        self.wait("proven in both families", |report| {
            in_both(report, |family| family["state"] == "proven")
                && report["verdict"]["state"] == "proven"
        })
    }

    /// Polls /healthz and /livez from outside, from now on.
    pub fn watch(&self) -> Watch {
        let watch = Watch::start(&self.world, Duration::from_millis(50)).expect("a poller");
        let answered = watch.wait(PATIENCE, |codes| codes.healthz != 0);
        answered.expect("the agent answers");
        watch
    }

    /// Flushes the Services' chain, waits for 503 on both paths, reinstalls the chain, and waits for 200.
    pub fn break_and_mend(&self, watch: &Watch) {
        self.rules.flush_services().expect("flush");
        wait_answers(watch, 503);
        self.rules.install().expect("install again");
        wait_answers(watch, 200);
    }

    /// Connections of a Service with this outcome since the agent started. An empty `path` means all paths.
    pub fn count(&self, service: &str, family: Family, path: &str, outcome: &str) -> u64 {
        let text = self.metrics();
        let labels = [
            format!("service_name=\"{service}\""),
            format!("family=\"{}\"", name(family)),
            format!("outcome=\"{outcome}\""),
            match path {
                "" => String::new(),
                path => format!("path=\"{path}\""),
            },
        ];
        metric(&text, "pathproof_service_connections_total", &labels)
    }

    /// Value of a counter of failures that the eBPF programs recorded.
    pub fn fault(&self, fault: &str) -> u64 {
        self.report()["faults"][fault].as_u64().unwrap_or_default()
    }
}

/// Waits until a report of the agent fulfils a condition, and returns it.
pub fn wait_report(
    agent: &Agent,
    patience: Duration,
    what: &str,
    wanted: impl Fn(&Value) -> bool,
) -> Value {
    let mut last = Value::Null;
    let seen = until(patience, || {
        last = agent.verdict().ok()?;
        wanted(&last).then_some(())
    });
    assert!(seen.is_some(), "never seen: {what}; last: {last:#}");
    last
}

/// Whether the node is proven, and every path of the sentinel is armed and passes, in both families.
pub fn is_probed(report: &Value) -> bool {
    let passes = |lane: &Value| {
        lane["state"] == "off" || (lane["armed"] == true && lane["state"] == "passing")
    };
    report["verdict"]["state"] == "proven"
        && Family::ALL.into_iter().all(|family| {
            let lanes = family_of(report, family)["lanes"].as_array();
            lanes.is_some_and(|lanes| lanes.len() >= 5 && lanes.iter().all(passes))
        })
}

/// Sum of the series of a metric that have all these labels.
pub fn metric(text: &str, name: &str, labels: &[impl AsRef<str>]) -> u64 {
    let series = text.lines().filter(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label.as_ref()))
    });
    let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
    series.filter_map(value).sum::<f64>() as u64
}

/// Number of hooks that the agent reattached.
pub fn repairs(scene: &Scene) -> u64 {
    let text = scene.metrics();
    metric(&text, "pathproof_observer_reattached_total", &[""])
}

/// The first element of a list for which `fits` returns true, or null.
fn one(list: &Value, fits: impl Fn(&Value) -> bool) -> &Value {
    let mut all = list.as_array().into_iter().flatten();
    all.find(|one| fits(one)).unwrap_or(&Value::Null)
}

/// The verdict on a family in a report, or null.
pub fn family_of(report: &Value, family: Family) -> &Value {
    let families = &report["verdict"]["families"];
    one(families, |one| one["family"] == name(family))
}

/// Whether a condition holds for the verdict on each family.
pub fn in_both(report: &Value, is: impl Fn(&Value) -> bool) -> bool {
    let families = Family::ALL.into_iter();
    families.map(|family| family_of(report, family)).all(is)
}

/// A lane of the sentinel in a report.
pub fn lane_of<'a>(report: &'a Value, family: Family, path: &str, transport: &str) -> &'a Value {
    one(&family_of(report, family)["lanes"], |lane| {
        lane["path"] == path && lane["transport"] == transport
    })
}

/// The state of a path in a report.
pub fn path_of<'a>(report: &'a Value, family: Family, path: &str) -> &'a Value {
    let paths = &family_of(report, family)["paths"];
    &one(paths, |one| one["path"] == path)["state"]
}

/// Whether connections of pods are proven in both families.
pub fn are_pods_proven(report: &Value) -> bool {
    let is_proven = |family| path_of(report, family, "pod") == "proven";
    Family::ALL.into_iter().all(is_proven)
}

/// Whether this lane of the sentinel is in this state in both families.
pub fn lanes_are(report: &Value, path: &str, transport: &str, state: &str) -> bool {
    let is = |family| lane_of(report, family, path, transport)["state"] == state;
    Family::ALL.into_iter().all(is)
}

pub fn device_of<'a>(report: &'a Value, name: &str) -> Option<&'a Value> {
    let device = one(&report["devices"], |device| device["name"] == name);
    (!device.is_null()).then_some(device)
}

/// Whether the report lists this Service ("namespace/name") with confirmed trouble.
pub fn blames(report: &Value, service: &str) -> bool {
    let is_it = |one: &Value| {
        let label = one["service"].as_str();
        let name = label.and_then(|label| label.split(':').next());
        one["confirmed"] == true && name == Some(service)
    };
    !one(&report["verdict"]["services"], is_it).is_null()
}

/// Whether the report's coverage lists this loss.
pub fn lacks(report: &Value, loss: &str) -> bool {
    let losses = report["verdict"]["coverage"]["losses"].to_string();
    losses.contains(&format!("\"{loss}\""))
}

/// Name of a family in reports.
pub fn name(family: Family) -> &'static str {
    ["IPv4", "IPv6"][family as usize]
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let seen = until(PATIENCE, || holds().then_some(()));
    assert!(seen.is_some(), "never seen: {what}");
}

/// Repeats a check for this time. The check panics if it fails.
pub fn throughout(time: Duration, mut check: impl FnMut()) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        check();
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until /healthz and /livez both answer with this status.
pub fn wait_answers(watch: &Watch, status: u16) {
    let answers = |codes: Codes| codes.healthz == status && codes.livez == status;
    if let Err(error) = watch.wait(PATIENCE, answers) {
        panic!("never {status}: {error:#}");
    }
}

/// Asserts that the poller saw no 503, and that the agent answers now: without answers, the absence of 503
/// proves nothing. An answer that is too late for the poller counts as no answer.
pub fn assert_never_503(watch: &Watch) {
    let answers = |codes: Codes| codes.healthz != 0 && codes.livez != 0;
    if let Err(error) = watch.wait(PATIENCE, answers) {
        panic!("the agent does not answer: {error:#}");
    }
    let changes = watch.changes();
    let mut codes = changes.iter().map(|change| change.codes);
    let bad = codes.any(|codes| codes.healthz == 503 || codes.livez == 503);
    assert!(!bad, "false 503: {changes:?}");
}
