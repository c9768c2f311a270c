//! A world with three Services, their servers, their rules and the agent, and ways to ask it.
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

use crate::http::Response;
use crate::manifests::{Manifests, Sentinel, Service};
use crate::rules::{Backend, Rules};
use crate::traffic::{Client, Plan, Server};
pub use crate::wait::until;
use crate::watch::{Codes, Watch};
use crate::world::{Agent, Builder, Family, OldKernel, World, agent_binary, write_script};
use serde_json::Value;

/// Far longer than anything here takes, for machines that do much else.
pub const PATIENCE: Duration = Duration::from_secs(40);
/// The servers' port.
pub const PORT: u16 = 8080;

/// Everything that is up. Dropped in this order: who dials, who answers, the agent, the world.
pub struct Scene {
    pub clients: Vec<Client>,
    pub servers: BTreeMap<String, Server>,
    pub agent: Option<Agent>,
    pub rules: Rules,
    pub manifests: Manifests,
    pub world: World,
}

/// The world without Services and agent, for tests that need an unusual one.
pub fn pods() -> Builder {
    World::builder()
        .pods(&["web-1", "web-2", "api-1", "spare", "client-1", "client-2"])
        .bridged_pods(&["db-1", "db-2"])
        .remote_pods(&["web-3", "api-2"])
}

