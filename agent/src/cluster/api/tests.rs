use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{future, io};

use hyper::{Request, Response};
use kube::client::Body;
use pathproof_facts::cluster::Change;
use pathproof_facts::view::ClusterView;
use rstest::rstest;
use serde_json::json;
use tokio::time::{Instant, timeout};

use super::*;
use crate::cluster::api::client::client;

mod interrupted;
mod memory;
mod objects;
mod requests;
pub(super) mod server;
mod zero_values;

use server::{Answer, Script, Server};

/// A followed server, and the resulting view.
struct World {
    server: Server,
    updates: mpsc::Receiver<Update>,
    view: ClusterView,
    problems: Vec<String>,
}

/// Timeouts of milliseconds.
fn hasty() -> Pace {
    Pace {
        reply: Duration::from_millis(300),
        watch: Duration::from_secs(300),
        watch_node: Duration::from_secs(300),
        refusals: Duration::ZERO,
        pause: Duration::from_millis(5),
        longest: Duration::from_millis(20),
        relist: Duration::from_millis(5),
        relist_pages: Duration::from_millis(5),
        page: 4_000,
    }
}

async fn follow(url: String, pace: Pace) -> mpsc::Receiver<Update> {
    let client = client(None, Some(&url), None).await.unwrap();
    let mut source = ApiServer::new(client, "here", Scope::Full);
    source.pace = pace;
    source.follow()
}

impl World {
    async fn new(script: Script) -> Self {
        Self::at_pace(script, hasty()).await
    }

    async fn at_pace(script: Script, pace: Pace) -> Self {
        let server = Server::start(script).await;
        let updates = follow(server.url(), pace).await;
        Self {
            server,
            updates,
            view: ClusterView::new(),
            problems: Vec::new(),
        }
    }

    /// Waits for the next update, applies it to the view, and returns its changes.
    async fn next(&mut self) -> Vec<Change> {
        let update = timeout(Duration::from_secs(60), self.updates.recv()).await;
        let update = update.expect("no update came").expect("the source ended");
        self.problems = update.problems.iter().map(ToString::to_string).collect();
        self.view.apply(update.changes.clone());
        update.changes
    }

    async fn until(&mut self, fits: impl Fn(&World) -> bool) {
        while !fits(self) {
            let next = tokio::time::timeout(Duration::from_secs(60), self.next());
            let in_time = next.await.is_ok();
            assert!(in_time, "no update within a minute: {:?}", self.problems);
        }
    }

    fn services(&self) -> Vec<String> {
        let states = self.view.states();
        let there = states.filter(|(_, state)| state.service.is_some());
        let mut names: Vec<_> = there.map(|(name, _)| name.name.to_string()).collect();
        names.sort();
        names
    }
}

fn node(version: u32, taints: &[&str]) -> String {
    let taints: Vec<_> = taints.iter().map(|key| json!({"key": key})).collect();
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"name": "here", "uid": "1", "resourceVersion": version.to_string()},
        "spec": {"taints": taints},
    })
    .to_string()
}

fn service(version: u32, name: &str, port: u16) -> String {
    json!({
        "kind": "Service", "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "shop", "resourceVersion": version.to_string()},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": port}]},
    })
    .to_string()
}

fn event(kind: &str, object: &str) -> String {
    format!(r#"{{"type":"{kind}","object":{object}}}"#)
}

fn bookmark(version: u32, annotations: &str) -> String {
    event(
        "BOOKMARK",
        &format!(r#"{{"metadata":{{"resourceVersion":"{version}"{annotations}}}}}"#),
    )
}

/// The objects of a streaming list, and its end.
fn list(version: u32, objects: &[String]) -> Vec<String> {
    let mut lines: Vec<_> = objects
        .iter()
        .map(|object| event("ADDED", object))
        .collect();
    lines.push(bookmark(
        version,
        r#","annotations":{"k8s.io/initial-events-end":"true"}"#,
    ));
    lines
}

fn gone() -> String {
    event(
        "ERROR",
        r#"{"kind":"Status","status":"Failure","code":410,"reason":"Expired","message":"too old resource version: 1 (9)"}"#,
    )
}

fn failure(code: u16, message: &str) -> Answer {
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "message": message});
    Answer::Status(code, status.to_string())
}

/// A node and no slices, plus these answers for Services.
fn with_services(answers: Vec<Answer>) -> Script {
    Script::default()
        .with("nodes", vec![Answer::Open(list(1, &[node(1, &[])]))])
        .with("endpointslices", vec![Answer::Open(list(1, &[]))])
        .with("services", answers)
}

