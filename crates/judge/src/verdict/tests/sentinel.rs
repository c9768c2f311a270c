//! Faults that the sentinel alone finds and their innocent counterparts, on an idle node and beside real
//! connections.

use pathproof_facts::cause::{Failure, State, Why};
use pathproof_facts::owners::Owner;
use pathproof_facts::trace::{Lane, ProbePath, Transport};
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::probes::SentinelView;
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::verdict::{LaneState, Verdict};

pub(super) fn only(path: ProbePath, fate: Fate) -> impl Fn(Lane) -> Fate {
    move |lane| if lane.path == path { fate } else { Fate::Pass }
}

#[test]
fn an_idle_node_is_proven_by_its_probes() {
    let world = World::probed(&USUAL);
    let verdict = world.verdict(2_300);
    assert_eq!(
        told(&verdict),
        (
            State::Proven,
            "",
            "IPv4 cluster IPs: a sentinel probe passed 299 ms ago"
        )
    );
    assert_eq!(
        verdict.families[0].last_proof,
        Some(pathproof_facts::time::Mono(ms(2_000).0 + 80_000))
    );
    assert_eq!(world.verdict(4_000).state, State::Proven);
}

/// A VIP moved to another node, but the Node object still lists it.
#[test]
fn an_address_that_the_node_lost_accuses_nobody() {
    let mut world = World::faulty(6_000, only(ProbePath::NodePort, Fate::Away));
    assert_eq!(world.verdict(6_200).state, State::Proven);
    // The rules are removed too.
    let fate = |lane: Lane| match lane.path {
        ProbePath::NodePort => Fate::Away,
        _ => Fate::Leak,
    };
    world.rounds(6_250, 7_500, &USUAL, fate);
    assert_eq!(world.verdict(7_600).state, State::Broken);
}

/// Connections to an endpoint that is the node itself are delivered without forwarding.
#[test]
fn connections_to_the_node_itself_do_not_refute_that_it_forwards_nothing() {
    let mut world = World::faulty(3_500, |_| Fate::ForwardingOff);
    for class in [SourceClass::Pod, SourceClass::External] {
        world.prove(WEB, class, 3_700);
    }
    world.rounds(3_750, 6_000, &USUAL, |_| Fate::ForwardingOff);
    assert_eq!(world.verdict(6_200).state, State::Broken);
}

#[rstest]
#[case::chain_flushed(
    outside(Fate::Leak, Fate::Leak),
    "leaked",
    "IPv4 cluster IPs: the last 4 probes left the node untranslated (leaked): the Service's rules \
     are missing or empty; IPv4 node ports too (refused)"
)]
#[case::forwarding_off(
    outside(Fate::ForwardingOff, Fate::Pass),
    "forwarding_off",
    "IPv4 cluster IPs: the last 4 probes arrived and were not forwarded (forwarding off): \
     net.ipv4.ip_forward is 0; IPv4 node ports too (forwarding off)"
)]
#[case::endpoint_rewritten(
    outside(Fate::Misroute, Fate::Misroute),
    "misrouted",
    "IPv4 cluster IPs: the last 4 probes were sent to an address that is no endpoint (misrouted): \
     the rule for the endpoint is wrong; IPv4 node ports too (misrouted)"
)]
#[case::data_dropped(
    outside(Fate::Mute, Fate::Pass),
    "no_data",
    "IPv4 cluster IPs: the last 4 probes connected, but no data came back (no data): packets of \
     new connections are dropped after the handshake, perhaps as INVALID; IPv4 node ports too \
     (no data)"
)]
#[case::masquerade_gone(
    outside(Fate::Unmasqueraded, Fate::Pass),
    "not_masqueraded",
    "IPv4 node ports: the last 4 probes kept the client's own address (not masqueraded): the masquerade rule is \
     missing"
)]
fn four_unambiguous_failures_break_an_idle_node(
    #[case] fate: impl Fn(Lane) -> Fate,
    #[case] cause: &str,
    #[case] reason: &str,
) {
    let early = World::faulty(2_750, &fate);
    assert_eq!(
        early.verdict(2_960).state,
        State::Suspect,
        "three are not enough"
    );
    // The fourth probe was sent 750 ms after the first, and abandoned after 200 ms.
    let mut world = World::faulty(3_000, fate);
    let verdict = world.verdict(3_210);
    assert_eq!(told(&verdict), (State::Broken, cause, reason));
    world.idle(3_450, 13_000);
    assert_eq!(
        world.verdict(13_000).state,
        State::Broken,
        "the state holds until a probe passes"
    );
}

#[test]
fn every_path_must_pass_again() {
    let mut world = World::faulty(6_000, |_| Fate::Mute);
    world.rounds(6_250, 6_250, &USUAL, only(ProbePath::NodePort, Fate::Mute));
    assert_eq!(world.verdict(6_450).state, State::Broken);
}

