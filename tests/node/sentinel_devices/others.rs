//! The sentinel's devices change nothing else on the node and send nothing to other devices. Conflicts with
//! addresses, routes or devices of others are refused.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use node_tests::prelude::*;
use pathproof::sentinel::devices::{DeviceError, address_conflict, uplinks};
use pathproof_wire::service::Family;
use socket2::{Domain, Protocol, Socket, Type};

use super::{Node, without};

/// Sysctls of devices and neighbours, except those of the sentinel's devices.
fn switches(node: &Node) -> BTreeMap<String, String> {
    fn collect(folder: &Path, found: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                collect(&path, found);
            } else if let Ok(text) = fs::read_to_string(&path) {
                found.insert(path.display().to_string(), text);
            }
        }
    }
    let mut found = BTreeMap::new();
    node.world.node.run(|| {
        for folder in [
            "ipv4/conf",
            "ipv6/conf",
            "ipv4/neigh",
            "ipv6/neigh",
            "core",
            "bridge",
        ] {
            collect(&Path::new("/proc/sys/net").join(folder), &mut found);
        }
        found.insert("ip_forward".to_owned(), {
            fs::read_to_string("/proc/sys/net/ipv4/ip_forward").unwrap_or_default()
        });
    });
    found.retain(|path, _| !path.contains("/pathproof-"));
    found
}

#[test]
fn devices_add_only_four_routes() {
    let node = Node::new();
    let (tables, settings) = (node.tables(), switches(&node));
    assert!(settings.len() > 200, "{} switches", settings.len());
    node.ensure();
    let with = node.tables();
    assert_eq!(without(&tables, &with), [""; 0], "nothing went");
    let mut new = without(&with, &tables);
    new.retain(|line| !line.contains("lladdr"));
    assert_eq!(
        new,
        [
            "198.18.0.1 dev pathproof-c0 proto 112 scope link",
            "198.18.0.2 dev pathproof-s0 proto 112 scope link",
            "2001:2::1 dev pathproof-c0 proto 112 metric 1024 pref medium",
            "2001:2::2 dev pathproof-s0 proto 112 metric 1024 pref medium",
        ]
    );
    assert_eq!(switches(&node), settings);
    assert_eq!(node.remove(), 4);
    assert_eq!(node.tables(), tables);
    assert_eq!(switches(&node), settings);
}

