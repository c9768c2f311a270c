//! Steps of the clock, as NTP makes them after a boot with a wrong time. Runs only in a virtual machine.

use std::io;

use jiff::{SignedDuration, Timestamp};
use node_tests::prelude::*;

/// Environment variable that allows tests to change the whole machine.
const OWN_CLOCK: &str = "PATHPROOF_TEST_OWN_CLOCK";

const HOUR: i64 = 3600;

#[test]
fn a_clock_that_is_set_makes_no_fault_and_hides_none() {
    needs!(skip::own_machine(OWN_CLOCK));
    let scene = Scene::proven(Backend::Nftables, &[]);
    let watch = scene.watch();
    wait_answers(&watch, 200);
    for step in [HOUR, -2 * HOUR, 400 * 24 * HOUR, -400 * 24 * HOUR] {
        set_clock(step).expect("set the clock");
        thread::sleep(Duration::from_secs(3));
        scene.wait_proven();
        wait_dated(&scene);
        assert_never_503(&watch);
    }
    // Inject one fault between two steps of the clock, and then another one that lasts across a step.
    scene.break_and_mend(&watch);
    scene.rules.flush_services().expect("flush");
    set_clock(HOUR).expect("set the clock");
    wait_answers(&watch, 503);
    set_clock(-HOUR).expect("set the clock");
    scene.rules.install().expect("install again");
    wait_answers(&watch, 200);
    set_clock(HOUR).expect("set the clock");
}

/// Waits until the agent's report is dated by the new time.
fn wait_dated(scene: &Scene) {
    eventually("a report of now", || {
        let verdict = scene.agent().verdict().expect("a report");
        let written: Timestamp = verdict["written"].as_str().unwrap().parse().unwrap();
        let started: Timestamp = verdict["agent"]["started"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        let runs = written.duration_since(started);
        assert!(
            runs < SignedDuration::from_mins(10) && runs.is_positive(),
            "running for {runs}"
        );
        Timestamp::now().duration_since(written).abs() < SignedDuration::from_secs(3)
    });
}

/// Moves the clock by `step` seconds.
fn set_clock(step: i64) -> io::Result<()> {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: both calls get a valid pointer to a struct of the right kind.
    let set = unsafe {
        libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut now);
        now.tv_sec += step;
        libc::clock_settime(libc::CLOCK_REALTIME, &raw const now)
    };
    match set {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
