//! Other programs damage the sentinel's devices. The agent names the kind of damage, and repairs it if it
//! can.

use std::io;

use pathproof::sentinel::devices::{DeviceError, ensure, remove};
use pathproof_wire::service::Family;
use rstest::rstest;

use super::Node;

#[test]
fn damage_is_named_and_repaired() {
    let node = Node::new();
    let mut devices = node.ensure();
    let harms: [(&str, &[&str]); 15] = [
        (
            "link set pathproof-c0 down",
            &["interface pathproof-c0 is down"],
        ),
        (
            "link set pathproof-s1 down",
            &[
                "interface pathproof-s1 is down",
                "interface pathproof-s0 has no carrier",
            ],
        ),
        (
            "link set pathproof-c0 address 02:00:00:00:00:01",
            &[
                "hardware address of the sentinel's interface pathproof-c0 is no longer 02:70:61:74:68:c0",
            ],
        ),
        (
            "link set pathproof-s1 address 02:00:00:00:00:01",
            &["hardware address of the sentinel's interface pathproof-s1"],
        ),
        (
            "link del pathproof-c1",
            &[
                "interface pathproof-c0 was removed",
                "interface pathproof-c1 was removed",
            ],
        ),
        (
            "route del 198.18.0.2/32",
            &["route to 198.18.0.2 by the sentinel's interface pathproof-s0 was removed"],
        ),
        (
            "-6 route del 2001:2::1/128",
            &["route to 2001:2::1 by the sentinel's interface pathproof-c0 was removed"],
        ),
        ("route flush dev pathproof-c0", &["route to 198.18.0.1 by"]),
        (
            "route del default; route del 198.18.0.1",
            &["route to 198.18.0.1 by"],
        ),
        (
            "neigh del 198.18.0.1 dev pathproof-c0",
            &["neighbour 198.18.0.1 of the sentinel's interface pathproof-c0 is gone"],
        ),
        (
            "neigh flush dev pathproof-s0 nud permanent",
            &["neighbour 198.18.0.2 of", "neighbour 2001:2::2 of"],
        ),
        (
            "neigh replace 2001:2::2 dev pathproof-s0 lladdr 02:00:00:00:00:01",
            &["neighbour 2001:2::2 of the sentinel's interface pathproof-s0 was changed"],
        ),
        (
            "neigh replace 198.18.0.2 dev pathproof-s0 lladdr 02:70:61:74:68:ee nud reachable",
            &["neighbour 198.18.0.2 of the sentinel's interface pathproof-s0 was changed"],
        ),
        (
            "link add br9 type bridge; link set pathproof-s0 master br9",
            &["interface pathproof-s0 was added to br9"],
        ),
        (
            "link set pathproof-c0 mtu 1000",
            &[
                "IPv6 was disabled on the sentinel's interface pathproof-c0",
                "route to 2001:2::1",
            ],
        ),
    ];
    for (harm, named) in harms {
        node.ip(harm);
        let said = node.verify(&devices);
        for text in named {
            assert!(
                said.iter().any(|said| said.contains(text)),
                "{harm}: {text}: {said:#?}"
            );
        }
        let repaired = node.ensure();
        assert_eq!(node.verify(&repaired), [""; 0], "{harm}");
        if !harm.contains("link del") {
            assert_eq!(repaired, devices, "{harm}: repaired, not replaced");
        }
        node.ip("link show pathproof-c0; link show pathproof-s1");
        devices = repaired;
    }
}

