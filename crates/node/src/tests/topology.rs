//! The datapath's topology: when it is read, and how it affects the verdict.

use pathproof_facts::cause::{State, Why};
use pathproof_facts::owners::{DatapathOwners, Owner};
use pathproof_witness::topology::{DeviceFacts, ForeignPrograms, Role, TopologyFacts, Tristate};
use rstest::rstest;

use super::scene::*;
use crate::effect::{Effect, Notice, ReadEffect};
use crate::event::Event;

fn owned(owners: &[Owner]) -> Event {
    let owners: DatapathOwners = owners.iter().copied().collect();
    Event::Topology(Box::new(TopologyFacts {
        owners: [Some(owners); 2],
        ..TopologyFacts::default()
    }))
}

#[test]
fn it_is_read_at_checks_every_half_minute() {
    let mut scene = Scene::new();
    assert!(scene.check().has("read topology"), "it was never read");
    assert!(scene.check().has("read topology"), "nor was that answered");
    scene.topology();
    for (at, due) in [
        (5_000, false),
        (29_999, false),
        (30_000, true),
        (30_001, true),
    ] {
        assert_eq!(scene.at(at).check().has("read topology"), due, "{at}");
    }
    scene.topology();
    assert!(!scene.at(60_000).check().has("read topology"));
    assert!(scene.at(60_001).check().has("read topology"));
}

#[test]
fn owners_that_were_just_read_are_not_read_twice() {
    let mut scene = Scene::new();
    scene.synced();
    let effects = scene.sound();
    let Effect::Read(ReadEffect::Topology(Some(owners))) = effects.0[0] else {
        panic!("{effects:?}");
    };
    assert_eq!(owners, kube_proxy());
    let asked = |effect: &Effect| matches!(effect, Effect::Read(ReadEffect::Topology(None)));
    assert!(scene.check().0.iter().any(asked));
}

#[test]
fn a_change_is_logged_once() {
    let mut scene = Scene::new();
    let notices = |effects: Effects| {
        let topology = |notice: &&Notice| matches!(notice, Notice::Topology(_));
        effects.notices().into_iter().filter(topology).count()
    };
    assert_eq!(notices(scene.topology()), 1);
    assert_eq!(notices(scene.topology()), 0);
    let effects = scene.feed(owned(&[Owner::Ipvs]));
    assert_eq!(
        effects.names(),
        ["log", "retarget"],
        "the next sample judges it"
    );
    let owners = [Owner::Ipvs].into_iter().collect();
    assert_eq!(scene.node.judge().topology.paths[0].owners, owners);
}

/// The log must show the owners at the start, and when kube-proxy's mode changes.
#[test]
fn the_owner_and_the_one_before_are_logged() {
    let mut scene = Scene::new();
    let mut change = |owners: &[Owner]| {
        let effects = scene.feed(owned(owners));
        let notices = effects.notices().into_iter();
        notices.map(ToString::to_string).collect::<Vec<_>>()
    };
    let (nftables, iptables) = ([Owner::KubeProxyNftables], [Owner::KubeProxyIptables]);
    assert_eq!(
        change(&nftables),
        [
            "the recognised datapath changed: IPv4: kube-proxy (nftables); IPv6: kube-proxy (nftables)"
        ]
    );
    assert_eq!(change(&nftables), [""; 0]);
    assert_eq!(
        change(&[]),
        [
            "the recognised datapath changed: IPv4: nobody that is known; before: kube-proxy (nftables); \
          IPv6: nobody that is known; before: kube-proxy (nftables)"
        ]
    );
    assert_eq!(
        change(&iptables),
        [
            "the recognised datapath changed: IPv4: kube-proxy (iptables); before: nobody that is known; \
          IPv6: kube-proxy (iptables); before: nobody that is known"
        ]
    );
}

