//! Probes that cannot be sent, the host's path, and the thread itself.

use super::*;

#[rstest]
#[case(true, None, "cannot register the probe: the map is full")]
#[case(
    false,
    Some(libc::ENETDOWN),
    "cannot write to the sentinel's client pair: Network is down (os error 100)"
)]
fn an_unsent_probe_has_a_reason(
    #[case] register_fails: bool,
    #[case] send_error: Option<i32>,
    #[case] why: &str,
) {
    let mut bench = Bench::new(Path::Sound);
    bench.world.lock().register_fails = register_fails;
    bench.world.lock().send_error = send_error;
    bench.engine.retarget(&little());
    bench.run(SECOND);
    let traces = bench.traces();
    let unsent = of(&traces, ProbePath::OffCluster);
    assert!(unsent.len() >= 3);
    for trace in unsent {
        assert_eq!(trace.unsent.as_deref(), Some(why));
        assert_eq!(trace.control, Control::Failed);
    }
    assert!(bench.world.lock().probes.is_empty());
}

#[test]
fn a_token_in_use_is_not_taken_again() {
    let mut bench = Bench::with(Path::Sound, || Ok(7));
    bench.engine.retarget(&little());
    bench.run(SECOND);
    let traces = bench.traces();
    let trace = of(&traces, ProbePath::OffCluster)[0];
    let why = "cannot draw a token that is not in use";
    assert_eq!(trace.unsent.as_deref(), Some(why), "the control has it");
    assert_eq!(trace.control, Control::Passed);
}

#[test]
fn a_host_probe_without_a_route_is_unsent() {
    let mut bench = Bench::new(Path::Sound);
    bench.world.lock().send_error = Some(libc::ENETUNREACH);
    bench.engine.retarget(&little());
    bench.run(SECOND);
    let why = "cannot connect to 10.96.0.10:7: Network is unreachable (os error 101)";
    for trace in of(&bench.traces(), ProbePath::Host) {
        assert_eq!(trace.unsent.as_deref(), Some(why));
    }
    assert!(bench.world.lock().cookies.is_empty());
}

#[test]
fn a_record_that_is_gone_is_no_failure() {
    let mut bench = Bench::new(Path::Silent);
    bench.engine.retarget(&little());
    bench.run(Duration::from_millis(100));
    let token = first_probe(&bench.frames())[0].sequence;
    bench.world.lock().gone = Some(token);
    bench.run(Duration::from_millis(150));
    let traces = bench.traces();
    let trace = of(&traces, ProbePath::OffCluster)[0];
    assert_eq!(
        trace.unsent.as_deref(),
        Some("the kernel's record of it is gone")
    );
}

#[test]
fn the_hosts_path_has_no_arrival_and_ends_at_its_socket() {
    let mut bench = Bench::new(Path::Sound);
    bench.engine.retarget(&little());
    bench.run(Duration::from_millis(100));
    let traces = bench.traces();
    let trace = of(&traces, ProbePath::Host)[0];
    assert_eq!(trace.client, "10.0.0.9:50000".parse().unwrap());
    assert_eq!(trace.handshake[0], None);
    assert!(trace.handshake[1..].iter().all(Option::is_some));
    assert_eq!(trace.data[Stage::Collected as usize], Some(trace.ended));
}

// The kernel sends no RST after an unanswered SYN, so the prober does.
#[rstest]
#[case(Path::Silent, true)]
#[case(Path::Unreachable, true)]
#[case(Path::Refusing, false)]
#[case(Path::HandshakeOnly, false)]
#[case(Path::Sound, false)]
fn an_unanswered_host_probe_is_reset(#[case] path: Path, #[case] reset: bool) {
    let mut bench = Bench::new(path);
    bench.engine.retarget(&little());
    bench.run(SECOND);
    let state = bench.world.lock();
    assert_eq!(!state.own_frames.is_empty(), reset);
    for frame in &state.own_frames {
        assert_eq!((frame.what, frame.acknowledged), (What::Reset, None));
        assert_eq!(frame.sequence, HOST_ISN + 1);
        assert_eq!(frame.from, "10.0.0.9:50000".parse().unwrap());
        assert_eq!(frame.to, "10.96.0.10:7".parse().unwrap());
    }
}

#[test]
fn an_event_of_an_unknown_probe_is_ignored() {
    let mut bench = Bench::new(Path::Sound);
    bench.engine.retarget(&little());
    bench.run(Duration::from_millis(100));
    let event = ProbeEvent {
        key: ProbeKey {
            token: HOST_ISN,
            ..ProbeKey::default()
        },
        ..ProbeEvent::default()
    };
    bench.world.lock().events.push_back(event);
    bench.run(SECOND);
    assert!(bench.traces().iter().all(|t| t.control == Control::Passed));
}

/// A clock that advances by a millisecond at every reading.
fn ticking() -> Mono {
    static NOW: AtomicU64 = AtomicU64::new(1);
    Mono(NOW.fetch_add(1_000_000, Ordering::Relaxed))
}

#[test]
fn the_thread_probes_its_targets_and_ends_when_dropped() {
    let world = World::default();
    let (sender, mut results) = unbounded_channel();
    let engine = Engine::new(world.clone(), world.clone(), ticking, random, sender);
    let prober = Prober::spawn(engine).unwrap();
    prober.retarget(little());
    assert!(results.blocking_recv().is_some());
    assert!(prober.is_running());
    drop(prober);
    assert!(world.lock().probes.is_empty());
    // The thread dropped the sender.
    while results.blocking_recv().is_some() {}
}

#[test]
fn the_thread_ends_when_nobody_listens() {
    let world = World::default();
    let (sender, results) = unbounded_channel();
    drop(results);
    let engine = Engine::new(world.clone(), world, ticking, random, sender);
    let prober = Prober::spawn(engine).unwrap();
    while prober.is_running() {
        std::thread::yield_now();
    }
}

#[test]
fn a_missing_capability_is_named() {
    let error = ProberError::MissingNetRaw;
    assert!(error.to_string().starts_with("CAP_NET_RAW is missing"));
}
