//! Topologies as measured with real agents of two versions, and facts that leave a topology unknown.

mod words;

use rstest::rstest;

use super::*;
use crate::testing::topologies::*;

#[rstest]
#[case::replacing(&["cil_to_netdev"], Some(&["cil_sock4_lb"][..]), &[], Tristate::Yes)]
#[case::without_names(&["?"], Some(&["?"][..]), &[], Tristate::Yes)]
// A host firewall and `--bpf-lb-sock` beside a kube-proxy that serves node ports. Or Cilium without
// `node-port-bind-protection`, beside leftover rules of kube-proxy.
#[case::both_beside_kube_proxy(&["cil_to_netdev"], Some(&["cil_sock4_lb"][..]), PROXY, Tristate::Unknown)]
#[case::beside_kube_proxy(&[], Some(&[][..]), PROXY, Tristate::No)]
#[case::sockets_alone(&[], Some(&["cil_sock4_lb"][..]), PROXY, Tristate::No)]
// A host firewall or a bandwidth manager has `cil_to_netdev` too.
#[case::uplinks_alone(&["cil_to_netdev"], Some(&[][..]), PROXY, Tristate::No)]
#[case::nobody_else(&["cil_to_netdev"], Some(&[][..]), &[], Tristate::Unknown)]
#[case::another_program(&["retina"], None, PROXY, Tristate::No)]
#[case::no_hierarchy(&["cil_to_netdev"], None, PROXY, Tristate::Unknown)]
fn the_replacement_is_recognised(
    #[case] egress: &[&str],
    #[case] connect: Option<&[&str]>,
    #[case] others: &[Owner],
    #[case] expected: Tristate,
) {
    let topology = DatapathTopology::of(&node(egress, connect, others));
    assert_eq!(topology.cilium.unwrap().replacement, expected);
    // Probes through other interfaces do not represent users who may be served at the uplinks.
    assert_eq!(topology.has_applicable_probes(), expected == Tristate::No);
    let owner = topology.owners_with(DatapathOwners::default());
    assert_eq!(
        owner.contains(Owner::CiliumReplacement),
        expected == Tristate::Yes
    );
}

/// A program that serves node ports prevents processes from binding them.
#[rstest]
#[case::read(Some(links(&["cil_sock4_post_bind"])), Tristate::Yes)]
#[case::without_names(Some(links(&["?"])), Tristate::Yes)]
#[case::of_somebody_else(Some(links(&["another"])), Tristate::Unknown)]
#[case::not_read(None, Tristate::Unknown)]
fn beside_rules_that_kube_proxy_left_behind(
    #[case] bound: Option<ForeignPrograms>,
    #[case] expected: Tristate,
) {
    let mut facts = node(&["cil_to_netdev"], Some(&["cil_sock4_lb"]), PROXY);
    facts.bound[0] = bound;
    let topology = DatapathTopology::of(&facts);
    assert_eq!(topology.cilium.unwrap().replacement, expected);
    assert!(!topology.has_applicable_probes());
}

/// A hook that cannot be read may have a program.
#[rstest]
#[case::neither([None, None], Tristate::Unknown)]
#[case::one_and_it_has_none([Some(links(&[])), None], Tristate::Unknown)]
#[case::one_and_it_has_one([None, Some(links(&["?"]))], Tristate::Yes)]
#[case::both_and_none([Some(links(&[])), Some(links(&[]))], Tristate::No)]
fn sockets_of_one_family_do_not_decide_for_both(
    #[case] connect: [Option<ForeignPrograms>; FAMILIES],
    #[case] expected: Tristate,
) {
    let mut facts = node(&[], Some(&[]), PROXY);
    facts.connect = connect;
    assert_eq!(
        DatapathTopology::of(&facts).cilium.unwrap().socket_lb,
        expected
    );
}

