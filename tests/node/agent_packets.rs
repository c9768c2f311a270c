//! Crafted packets on real devices: what must not be taken for evidence, and what must not stand in
//! the agent's way. Whatever comes, it is passed on as it came.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread;
use std::time::Duration;

use agent_common::abi;
use etherparse::PacketBuilder;
use node_tests::manifests::Service;
use node_tests::rules::Backend;
use node_tests::traffic::{RawSender, Server, Syn};
use node_tests::world::Family;
use rstest::rstest;

use crate::agent_kernel::{Tap, pending};
use node_tests::scene::{
    PATIENCE, PORT, Scene, assert_never_503, blames, eventually, lacks, throughout, until,
};

/// A Service of one endpoint, "solo" with the pod "spare", whose rules stand.
fn with_solo(test: &str) -> Option<Scene> {
    let mut scene = Scene::proven(test, Backend::Nftables, &[])?;
    let spare = scene.world.pod("spare").clone();
    scene
        .manifests
        .add(Service::new("solo", 3, [&spare]))
        .expect("add a Service");
    scene.rules.install().expect("install");
    for family in Family::ALL {
        let plan = scene.pod_plan("client-1", scene.cluster_ip("solo", family));
        // A connection that comes before the agent has read of the Service is not counted.
        let mut dialled = 0;
        eventually("solo known", || {
            plan.once(dialled).expect("an answer");
            dialled += 1;
            scene.count("solo", family, "pod", "proven") > 0
        });
    }
    Some(scene)
}

/// The same SYN again follows the old conntrack entry, wherever the rules point by now: no
/// staleness [finding 11].
#[test]
fn a_repeated_syn_is_never_stale() {
    let Some(mut scene) = with_solo("a_repeated_syn_is_never_stale") else {
        return;
    };
    let spare = scene.world.pod("spare").clone();
    // The endpoint says nothing, so that its client goes on trying.
    let silence = "table inet t {\n chain c {\n type filter hook input priority 0\n \
                   tcp dport 8080 drop\n }\n}\n";
    spare.ns.nft(silence).expect("silence");
    let raw = RawSender::from_pod(scene.world.pod("client-2")).expect("a packet socket");
    let tap = Tap::open(&spare.ns, "eth0");
    let syns = Family::ALL.map(|family| Syn {
        source: scene.world.pod("client-2").endpoint(family, 46_000),
        destination: scene.cluster_ip("solo", family),
        sequence: 0x7e57_0001 + family as u32,
    });
    let arrives = |syn: &Syn| {
        let number = syn.sequence.to_be_bytes();
        tap.find(PATIENCE, |frame| {
            frame.windows(4).any(|bytes| bytes == number)
        })
        .is_some()
    };
    for syn in &syns {
        raw.send_syn(syn).expect("send");
        assert!(arrives(syn), "the first SYN reaches the endpoint");
    }
    // Rules and slices agree at once: nothing but the retries goes to the old endpoint.
    let other = scene.world.pod("web-1").clone();
    scene
        .manifests
        .swap_endpoint("solo", "spare", &other)
        .expect("swap");
    scene.rules.install().expect("install");
    for _ in 0..5 {
        thread::sleep(Duration::from_millis(800));
        for syn in &syns {
            raw.send_syn(syn).expect("send");
            assert!(
                arrives(syn),
                "a repeated SYN goes to the endpoint that left"
            );
        }
    }
    for family in Family::ALL {
        eventually("the retries counted", || {
            scene.count("solo", family, "pod", "retransmitted") >= 4
        });
        for failure in ["stale", "misrouted"] {
            assert_eq!(
                scene.count("solo", family, "pod", failure),
                0,
                "{family:?} {failure}"
            );
        }
    }
    scene.wait_proven();
}

