//! Tests of watches and lists that break off.

use super::super::follow::OFTEN;
use super::*;

/// After a restore from a backup, the server's versions are far below the watched one.
#[tokio::test]
async fn an_idle_watch_after_a_broken_one_causes_a_list() {
    let answers = vec![
        Answer::Closed(list(500, &[service(400, "a", 80)])),
        Answer::OpenFor(WHOLE, Vec::new()),
        Answer::OpenFor(WHOLE, list(9, &[service(8, "b", 80)])),
        Answer::OpenFor(WHOLE, Vec::new()),
    ];
    let mut world = World::at_pace(with_services(answers), brief()).await;
    world.until(|world| world.services() == ["b"]).await;
    let asked = world.server.until_asked("services", 5).await;
    assert!(asked[1].ends_with("resourceVersion=500"), "{asked:?}");
    assert!(asked[2].contains("sendInitialEvents"), "{asked:?}");
    assert!(asked[4].ends_with("resourceVersion=9"), "{asked:?}");
    assert_eq!(world.problems, [""; 0]);
}

/// An event after the interruption shows that the server has the watched version.
#[tokio::test]
async fn an_event_after_a_broken_watch_prevents_a_list() {
    let answers = vec![
        Answer::Closed(list(5, &[service(4, "a", 80)])),
        Answer::OpenFor(WHOLE, vec![event("ADDED", &service(6, "b", 80))]),
        Answer::OpenFor(WHOLE, Vec::new()),
    ];
    let mut world = World::at_pace(with_services(answers), brief()).await;
    world.until(|world| world.services() == ["a", "b"]).await;
    let asked = world.server.until_asked("services", 4).await;
    assert!(asked[3].ends_with("resourceVersion=6"), "{asked:?}");
}

/// A list breaks off if the server ends, or if a proxy limits the response. An incomplete list does not
/// count.
#[tokio::test]
async fn lists_that_break_off_are_a_problem_and_pages_come_after_them() {
    let part = || vec![event("ADDED", &service(1, "a", 80))];
    let page = r#"{"metadata":{"resourceVersion":"5"},"items":[]}"#;
    let mut answers: Vec<Answer> = (0..OFTEN)
        .map(|_| Answer::OpenFor(Duration::from_millis(30), part()))
        .collect();
    answers.push(Answer::Closed(part()));
    answers.push(Answer::Status(200, page.to_owned()));
    answers.push(Answer::Open(vec![event("ADDED", &service(6, "b", 80))]));
    let mut world = World::new(with_services(answers)).await;
    world.until(|world| !world.problems.is_empty()).await;
    let told = &world.problems[0];
    assert!(told.contains("it breaks off its lists"), "{told}");
    world.until(|world| world.services() == ["b"]).await;
    assert_eq!(world.problems, [""; 0]);
    let asked = world.server.asked("services");
    let lists = asked
        .iter()
        .filter(|request| request.contains("sendInitialEvents"));
    assert_eq!(lists.count(), OFTEN as usize + 1, "{asked:?}");
}

/// A server may refuse watches while it is busy, or restarts behind a load balancer.
#[rstest]
#[case::for_a_moment(Duration::from_secs(600), false)]
#[case::for_long(Duration::ZERO, true)]
#[tokio::test]
async fn refused_watches_become_a_problem_after_some_time(
    #[case] refusals: Duration,
    #[case] expected: bool,
) {
    let answers = vec![
        Answer::Closed(list(5, &[service(4, "a", 80)])),
        failure(429, "busy"),
        failure(503, "starting"),
        Answer::Open(vec![event("ADDED", &service(6, "b", 80))]),
    ];
    let pace = Pace {
        refusals,
        ..hasty()
    };
    let mut world = World::at_pace(with_services(answers), pace).await;
    let mut told = false;
    while world.services() != ["a", "b"] {
        world.next().await;
        told |= !world.problems.is_empty();
    }
    assert_eq!(told, expected);
    let asked = world.server.asked("services");
    assert!(asked[3].ends_with("resourceVersion=5"), "{asked:?}");
}

/// A line is kept in memory until it ends. A server, or a proxy in front of it, may never end one.
#[rstest]
#[case::in_a_watch(true, &["a", "b"])]
#[case::in_a_list(false, &["b"])]
#[tokio::test]
async fn a_line_without_an_end_is_a_problem(#[case] listed: bool, #[case] expected: &[&str]) {
    let endless = |_| Answer::Open(vec!["x".repeat(hasty().page + 1)]);
    // Several, because a problem that ends while updates are gathered is not reported.
    let mut answers: Vec<Answer> = (0..10).map(endless).collect();
    if listed {
        answers.insert(0, Answer::Closed(list(5, &[service(4, "a", 80)])));
    }
    answers.push(Answer::OpenFor(WHOLE, list(9, &[service(8, "b", 80)])));
    let mut world = World::new(with_services(answers)).await;
    world.until(|world| !world.problems.is_empty()).await;
    let told = &world.problems[0];
    assert!(told.contains("it sends a line without an end"), "{told}");
    world.until(|world| world.services() == expected).await;
    assert_eq!(world.problems, [""; 0]);
}
