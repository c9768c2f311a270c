use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fake::{Bench, ECHO_ISN, HOST_ISN, Path, Seen, What, World, everything, ip, little};
use pathproof_facts::trace::{Control, Lane, ProbePath, ProbeSightings, Transport};
use pathproof_wire::evidence::state;
use pathproof_wire::probe::{ProbeEvent, ProbeKey, Stage};
use pathproof_wire::service::Family;
use rstest::rstest;
use tokio::sync::mpsc::unbounded_channel;

use super::engine::{IDLE, SUSPECT};
use super::tools::{TIMEOUT, random};
use super::wire::Side;
use super::*;

mod edges;
mod fake;
mod haste;

const SECOND: Duration = Duration::from_secs(1);

fn of(traces: &[ProbeTrace], path: ProbePath) -> Vec<&ProbeTrace> {
    traces.iter().filter(|t| t.lane.path == path).collect()
}

fn by_lane(traces: &[ProbeTrace]) -> BTreeMap<Lane, Vec<&ProbeTrace>> {
    let mut lanes: BTreeMap<Lane, Vec<&ProbeTrace>> = BTreeMap::new();
    for trace in traces {
        lanes.entry(trace.lane).or_default().push(trace);
    }
    lanes
}

/// Frames of the first injected TCP probe.
fn first_probe(frames: &[Seen]) -> Vec<Seen> {
    let first = frames.iter().find(|f| f.side == Side::Client).unwrap();
    let ends = (first.from, first.to);
    let of_it = frames.iter().filter(|f| (f.from, f.to) == ends);
    of_it.copied().collect()
}

fn whats(frames: &[Seen]) -> Vec<What> {
    frames.iter().map(|frame| frame.what).collect()
}

// Probes from outside the node are wasted if nothing translates them.
#[test]
fn lanes_from_outside_are_rare_if_nothing_translates_them() {
    let mut bench = Bench::new(Path::Sound);
    let mut targets = everything();
    for family in &mut targets {
        family.outside_rests = true;
    }
    bench.engine.retarget(&targets);
    bench.run(70 * SECOND);
    for (lane, traces) in by_lane(&bench.traces()) {
        match lane.path {
            ProbePath::Host => assert!(traces.len() > 140, "{lane:?}: {}", traces.len()),
            _ => assert_eq!(traces.len(), 3, "{lane:?}"),
        }
    }
    // From now on, probes from outside take the path of real connections.
    bench.engine.retarget(&everything());
    bench.run(5 * SECOND);
    for (lane, traces) in by_lane(&bench.traces()) {
        assert!(traces.len() >= 10, "{lane:?}: {}", traces.len());
    }
}

#[test]
fn every_lane_is_probed_a_few_times_a_second_with_jitter() {
    let mut bench = Bench::new(Path::Sound);
    bench.engine.retarget(&everything());
    bench.run(60 * SECOND);
    let traces = bench.traces();
    let lanes = by_lane(&traces);
    // Three paths with two transports, and the host's with one, in two families.
    assert_eq!(lanes.len(), 14);
    for (lane, traces) in lanes {
        assert!(
            (125..=160).contains(&traces.len()),
            "{lane:?}: {}",
            traces.len()
        );
        let gaps: HashSet<Duration> = traces
            .windows(2)
            .map(|pair| pair[1].due.since(pair[0].due))
            .collect();
        assert!(
            gaps.iter()
                .all(|gap| (SUSPECT.start..IDLE.end).contains(gap))
        );
        assert!(gaps.len() > 50, "{lane:?}: no jitter");
    }
    let sound = |trace: &ProbeTrace| {
        let last = Stage::Collected as usize;
        let udp = trace.lane.transport == Transport::Udp;
        trace.data[last].is_some()
            && trace.handshake[last].is_some() != udp
            && trace.control == Control::Passed
            && trace.unsent.is_none()
            && trace.sightings == ProbeSightings::default()
    };
    assert!(traces.iter().all(sound));
    // Rounds of both families share one wake-up, whatever they send, except at the start.
    let rounds = traces.len() / 14;
    assert!(bench.turns <= rounds + 8, "{} for {rounds}", bench.turns);
    assert!(bench.world.lock().probes.is_empty());
    assert!(bench.world.lock().cookies.is_empty());
}