/// The three Services.
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

    /// A world with Services, and neither servers nor rules nor an agent.
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

    /// With a ready agent.
    pub fn new(backend: Backend, extra: &[&str]) -> Self {
        let mut scene = Self::bare(backend);
        scene.start(extra);
        scene
    }

    /// With a ready agent and traffic, and the node proven in both families.
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

    /// The same with the usual traffic.
    pub fn busy(backend: Backend, extra: &[&str]) -> Self {
        let mut scene = Self::idle(backend, extra);
        scene.traffic();
        scene.wait("pods' traffic proven", |report| {
            let proven = |family| path_of(report, family, "pod") == "proven";
            Family::ALL.into_iter().all(proven)
        });
        scene
    }

    /// Writes the sentinel, and its rules.
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

    /// Starts a server in a pod.
    pub fn serve(&mut self, pod: &str) {
        let server = Server::start(self.world.pod(pod), PORT).expect("start a server");
        self.servers.insert(pod.to_owned(), server);
    }

    /// Starts the agent and waits until it is ready.
    pub fn start(&mut self, extra: &[&str]) {
        self.spawn(extra);
        self.wait_ready();
    }

    fn wait_ready(&mut self) {
        let agent = self.agent.as_mut().expect("just started");
        agent.wait_ready(PATIENCE).expect("a ready agent");
    }

    /// Starts the agent and does not wait.
    pub fn spawn(&mut self, extra: &[&str]) {
        self.spawn_binary(agent_binary().expect("the agent's binary"), extra);
    }

    /// Starts an agent more, beside the one that runs.
    pub fn spawn_beside(&self, extra: &[&str]) -> Agent {
        let binary = agent_binary().expect("the agent's binary");
        let agent = self.world.spawn_agent(&binary, self.manifests.dir(), extra);
        agent.expect("start an agent")
    }

    /// Starts another program as the agent.
    pub fn spawn_binary(&mut self, binary: PathBuf, extra: &[&str]) {
        let agent = self.world.spawn_agent(&binary, self.manifests.dir(), extra);
        self.agent = Some(agent.expect("start the agent"));
    }

    /// A program that runs the agent (or a copy of it) by way of another one: "setpriv --no-new-privs".
    pub fn wrapped(&self, wrapper: &str, agent: &Path) -> PathBuf {
        let file = self.world.dir().join("wrapped");
        let script = format!("#!/bin/sh\nexec {wrapper} {} \"$@\"\n", agent.display());
        write_script(&file, &script).expect("a script");
        file
    }

    /// Starts the agent on a kernel that can do less, and waits until it is ready.
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

    /// Takes the agent, to end it.
    pub fn take_agent(&mut self) -> Agent {
        self.agent.take().expect("an agent runs")
    }

    /// Starts the usual clients: 20 connections a second to each Service and family, from two pods
    /// and from outside.
    pub fn traffic(&mut self) {
        self.pod_traffic();
        self.outside_traffic();
    }

    /// The pods' half of it: two pods, ClusterIPs.
    pub fn pod_traffic(&mut self) {
        for service in ["web", "api", "db"] {
            for family in Family::ALL {
                for pod in ["client-1", "client-2"] {
                    self.dial(pod, service, family, 7.0);
                }
            }
        }
    }

    /// The outsiders' half of it: two clients, load balancer address and node ports.
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

    /// Starts a client.
    pub fn run(&mut self, plan: Plan) {
        self.clients.push(plan.start().expect("start a client"));
    }

    /// Starts a client in a pod, of so many connections a second to a cluster IP.
    pub fn dial(&mut self, pod: &str, service: &str, family: Family, rate: f64) {
        let plan = self.pod_plan(pod, self.cluster_ip(service, family));
        self.run(plan.rate(rate));
    }

    /// Starts a client outside.
    pub fn dial_outside(&mut self, client: u8, target: SocketAddr, rate: f64) {
        let plan = Plan::from_outside(&self.world, client, target);
        self.run(plan.rate(rate));
    }

    /// Adds a Service, and its rules.
    pub fn add(&mut self, service: Service) {
        self.manifests.add(service).expect("add a Service");
        self.rules.install().expect("its rules");
    }

    /// Another pod takes an endpoint's place; the rules stay.
    pub fn swap_endpoint(&mut self, service: &str, from: &str, to: &str) {
        let to = self.world.pod(to);
        let swapped = self.manifests.swap_endpoint(service, from, to);
        swapped.expect("swap an endpoint");
    }

    /// Runs an nft script on the node.
    pub fn nft(&self, script: &str) {
        self.world.node.nft(script).expect("nft");
    }

    /// A client in a pod.
    pub fn pod_plan(&self, pod: &str, target: SocketAddr) -> Plan {
        Plan::from_pod(&self.world, self.world.pod(pod), target)
    }

    /// ClusterIP and port of a Service.
    pub fn cluster_ip(&self, service: &str, family: Family) -> SocketAddr {
        SocketAddr::new(self.manifests.service(service).cluster_ip(family), 80)
    }

    pub fn node_port(&self, port: u16, family: Family) -> SocketAddr {
        SocketAddr::new(self.world.node_address(family), port)
    }

    /// What /verdict says.
    pub fn report(&self) -> Value {
        // A loaded machine may keep one question waiting for too long.
        until(PATIENCE, || self.agent().verdict().ok()).expect("a verdict")
    }

    /// An answer of /healthz or /livez, asked from outside until one comes. For tests of what is
    /// answered: a test of whether probes are answered counts those that are not.
    pub fn get(&self, path: &str, family: Family) -> Response {
        let answer = until(PATIENCE, || {
            let answer = self.agent().outside(path, family);
            answer.inspect_err(|why| println!("{path}: {why:#}")).ok()
        });
        answer.unwrap_or_else(|| panic!("no answer at {path}"))
    }

    /// Its status.
    pub fn asked(&self, path: &str) -> u16 {
        self.get(path, Family::V4).status
    }

    /// What /metrics says.
    pub fn metrics(&self) -> String {
        until(PATIENCE, || self.agent().metrics().ok()).expect("metrics")
    }

    /// Waits until /verdict is so, and gives it.
    pub fn wait(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        wait_report(self.agent(), PATIENCE, what, wanted)
    }

    /// Waits until the node is proven in both families.
    pub fn wait_proven(&self) -> Value {
        self.wait("proven in both families", |report| {
            let proven = |family| family_of(report, family)["state"] == "proven";
            Family::ALL.into_iter().all(proven) && report["verdict"]["state"] == "proven"
        })
    }

    /// Asks /healthz and /livez from outside from now on.
    pub fn watch(&self) -> Watch {
        let watch = Watch::start(&self.world, Duration::from_millis(50)).expect("a poller");
        let answered = watch.wait(PATIENCE, |codes| codes.healthz != 0);
        answered.expect("the agent answers");
        watch
    }

    /// The Services' chain is flushed, which is 503 for both, and installed again, which is 200.
    pub fn break_and_mend(&self, watch: &Watch) {
        self.rules.flush_services().expect("flush");
        wait_answers(watch, 503);
        self.rules.install().expect("install again");
        wait_answers(watch, 200);
    }

    /// Connections of a Service by outcome, of one path or of all, since the agent started.
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

    /// A count of what the programs in the kernel could not do.
    pub fn fault(&self, fault: &str) -> u64 {
        self.report()["faults"][fault].as_u64().unwrap_or_default()
    }
}

