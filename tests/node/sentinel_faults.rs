//! Faults of the datapath, on an idle node, where only the sentinel's probes can find them, and on a busy
//! node. Each fault is reported with its cause.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::process::Stdio;

use node_tests::capture::{Capture, Frame};
use node_tests::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Flushed,
    NoRules,
    /// The sentinel's rules lead to an address that is no endpoint.
    Rewritten,
    /// `ip_forward` and its IPv6 equivalent are 0.
    ForwardingOff,
    /// IPv4 forwarding is 0 on each interface, while `ip_forward` is still 1. IPv6 has only the global
    /// switch.
    ForwardingOffEach,
    /// Data is dropped after the handshake, as by a rule for packets in state INVALID.
    DataDropped,
    /// Only node ports are not translated.
    NoNodePorts,
}

impl Fault {
    fn inject(self, scene: &mut Scene) {
        match self {
            Self::Flushed => scene.rules.flush_services().expect("flush"),
            Self::NoRules => scene.rules.remove().expect("remove"),
            Self::Rewritten => {
                for (family, endpoint) in [
                    (Family::V4, "198.18.0.2:20001"),
                    (Family::V6, "[2001:2::2]:20001"),
                ] {
                    let wrong = scene.world.pod("spare").endpoint(family, PORT);
                    let endpoint = endpoint.parse().expect("an address");
                    scene.rules.redirect(endpoint, wrong).expect("redirect");
                }
            }
            Self::ForwardingOff => scene.world.set_forwarding(false).expect("sysctl"),
            Self::ForwardingOffEach => {
                let world = &scene.world;
                world.set_forwarding_of_each("", false).expect("sysctls");
                let all = "net/ipv6/conf/all/forwarding";
                world.node.sysctl(all, "0").expect("a sysctl");
            }
            Self::DataDropped => nft(
                scene,
                "chain data_rules { type filter hook forward priority -10; \
                 tcp flags & (psh | ack) == psh | ack drop; }",
            ),
            // The chain runs before NAT and exempts node ports from conntrack, because untracked packets are
            // not translated.
            Self::NoNodePorts => nft(
                scene,
                "chain port_rules { type filter hook prerouting priority -300; \
                 tcp dport 30000-32767 notrack; udp dport 30000-32767 notrack; }",
            ),
        }
    }

    fn mend(self, scene: &mut Scene) {
        match self {
            Self::Flushed | Self::NoRules => scene.rules.install().expect("install"),
            Self::Rewritten => scene.rules.repair().expect("repair"),
            Self::ForwardingOff | Self::ForwardingOffEach => {
                // Switch forwarding off and on, because the kernel only applies changes of the switch to the
                // interfaces.
                scene.world.set_forwarding(false).expect("sysctl");
                scene.world.set_forwarding(true).expect("sysctl");
            }
            Self::DataDropped | Self::NoNodePorts => {
                scene.nft("delete table inet fault");
            }
        }
    }

    /// Causes of which the report must name one.
    fn causes(self) -> &'static [&'static str] {
        match self {
            Self::Flushed | Self::NoRules => &["leaked", "refused"],
            Self::Rewritten => &["misrouted"],
            Self::ForwardingOff | Self::ForwardingOffEach => &["forwarding_off"],
            Self::DataDropped => &["no_data"],
            Self::NoNodePorts => &["refused"],
        }
    }
}

fn nft(scene: &Scene, chain: &str) {
    let script = format!("table inet fault {{ {chain}\n}}\n");
    scene.nft(&script);
}

/// Probes by family, path, transport and outcome.
const PROBES: &str = "pathproof_probes_total";
/// Disables damping, since several faults in a row would count as flapping.
const ONE_BY_ONE: [&str; 2] = ["--flap-dwell", "0"];

/// Without traffic, each fault is answered with 503 and its cause, and with 200 after its repair. Legacy
/// iptables tables exist beside kube-proxy's table, as container runtimes create them.
#[rstest]
fn an_idle_node_is_judged(#[values(Backend::Nftables, Backend::IptablesLegacy)] backend: Backend) {
    let mut scene = Scene::idle(backend, &ONE_BY_ONE);
    for tool in ["iptables-legacy", "ip6tables-legacy"] {
        let mut list = scene.world.node.command(tool);
        list.args(["-t", "nat", "-S"]).stdout(Stdio::null());
        assert!(list.status().expect("run it").success(), "{tool}");
    }
    // Wait until the agent has read the legacy tables, which it does every few seconds.
    thread::sleep(Duration::from_secs(6));
    for fault in [
        Fault::Flushed,
        Fault::NoRules,
        Fault::Rewritten,
        Fault::ForwardingOff,
        Fault::ForwardingOffEach,
        Fault::DataDropped,
    ] {
        told_and_mended(&mut scene, fault);
    }
}

