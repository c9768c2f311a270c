//! A tenant who may edit one namespace cannot harm the node.

use std::net::IpAddr;

use node_tests::cluster::{create, namespace};
use node_tests::manifests::{ports, service, slice};
use node_tests::prelude::*;
use node_tests::world::HEALTHZ_PORT;

use crate::scene::{PATIENCE, PORT, Scene};

const SERVICE: &str = "/api/v1/namespaces/pathproof/services/pathproof-sentinel";
const CLAIM: &str = "/api/v1/namespaces/shop/services/claim";
/// How long to wait for a false verdict: the time in which real failures would change it once failed
/// probes count, plus a second.
const SHOWS: Duration = Duration::from_secs(3);

impl Scene {
    /// Creates a tenant's Service with these external IPs and ports. Its endpoint is the tenant's server.
    fn claim(&self, external_ips: &[IpAddr], numbers: &[u16]) {
        namespace(&self.api, "shop").expect("a namespace");
        let ports = |target| ports(numbers.iter().copied(), "TCP", target);
        let spec = json!({
            "ipFamilyPolicy": "PreferDualStack", "externalIPs": external_ips, "ports": ports(None),
        });
        create(&self.api, service("shop", "claim", spec)).expect("a Service");
        for family in Family::ALL {
            let endpoint = json!({ "addresses": [self.world.pod("api-1").address(family)] });
            let slice = slice("shop", "claim", family, &ports(Some(PORT)), &[endpoint]);
            create(&self.api, slice).expect("a slice");
        }
    }

    fn node_port(&self) -> u16 {
        let service = self.api.get(SERVICE).expect("the sentinel");
        let ports = service["spec"]["ports"].as_array().expect("ports");
        let tcp = ports.iter().find(|port| port["protocol"] == "TCP");
        let port = tcp.and_then(|port| port["nodePort"].as_u64()?.try_into().ok());
        port.expect("a node port")
    }

    fn cluster_ips(&self) -> Vec<IpAddr> {
        let service = self.api.get(SERVICE).expect("the sentinel");
        let ips = service["spec"]["clusterIPs"].as_array().expect("IPs");
        let ip = |ip: &Value| ip.as_str().and_then(|ip| ip.parse().ok());
        ips.iter().filter_map(ip).collect()
    }

    fn node_addresses(&self) -> Vec<IpAddr> {
        let address = |family| self.world.node_address(family);
        Family::ALL.map(address).to_vec()
    }

    /// Deletes the tenant's Service, and waits until the node is proven again.
    fn unclaim(&self) {
        self.api.delete(CLAIM).expect("delete a Service");
        for family in ["v4", "v6"] {
            let slices = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
            // Ignore the error: a controller of the API server may already have deleted the slice.
            let _ = self.api.delete(&format!("{slices}/claim-{family}"));
        }
        self.wait_proven();
    }

    /// Waits until the agent reports in both families that the tenant claims this path's lanes.
    fn wait_claimed(&self, path: &str) {
        self.wait(&format!("{path} claimed"), |report| {
            Family::ALL.into_iter().all(|family| {
                let lane = lane_of(report, family, path, "tcp");
                lane["rival"] == "shop/claim"
            })
        });
    }

    /// Waits until the agent's list of claims has `count` frontends of this owner, and returns the list.
    fn wait_claims(&self, owner: &str, count: u64) -> Value {
        let what = format!("{count} claims of {owner}");
        let mut report = self.wait(&what, |report| report["claims"][owner] == count);
        report["claims"].take()
    }
}

