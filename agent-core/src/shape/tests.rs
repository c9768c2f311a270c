//! Shapes as measured with real agents of two versions, and facts that leave a shape unknown.

mod words;

use rstest::rstest;

use super::*;

/// Programs by name; `?` is a program whose name cannot be read.
fn links(names: &[&str]) -> Strangers {
    let name = |name: &&str| (*name != "?").then(|| (*name).to_owned());
    Strangers {
        links: names.iter().map(name).collect(),
        filters: Vec::new(),
    }
}

fn device(name: &str, role: Role, ingress: &[&str], egress: &[&str]) -> DeviceFacts {
    DeviceFacts {
        name: name.to_owned(),
        role,
        xdp: false,
        hooks: Some([links(ingress), links(egress)]),
    }
}

fn owners(owners: &[Owner]) -> OwnersRead {
    [Some(owners.iter().copied().collect()); FAMILIES]
}

/// A node with Cilium: programs at the uplink's egress and at `connect`, and other owners.
fn node(egress: &[&str], connect: Option<&[&str]>, others: &[Owner]) -> Facts {
    let all: Vec<Owner> = others.iter().copied().chain([Owner::Cilium]).collect();
    Facts {
        devices: vec![
            device("eth0", Role::Uplink, &["cil_from_netdev"], egress),
            device(
                "cilium_host",
                Role::Cilium,
                &["cil_to_host"],
                &["cil_from_host"],
            ),
            device("pathproof-a", Role::Sentinel, &[], &[]),
            device("pathproof-b", Role::Sentinel, &[], &[]),
        ],
        netkit: 0,
        connect: [connect.map(links), connect.map(links)],
        bound: [
            connect.map(|_| Strangers::default()),
            connect.map(|_| Strangers::default()),
        ],
        owners: owners(&all),
    }
}

impl Shape {
    /// The shape of these facts without a previous one.
    fn of(facts: &Facts) -> Self {
        Self::after(Told::Unknown, facts)
    }
}

const PROXY: &[Owner] = &[Owner::KubeProxyNftables];

/// Cilium in place of kube-proxy; it does not manage the sentinel's interfaces.
pub(crate) fn replacing() -> Shape {
    Shape::of(&node(&["cil_to_netdev"], Some(&["cil_sock4_lb"]), &[]))
}

/// The same while the sentinel's interfaces are missing; `managed` was their previous state.
pub(crate) fn replacing_with(managed: Told) -> Shape {
    let mut facts = node(&["cil_to_netdev"], Some(&["cil_sock4_lb"]), &[]);
    facts.devices.truncate(2);
    Shape::after(managed, &facts)
}

/// Cilium for pods, kube-proxy for the rest.
pub(crate) fn mixed() -> Shape {
    Shape::of(&node(&[], Some(&[]), PROXY))
}

#[rstest]
#[case::replacing(&["cil_to_netdev"], Some(&["cil_sock4_lb"][..]), &[], Told::Yes)]
#[case::without_names(&["?"], Some(&["?"][..]), &[], Told::Yes)]
// A host firewall and `--bpf-lb-sock` beside a kube-proxy that serves node ports; or leftover rules
// of kube-proxy without `node-port-bind-protection`.
#[case::both_beside_kube_proxy(&["cil_to_netdev"], Some(&["cil_sock4_lb"][..]), PROXY, Told::Unknown)]
#[case::beside_kube_proxy(&[], Some(&[][..]), PROXY, Told::No)]
#[case::sockets_alone(&[], Some(&["cil_sock4_lb"][..]), PROXY, Told::No)]
// A host firewall or a bandwidth manager has that program too.
#[case::uplinks_alone(&["cil_to_netdev"], Some(&[][..]), PROXY, Told::No)]
#[case::nobody_else(&["cil_to_netdev"], Some(&[][..]), &[], Told::Unknown)]
#[case::another_program(&["retina"], None, PROXY, Told::No)]
#[case::no_hierarchy(&["cil_to_netdev"], None, PROXY, Told::Unknown)]
fn the_replacement_is_recognised(
    #[case] egress: &[&str],
    #[case] connect: Option<&[&str]>,
    #[case] others: &[Owner],
    #[case] expected: Told,
) {
    let shape = Shape::of(&node(egress, connect, others));
    assert_eq!(shape.cilium.unwrap().replacement, expected);
    // Probes through other interfaces do not represent users who may be served at the uplinks.
    assert_eq!(shape.probes_stand(), expected == Told::No);
    let owner = shape.owners_with(DatapathOwners::default());
    assert_eq!(
        owner.contains(Owner::CiliumReplacement),
        expected == Told::Yes
    );
}

