//! The sentinel's programs on two real veth pairs, in a namespace whose nftables rules translate as a node's
//! rules do. Packets are sent as AF_PACKET frames and by kernel sockets.
//!
//! These tests make the devices with `ip`. tests/node tests how the agent makes them.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpStream};

use node_tests::observer::{Observer, in_sandbox, index_of, run};
use node_tests::packet::{self, Packet, mapped};
use node_tests::prelude::*;
use node_tests::traffic::RawSender;
use pathproof::datapath;
use pathproof::datapath::attach::{Mechanism, Mode};
use pathproof::datapath::devices::Device;
use pathproof::datapath::probes::{ProbeEnds, ProbeHooks, ProbeHooksError, ProbeMaps};
use pathproof::probe::Kernel as _;
use pathproof_facts::time::Mono;
use pathproof_wire::packet::Link;
use pathproof_wire::probe::Phase::{self, Data, Handshake};
use pathproof_wire::probe::Stage::{self, Arrived, Collected, Echoed, Returned, Translated};
use pathproof_wire::probe::{
    DATA_LEN, Probe, ProbeEvent, ProbeKey, UDP, echo_isn, probe_event, probe_flag,
};
use pathproof_wire::service::Family::{self, V4};
use pathproof_wire::service::TCP;

use super::{client, echo, host, key, payload, probes, tcp_data};
use crate::stage::{at, choose};

const TOKEN: u32 = 0x7a3f_19c4;
/// Timeout of each wait, longer than any step takes, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(20);

/// Hardware addresses of the devices c0, c1, s0, s1.
fn link_address(last: u8) -> [u8; 6] {
    [2, 0, 0, 0, 0, last]
}
const DEVICES: [(&str, u8); 4] = [("c0", 0xc0), ("c1", 0xc1), ("s0", 0x50), ("s1", 0x51)];

/// DNAT for a cluster IP's TCP and UDP port, masquerade, and two ports that reject.
const RULES: &str = "
table inet rules {
  chain prerouting {
    type nat hook prerouting priority dstnat;
    jump services
  }
  chain output {
    type nat hook output priority -100;
    jump services
  }
  chain services {
    ip daddr 10.96.0.9 tcp dport 80 dnat ip to 198.18.0.2:8080
    ip daddr 10.96.0.9 udp dport 53 dnat ip to 198.18.0.2:5353
    ip6 daddr fd00:10:96::9 tcp dport 80 dnat ip6 to [2001:2::2]:8080
    ip6 daddr fd00:10:96::9 udp dport 53 dnat ip6 to [2001:2::2]:5353
  }
  chain postrouting {
    type nat hook postrouting priority srcnat;
    oifname s0 masquerade
  }
  chain forward {
    type filter hook forward priority filter;
    tcp dport 8099 reject with tcp reset
    meta l4proto { tcp, udp } th dport 8098 reject
  }
}
";

fn furnish() -> ProbeEnds {
    let of = |last| {
        link_address(last)
            .map(|byte| format!("{byte:02x}"))
            .join(":")
    };
    let [c0, c1, s0, s1] = DEVICES.map(|(_, last)| of(last));
    let batch = format!(
        "link add c0 address {c0} type veth peer name c1 address {c1}
         link add s0 address {s0} type veth peer name s1 address {s1}
         link set c0 up\nlink set c1 up\nlink set s0 up\nlink set s1 up
         route add 198.18.0.1/32 dev c0
         route add 198.18.0.2/32 dev s0
         route add 2001:2::1/128 dev c0
         route add 2001:2::2/128 dev s0
         neigh add 198.18.0.1 lladdr {c1} dev c0 nud permanent
         neigh add 198.18.0.2 lladdr {s1} dev s0 nud permanent
         neigh add 2001:2::1 lladdr {c1} dev c0 nud permanent
         neigh add 2001:2::2 lladdr {s1} dev s0 nud permanent\n"
    );
    run("ip", "-batch -", &batch).expect("devices");
    run("nft", "-f -", RULES).expect("rules");
    ends()
}

fn ends() -> ProbeEnds {
    let [client_near, client_far, server_near, server_far] =
        DEVICES.map(|(name, _)| index_of(name).expect(name));
    ProbeEnds {
        client_near,
        client_far,
        server_near,
        server_far,
    }
}

