//! The sentinel's endpoint moves: how soon probes show that the rules have followed.

use super::*;

const OLD: u16 = 20_001;
const NEW: u16 = 20_002;

/// Targets for every lane, with the endpoint at this port.
fn at(port: u16) -> Vec<SentinelAddresses> {
    let mut targets = everything();
    for family in &mut targets {
        family.endpoint.set_port(port);
    }
    targets
}

/// A bench at the idle interval whose rules have followed the first generation.
fn followed() -> Bench {
    let mut bench = Bench::new(Path::Sound);
    bench.world.lock().generation = OLD;
    bench.engine.retarget(&at(OLD));
    bench.run(5 * SECOND);
    bench.traces();
    bench
}

// Whenever the endpoint moves, the first probe that meets the new rules is sent at most 250 ms after they are
// in force.
#[rstest]
fn rules_that_follow_are_noticed_within_250_ms(
    #[values(0, 70, 190, 330)] moment: u64,
    #[values(30, 200, 1_000)] lag: u64,
) {
    let mut bench = followed();
    bench.run(Duration::from_millis(moment));
    bench.traces();
    let moved = bench.engine.now();
    bench.engine.retarget(&at(NEW));
    bench.run(Duration::from_millis(lag));
    bench.world.lock().generation = NEW;
    let followed = bench.engine.now();
    bench.run(SECOND);
    for (lane, traces) in by_lane(&bench.traces()) {
        let first = traces.iter().find(|trace| trace.generation == Some(NEW));
        let late = first.expect("one that follows").sent.since(followed);
        assert!(late <= SUSPECT.end, "{lane:?}: {late:?} after {moved:?}");
    }
}

#[test]
fn rounds_are_slow_again_if_rules_do_not_follow() {
    let mut bench = followed();
    bench.engine.retarget(&at(NEW));
    bench.run(40 * SECOND);
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

// 15 s is the shortest default interval of rotations.
#[test]
fn a_rotation_every_15_s_costs_a_few_rounds_more() {
    let lag = Duration::from_millis(200);
    let count = |rotates: bool| {
        let mut bench = followed();
        for turn in 1..=16 {
            let port = if rotates { OLD + turn } else { OLD };
            bench.engine.retarget(&at(port));
            bench.run(lag);
            bench.world.lock().generation = port;
            bench.run(15 * SECOND - lag);
        }
        bench.traces().len()
    };
    let (quiet, rotated) = (count(false), count(true));
    println!("{rotated} probes in four minutes with rotations, {quiet} without");
    assert!(rotated < quiet + quiet * 15 / 100, "{rotated} for {quiet}");
}

// The observer knows the endpoint only from the view. So a probe can reach the echo at another generation, be
// reported as stale or misrouted, and still come back.
#[rstest]
#[case(state::STALE, TIMEOUT)]
#[case(state::MISROUTED, TIMEOUT)]
#[case(state::LEAKED, Duration::from_millis(5))]
fn a_probe_to_another_generation_is_waited_for(#[case] observed: u32, #[case] ends: Duration) {
    let mut bench = Bench::new(Path::EchoOnly);
    bench.world.lock().generation = OLD;
    bench.world.lock().observed = Some(observed);
    bench.engine.retarget(&at(NEW));
    bench.run(2 * SECOND);
    let traces = bench.traces();
    let traces = of(&traces, ProbePath::OffCluster);
    let tcp: Vec<_> = traces
        .iter()
        .filter(|trace| trace.lane.transport == Transport::Tcp)
        .collect();
    assert!(tcp.len() > 6);
    for trace in tcp {
        assert_eq!(trace.ended.since(trace.sent), ends);
    }
}