/// A program that serves node ports prevents processes from binding them.
#[rstest]
#[case::read(Some(links(&["cil_sock4_post_bind"])), Told::Yes)]
#[case::without_names(Some(links(&["?"])), Told::Yes)]
#[case::of_somebody_else(Some(links(&["another"])), Told::Unknown)]
#[case::not_read(None, Told::Unknown)]
fn beside_rules_that_kube_proxy_left_behind(
    #[case] bound: Option<Strangers>,
    #[case] expected: Told,
) {
    let mut facts = node(&["cil_to_netdev"], Some(&["cil_sock4_lb"]), PROXY);
    facts.bound[0] = bound;
    let shape = Shape::of(&facts);
    assert_eq!(shape.cilium.unwrap().replacement, expected);
    assert!(!shape.probes_stand());
}

/// A hook that cannot be read may have a program.
#[rstest]
#[case::neither([None, None], Told::Unknown)]
#[case::one_and_it_has_none([Some(links(&[])), None], Told::Unknown)]
#[case::one_and_it_has_one([None, Some(links(&["?"]))], Told::Yes)]
#[case::both_and_none([Some(links(&[])), Some(links(&[]))], Told::No)]
fn one_familys_sockets_do_not_decide_for_both(
    #[case] connect: [Option<Strangers>; FAMILIES],
    #[case] expected: Told,
) {
    let mut facts = node(&[], Some(&[]), PROXY);
    facts.connect = connect;
    assert_eq!(Shape::of(&facts).cilium.unwrap().socket_lb, expected);
}

/// During a repair of the interfaces their last known state stays; a new read replaces it.
#[rstest]
#[case::both_away(0, Told::Yes)]
#[case::one_is_back(1, Told::Yes)]
#[case::both_are_back(2, Told::No)]
fn interfaces_that_are_away_change_nothing(#[case] there: usize, #[case] expected: Told) {
    let mut facts = node(&["cil_to_netdev"], Some(&["cil_sock4_lb"]), &[]);
    let managed: &[&str] = if there == 1 {
        &["cil_from_netdev"]
    } else {
        &[]
    };
    facts.devices[2] = device("pathproof-a", Role::Sentinel, managed, &[]);
    facts.devices.truncate(2 + there);
    let shape = Shape::after(Told::Yes, &facts);
    assert_eq!(shape.sentinel_managed, expected);
    assert_eq!(shape.probes_stand(), expected == Told::Yes);
    // Without a previous state, probes do not count.
    let first = Shape::of(&facts);
    assert!(!first.probes_stand(), "{:?}", first.sentinel_managed);
    let notes = first.notes.join("; ");
    assert_eq!(
        notes.contains("Cilium does not translate"),
        there == 2,
        "{notes}"
    );
}

#[test]
fn unreadable_hooks_leave_the_shape_unknown() {
    let mut facts = node(&["cil_to_netdev"], Some(&["?"]), PROXY);
    facts.devices[0].hooks = None;
    let shape = Shape::of(&facts);
    assert_eq!(shape.cilium.unwrap().replacement, Told::Unknown);
    assert!(!shape.probes_stand());
}

