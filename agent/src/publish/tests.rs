//! Exact requests to an API server, and the effects of its answers.

mod server;

use std::cell::Cell;
use std::time::Duration;

use pathproof_facts::switches::Enforcement;
use pathproof_judge::brake::BrakeReason;
use pathproof_judge::eligibility::Eligibility;
use pathproof_report::condition::Pace;
use pathproof_samples as sample;
use rstest::rstest;
use serde_json::{Value, json};
use server::{Say, Seen, Server};

use super::*;
use crate::metrics::WriteResult;

/// No delays, except those that a test is about.
fn settings(condition: bool, events: bool) -> Settings {
    Settings {
        pace: Pace {
            heartbeat: Duration::from_secs(3_600),
            jitter: Duration::from_nanos(1),
            settle: Duration::from_millis(1),
            gap: Duration::ZERO,
            retry: Duration::from_millis(1),
            retry_max: Duration::from_millis(5),
            denied: Duration::from_millis(5),
        },
        timeout: Duration::from_secs(60),
        ..Settings::new("node-1".into(), condition, events)
    }
}

struct World {
    server: Server,
    reports: watch::Sender<Option<Arc<Report>>>,
    metrics: Arc<Metrics>,
    publishing: Publishing,
}

impl World {
    fn begin(server: Server, settings: Settings) -> Self {
        let (reports, seen) = watch::channel(None);
        let metrics = Metrics::new();
        let publishing = start(settings, server.client(), seen, Arc::clone(&metrics));
        Self {
            server,
            reports,
            metrics,
            publishing,
        }
    }

    fn say(&self, report: Report) {
        self.reports.send_replace(Some(Arc::new(report)));
    }

    async fn until_counted(&self, kind: Published, result: WriteResult, count: u64) {
        server::eventually(|| self.metrics.writes(kind, result) >= count).await;
    }
}

fn sound() -> Report {
    sample::proven()
}

const FLUSHED: &str = "IPv4 cluster IPs: the last 8 probes left the node untranslated (leaked): \
                       the Service's rules are missing or empty; IPv4 node ports too (refused)";

fn broken() -> Report {
    let mut report = sample::proven();
    sample::set_finding(&mut report.verdict, 0, sample::probed::flushed_finding());
    report.answers.livez.would_fail = true;
    report
}

fn leaving(mut report: Report) -> Report {
    report.verdict.eligibility = Eligibility::Deleting;
    report
}

fn condition_of(seen: &Seen) -> &Value {
    &seen.body["status"]["conditions"][0]
}

#[tokio::test]
async fn our_condition_alone_is_patched_by_its_type() {
    let world = World::begin(Server::start().await, settings(true, false));
    world.say(broken());
    let patch = world.server.nth("PATCH", 0).await;
    assert_eq!(
        patch.path,
        "/api/v1/nodes/node-1/status?&fieldManager=pathproof"
    );
    assert_eq!(patch.content_type, "application/strategic-merge-patch+json");
    assert!(patch.accept.contains("as=PartialObjectMetadata"));
    let at = condition_of(&patch)["lastHeartbeatTime"].clone();
    let expected = json!({"status": {"conditions": [{
        "type": "ServiceDatapathReady",
        "status": "False",
        "reason": "DatapathBrokenLeaked",
        "message": format!("{FLUSHED} [pathproof 0.1.0, enforce]"),
        "lastHeartbeatTime": at,
        "lastTransitionTime": at,
    }]}});
    assert_eq!(patch.body, expected);
    // The format of metav1.Time: whole seconds, in UTC.
    let at = at.as_str().unwrap();
    assert_eq!(at.len(), "2026-11-21T13:00:00Z".len(), "{at}");
    world
        .until_counted(Published::Condition, WriteResult::Ok, 1)
        .await;
    let report = world.publishing.report();
    assert_eq!(report.problems().count(), 0);
    assert!(report.condition.unwrap().written.is_some());
    assert!(report.events.is_none());
    assert_eq!(world.server.count("POST"), 0);
}

