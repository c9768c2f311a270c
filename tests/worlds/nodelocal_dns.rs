//! NodeLocal DNSCache: a device of the node has the cluster IP of DNS, and a listener on the node answers
//! there. The traffic bypasses connection tracking, so kube-proxy's rules never match. The rules are those of
//! node-cache (kubernetes/dns, cmd/node-cache/app/cache_app.go). Its two ports are two Services here.

use node_tests::prelude::*;
use node_tests::traffic::dns::serve_at;
use node_tests::traffic::{DnsClient, Manner};
use node_tests::worker::Worker;

use crate::parts::{SOUND, everybody_is_served, flushed, stays};

const ADDRESSES: [&str; 2] = ["10.96.0.14", "fd00:10:96::e"];

#[test]
fn a_cache_that_answers_is_sound() {
    let (mut scene, servers) = cached();
    let watch = scene.watch();
    stays(&scene, &watch, &SOUND);
    let asking = dial(&mut scene);
    stays(&scene, &watch, &SOUND);
    everybody_is_served(&scene);
    assert!(asking.iter().all(|client| client.answered() > 100), "UDP");
    let report = scene.report();
    for family in Family::ALL {
        let count = |outcome| scene.count("dns-tcp", family, "pod", outcome);
        assert!(count("answered") > 100, "answered on the node");
        assert_eq!(count("proven"), 0, "and no proof");
        assert!(count("lost") * 50 <= count("answered"), "lost");
        assert_ne!(path_of(&report, family, "pod"), "proven", "{report:#}");
    }
    scene.traffic();
    stays(&scene, &watch, &SOUND);
    flushed(&scene, &watch);
    drop(servers);
}

/// Starts TCP and UDP clients in two pods.
pub(crate) fn dial(scene: &mut Scene) -> Vec<DnsClient> {
    let mut asking = Vec::new();
    for pod in ["client-1", "client-2"] {
        for address in ADDRESSES {
            let target = SocketAddr::new(address.parse().expect("an address"), 53);
            scene.run(scene.pod_plan(pod, target));
            let client = DnsClient::start(scene.world.pod(pod), target, 60_000, 10.0);
            asking.push(client.expect("a resolver"));
        }
    }
    asking
}

pub(crate) fn cached() -> (Scene, (Server, Vec<Worker>)) {
    let mut scene = Scene::idle(Backend::IptablesNft, &[]);
    let mut tcp = Service::new("dns-tcp", 4, [scene.world.pod("spare")]);
    (tcp.port, tcp.target_port) = (53, 53);
    for service in [
        tcp,
        Service::new("dns", 4, [scene.world.pod("spare")]).udp("dns", 53, 53),
    ] {
        scene.manifests.add(service).expect("DNS");
    }
    scene.rules.install().expect("its rules");
    let node = &scene.world.node;
    // Clusters use a dummy device. Some test kernels have none, so try an ifb too.
    node.ip("link add nodelocaldns type dummy")
        .or_else(|_| node.ip("link add nodelocaldns type ifb"))
        .expect("a device");
    node.ip("link set nodelocaldns up").expect("up");
    let tcp = Server::start_as(node, "cache", 53, Manner::Answers).expect("a cache");
    let mut udp = Vec::new();
    for (address, tool) in ADDRESSES.into_iter().zip(["iptables", "ip6tables"]) {
        let length = if address.contains(':') {
            "128 nodad"
        } else {
            "32"
        };
        node.ip(&format!("addr add {address}/{length} dev nodelocaldns"))
            .expect("its address");
        let at = SocketAddr::new(address.parse().expect("an address"), 53);
        udp.push(serve_at(node, "cache", at, Manner::Answers).expect("a cache"));
        let (mut raw, mut filter) = ("*raw\n".to_owned(), "*filter\n".to_owned());
        for transport in ["tcp", "udp"] {
            let to = format!("-p {transport} -d {address} --dport 53 -j");
            let from = format!("-p {transport} -s {address} --sport 53 -j");
            raw += &format!("-A PREROUTING {to} NOTRACK\n-A OUTPUT {from} NOTRACK\n");
            raw += &format!("-A OUTPUT {to} NOTRACK\n");
            filter += &format!("-A INPUT {to} ACCEPT\n-A OUTPUT {from} ACCEPT\n");
        }
        let script = format!("{raw}COMMIT\n{filter}COMMIT\n");
        node.feed(&format!("{tool}-nft-restore"), &["--noflush"], &script)
            .expect("rules");
    }
    (scene, (tcp, udp))
}