struct Path {
    observer: Observer,
    maps: ProbeMaps,
}

fn on_path(test: impl FnOnce(&mut Path, ProbeEnds) + Send) {
    let observer = Observer::load(&[]);
    let furnished = |_| {
        let ends = furnish();
        let maps = probes(&observer);
        test(&mut Path { observer, maps }, ends);
    };
    in_sandbox(furnished).expect("a network namespace");
}

impl Path {
    fn try_attach(&mut self, ends: &ProbeEnds, mode: Mode) -> Result<ProbeHooks, ProbeHooksError> {
        ProbeHooks::attach(&mut self.observer.ebpf, ends, mode, &BTreeSet::new())
    }

    fn attach(&mut self, ends: &ProbeEnds, mode: Mode) -> ProbeHooks {
        let hooks = self.try_attach(ends, mode);
        hooks.expect("the sentinel's programs")
    }

    fn register(&mut self, key: ProbeKey, flags: u32) {
        self.maps.register(key, flags).expect("room for a probe");
    }

    /// Waits for the next event, which must belong to this probe.
    fn event(&mut self, key: ProbeKey) -> ProbeEvent {
        let mut ready = libc::pollfd {
            fd: self.maps.events_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd that lives for the call.
        let found = unsafe { libc::poll(&raw mut ready, 1, PATIENCE.as_millis() as i32) };
        assert_eq!(found, 1, "an event of {key:?}");
        let event = self.maps.next_event().expect("an event");
        assert_eq!(event.key, key);
        event
    }

    fn probe(&self, key: ProbeKey) -> Probe {
        self.maps.read(&key).expect("a map").expect("the probe")
    }
}

fn service(family: Family, port: u16) -> SocketAddr {
    let address = choose(family, "10.96.0.9", "fd00:10:96::9");
    SocketAddr::new(address.parse().expect("an address"), port)
}

/// The node's address that masquerade chooses as the source.
fn own(family: Family) -> IpAddr {
    at(choose(family, "192.0.2.2:0", "[2001:db8::2]:0")).ip()
}

/// Sends a frame from a veth end into the node, as the packets of a pod arrive.
fn send(device: &str, to: u8, packet: &Packet) {
    let from = DEVICES.iter().find(|(name, _)| *name == device);
    let link = (link_address(from.expect("a device").1), link_address(to));
    let sender = RawSender::here(device, link).expect("a packet socket");
    let frame = packet.clone().between(link).bytes();
    sender.send(&frame).expect("sent");
}

fn from_client(packet: &Packet) {
    send("c1", 0xc0, packet);
}

/// Stages of this phase that have a timestamp. Asserts that the timestamps have the order of the stages.
fn stages(probe: &Probe, phase: Phase) -> Vec<Stage> {
    let stamps = probe.stamps[phase as usize];
    let passed: Vec<_> = Stage::ALL
        .into_iter()
        .filter(|stage| stamps[*stage as usize] != 0)
        .collect();
    assert!(
        passed.is_sorted_by_key(|stage| stamps[*stage as usize]),
        "{stamps:?}"
    );
    passed
}

/// A complete round trip: an unknown probe, handshake, data, datagram, control probe, refusals.
#[rstest]
fn there_and_back(
    #[values(V4, Family::V6)] family: Family,
    #[values((Mode::Tcx, Mechanism::Tcx), (Mode::Clsact, Mechanism::Clsact))] how: (
        Mode,
        Mechanism,
    ),
) {
    on_path(|path, ends| {
        let hooks = path.attach(&ends, how.0);
        assert_eq!(hooks.mechanism(), how.1);
        unknown_and_handshake(path, family);
        data(path, family);
        datagram(path, family);
        control(path, family);
        refusals(path, family);
    });
}

fn unknown_and_handshake(path: &mut Path, family: Family) {
    // Send an unregistered probe first: if it caused an event, this would precede the event of the next
    // probe.
    let (client, service) = (client(family), service(family, 80));
    let other = SocketAddr::new(client.ip(), 40_002);
    from_client(&packet::syn(other, service, !TOKEN));
    let key = key(family, TCP, TOKEN);
    path.register(key, 0);
    from_client(&packet::syn(client, service, TOKEN));
    let event = path.event(key);
    assert_eq!(event.kind, probe_event::HANDSHAKE);
    assert_eq!(event.sequence, echo_isn(TOKEN));
    assert_eq!(event.acknowledged, TOKEN.wrapping_add(1));
    let probe = path.probe(key);
    assert_eq!(stages(&probe, Handshake), Stage::ALL);
    assert_eq!(stages(&probe, Data), []);
    assert_eq!(event.at_ns, probe.stamps[0][Collected as usize]);
    assert_eq!(probe.echo_source, mapped(own(family)), "masqueraded");
    assert_eq!(probe.echo_port, 8_080_u16.to_be_bytes());
}