#[tokio::test]
async fn the_condition_of_an_earlier_agent_is_kept() {
    let server = Server::start().await;
    server.has_condition(json!([
        {"type": "Ready", "status": "True"},
        {"type": "ServiceDatapathReady", "status": "True", "reason": "DatapathProven",
         "message": "m", "lastHeartbeatTime": "2026-11-21T12:00:00Z",
         "lastTransitionTime": "2026-11-21T11:00:00Z"},
    ]));
    let world = World::begin(server, settings(true, false));
    world.say(leaving(sound()));
    let patch = world.server.nth("PATCH", 0).await;
    let condition = condition_of(&patch);
    assert_eq!(condition["reason"], "NodeLeaving");
    assert_eq!(condition["lastTransitionTime"], "2026-11-21T11:00:00Z");
    world.say(broken());
    let patch = world.server.nth("PATCH", 1).await;
    let condition = condition_of(&patch);
    assert_eq!(condition["status"], "False");
    assert_ne!(condition["lastTransitionTime"], "2026-11-21T11:00:00Z");
}

/// A change of the mode alone is written once. The brake is shown at the next write.
#[tokio::test]
async fn another_mode_is_written_and_the_brake_waits() {
    let world = World::begin(Server::start().await, settings(true, false));
    let mut report = sound();
    world.say(report.clone());
    let message = |seen: &Seen| condition_of(seen)["message"].as_str().unwrap().to_owned();
    let first = message(&world.server.nth("PATCH", 0).await);
    assert!(first.ends_with(" [pathproof 0.1.0, enforce]"), "{first}");
    world
        .until_counted(Published::Condition, WriteResult::Ok, 1)
        .await;
    report.agent.enforcement = Enforcement::Audit;
    world.say(report.clone());
    let second = message(&world.server.nth("PATCH", 1).await);
    assert!(second.ends_with(" [pathproof 0.1.0, audit]"), "{second}");
    report.answers.held = Some(BrakeReason::Turn);
    world.say(report);
    sleep(Duration::from_millis(50)).await;
    assert_eq!(world.server.count("PATCH"), 2);
}

#[rstest]
#[case::of_an_earlier_release("m", 1)]
#[case::of_another_version("m [pathproof 0.0.9, enforce]", 1)]
#[case::of_the_same_agent("m [pathproof 0.1.0, enforce]", 0)]
#[tokio::test]
async fn a_new_version_writes_once(#[case] message: &str, #[case] writes: usize) {
    let server = Server::start().await;
    server.has_condition(json!([
        {"type": "ServiceDatapathReady", "status": "True", "reason": "DatapathProven",
         "message": message, "lastTransitionTime": "2026-11-21T11:00:00Z"},
    ]));
    let world = World::begin(server, settings(true, false));
    world.say(sound());
    sleep(Duration::from_millis(100)).await;
    assert_eq!(world.server.count("PATCH"), writes);
}

#[rstest]
#[case(Say::Status(401), WriteResult::Rejected)]
#[case(Say::Status(403), WriteResult::Forbidden)]
#[case(Say::Status(404), WriteResult::NotFound)]
#[case(Say::Status(409), WriteResult::Conflict)]
#[case(Say::Status(422), WriteResult::Rejected)]
#[case(Say::Status(429), WriteResult::Throttled)]
#[case(Say::Status(500), WriteResult::ServerError)]
#[case(Say::Nonsense, WriteResult::ServerError)]
#[case(Say::Close, WriteResult::Unreachable)]
#[tokio::test]
async fn a_failure_is_logged_and_retried(#[case] say: Say, #[case] result: WriteResult) {
    for (condition, kind, method) in [
        (true, Published::Condition, "PATCH"),
        (false, Published::Event, "POST"),
    ] {
        let server = Server::start().await;
        server.says(method, say);
        let world = World::begin(server, settings(condition, !condition));
        world.say(broken());
        world.until_counted(kind, result, 2).await;
        let report = world.publishing.report();
        let problem = report.problems().next().unwrap_or_default().to_owned();
        assert!(
            problem.contains("Node worker-1 cannot be written"),
            "{problem}"
        );
        assert_eq!(
            problem.contains("--publish-"),
            result == WriteResult::Forbidden,
            "{problem}"
        );
        // The next write carries the current state, not the one whose write failed.
        world.say(leaving(broken()));
        let failed = world.metrics.writes(kind, result);
        world.until_counted(kind, result, failed + 2).await;
        world.server.says(method, Say::Ok);
        world.until_counted(kind, WriteResult::Ok, 1).await;
        server::eventually(|| world.publishing.report().problems().count() == 0).await;
        let last = world.server.last(method);
        let words = format!("{} {}", last.body["note"], last.body["status"]);
        assert!(
            words.contains("the Node object is being deleted"),
            "{words}"
        );
    }
}

