//! The agent and its sentinel change no packet of users: with and without them, the same traffic has the same
//! bytes at every device. The sentinel's packets stay on its devices: other devices carry no additional
//! frame.
//!
//! All traffic consists of crafted frames. Each is sent when the one before has arrived, and the kernels of
//! both ends are kept silent. Nothing is random: Services have one endpoint each, masquerade keeps the port,
//! and the node itself sends nothing. The comparison excludes loopback, packets that the kernel sends at any
//! time (ARP, neighbour discovery, multicast listener reports), and the sentinel's devices.

use std::collections::BTreeMap;

use node_tests::capture::{Capture, Direction, Frame};
use node_tests::packet::{self, Hardware, Packet, flag};
use node_tests::prelude::*;
use node_tests::traffic::RawSender;

/// Number of times that all flows are sent, so that probes occur among them.
const ROUNDS: u16 = 12;
/// Rules that let the kernels of both ends receive neighbour discovery only, so that they send no answers.
const SILENT: &str = "table inet silent { chain in { type filter hook input priority 0; \
     policy drop; iif lo accept; \
     icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept; }\n}\n";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A connection with data in both directions, ended by RST.
    Tcp,
    Udp,
    /// A SYN whose checksum is wrong.
    Damaged,
    /// An unassigned IP protocol.
    Unknown,
}

/// A flow between two ends, with the addresses under which each reaches the other.
#[derive(Clone, Copy, Debug)]
struct Flow {
    kind: Kind,
    client: &'static str,
    server: &'static str,
    /// The client's address, and the address that it dials.
    from: SocketAddr,
    dials: SocketAddr,
    /// The server's address, and the client's address as the server sees it.
    serves: SocketAddr,
    sees: SocketAddr,
}

/// Name of the router's namespace, which has the outside clients.
const OUTSIDE: &str = "outside";

/// One end of flows, with its sender and its capture.
struct Party {
    sender: RawSender,
    capture: usize,
    device: &'static str,
}

/// The captures in all namespaces, and the ends of the flows.
struct Stage {
    captures: Vec<Capture>,
    parties: BTreeMap<&'static str, Party>,
}

const PODS: [&str; 4] = ["client", "server", "bridged", "remote"];

fn scene(backend: Backend) -> Scene {
    let world = World::builder()
        .pods(&["client", "server"])
        .bridged_pods(&["bridged"])
        .remote_pods(&["remote"])
        .build()
        .expect("build a world");
    let one = |name, index, pod: &str| Service::new(name, index, [world.pod(pod)]);
    let services = vec![
        one("local", 0, "server")
            .load_balancer(30_080)
            .external_local(),
        one("bridged", 1, "bridged"),
        one("remote", 2, "remote"),
    ];
    let scene = Scene::of(world, services, backend);
    // Add the sentinel's rules even without the agent, so that both runs have the same rules.
    scene.add_sentinel(&Sentinel::default());
    scene
}

fn flows(scene: &Scene, family: Family, round: u16) -> Vec<Flow> {
    let world = &scene.world;
    let pod = |name: &str, port| world.pod(name).endpoint(family, port);
    let service = |name: &str| scene.manifests.service(name);
    let frontend = |name: &str| SocketAddr::new(service(name).cluster_ip(family), 80);
    let outside = world.outside_client(0, family);
    let node = world.node_address(family);
    let mut ports = 20_000 + round * 32..;
    // A flow from a pod, whose address the server sees.
    let mut from_pod = |kind, server: &'static str, dials: SocketAddr, serves| {
        let from = pod("client", ports.next().expect("a port"));
        Flow {
            kind,
            client: "client",
            server,
            from,
            dials,
            serves,
            sees: from,
        }
    };
    let mut flows = Vec::new();
    // From a pod to endpoints of Services. The source address does not change.
    for (name, server) in [
        ("local", "server"),
        ("bridged", "bridged"),
        ("remote", "remote"),
    ] {
        let serves = pod(server, PORT);
        flows.push(from_pod(Kind::Tcp, server, frontend(name), serves));
    }
    for kind in [Kind::Tcp, Kind::Udp, Kind::Damaged, Kind::Unknown] {
        for server in ["server", "bridged", "remote"] {
            let to = pod(server, PORT);
            flows.push(from_pod(kind, server, to, to));
        }
    }
    // From a pod to the outside, masqueraded to the node's address with the same port.
    for kind in [Kind::Tcp, Kind::Udp] {
        let to = SocketAddr::new(outside, PORT);
        let flow = from_pod(kind, OUTSIDE, to, to);
        let sees = SocketAddr::new(node, flow.from.port());
        flows.push(Flow { sees, ..flow });
    }
    // From outside to local endpoints. The source address does not change.
    for dials in [
        SocketAddr::new(node, 30_080),
        SocketAddr::new(service("local").load_balancer_ip(family), 80),
    ] {
        let flow = from_pod(Kind::Tcp, "server", dials, pod("server", PORT));
        let from = SocketAddr::new(outside, flow.from.port());
        flows.push(Flow {
            client: OUTSIDE,
            from,
            sees: from,
            ..flow
        });
    }
    flows
}

