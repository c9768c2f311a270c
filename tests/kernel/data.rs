//! The compiled programs follow the data of connections, and ignore frames for other hosts.

use node_tests::packet::{self, Packet, flag};
use pathproof_wire::evidence::state;
use pathproof_wire::service::Family::{self, V4, V6};
use pathproof_wire::transition::is_data_lost;
use rstest::rstest;

use crate::stage::{SERVICE, Stage, at, client, frontend, on_stage};

const ISN: u32 = 0x00c0_ffee;
const PUSH: u8 = flag::ACK | flag::PSH;

fn make(stage: &mut Stage, family: Family, endpoint: &str) {
    let (client, frontend, endpoint) = (client(family), frontend(family), at(endpoint));
    stage.put_endpoint(SERVICE, endpoint, 0);
    stage.comes(&packet::syn(client, frontend, ISN), stage.at.client);
    stage.goes(&packet::syn(client, endpoint, ISN), stage.at.pods);
    stage.comes(&packet::syn_ack(endpoint, client, ISN), stage.at.pods);
    stage.goes(&packet::syn_ack(frontend, client, ISN), stage.at.client);
}

fn state_of(stage: &Stage, family: Family) -> u32 {
    let found = stage.connection(ISN, family).expect("a connection");
    found.state
}

/// The client's first three bytes of data, sent to the frontend or the endpoint.
fn request(family: Family, to: std::net::SocketAddr) -> Packet {
    packet::tcp(client(family), to, PUSH, ISN + 1, 0x5eee, b"abc")
}

#[rstest]
#[case(V4, "10.244.1.9:8080")]
#[case(V6, "[fd00:10:244:1::9]:8080")]
fn data_is_followed_to_its_answer(#[case] family: Family, #[case] endpoint: &str) {
    on_stage(&[], |stage| {
        make(stage, family, endpoint);
        let answer = packet::tcp(
            frontend(family),
            client(family),
            PUSH,
            0x5eee,
            ISN + 4,
            b"d",
        );
        stage.comes(&request(family, frontend(family)), stage.at.client);
        stage.goes(&request(family, at(endpoint)), stage.at.pods);
        stage.goes(&answer, stage.at.client);
        let all = state::DATA | state::DATA_FORWARDED | state::DATA_ANSWERED;
        assert_eq!(state_of(stage, family) & all, all);
        assert!(!is_data_lost(state_of(stage, family)));
    });
}

#[rstest]
#[case(V4, "10.244.1.9:8080")]
#[case(V6, "[fd00:10:244:1::9]:8080")]
fn data_that_comes_again_and_never_leaves_is_lost(#[case] family: Family, #[case] endpoint: &str) {
    on_stage(&[], |stage| {
        make(stage, family, endpoint);
        for is_lost in [false, false, true] {
            stage.comes(&request(family, frontend(family)), stage.at.client);
            assert_eq!(is_data_lost(state_of(stage, family)), is_lost);
        }
    });
}

/// A switch that floods may deliver frames for other hosts to the uplink. IP drops them, so the observer must
/// not follow them.
#[test]
fn a_frame_for_another_host_is_not_followed() {
    const STRANGER: [u8; 6] = [2, 0, 0, 0, 0, 9];
    on_stage(&[], |stage| {
        let syn = packet::syn(client(V4), frontend(V4), ISN);
        let stranger = syn.clone().between(([2, 0, 0, 0, 0, 1], STRANGER));
        stage.comes(&stranger, stage.at.uplink);
        assert_eq!(stage.connection(ISN, V4), None);
        stage.comes(&syn, stage.at.uplink);
        assert!(stage.connection(ISN, V4).is_some());
    });
}