/// Frames on all devices. Ends after `most`, or when all but the sentinel's devices were silent for `quiet`.
fn frames(node: &Node, quiet: Duration, most: Duration) -> Vec<(String, Vec<u8>)> {
    node.world.node.run(|| {
        let all = Protocol::from(i32::from(0x0003_u16.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(all)).expect("a packet socket");
        let start = Instant::now();
        let mut last = start;
        let mut found = Vec::new();
        socket
            .set_read_timeout(Some(Duration::from_millis(50)))
            .expect("a timeout");
        while last.elapsed() < quiet && start.elapsed() < most {
            let mut buffer = Vec::with_capacity(2048);
            let Ok((length, from)) = socket.recv_from(buffer.spare_capacity_mut()) else {
                continue;
            };
            // SAFETY: recv_from has written this many bytes.
            unsafe { buffer.set_len(length) };
            let device = device_of(&from);
            if !device.starts_with("pathproof-") {
                last = Instant::now();
            }
            found.push((device, buffer));
        }
        found
    })
}

fn device_of(from: &socket2::SockAddr) -> String {
    let mut name = [0; libc::IF_NAMESIZE];
    // SAFETY: a packet socket fills in a sockaddr_ll, and `name` has the length that if_indextoname requires.
    unsafe {
        let link = from.as_ptr().cast::<libc::sockaddr_ll>();
        let index = u32::try_from((*link).sll_ifindex).unwrap_or(0);
        libc::if_indextoname(index, name.as_mut_ptr());
        std::ffi::CStr::from_ptr(name.as_ptr())
            .to_string_lossy()
            .into_owned()
    }
}

#[test]
fn nothing_is_sent_by_other_devices() {
    let node = Node::new();
    // First wait for the multicast reports of the world's devices, which have just come up.
    frames(&node, Duration::from_secs(3), Duration::from_secs(20));
    let seen = std::thread::scope(|scope| {
        let watch = scope.spawn(|| frames(&node, Duration::from_secs(4), Duration::from_secs(4)));
        std::thread::sleep(Duration::from_millis(200));
        node.ensure();
        std::thread::sleep(Duration::from_secs(2));
        node.ensure();
        watch.join().expect("a watch")
    });
    let (ours, others): (Vec<_>, Vec<_>) = seen
        .into_iter()
        .partition(|(device, _)| device.starts_with("pathproof-"));
    assert!(others.is_empty(), "{others:02x?}");
    // Only multicast reports of the near ends are allowed. They end at the far ends.
    for (device, frame) in ours {
        let multicast = frame.starts_with(&[0x33, 0x33]) || frame.starts_with(&[1, 0, 0x5e]);
        assert!(multicast, "{device}: {frame:02x?}");
        println!("{device}: {frame:02x?}");
    }
}

/// If another program's device has a name of the sentinel's, the agent refuses before it makes anything, and
/// does not touch that device.
#[test]
fn a_device_of_others_is_refused() {
    let node = Node::new();
    for (make, named) in [
        (
            "link add pathproof-s0 type bridge",
            "pathproof-s0 exists already and is not a veth",
        ),
        (
            "link add pathproof-c0 type veth peer name odd0",
            "pathproof-c0 exists already and its other end is not pathproof-c1",
        ),
        (
            "link add odd0 type veth peer name pathproof-s1",
            "pathproof-s1 exists already and its other end is not pathproof-s0",
        ),
        (
            "link add pathproof-c0 type veth peer name pathproof-s0",
            "pathproof-c0 exists already and its other end",
        ),
        (
            "link add pathproof-c0 type veth peer name pathproof-c1",
            "neither the sentinel's hardware address nor its alias",
        ),
    ] {
        node.ip(make);
        let before = (node.ip("-d link"), node.tables());
        let error = node.try_ensure().expect_err("a device of others");
        assert!(
            matches!(error, DeviceError::Foreign { .. }),
            "{make}: {error}"
        );
        let text = error.to_string();
        for words in [named, "ip link del", "device prefix"] {
            assert!(text.contains(words), "{make}: {text}");
        }
        assert_eq!(node.remove(), 0, "{make}");
        assert_eq!((node.ip("-d link"), node.tables()), before, "{make}");
        let name = make.split(' ').nth(2).expect("a device");
        node.ip(&format!("link del {name}"));
    }
}

#[test]
fn a_route_of_others_is_left_alone() {
    let node = Node::new();
    node.ip("route add 198.18.0.2/32 via 192.0.2.1");
    let before = node.tables();
    let error = node.try_ensure().expect_err("a route of others");
    let text = error.to_string();
    assert!(
        text.contains("198.18.0.2 is already routed to eth0"),
        "{text}"
    );
    assert!(
        node.tables()
            .iter()
            .any(|line| line.starts_with("198.18.0.2 via 192.0.2.1"))
    );
    assert_eq!(node.remove(), 4);
    assert_eq!(node.tables(), before);
}

fn first_conflict(node: &Node) -> Option<String> {
    let found = node.run(|| address_conflict(&node.config, &Family::ALL));
    found.expect("the node's state")
}

/// Conflicts are detected in the state of a real kernel. The rules of the detection have unit tests.
#[test]
fn the_nodes_own_state_is_read() {
    let mut node = Node::new();
    node.config.pod = ["10.244.0.250", "fd00:10:244::fffe"].map(|text| text.parse().ok());
    assert_eq!(first_conflict(&node), None);
    node.ensure();
    assert_eq!(
        first_conflict(&node),
        None,
        "the sentinel's addresses are no conflict"
    );

    for (add, undo, said) in [
        (
            "addr add 198.18.0.1/24 dev eth0",
            "addr del 198.18.0.1/24 dev eth0",
            "is an address of eth0",
        ),
        (
            "-6 addr add 2001:2::2/128 dev lo",
            "-6 addr del 2001:2::2/128 dev lo",
            "is an address of lo",
        ),
        (
            "route add 198.19.0.0/24 via 192.0.2.1",
            "route del 198.19.0.0/24",
            "198.19.0.0/24 to eth0 (table 254)",
        ),
        (
            "route add 198.18.0.0/15 dev eth0 table 7",
            "route del 198.18.0.0/15 table 7",
            "198.18.0.0/15 to eth0 (table 7)",
        ),
        (
            "-6 route add 2001:2:0:5::/64 via 2001:db8:0:1::1",
            "-6 route del 2001:2:0:5::/64",
            "2001:2:0:5::/64 to eth0",
        ),
        (
            "neigh add 10.244.0.250 dev eth0 lladdr 02:00:00:00:00:01",
            "neigh del 10.244.0.250 dev eth0",
            "by a neighbour on eth0",
        ),
        (
            "route add 10.244.0.250/32 dev eth0 metric 9",
            "route del 10.244.0.250/32 dev eth0 metric 9",
            "10.244.0.250/32 to eth0",
        ),
    ] {
        node.ip(add);
        // Repeat the check, because a route may appear a moment before its address.
        eventually(&format!("{said} after {add}"), || {
            first_conflict(&node).is_some_and(|text| text.contains(said))
        });
        node.ip(undo);
        assert_eq!(first_conflict(&node), None, "{undo}");
    }
    node.ip("route add blackhole 198.18.0.0/15; -6 route add unreachable 2001:2::/32; route add 198.0.0.0/8 via 192.0.2.1");
    assert_eq!(
        first_conflict(&node),
        None,
        "routes that drop or are wider do not use the range"
    );
}

/// The agent looks for an owner of the addresses through each interface with a default route or a route to a
/// large network, such as a VPN's, but not through the sentinel's own interfaces.
#[test]
fn every_way_to_the_addresses_is_found() {
    let node = Node::new();
    node.ensure();
    let found = || {
        let addresses = vec![node.config.place.client[0], node.config.place.echo[0]];
        let found = node.run(|| uplinks(Family::V4, addresses));
        found.expect("routes")
    };
    let names = |all: &[&str]| all.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    assert_eq!(found(), names(&["eth0"]));
    node.ip("link add vpn0 type veth peer name vpn1; link set vpn0 up; link set vpn1 up");
    node.ip("route add 198.20.0.0/14 dev vpn0");
    assert_eq!(found(), names(&["eth0"]), "not to the addresses");
    node.ip("route add 128.0.0.0/1 dev vpn0");
    assert_eq!(found(), names(&["eth0", "vpn0"]));
    node.ip("route del default");
    assert_eq!(found(), names(&["vpn0"]));
}