/// Probes of node ports also fail if node ports were moved to other addresses. So the failure causes a 503
/// only if clients outside are refused as well.
#[test]
fn missing_node_ports_are_503_once_clients_are_refused() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    let watch = scene.watch();
    wait_answers(&watch, 200);
    Fault::NoNodePorts.inject(&mut scene);
    scene.wait("degraded in both families", |report| {
        in_both(report, |verdict| {
            verdict["state"] == "degraded" && verdict["cause"] == "refused"
        })
    });
    throughout(std::time::Duration::from_secs(3), || {
        assert_eq!(scene.asked("/healthz"), 200);
    });
    Fault::NoNodePorts.mend(&mut scene);
    scene.wait_probed();
    for family in Family::ALL {
        scene.dial_outside(0, scene.node_port(30081, family), 4.0);
    }
    eventually("clients outside are served, as the agent knows", || {
        let known = |family| scene.count("api", family, "external", "proven") > 0;
        Family::ALL.into_iter().all(known)
    });
    told_and_mended(&mut scene, Fault::NoNodePorts);
}

#[test]
fn a_busy_node_is_judged() {
    let mut scene = Scene::busy(Backend::IptablesNft, &ONE_BY_ONE);
    for fault in [Fault::Flushed, Fault::ForwardingOff, Fault::DataDropped] {
        told_and_mended(&mut scene, fault);
    }
}

fn told_and_mended(scene: &mut Scene, fault: Fault) {
    println!("{fault:?}");
    let watch = scene.watch();
    wait_answers(&watch, 200);
    fault.inject(scene);
    wait_answers(&watch, 503);
    scene.wait(&format!("{fault:?} named in both families"), |report| {
        in_both(report, |verdict| {
            let cause = verdict["cause"].as_str().unwrap_or_default();
            verdict["state"] == "broken" && fault.causes().contains(&cause)
        })
    });
    if fault == Fault::NoRules {
        // The 503 must stay after the agent has detected again who owns the datapath.
        throughout(Duration::from_secs(6), || {
            assert_eq!(scene.asked("/healthz"), 503, "until it is mended");
        });
    }
    fault.mend(scene);
    wait_answers(&watch, 200);
    scene.wait_probed();
    if fault == Fault::NoRules {
        // The owner's rules were gone for several seconds, so the agent must detect the owner and prove the
        // paths again.
        thread::sleep(Duration::from_secs(6));
        scene.wait_probed();
    }
}

/// Faults of parts of the datapath. Each is repaired before the next.
#[test]
fn a_part_that_is_broken_is_named() {
    let scene = Scene::idle(Backend::Nftables, &ONE_BY_ONE);
    let parts: [fn(&Scene); 6] = [
        only_ipv6_is_broken,
        only_ipv6_is_broken_and_only_ipv4_is_used,
        only_the_host_path_is_degraded,
        udp_is_judged_apart,
        missing_masquerade_is_named,
        lost_answers_are_named,
    ];
    for part in parts {
        part(&scene);
        scene.nft("table inet fault\ndelete table inet fault\n");
        scene.rules.install().expect("install");
        scene.wait_probed();
        eventually("200 again", || scene.asked("/healthz") == 200);
    }
}

/// The rules of one family are gone. The other family's verdict stays.
fn only_ipv6_is_broken(scene: &Scene) {
    scene.nft("flush chain ip6 kube-proxy services");
    scene.wait("IPv6 broken and IPv4 proven", |report| {
        family_of(report, Family::V6)["state"] == "broken"
            && family_of(report, Family::V4)["state"] == "proven"
            && report["verdict"]["state"] == "broken"
    });
    assert_eq!(scene.asked("/healthz"), 503);
}

/// If one family is broken, this causes a 503 only after the first connection of a client in that family.
fn only_ipv6_is_broken_and_only_ipv4_is_used(scene: &Scene) {
    let dial = |family, number| {
        let plan = scene.pod_plan("client-1", scene.cluster_ip("web", family));
        plan.once(number).is_ok()
    };
    assert!(dial(Family::V4, 0));
    scene.nft("flush chain ip6 kube-proxy services");
    let report = scene.wait("IPv6 does not count", |report| {
        family_of(report, Family::V6)["finding"]["rule"] == "degraded_uncounted"
    });
    assert_eq!(report["verdict"]["state"], "degraded");
    throughout(Duration::from_secs(3), || {
        assert_eq!(scene.asked("/healthz"), 200);
    });
    assert!(!dial(Family::V6, 0), "its rules are gone");
    scene.wait("IPv6 counts", |report| {
        report["verdict"]["state"] == "broken"
    });
    assert_eq!(scene.asked("/healthz"), 503);
}