/// One source, as fast as one thread can: bounded in the kernel, told, and no verdict.
#[rstest]
#[case::node_port_from_outside(true)]
#[case::cluster_ip_from_a_pod(false)]
fn a_flood_of_one_source_is_bounded(#[case] outside: bool) {
    let name = "a_flood_of_one_source_is_bounded";
    let Some(scene) = Scene::proven(name, Backend::Nftables, &[]) else {
        return;
    };
    let watch = scene.watch();
    let family = Family::V4;
    let (raw, source, destination) = if outside {
        let raw = RawSender::from_outside(&scene.world);
        (
            raw,
            scene.world.outside_client(2, family),
            scene.node_port(30082, family),
        )
    } else {
        let raw = RawSender::from_pod(scene.world.pod("web-2"));
        (
            raw,
            scene.world.pod("web-2").address(family),
            scene.cluster_ip("db", family),
        )
    };
    let raw = raw.expect("a packet socket");
    for number in 0..20_000_u32 {
        let syn = Syn {
            source: SocketAddr::new(source, 20_000 + (number % 20_000) as u16),
            destination,
            sequence: number.wrapping_mul(2_654_435_761),
        };
        // A full queue drops what we send: no matter.
        let _ = raw.send_syn(&syn);
    }
    assert!(
        pending(&scene.world) < abi::MAX_PENDING as usize / 8,
        "sampled"
    );
    throughout(Duration::from_secs(4), || {
        let report = scene.report();
        assert_eq!(report["verdict"]["state"], "proven", "{report:#}");
    });
    assert_never_503(&watch);
}

/// SYNs that nobody answers, more than the map of connections has room for: to a Service without
/// endpoints and to a silent one. They evict each other; nothing is uncertain, and a fault of an
/// honest Service is told while they come.
#[test]
fn a_flood_that_nobody_answers_hides_no_fault() {
    const FLOOD: u32 = 40_000;
    const SOURCES: u32 = 96;
    let name = "a_flood_that_nobody_answers_hides_no_fault";
    let Some(mut scene) = Scene::proven(name, Backend::Nftables, &[]) else {
        return;
    };
    let watch = scene.watch();
    let family = Family::V4;
    let spare = scene.world.pod("spare").clone();
    let silence = "table inet t {\n chain c {\n type filter hook input priority 0\n \
                   tcp dport 8080 drop\n }\n}\n";
    spare.ns.nft(silence).expect("silence");
    for service in [
        Service::new("void", 3, []),
        Service::new("silent", 4, [&spare]),
    ] {
        scene.manifests.add(service).expect("add a Service");
    }
    scene.rules.install().expect("install");
    // The sources are addresses of the pod's own, or the kernel drops what comes from them.
    let client = scene.world.pod("client-2").v4;
    for range in ["10.244.0.32/27", "10.244.0.64/26"] {
        let route = format!("route add {range} via {client} dev veth-client-2 onlink");
        scene.world.node.ip(&route).expect("a route");
    }
    let services = ["void", "silent"];
    let raw = RawSender::from_pod(scene.world.pod("client-2")).expect("a packet socket");
    let send = |number: u32| {
        let source = Ipv4Addr::from(0x0af4_0020 + number % SOURCES);
        let syn = Syn {
            source: SocketAddr::from((source, 1_024 + (number / SOURCES) as u16)),
            destination: scene.cluster_ip(services[number as usize % 2], family),
            sequence: number.wrapping_mul(2_654_435_761),
        };
        // A full queue drops what we send: no matter.
        let _ = raw.send_syn(&syn);
    };
    eventually("both known", || {
        (0..2).for_each(send);
        services
            .iter()
            .all(|of| scene.count(of, family, "pod", "arrived") > 0)
    });
    for number in 2..FLOOD {
        send(number);
        if number % 80 == 0 {
            thread::sleep(Duration::from_millis(10));
        }
        if number % 4_000 == 0 {
            let report = scene.report();
            assert_eq!(report["verdict"]["state"], "proven", "{report:#}");
            for loss in ["first_syn_uncertain", "pending_full"] {
                assert!(!lacks(&report, loss), "{loss}: {report:#}");
            }
        }
    }
    let arrived = services.map(|of| scene.count(of, family, "pod", "arrived"));
    assert!(
        arrived
            .iter()
            .all(|of| (500..u64::from(FLOOD) / 4).contains(of)),
        "sampled: {arrived:?}"
    );
    eventually("evicted", || pending(&scene.world) < 3 * 4_096);

    let right = scene.world.pod("db-1").endpoint(family, PORT);
    let wrong = spare.endpoint(family, PORT);
    scene.rules.redirect(right, wrong).expect("redirect");
    let report = scene.wait("db blamed", |report| {
        report["verdict"]["state"] == "degraded" && blames(report, "demo/db")
    });
    assert_eq!(report["verdict"]["cause"], "misrouted", "{report:#}");
    assert_eq!(report["verdict"]["coverage"]["misrouted_suspended"], false);
    for loss in ["first_syn_uncertain", "pending_full"] {
        assert!(!lacks(&report, loss), "{loss}: {report:#}");
    }
    scene.rules.repair().expect("repair");
    scene.wait_proven();
    assert_never_503(&watch);
}

