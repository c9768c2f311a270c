//! The same request to kube-proxy's health server and to the agent. The answers are compared field by field:
//! status, headers, JSON keys in their order, and every value except times.

use node_tests::cluster::Manner;
use node_tests::http::Response;
use node_tests::prelude::*;

use crate::scene::{NODE, PATIENCE, Scene};

/// Everything in an answer by which a load balancer can distinguish the two. Times are replaced by their
/// form, because they differ from request to request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) status: u16,
    /// Lower-case names with values, in their order. Date and length are replaced by their form.
    pub(crate) headers: Vec<String>,
    pub(crate) body: String,
}

pub(crate) fn shape(answer: &Response) -> Shape {
    let headers = answer
        .headers
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| match name.to_lowercase().as_str() {
            "date" => format!("date: {} signs, {}", value.len(), &value[value.len() - 3..]),
            "content-length" => {
                assert_eq!(value, answer.body.len().to_string());
                "content-length: right".to_owned()
            }
            name => format!("{name}: {value}"),
        });
    Shape {
        status: answer.status,
        headers: headers.collect(),
        body: without_times(&answer.body),
    }
}

/// Replaces each time by its form: `T` for RFC 3339, `G` for Go's notation.
pub(crate) fn without_times(body: &str) -> String {
    let form = |text: &str| {
        let is_date = text.len() >= 20 && text.starts_with("20");
        match text.get(10..11).filter(|_| is_date) {
            Some("T") if text.ends_with('Z') => Some("T"),
            Some(" ") if text.contains(" m=+") => Some("G"),
            _ => None,
        }
    };
    let parts = body.split('"').map(|part| form(part).unwrap_or(part));
    parts.collect::<Vec<_>>().join("\"")
}

/// Checks a rule that the times in both bodies follow. On 200 the last update is the current time, and is not
/// earlier than that of any family. Otherwise it is the latest one of the families.
fn check_times(answer: &Response) {
    let body: Value = serde_json::from_str(&answer.body).expect("JSON");
    let families = body["status"].as_object().expect("families");
    let times = families
        .values()
        .map(|family| family["lastUpdated"].as_str());
    let (latest, told) = (times.max().flatten(), body["lastUpdated"].as_str());
    if answer.status == 200 {
        assert!(latest <= told, "{}", answer.body);
    } else {
        assert_eq!(latest, told, "{}", answer.body);
    }
}

impl Scene {
    /// Waits until both servers answer /healthz with this status, then asserts equal answers to all requests.
    pub(crate) fn agree(&self, what: &str, healthz: u16) {
        let seen = until(PATIENCE, || {
            let (theirs, ours) = self.ask("/healthz");
            (theirs.status == healthz && ours.status == healthz).then_some(())
        });
        if seen.is_none() {
            let (theirs, ours) = self.ask("/healthz");
            panic!("never {healthz} from both: {what}: {theirs:?}, {ours:?}");
        }
        for path in [
            "/healthz",
            "/livez",
            "/healthz?x=1",
            "/healthz/",
            "/",
            "/metrics",
        ] {
            let (theirs, ours) = self.ask(path);
            assert_eq!(
                shape(&theirs),
                shape(&ours),
                "{what}: {path}: {theirs:?}, {ours:?}"
            );
            if path.contains("ez") && theirs.status != 404 {
                check_times(&theirs);
                check_times(&ours);
            }
        }
    }
}

/// In nftables mode only, because the health server is the same in iptables mode. There `calm` compares the
/// answers.
#[test]
fn answers_equal_those_of_kube_proxy_in_nftables_mode() {
    let mut scene = needs!(Scene::proven(Mode::Nftables, &[]));
    scene.agree("fresh", 200);
    scene.taint(&["example.com/other"]);
    std::thread::sleep(Duration::from_secs(1));
    scene.agree("another taint", 200);
    scene.taint(&["example.com/other", AUTOSCALER_TAINT]);
    scene.agree("tainted", 503);
    scene.taint(&[]);
    scene.agree("untainted", 200);

    scene.relay.set(Manner::Slow(Duration::from_millis(400)));
    scene.taint(&[AUTOSCALER_TAINT]);
    scene.agree("tainted while the API is slow", 503);
    scene.taint(&[]);
    scene.agree("untainted while the API is slow", 200);

    scene.relay.set(Manner::Closed);
    std::thread::sleep(Duration::from_secs(2));
    scene.agree("API away", 200);
    // A taint that is set during the API server's outage reaches the agent only after the outage.
    scene.taint(&[AUTOSCALER_TAINT]);
    throughout(Duration::from_secs(1), || {
        scene.agree("tainted while the API is away", 200);
    });
    scene.relay.set(Manner::Open);
    scene.agree("API back", 503);
    scene.taint(&[]);
    scene.agree("untainted again", 200);

    scene.replace("web", "web-1", "spare");
    scene.agree("an endpoint changed", 200);

    // The agent's answer depends on the rules and not on kube-proxy's process.
    scene.proxy().freeze();
    std::thread::sleep(Duration::from_secs(2));
    assert!(
        scene.proxy().ask("/healthz").is_err(),
        "a stopped process does not answer"
    );
    let answer = scene.agent().healthz().expect("an answer");
    assert_eq!(answer, 200, "connections get through all the same");
    scene.proxy().thaw();
    scene.agree("kube-proxy goes on", 200);

    // Karpenter holds a node with a finalizer while it drains the node. This part is last, because a deletion
    // cannot be undone.
    let held = json!({ "metadata": { "finalizers": ["example.com/drain"] } });
    scene.api.patch(NODE, &held).expect("hold the Node");
    scene.agree("a finalizer alone", 200);
    scene.api.delete(NODE).expect("delete the Node");
    scene.agree("deleted and held", 503);
    let free = json!({ "metadata": { "finalizers": null } });
    scene.api.patch(NODE, &free).expect("let the Node go");
    std::thread::sleep(Duration::from_secs(1));
    scene.agree("gone: the last that was known counts", 503);
}

#[test]
fn times_in_a_body_are_recognised() {
    let body = "{\"a\":\"2026-11-21T20:00:00.123Z\",\"b\":true,\"c\":\"2026\"}";
    let shape = "{\"a\":\"T\",\"b\":true,\"c\":\"2026\"}";
    assert_eq!(without_times(body), shape);
    let body = "{\"a\": \"2026-11-21 20:00:00.123456789 +0000 UTC m=+9.25\"}";
    assert_eq!(without_times(body), "{\"a\": \"G\"}");
}
