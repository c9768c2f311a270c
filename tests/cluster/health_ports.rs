//! A Service's health check node port, which a real kube-proxy serves too. Outside clients get the agent's
//! answers, and the node itself gets kube-proxy's. Both are identical while the node is healthy.

use std::net::IpAddr;

use node_tests::cluster::{KUBE_PROXY_HEALTHZ_PORT, create};
use node_tests::http::{self, Response};
use node_tests::prelude::*;
use node_tests::watch::Change;

use crate::scene::{PATIENCE, Scene, flush, wait_healthz};

/// Health check node port of web.
const PORT: u16 = 30_999;

impl Scene {
    /// Adds a health check node port to web, and waits for kube-proxy's listener.
    fn balance(&mut self) {
        let port = |service: &mut node_tests::manifests::Service| {
            *service = service.clone().health_port(PORT);
        };
        self.manifests.change("web", port).expect("web");
        self.put("web");
        for family in Family::ALL {
            let seen = until(PATIENCE, || self.local(family, "GET", "/").ok());
            assert!(seen.is_some(), "kube-proxy listens, {family:?}");
        }
    }

    fn address(&self, family: Family) -> SocketAddr {
        SocketAddr::new(self.world.node_address(family), PORT)
    }

    fn outside(&self, family: Family, method: &str, path: &str) -> anyhow::Result<Response> {
        let (from, to) = (&self.world.outside, self.address(family));
        from.run(|| http::request(to, method, path, PATIENCE))
    }

    /// kube-proxy's answer, which only connections from the node itself get.
    fn local(&self, family: Family, method: &str, path: &str) -> anyhow::Result<Response> {
        let (from, to) = (&self.world.node, self.address(family));
        from.run(|| http::request(to, method, path, PATIENCE))
    }

    /// Number of the agent's answers at health check node ports so far.
    fn answered(&self) -> u64 {
        self.agent().health_port_answers().expect("metrics")
    }

    /// Waits until agent and kube-proxy both report this number of endpoints, then asserts equal answers to
    /// all requests.
    fn agree_at_port(&self, what: &str, endpoints: &str) {
        for family in Family::ALL {
            let told = |answer: anyhow::Result<Response>| {
                let answer = answer.ok()?;
                let weight = answer.header("X-Load-Balancing-Endpoint-Weight");
                (weight == Some(endpoints)).then_some(answer.status)
            };
            let both = || {
                let theirs = told(self.local(family, "GET", "/"))?;
                let ours = told(self.outside(family, "GET", "/"))?;
                let status = if endpoints == "0" { 503 } else { 200 };
                (theirs == status && ours == status).then_some(())
            };
            assert!(until(PATIENCE, both).is_some(), "{what}: {family:?}");
            for (method, path) in [
                ("GET", "/"),
                ("GET", "/healthz"),
                ("GET", "/livez?x=1"),
                // Here kube-proxy has no mux, which would redirect the first of these.
                ("GET", "//healthz"),
                ("GET", "/%68ealthz"),
                ("HEAD", "/"),
                ("POST", "/"),
                ("OPTIONS", "/x/y"),
            ] {
                let before = self.answered();
                let ours = plain(self.outside(family, method, path));
                assert_eq!(self.answered(), before + 1, "the agent did not answer");
                let theirs = plain(self.local(family, method, path));
                assert_eq!(self.answered(), before + 1, "the agent answered the node");
                assert_eq!(ours, theirs, "{what}: {method} {path}, {family:?}");
            }
        }
    }
}

/// The answer without its date, because the two dates may differ by a second.
fn plain(answer: anyhow::Result<Response>) -> Response {
    let mut answer = answer.expect("an answer");
    let date = |line: &String| line.starts_with("Date: ");
    assert!(answer.headers.iter().any(date), "{answer:?}");
    answer.headers.retain(|line| !date(line));
    answer
}

fn watch(from: &Namespace, ip: IpAddr) -> Watch {
    let address = SocketAddr::new(ip, PORT);
    Watch::start_at(from, address, Duration::from_millis(20)).expect("a poller")
}

#[rstest]
#[case::nftables(Mode::Nftables)]
#[case::iptables(Mode::Iptables)]
fn answers_equal_those_of_kube_proxy(#[case] mode: Mode) {
    let scene = needs!(Scene::bare(mode));
    agree_at_ports(scene);
}