#[rstest]
#[case::forward_drop(Fate::Drop, "lost")]
#[case::forward_reject(Fate::Reject, "refused")]
#[case::answer_dropped(Fate::LoseAnswer, "answer_lost")]
fn failures_that_a_filter_explains_are_suspect(#[case] fate: Fate, #[case] cause: &str) {
    let mut world = World::faulty(30_000, outside(fate, Fate::Pass));
    let verdict = world.verdict(30_200);
    assert_eq!((verdict.state, told(&verdict).1), (State::Suspect, cause));
    ends(
        &verdict,
        "not confirmed: a filter on the sentinel's own addresses would look the same, and no real \
         connection failed",
    );
    says(&verdict, "198.18.0.1");
    // The first real connection that is lost as well decides.
    world.lose(30_100);
    world.rounds(30_250, 31_250, &USUAL, outside(fate, Fate::Pass));
    let verdict = world.verdict(31_450);
    assert_eq!((verdict.state, told(&verdict).1), (State::Broken, cause));
    assert!(verdict.reason().contains(" failed too in the last "));
}

#[test]
fn a_connection_lost_before_the_probes_decides_nothing() {
    let mut world = World::probed(&USUAL);
    // These connections arrived before the filter, and their loss is noticed later.
    world.lose(1_500);
    world.rounds(2_250, 6_000, &USUAL, outside(Fate::Drop, Fate::Pass));
    assert_eq!(world.verdict(6_200).state, State::Suspect);
}

#[test]
fn a_loss_beside_a_filter_is_outweighed_by_any_connection_that_gets_through() {
    let mut world = World::faulty(6_000, outside(Fate::Drop, Fate::Pass));
    world
        .lose(5_000)
        .rounds(6_250, 6_500, &USUAL, outside(Fate::Drop, Fate::Pass));
    assert_eq!(world.verdict(6_700).state, State::Broken);
    // A connection from outside does not prove cluster IPs, but it shows that not everything is dropped.
    world.prove(WEB, SourceClass::External, 6_720);
    world.rounds(6_750, 7_000, &USUAL, outside(Fate::Drop, Fate::Pass));
    assert_eq!(world.verdict(7_200).state, State::Degraded);
}

#[rstest]
#[case::pod_speaks_for_cluster_ips(SourceClass::Pod, ProbePath::OffCluster, State::Degraded)]
#[case::outside_speaks_for_node_ports(SourceClass::External, ProbePath::NodePort, State::Degraded)]
#[case::outside_does_not_for_cluster_ips(
    SourceClass::External,
    ProbePath::OffCluster,
    State::Broken
)]
#[case::pods_do_not_for_node_ports(SourceClass::Pod, ProbePath::NodePort, State::Broken)]
#[case::the_node_itself_does_for_neither(SourceClass::Host, ProbePath::OffCluster, State::Broken)]
fn a_real_connection_speaks_for_its_own_path(
    #[case] class: SourceClass,
    #[case] path: ProbePath,
    #[case] expected: State,
) {
    let fate = match path {
        ProbePath::NodePort => Fate::Unmasqueraded,
        _ => Fate::Leak,
    };
    let mut world = World::faulty(3_500, only(path, fate));
    world.prove(WEB, class, 3_700);
    world.rounds(3_750, 6_000, &USUAL, only(path, fate));
    assert_eq!(world.verdict(6_200).state, expected);
}

#[test]
fn an_answer_under_way_when_the_fault_came_contradicts_nothing() {
    let mut world = World::faulty(2_500, |_| Fate::Leak);
    world.prove(WEB, SourceClass::Pod, 2_720);
    world.rounds(
        2_750,
        3_250,
        &USUAL,
        only(ProbePath::OffCluster, Fate::Leak),
    );
    assert_eq!(world.verdict(3_450).state, State::Suspect, "three failures");
    world.rounds(
        3_500,
        3_500,
        &USUAL,
        only(ProbePath::OffCluster, Fate::Leak),
    );
    assert_eq!(world.verdict(3_700).state, State::Broken);
}

#[test]
fn a_passing_pod_address_shows_that_the_range_is_filtered() {
    let paths = [ProbePath::Pod, ProbePath::OffCluster];
    let mut world = World::probed(&paths);
    world.rounds(
        2_250,
        5_000,
        &paths,
        only(ProbePath::OffCluster, Fate::Drop),
    );
    let verdict = world.verdict(5_200);
    assert_eq!((verdict.state, told(&verdict).1), (State::Degraded, "lost"));
    says(&verdict, "only the sentinel's address range is filtered");
    // A failure that no filter explains still accuses.
    world.rounds(
        5_250,
        6_500,
        &paths,
        only(ProbePath::OffCluster, Fate::Leak),
    );
    assert_eq!(world.verdict(6_700).state, State::Broken);
}

#[test]
fn the_host_path_alone_is_degraded() {
    let world = World::faulty(5_000, only(ProbePath::Host, Fate::Leak));
    let verdict = world.verdict(5_200);
    assert_eq!(
        told(&verdict),
        (
            State::Degraded,
            "leaked",
            "IPv4 cluster IPs from the node itself: the last 12 probes left the node untranslated \
             (leaked): the Service's rules are missing or empty; probes from outside the node pass"
        )
    );
}

