use rstest::rstest;

use super::*;

fn report(reason: Reason, total: u64) -> DrainReport {
    DrainReport {
        draining: true,
        reason,
        message: "no new connection from outside for 12 s".to_owned(),
        node: "tainted".to_owned(),
        since: None,
        connections: None,
        total,
        ignored: 0,
        last_connection: None,
        quiet_for: 12.0,
        quiet: 10.0,
    }
}

fn said(reason: Reason, total: u64) -> Answer {
    Ok((report(reason, total), "{}".to_owned()))
}

fn away() -> Answer {
    Err(FetchError::Unreachable {
        address: "127.0.0.1:19256".to_owned(),
        source: io::ErrorKind::ConnectionRefused.into(),
    })
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn told(step: Step) -> Option<String> {
    match step {
        Step::Again { tell } => tell,
        Step::End(answer) => panic!("it ended with {answer:?}"),
    }
}

#[test]
fn it_waits_until_it_is_quiet() {
    let mut wait = Wait::new(secs(300));
    let first = told(wait.step(said(Reason::Waiting, 40), secs(0))).unwrap();
    assert!(first.starts_with("0 ms of 5 min: "), "{first}");
    assert!(first.ends_with("; 0 so far"), "{first}");
    assert_eq!(told(wait.step(said(Reason::Waiting, 41), secs(1))), None);
    let next = told(wait.step(said(Reason::Connections, 42), secs(2))).unwrap();
    assert!(next.ends_with("; 2 so far"), "{next}");
    // An agent that was restarted counts from zero.
    let later = told(wait.step(said(Reason::Connections, 3), secs(7))).unwrap();
    assert!(later.ends_with("; 5 so far"), "{later}");
    let end = wait.step(said(Reason::Quiet, 3), secs(20));
    assert!(matches!(end, Step::End(Ok((last, _))) if last.is_quiet()));
}

#[test]
fn it_ends_when_the_time_is_over() {
    let mut wait = Wait::new(secs(300));
    told(wait.step(said(Reason::Connections, 0), secs(299)));
    let end = wait.step(said(Reason::Connections, 0), secs(300));
    assert!(matches!(end, Step::End(Ok(_))), "{end:?}");
    let end = wait.step(away(), secs(300));
    assert!(matches!(end, Step::End(Err(_))), "{end:?}");
}

#[test]
fn an_agent_that_restarts_is_waited_for() {
    let mut wait = Wait::new(secs(300));
    let line = told(wait.step(away(), secs(1))).unwrap();
    assert!(line.contains("no agent answers"), "{line}");
    told(wait.step(away(), secs(10)));
    told(wait.step(said(Reason::Waiting, 0), secs(11)));
    told(wait.step(away(), secs(12)));
    told(wait.step(away(), secs(21)));
    assert!(matches!(wait.step(away(), secs(22)), Step::End(Err(_))));

    let stranger = Err(FetchError::Denied {
        address: "127.0.0.1:19256".to_owned(),
    });
    let end = Wait::new(secs(300)).step(stranger, secs(0));
    assert!(matches!(end, Step::End(Err(_))), "it will not change");
}

#[rstest]
#[case(Reason::Quiet, Exit::Success, "QUIET  No new connection")]
#[case(Reason::Connections, Exit::Failure, "NOT QUIET  ")]
#[case(Reason::Waiting, Exit::Failure, "NOT QUIET  ")]
#[case(Reason::NotLeaving, Exit::Failure, "NOT QUIET  ")]
#[case(Reason::Blind, Exit::Unknown, "UNKNOWN  ")]
fn endings(#[case] reason: Reason, #[case] expected: Exit, #[case] begins: &str) {
    assert_eq!(exit(reason), expected);
    let page = text(&report(reason, 0));
    assert!(page.starts_with(begins), "{page}");
    assert_eq!(page.lines().count(), 1, "{page}");
}

#[test]
fn connections_of_a_leaving_node_are_told() {
    let leaving = DrainReport {
        connections: Some(1),
        ..report(Reason::Quiet, 9)
    };
    let page = text(&leaving);
    assert!(
        page.ends_with("\n1 new connection since the node is tainted.\n"),
        "{page}"
    );
}