/// Options that turn off the hold-down, because the faults follow each other closely.
const OPTIONS: [&str; 2] = ["--flap-dwell", "0"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Claim {
    NodePort,
    ClusterIp,
    Echo,
}

/// Makes, judges and deletes each claim, all in one cluster. The location of a panic shows which part failed.
#[rstest]
#[case::nftables(Mode::Nftables)]
#[case::iptables(Mode::Iptables)]
fn a_tenants_claims_take_no_node_out(#[case] mode: Mode) {
    let mut scene = needs!(Scene::proven(mode, &OPTIONS));
    if mode == Mode::Nftables {
        a_tenant_who_claims_the_health_port_is_named(&scene);
    }
    a_tenant_who_claims_what_is_probed_takes_no_node_out(
        &mut scene,
        Claim::NodePort,
        Some("node_port"),
    );
    a_node_of_which_everything_is_claimed_is_not_blind(&mut scene);
    if mode == Mode::Nftables {
        a_tenant_who_claims_what_is_probed_takes_no_node_out(
            &mut scene,
            Claim::ClusterIp,
            Some("off_cluster"),
        );
        a_tenant_who_claims_what_is_probed_takes_no_node_out(&mut scene, Claim::Echo, None);
    }
    // Start a new agent: an agent writes one Event for each reason and then only updates it. This part is
    // last, because it has traffic.
    drop(scene.agent.take());
    scene.start_agent(&OPTIONS);
    scene.wait_proven();
    a_tenant_who_claims_anothers_cluster_ip_touches_no_verdict(&mut scene);
}

fn a_tenant_who_claims_what_is_probed_takes_no_node_out(
    scene: &mut Scene,
    claim: Claim,
    claimed: Option<&str>,
) {
    let watch = scene.watch_healthy();
    let (addresses, port) = match claim {
        Claim::NodePort => (scene.node_addresses(), scene.node_port()),
        Claim::ClusterIp => (scene.cluster_ips(), 80),
        Claim::Echo => {
            let echo = ["198.18.0.2", "2001:2::2"].map(|ip| ip.parse().expect("an address"));
            (echo.to_vec(), 80)
        }
    };
    scene.claim(&addresses, &[port]);
    let is_judged_beside = scene.mode == Mode::Nftables && claim != Claim::ClusterIp;
    if is_judged_beside {
        let element = format!("{} . tcp . {port} ", addresses[0]);
        let served = || {
            let rules = scene.proxy().rules().ok()?;
            rules.contains(&element).then_some(())
        };
        let seen = until(PATIENCE, served);
        assert!(seen.is_some(), "kube-proxy never served {element}");
    }
    if let Some(path) = claimed {
        scene.wait_claimed(path);
    }
    thread::sleep(settled() + SHOWS);
    assert_never_503(&watch);
    let report = scene.report();
    assert_eq!(
        report["verdict"]["state"], "proven",
        "{claim:?}: {report:#}"
    );
    // Probes of paths that the tenant did not claim must still find a fault. A claim of cluster IPs is
    // excluded: it leaves node ports only, and refused node ports alone do not accuse the node.
    if is_judged_beside {
        break_and_mend(scene, &format!("{claim:?} claimed"));
        scene.wait_for("proven", 200, PATIENCE);
    }
    scene.unclaim();
}

/// A tenant's Service uses all cluster IPs and node ports that probes dial, in both families, so probes are
/// no evidence. The agent must still find a missing table.
fn a_node_of_which_everything_is_claimed_is_not_blind(scene: &mut Scene) {
    let mut addresses = scene.cluster_ips();
    addresses.extend(scene.node_addresses());
    let watch = scene.watch_healthy();
    scene.claim(&addresses, &[80, scene.node_port()]);
    for path in ["off_cluster", "node_port"] {
        scene.wait_claimed(path);
    }
    thread::sleep(settled() + SHOWS);
    assert_never_503(&watch);
    break_and_mend(scene, "everything claimed");
    scene.unclaim();
}

/// The tenant claims the agent's health port at the node's addresses.
fn a_tenant_who_claims_the_health_port_is_named(scene: &Scene) {
    scene.claim(&scene.node_addresses(), &[HEALTHZ_PORT]);
    let claims = scene.wait_claims("node", 2);
    assert_eq!(
        claims["first"][0]["services"],
        json!(["shop/claim"]),
        "{claims:#}"
    );
    // Check the report: outside clients now get answers from the tenant's server.
    let report = scene.report();
    let status = &report["answers"]["healthz"]["status"];
    assert_ne!(status, 503, "false 503: {report:#}");
    assert_eq!(report["verdict"]["state"], "proven", "{report:#}");
    scene.unclaim();
}

/// An external IP equals another Service's cluster IP, while clients dial it. No verdict changes, whichever
/// of the two Services kube-proxy serves. The agent names both owners.
fn a_tenant_who_claims_anothers_cluster_ip_touches_no_verdict(scene: &mut Scene) {
    scene.traffic();
    thread::sleep(settled() + SHOWS);
    let watch = scene.watch_healthy();
    let web = scene.manifests.service("web");
    let ips = Family::ALL.map(|family| web.cluster_ip(family));
    scene.claim(&ips, &[80]);
    let claims = scene.wait_claims("services", 2);
    for claim in claims["first"].as_array().expect("claims") {
        assert_eq!(
            claim["services"],
            json!(["demo/web", "shop/claim"]),
            "{claims:#}"
        );
    }
    // End the tenant's server, so that connections to it are lost or refused.
    scene.servers.remove("api-1");
    thread::sleep(settled() + SHOWS);
    assert_never_503(&watch);
    let report = scene.report();
    let services = report["verdict"]["services"].to_string();
    assert!(!services.contains("demo/web"), "{report:#}");
    scene.serve("api-1");
    scene.unclaim();
    scene.wait_claims("services", 0);
}

/// Removes kube-proxy's tables or empties its first chain, expects 503, and restarts kube-proxy to restore
/// them.
fn break_and_mend(scene: &mut Scene, what: &str) {
    println!("tables gone: {what}");
    match scene.mode {
        Mode::Nftables => {
            let gone = "delete table ip kube-proxy\ndelete table ip6 kube-proxy\n";
            scene.world.node.nft(gone).expect("no tables");
        }
        _ => scene
            .proxy()
            .iptables("-t nat -F KUBE-SERVICES")
            .expect("a flush"),
    }
    scene.wait_for("broken", 503, PATIENCE);
    scene.proxy = None;
    scene.start_proxy();
    scene.wait(&format!("200 again: {what}"), |report| {
        report["answers"]["healthz"]["status"] == 200
    });
}