fn data(path: &mut Path, family: Family) {
    let (client, service) = (client(family), service(family, 80));
    let key = key(family, TCP, TOKEN);
    let (sequence, acknowledged) = (TOKEN.wrapping_add(1), echo_isn(TOKEN).wrapping_add(1));
    from_client(&tcp_data(client, service, TOKEN));
    let event = path.event(key);
    assert_eq!(event.kind, probe_event::DATA);
    assert_eq!(event.sequence, acknowledged);
    assert_eq!(event.acknowledged, sequence.wrapping_add(DATA_LEN as u32));
    assert_eq!(stages(&path.probe(key), Data), Stage::ALL);
    path.maps.remove(&key);
}

fn datagram(path: &mut Path, family: Family) {
    let key = key(family, UDP, TOKEN);
    path.register(key, 0);
    let service = service(family, 53);
    from_client(&packet::udp(client(family), service, &payload(TOKEN)));
    assert_eq!(path.event(key).kind, probe_event::DATA);
    let probe = path.probe(key);
    assert_eq!(stages(&probe, Data), Stage::ALL);
    assert_eq!(stages(&probe, Handshake), []);
    assert_eq!(probe.echo_source, mapped(own(family)), "masqueraded");
    assert_eq!(probe.echo_port, 5_353_u16.to_be_bytes());
}

/// A control probe goes directly to the echo and bypasses the datapath.
fn control(path: &mut Path, family: Family) {
    let key = key(family, TCP, TOKEN ^ 1);
    path.register(key, probe_flag::CONTROL);
    let syn = packet::syn(client(family), echo(family), key.token);
    send("s0", 0x51, &syn);
    assert_eq!(path.event(key).kind, probe_event::HANDSHAKE);
    let probe = path.probe(key);
    assert_eq!(stages(&probe, Handshake), [Translated, Echoed, Returned]);
    assert_eq!(probe.echo_source, mapped(client(family).ip()));
}

fn refusals(path: &mut Path, family: Family) {
    let client = client(family);
    let cases = [
        (8_099, TCP, probe_flag::REFUSED),
        (8_098, TCP, probe_flag::UNREACHABLE),
        (8_098, UDP, probe_flag::UNREACHABLE),
    ];
    for (index, (port, protocol, flags)) in (0..).zip(cases) {
        let key = key(family, protocol, TOKEN ^ 0x100 ^ index);
        path.register(key, 0);
        let to = host(family, 2, port);
        from_client(&match protocol {
            TCP => packet::syn(client, to, key.token),
            _ => packet::udp(client, to, &payload(key.token)),
        });
        let event = path.event(key);
        assert_eq!(event.kind, probe_event::REFUSED, "{port}/{protocol}");
        let probe = path.probe(key);
        assert_eq!(probe.flags, flags, "{port}/{protocol}");
        let phase = if protocol == TCP { Handshake } else { Data };
        assert_eq!(stages(&probe, phase), [Arrived], "{port}/{protocol}");
    }
}

