//! UDP Services with real rules: the counts for each fault and its negative control. UDP evidence never
//! changes the verdict.

use std::net::UdpSocket;
use std::sync::atomic::Ordering;

use node_tests::prelude::*;
use node_tests::traffic::dns::{self, question};
use node_tests::traffic::{DnsClient, Manner};
use node_tests::worker::Worker;

use crate::commands::{assert_says, pathproof, told};

const DNS: u16 = 53;
/// Target port of the DNS pods. In a real cluster it may equal the Service's port.
const TARGET: u16 = 5353;

/// A node that is proven by TCP traffic, and a DNS Service with two local pods.
struct Dns {
    servers: Vec<Worker>,
    clients: Vec<DnsClient>,
    scene: Scene,
}

impl Dns {
    fn up(backend: Backend, manner: Manner) -> Self {
        let mut scene = Scene::proven(backend, &[]);
        let pods = ["api-1", "spare"].map(|pod| scene.world.pod(pod).clone());
        let service = Service::new("names", 7, &pods).udp("dns", DNS, TARGET);
        scene.add(service);
        let serve = |pod| dns::serve(pod, TARGET, manner).expect("a server");
        let servers = pods.iter().map(serve).collect();
        let clients = Vec::new();
        let mut dns = Self {
            servers,
            clients,
            scene,
        };
        // Query until datagrams are counted: before, the agent has not read the Service.
        dns.ask(30_000);
        eventually("the Service is known", || {
            dns.counts(Family::V6, "arrived") > 0
        });
        dns
    }

    fn ask(&mut self, first: u16) {
        for (number, family) in Family::ALL.into_iter().enumerate() {
            let target = self.frontend(family);
            let pod = self.scene.world.pod("client-1");
            let first = first + 2_000 * number as u16;
            let client = DnsClient::start(pod, target, first, 20.0);
            self.clients.push(client.expect("a client"));
        }
    }

    fn frontend(&self, family: Family) -> SocketAddr {
        let names = self.scene.manifests.service("names");
        SocketAddr::new(names.cluster_ip(family), DNS)
    }

    fn line(&self, family: Family) -> Value {
        let report = self.scene.report();
        let services = report["udp"]["services"].as_array();
        let is_it =
            |line: &&Value| line["service"] == "demo/names:dns" && line["family"] == name(family);
        let found = services.and_then(|all| all.iter().find(is_it));
        found.cloned().unwrap_or_default()
    }

    fn counts(&self, family: Family, outcome: &str) -> u64 {
        self.line(family)["outcomes"][outcome].as_u64().unwrap_or(0)
    }

    /// Waits until the count of an outcome has grown by `more` in both families.
    fn wait_more(&self, outcome: &str, more: u64) {
        for family in Family::ALL {
            let before = self.counts(family, outcome);
            eventually(outcome, || self.counts(family, outcome) >= before + more);
        }
    }
}

#[test]
fn questions_are_answered() {
    let dns = Dns::up(Backend::Nftables, Manner::Answers);
    dns.wait_more("answered", 20);
    for family in Family::ALL {
        eventually("answered", || {
            dns.line(family)["outcomes"]["answered"].as_u64() > Some(10)
        });
        let line = dns.line(family);
        assert_eq!(line["dns"], true, "{line:#}");
        let of = |outcome: &str| line["outcomes"][outcome].as_u64().unwrap_or(0);
        for failure in ["leaked", "misrouted", "stale", "lost"] {
            assert_eq!(of(failure), 0, "{failure}: {line:#}");
        }
        assert!(of("forwarded") >= of("answered"), "{line:#}");
    }
    assert!(dns.clients.iter().all(|client| client.answered() > 0));
    let text = dns.scene.metrics();
    for name in [
        "pathproof_service_udp_datagrams_total{",
        "pathproof_udp_datagrams_total{",
    ] {
        assert!(text.contains(name), "{name}");
    }
    let connections = dns.scene.count("names", Family::V4, "", "arrived");
    assert_eq!(connections, 0);
}

/// The Services' rules are gone. Datagrams are counted as leaked; only connections change the verdict.
#[test]
fn flushed_rules_leak() {
    let mut dns = Dns::up(Backend::Nftables, Manner::Answers);
    dns.wait_more("answered", 5);
    dns.scene.rules.flush_services().expect("flush");
    // Use new source ports: conntrack entries still translate datagrams from the earlier ones.
    dns.ask(40_000);
    dns.wait_more("leaked", 5);
}