/// Waits until a report of the agent is so, and gives it.
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

/// Sum of the series of a metric that bear all these labels.
pub fn metric(text: &str, name: &str, labels: &[impl AsRef<str>]) -> u64 {
    let series = text.lines().filter(|line| {
        line.strip_prefix(name)
            .is_some_and(|rest| rest.starts_with(['{', ' ']))
            && labels.iter().all(|label| line.contains(label.as_ref()))
    });
    let value = |line: &str| line.rsplit(' ').next()?.parse::<f64>().ok();
    series.filter_map(value).sum::<f64>() as u64
}

/// Hooks that were put back.
pub fn repairs(scene: &Scene) -> u64 {
    let text = scene.metrics();
    metric(&text, "pathproof_observer_reattached_total", &[""])
}

/// An element of a list of a report; null where there is none.
fn one(list: &Value, fits: impl Fn(&Value) -> bool) -> &Value {
    let mut all = list.as_array().into_iter().flatten();
    all.find(|one| fits(one)).unwrap_or(&Value::Null)
}

/// The verdict on a family, out of a report; null where there is none.
pub fn family_of(report: &Value, family: Family) -> &Value {
    let families = &report["verdict"]["families"];
    one(families, |one| one["family"] == name(family))
}

/// Whether something holds of the verdict on each family.
pub fn in_both(report: &Value, is: impl Fn(&Value) -> bool) -> bool {
    let families = Family::ALL.into_iter();
    families.map(|family| family_of(report, family)).all(is)
}

/// A lane of the sentinel, out of a report.
pub fn lane_of<'a>(report: &'a Value, family: Family, path: &str, transport: &str) -> &'a Value {
    one(&family_of(report, family)["lanes"], |lane| {
        lane["path"] == path && lane["transport"] == transport
    })
}

/// The state of a path, out of a report.
pub fn path_of<'a>(report: &'a Value, family: Family, path: &str) -> &'a Value {
    let paths = &family_of(report, family)["paths"];
    &one(paths, |one| one["path"] == path)["state"]
}

/// The device of this name, out of a report.
pub fn device_of<'a>(report: &'a Value, name: &str) -> Option<&'a Value> {
    let device = one(&report["devices"], |device| device["name"] == name);
    (!device.is_null()).then_some(device)
}

/// Whether confirmed trouble names a Service ("namespace/name").
pub fn blames(report: &Value, service: &str) -> bool {
    let is_it = |one: &Value| {
        let label = one["service"].as_str();
        let name = label.and_then(|label| label.split(':').next());
        one["confirmed"] == true && name == Some(service)
    };
    !one(&report["verdict"]["services"], is_it).is_null()
}

/// Whether the coverage names a loss.
pub fn lacks(report: &Value, loss: &str) -> bool {
    let losses = report["verdict"]["coverage"]["losses"].to_string();
    losses.contains(&format!("\"{loss}\""))
}

/// A family as reports name it.
pub fn name(family: Family) -> &'static str {
    ["IPv4", "IPv6"][family as usize]
}

/// Waits until something holds.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let seen = until(PATIENCE, || holds().then_some(()));
    assert!(seen.is_some(), "never seen: {what}");
}

/// Watches for so long that something never happens.
pub fn throughout(time: Duration, mut check: impl FnMut()) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        check();
        thread::sleep(Duration::from_millis(50));
    }
}

/// Waits until both /healthz and /livez answer so.
pub fn wait_answers(watch: &Watch, status: u16) {
    let answers = |codes: Codes| codes.healthz == status && codes.livez == status;
    if let Err(error) = watch.wait(PATIENCE, answers) {
        panic!("never {status}: {error:#}");
    }
}

/// No 503 was ever seen, and the agent answers: silence is no calm. An answer that was too late for the
/// poller is none.
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