#[tokio::test]
async fn a_list_and_a_watch_make_the_view() {
    let mut nodes = list(5, &[node(4, &[])]);
    nodes.push(event("MODIFIED", &node(6, &["ToBeDeleted"])));
    let slice = r#"{"metadata":{"name":"web-1","namespace":"shop","labels":{"kubernetes.io/service-name":"web"},"resourceVersion":"3"},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"]}],"ports":[{"port":80}]}"#;
    let mut services = list(5, &[service(2, "web", 80), service(3, "old", 80)]);
    services.push(event("DELETED", &service(7, "old", 80)));
    let script = Script::default()
        .with("nodes", vec![Answer::Open(nodes)])
        .with("services", vec![Answer::Open(services)])
        .with(
            "endpointslices",
            vec![Answer::Open(list(5, &[slice.to_owned()]))],
        );
    let mut world = World::new(script).await;
    world
        .until(|world| {
            let node = world.view.node();
            world.view.is_synced()
                && world.services() == ["web"]
                && node.is_some_and(|node| node.taints.len() == 1)
        })
        .await;
    assert_eq!(world.problems, [""; 0]);
    let web = ObjectName::new("shop", "web");
    assert_eq!(world.view.state(&web).unwrap().slices.len(), 1);
}

#[tokio::test]
async fn a_forgotten_version_is_listed_again_as_one_batch() {
    let mut first = list(5, &[service(1, "a", 80), service(2, "b", 80)]);
    first.push(gone());
    let second = list(9, &[service(8, "a", 81), service(9, "c", 80)]);
    let script = with_services(vec![Answer::Open(first), Answer::Open(second)]);
    let mut world = World::new(script).await;
    world.until(|world| world.view.is_synced()).await;
    if world.services() == ["a", "b"] {
        // All changes come in one batch, so that b and c are never both missing.
        let changes = world.next().await;
        assert_eq!(changes.len(), 3, "{changes:?}");
    }
    assert_eq!(world.services(), ["a", "c"]);
    let asked = world.server.asked("services");
    assert!(asked[1].contains("sendInitialEvents=true"), "{asked:?}");
    assert!(asked[1].ends_with("resourceVersion=5"), "{asked:?}");
}

/// Requested duration of a watch, after which the script ends it.
const WHOLE: Duration = Duration::from_secs(1);

fn brief() -> Pace {
    let watch = WHOLE;
    Pace { watch, ..hasty() }
}

/// An API server sends nothing while nothing changes.
#[tokio::test]
async fn an_idle_watch_is_no_problem_and_causes_no_list() {
    let mut answers = vec![Answer::OpenFor(WHOLE, list(5, &[service(1, "a", 80)]))];
    answers.extend((0..3).map(|_| Answer::OpenFor(WHOLE, Vec::new())));
    let mut world = World::at_pace(with_services(answers), brief()).await;
    world.until(|world| world.view.is_synced()).await;
    let asked = world.server.until_asked("services", 5).await;
    assert!(
        asked[1..]
            .iter()
            .all(|url| url.ends_with("resourceVersion=5")),
        "{asked:?}"
    );
    assert_eq!(world.problems, [""; 0]);
}

/// A frozen server acknowledges all data, and ends no watch.
#[tokio::test]
async fn a_watch_that_outlasts_its_timeout_is_reported() {
    let answers = vec![
        Answer::Open(list(5, &[service(1, "a", 80)])),
        Answer::Open(vec![event("ADDED", &service(6, "b", 80))]),
    ];
    let mut world = World::at_pace(with_services(answers), brief()).await;
    let told = "it does not end watches at their timeout";
    world
        .until(|world| world.problems.iter().any(|problem| problem.contains(told)))
        .await;
    world.until(|world| world.services() == ["a", "b"]).await;
}