/// During a repair of the interfaces their last known state stays; a new read replaces it.
#[rstest]
#[case::both_away(0, Tristate::Yes)]
#[case::one_is_back(1, Tristate::Yes)]
#[case::both_are_back(2, Tristate::No)]
fn interfaces_that_are_away_change_nothing(#[case] there: usize, #[case] expected: Tristate) {
    let mut facts = node(&["cil_to_netdev"], Some(&["cil_sock4_lb"]), &[]);
    let managed: &[&str] = if there == 1 {
        &["cil_from_netdev"]
    } else {
        &[]
    };
    facts.devices[2] = device("pathproof-a", Role::Sentinel, managed, &[]);
    facts.devices.truncate(2 + there);
    let topology = DatapathTopology::after(Tristate::Yes, &facts);
    assert_eq!(topology.sentinel_managed, expected);
    assert_eq!(topology.has_applicable_probes(), expected == Tristate::Yes);
    // Without a previous state, probes do not count.
    let first = DatapathTopology::of(&facts);
    assert!(
        !first.has_applicable_probes(),
        "{:?}",
        first.sentinel_managed
    );
    let notes = first.notes.join("; ");
    assert_eq!(
        notes.contains("Cilium does not translate"),
        there == 2,
        "{notes}"
    );
}

#[test]
fn unreadable_hooks_leave_the_topology_unknown() {
    let mut facts = node(&["cil_to_netdev"], Some(&["?"]), PROXY);
    facts.devices[0].hooks = None;
    let topology = DatapathTopology::of(&facts);
    assert_eq!(topology.cilium.unwrap().replacement, Tristate::Unknown);
    assert!(!topology.has_applicable_probes());
}

#[test]
fn without_cilium_kube_proxy_owns_every_path() {
    let facts = TopologyFacts {
        devices: vec![device("eth0", Role::Uplink, &[], &[])],
        owners: owners(PROXY),
        ..TopologyFacts::default()
    };
    let topology = DatapathTopology::of(&facts);
    assert!(topology.cilium.is_none() && topology.has_applicable_probes() && !topology.is_mixed());
    assert!(topology.notes.is_empty(), "{:?}", topology.notes);
    for path in &topology.paths {
        let expected = if path.path == SourceClass::Host {
            Seen::Hidden
        } else {
            Seen::Full
        };
        assert_eq!(path.seen, expected);
        assert!(
            path.owners.contains(Owner::KubeProxyNftables),
            "{}",
            path.sentence
        );
    }
}

/// An unknown program may translate, or only watch.
#[rstest]
#[case::alone(&["cali_tc"], &[], &[Owner::Unknown], &[Owner::Unknown])]
#[case::without_a_name(&["?"], &[], &[Owner::Unknown], &[Owner::Unknown])]
#[case::beside_kube_proxy(
    &["cali_tc"], PROXY, &[Owner::KubeProxyNftables, Owner::Unknown], PROXY
)]
#[case::none(&[], &[], &[], &[])]
fn a_program_that_is_not_known_at_an_uplink(
    #[case] programs: &[&str],
    #[case] rules: &[Owner],
    #[case] expected: &[Owner],
    #[case] of_paths: &[Owner],
) {
    let facts = TopologyFacts {
        devices: vec![device("eth0", Role::Uplink, programs, &[])],
        owners: owners(rules),
        ..TopologyFacts::default()
    };
    let topology = DatapathTopology::of(&facts);
    let there = topology.owners_with(rules.iter().copied().collect());
    assert_eq!(there, expected.iter().copied().collect());
    let of_paths: DatapathOwners = of_paths.iter().copied().collect();
    assert!(topology.paths.iter().all(|path| path.owners == of_paths));
}

#[test]
fn beside_cilium_nobody_is_unknown() {
    let topology = DatapathTopology::of(&node(&["cil_to_netdev", "?"], None, &[]));
    let there = topology.owners_with(DatapathOwners::default());
    assert!(!there.contains(Owner::Unknown));
}

#[test]
fn in_mixed_mode_each_path_has_its_owner() {
    let topology = mixed();
    assert!(topology.is_mixed());
    for path in &topology.paths {
        let cilium = path.path == SourceClass::Pod;
        assert_eq!(
            path.owners.contains(Owner::Cilium),
            cilium,
            "{}",
            path.sentence
        );
        assert_eq!(path.owners.contains(Owner::KubeProxyNftables), !cilium);
    }
    assert!(
        topology
            .notes
            .iter()
            .any(|note| note.contains("two proxies"))
    );
}

