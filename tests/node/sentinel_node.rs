//! A node with a working sentinel: the agent's devices, programs and prober, and nftables rules that
//! translate as a proxy would.

use std::net::IpAddr;

use node_tests::observer::index_of;
use node_tests::prelude::*;
use pathproof::clock;
use pathproof::config::SentinelConfig;
use pathproof::datapath::Observer;
use pathproof::datapath::attach::Mode;
use pathproof::datapath::devices::Device;
use pathproof::datapath::probes::{ProbeEnds, ProbeHooks};
use pathproof::sentinel::devices::{Role, SentinelDevices, ensure};
use pathproof::sentinel::prober::Prober;
use pathproof_facts::node_context::SourcePrefix;
use pathproof_facts::trace::{
    Control, Lane, ProbePath, ProbeSightings, ProbeTrace, Stamps, Transport,
};
use pathproof_plan::MapChange;
use pathproof_report::sentinel::SentinelAddresses;
use pathproof_wire::packet::Link;
use pathproof_wire::probe::Stage::{self, Collected};
use pathproof_wire::service::{
    Address, EndpointKey, EndpointValue, ExpectedHandling, Family, FrontendKey, FrontendKind,
    FrontendValue, SourceClass, TCP, endpoint_flag, frontend_flag, mapped,
};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use crate::sentinel_devices::{block_on, config};

const PATIENCE: Duration = Duration::from_secs(20);
const TCP_PORT: u16 = 80;
const UDP_PORT: u16 = 53;
const NODE_PORT: u16 = 30_080;
const NODE_PORT_UDP: u16 = 30_053;
/// Port of the echo: the sentinel's generation.
pub(crate) const ECHO_PORT: u16 = 9_001;

/// Rules that a proxy would install for the sentinel.
pub(crate) const RULES: &str = "
table inet proxy {
  chain prerouting { type nat hook prerouting priority dstnat; jump services; }
  chain output { type nat hook output priority -100; jump services; }
  chain services {
    ip daddr 10.96.0.9 tcp dport 80 dnat ip to 198.18.0.2:9001
    ip daddr 10.96.0.9 udp dport 53 dnat ip to 198.18.0.2:9001
    ip daddr 192.0.2.10 tcp dport 30080 dnat ip to 198.18.0.2:9001
    ip daddr 192.0.2.10 udp dport 30053 dnat ip to 198.18.0.2:9001
    ip6 daddr fd00:10:96::9 tcp dport 80 dnat ip6 to [2001:2::2]:9001
    ip6 daddr fd00:10:96::9 udp dport 53 dnat ip6 to [2001:2::2]:9001
    ip6 daddr 2001:db8:0:1::10 tcp dport 30080 dnat ip6 to [2001:2::2]:9001
    ip6 daddr 2001:db8:0:1::10 udp dport 30053 dnat ip6 to [2001:2::2]:9001
  }
  chain postrouting {
    type nat hook postrouting priority srcnat;
    ip saddr 198.18.0.1 oifname pathproof-s0 masquerade
    ip6 saddr 2001:2::1 oifname pathproof-s0 masquerade
  }
  chain forward { type filter hook forward priority filter; }
  chain own { type filter hook output priority filter; }
}
";

