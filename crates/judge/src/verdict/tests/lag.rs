//! Rules that do not follow the API: the sentinel's endpoint moves, but probes still reach the old one.

use std::time::Duration;

use pathproof_facts::cause::State;
use pathproof_facts::limits::Limits;
use pathproof_facts::trace::{Lane, ProbePath, Transport};
use pathproof_wire::service::Family;
use pathproof_witness::ledger::Ledger;
use pathproof_witness::probes::{KernelFacts, SentinelView, classify};
use rstest::rstest;

use super::scene::*;
use super::world::*;
use crate::verdict::{LaneView, Verdict};

const OLD: u16 = 20_001;
const NEW: u16 = 20_002;

/// Interval between rounds of probes, in ms: a longer one than usual keeps tests of minutes short.
const STEP: u64 = 900;

impl World {
    /// The API moves the sentinel's endpoint to this port, for both transports.
    pub(super) fn moved(&mut self, generation: u16, at: u64) -> &mut Self {
        for transport in Transport::ALL {
            let sentinel = &mut self.ledger.sentinel;
            sentinel.want(Family::V4, transport, generation, ms(at));
        }
        self
    }

    /// Rounds of probes: they reach the generation that `generation` returns, or fail if it returns none.
    pub(super) fn meet(
        &mut self,
        (from, to): (u64, u64),
        step: u64,
        generation: impl Fn(Lane) -> Option<u16>,
    ) -> &mut Self {
        for at in (from..=to).step_by(step as usize) {
            for path in USUAL {
                for transport in Transport::ALL {
                    let lane = lane(path, transport);
                    let met = generation(lane);
                    let fate = met.map_or(Fate::Drop, |_| Fate::Pass);
                    let mut trace = fate.trace(lane, ms(at));
                    trace.generation = met;
                    let outcome = classify(&trace, &KernelFacts::default(), &Limits::default());
                    let sentinel = &mut self.ledger.sentinel;
                    sentinel.absorb(&trace, outcome, trace.ended);
                }
            }
            self.look(at + 200);
        }
        self
    }
}

/// The rules have followed the first generation; the next one is received at 10 s.
fn followed() -> World {
    let mut world = World::with_sentinel();
    world.moved(OLD, 100);
    world.meet((250, 9_900), 400, |_| Some(OLD));
    world.moved(NEW, 10_000);
    world
}

fn off_cluster(verdict: &Verdict) -> &LaneView {
    let lanes = &verdict.families[0].lanes;
    let wanted =
        |lane: &&LaneView| (lane.path, lane.transport) == (ProbePath::OffCluster, Transport::Tcp);
    lanes.iter().find(wanted).unwrap()
}

#[test]
fn rules_that_follow_are_measured() {
    let mut world = followed();
    world.meet((10_050, 10_250), 100, |_| Some(OLD));
    let verdict = world.verdict(10_300);
    assert_eq!(verdict.state, State::Proven);
    let lane = off_cluster(&verdict);
    assert_eq!(lane.late, Some(300_000_000));
    world.meet((10_350, 12_000), 300, |_| Some(NEW));
    let verdict = world.verdict(12_100);
    let lane = off_cluster(&verdict);
    // The lag ends when the probe leaves for the echo, 20 us after it was sent.
    assert_eq!((lane.lag, lane.late), (Some(350_020_000), None));
    assert_eq!((lane.wanted, lane.generation), (Some(NEW), Some(NEW)));
    assert_eq!(
        lane.programming_lag(),
        Some(Duration::from_nanos(350_020_000))
    );
}

#[test]
fn two_minutes_after_receipt_rules_are_stale() {
    let mut world = followed();
    world.meet((10_050, 129_900), STEP, |_| Some(OLD));
    assert_eq!(world.verdict(129_999).state, State::Proven, "not yet");
    let verdict = world.verdict(130_000);
    assert_eq!(
        told(&verdict),
        (
            State::Stale,
            "stale",
            "IPv4 cluster IPs: the rules of kube-proxy (iptables) are out of date: probes still \
             go to port 20001 of the sentinel's endpoint, 2 min after this node received a newer \
             port (now 20002)"
        )
    );
    // The node stays Stale until the rules follow.
    world.meet((130_050, 132_000), 400, |_| Some(NEW));
    assert_eq!(world.verdict(132_100).state, State::Proven);
}

#[test]
fn one_path_that_stands_for_the_node_is_enough() {
    let mut world = followed();
    let node_ports = |lane: Lane| match lane.path {
        ProbePath::NodePort => Some(OLD),
        _ => Some(NEW),
    };
    world.meet((10_050, 130_900), STEP, node_ports);
    let verdict = world.verdict(131_000);
    assert_eq!(verdict.state, State::Stale);
    assert!(verdict.reason().starts_with("IPv4 node ports: "));
}

#[rstest]
#[case::udp(|lane: Lane| lane.transport == Transport::Udp)]
#[case::host(|lane: Lane| lane.path == ProbePath::Host)]
fn a_late_lane_that_does_not_represent_the_node_degrades_it(#[case] stays: fn(Lane) -> bool) {
    let mut world = followed();
    world.meet((10_050, 130_900), STEP, |lane| {
        Some(if stays(lane) { OLD } else { NEW })
    });
    let verdict = world.verdict(131_000);
    assert_eq!(
        (verdict.state, told(&verdict).1),
        (State::Degraded, "stale")
    );
}