#[test]
fn without_cilium_kube_proxy_owns_every_path() {
    let facts = Facts {
        devices: vec![device("eth0", Role::Uplink, &[], &[])],
        owners: owners(PROXY),
        ..Facts::default()
    };
    let shape = Shape::of(&facts);
    assert!(shape.cilium.is_none() && shape.probes_stand() && !shape.is_mixed());
    assert!(shape.notes.is_empty(), "{:?}", shape.notes);
    for path in &shape.paths {
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
    let facts = Facts {
        devices: vec![device("eth0", Role::Uplink, programs, &[])],
        owners: owners(rules),
        ..Facts::default()
    };
    let shape = Shape::of(&facts);
    let there = shape.owners_with(rules.iter().copied().collect());
    assert_eq!(there, expected.iter().copied().collect());
    let of_paths: DatapathOwners = of_paths.iter().copied().collect();
    assert!(shape.paths.iter().all(|path| path.owners == of_paths));
}

#[test]
fn beside_cilium_nobody_is_unknown() {
    let shape = Shape::of(&node(&["cil_to_netdev", "?"], None, &[]));
    let there = shape.owners_with(DatapathOwners::default());
    assert!(!there.contains(Owner::Unknown));
}

#[test]
fn in_mixed_mode_each_path_has_its_owner() {
    let shape = mixed();
    assert!(shape.is_mixed());
    for path in &shape.paths {
        let cilium = path.path == SourceClass::Pod;
        assert_eq!(
            path.owners.contains(Owner::Cilium),
            cilium,
            "{}",
            path.sentence
        );
        assert_eq!(path.owners.contains(Owner::KubeProxyNftables), !cilium);
    }
    assert!(shape.notes.iter().any(|note| note.contains("two proxies")));
}

/// Calico's eBPF dataplane has programs there too.
#[rstest]
#[case::some(&["?"], Seen::Partial)]
#[case::none(&[], Seen::Full)]
fn programs_at_sockets_may_hide_pods(#[case] programs: &[&str], #[case] expected: Seen) {
    let mut facts = node(&[], Some(programs), PROXY);
    facts.devices.retain(|device| device.role != Role::Cilium);
    facts.owners = owners(PROXY);
    let shape = Shape::of(&facts);
    let mut paths = shape.paths.iter();
    let pods = paths.find(|path| path.path == SourceClass::Pod).unwrap();
    assert_eq!(pods.seen, expected, "{}", pods.sentence);
    assert_eq!(pods.sentence.contains("Calico"), expected == Seen::Partial);
}

#[test]
fn sockets_that_are_translated_hide_pods() {
    let shape = replacing();
    let pods = shape
        .paths
        .iter()
        .find(|path| path.path == SourceClass::Pod)
        .unwrap();
    assert_eq!(pods.seen, Seen::Partial);
    let note = shape
        .notes
        .iter()
        .find(|note| note.contains("pathproof-a and pathproof-b"));
    assert!(
        note.is_some_and(|note| note.contains("to Cilium's devices")),
        "{:?}",
        shape.notes
    );
}

#[rstest]
#[case::both(&["cil_from_netdev"], &["cil_from_netdev"], Told::Yes)]
#[case::one(&["cil_from_netdev"], &[], Told::No)]
#[case::none(&[], &[], Told::No)]
fn the_sentinels_interfaces_count_together(
    #[case] client: &[&str],
    #[case] server: &[&str],
    #[case] expected: Told,
) {
    let mut facts = node(&["cil_to_netdev"], Some(&["cil_sock4_lb"]), &[]);
    facts.devices[2] = device("pathproof-a", Role::Sentinel, client, &[]);
    facts.devices[3] = device("pathproof-b", Role::Sentinel, server, &[]);
    let shape = Shape::of(&facts);
    assert_eq!(shape.sentinel_managed, expected);
    assert_eq!(shape.probes_stand(), expected == Told::Yes);
}

/// kube-proxy programs only IPv4.
#[rstest]
#[case::without_services_of_the_other_family([true, false], false)]
#[case::with_such([true, true], true)]
fn outsiders_are_hidden_where_they_are_served(
    #[case] families: [bool; FAMILIES],
    #[case] expected: bool,
) {
    let v4: DatapathOwners = [Owner::KubeProxyNftables].into_iter().collect();
    let facts = Facts {
        owners: [Some(v4), Some(DatapathOwners::default())],
        ..Facts::default()
    };
    let hides = Shape::of(&facts).hides_outsiders(families);
    assert_eq!(hides.is_some(), expected, "{hides:?}");
}

#[test]
fn xdp_and_netkit_are_reported() {
    let mut facts = node(&["cil_to_netdev"], Some(&["cil_sock4_lb"]), &[]);
    facts.devices[0].xdp = true;
    facts.netkit = 3;
    let shape = Shape::of(&facts);
    assert_eq!(shape.accelerated, ["eth0"]);
    let external = shape
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

#[rstest]
#[case::native(&[], Routing::Native)]
#[case::vxlan(&["cilium_vxlan"], Routing::Vxlan)]
#[case::geneve(&["cilium_geneve"], Routing::Geneve)]
fn devices_show_how_nodes_are_reached(#[case] names: &[&str], #[case] expected: Routing) {
    let mut facts = node(&[], Some(&[]), PROXY);
    facts.devices.extend(
        names
            .iter()
            .map(|name| device(name, Role::Cilium, &[], &[])),
    );
    let cilium = Shape::of(&facts).cilium.unwrap();
    assert_eq!(cilium.routing, expected);
}

/// Without TCX, Cilium's programs are filters.
#[test]
fn filters_tell_the_same_as_links() {
    let mut facts = node(&["cil_to_netdev"], Some(&["cil_sock4_lb"]), &[]);
    for device in &mut facts.devices {
        for strangers in device.hooks.iter_mut().flatten() {
            strangers.filters = std::mem::take(&mut strangers.links);
        }
    }
    assert_eq!(Shape::of(&facts).cilium.unwrap().replacement, Told::Yes);
}

#[test]
fn a_shape_is_read_back_as_it_was_written() {
    let shape = Shape::of(&node(&["?"], Some(&["?"]), PROXY));
    let text = serde_json::to_string(&shape).unwrap();
    assert_eq!(serde_json::from_str::<Shape>(&text).unwrap(), shape);
    // A report of an older agent has no such fields.
    assert_eq!(
        serde_json::from_str::<Shape>("{\"paths\":[]}").unwrap(),
        Shape::default()
    );
}