#[test]
fn ports_and_tokens_are_not_used_again_soon() {
    let mut bench = Bench::new(Path::Sound);
    bench.engine.retarget(&everything());
    bench.run(60 * SECOND);
    let mut ends = HashSet::new();
    let mut tokens = HashSet::new();
    for frame in bench.frames() {
        if matches!(frame.what, What::Syn | What::Datagram) {
            let port = frame.from.port();
            assert!(ends.insert((frame.from, frame.what)), "{port} twice");
        }
        if frame.what == What::Syn {
            tokens.insert(frame.sequence);
        }
    }
    assert!(tokens.len() > 1_000, "{}", tokens.len());
}

#[test]
fn the_control_goes_first_and_past_the_datapath() {
    let mut bench = Bench::new(Path::Sound);
    bench.engine.retarget(&little());
    bench.run(SECOND);
    let frames = bench.frames();
    let rounds: Vec<&[Seen]> = frames.chunks(4).collect();
    assert!(rounds.len() >= 3);
    for round in rounds {
        let sides = round.iter().map(|f| f.side).collect::<Vec<_>>();
        assert_eq!(
            sides,
            [Side::Server, Side::Client, Side::Client, Side::Client]
        );
        assert_eq!(
            whats(round),
            [What::Syn, What::Syn, What::Data, What::Reset]
        );
        assert_eq!(round[0].to, "198.18.0.2:9000".parse().unwrap());
        assert_eq!(round[1].to, "10.96.0.10:7".parse().unwrap());
        assert_eq!(round[0].at, round[1].at);
    }
}

// Finding 6: the reset follows the last byte sent and the last byte received.
#[rstest]
#[case(Path::Sound, &[What::Syn, What::Data, What::Reset], 13, Some(13))]
#[case(Path::HandshakeOnly, &[What::Syn, What::Data, What::Reset], 13, Some(1))]
#[case(Path::Silent, &[What::Syn, What::Reset], 1, None)]
#[case(Path::Refusing, &[What::Syn], 0, None)]
#[case(Path::Unreachable, &[What::Syn], 0, None)]
fn a_reset_is_exact(
    #[case] path: Path,
    #[case] sent: &[What],
    #[case] sequence: u32,
    #[case] acknowledged: Option<u32>,
) {
    let mut bench = Bench::new(path);
    bench.engine.retarget(&little());
    bench.run(SECOND);
    let probe = first_probe(&bench.frames());
    assert_eq!(whats(&probe), sent);
    let token = probe[0].sequence;
    let last = probe.last().unwrap();
    assert_eq!(last.sequence, token.wrapping_add(sequence));
    assert_eq!(
        last.acknowledged,
        acknowledged.map(|n| ECHO_ISN.wrapping_add(n))
    );
    if let [_, data, _] = probe[..] {
        assert_eq!(data.sequence, token.wrapping_add(1));
        assert_eq!(data.acknowledged, Some(ECHO_ISN.wrapping_add(1)));
    }
}

#[rstest]
fn unanswered_probes_end_at_their_timeout(#[values(Path::Silent, Path::HandshakeOnly)] path: Path) {
    let mut bench = Bench::new(path);
    bench.engine.retarget(&everything());
    bench.run(10 * SECOND);
    let traces = bench.traces();
    for (lane, traces) in by_lane(&traces) {
        assert!(traces.len() > 20, "{lane:?}: {}", traces.len());
        for trace in &traces {
            assert_eq!(trace.ended.since(trace.sent), TIMEOUT, "{lane:?}");
            assert_eq!(trace.data[Stage::Collected as usize], None);
            assert_eq!(trace.control, Control::Passed);
        }
        // Never two probes of a lane under way.
        for pair in traces.windows(2) {
            assert!(pair[0].ended <= pair[1].sent, "{lane:?}");
        }
    }
    // Only a few wake-ups per round.
    let rounds = traces.len() / 7;
    assert!(bench.turns <= rounds * 6, "{} for {rounds}", bench.turns);
}

/// With a delay of every packet, handshake and data together take longer than one timeout. The probe passes,
/// because each has a separate timeout.
#[test]
fn data_has_the_same_timeout_as_the_handshake() {
    let mut bench = Bench::new(Path::Sound);
    let delay = Duration::from_millis(120);
    bench.world.lock().delay = delay;
    bench.engine.retarget(&everything());
    bench.run(5 * SECOND);
    let traces = bench.traces();
    let lane = |path| {
        traces
            .iter()
            .filter(move |trace: &&ProbeTrace| trace.lane.path == path)
    };
    let mut tcp = lane(ProbePath::NodePort).filter(|trace| trace.lane.transport == Transport::Tcp);
    assert!(tcp.clone().count() > 10);
    assert!(tcp.all(|trace| trace.ended.since(trace.sent) == 2 * delay));
}

