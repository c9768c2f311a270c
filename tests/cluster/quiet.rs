//! A quiet cluster: the API server sends nothing, because nothing changes.
//!
//! An API server sends no bookmarks on a resource that has not changed since the server started. The agent
//! must not take that silence for a dead watch: it must not list again or report a problem. It must still
//! judge every failure, including misrouted connections.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp};
use node_tests::prelude::*;

use crate::scene::{PATIENCE, Scene, flush, wait_healthz};

/// Environment variable for the duration of the quiet time, in seconds.
const QUIET: &str = "PATHPROOF_QUIET_SECONDS";
/// Default duration. It exceeds 90 s, after which the agent formerly took a silent watch for dead.
const QUIET_DEFAULT: Duration = Duration::from_secs(100);
const SAMPLE: Duration = Duration::from_secs(1);
/// Tolerance for the length of a watch: the API server may record its end a little earlier or later than the
/// agent.
const SLACK: Duration = Duration::from_secs(20);
/// Watched resources, each with the allowed time between the starts of two watches, in seconds.
const WATCHED: [(&str, RangeInclusive<u64>); 3] = [
    ("nodes", 60..=120),
    ("services", 300..=600),
    ("endpointslices", 300..=600),
];
/// Lists of the objects that must not change.
const LISTS: [&str; 3] = [
    "/api/v1/nodes",
    "/api/v1/services",
    "/apis/discovery.k8s.io/v1/endpointslices",
];

/// Duration of the quiet time that the variable [`QUIET`] sets, if any.
pub(crate) fn asked() -> Option<Duration> {
    let seconds = std::env::var(QUIET).ok()?;
    let seconds = seconds
        .parse()
        .expect("PATHPROOF_QUIET_SECONDS is a number");
    Some(Duration::from_secs(seconds))
}

fn versions(scene: &Scene) -> BTreeMap<String, String> {
    let mut versions = BTreeMap::new();
    for path in LISTS {
        let list = scene.api.get(path).expect("a list");
        for object in list["items"].as_array().expect("items") {
            let metadata = &object["metadata"];
            let name = format!("{path}: {} {}", metadata["namespace"], metadata["name"]);
            let version = format!("{} {}", metadata["uid"], metadata["resourceVersion"]);
            versions.insert(name, version);
        }
    }
    versions
}

/// The parts of a report that a silent API server could affect.
fn state(report: &Value) -> Value {
    let coverage = &report["verdict"]["coverage"];
    json!({
        "problems": report["cluster"]["problems"],
        "losses": coverage["losses"],
        "lost_suspended": coverage["lost_suspended"],
        "misrouted_suspended": coverage["misrouted_suspended"],
        "healthz": report["answers"]["healthz"]["status"],
    })
}

/// The value of [`state`] on a healthy node. The verdict is not part of it, because it may be briefly
/// `suspect` on a loaded machine.
fn healthy() -> Value {
    json!({
        "problems": [],
        "losses": [],
        "lost_suspended": false,
        "misrouted_suspended": false,
        "healthz": 200,
    })
}

/// Time since the agent last received a byte, for each of its connections to the API server.
fn silences(scene: &Scene) -> Vec<Duration> {
    let filter = format!("dport = :{}", scene.far().port());
    let words = ["-H", "-O", "-t", "-i", "-n", "-p", "state", "established"];
    let words = [&words[..], &[&filter]].concat();
    let table = scene.world.node.feed("ss", &words, "").expect("ss");
    let owner = format!("pid={},", scene.agent().pid());
    let received = |line: &str| {
        let word = line.split(" lastrcv:").nth(1)?;
        word.split(' ').next()?.parse().ok()
    };
    let own = table.lines().filter(|line| line.contains(&owner));
    own.filter_map(received)
        .map(Duration::from_millis)
        .collect()
}

/// A request of the agent in the API server's audit log.
#[derive(Clone, Debug)]
struct Request {
    at: Timestamp,
    verb: String,
    /// Resource, such as `services` or `pods/status`; empty if the path has none.
    resource: String,
    /// Whether the answer contains every object: for a list, or for a watch that begins with a list.
    is_list: bool,
}

