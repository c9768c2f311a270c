//! The agent makes, adopts and removes the sentinel's devices on a real kernel. Module `damage` tests what
//! other programs do to the devices, `others` what the devices do to the rest of the node.

mod damage;
mod others;

use std::fs;
use std::future::Future;
use std::net::{IpAddr, UdpSocket};

use node_tests::prelude::*;
use pathproof::config::{SentinelConfig, SentinelPlace};
use pathproof::sentinel::devices::{
    DeviceError, Role, SentinelDevices, ensure, remove, verify, written,
};
use pathproof::sentinel::kernel::{forwarding, overridden};
use pathproof_facts::cluster::ObjectName;
use pathproof_wire::service::Family;

/// Prefix of the devices' names.
const PREFIX: &str = "pathproof";

/// A configuration with the shipped addresses, and with `pod` as the addresses for the path of pods.
pub(crate) fn config(pod: [Option<IpAddr>; 2]) -> SentinelConfig {
    let ip = |text: &str| text.parse().expect("an address");
    SentinelConfig {
        place: SentinelPlace {
            service: ObjectName::new("pathproof", "pathproof-sentinel"),
            client: [ip("198.18.0.1"), ip("2001:2::1")],
            echo: [ip("198.18.0.2"), ip("2001:2::2")],
        },
        devices: PREFIX.to_owned(),
        pod,
        datapath: None,
    }
}

pub(crate) fn block_on<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(work)
}

/// A node without pods.
pub(crate) struct Node {
    pub(crate) world: World,
    pub(crate) config: SentinelConfig,
}

impl Node {
    pub(crate) fn new() -> Self {
        let world = World::builder().build().expect("build a world");
        let config = config([None, None]);
        Self { world, config }
    }

    /// Runs a future on a thread inside the node's namespace.
    pub(crate) fn run<T: Send, F: Future<Output = T>>(&self, work: impl FnOnce() -> F + Send) -> T {
        self.world.node.run(|| block_on(work()))
    }

    pub(crate) fn try_ensure(&self) -> Result<SentinelDevices, DeviceError> {
        self.run(|| ensure(&self.config, &Family::ALL))
    }

    pub(crate) fn ensure(&self) -> SentinelDevices {
        self.try_ensure().expect("the sentinel's devices")
    }

    pub(crate) fn verify(&self, devices: &SentinelDevices) -> Vec<String> {
        let damages = self.run(|| verify(devices, &self.config));
        damages.expect("answers of the kernel")
    }

    pub(crate) fn remove(&self) -> usize {
        self.run(|| remove(&self.config.devices))
            .expect("remove the devices")
    }

    /// Runs `ip` commands, separated by semicolons.
    pub(crate) fn ip(&self, commands: &str) -> String {
        let run = |words| self.world.node.ip(words).expect("ip");
        commands.split(';').map(run).collect()
    }

    /// Routes of all tables, addresses, permanent neighbours, rules and bridges, one per line.
    pub(crate) fn tables(&self) -> Vec<String> {
        let text = self.ip(
            "route show table all; -o addr; neigh show nud permanent; rule; -6 rule; -o link show type bridge",
        );
        let mut lines: Vec<_> = text.lines().map(|line| line.trim().to_owned()).collect();
        lines.sort_unstable();
        lines.dedup();
        lines
    }

    /// Value of a sysctl of the node, such as "ipv4/ip_forward", or `None` if it does not exist.
    pub(crate) fn switch(&self, name: &str) -> Option<String> {
        let path = format!("/proc/sys/net/{name}");
        let text = self.world.node.run(|| fs::read_to_string(path));
        text.ok().map(|text| text.trim().to_owned())
    }
}

/// Lines of `all` that are not among `these`.
pub(crate) fn without<'a>(all: &'a [String], these: &[String]) -> Vec<&'a str> {
    let all = all.iter().filter(|line| !these.contains(line));
    all.map(String::as_str).collect()
}

#[test]
fn made_once_and_the_same_ever_after() {
    let node = Node::new();
    let devices = node.ensure();
    assert_eq!(devices.families, Family::ALL);
    assert_eq!(node.verify(&devices), [""; 0]);
    for role in Role::ALL {
        let name = role.name("pathproof");
        let index = node.world.node.ifindex(&name).expect("a device");
        assert_eq!(index, devices.index(role));
        let link = node.ip(&format!("-o link show {name}"));
        let mac = format!("link/ether {}", written(role.mac()));
        assert!(link.contains(&mac), "{link}");
        assert!(link.contains("alias pathproof sentinel"), "{link}");
    }
    // Ensure again without knowledge of the first call, as after a crash: only the kernel still has the
    // state.
    let (links, tables) = (node.ip("-d link"), node.tables());
    assert_eq!(node.ensure(), devices);
    assert_eq!(node.ip("-d link"), links);
    assert_eq!(node.tables(), tables);
}