/// The UDP Service's rule leads to the wrong pod, while every TCP Service works. The verdict stays Proven.
#[test]
fn a_rewritten_udp_rule_is_counted_and_is_no_verdict() {
    let mut dns = Dns::up(Backend::Nftables, Manner::Answers);
    dns.wait_more("answered", 5);
    let watch = dns.scene.watch();
    let nobody = dns.scene.world.pod("client-2").clone();
    for pod in ["api-1", "spare"] {
        for family in Family::ALL {
            let endpoint = dns.scene.world.pod(pod).endpoint(family, TARGET);
            let elsewhere = nobody.endpoint(family, TARGET);
            let redirected = dns.scene.rules.redirect(endpoint, elsewhere);
            redirected.expect("redirect");
        }
    }
    dns.ask(40_000);
    dns.wait_more("misrouted", 10);
    assert_never_503(&watch);
    let report = dns.scene.report();
    assert_eq!(report["verdict"]["state"], "proven", "{report:#}");
}

/// Servers that do not answer are no failure of the node, so the datagrams count as forwarded.
#[test]
fn silent_servers_are_forwarded_to() {
    let dns = Dns::up(Backend::IptablesNft, Manner::Mute);
    let watch = dns.scene.watch();
    dns.wait_more("forwarded", 20);
    for family in Family::ALL {
        let line = dns.line(family);
        for outcome in ["answered", "leaked", "misrouted", "stale", "lost"] {
            assert_eq!(line["outcomes"][outcome], 0, "{outcome}: {line:#}");
        }
    }
    assert_never_503(&watch);
    assert_eq!(dns.servers.len(), 2, "they are there, and mute");
}

/// A policy drops a Service's queries. They arrive and never leave, so they count as lost.
#[test]
fn dropped_questions_are_lost() {
    let mut dns = Dns::up(Backend::Nftables, Manner::Answers);
    dns.wait_more("answered", 5);
    let watch = dns.scene.watch();
    let script = format!(
        "table inet drops {{\n chain drops {{\n type filter hook forward priority -5; policy accept;\n \
         udp dport {TARGET} drop\n }}\n}}\n"
    );
    dns.scene.world.node.nft(&script).expect("a policy");
    dns.ask(40_000);
    dns.wait_more("lost", 5);
    assert_never_503(&watch);
}

/// A client always uses the same source port, as many resolvers and proxies do. Its conntrack entry still
/// leads to an endpoint that was removed, although the rules follow the API (kubernetes #125467). Negative
/// control: clients with new source ports.
#[test]
fn stale_conntrack_entries_are_reported() {
    let mut dns = Dns::up(Backend::Nftables, Manner::Answers);
    dns.wait_more("answered", 5);
    let watch = dns.scene.watch();
    let clients = Family::ALL.map(|family| dns.ask_from_one_port(family));
    thread::sleep(Duration::from_secs(1));
    for (left, new) in [("api-1", "web-1"), ("spare", "web-2")] {
        let new = dns.scene.world.pod(new).clone();
        let server = dns::serve(&new, TARGET, Manner::Answers);
        dns.servers.push(server.expect("a server"));
        let swapped = dns.scene.manifests.swap_endpoint("names", left, &new);
        swapped.expect("swap an endpoint");
    }
    dns.scene.rules.install().expect("install");
    dns.ask(50_000);
    dns.wait_more("answered", 5);
    let stale = Family::ALL.map(|family| dns.counts(family, "stale"));
    assert_eq!(
        stale, [0; 2],
        "pods that left still answer, so no client fails"
    );
    dns.servers.drain(..2);
    dns.wait_more("stale", 5);
    let status = told(pathproof(&dns.scene.world, &["status"]), 0);
    assert_says(&status, &["stale of", "operations.md#udp"]);
    // Apply the remedy of docs/operations.md#udp.
    for family in Family::ALL {
        let frontend = dns.frontend(family).ip();
        let mut delete = dns.scene.world.node.command("conntrack");
        delete.args(["-D", "-p", "udp", "-d", &frontend.to_string()]);
        assert!(delete.output().expect("conntrack").status.success());
    }
    thread::sleep(Duration::from_secs(2));
    let mended = Family::ALL.map(|family| dns.counts(family, "stale"));
    dns.wait_more("answered", 20);
    assert_eq!(
        mended,
        Family::ALL.map(|family| dns.counts(family, "stale"))
    );
    assert_never_503(&watch);
    drop(clients);
}

impl Dns {
    fn ask_from_one_port(&self, family: Family) -> Worker {
        let pod = self.scene.world.pod("client-2");
        let target = self.frontend(family);
        let source = SocketAddr::new(pod.address(family), 45_000);
        let socket = pod.ns.run(|| UdpSocket::bind(source)).expect("a socket");
        Worker::here(move |stop| {
            for number in 0_u16.. {
                if stop.load(Ordering::Relaxed) {
                    return;
                }
                let _ = socket.send_to(&question(number), target);
                thread::sleep(Duration::from_millis(100));
            }
        })
    }
}