#[rstest]
#[case::the_same(&[Owner::KubeProxyIptables], State::Proven, None)]
#[case::one_is_gone(&[], State::Proven, None)]
#[case::another_took_over(&[Owner::Cilium], State::Unknown, Some(Why::DatapathChanged))]
#[case::one_more(&[Owner::KubeProxyIptables, Owner::Ipvs], State::Unknown, Some(Why::DatapathChanged))]
#[case::a_monitor(&[Owner::KubeProxyIptables, Owner::Unknown], State::Proven, None)]
fn lanes_that_worked_under_another_owner_prove_nothing(
    #[case] owners: &[Owner],
    #[case] state: State,
    #[case] why: Option<Why>,
) {
    let mut scene = Scene::probed();
    scene.feed(owned(owners));
    let verdict = scene.later(250).idle().verdict_update().verdict.clone();
    assert_eq!((verdict.state, verdict.why), (state, why));
    scene.fault();
    let accused = scene.idle().state() == State::Broken;
    assert_eq!(accused, state == State::Proven);
}

/// A read of the owners failed while an unknown program is attached to the uplink.
#[test]
fn owners_that_could_not_be_read_did_not_leave() {
    let mut scene = Scene::probed();
    let unread = |owners| {
        let program = ForeignPrograms {
            links: vec![None],
            ..ForeignPrograms::default()
        };
        Event::Topology(Box::new(TopologyFacts {
            devices: vec![DeviceFacts {
                name: "eth0".to_owned(),
                role: Role::Uplink,
                xdp: false,
                hooks: Some([program, ForeignPrograms::default()]),
            }],
            owners: [owners; 2],
            ..TopologyFacts::default()
        }))
    };
    scene.feed(unread(None));
    assert_eq!(scene.later(250).idle().state(), State::Proven);
    scene.feed(unread(Some(DatapathOwners::default())));
    assert_eq!(
        scene.later(250).idle().state(),
        State::Unknown,
        "left alone"
    );
}

/// Cilium's device is there, beside kube-proxy's rules; `programs` are the known names of its programs.
fn cilium(programs: Option<[&str; 3]>) -> Event {
    let foreign_programs = |name: &str| ForeignPrograms {
        links: vec![Some(name.to_owned())],
        filters: vec![],
    };
    let device = |name: &str, role, hooks| DeviceFacts {
        name: name.to_owned(),
        role,
        xdp: false,
        hooks,
    };
    let egress =
        programs.map(|[egress, ..]| [ForeignPrograms::default(), foreign_programs(egress)]);
    let both = |name: Option<&str>| [name.map(foreign_programs), name.map(foreign_programs)];
    Event::Topology(Box::new(TopologyFacts {
        devices: vec![
            device("eth0", Role::Uplink, egress),
            device("cilium_host", Role::Cilium, None),
        ],
        connect: both(programs.map(|[_, connect, _]| connect)),
        bound: both(programs.map(|[_, _, bound]| bound)),
        owners: kube_proxy(),
        ..TopologyFacts::default()
    }))
}

/// Whether Cilium replaces kube-proxy follows from the topology, not from rules.
#[test]
fn a_replacement_of_kube_proxy_counts_as_an_owner() {
    let mut scene = Scene::probed();
    let programs = ["cil_to_netdev", "cil_sock4_connect", "cil_sock4_post_bind"];
    scene.feed(cilium(Some(programs)));
    let cilium = scene.node.judge().topology.cilium.unwrap();
    assert_eq!(cilium.replacement, Tristate::Yes);
    let verdict = scene.idle().verdict_update().verdict.clone();
    assert_eq!(verdict.why, Some(Why::DatapathChanged));
}

/// If Cilium may have replaced kube-proxy, probes from outside may not take the users' path.
#[test]
fn probes_that_take_another_way_accuse_nobody() {
    let mut scene = Scene::probed();
    scene.feed(cilium(None));
    assert!(!scene.node.judge().topology.has_applicable_probes());
    scene.fault();
    assert_eq!(
        scene.idle().state(),
        State::Proven,
        "by the node's own path"
    );
}
