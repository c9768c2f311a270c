use std::io;

use rstest::rstest;

use super::*;

fn report(reason: DrainReason) -> DrainReport {
    DrainReport {
        draining: true,
        reason,
        message: "no new connection from outside for 12 s".to_owned(),
        node: "tainted".to_owned(),
        since: None,
        connections: None,
        total: 0,
        ignored: 0,
        last_connection: None,
        quiet_for: 12.0,
        quiet: 10.0,
    }
}

fn said(reason: DrainReason) -> Answer {
    Ok(report(reason))
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

fn five_minutes() -> Wait {
    Wait {
        timeout: secs(300),
        silent: None,
    }
}

#[test]
fn it_waits_until_it_is_quiet() {
    let mut wait = five_minutes();
    for (reason, elapsed) in [(DrainReason::Waiting, 0), (DrainReason::Connections, 2)] {
        assert!(!wait.is_over(&said(reason), secs(elapsed)), "{reason:?}");
    }
    assert!(wait.is_over(&said(DrainReason::Quiet), secs(20)));
}

#[test]
fn it_ends_when_the_time_is_over() {
    let mut wait = five_minutes();
    assert!(!wait.is_over(&said(DrainReason::Connections), secs(299)));
    assert!(wait.is_over(&said(DrainReason::Connections), secs(300)));
    assert!(wait.is_over(&away(), secs(300)));
}

#[test]
fn an_agent_that_restarts_is_waited_for() {
    let mut wait = five_minutes();
    let answers = [
        (away(), 1),
        (away(), 10),
        (said(DrainReason::Waiting), 11),
        (away(), 12),
        (away(), 21),
    ];
    for (answer, elapsed) in &answers {
        assert!(
            !wait.is_over(answer, secs(*elapsed)),
            "{elapsed}: {answer:?}"
        );
    }
    assert!(wait.is_over(&away(), secs(22)));

    let stranger = Err(FetchError::Denied("127.0.0.1:19256".to_owned()));
    let mut wait = five_minutes();
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
    let page = text(&report(reason));
    assert!(page.starts_with(begins), "{page}");
    assert_eq!(page.lines().count(), 1, "{page}");
}
