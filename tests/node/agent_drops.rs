//! For many kinds of loss the agent reports the kernel's drop reason. While nothing is lost, no tracepoint is
//! attached.

use std::collections::BTreeSet;

use node_tests::prelude::*;

use crate::commands::{assert_says, pathproof, told};

/// Maximum time until a reason is reported, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(15);
/// Oldest kernel on which this is tested. Most drop reasons came with it and the next three versions.
const LINUX: (u32, u32) = (6, 1);
const FORWARD: &str = "type filter hook forward priority 0;";

const V4: &str = "IPv4";
const V6: &str = "IPv6";

type Fault = fn(&Scene);

fn nft(node: &Namespace, chain: &str, rule: &str) {
    let table = format!("table inet loses {{ chain it {{ {chain}\n{rule}\n}}\n}}\n");
    node.nft(&table).expect("a rule");
}

fn forward(scene: &Scene) {
    nft(&scene.world.node, FORWARD, "tcp dport 8080 drop");
}

fn ip6tables(scene: &Scene) {
    let words = [
        "-w", "5", "-I", "FORWARD", "-p", "tcp", "--dport", "8080", "-j", "DROP",
    ];
    (scene.world.node)
        .feed("ip6tables-nft", &words, "")
        .expect("a rule");
}

/// Makes the reverse path filter strict and removes the routes back to the clients.
fn rp_filter(scene: &Scene) {
    let node = &scene.world.node;
    node.sysctl("net/ipv4/conf/all/rp_filter", "1")
        .expect("a switch");
    for client in ["client-1", "client-2"] {
        scene.world.cut_route(client).expect("cut the route");
    }
}

fn forwarding_off(scene: &Scene) {
    scene.world.set_forwarding(false).expect("a switch");
}

const ENDPOINTS: [&str; 6] = ["web-1", "web-2", "web-3", "api-1", "api-2", "db-1"];

fn blackhole(scene: &Scene) {
    for pod in ENDPOINTS {
        for family in Family::ALL {
            let address = scene.world.pod(pod).address(family);
            let words = format!("route replace blackhole {address}");
            scene.world.node.ip(&words).expect("a route");
        }
    }
}

fn neighbours(scene: &Scene) {
    let node = &scene.world.node;
    for pod in ["web-1", "web-2", "api-1"].map(|name| scene.world.pod(name)) {
        pod.ns.ip("link set eth0 arp off").expect("no ARP");
    }
    // Send one solicitation instead of three, so that resolution fails after one second.
    for family in ["ipv4", "ipv6"] {
        for kind in ["mcast_solicit", "ucast_solicit"] {
            for device in devices(scene) {
                let key = format!("net/{family}/neigh/{device}/{kind}");
                node.sysctl(&key, "1").expect("a switch");
            }
        }
    }
    for pod in ["web-1", "web-2", "api-1"].map(|name| scene.world.pod(name)) {
        for family in Family::ALL {
            let (address, device) = (pod.address(family), &pod.device);
            let words = format!("neigh del {address} dev {device}");
            node.ip(&words).expect("an entry that was there");
        }
    }
}

fn devices(scene: &Scene) -> BTreeSet<String> {
    let here = ["web-1", "web-2", "api-1", "db-1"];
    (here.iter())
        .map(|pod| scene.world.pod(pod).device.clone())
        .collect()
}

fn ttl(scene: &Scene) {
    let chain = "type filter hook prerouting priority mangle;";
    nft(&scene.world.node, chain, "tcp dport 80 ip ttl set 1");
}

fn full_queue(scene: &Scene) {
    for device in devices(scene) {
        let line = format!("qdisc add dev {device} root pfifo limit 0");
        scene.world.node.tc_batch(&line).expect("a queue");
    }
}

fn checksum(scene: &Scene) {
    for client in ["client-1", "client-2"] {
        let ns = &scene.world.pod(client).ns;
        let chain = "type filter hook postrouting priority 0;";
        nft(ns, chain, "tcp dport 80 ip checksum set 1");
    }
}

/// Attaches a tc program behind the observer that drops all ingress packets with `TC_ACT_SHOT`.
fn tc_program(scene: &Scene) {
    let (node, device) = (&scene.world.node, &scene.world.pod("client-1").device);
    // Ignore the error: without TCX, the agent has already added the qdisc.
    let _ = node.tc_batch(&format!("qdisc add dev {device} clsact"));
    let program = "bpf direct-action bytecode '1,6 0 0 2'";
    let line = format!("filter add dev {device} ingress {program}");
    node.tc_batch(&line).expect("a filter");
}