#[rstest]
#[case(state::LEAKED, ProbeSightings { leaked: true, ..Default::default() })]
#[case(state::MISROUTED, ProbeSightings { misrouted: true, ..Default::default() })]
#[case(state::STALE, ProbeSightings { stale: true, ..Default::default() })]
#[case(state::REFUSED, ProbeSightings { refused: true, ..Default::default() })]
fn an_observed_outcome_needs_no_timeout(#[case] observed: u32, #[case] expected: ProbeSightings) {
    let mut bench = Bench::new(Path::Silent);
    bench.world.lock().observed = Some(observed);
    bench.engine.retarget(&little());
    bench.run(SECOND);
    let traces = bench.traces();
    for path in [ProbePath::OffCluster, ProbePath::Host] {
        let traces = of(&traces, path);
        assert!(traces.len() >= 3, "{path:?}");
        for trace in traces {
            assert_eq!(trace.sightings, expected, "{path:?}");
            assert!(trace.ended.since(trace.sent) <= Duration::from_millis(10));
        }
    }
    let reset = first_probe(&bench.frames())[1];
    assert_eq!((reset.what, reset.acknowledged), (What::Reset, None));
}

#[test]
fn a_late_observation_still_ends_a_probe_early() {
    let mut bench = Bench::new(Path::Silent);
    bench.engine.retarget(&little());
    bench.run(Duration::from_millis(60));
    bench.world.lock().observed = Some(state::LEAKED);
    bench.run(Duration::from_millis(135));
    let traces = bench.traces();
    assert_eq!(traces.len(), 2);
    assert!(traces.iter().all(|trace| trace.sightings.leaked));
    assert!(
        traces
            .iter()
            .all(|trace| trace.ended.since(trace.sent) < TIMEOUT)
    );
}

// Time limit, whenever the path breaks: 480 ms to the next round, 200 ms for the first loss, and three more
// rounds at the shorter interval.
#[rstest]
fn four_failures_in_a_row_are_reported_soon(
    #[values(Path::Silent, Path::HandshakeOnly, Path::Refusing)] broken: Path,
    #[values(0, 90, 210, 330)] moment: u64,
) {
    let mut bench = Bench::new(Path::Sound);
    bench.engine.retarget(&everything());
    bench.run(5 * SECOND + Duration::from_millis(moment));
    bench.traces();
    bench.world.lock().path = broken;
    bench.run(Duration::from_millis(1_450));
    for (lane, traces) in by_lane(&bench.traces()) {
        let whole = |trace: &&&ProbeTrace| trace.data[Stage::Collected as usize].is_some();
        assert_eq!(traces.iter().filter(whole).count(), 0, "{lane:?}");
        assert!(traces.len() >= 4, "{lane:?}: {}", traces.len());
    }
    // A lasting failure costs no more than a healthy path.
    bench.run(2 * SECOND);
    bench.traces();
    bench.run(10 * SECOND);
    for (lane, traces) in by_lane(&bench.traces()) {
        assert!(
            (21..=29).contains(&traces.len()),
            "{lane:?}: {}",
            traces.len()
        );
    }
}

#[test]
fn an_ambiguous_sequence_number_is_ignored() {
    let mut bench = Bench::new(Path::Silent);
    bench.world.lock().observed = Some(state::LEAKED | state::AMBIGUOUS);
    bench.engine.retarget(&little());
    bench.run(SECOND);
    let traces = bench.traces();
    assert!(traces.len() >= 4);
    for trace in traces {
        assert_eq!(trace.ended.since(trace.sent), TIMEOUT);
        assert_eq!(trace.sightings, ProbeSightings::default());
    }
}

#[rstest]
#[case(Path::Refusing, true, false)]
#[case(Path::Unreachable, false, true)]
fn a_refusal_ends_a_probe_at_once(
    #[case] path: Path,
    #[case] refused: bool,
    #[case] unreachable: bool,
) {
    let mut bench = Bench::new(path);
    bench.engine.retarget(&everything());
    bench.run(SECOND);
    let traces = bench.traces();
    assert_eq!(by_lane(&traces).len(), 14);
    for trace in traces {
        let expected = ProbeSightings {
            refused,
            unreachable,
            ..Default::default()
        };
        assert_eq!((trace.sightings, trace.ended), (expected, trace.sent));
    }
}