// Failed probes are no evidence about rules: Broken and Suspect belong to other rules.
#[test]
fn a_path_that_fails_is_not_late() {
    let mut world = followed();
    world.meet((10_050, 130_900), STEP, |_| None);
    let verdict = world.verdict(131_000);
    assert_eq!(verdict.state, State::Suspect);
    assert_eq!(off_cluster(&verdict).late, None);
    // After the repair, probes reach a generation of a minute ago, which measures nothing.
    world.moved(20_003, 131_000);
    world.meet((131_050, 133_000), 400, |_| Some(20_003));
    let verdict = world.verdict(133_100);
    assert_eq!(
        (off_cluster(&verdict).late, off_cluster(&verdict).lag),
        (None, None)
    );
}

#[test]
fn rules_are_not_late_while_the_api_is_away() {
    let mut world = followed();
    world.meet((10_050, 19_900), STEP, |_| Some(OLD));
    world.ledger.sentinel.source_away(ms(20_000));
    world.meet((20_050, 319_900), STEP, |_| Some(OLD));
    let verdict = world.verdict(320_000);
    assert_eq!(verdict.state, State::Proven);
    assert_eq!(off_cluster(&verdict).late, Some(10_000_000_000));
    world.ledger.sentinel.source_back(ms(320_000));
    world.meet((320_050, 429_900), STEP, |_| Some(OLD));
    assert_eq!(world.verdict(429_900).state, State::Proven);
    assert_eq!(
        world.verdict(430_000).state,
        State::Stale,
        "two minutes in total"
    );
    // The state stays Stale while the API is unreachable again, because the lateness was known before.
    world.ledger.sentinel.source_away(ms(431_000));
    world.meet((430_050, 500_000), STEP, |_| Some(OLD));
    assert_eq!(world.verdict(500_000).state, State::Stale);
}

#[test]
fn an_altered_sentinel_says_nothing_of_freshness() {
    let mut world = followed();
    let altered = SentinelView {
        altered: Some("Service pathproof/pathproof-sentinel has no IPv6 endpoint".to_owned()),
        changed_at: ms(11_000),
        ..sentinel_view()
    };
    world.ledger.sentinel.view_changed(ms(11_000), altered);
    world.meet((11_050, 131_000), STEP, |_| Some(OLD));
    let verdict = world.verdict(131_000);
    assert_ne!(verdict.state, State::Stale);
    assert_eq!(off_cluster(&verdict).late, None);
}

#[test]
fn a_deleted_sentinel_forgets_its_generations() {
    let mut world = followed();
    let gone = SentinelView {
        exists: false,
        changed_at: ms(11_000),
        ..sentinel_view()
    };
    world.ledger.sentinel.view_changed(ms(11_000), gone);
    let back = SentinelView {
        changed_at: ms(12_000),
        ..sentinel_view()
    };
    world.ledger.sentinel.view_changed(ms(12_000), back);
    world.moved(OLD, 12_000);
    world.meet((12_050, 140_000), STEP, |_| Some(OLD));
    let verdict = world.verdict(140_100);
    assert_eq!(verdict.state, State::Proven);
    assert_eq!(
        (off_cluster(&verdict).late, off_cluster(&verdict).lag),
        (None, None)
    );
}

// A rotation does not count as a change of the sentinel, so failures count at once.
#[test]
fn a_rotation_blinds_nobody() {
    let mut world = followed();
    world.meet((10_050, 10_450), 400, |_| Some(NEW));
    world.rounds(10_750, 11_500, &USUAL, |_| Fate::Leak);
    assert_eq!(world.verdict(11_710).state, State::Broken);
}

#[test]
fn a_restart_changes_nothing() {
    let mut world = followed();
    for (generation, at) in [(20_003, 20_000), (20_004, 30_000), (20_005, 40_000)] {
        world.meet((at - 9_900, at - 100), 300, |_| Some(generation - 1));
        world.moved(generation, at);
    }
    let usual = world.ledger.sentinel.usual_lag();
    assert_eq!(usual, Some(Duration::from_nanos(100_020_000)));
    world.meet((40_050, 100_000), STEP, |_| Some(20_004));
    let memory = serde_json::to_string(&world.ledger.memory()).unwrap();
    let memory = serde_json::from_str(&memory).unwrap();
    world.ledger = Ledger::restore(Limits::default(), memory, true, ms(101_000));
    assert_eq!(world.ledger.sentinel.usual_lag(), usual);
    world.meet((101_050, 101_900), 400, |_| Some(20_004));
    world.ledger.sentinel.source_back(ms(102_000));
    world.moved(20_005, 102_000);
    world.meet((102_050, 160_900), STEP, |_| Some(20_004));
    // The second before the view was delivered again does not count.
    assert_eq!(world.verdict(160_990).state, State::Proven);
    assert_eq!(world.verdict(161_000).state, State::Stale);
}
