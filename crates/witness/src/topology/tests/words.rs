//! Every sentence of a topology, and how much of each path is observed.

use std::fmt::Write as _;

use pathproof_facts::names::of_path;
use pathproof_facts::testing::assert_words;

use super::*;
use crate::topology::words;

const TOLD: [Tristate; 3] = [Tristate::Yes, Tristate::No, Tristate::Unknown];

fn cilium(replacement: Tristate, socket_lb: Tristate) -> DatapathTopology {
    DatapathTopology {
        cilium: Some(Cilium {
            replacement,
            socket_lb,
        }),
        ..DatapathTopology::default()
    }
}

/// Writes the sentence for every path of a node with these owners.
fn paths(text: &mut String, title: &str, topology: &DatapathTopology) {
    let _ = writeln!(text, "{title}");
    let there = [Owner::KubeProxyNftables, Owner::Cilium];
    for path in SourceClass::ALL {
        let owners = topology.owners(there.into_iter().collect(), path);
        let (name, seen) = (of_path(path), topology.seen(path).name());
        let sentence = words::path(topology, path, owners);
        let _ = writeln!(text, "  {name}, {seen}: {sentence}");
    }
}

#[test]
fn every_path_has_its_sentence() {
    let mut text = String::new();
    let out = &mut text;
    paths(out, "kube-proxy", &DatapathTopology::default());
    for replacement in TOLD {
        for socket_lb in TOLD {
            let title = format!(
                "Cilium, replacement {}, sockets {}",
                replacement.name(),
                socket_lb.name()
            );
            paths(out, &title, &cilium(replacement, socket_lb));
        }
    }
    let accelerated = DatapathTopology {
        accelerated: vec!["eth0".to_owned(), "eth1".to_owned()],
        ..DatapathTopology::default()
    };
    paths(out, "XDP at uplinks", &accelerated);
    let both = DatapathTopology {
        netkit: 1,
        ..accelerated
    };
    paths(out, "and netkit", &both);
    let netkit = DatapathTopology {
        netkit: 3,
        ..DatapathTopology::default()
    };
    paths(out, "netkit alone", &netkit);
    let nobody = words::path(
        &DatapathTopology::default(),
        SourceClass::Pod,
        DatapathOwners::default(),
    );
    let _ = writeln!(out, "nobody\n  {nobody}");
    assert_words("paths", &text);
}

fn noted(text: &mut String, title: &str, topology: &DatapathTopology, facts: &TopologyFacts) {
    let _ = writeln!(text, "{title}");
    for note in words::notes(topology, facts) {
        let _ = writeln!(text, "  {note}");
    }
}

#[test]
fn every_note_is_told() {
    let mut text = String::new();
    let out = &mut text;
    let facts = node(&[], Some(&[]), PROXY);
    for replacement in TOLD {
        for managed in TOLD {
            let mut topology = cilium(replacement, Tristate::Yes);
            topology.sentinel_managed = managed;
            let title = format!(
                "replacement {}, the sentinel's interfaces managed {}",
                replacement.name(),
                managed.name()
            );
            noted(out, &title, &topology, &facts);
        }
    }
    let bare = TopologyFacts::default();
    let unmanaged = DatapathTopology {
        sentinel_managed: Tristate::No,
        ..cilium(Tristate::Yes, Tristate::Yes)
    };
    noted(out, "without the sentinel's interfaces", &unmanaged, &bare);
    let foreign_programs = || vec!["retina at eth0".to_owned(), "falco at eth0".to_owned()];
    let with = |topology: DatapathTopology| DatapathTopology {
        foreign_programs: foreign_programs(),
        ..topology
    };
    noted(
        out,
        "programs of others",
        &with(DatapathTopology::default()),
        &TopologyFacts::default(),
    );
    let beside = with(cilium(Tristate::No, Tristate::No));
    noted(out, "beside Cilium", &beside, &facts);
    noted(out, "nothing to tell", &DatapathTopology::default(), &bare);
    assert_words("notes", &text);
}

/// A name that is not text, or that could control a terminal, is replaced by a description; others are kept.
#[test]
fn a_name_that_is_no_text_is_not_printed() {
    for name in ["\u{fffd}", "x\u{202e}", "\x1b[2J"] {
        let found = DatapathTopology::of(&node(&[name], Some(&[]), PROXY)).foreign_programs;
        assert_eq!(found, ["a program whose name cannot be read at eth0"]);
    }
    let found = DatapathTopology::of(&node(&["узел"], Some(&[]), PROXY)).foreign_programs;
    assert_eq!(found, ["узел at eth0"]);
}

/// Unknown programs are listed once per uplink, and those of other interfaces are not.
#[test]
fn strangers_are_named() {
    let mut facts = node(&["cil_to_netdev", "retina"], Some(&[]), PROXY);
    facts.devices[0].hooks.as_mut().unwrap()[0] = ForeignPrograms {
        links: vec![None, Some("retina".to_owned())],
        filters: vec![Some("bandwidth".to_owned())],
    };
    facts
        .devices
        .push(device("eth1", Role::Uplink, &["retina"], &[]));
    facts
        .devices
        .push(device("cilium_net", Role::Cilium, &["other"], &[]));
    assert_eq!(
        DatapathTopology::of(&facts).foreign_programs,
        [
            "a program whose name cannot be read at eth0",
            "bandwidth at eth0",
            "retina at eth0",
            "retina at eth1",
        ]
    );
}

/// XDP programs on interfaces other than uplinks do not count.
#[test]
fn uplinks_alone_are_accelerated() {
    let mut facts = node(&[], Some(&[]), PROXY);
    for device in &mut facts.devices {
        device.xdp = device.role != Role::Uplink;
    }
    assert_eq!(DatapathTopology::of(&facts).accelerated, [""; 0]);
    facts.netkit = 2;
    let topology = DatapathTopology::of(&facts);
    assert_eq!(topology.netkit, 2);
    assert_eq!(topology.paths.len(), 6);
}

/// Without an uplink, programs at egress are unknown.
#[test]
fn a_node_without_uplinks_tells_nothing_of_the_replacement() {
    let mut facts = node(&[], Some(&["cil_sock4_lb"]), &[]);
    facts.devices.remove(0);
    let topology = DatapathTopology::of(&facts);
    assert_eq!(topology.cilium.unwrap().replacement, Tristate::Unknown);
    let owners = topology.owners_with([Owner::Cilium].into_iter().collect());
    assert_eq!(owners, [Owner::Cilium].into_iter().collect());
}
