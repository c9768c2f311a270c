//! The sentinel's probes on a real kernel: the trace of each path during each fault.
//! `pathproof_witness::probes` decides what a trace means. These tests measure no time.

use pathproof_facts::trace::{Control, ProbePath, ProbeSightings, ProbeTrace, Transport};
use pathproof_wire::probe::Stage::{Arrived, Collected, Echoed, Returned, Translated};

use crate::sentinel_node::{ECHO_PORT, Node, RULES, first, is_sound, passed};

fn of_cluster_ip(trace: &ProbeTrace) -> bool {
    trace.lane.path != ProbePath::NodePort
}

#[test]
fn every_path_of_a_sound_node_passes_and_leaves_nothing_open() {
    let mut node = Node::new();
    for trace in node.wait("sound", is_sound) {
        let all = match trace.lane.path {
            ProbePath::Host => vec![Translated, Echoed, Returned, Collected],
            _ => vec![Arrived, Translated, Echoed, Returned, Collected],
        };
        let whole = [&trace.handshake, &trace.data].map(passed);
        let expected = match (trace.lane.transport, trace.lane.path) {
            (Transport::Udp, _) => [vec![], all],
            (Transport::Tcp, _) => [all.clone(), all],
        };
        assert_eq!(whole, expected, "{trace:#?}");
        assert_eq!(trace.generation, Some(ECHO_PORT));
        let saw = trace.echo_saw.expect("a source");
        let masqueraded = matches!(trace.lane.path, ProbePath::OffCluster | ProbePath::NodePort);
        assert_eq!(saw.ip() != trace.client.ip(), masqueraded, "{trace:#?}");
    }
    for _ in 0..4 {
        node.wait("sound again", is_sound);
    }
    node.stop();
}

/// Injects one fault after the other, and repairs each before the next.
#[test]
fn each_fault_shows_in_the_traces_and_leaves_nothing_open() {
    let mut node = Node::new();
    let faults: [fn(&mut Node); 6] = [
        a_flushed_chain_leaks_and_refuses,
        without_forwarding_probes_arrive_and_go_no_further,
        data_that_is_dropped_after_the_handshake_shows,
        a_rewritten_rule_is_misrouted,
        dropped_in_forward_is_lost_and_leaves_nothing_behind,
        // Last, because the test does not repair this fault.
        without_a_route_to_the_echo_probes_leave_by_the_uplink,
    ];
    for fault in faults {
        node.wait("sound", is_sound);
        fault(&mut node);
        node.nft(&format!("delete table inet proxy\n{RULES}"));
    }
    node.stop();
}

fn a_flushed_chain_leaks_and_refuses(node: &mut Node) {
    node.nft("flush chain inet proxy services");
    let traces = node.wait("flushed", |trace| {
        let seen = trace.sightings;
        trace.control == Control::Passed
            && match (of_cluster_ip(trace), trace.lane.transport) {
                (true, Transport::Tcp) => seen.leaked,
                (false, Transport::Tcp) => seen.refused,
                (false, Transport::Udp) => seen.unreachable,
                (true, Transport::Udp) => first(trace) == [Arrived],
            }
    });
    assert!(
        traces
            .iter()
            .all(|trace| trace.data[Translated as usize].is_none())
    );
}

fn without_forwarding_probes_arrive_and_go_no_further(node: &mut Node) {
    node.world.set_forwarding(false).expect("forwarding off");
    node.wait("forwarding off", |trace| match trace.lane.path {
        // The host path works without forwarding (finding 4).
        ProbePath::Host => is_sound(trace),
        _ => first(trace) == [Arrived] && trace.control == Control::Passed,
    });
    node.world.set_forwarding(true).expect("forwarding on");
}

fn data_that_is_dropped_after_the_handshake_shows(node: &mut Node) {
    node.nft("add rule inet proxy forward tcp flags & psh == psh drop");
    node.nft("add rule inet proxy own tcp flags & psh == psh drop");
    let traces = node.wait("data dropped", |trace| match trace.lane.transport {
        Transport::Udp => is_sound(trace),
        Transport::Tcp => {
            trace.handshake[Collected as usize].is_some()
                && trace.data[Translated as usize].is_none()
        }
    });
    for trace in traces.iter().filter(|t| t.lane.transport == Transport::Tcp) {
        assert_eq!(trace.control, Control::Passed);
        assert_eq!(trace.sightings, ProbeSightings::default());
    }
}

fn a_rewritten_rule_is_misrouted(node: &mut Node) {
    let rules = RULES
        .replace("198.18.0.2:9001", "192.0.2.20:9001")
        .replace("[2001:2::2]:9001", "[2001:db8:0:1::20]:9001");
    node.nft(&format!("delete table inet proxy\n{rules}"));
    node.wait("rewritten", |trace| {
        trace.control == Control::Passed
            && first(trace).last() != Some(&Collected)
            && match (trace.lane.transport, trace.lane.path) {
                (Transport::Udp, _) => true,
                // The observer follows arriving connections only, and a SYN of the host does not arrive.
                (_, ProbePath::Host) => true,
                (Transport::Tcp, _) => trace.sightings.misrouted,
            }
    });
}

fn dropped_in_forward_is_lost_and_leaves_nothing_behind(node: &mut Node) {
    node.nft("add rule inet proxy forward drop");
    node.wait("dropped", |trace| match trace.lane.path {
        ProbePath::Host => is_sound(trace),
        _ => first(trace) == [Arrived] && trace.sightings == ProbeSightings::default(),
    });
}

fn without_a_route_to_the_echo_probes_leave_by_the_uplink(node: &mut Node) {
    node.world
        .node
        .ip("route del 198.18.0.2/32 dev pathproof-s0")
        .expect("ip");
    node.world
        .node
        .ip("-6 route del 2001:2::2/128 dev pathproof-s0")
        .expect("ip");
    let traces = node.wait("route gone", |trace| {
        trace.control == Control::Passed && first(trace).last() != Some(&Collected)
    });
    for trace in traces {
        // A SYN to a local endpoint that leaves by the uplink is misrouted (finding 10).
        let injected_tcp =
            trace.lane.transport == Transport::Tcp && trace.lane.path != ProbePath::Host;
        assert_eq!(trace.sightings.misrouted, injected_tcp, "{trace:#?}");
    }
}

#[test]
fn devices_taken_down_fail_their_control_or_cannot_be_written_to() {
    let mut node = Node::new();
    node.wait("sound", is_sound);
    node.world
        .node
        .ip("link set pathproof-s1 down")
        .expect("ip");
    node.wait("server pair down", |trace| trace.control == Control::Failed);
    node.world.node.ip("link set pathproof-s1 up").expect("ip");
    node.world
        .node
        .ip("link set pathproof-c1 down")
        .expect("ip");
    node.wait("client pair down", |trace| match trace.lane.path {
        ProbePath::Host => true,
        _ => trace.unsent.is_some(),
    });
}