/// Agent and kube-proxy give the same answers through all changes of endpoints and Services.
pub(crate) fn agree_at_ports(mut scene: Scene) {
    scene.balance();
    scene.start_agent(&[]);
    scene.wait_proven();
    scene.agree_at_port("two of three endpoints are here", "2");

    // A node that is being removed gets no new connections of externalTrafficPolicy Cluster, but still gets
    // those of Local (KEP-3836). So the answers here do not change.
    scene.taint(&[AUTOSCALER_TAINT]);
    let left = until(PATIENCE, || {
        (scene.agent().healthz().ok()? == 503).then_some(())
    });
    assert!(left.is_some(), "the node leaves");
    scene.agree_at_port("the node leaves", "2");
    scene.taint(&[]);

    let ready = |scene: &mut Scene, ready: bool, pods: &[&str]| {
        let change = |service: &mut node_tests::manifests::Service| {
            for endpoint in &mut service.endpoints {
                if pods.contains(&&*endpoint.pod) {
                    (endpoint.ready, endpoint.terminating) = (ready, !ready);
                }
            }
        };
        scene.manifests.change("web", change).expect("web");
        scene.put("web");
    };
    ready(&mut scene, false, &["web-1"]);
    scene.agree_at_port("one terminates", "1");
    ready(&mut scene, false, &["web-2"]);
    scene.agree_at_port("both terminate, and serve on", "0");
    ready(&mut scene, true, &["web-1", "web-2"]);
    scene.agree_at_port("both are back", "2");

    // Delete another Service, which changes nothing, and then this one, which closes the port.
    scene.remove("api");
    scene.agree_at_port("another Service went", "2");
    scene.remove("web");
    for family in Family::ALL {
        let closed = until(PATIENCE, || {
            let gone = scene.outside(family, "GET", "/").is_err();
            (gone && scene.local(family, "GET", "/").is_err()).then_some(())
        });
        assert!(closed.is_some(), "closed with its Service, {family:?}");
    }
}

/// During a flush kube-proxy still answers 200, because its last sync succeeded.
#[test]
fn a_flushed_table_is_503_and_a_killed_agent_leaves_the_port() {
    let mut scene = needs!(Scene::bare(Mode::Nftables));
    scene.balance();
    // The allow list applies only to port 10256, and not to health check node ports.
    scene.start_agent(&["--flap-dwell", "0", "--healthz-allow-cidr", "127.0.0.1"]);
    scene.wait_proven();
    let address = scene.world.node_address(Family::V4);
    let ours = watch(&scene.world.outside, address);
    let theirs = watch(&scene.world.node, address);
    let is = |status| move |codes: node_tests::watch::Codes| codes.healthz == status;
    ours.wait(PATIENCE, is(200)).expect("200");
    settle();
    for round in 0..5 {
        let began = Instant::now();
        let rules = flush(&scene.world.node);
        let told = ours
            .wait(PATIENCE, is(503))
            .expect("503")
            .duration_since(began);
        let began = Instant::now();
        scene.world.node.nft(&rules).expect("the rules again");
        let mended = ours
            .wait(PATIENCE, is(200))
            .expect("200")
            .duration_since(began);
        println!("MEASURED round {round}: 503 after {told:?}, 200 after {mended:?}");
    }
    let body = plain(scene.outside(Family::V4, "GET", "/"));
    let stayed = theirs.changes();
    assert_eq!(stayed.len(), 1, "kube-proxy's: {stayed:?}");

    // Updates of the agent leave no gap. After a kill, kube-proxy answers.
    let before = ours.changes().len();
    for _ in 0..20 {
        scene.upgrade_agent();
    }
    let after = ours.changes().split_off(before);
    let is_503 = |change: &Change| change.codes.healthz == 503 || change.codes.livez == 503;
    assert!(!after.iter().any(is_503), "false 503: {after:?}");
    assert!(after.is_empty(), "silence: {after:?}");
    scene.agent.take().expect("an agent").kill().expect("kill");
    let killed = Instant::now();
    let answer = until(PATIENCE, || scene.outside(Family::V4, "GET", "/").ok());
    println!(
        "MEASURED kube-proxy's answer {:?} after the kill",
        killed.elapsed()
    );
    assert_eq!(plain(Ok(answer.expect("kube-proxy's answer"))), body);
    thread::sleep(Duration::from_millis(200));
    assert_eq!(ours.now().healthz, 200);
}

/// On a broken node the port still answers 200 in audit mode, or if the agent does not serve the port.
#[test]
fn a_broken_node_stays_200_in_audit_and_at_unserved_ports() {
    let mut scene = needs!(Scene::bare(Mode::Nftables));
    scene.balance();
    for (options, answers) in [
        (["--enforcement", "audit"], true),
        (["--health-check-node-ports", "none"], false),
        (["--health-check-node-ports", "30000-30998"], false),
        (["--port-takeover", "bind"], false),
    ] {
        scene.start_agent(&options);
        scene.wait_proven();
        let rules = flush(&scene.world.node);
        scene.wait(&format!("{options:?}: broken"), |report| {
            report["verdict"]["state"] == "broken"
        });
        for family in Family::ALL {
            let answer = scene.outside(family, "GET", "/").expect("an answer");
            assert_eq!(answer.status, 200, "{options:?}: {answer:?}");
        }
        assert_eq!(scene.answered() > 0, answers, "{options:?}");
        scene.world.node.nft(&rules).expect("the rules again");
        let agent = scene.agent.take().expect("an agent");
        agent.terminate().expect("the agent ends");
    }
}

/// Starts outside clients that dial the node port of web.
fn dial(scene: &mut Scene) {
    for family in Family::ALL {
        let port = SocketAddr::new(scene.world.node_address(family), 30_080);
        for client in 0..3 {
            let plan = Plan::from_outside(&scene.world, client, port).rate(3.0);
            scene.clients.push(plan.start().expect("a client"));
        }
    }
}

