//! Lost and forwarded data of connections, and frames for other hosts, over ordinary collections.

use collections::Node;
use packet::flag;
use pathproof_wire::evidence::state;
use pathproof_wire::service::Family;
use pathproof_wire::transition::is_data_lost;
use rstest::rstest;
use scenario::{Device, ISN, Stage, Step};

#[path = "parts/collections.rs"]
pub mod collections;
#[path = "../../../tests/src/packet.rs"]
pub mod packet;
#[path = "parts/scenario.rs"]
pub mod scenario;

/// The client's first data at ingress and egress, and the data that acknowledges it.
struct Data {
    comes: Step,
    leaves: Step,
    answered: Step,
}

fn data_of(stage: &Stage) -> Data {
    let payload = [7; 30];
    let push = flag::ACK | flag::PSH;
    let request = |from, to| packet::tcp(from, to, push, ISN.wrapping_add(1), 0x5eee, &payload);
    let answer = packet::tcp(
        stage.web,
        stage.pod,
        push,
        0x5eee,
        ISN.wrapping_add(31),
        &payload,
    );
    Data {
        comes: Step::In(Device::Client, request(stage.pod, stage.web)),
        leaves: Step::Out(Device::Pods, request(stage.pod, stage.here)),
        answered: Step::Out(Device::Client, answer),
    }
}

fn made(node: &Node) {
    let stage = node.stage;
    for step in [
        Step::In(Device::Client, packet::syn(stage.pod, stage.web, ISN)),
        Step::Out(Device::Pods, packet::syn(stage.pod, stage.here, ISN)),
        Step::In(Device::Pods, packet::syn_ack(stage.here, stage.pod, ISN)),
        Step::Out(Device::Client, packet::syn_ack(stage.web, stage.pod, ISN)),
    ] {
        node.take(&step);
    }
}

/// Data that arrives three times and never leaves was not forwarded.
#[rstest]
fn data_is_lost_if_it_comes_again_and_never_leaves(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(1, 2, 3, 4)] times: usize,
    #[values(false, true)] is_forwarded: bool,
) {
    let node = Node::new(family);
    let data = data_of(&node.stage);
    made(&node);
    for _ in 0..times {
        node.take(&data.comes);
    }
    if is_forwarded {
        node.take(&data.leaves);
    }
    let state = node.state().expect("it is followed");
    assert_eq!(is_data_lost(state), times >= 3 && !is_forwarded);
    assert_eq!(state & state::DATA_ANSWERED, 0);
    assert!(node.seen().failed.is_empty(), "it was answered");
}

#[rstest]
fn data_that_is_acknowledged_by_data_went_both_ways(
    #[values(Family::V4, Family::V6)] family: Family,
) {
    let node = Node::new(family);
    let data = data_of(&node.stage);
    made(&node);
    node.take(&data.answered);
    assert_eq!(
        node.state().map(|state| state & state::DATA_ANSWERED),
        Some(0),
        "there was no data"
    );
    for step in [&data.comes, &data.leaves, &data.answered] {
        node.take(step);
    }
    let state = node.state().expect("it is followed");
    let all = state::DATA | state::DATA_FORWARDED | state::DATA_ANSWERED;
    assert_eq!(state & all, all);
    assert_eq!(state & state::DATA_AGAIN, 0);
}

#[test]
fn data_before_the_answer_and_of_other_connections_is_ignored() {
    let node = Node::new(Family::V4);
    let stage = node.stage;
    let data = data_of(&stage);
    node.take(&Step::In(
        Device::Client,
        packet::syn(stage.pod, stage.web, ISN),
    ));
    node.take(&data.comes);
    assert_eq!(node.state().map(|state| state & state::DATA), Some(0));
    let node = Node::new(Family::V4);
    made(&node);
    let push = flag::ACK | flag::PSH;
    let strange = packet::tcp(stage.pod2, stage.web, push, ISN.wrapping_add(1), 1, &[1]);
    node.take(&Step::In(Device::Client, strange));
    let elsewhere = packet::tcp(
        stage.pod,
        stage.stranger,
        push,
        ISN.wrapping_add(1),
        1,
        &[1],
    );
    node.take(&Step::Out(Device::Pods, elsewhere));
    let bits = state::DATA | state::DATA_FORWARDED;
    assert_eq!(node.state().map(|state| state & bits), Some(0));
}

/// IP drops a frame for another host, but a bridge port forwards it.
#[rstest]
#[case::by_an_uplink(Device::Uplink, true, false)]
#[case::by_a_port_of_a_bridge(Device::Client, true, true)]
#[case::for_this_host(Device::Uplink, false, true)]
fn a_frame_for_another_host_is_not_followed(
    #[case] device: Device,
    #[case] is_for_other_host: bool,
    #[case] is_followed: bool,
) {
    let node = Node::new(Family::V4);
    node.is_for_other_host.set(is_for_other_host);
    let stage = node.stage;
    node.take(&Step::In(
        device,
        packet::syn(stage.outside, stage.web, ISN),
    ));
    assert_eq!(node.state().is_some(), is_followed);
}