/// Only the chain for connections of the node itself is flushed, so forwarded traffic is not affected.
fn only_the_host_path_is_degraded(scene: &Scene) {
    for family in ["ip", "ip6"] {
        let script = format!("flush chain {family} kube-proxy output");
        scene.nft(&script);
    }
    scene.wait("degraded in both families", |report| {
        in_both(report, |family| family["state"] == "degraded")
            && lanes_are(report, "host", "tcp", "failing")
    });
    assert_eq!(scene.asked("/healthz"), 200);
}

/// A fault that only affects UDP is reported, and does not change the answer.
fn udp_is_judged_apart(scene: &Scene) {
    nft(
        scene,
        "chain udp_rules { type filter hook prerouting priority -300; udp dport 80 notrack; }",
    );
    scene.wait("UDP failing, TCP passing", |report| {
        lanes_are(report, "off_cluster", "udp", "failing")
            && lanes_are(report, "off_cluster", "tcp", "passing")
            && in_both(report, |family| family["state"] == "degraded")
    });
    assert_eq!(scene.asked("/healthz"), 200);
}

/// The masquerade rule, which worked before, is gone, so that answers would bypass the node.
fn missing_masquerade_is_named(scene: &Scene) {
    for family in ["ip", "ip6"] {
        let script = format!("flush chain {family} kube-proxy postrouting");
        scene.nft(&script);
    }
    scene.wait("not masqueraded in both families", |report| {
        in_both(report, |verdict| {
            verdict["state"] == "broken" && verdict["cause"] == "not_masqueraded"
        })
    });
}

/// A filter drops the echo's answers after they enter the node.
fn lost_answers_are_named(scene: &Scene) {
    nft(
        scene,
        "chain back { type filter hook forward priority -10; iifname pathproof-s0 drop; }",
    );
    let report = scene.wait("answers lost in both families", |report| {
        in_both(report, |family| family["cause"] == "answer_lost")
    });
    // This is no 503, because a filter for the sentinel's address has the same effect.
    assert_eq!(report["verdict"]["state"], "suspect", "{report:#}");
    assert_eq!(scene.asked("/healthz"), 200);
}

/// SYNs still leave for endpoints, but all answers are dropped: a total outage. The negative control is a
/// policy that drops only one pod's answers.
#[test]
fn answers_that_are_dropped_are_an_outage_and_one_pods_are_none() {
    let mut scene = Scene::busy(Backend::Nftables, &ONE_BY_ONE);
    let watch = scene.watch();
    let lost = |scene: &Scene| scene.count("web", Family::V4, "pod", "lost");
    let before = lost(&scene);
    let pods = Family::ALL.map(|family| scene.world.pod("web-1").address(family));
    let chain =
        |rules: &str| format!("chain back {{ type filter hook forward priority -10; {rules} }}");
    let one = format!(
        "ip saddr {0} ct direction reply drop; ip6 saddr {1} ct direction reply drop;",
        pods[0], pods[1]
    );
    nft(&scene, &chain(&one));
    eventually("a pod's answers are lost", || lost(&scene) > before + 10);
    thread::sleep(Duration::from_secs(3));
    assert_never_503(&watch);
    scene.nft("delete table inet fault");
    nft(&scene, &chain("ct direction reply drop;"));
    wait_answers(&watch, 503);
    let served = |client: &Client| client.tally().ok;
    let before: Vec<u64> = scene.clients.iter().map(served).collect();
    // Wait for longer than a proof is valid. The verdict must stay.
    thread::sleep(Duration::from_secs(35));
    assert_eq!(scene.clients.iter().map(served).collect::<Vec<_>>(), before);
    assert_eq!(scene.asked("/healthz"), 503);
    scene.nft("delete table inet fault");
    wait_answers(&watch, 200);
    scene.clients.clear();
}