fn choose<T>(family: Family, v4: T, v6: T) -> T {
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

fn cluster_ip(family: Family) -> IpAddr {
    ip(choose(family, "10.96.0.9", "fd00:10:96::9"))
}

fn node_address(family: Family) -> IpAddr {
    ip(choose(family, "192.0.2.10", "2001:db8:0:1::10"))
}

fn pod_client(family: Family) -> IpAddr {
    ip(choose(family, "10.244.0.254", "fd00:10:244::fe"))
}

fn echo(config: &SentinelConfig, family: Family) -> SocketAddr {
    SocketAddr::new(config.place.echo[family as usize], ECHO_PORT)
}

fn address(ip: IpAddr) -> Address {
    match ip {
        IpAddr::V4(v4) => mapped(v4.octets()),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn lanes() -> impl Iterator<Item = Lane> {
    Family::ALL.into_iter().flat_map(|family| {
        ProbePath::ALL.into_iter().flat_map(move |path| {
            Transport::ALL
                .into_iter()
                .filter(move |transport| path != ProbePath::Host || *transport == Transport::Tcp)
                .map(move |transport| Lane {
                    path,
                    family,
                    transport,
                })
        })
    })
}

pub(crate) struct Node {
    pub(crate) world: World,
    prober: Option<Prober>,
    results: UnboundedReceiver<ProbeTrace>,
    _observer: Observer,
    _hooks: ProbeHooks,
}

impl Node {
    pub(crate) fn new() -> Self {
        let world = World::builder().build().expect("build a world");
        world.node.nft(RULES).expect("the proxy's rules");
        let config = config(Family::ALL.map(|family| Some(pod_client(family))));
        let (sender, results) = unbounded_channel();
        let (observer, hooks, prober) = world.node.run(|| {
            let devices = block_on(ensure(&config, &Family::ALL)).expect("the devices");
            let (mut observer, _) = Observer::load(Mode::Auto, None).expect("the observer");
            observer.follow(&followed(&devices), clock::mono());
            let written = observer.apply(&expectations(&config));
            assert!(written.error.is_none(), "{:?}", written.error);
            let hooks = observer.open_sentinel(&ends(&devices));
            let maps = observer.probe_maps().expect("the maps of probes");
            let prober = Prober::start(maps, &devices, clock::mono, sender);
            let prober = prober.expect("a prober");
            prober.retarget(targets(&config));
            (observer, hooks.expect("the sentinel's programs"), prober)
        });
        Self {
            world,
            prober: Some(prober),
            results,
            _observer: observer,
            _hooks: hooks,
        }
    }

    pub(crate) fn nft(&self, script: &str) {
        self.world.node.nft(script).expect("nft");
    }

    /// Waits until every lane had a trace that is `expected`. Other traces may precede it.
    pub(crate) fn wait(
        &mut self,
        what: &str,
        expected: impl Fn(&ProbeTrace) -> bool,
    ) -> Vec<ProbeTrace> {
        let begun = Instant::now();
        let mut missing: Vec<Lane> = lanes().collect();
        let mut found = Vec::new();
        let mut last = Vec::new();
        while !missing.is_empty() {
            let Ok(trace) = self.results.try_recv() else {
                assert!(
                    begun.elapsed() < PATIENCE,
                    "{what}: {missing:?} are missing; last of them: {last:#?}"
                );
                std::thread::sleep(Duration::from_millis(5));
                continue;
            };
            if expected(&trace) {
                missing.retain(|lane| *lane != trace.lane);
                found.push(trace);
            } else if missing.contains(&trace.lane) {
                last.retain(|other: &ProbeTrace| other.lane != trace.lane);
                last.push(trace);
            }
        }
        found
    }

    /// Ends the prober. Asserts that all conntrack entries of its TCP probes are closed, even those from
    /// faults: open ones would stay for minutes (finding 6).
    pub(crate) fn stop(&mut self) {
        self.prober = None;
        let tracked = Family::ALL.map(|family| {
            let mut conntrack = self.world.node.command("conntrack");
            let family = choose(family, "ipv4", "ipv6");
            let output = conntrack.args(["-L", "-p", "tcp", "-f", family]).output();
            String::from_utf8(output.expect("conntrack").stdout).expect("text")
        });
        let open = |line: &&str| !line.contains(" CLOSE ");
        let open: Vec<_> = tracked
            .iter()
            .flat_map(|all| all.lines())
            .filter(open)
            .collect();
        assert!(open.is_empty(), "{open:#?}");
        // At most ten lanes with four probes a second were probed for ten seconds.
        let all: usize = tracked.iter().map(|all| all.lines().count()).sum();
        assert!(all < 1_000, "{all} entries");
    }
}

fn followed(devices: &SentinelDevices) -> Vec<Device> {
    let uplink = index_of("eth0").expect("an uplink");
    let ours = Role::NEAR.map(|role| (devices.index(role), role.name("pathproof")));
    ours.into_iter()
        .chain([(uplink, "eth0".to_owned())])
        .map(|(index, name)| Device {
            index,
            name,
            link: Link::Ethernet,
            uplink: index == uplink,
            leads_elsewhere: false,
            may_be_a_pods: false,
        })
        .collect()
}

fn ends(devices: &SentinelDevices) -> ProbeEnds {
    ProbeEnds {
        client_near: devices.index(Role::ClientNear),
        client_far: devices.index(Role::ClientFar),
        server_near: devices.index(Role::ServerNear),
        server_far: devices.index(Role::ServerFar),
    }
}

/// An agent that is slow to attach the sentinel's programs may already have a successor, whose observer took
/// over its links.
#[test]
fn late_programs_of_the_sentinel_stay_behind_a_successors_observer() {
    let world = World::builder().build().expect("build a world");
    let config = config([None, None]);
    let pins = world.pin_dir().to_owned();
    let (first, repairs) = world.node.run(|| {
        let devices = block_on(ensure(&config, &Family::ALL)).expect("the devices");
        let load = || {
            Observer::load(Mode::Auto, Some(&pins))
                .expect("an observer")
                .0
        };
        let (mut earlier, mut later) = (load(), load());
        for observer in [&mut earlier, &mut later] {
            observer.follow(&followed(&devices), clock::mono());
        }
        let hooks = earlier.open_sentinel(&ends(&devices));
        let hooks = hooks.expect("the sentinel's programs");
        later.check(clock::mono(), || false);
        let first = later
            .attacher
            .attachments()
            .all(|hook| hook.first == [Some(true); 2]);
        drop(hooks);
        (first, later.attacher.repairs)
    });
    assert!(first);
    assert_eq!(repairs, 0);
}

fn targets(config: &SentinelConfig) -> Vec<SentinelAddresses> {
    let addresses = |family| SentinelAddresses {
        family,
        client: config.place.client[family as usize],
        pod_client: Some(pod_client(family)),
        cluster_ip: SocketAddr::new(cluster_ip(family), TCP_PORT),
        cluster_ip_udp: Some(SocketAddr::new(cluster_ip(family), UDP_PORT)),
        node_port: Some(SocketAddr::new(node_address(family), NODE_PORT)),
        node_port_udp: Some(SocketAddr::new(node_address(family), NODE_PORT_UDP)),
        endpoint: echo(config, family),
        outside_rests: false,
    };
    Family::ALL.map(addresses).to_vec()
}

/// Map changes for the sentinel's Service and EndpointSlices.
fn expectations(config: &SentinelConfig) -> Vec<MapChange> {
    let mut plan = Vec::new();
    for family in Family::ALL {
        let service = family as u32;
        for (ip, class) in [
            (node_address(family), SourceClass::Host),
            (pod_client(family), SourceClass::Pod),
        ] {
            plan.push(MapChange::PutSource {
                prefix: SourcePrefix::host(address(ip)),
                class,
            });
        }
        let echo = echo(config, family);
        plan.push(MapChange::PutEndpoint {
            key: EndpointKey {
                service,
                address: address(echo.ip()),
                port: echo.port().to_be_bytes(),
                padding: [0; 2],
            },
            value: EndpointValue {
                flags: endpoint_flag::LOCAL,
            },
        });
        for (kind, ip, port) in [
            (FrontendKind::ClusterIp, cluster_ip(family), TCP_PORT),
            (FrontendKind::NodePort, node_address(family), NODE_PORT),
        ] {
            plan.push(MapChange::PutFrontend {
                key: FrontendKey {
                    address: address(ip),
                    port: port.to_be_bytes(),
                    protocol: TCP,
                    padding: 0,
                },
                value: FrontendValue {
                    service,
                    kind: kind as u8,
                    flags: frontend_flag::SENTINEL,
                    owed: [ExpectedHandling::Forward as u8; 3],
                    padding: [0; 3],
                },
            });
        }
    }
    plan
}

pub(crate) fn passed(stamps: &Stamps) -> Vec<Stage> {
    let all = Stage::ALL.into_iter();
    all.filter(|stage| stamps[*stage as usize].is_some())
        .collect()
}

/// Stages that the first packet of a probe reached.
pub(crate) fn first(trace: &ProbeTrace) -> Vec<Stage> {
    match trace.lane.transport {
        Transport::Tcp => passed(&trace.handshake),
        Transport::Udp => passed(&trace.data),
    }
}

pub(crate) fn is_sound(trace: &ProbeTrace) -> bool {
    trace.unsent.is_none()
        && trace.control == Control::Passed
        && trace.data[Collected as usize].is_some()
        && trace.sightings == ProbeSightings::default()
}