#[tokio::test]
async fn a_hanging_request_times_out() {
    let server = Server::start().await;
    server.says("PATCH", Say::Hang);
    let world = World::begin(
        server,
        Settings {
            timeout: Duration::from_millis(50),
            ..settings(true, false)
        },
    );
    world.say(broken());
    world
        .until_counted(Published::Condition, WriteResult::Timeout, 2)
        .await;
    world.server.says("PATCH", Say::Ok);
    world
        .until_counted(Published::Condition, WriteResult::Ok, 1)
        .await;
}

#[tokio::test]
async fn events_do_not_wait_for_a_condition_that_hangs() {
    let server = Server::start().await;
    server.says("PATCH", Say::Hang);
    let world = World::begin(
        server,
        Settings {
            // The write of the condition hangs throughout.
            timeout: Duration::from_secs(3_600),
            ..settings(true, true)
        },
    );
    world.say(sound());
    world.server.nth("PATCH", 0).await;
    world.say(broken());
    let event = world.server.nth("POST", 0).await;
    assert_eq!(event.body["reason"], "DatapathBrokenLeaked");
    assert_eq!(world.server.count("PATCH"), 1);
}

#[tokio::test]
async fn an_api_server_that_is_away_at_the_start_is_waited_for() {
    let server = Server::start().await;
    server.says("GET", Say::Close);
    let world = World::begin(server, settings(true, true));
    world.say(broken());
    world.server.nth("GET", 2).await;
    assert_eq!(world.server.count("PATCH"), 0);
    world.say(sound());
    world.server.says("GET", Say::Ok);
    let patch = world.server.nth("PATCH", 0).await;
    assert_eq!(condition_of(&patch)["status"], "True");
    assert_eq!(
        world.server.count("POST"),
        0,
        "the node is healthy again, so no Event is due"
    );
}

#[tokio::test]
async fn transitions_are_announced_about_the_node() {
    let world = World::begin(Server::start().await, settings(false, true));
    world.say(sound());
    world.say(broken());
    let event = world.server.nth("POST", 0).await;
    assert_eq!(
        event.path,
        "/apis/events.k8s.io/v1/namespaces/default/events?"
    );
    let body = &event.body;
    assert_eq!(body["type"], "Warning");
    assert_eq!(body["reason"], "DatapathBrokenLeaked");
    assert_eq!(body["note"], FLUSHED);
    assert_eq!(body["reportingController"], "pathproof");
    assert_eq!(body["reportingInstance"], "node-1");
    assert_eq!(
        body["regarding"],
        json!({"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-1"})
    );
    world.say(leaving(sound()));
    let event = world.server.nth("POST", 1).await;
    assert_eq!(event.body["type"], "Normal");
    assert_eq!(event.body["reason"], "NodeLeaving");
    // A repeated Event increases the count.
    world.say(broken());
    world.server.nth("PATCH", 0).await;
    let patch = world.server.last("PATCH");
    assert_eq!(patch.body["series"]["count"], 2);
    assert_eq!(world.server.count("POST"), 2);
}

#[tokio::test]
async fn it_ends_with_the_reports_and_leaves_the_condition() {
    let world = World::begin(Server::start().await, settings(true, true));
    world.say(sound());
    world.server.nth("PATCH", 0).await;
    drop(world.reports);
    server::eventually(|| world.publishing.task.is_finished()).await;
    assert_eq!(world.server.count("PATCH"), 1);
    assert_eq!(world.server.count("DELETE"), 0);
}

/// An agent with a successor answers no client, so it must not publish its verdict either.
#[tokio::test]
async fn an_agent_with_a_successor_writes_nothing_until_it_is_alone_again() {
    let world = World::begin(Server::start().await, settings(true, false));
    world.say(sound());
    world.server.nth("PATCH", 0).await;
    let turns = Cell::new(0);
    server::eventually(|| {
        turns.set(turns.get() + 1);
        let mut report = if turns.get() % 2 == 1 {
            broken()
        } else {
            sound()
        };
        report.port.succeeded = turns.get() % 2 == 1;
        world.say(report);
        world.server.count("PATCH") > 1
    })
    .await;
    let again = world.server.nth("PATCH", 1).await;
    assert_eq!(condition_of(&again)["status"], "True");
}