/// Drop reasons that the report shows for a family's Services.
fn reasons(report: &Value, family: &str) -> BTreeSet<String> {
    let dropped = report["verdict"]["drops"]["dropped"].as_array();
    let of_family = dropped
        .into_iter()
        .flatten()
        .filter(|it| it["family"] == family && it["service"] != "pathproof/sentinel");
    of_family
        .filter_map(|it| it["reason"].as_str().map(str::to_owned))
        .collect()
}

fn watch(report: &Value) -> &Value {
    &report["verdict"]["drops"]["watch"]
}

/// The kernel's drop reason for each kind of loss. Linux 6.18 has none for a blackhole route.
#[rstest]
#[case::a_rule_before_forwarding(forward, &[V4], &["NETFILTER_DROP"])]
#[case::a_rule_of_ip6tables(ip6tables, &[V6], &["NETFILTER_DROP"])]
#[case::reverse_path_filter(rp_filter, &[V4], &["IP_RPFILTER"])]
#[case::forwarding_off(forwarding_off, &[V4], &["IP_INADDRERRORS"])]
#[case::blackhole(blackhole, &[V4, V6], &["NOT_SPECIFIED"])]
#[case::neighbours_are_silent(neighbours, &[V4], &["NEIGH_FAILED"])]
#[case::ttl_expired(ttl, &[V4], &["IP_INHDR"])]
#[case::a_full_queue(full_queue, &[V4], &["QDISC_DROP", "QDISC_OVERLIMIT"])]
#[case::wrong_checksum(checksum, &[V4], &["IP_CSUM"])]
#[case::a_tc_program(tc_program, &[V4], &["TC_INGRESS"])]
fn the_kernels_reason_is_named(
    #[case] fault: Fault,
    #[case] families: &[&str],
    #[case] expected: &[&str],
) {
    needs!(skip::linux(LINUX));
    let scene = Scene::busy(Backend::Nftables, &[]);
    let began = Instant::now();
    fault(&scene);
    let mut last = Value::Null;
    let found = until(PATIENCE, || {
        last = scene.agent().verdict().ok()?;
        let named = |family: &&str| {
            let seen = reasons(&last, family);
            expected.iter().find(|it| seen.contains(**it)).copied()
        };
        families.iter().map(named).collect::<Option<Vec<_>>>()
    });
    let after = began.elapsed();
    let dropped = &last["verdict"]["drops"];
    println!("MEASURED {expected:?}: {found:?} after {after:.2?}");
    assert!(found.is_some(), "{dropped:#}");
}

/// The tracepoint stays detached while no Service traffic is lost, even if the kernel drops other packets.
#[test]
fn nothing_is_attached_where_nothing_is_lost() {
    let scene = Scene::busy(Backend::Nftables, &[]);
    // Have the kernel drop packets that do not belong to a Service.
    nft(&scene.world.node, FORWARD, "tcp dport 9 drop");
    let closed = scene.world.pod("web-1").endpoint(Family::V4, 9);
    let other = scene.pod_plan("spare", closed).start().expect("a client");
    throughout(scaled(Duration::from_secs(5)), || {
        let report = scene.report();
        assert_eq!(watch(&report), "off", "{:#}", report["verdict"]["drops"]);
        assert!(reasons(&report, V4).is_empty());
    });
    let felt = other.tally();
    assert!(felt.timeouts > 0, "nothing was dropped: {felt:?}");
    assert_eq!(tracepoints(&scene), 0);
}

#[test]
fn the_tracepoint_is_attached_only_while_packets_are_lost() {
    needs!(skip::linux(LINUX));
    let scene = Scene::busy(Backend::Nftables, &[]);
    forward(&scene);
    let report = scene.wait("attached", |report| watch(report) == "on");
    assert_eq!(tracepoints(&scene), 1, "{:#}", report["verdict"]["drops"]);
    let page = scene.wait("a reason", |report| {
        report["verdict"]["reason"]
            .to_string()
            .contains("NETFILTER_DROP")
    });
    println!("{}", page["verdict"]["reason"]);
    let why = told(pathproof(&scene.world, &["why"]), 0);
    println!("{why}");
    assert_says(&why, &["NETFILTER_DROP"]);
    scene.nft("delete table inet loses\n");
    scene.wait("detached", |report| watch(report) == "off");
    eventually("no link", || tracepoints(&scene) == 0);
    let kept = scene.report();
    assert!(reasons(&kept, V4).contains("NETFILTER_DROP"), "{kept:#}");
}

/// Number of raw tracepoints among the agent's file descriptors.
fn tracepoints(scene: &Scene) -> usize {
    let pid = scene.agent().pid();
    let files = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("descriptors");
    let text =
        |file: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(file.ok()?.path()).ok();
    let texts = files.filter_map(text);
    texts
        .filter(|text| text.contains("link_type:\traw_tracepoint"))
        .count()
}