#[test]
fn traces_wait_for_their_control() {
    let mut bench = Bench::new(Path::Sound);
    bench.world.lock().control_is_dead = true;
    bench.engine.retarget(&little());
    bench.run(Duration::from_millis(50) + TIMEOUT - Duration::from_millis(60));
    assert_eq!(bench.traces(), []);
    bench.run(Duration::from_millis(70));
    let traces = bench.traces();
    assert_eq!(traces.len(), 2);
    for trace in traces {
        assert_eq!(trace.control, Control::Failed);
        assert_eq!(trace.ended, trace.sent, "it came back itself");
    }
    bench.engine.retarget(&[]);
    assert!(bench.world.lock().probes.is_empty());
}

#[test]
fn a_stamp_alone_completes_a_control() {
    let mut bench = Bench::new(Path::Sound);
    bench.world.lock().no_control_events = true;
    bench.engine.retarget(&little());
    bench.run(SECOND);
    let traces = bench.traces();
    assert!(traces.len() >= 6);
    assert!(traces.iter().all(|t| t.control == Control::Passed));
}

#[test]
fn missed_rounds_are_not_made_up_for() {
    let mut bench = Bench::new(Path::Sound);
    bench.engine.retarget(&little());
    bench.run(SECOND);
    let before = bench.traces();
    bench.stop(10 * SECOND);
    let resumed = bench.engine.now();
    bench.run(SECOND);
    let after = bench.traces();
    assert!(after.len() <= before.len() + 2, "{}", after.len());
    let late = of(&after, ProbePath::OffCluster);
    assert_eq!(late[0].sent, resumed);
    assert!(late[0].sent.since(late[0].due) > 9 * SECOND);
    assert!(late[1].due >= resumed.plus(SUSPECT.start));
    assert!(late[1..].iter().all(|trace| trace.due == trace.sent));
}

#[test]
fn a_probe_interrupted_by_a_stopped_process_is_reported() {
    let mut bench = Bench::new(Path::Silent);
    bench.engine.retarget(&little());
    bench.run(Duration::from_millis(100));
    bench.stop(10 * SECOND);
    bench.run(Duration::ZERO);
    let traces = bench.traces();
    assert_eq!(traces.len(), 2);
    for trace in traces {
        assert!(trace.ended.since(trace.sent) > 9 * SECOND);
        assert_eq!(trace.due, trace.sent);
    }
}

#[test]
fn without_targets_there_is_nothing_to_do() {
    let mut bench = Bench::new(Path::Silent);
    assert_eq!(bench.engine.next_deadline(), None);
    bench.engine.retarget(&everything());
    bench.run(Duration::from_millis(100));
    assert!(!bench.world.lock().probes.is_empty());
    bench.world.lock().frames.clear();
    bench.engine.retarget(&[]);
    assert_eq!(bench.engine.next_deadline(), None);
    assert_eq!(bench.engine.sockets(), [None, None]);
    assert!(bench.world.lock().probes.is_empty());
    assert!(bench.world.lock().cookies.is_empty());
    let frames = bench.frames();
    assert_eq!(frames.len(), 6, "three paths in two families");
    assert!(frames.iter().all(|frame| frame.what == What::Reset));
    bench.run(SECOND);
    assert_eq!(bench.traces(), []);
}

#[test]
fn new_targets_end_only_probes_to_other_targets() {
    let mut bench = Bench::new(Path::Silent);
    bench.engine.retarget(&everything());
    bench.run(Duration::from_millis(100));
    let mut targets = everything();
    targets[0].cluster_ip.set_ip(ip("10.96.0.99"));
    targets[0].cluster_ip_udp = None;
    bench.engine.retarget(&targets);
    bench.run(Duration::from_millis(155));
    let traces = bench.traces();
    let v4: Vec<_> = traces
        .iter()
        .filter(|t| t.lane.family == Family::V4)
        .collect();
    assert!(v4.iter().all(|t| t.lane.path == ProbePath::NodePort));
    assert_eq!((v4.len(), traces.len()), (2, 9));
    bench.run(SECOND);
    let address = ip("10.96.0.99");
    assert!(bench.traces().iter().any(|t| t.frontend.ip() == address));
}

#[test]
fn the_same_targets_again_change_nothing() {
    let mut bench = Bench::new(Path::Silent);
    bench.engine.retarget(&everything());
    bench.run(Duration::from_millis(100));
    let before = (bench.engine.next_deadline(), bench.frames().len());
    bench.engine.retarget(&everything());
    let after = (bench.engine.next_deadline(), bench.frames().len());
    assert_eq!(before, after);
}