/// A connection of a socket of the node itself. Its packets have partial checksums, many options, and data
/// outside the linear part of the packet (finding 7).
#[rstest]
fn a_connection_of_the_nodes_own(
    #[values(V4, Family::V6)] family: Family,
    #[values(Mode::Tcx, Mode::Clsact)] mode: Mode,
) {
    on_path(|path, ends| {
        let _hooks = path.attach(&ends, mode);
        let domain = choose(family, socket2::Domain::IPV4, socket2::Domain::IPV6);
        let socket = socket2::Socket::new(domain, socket2::Type::STREAM, None).expect("a socket");
        let cookie = socket.cookie().expect("its cookie");
        path.maps.register_socket(cookie).expect("room");
        let to = service(family, 80);
        socket
            .connect_timeout(&to.into(), PATIENCE)
            .expect("connected");

        let host = path.maps.socket(cookie).expect("registered");
        assert_eq!(host.seen, 1);
        let key = key(family, TCP, host.token);
        let probe = path.probe(key);
        assert_eq!(probe.flags, probe_flag::HOST);
        let on_the_way = [Translated, Echoed, Returned];
        assert_eq!(stages(&probe, Handshake), on_the_way);
        assert_eq!(probe.echo_source, mapped(own(family)));
        assert_eq!(probe.echo_port, 8_080_u16.to_be_bytes());

        let mut stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.write_all(&payload(host.token)).expect("written");
        let mut back = [0; DATA_LEN];
        stream.read_exact(&mut back).expect("read");
        assert_eq!(back, payload(host.token));
        assert_eq!(stages(&path.probe(key), Data), on_the_way);
        assert_eq!(
            path.maps.next_event(),
            None,
            "probes from a socket make no events"
        );
        path.maps.remove_socket(cookie);
        path.maps.remove(&key);
    });
}

fn filters(device: &str) -> usize {
    let shown = run("tc", &format!("filter show dev {device} ingress"), "").expect("filters");
    shown.matches("handle 0x").count()
}

/// As in the agent, the sentinel's programs run after the observer's, and share the observer's map of
/// connections.
#[rstest]
fn beside_the_observer(#[values(Mode::Tcx, Mode::Clsact)] mode: Mode) {
    on_path(|path, ends| {
        let (mut agents, _) = datapath::Observer::load(mode, None).expect("the observer");
        let near = [("c0", ends.client_near), ("s0", ends.server_near)];
        let near = near.map(|(name, index)| Device {
            index,
            name: name.to_owned(),
            link: Link::Ethernet,
            uplink: false,
            leads_elsewhere: false,
            may_be_a_pods: false,
        });
        agents.follow(&near, Mono::default());
        let hooks = agents.open_sentinel(&ends).expect("the programs");
        path.maps = agents.probe_maps().expect("the probes' maps");
        unknown_and_handshake(path, V4);
        data(path, V4);
        control(path, V4);
        assert!(hooks.are_attached());
        // The observer does not follow the probe, because it has no frontend here.
        assert_eq!(path.maps.connection_state(TOKEN, V4), None);
        agents.check(Mono(0), || false);
        assert_eq!(
            agents.attacher.repairs, 0,
            "the observer is still first at its hooks"
        );
        drop(hooks);
        let again = agents.open_sentinel(&ends).expect("the programs once more");
        assert!(again.are_attached());
        agents.release(false);
    });
}

/// A killed agent leaves its filters, and the next one replaces them.
#[test]
fn filters_are_found_again() {
    on_path(|path, ends| {
        std::mem::forget(path.attach(&ends, Mode::Clsact));
        assert_eq!(filters("s1"), 1);
        let hooks = path.attach(&ends, Mode::Clsact);
        assert_eq!(filters("s1"), 1);
        assert!(hooks.are_attached());
        assert_eq!(filters("s1"), 1, "a check adds no filter");
        unknown_and_handshake(path, V4);

        run("tc", "qdisc del dev s1 clsact", "").expect("a qdisc");
        assert!(!hooks.are_attached());
        drop(hooks);
        let hooks = path.attach(&ends, Mode::Clsact);
        run("tc", "filter del dev c1 ingress", "").expect("a filter");
        assert!(!hooks.are_attached());
        drop(hooks);
        for device in ["c0", "c1", "s0", "s1"] {
            assert_eq!(filters(device), 0, "{device}");
        }
    });
}

/// The owner of the programs notices that devices were removed, and attaches the programs to their
/// replacements.
#[rstest]
fn devices_that_go(#[values(Mode::Tcx, Mode::Clsact)] mode: Mode) {
    on_path(|path, ends| {
        let hooks = path.attach(&ends, mode);
        assert!(hooks.are_attached());
        run("ip", "link del c0", "").expect("a device");
        assert!(!hooks.are_attached());
        let error = path.try_attach(&ends, mode).err().expect("no device");
        assert!(matches!(error, ProbeHooksError::Device { .. }), "{error}");
        drop(hooks);
        run("ip", "link del s0", "").expect("a device");
        let ends = furnish();
        let _hooks = path.attach(&ends, mode);
        unknown_and_handshake(path, V4);
    });
}