impl From<Value> for Request {
    fn from(event: Value) -> Self {
        let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut resource = word(&event["objectRef"]["resource"]);
        if let Some(part) = event["objectRef"]["subresource"].as_str() {
            resource = format!("{resource}/{part}");
        }
        let is_streamed = word(&event["requestURI"]).contains("sendInitialEvents=true");
        Self {
            at: word(&event["requestReceivedTimestamp"])
                .parse()
                .expect("a time"),
            verb: word(&event["verb"]),
            resource,
            is_list: event["verb"] == "list" || is_streamed,
        }
    }
}

/// Counts requests by verb and resource. Watches that begin with a list have their own count.
fn table<'a>(requests: impl IntoIterator<Item = &'a Request>) -> BTreeMap<(&'a str, &'a str), u32> {
    let mut table = BTreeMap::new();
    for request in requests {
        let verb = match (&*request.verb, request.is_list) {
            ("watch", true) => "watch with list",
            (verb, _) => verb,
        };
        *table.entry((verb, &*request.resource)).or_default() += 1;
    }
    table
}

fn seconds(time: SignedDuration) -> f64 {
    time.as_secs_f64()
}

/// Asserts that the agent only watched during the quiet time, and that each watch had its full length.
fn check(requests: &[Request], began: Timestamp, ended: Timestamp) {
    let shown = || format!("quiet from {began} to {ended}: {requests:#?}");
    for (resource, span) in WATCHED {
        let mine: Vec<&Request> = requests
            .iter()
            .filter(|request| request.resource == resource)
            .collect();
        // Begin with the last list, because if a server refuses to stream it, the agent lists in pages and
        // then watches.
        let listed = mine.iter().rposition(|request| request.is_list);
        let listed = listed.unwrap_or_else(|| panic!("{resource} was never listed: {}", shown()));
        assert!(
            mine[listed].at < began,
            "{resource} was listed again: {}",
            shown()
        );
        let watches = mine[listed..]
            .iter()
            .filter(|request| request.verb == "watch");
        let starts: Vec<Timestamp> = watches.map(|watch| watch.at).collect();
        assert!(!starts.is_empty(), "{resource} is not watched: {}", shown());
        let slack = SLACK.as_secs_f64();
        let (least, most) = (*span.start() as f64 - 1.0, *span.end() as f64 + slack);
        for pair in starts.windows(2) {
            let lasted = seconds(pair[1].duration_since(pair[0]));
            assert!(
                (least..=most).contains(&lasted),
                "a watch of {resource} lasted {lasted:.1} s: {}",
                shown()
            );
        }
        // The agent must start the next watch in time. This also shows that the audit log is complete.
        let last = starts.last().copied().unwrap_or(began);
        let lasts = seconds(ended.duration_since(last));
        assert!(
            lasts <= most,
            "no watch of {resource} for {lasts:.1} s: {}",
            shown()
        );
    }
    let other = requests.iter().find(|request| {
        let watched = WATCHED
            .iter()
            .any(|(resource, _)| *resource == request.resource);
        request.at >= began && !(watched && request.verb == "watch")
    });
    assert!(other.is_none(), "{other:?} of {}", shown());
}