#[rstest]
#[case::streamed(Answer::Open([list(5, &[]), vec![gone()]].concat()))]
#[case::in_pages(failure(422, "sendInitialEvents: Forbidden"))]
#[tokio::test]
async fn lists_that_every_agent_needs_are_spread(#[case] first: Answer) {
    let page = r#"{"kind":"List","metadata":{"resourceVersion":"5"},"items":[]}"#;
    let in_pages = matches!(first, Answer::Status(..));
    let mut answers = vec![first];
    if in_pages {
        answers.push(Answer::Status(200, page.to_owned()));
        answers.push(Answer::Open(vec![gone()]));
    }
    let before = answers.len();
    answers.push(Answer::Open(list(9, &[])));
    // The random delay before a list is below one second in 1 of 36,000 runs.
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    let pace = match in_pages {
        true => Pace {
            relist_pages: hours(10),
            ..hasty()
        },
        false => Pace {
            relist: hours(10),
            ..hasty()
        },
    };
    let mut nodes = vec![Answer::Closed(list(1, &[node(1, &[])]))];
    nodes.extend((2..20).map(|version| Answer::Closed(vec![bookmark(version, "")])));
    let script = with_services(answers).with("nodes", nodes);
    let world = World::at_pace(script, pace).await;
    // The watch of the Node ends at once and is requested again. Two such requests show that time has passed.
    world.server.until_asked("services", before).await;
    let nodes = world.server.asked("nodes").len();
    world.server.until_asked("nodes", nodes + 2).await;
    assert_eq!(world.server.asked("services").len(), before);
}

#[tokio::test]
async fn a_watch_that_ended_goes_on_from_the_last_bookmark() {
    let mut lines = list(5, &[service(1, "a", 80)]);
    lines.push(bookmark(77, ""));
    let next = vec![event("ADDED", &service(80, "b", 80))];
    let script = with_services(vec![Answer::Closed(lines), Answer::Closed(next)]);
    let mut world = World::new(script).await;
    world.until(|world| world.services() == ["a", "b"]).await;
    let asked = world.server.asked("services");
    assert!(asked[1].ends_with("resourceVersion=77"), "{asked:?}");
    assert!(!asked[1].contains("sendInitialEvents"), "{asked:?}");
    // This is normal, and not reported.
    assert_eq!(world.problems, [""; 0]);
    let asked = world.server.until_asked("services", 3).await;
    assert!(asked[2].ends_with("resourceVersion=80"), "{asked:?}");
}

#[rstest]
#[case(500, "etcd is sick", "cannot return services (etcd is sick)")]
#[case(403, "no", "the agent may not watch services (no)")]
#[case(401, "Unauthorized", "the agent is not authenticated (Unauthorized)")]
#[tokio::test]
async fn errors_are_reported_until_they_pass(
    #[case] code: u16,
    #[case] message: &str,
    #[case] told: &str,
) {
    let good = list(5, &[service(1, "a", 80)]);
    let script = with_services(vec![
        failure(code, message),
        failure(code, message),
        Answer::Open(good),
    ]);
    let slow = Pace {
        pause: Duration::from_millis(100),
        ..hasty()
    };
    let mut world = World::at_pace(script, slow).await;
    world.until(|world| !world.problems.is_empty()).await;
    assert!(world.problems[0].contains(told), "{:?}", world.problems);
    assert!(!world.view.is_synced());
    world
        .until(|world| world.problems.is_empty() && world.view.is_synced())
        .await;
    assert_eq!(world.services(), ["a"]);
}

#[tokio::test]
async fn watches_that_end_at_once_are_one_problem_until_one_lasts() {
    let mut answers = vec![Answer::Closed(list(5, &[service(1, "a", 80)]))];
    answers.extend((0..8).map(|_| Answer::OpenFor(Duration::from_millis(30), Vec::new())));
    answers.push(Answer::Open(vec![bookmark(6, "")]));
    // Longer than this test, so that no watch counts as one that lasts.
    let pause = Duration::from_secs(60);
    let pace = Pace { pause, ..hasty() };
    let mut world = World::at_pace(with_services(answers), pace).await;
    world.until(|world| !world.problems.is_empty()).await;
    assert!(
        world.problems[0].contains("it ends every watch immediately"),
        "{:?}",
        world.problems
    );
    world.next().await;
    assert_eq!(world.problems, [""; 0]);
    // Only the watch that lasts clears the problem.
    assert_eq!(world.server.asked("services").len(), 10);
}

#[tokio::test]
async fn known_objects_stay_while_the_server_fails() {
    let answers = vec![
        Answer::Closed(list(5, &[service(1, "a", 80)])),
        failure(503, "starting"),
        Answer::Open(vec![event("ADDED", &service(6, "b", 80))]),
    ];
    let mut world = World::new(with_services(answers)).await;
    world.until(|world| world.services() == ["a", "b"]).await;
    let asked = world.server.asked("services");
    assert!(asked[2].ends_with("resourceVersion=5"), "{asked:?}");
}