/// Empties a chain of kube-proxy. Returns the script that restores its rules.
fn empty(scene: &Scene, kind: &str, service: &str) -> String {
    let rules = scene.proxy().rules().expect("the rules");
    let end = format!("-{service}/tcp/http");
    let is_it = |word: &&str| word.starts_with(kind) && word.ends_with(&end);
    let chain = rules.split_whitespace().find(is_it).expect("the chain");
    let mut saved = String::new();
    for family in ["ip", "ip6"] {
        let words = ["list", "chain", family, "kube-proxy", chain];
        saved += &scene.world.node.feed("nft", &words, "").expect("a chain");
        let flush = format!("flush chain {family} kube-proxy {chain}\n");
        scene.world.node.nft(&flush).expect("flush");
    }
    saved
}

/// If one Service's rules are gone, only the health check node port of this Service answers 503. Negative
/// controls are the rules of another Service, and a filter.
#[test]
fn one_broken_service_is_503_only_at_its_own_port() {
    let mut scene = needs!(Scene::bare(Mode::Nftables));
    scene.balance();
    scene.start_agent(&[]);
    scene.wait_proven();
    dial(&mut scene);
    let proven = until(PATIENCE, || {
        let served = |client: &node_tests::traffic::Client| client.tally().ok > 10;
        scene.clients.iter().all(served).then_some(())
    });
    assert!(proven.is_some(), "outsiders are served");
    let address = scene.world.node_address(Family::V4);
    let port = watch(&scene.world.outside, address);
    let node = scene.watch_healthy();
    wait_healthz(&port, 200);

    // The negative controls: empty another Service's chain, and filter this Service's port.
    let other = empty(&scene, "service-", "demo/api");
    thread::sleep(Duration::from_secs(4));
    scene.world.node.nft(&other).expect("its rules");
    let filter = "table inet test-filter {\n chain before {\n type filter hook prerouting priority -300\n \
                  tcp dport 30080 drop\n }\n}\n";
    scene.world.node.nft(filter).expect("a filter");
    thread::sleep(Duration::from_secs(6));
    let open = "delete table inet test-filter\n";
    scene.world.node.nft(open).expect("no filter");
    thread::sleep(Duration::from_secs(2));
    assert_never_503(&port);
    let changes = port.changes();
    assert_eq!(changes.len(), 1, "no fault of web's: {changes:?}");

    let began = Instant::now();
    let rules = empty(&scene, "external-", "demo/web");
    let Ok(told) = port.wait(PATIENCE, |codes| codes.healthz == 503) else {
        let report = scene.report();
        panic!("never 503: {report:#}");
    };
    println!(
        "503 {:?} after its chain was emptied",
        told.duration_since(began)
    );
    let report = scene.report();
    let broken = &report["answers"]["broken_services"];
    assert_eq!(broken, &serde_json::json!(["demo/web"]), "{report:#}");
    let theirs = scene.local(Family::V4, "GET", "/").expect("kube-proxy's");
    assert_eq!(theirs.status, 200);
    scene.world.node.nft(&rules).expect("its rules");
    let began = Instant::now();
    let mended = wait_healthz(&port, 200);
    println!("200 {:?} after it was mended", mended.duration_since(began));
    assert_never_503(&node);
    let changes = node.changes();
    assert_eq!(changes.len(), 1, "the node works: {changes:?}");
}

/// kube-proxy runs under the name of another node, so by its count no endpoint is here. The negative control is
/// an update of kube-proxy.
#[test]
fn a_port_is_no_kinder_than_kube_proxy() {
    let mut scene = needs!(Scene::bare(Mode::Nftables));
    scene.balance();
    scene.start_agent(&[]);
    scene.wait_proven();
    let port = watch(&scene.world.outside, scene.world.node_address(Family::V4));
    wait_healthz(&port, 200);
    scene.proxy = None;
    scene.start_proxy();
    thread::sleep(Duration::from_secs(8));
    assert_never_503(&port);

    let address = |family| scene.world.node_address(family).to_string();
    let addresses =
        Family::ALL.map(|family| json!({ "type": "InternalIP", "address": address(family) }));
    let other = json!({
        "apiVersion": "v1", "kind": "Node", "metadata": { "name": "other" },
        "status": { "addresses": addresses },
    });
    create(&scene.api, other).expect("another Node");
    scene.proxy = None;
    scene.start_proxy_at(KUBE_PROXY_HEALTHZ_PORT, &["--hostname-override=other"]);
    wait_healthz(&port, 503);
    let theirs = scene.local(Family::V4, "GET", "/").expect("kube-proxy's");
    assert_eq!(theirs.status, 503);
    scene.wait("the port is named", |report| {
        let refused = report["answers"]["refused_by_owner"].to_string();
        refused.contains("demo/web, IPv4 port 30999: the port's owner answers 503")
    });
    scene.proxy = None;
    scene.start_proxy();
    wait_healthz(&port, 200);
}