#[test]
fn where_only_the_host_path_exists_it_counts() {
    let mut world = World::probed(&[ProbePath::Host]);
    assert_eq!(world.verdict(2_300).state, State::Proven);
    world.rounds(2_250, 3_000, &[ProbePath::Host], |_| Fate::Leak);
    assert_eq!(world.verdict(3_200).state, State::Broken);
}

/// A filter on the node's outgoing packets refuses with a RST. Missing rules cause a RST only with IPVS.
#[rstest]
#[case::of_a_filter(None, State::Suspect)]
#[case::of_the_node_with_ipvs(Some(Owner::Ipvs), State::Broken)]
fn a_refusal_on_the_host_path(#[case] owner: Option<Owner>, #[case] expected: State) {
    let mut world = World::probed(&[ProbePath::Host]);
    if let Some(owner) = owner {
        let sentinel = &mut world.ledger.sentinel;
        sentinel.owner_seen(Family::V4, owners(&[owner]), ms(2_100));
    }
    world.rounds(2_250, 13_000, &[ProbePath::Host], |_| Fate::Pass);
    world.rounds(13_250, 17_000, &[ProbePath::Host], |_| Fate::Refuse);
    assert_eq!(world.verdict(17_200).state, expected);
}

#[test]
fn udp_alone_is_degraded_and_with_tcp_it_is_broken() {
    let udp = |lane: Lane| match lane.transport {
        Transport::Udp => Fate::Leak,
        Transport::Tcp => Fate::Pass,
    };
    let mut world = World::faulty(5_000, udp);
    let verdict = world.verdict(5_200);
    assert_eq!(
        (verdict.state, told(&verdict).1),
        (State::Degraded, "leaked")
    );
    assert!(
        verdict.reason().starts_with("IPv4 cluster IPs (UDP): "),
        "{}",
        verdict.reason()
    );
    ends(&verdict, "; TCP probes pass");
    world.rounds(5_250, 6_500, &USUAL, |_| Fate::Leak);
    assert_eq!(world.verdict(6_700).state, State::Broken);
}

#[test]
fn connections_to_the_sentinel_itself_are_no_evidence() {
    let mut world = World::new();
    for at in (250..=4_000).step_by(250) {
        world
            .fail(SENTINEL, SourceClass::Pod, 1, Failure::Leaked, at - 10)
            .fail(SENTINEL, SourceClass::Pod, 2, Failure::Leaked, at - 10)
            .look(at);
    }
    let verdict = world.verdict(4_000);
    assert_eq!(unknown(&verdict), Some(Why::Idle));
    assert!(verdict.services.is_empty());
    world.count(
        SENTINEL,
        SourceClass::Pod,
        &[(pathproof_wire::evidence::Outcome::Proven, 1)],
        0,
    );
    world.look(4_250);
    assert_eq!(world.verdict(4_250).state, State::Unknown);
}

#[test]
fn lanes_are_shown_as_they_look() {
    let mut world = World::faulty(3_000, only(ProbePath::NodePort, Fate::Refuse));
    let pod = lane(ProbePath::Pod, Transport::Tcp);
    world.probe(pod, Fate::Drop, 3_100);
    // A void probe does not hide that no earlier probe worked.
    world.probe(pod, Fate::ControlFails, 3_200);
    world.probe(
        lane(ProbePath::OffCluster, Transport::Tcp),
        Fate::ControlFails,
        3_100,
    );
    let verdict = world.verdict(3_310);
    let lanes = &verdict.families[0].lanes;
    let shown = |path, transport| {
        let found = lanes
            .iter()
            .find(|lane| lane.path == path && lane.transport == transport);
        let lane = found.unwrap();
        (lane.state, lane.armed, lane.failures)
    };
    assert_eq!(
        shown(ProbePath::Pod, Transport::Tcp),
        (LaneState::NeverWorked, false, 1)
    );
    assert_eq!(
        shown(ProbePath::OffCluster, Transport::Tcp),
        (LaneState::Void, true, 0)
    );
    assert_eq!(
        shown(ProbePath::OffCluster, Transport::Udp),
        (LaneState::Passing, true, 0)
    );
    assert_eq!(
        shown(ProbePath::NodePort, Transport::Tcp),
        (LaneState::Failing, true, 4)
    );
    let json = serde_json::to_value(&verdict).unwrap();
    let lane = &json["families"][0]["lanes"][2];
    assert_eq!(lane["path"], "node_port");
    assert_eq!(lane["transport"], "tcp");
    assert_eq!(lane["state"], "failing");
    assert_eq!(lane["cause"], "refused");
    assert_eq!(lane["delays"]["arrived"], 10_000);
    let back: crate::verdict::Verdict = serde_json::from_value(json).unwrap();
    assert_eq!(back, verdict);
    let is_off = |verdict: &Verdict| {
        let mut lanes = verdict.families.iter().flat_map(|family| &family.lanes);
        lanes.all(|lane| lane.state == LaneState::Off)
    };
    assert!(is_off(&world.verdict(40_000)), "too long ago");
    let altered = SentinelView {
        altered: Some("its selector is set".to_owned()),
        ..sentinel_view()
    };
    world.ledger.sentinel.view_changed(ms(3_400), altered);
    assert!(is_off(&world.verdict(3_500)));
}