/// Two connections under one initial sequence number, as scanners open them: neither accuses the
/// node [finding 13].
#[rstest]
#[case::two_services("web", "db", false)]
#[case::two_clients("db", "db", true)]
fn a_shared_sequence_number_accuses_nobody(
    #[case] one: &str,
    #[case] two: &str,
    #[case] other_client: bool,
) {
    let name = "a_shared_sequence_number_accuses_nobody";
    let Some(scene) = Scene::proven(name, Backend::Nftables, &[]) else {
        return;
    };
    for family in Family::ALL {
        for round in 0..5 {
            let send = |pod: &str, port: u16, service: &str| {
                let pod = scene.world.pod(pod);
                let raw = RawSender::from_pod(pod).expect("a packet socket");
                let syn = Syn {
                    source: pod.endpoint(family, port),
                    destination: scene.cluster_ip(service, family),
                    sequence: 0x5ca1_1000 + round,
                };
                raw.send_syn(&syn).expect("send");
            };
            send("web-2", 46_100, one);
            send(if other_client { "api-1" } else { "web-2" }, 46_101, two);
        }
    }
    eventually("told as ambiguous", || scene.fault("ambiguous") >= 8);
    thread::sleep(Duration::from_millis(1500));
    for family in Family::ALL {
        for service in [one, two] {
            for failure in ["misrouted", "stale", "leaked", "lost", "refused", "unheard"] {
                assert_eq!(
                    scene.count(service, family, "", failure),
                    0,
                    "{service} {failure}"
                );
            }
        }
    }
    scene.wait_proven();
}

/// A SYN with data in it: its answer acknowledges the data too where fast open is on, and the bare
/// SYN where it is not [finding 16].
#[rstest]
#[case::fast_open(true)]
#[case::refused_data(false)]
fn data_in_a_syn_is_answered(#[case] fast_open: bool) {
    let Some(mut scene) = with_solo("data_in_a_syn_is_answered") else {
        return;
    };
    if fast_open {
        scene.servers.remove("spare");
        let spare = scene.world.pod("spare");
        // Server; without a cookie; for every listener.
        spare
            .ns
            .sysctl("net/ipv4/tcp_fastopen", "1538")
            .expect("fast open");
        // Processes that other tests start hold the old socket for as long as they take to begin.
        let server = until(PATIENCE, || Server::start(spare, PORT).ok());
        let server = server.expect("start a server");
        scene.servers.insert("spare".to_owned(), server);
    }
    for family in Family::ALL {
        answers_data(&scene, family, fast_open);
    }
}

fn answers_data(scene: &Scene, family: Family, fast_open: bool) {
    let client = scene.world.pod("client-2");
    let raw = RawSender::from_pod(client).expect("a packet socket");
    let tap = Tap::open(&client.ns, "eth0");
    let before = scene.count("solo", family, "pod", "answered");
    let (sequence, data) = (0x0fa5_7000, b"GET / HTTP/1.0\r\n");
    let from = client.endpoint(family, 46_200);
    let to = scene.cluster_ip("solo", family);
    raw.send(&syn_with_data(raw.link, from, to, sequence, data))
        .expect("send");
    let acknowledged = sequence + 1 + if fast_open { data.len() as u32 } else { 0 };
    let answer = acknowledged.to_be_bytes();
    let seen = tap.find(PATIENCE, |frame| {
        frame.windows(4).any(|bytes| bytes == answer)
    });
    assert!(
        seen.is_some(),
        "an answer that acknowledges {acknowledged:#x}"
    );
    eventually("answered, once", || {
        scene.count("solo", family, "pod", "answered") == before + 1
    });
    assert_eq!(scene.count("solo", family, "pod", "lost"), 0);
}

type Hardware = ([u8; 6], [u8; 6]);

fn syn_with_data(
    link: Hardware,
    from: SocketAddr,
    to: SocketAddr,
    seq: u32,
    data: &[u8],
) -> Vec<u8> {
    let ethernet = PacketBuilder::ethernet2(link.0, link.1);
    let ip = match (from.ip(), to.ip()) {
        (IpAddr::V4(from), IpAddr::V4(to)) => ethernet.ipv4(from.octets(), to.octets(), 64),
        (IpAddr::V6(from), IpAddr::V6(to)) => ethernet.ipv6(from.octets(), to.octets(), 64),
        _ => unreachable!("one family"),
    };
    let builder = ip.tcp(from.port(), to.port(), seq, 64_240).syn();
    let mut frame = Vec::new();
    builder
        .write(&mut frame, data)
        .expect("a Vec takes every write");
    frame
}
