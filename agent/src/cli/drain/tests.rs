use rstest::rstest;

use super::*;

fn report(reason: DrainReason, total: u64) -> DrainReport {
    DrainReport {
        draining: true,
        reason,
        message: "no new connection from outside for 12 s".to_owned(),
        node: "tainted".to_owned(),
        since: None,
        connections: None,
        total,
        ignored: 0,
        open: None,
        idle: None,
        last_connection: None,
        quiet_for: 12.0,
        quiet: 10.0,
    }
}

fn said(reason: DrainReason, total: u64) -> Answer {
    Ok((report(reason, total), "{}".to_owned()))
}

fn away() -> Answer {
    Err(FetchError::Unreachable(
        "127.0.0.1:19256".to_owned(),
        io::ErrorKind::ConnectionRefused.into(),
    ))
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// The progress line for an answer that does not end the wait.
fn told(wait: &mut Wait, answer: Answer, elapsed: Duration) -> Option<String> {
    assert!(!wait.is_over(&answer, elapsed), "it ended with {answer:?}");
    wait.progress(&answer, elapsed)
}

#[test]
fn it_waits_until_it_is_quiet() {
    let mut wait = Wait::new(secs(300));
    let first = told(&mut wait, said(DrainReason::Waiting, 40), secs(0)).unwrap();
    assert!(first.starts_with("0 ms of 5 min: no new"), "{first}");
    assert_eq!(
        told(&mut wait, said(DrainReason::Waiting, 41), secs(1)),
        None
    );
    assert!(told(&mut wait, said(DrainReason::Connections, 42), secs(2)).is_some());
    assert_eq!(
        told(&mut wait, said(DrainReason::Connections, 43), secs(3)),
        None
    );
    assert!(told(&mut wait, said(DrainReason::Connections, 43), secs(7)).is_some());
    assert!(wait.is_over(&said(DrainReason::Quiet, 43), secs(20)));
}

#[test]
fn it_ends_when_the_time_is_over() {
    let mut wait = Wait::new(secs(300));
    told(&mut wait, said(DrainReason::Connections, 0), secs(299));
    assert!(wait.is_over(&said(DrainReason::Connections, 0), secs(300)));
    assert!(wait.is_over(&away(), secs(300)));
}

#[test]
fn an_agent_that_restarts_is_waited_for() {
    let mut wait = Wait::new(secs(300));
    let line = told(&mut wait, away(), secs(1)).unwrap();
    assert!(line.contains("no agent answers"), "{line}");
    told(&mut wait, away(), secs(10));
    told(&mut wait, said(DrainReason::Waiting, 0), secs(11));
    told(&mut wait, away(), secs(12));
    told(&mut wait, away(), secs(21));
    assert!(wait.is_over(&away(), secs(22)));

    let stranger = Err(FetchError::Denied("127.0.0.1:19256".to_owned()));
    let mut wait = Wait::new(secs(300));
    assert!(wait.is_over(&stranger, secs(0)), "it will not change");
}

#[rstest]
#[case(DrainReason::Quiet, Exit::Success, "QUIET  No new connection")]
#[case(DrainReason::Connections, Exit::Failure, "NOT QUIET  ")]
#[case(DrainReason::Waiting, Exit::Failure, "NOT QUIET  ")]
#[case(DrainReason::NotLeaving, Exit::Failure, "NOT QUIET  ")]
#[case(DrainReason::Blind, Exit::Unknown, "UNKNOWN  ")]
fn endings(#[case] reason: DrainReason, #[case] expected: Exit, #[case] begins: &str) {
    assert_eq!(ending(reason).0, expected);
    let page = text(&report(reason, 0));
    assert!(page.starts_with(begins), "{page}");
    assert_eq!(page.lines().count(), 1, "{page}");
}