impl Flow {
    /// The packets in order, with whether the client sends each one.
    fn packets(&self) -> Vec<(bool, Packet)> {
        let there = |flags, sequence, acknowledged, payload: &[u8]| {
            let (from, to) = (self.from, self.dials);
            let sent = packet::tcp(from, to, flags, sequence, acknowledged, payload);
            (true, sent)
        };
        let back = |flags, sequence, acknowledged, payload: &[u8]| {
            let (from, to) = (self.serves, self.sees);
            let sent = packet::tcp(from, to, flags, sequence, acknowledged, payload);
            (false, sent)
        };
        // Sequence numbers are fixed and differ between flows.
        let isn = 0x1000_0000 + (u32::from(self.from.port()) << 12);
        let other = isn ^ 0x5555_0000;
        let (hello, answer) = (b"hello, and\0".as_slice(), b"as much to you".as_slice());
        let (sent, answered) = (
            isn + 1 + hello.len() as u32,
            other + 1 + answer.len() as u32,
        );
        match self.kind {
            Kind::Tcp => vec![
                there(flag::SYN, isn, 0, &[]),
                back(flag::SYN | flag::ACK, other, isn + 1, &[]),
                there(flag::ACK, isn + 1, other + 1, &[]),
                there(flag::PSH | flag::ACK, isn + 1, other + 1, hello),
                back(flag::PSH | flag::ACK, other + 1, sent, answer),
                there(flag::ACK, sent, answered, &[]),
                there(flag::RST | flag::ACK, sent, answered, &[]),
            ],
            Kind::Udp => vec![
                (true, packet::udp(self.from, self.dials, hello)),
                (false, packet::udp(self.serves, self.sees, hello)),
                (true, packet::udp(self.from, self.dials, answer)),
                (false, packet::udp(self.serves, self.sees, answer)),
            ],
            Kind::Damaged => vec![there(flag::SYN, isn, 0, &[])],
            Kind::Unknown => {
                let (from, to) = (self.from.ip(), self.dials.ip());
                vec![
                    (true, Packet::ip(from, to, 253, hello.to_vec())),
                    (false, Packet::ip(to, from, 253, answer.to_vec())),
                ]
            }
        }
    }

    fn frame(&self, sent: &Packet, link: Hardware) -> Vec<u8> {
        let mut bytes = sent.clone().between(link).bytes();
        if self.kind == Kind::Damaged {
            let header = if self.from.is_ipv4() { 34 } else { 54 };
            bytes[header + 16] ^= 0xff;
        }
        bytes
    }
}

impl Stage {
    fn new(world: &World) -> Self {
        let mut captures = vec![Capture::start(&world.node), Capture::start(&world.worker)];
        let mut parties = BTreeMap::new();
        let mut add = |name, ns: &Namespace, sender, device| {
            captures.push(Capture::start(ns));
            let capture = captures.len() - 1;
            parties.insert(
                name,
                Party {
                    sender,
                    capture,
                    device,
                },
            );
        };
        let sender = RawSender::from_outside(world).expect("a sender");
        add(OUTSIDE, &world.outside, sender, "lan0");
        for name in PODS {
            let pod = world.pod(name);
            let sender = RawSender::from_pod(pod).expect("a sender");
            add(name, &pod.ns, sender, "eth0");
        }
        Self { captures, parties }
    }