/// Asserts that for `span` nothing changes in the cluster or in the agent's state.
fn keep_quiet(scene: &Scene, span: Duration) {
    let watch = Watch::start(&scene.world, Duration::from_millis(200)).expect("a poller");
    wait_healthz(&watch, 200);
    let before = versions(scene);
    let (began, start) = (Timestamp::now(), Instant::now());
    // The longest time in which neither the watch of Services nor that of slices received a byte.
    let mut silence = Duration::ZERO;
    while start.elapsed() < span {
        assert_never_503(&watch);
        let report = scene.report();
        assert_eq!(
            state(&report),
            healthy(),
            "after {:?}: {}",
            start.elapsed(),
            scene.agent().log()
        );
        let mut silences = silences(scene);
        silences.sort();
        // Use the second longest silence: the Node's watch ends earlier, and may restart on another
        // connection.
        if let [.., one, _] = silences[..] {
            silence = silence.max(one);
        }
        thread::sleep(SAMPLE);
    }
    let ended = Timestamp::now();
    let requests = scene.control.agent_requests().expect("an audit log");
    let requests: Vec<Request> = requests.into_iter().map(Request::from).collect();
    println!("\nrequests of the agent | before | in {span:?} of quiet");
    let begins = |request: &&Request| request.at < began;
    let first = table(requests.iter().filter(begins));
    let meanwhile = table(requests.iter().filter(|request| !begins(request)));
    let mut all = first.clone();
    all.extend(meanwhile.clone());
    for (verb, resource) in all.keys() {
        let of = |table: &BTreeMap<_, u32>| table.get(&(*verb, *resource)).copied();
        let (first, meanwhile) = (of(&first).unwrap_or(0), of(&meanwhile).unwrap_or(0));
        println!("{verb} {resource} | {first} | {meanwhile}");
    }
    println!("two connections received nothing for {silence:.1?}");
    check(&requests, began, ended);

    assert_eq!(versions(scene), before, "an object changed");
    // The test proves something only if the server was silent.
    let wanted = span.min(QUIET_DEFAULT).mul_f32(0.95);
    assert!(
        silence >= wanted,
        "the watches received something: silent for {silence:?} at most"
    );
    assert_never_503(&watch);
}

/// Removes the routes to local and remote pods, so that translated packets leave by the default route.
fn cut_routes(scene: &Scene) {
    for pod in scene.world.pods().filter(|pod| pod.place != Place::Remote) {
        scene.world.cut_route(&pod.name).expect("cut a route");
    }
    let node = &scene.world.node;
    node.ip("route del 10.244.1.0/24").expect("cut a route");
    node.ip("-6 route del fd00:10:244:1::/64")
        .expect("cut a route");
}

#[test]
fn a_silent_api_server_hides_no_fault() {
    needs!(skip::tool("ss"));
    let mut scene = needs!(Scene::bare(Mode::Nftables));
    let restarts = "an API server on this machine, to restart it";
    drop(needs!(skip::needed(
        scene.control.apiserver.take().context(restarts)
    )));
    // Restart the API server: if it saw no change since its start, it sends no bookmarks.
    scene.control.start_apiserver().expect("an API server");
    // Do not publish the condition, whose heartbeat would change the Node every 5 minutes.
    scene.start_agent(&["--publish-condition=off", "--publish-events=off"]);
    scene.wait_proven();
    scene.wait("a healthy node", |report| state(report) == healthy());
    let before = versions(&scene);
    keep_quiet(&scene, asked().unwrap_or(QUIET_DEFAULT));

    let watch = scene.watch_healthy();
    let rules = flush(&scene.world.node);
    wait_healthz(&watch, 503);
    let broken = scene.wait("a cause", |report| report["verdict"]["cause"].is_string());
    println!("flushed: {}", broken["verdict"]["cause"]);
    scene.world.node.nft(&rules).expect("the rules again");
    wait_healthz(&watch, 200);
    scene.wait_proven();

    scene.traffic();
    scene.wait("pods' connections proven", are_pods_proven);
    let misrouted = || {
        let text = until(PATIENCE, || scene.agent().metrics().ok()).expect("metrics");
        let labels = ["outcome=\"misrouted\""];
        metric(&text, "pathproof_connections_total", &labels)
    };
    assert_eq!(misrouted(), 0);
    cut_routes(&scene);
    wait_healthz(&watch, 503);
    let broken = scene.wait("misrouted connections", |report| {
        report["verdict"]["cause"] == "misrouted" && report["verdict"]["state"] == "broken"
    });
    let causes = Family::ALL.map(|family| family_of(&broken, family)["cause"].clone());
    println!("routes cut: {causes:?}, {} misrouted", misrouted());
    assert_eq!(
        broken["verdict"]["coverage"]["misrouted_suspended"], false,
        "{broken:#}"
    );
    assert!(misrouted() > 0, "{broken:#}");
    assert_eq!(versions(&scene), before, "an object changed");
}