/// If rules or addresses of other programs override the sentinel's routes, the agent names them and does not
/// remove them.
#[test]
fn overridden_routes_are_named_and_left_alone() {
    let node = Node::new();
    let devices = node.ensure();
    for (harm, named) in [
        (
            "rule add to 198.18.0.2 lookup 99; route add default via 192.0.2.1 table 99",
            "198.18.0.2 is routed to eth0 (table 99)",
        ),
        (
            "rule add from 198.18.0.1 iif pathproof-c0 lookup 99; route add default via 192.0.2.1 table 99",
            "198.18.0.2 is routed to eth0 (table 99)",
        ),
        (
            "-6 rule add to 2001:2::1 lookup 99; -6 route add default via 2001:db8:0:1::1 table 99",
            "2001:2::1 is routed to eth0 (table 99)",
        ),
        (
            "rule add to 198.18.0.1 prohibit",
            "198.18.0.1 is routed to nowhere (prohibited)",
        ),
        (
            "rule add to 198.18.0.1 blackhole",
            "198.18.0.1 is routed to nowhere (dropped)",
        ),
        (
            "addr add 198.18.0.2/32 dev lo",
            "198.18.0.2 is routed to this node itself (an address of lo)",
        ),
    ] {
        node.ip(harm);
        let tables = node.tables();
        node.ensure();
        assert_eq!(node.tables(), tables, "{harm}");
        let said = node.verify(&devices);
        assert!(
            said.iter().any(|said| said.contains(named)),
            "{harm}: {said:#?}"
        );
        node.ip(&harm.replace(" add ", " del "));
        assert_eq!(node.verify(&devices), [""; 0], "{harm}: over");
    }
}

/// With forwarding off, the kernel routes no incoming packets. That is a fault of the datapath, not damage of
/// the devices.
#[test]
fn forwarding_off_is_no_damage() {
    let node = Node::new();
    let devices = node.ensure();
    node.world.set_forwarding(false).expect("forwarding");
    assert_eq!(node.verify(&devices), [""; 0]);
    let strict = [
        ("net/ipv4/conf/all/rp_filter", "1"),
        ("net/ipv4/conf/all/log_martians", "1"),
    ];
    node.world.node.sysctls(&strict).expect("sysctls");
    assert_eq!(node.verify(&devices), [""; 0]);
}

/// If one end was renamed or moved to another namespace, the agent cannot repair the pair. The error suggests
/// `pathproof cleanup`, which removes the pair.
#[rstest]
#[case::renamed("link set pathproof-c1 down; link set pathproof-c1 name odd0")]
#[case::moved("link set pathproof-c1 netns NETNS")]
fn a_torn_pair_is_refused_and_removed(#[case] harm: &str) {
    let node = Node::new();
    let devices = node.ensure();
    node.ip(&harm.replace("NETNS", node.world.outside.name()));
    assert!(!node.verify(&devices).is_empty());
    let error = node.try_ensure().expect_err("a torn pair");
    assert!(matches!(error, DeviceError::Foreign { .. }), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("pathproof-c0") && text.contains("pathproof cleanup"),
        "{text}"
    );
    assert!(node.remove() >= 3);
    assert!(!node.ip("-o link").contains("pathproof"));
    assert_eq!(node.verify(&node.ensure()), [""; 0]);
}

fn drop_net_admin() -> io::Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    const NET_ADMIN: u32 = 12;
    let header = [VERSION_3, 0];
    // The effective, permitted and inheritable sets: first the three low words, then the three high words.
    let mut data = [0_u32; 6];
    // SAFETY: the pointers are to 8 bytes that capget(2) reads, and to 24 bytes that it writes.
    let got = unsafe { libc::syscall(libc::SYS_capget, header.as_ptr(), data.as_mut_ptr()) };
    data[0] &= !(1 << NET_ADMIN);
    // SAFETY: as above, but capset(2) reads both.
    let set = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) };
    if got == 0 && set == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

#[test]
fn a_missing_capability_is_recognized() {
    let node = Node::new();
    let confined = |made: bool| {
        let error = node.run(async || {
            drop_net_admin().expect("drop a capability");
            if made {
                remove(&node.config.devices).await.map(drop)
            } else {
                ensure(&node.config, &Family::ALL).await.map(drop)
            }
        });
        let error = error.expect_err("CAP_NET_ADMIN is missing");
        assert!(error.is_permission(), "{error}");
        assert!(
            error.to_string().contains("CAP_NET_ADMIN is missing"),
            "{error}"
        );
    };
    confined(false);
    let devices = node.ensure();
    confined(true);
    let damage = node.run(async || {
        drop_net_admin().expect("drop a capability");
        pathproof::sentinel::devices::verify(&devices, &node.config).await
    });
    let damage = damage.expect("a check needs no capability");
    assert_eq!(damage, [""; 0]);
}