#[rstest]
#[case::refused(failure(422, "sendInitialEvents: Forbidden"))]
#[case::old_etcd(failure(500, "storage feature RequestWatchProgress is disabled"))]
#[case::told_in_the_stream(Answer::Open(vec![event("ERROR", r#"{"kind":"Status","code":500,"message":"RequestWatchProgress is disabled"}"#)]))]
#[case::not_understood(Answer::Open(vec![event("ADDED", &service(1, "x", 80))]))]
#[tokio::test]
async fn pages_replace_unsupported_streaming_lists(#[case] first: Answer) {
    let page = |objects: &[String], next: &str| {
        let items = objects.join(",");
        let list = format!(
            r#"{{"kind":"List","metadata":{{"resourceVersion":"9","continue":"{next}"}},"items":[{items}]}}"#
        );
        Answer::Status(200, list)
    };
    let script = with_services(vec![
        first,
        page(&[service(1, "a", 80)], "t=1"),
        page(&[service(2, "b", 80)], ""),
        Answer::Open(vec![event("DELETED", &service(10, "b", 80))]),
    ]);
    let mut world = World::new(script).await;
    world
        .until(|world| world.view.is_synced() && world.services() == ["a"])
        .await;
    let asked = world.server.asked("services");
    assert!(asked[2].ends_with("&limit=250&continue=t%3D1"), "{asked:?}");
    assert!(asked[3].ends_with("resourceVersion=9"), "{asked:?}");
}

#[tokio::test]
async fn an_older_server_is_accepted_after_a_restore() {
    let script = with_services(vec![
        Answer::Closed(list(500, &[service(400, "a", 80)])),
        failure(504, "Too large resource version: 500, current: 9"),
        Answer::Open(list(9, &[service(8, "b", 80)])),
    ]);
    let mut world = World::new(script).await;
    world.until(|world| world.services() == ["b"]).await;
    let asked = world.server.asked("services");
    assert!(asked[2].ends_with("resourceVersion=0"), "{asked:?}");
}

#[tokio::test]
async fn an_unreachable_server_is_a_problem_and_no_view() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = nobody.local_addr().unwrap();
    drop(nobody);
    let mut updates = follow(format!("http://{address}"), hasty()).await;
    let update = timeout(Duration::from_secs(60), updates.recv()).await;
    let update = update.unwrap().unwrap();
    assert_eq!(update.changes, []);
    let told: Vec<_> = update.problems.iter().map(ToString::to_string).collect();
    // There is one report, although three resources are watched.
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(
        told[0].starts_with("API server: cannot be reached (Connection refused"),
        "{told:?}"
    );
}

/// The agent notices within 15 s that an API server is back, and does not poll it much faster.
#[tokio::test(start_paused = true)]
async fn an_unreachable_server_is_polled_at_a_bounded_rate() {
    let asked = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&asked);
    let nobody = tower::service_fn(move |request: Request<Body>| {
        if request.uri().path().ends_with("/services") {
            noted.lock().unwrap().push(Instant::now());
        }
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        future::ready(Err::<Response<Body>, _>(refused))
    });
    let client = kube::Client::new(nobody, "default");
    let mut updates = ApiServer::new(client, "here", Scope::Full).follow();
    let drain = async { while updates.recv().await.is_some() {} };
    timeout(Duration::from_secs(3_600), drain)
        .await
        .unwrap_err();
    let asked = asked.lock().unwrap();
    let pauses = asked.windows(2).map(|pair| pair[1] - pair[0]);
    let pauses: Vec<_> = pauses.map(|pause| pause.as_secs_f64()).collect();
    assert!(pauses.iter().all(|pause| *pause <= 15.1), "{pauses:?}");
    let later = &pauses[10..];
    assert!(later.iter().all(|pause| *pause >= 5.0), "{pauses:?}");
}

#[tokio::test]
async fn an_odd_object_is_named_and_the_others_are_read() {
    let odd = r#"{"metadata":{"name":"odd","namespace":"shop","resourceVersion":"2"},"spec":{"ports":"none"}}"#;
    let headless = r#"{"metadata":{"name":"h","namespace":"shop","resourceVersion":"3"},"spec":{"clusterIP":"None"}}"#;
    let objects = [odd.to_owned(), headless.to_owned(), service(4, "a", 80)];
    let mut world = World::new(with_services(vec![Answer::Open(list(5, &objects))])).await;
    world.until(|world| world.view.is_synced()).await;
    assert_eq!(world.services(), ["a"]);
    assert_eq!(world.problems.len(), 1);
    assert!(
        world.problems[0].starts_with("API server: Service shop/odd cannot be parsed: "),
        "{:?}",
        world.problems
    );
}