/// Another program repeatedly deletes conntrack entries of probes, some of them between handshake and data.
#[test]
fn deleted_conntrack_entries_are_no_phantom_cause() {
    let scene = Scene::idle(Backend::Nftables, &[]);
    // By default, a data packet without an entry makes a new one and is translated like a SYN. Disable this.
    let loose = "net/netfilter/nf_conntrack_tcp_loose";
    scene.world.node.sysctl(loose, "0").expect("a switch");
    let mut deleted = 0;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(6);
    while std::time::Instant::now() < end {
        let conntrack = |option| {
            let ran = scene.world.node.command("conntrack").arg(option).output();
            let ran = ran.expect("conntrack");
            assert!(ran.status.success());
            String::from_utf8_lossy(&ran.stdout).into_owned()
        };
        deleted += conntrack("-C").trim().parse::<u64>().expect("a count");
        conntrack("-F");
    }
    // Most probes pass and some lose their entry. Those must not be counted with the cause of another fault.
    assert!(deleted > 0, "there was no entry to delete");
    let text = scene.metrics();
    for cause in ["forwarding_off", "misrouted", "not_masqueraded"] {
        let label = format!("outcome=\"{cause}\"");
        assert_eq!(metric(&text, PROBES, &[label]), 0, "{cause}");
    }
    scene.wait_probed();
}

/// If only probes are lost, a filter may drop the sentinel's range, so the state is Suspect. Lost real
/// connections confirm the fault.
#[test]
fn a_dropping_forward_chain_is_suspect_until_traffic_is_lost() {
    let mut scene = Scene::idle(Backend::Nftables, &[]);
    // Wait for successes, because a Service's failures count only after it has worked.
    scene.pod_traffic();
    eventually("all pods are served", || {
        scene.clients.iter().all(|client| client.tally().ok > 2)
    });
    scene.clients.clear();
    scene.world.block_forwarding(true).expect("block");
    scene.wait("suspect in both families", |report| {
        in_both(report, |family| family["state"] == "suspect")
    });
    throughout(std::time::Duration::from_secs(3), || {
        assert_eq!(scene.asked("/healthz"), 200);
    });
    scene.pod_traffic();
    scene.wait("broken with real connections lost", |report| {
        in_both(report, |family| family["state"] == "broken")
    });
    assert_eq!(scene.asked("/healthz"), 503);
    scene.world.block_forwarding(false).expect("unblock");
    eventually("200 again", || scene.asked("/healthz") == 200);
}

/// One Service is broken, while the sentinel and the other Services work.
#[test]
fn one_broken_service_is_degraded_and_named() {
    let mut scene = Scene::busy(Backend::IptablesLegacy, &[]);
    // Let no application listen in the wrong pod, so that the pod's kernel refuses connections.
    scene.servers.remove("spare");
    for family in Family::ALL {
        let right = scene.world.pod("db-1").endpoint(family, PORT);
        let wrong = scene.world.pod("spare").endpoint(family, PORT);
        scene.rules.redirect(right, wrong).expect("redirect");
    }
    let report = scene.wait("db blamed", |report| {
        report["verdict"]["state"] == "degraded" && blames(report, "demo/db")
    });
    assert_eq!(report["verdict"]["cause"], "misrouted", "{report:#}");
    assert_eq!(scene.asked("/healthz"), 200);
}

/// A probe never leaves the node, even if no rule translates it. A pod's connection to the sentinel's address
/// is no probe and leaves the node as usual.
#[test]
fn probes_that_nothing_translates_stay_on_the_node() {
    let scene = Scene::idle(Backend::Nftables, &[]);
    scene.rules.flush_services().expect("flush");
    scene.wait("broken", |report| report["verdict"]["state"] == "broken");
    let mut capture = Capture::start(&scene.world.outside);
    let sent = || metric(&scene.metrics(), PROBES, &[""]);
    let before = sent();
    // In this time each lane sends several probes.
    thread::sleep(Duration::from_secs(5));
    assert!(sent() > before, "no probe was sent");
    assert_eq!(to_sentinel(&mut capture), BTreeSet::new());
    for family in Family::ALL {
        let sentinel = SocketAddr::new(Sentinel::cluster_ip(family), Sentinel::PORT);
        let dial = Plan::from_pod(&scene.world, scene.world.pod("client-1"), sentinel);
        assert!(dial.once(0).is_err(), "nothing translates it");
    }
    // Packets from pods to the outside have the node's address as their source.
    let node = Family::ALL.map(|family| scene.world.node_address(family));
    assert_eq!(to_sentinel(&mut capture), BTreeSet::from(node));
    scene.rules.install().expect("install");
}

/// Sources of the captured packets whose destination is an address of the sentinel.
fn to_sentinel(capture: &mut Capture) -> BTreeSet<IpAddr> {
    capture.drain();
    assert_eq!(capture.missed(), 0);
    let sentinel = Family::ALL.map(Sentinel::cluster_ip);
    let ends = capture.frames.iter().filter_map(Frame::ends);
    let to_it = ends.filter(|[_, to]| sentinel.contains(&to.0));
    to_it.map(|[from, _]| from.0).collect()
}