    /// Sends all frames of a flow, each when the one before has arrived.
    fn send(&mut self, flow: &Flow) {
        for (number, (by_client, sent)) in flow.packets().iter().enumerate() {
            let (by, to) = match by_client {
                true => (flow.client, flow.server),
                false => (flow.server, flow.client),
            };
            let before = self.came_to(to);
            let sender = &self.parties[by].sender;
            let frame = flow.frame(sent, sender.link);
            sender.send(&frame).expect("send");
            let end = Instant::now() + PATIENCE;
            while self.came_to(to) == before {
                assert!(
                    Instant::now() < end,
                    "packet {number} of {flow:?} did not come to {to}"
                );
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Number of packets from other ends that have arrived at a party.
    fn came_to(&mut self, party: &str) -> usize {
        let Party {
            capture, device, ..
        } = &self.parties[party];
        let capture = &mut self.captures[*capture];
        capture.drain();
        let came = |frame: &&Frame| {
            frame.device == *device && frame.direction == Direction::In && frame.is_somebodys()
        };
        capture.frames.iter().filter(came).count()
    }

    /// Ends the captures and returns the frames by namespace, device and direction.
    fn finish(mut self) -> BTreeMap<(String, String, Direction), Vec<Vec<u8>>> {
        // Wait a moment: a frame that has arrived may still be missing from the capture of the last device.
        std::thread::sleep(Duration::from_millis(50));
        let mut seen: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for capture in &mut self.captures {
            capture.drain();
            assert_eq!(capture.missed(), 0, "missed in {}", capture.name);
            for frame in capture.frames.drain(..) {
                if is_compared(&frame) {
                    let at = (capture.name.clone(), frame.device, frame.direction);
                    seen.entry(at).or_default().push(frame.bytes);
                }
            }
        }
        seen
    }
}

fn is_compared(frame: &Frame) -> bool {
    frame.device != "lo" && !is_sentinels_device(&frame.device) && frame.is_somebodys()
}

fn is_sentinels_device(device: &str) -> bool {
    device.starts_with("pathproof-")
}

/// Sends every flow, and returns the frames by device. `meanwhile` runs after the flows, before the captures
/// end.
fn traffic(
    scene: &Scene,
    meanwhile: impl FnOnce(),
) -> BTreeMap<(String, String, Direction), Vec<Vec<u8>>> {
    let flush = scene.world.node.command("conntrack").arg("-F").output();
    assert!(flush.expect("conntrack").status.success());
    let mut stage = Stage::new(&scene.world);
    for round in 0..ROUNDS {
        for family in Family::ALL {
            for flow in flows(scene, family, round) {
                stage.send(&flow);
            }
        }
    }
    meanwhile();
    stage.finish()
}

fn silence(world: &World) {
    let pods = PODS.iter().map(|name| &world.pod(name).ns);
    for ns in pods.chain([&world.outside]) {
        ns.nft(SILENT).expect("nft");
    }
}

fn probes(scene: &Scene) -> u64 {
    metric(
        &scene.metrics(),
        "pathproof_probes_total",
        &["outcome=\"passed\""],
    )
}

#[rstest]
#[case::tcx(Backend::Nftables, &[])]
#[case::clsact(Backend::IptablesLegacy, &["--attach", "clsact"])]
fn no_users_packet_is_touched(#[case] backend: Backend, #[case] options: &[&str]) {
    let mut scene = scene(backend);
    silence(&scene.world);
    // Discard a first run, in which bridges and neighbour tables learn addresses.
    traffic(&scene, || ());
    let without = traffic(&scene, || ());
    scene.start(options);
    scene.wait_probed();
    let before = probes(&scene);
    let with = traffic(&scene, || {
        eventually("probes meanwhile", || probes(&scene) >= before + 10);
    });
    let places = |seen: &BTreeMap<_, Vec<_>>| -> Vec<_> {
        let count =
            |(at, frames): (&(String, String, Direction), &Vec<_>)| (at.clone(), frames.len());
        seen.iter().map(count).collect()
    };
    assert_eq!(places(&without), places(&with), "frames by device");
    for (at, frames) in &without {
        for (number, (without, with)) in frames.iter().zip(&with[at]).enumerate() {
            assert_eq!(without, with, "frame {number} at {at:?}");
        }
    }
    let node = scene.world.node.name();
    let at_node = without.keys().filter(|(place, ..)| place == node);
    // Uplink, two pods, the bridge and its port, in both directions.
    assert_eq!(at_node.count(), 10, "{:?}", places(&without));
}