#[test]
fn near_ends_inherit_and_far_ends_are_deaf() {
    let node = Node::new();
    let set = [
        ("net/ipv4/ip_forward", "0"),
        ("net/ipv4/conf/default/rp_filter", "2"),
    ];
    node.world.node.sysctls(&set).expect("sysctls");
    let devices = node.ensure();
    let forwards = |family| {
        let read = node.run(async || forwarding(PREFIX, family));
        read.expect("switches")
    };
    for device in ["pathproof-c0", "pathproof-s0"] {
        let switch = |name: &str| node.switch(&format!("ipv4/conf/{device}/{name}"));
        assert_eq!(switch("forwarding").as_deref(), Some("0"), "{device}");
        assert_eq!(switch("rp_filter").as_deref(), Some("2"), "{device}");
    }
    assert_eq!(forwards(Family::V4), Some(false));
    assert_eq!(forwards(Family::V6), Some(true));
    node.world.set_forwarding(true).expect("forwarding");
    assert_eq!(forwards(Family::V4), Some(true));
    assert_eq!(node.verify(&devices), [""; 0]);
    for device in ["pathproof-c1", "pathproof-s1"] {
        assert_eq!(node.switch(&format!("ipv6/conf/{device}/forwarding")), None);
    }
    let all = [("net/ipv6/conf/all/forwarding", "0")];
    node.world.node.sysctls(&all).expect("sysctls");
    assert_eq!(forwards(Family::V6), Some(false));
}

/// Forwarding is checked for each interface, because network managers and hardening roles set it for single
/// ones.
#[test]
fn forwarding_is_read_for_each_interface() {
    let node = Node::new();
    node.ensure();
    let set = |interface: &str, on: &str| {
        let file = format!("net/ipv4/conf/{interface}/forwarding");
        node.world.node.sysctl(&file, on).expect("a switch");
    };
    let read = || {
        let read = async || (forwarding(PREFIX, Family::V4), overridden(PREFIX));
        let (forwards, damage) = node.run(read);
        (forwards.expect("switches"), damage.expect("switches"))
    };
    let others = |on| {
        let set = node.world.set_forwarding_of_each("pathproof-", on);
        set.expect("switches");
    };
    node.world.set_forwarding(false).expect("forwarding");
    assert_eq!(read(), (Some(false), None), "nothing forwards");
    node.ip("link add cali1 type veth peer name pod1");
    set("cali1", "1");
    assert_eq!(
        read(),
        (Some(false), None),
        "Calico sets the switch of its own interfaces"
    );
    others(true);
    assert_eq!(read(), (None, None), "pods may be served");
    set("pathproof-c0", "1");
    let (forwards, damage) = read();
    let damage = damage.expect("answers come in by the other end");
    assert!(
        forwards.is_none() && damage.contains("pathproof-s0"),
        "{damage}"
    );
    set("pathproof-s0", "1");
    assert_eq!(read(), (Some(true), None), "the remedy");
    node.world.set_forwarding(true).expect("forwarding");
    set("pathproof-c0", "0");
    let (forwards, damage) = read();
    let damage = damage.expect("only the sentinel's interface is off");
    assert!(
        forwards.is_none() && damage.contains("pathproof-c0"),
        "{damage}"
    );
    others(false);
    set("pathproof-s0", "0");
    assert_eq!(read(), (Some(false), None), "off for each of them");
}

/// Between two agents there are no programs. Even if the far end forwards, a packet to the echo must end
/// there.
#[test]
fn nothing_loops_without_programs() {
    let node = Node::new();
    node.ensure();
    // Switch forwarding off and on again, because the kernel only applies changes of the switch to the
    // devices.
    for on in [false, true] {
        node.world.set_forwarding(on).expect("forwarding");
    }
    // The worst case is a node without a reverse path filter, because this filter would drop packets that
    // return by a device without addresses. Send from outside: packets of the node itself would be martians
    // there.
    let open = ["all", "pathproof-s0", "pathproof-s1"];
    for device in open.map(|device| format!("net/ipv4/conf/{device}/rp_filter")) {
        node.world.node.sysctl(&device, "0").expect("a sysctl");
    }
    let outside = &node.world.outside;
    let to_node = "route add 198.18.0.0/15 via 192.0.2.10";
    outside.ip(to_node).expect("a route");
    let to_node = "-6 route add 2001:2::/48 via 2001:db8:0:1::10";
    outside.ip(to_node).expect("a route");
    // Allow a few packets, such as the kernel's multicast reports. A loop would have many more.
    for family in Family::ALL {
        let sent = packets_of_one(&node, node.config.place.echo[family as usize]);
        assert!((1..6).contains(&sent), "{family:?}: {sent} packets");
    }
    // A neighbour entry prevents the loop: its hardware address belongs to no device. With the far end's real
    // address, one packet loops until its TTL is used up.
    node.ip("neigh replace 198.18.0.2 dev pathproof-s0 lladdr 02:70:61:74:68:e1");
    let sent = packets_of_one(&node, node.config.place.echo[0]);
    println!("{sent} packets in a loop");
    assert!(sent > 50, "{sent} packets: the test cannot show a loop");
}