/// Calico's eBPF dataplane also has programs at sockets.
#[rstest]
#[case::some(&["?"], Seen::Partial)]
#[case::none(&[], Seen::Full)]
fn programs_at_sockets_may_hide_pods(#[case] programs: &[&str], #[case] expected: Seen) {
    let mut facts = node(&[], Some(programs), PROXY);
    facts.devices.retain(|device| device.role != Role::Cilium);
    facts.owners = owners(PROXY);
    let topology = DatapathTopology::of(&facts);
    let mut paths = topology.paths.iter();
    let pods = paths.find(|path| path.path == SourceClass::Pod).unwrap();
    assert_eq!(pods.seen, expected, "{}", pods.sentence);
    assert_eq!(pods.sentence.contains("Calico"), expected == Seen::Partial);
}

#[test]
fn sockets_that_are_translated_hide_pods() {
    let topology = replacing();
    let pods = topology
        .paths
        .iter()
        .find(|path| path.path == SourceClass::Pod)
        .unwrap();
    assert_eq!(pods.seen, Seen::Partial);
    let note = topology
        .notes
        .iter()
        .find(|note| note.contains("pathproof-a and pathproof-b"));
    assert!(
        note.is_some_and(|note| note.contains("to Cilium's devices")),
        "{:?}",
        topology.notes
    );
}

#[rstest]
#[case::both(&["cil_from_netdev"], &["cil_from_netdev"], Tristate::Yes)]
#[case::one(&["cil_from_netdev"], &[], Tristate::No)]
#[case::none(&[], &[], Tristate::No)]
fn the_sentinels_interfaces_count_together(
    #[case] client: &[&str],
    #[case] server: &[&str],
    #[case] expected: Tristate,
) {
    let mut facts = node(&["cil_to_netdev"], Some(&["cil_sock4_lb"]), &[]);
    facts.devices[2] = device("pathproof-a", Role::Sentinel, client, &[]);
    facts.devices[3] = device("pathproof-b", Role::Sentinel, server, &[]);
    let topology = DatapathTopology::of(&facts);
    assert_eq!(topology.sentinel_managed, expected);
    assert_eq!(topology.has_applicable_probes(), expected == Tristate::Yes);
}

#[test]
fn xdp_and_netkit_are_reported() {
    let mut facts = node(&["cil_to_netdev"], Some(&["cil_sock4_lb"]), &[]);
    facts.devices[0].xdp = true;
    facts.netkit = 3;
    let topology = DatapathTopology::of(&facts);
    assert_eq!(topology.accelerated, ["eth0"]);
    let external = topology
        .paths
        .iter()
        .find(|path| path.path == SourceClass::External)
        .unwrap();
    assert_eq!(external.seen, Seen::Partial);
    for part in [
        "XDP program on eth0",
        "3 netkit interfaces are not supported",
    ] {
        assert!(external.sentence.contains(part), "{}", external.sentence);
    }
}

/// Without TCX, Cilium's programs are filters.
#[test]
fn filters_tell_the_same_as_links() {
    let mut facts = node(&["cil_to_netdev"], Some(&["cil_sock4_lb"]), &[]);
    for device in &mut facts.devices {
        for foreign_programs in device.hooks.iter_mut().flatten() {
            foreign_programs.filters = std::mem::take(&mut foreign_programs.links);
        }
    }
    assert_eq!(
        DatapathTopology::of(&facts).cilium.unwrap().replacement,
        Tristate::Yes
    );
}

#[test]
fn a_topology_is_read_back_as_it_was_written() {
    let topology = DatapathTopology::of(&node(&["?"], Some(&["?"]), PROXY));
    let text = serde_json::to_string(&topology).unwrap();
    assert_eq!(
        serde_json::from_str::<DatapathTopology>(&text).unwrap(),
        topology
    );
    // A report of an older agent has no such fields.
    assert_eq!(
        serde_json::from_str::<DatapathTopology>("{\"paths\":[]}").unwrap(),
        DatapathTopology::default()
    );
}