/// Number of packets that the echo's near end sends after one datagram from outside.
fn packets_of_one(node: &Node, to: IpAddr) -> u64 {
    let count = || {
        let text = node.ip("-s link show pathproof-s0");
        let line = text.lines().skip_while(|line| !line.contains("TX:")).nth(1);
        let packets = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        packets.expect("a counter")
    };
    let before = count();
    node.world.outside.run(|| {
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = UdpSocket::bind(any).expect("a socket");
        socket.send_to(b"to nobody", (to, 9)).expect("send");
    });
    thread::sleep(Duration::from_millis(200));
    count() - before
}

#[test]
fn half_made_ones_are_completed_or_removed() {
    let node = Node::new();
    let before = (node.ip("-o link"), node.tables());
    for break_it in [
        "link del pathproof-s0",
        "link set pathproof-c0 down; link set pathproof-s1 down",
        "neigh flush dev pathproof-c0 nud permanent; neigh flush dev pathproof-s0 nud permanent",
        "route flush proto 112; -6 route flush proto 112",
    ] {
        let devices = node.ensure();
        let whole = node.tables();
        node.ip(break_it);
        let repaired = node.ensure();
        let index = |devices: &SentinelDevices| devices.index(Role::ClientNear);
        assert_eq!(index(&repaired), index(&devices), "{break_it}");
        assert_eq!(node.tables(), whole, "{break_it}");
        assert_eq!(node.verify(&repaired), [""; 0], "{break_it}");

        node.ip(break_it);
        let left = node.ip("-o link").matches("pathproof-").count() / 2;
        assert_eq!(node.remove(), left, "{break_it}");
        assert_eq!(node.remove(), 0, "{break_it}");
        let after = (node.ip("-o link"), node.tables());
        assert_eq!(after, before, "{break_it}: a remainder");
    }
}

#[test]
fn devices_of_other_settings_are_adapted() {
    let mut node = Node::new();
    let first = node.ensure();
    let whole = node.tables();
    node.config.place.client[0] = [198, 19, 7, 1].into();
    node.config.place.echo[1] = "2001:2::beef".parse().expect("an address");
    node.config.pod[0] = Some([10, 244, 0, 250].into());
    let second = node.ensure();
    assert_eq!(first, second);
    assert_eq!(node.verify(&second), [""; 0]);
    let tables = node.tables();
    let gone = ["198.18.0.1", "2001:2::2"];
    for line in without(&whole, &tables) {
        assert!(
            gone.iter().any(|address| line.starts_with(address)),
            "{line}"
        );
    }
    let come = ["198.19.7.1", "2001:2::beef", "10.244.0.250"];
    let new = without(&tables, &whole);
    assert_eq!(
        new.len(),
        2 * come.len(),
        "a route and a neighbour each: {new:#?}"
    );
    for line in new {
        assert!(
            come.iter().any(|address| line.starts_with(address)),
            "{line}"
        );
    }
    // If only one family is used, the other family's addresses are removed.
    let v4 = node
        .run(|| ensure(&node.config, &[Family::V4]))
        .expect("devices");
    assert_eq!(v4.families, [Family::V4]);
    assert!(!node.tables().iter().any(|line| line.starts_with("2001:2:")));
}

#[test]
fn a_node_without_ipv6_has_ipv4() {
    let node = Node::new();
    let switch = |value| {
        let all = [("net/ipv6/conf/all/disable_ipv6", value)];
        node.world.node.sysctls(&all).expect("sysctls");
    };
    switch("1");
    let devices = node.ensure();
    assert_eq!(devices.families, [Family::V4]);
    assert_eq!(node.verify(&devices), [""; 0]);
    assert!(!node.tables().iter().any(|line| line.contains("2001:2:")));

    switch("0");
    let devices = node.ensure();
    assert_eq!(devices.families, Family::ALL);
    assert_eq!(node.verify(&devices), [""; 0]);
    switch("1");
    let damage = node.verify(&devices);
    let off = "IPv6 was disabled on the sentinel's interface pathproof-c0";
    assert!(damage.iter().any(|text| text.contains(off)), "{damage:?}");
    assert_eq!(node.ensure().families, [Family::V4]);
}
