use std::sync::atomic::Ordering;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use agent_core::cause::State;
use agent_core::fleet::{CoverageSeen, Group, Judged, rows};
use agent_core::report::{Report, sample};
use server::{Agent, Script};

mod server;

fn now() -> Wall {
    Wall(i64::try_from(sample::written().as_nanosecond()).unwrap())
}

fn reach() -> Reach {
    Reach {
        namespace: "pathproof".to_owned(),
        port: 19256,
        timeout: Duration::from_secs(60),
    }
}

fn node(name: &str) -> Value {
    json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/os": "linux" } },
        "status": { "conditions": [
            { "type": "Ready", "status": "True" },
            { "type": "ServiceDatapathReady", "status": "True", "reason": "DatapathProven",
              "message": "sound", "lastHeartbeatTime": "2026-11-21T12:59:00Z",
              "lastTransitionTime": "2026-11-20T12:59:00Z" },
        ] },
    })
}

fn pod(node: &str) -> Value {
    json!({
        "metadata": { "name": format!("agent-{node}") },
        "spec": { "nodeName": node },
        "status": { "phase": "Running", "containerStatuses": [{ "ready": true, "state": {} }] },
    })
}

fn list(items: Vec<Value>) -> Value {
    json!({ "metadata": {}, "items": items })
}

fn answer(report: &Report) -> String {
    let body = serde_json::to_string(report).unwrap();
    let length = body.len();
    format!(
        "HTTP/1.0 200 OK\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// So many nodes with an agent each that says so.
fn cluster(nodes: usize, agent: &Agent) -> Script {
    let names: Vec<String> = (0..nodes).map(|index| format!("worker-{index}")).collect();
    let mut script = Script::default();
    let items = |of: fn(&str) -> Value| names.iter().map(|name| of(name)).collect();
    script.pages.insert("nodes", vec![list(items(node))]);
    script.pages.insert("pods", vec![list(items(pod))]);
    for name in &names {
        script.agents.insert(format!("agent-{name}"), agent.clone());
    }
    script
}

async fn survey(script: Script, ask: Ask) -> (Surveyed, std::sync::Arc<Script>) {
    let (client, script) = script.start().await;
    let survey = Survey {
        selector: None,
        ask,
    };
    let found = Cluster::new(client, reach())
        .survey(&survey, now(), |_| {})
        .await;
    (found.unwrap(), script)
}

#[tokio::test]
async fn pages_are_followed_to_the_end() {
    let mut script = Script::default();
    let page =
        |name: &str, next: &str| json!({ "metadata": { "continue": next }, "items": [node(name)] });
    let pages = vec![page("a", "1"), page("b", "2"), page("c", "")];
    script.pages.insert("nodes", pages);
    let (found, script) = survey(script, Ask::None).await;
    let names: Vec<&str> = found.nodes.iter().map(|of| of.node.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(script.count("/api/v1/nodes?limit=500"), 3);
    // Nothing else was asked.
    assert_eq!(script.count("/"), 3);
}

#[tokio::test]
async fn a_list_that_the_server_forgot_is_read_anew() {
    let mut script = Script::default();
    let pages = vec![
        json!({ "metadata": { "continue": "1" }, "items": [node("a")] }),
        list(vec![node("b")]),
    ];
    script.pages.insert("nodes", pages);
    let (client, script) = script.start().await;
    // The second request is refused once.
    let cluster = Cluster::new(client, reach());
    let survey = Survey {
        selector: Some("a=b,c".to_owned()),
        ask: Ask::None,
    };
    let seen = std::sync::Arc::clone(&script);
    let progress = move |progress| {
        if progress == Progress::Nodes(1) && seen.count("nodes") == 1 {
            let gone = (1, 410, "the provided continue parameter is too old");
            seen.refuses.lock().unwrap().insert("nodes", gone);
        }
    };
    let found = cluster.survey(&survey, now(), progress).await.unwrap();
    assert_eq!(found.nodes.len(), 2);
    assert_eq!(script.count("labelSelector=a%3Db%2Cc"), 4);
}

#[tokio::test]
async fn agents_are_asked_through_their_pods() {
    for agent in [
        Agent::Says(answer(&sample::probed::flushed())),
        Agent::SaysAndCloses(answer(&sample::probed::flushed())),
    ] {
        let (found, script) = survey(cluster(40, &agent), Ask::Auto).await;
        assert_eq!(found.notes, [""; 0]);
        let rows = rows(&found.nodes, now());
        assert_eq!(rows.len(), 40);
        for row in &rows {
            assert_eq!(
                (row.group, row.judged),
                (Group::Sick, Judged::State(State::Broken))
            );
            assert_eq!(row.lag, Some(Duration::from_millis(180)));
            assert!(row.coverage.as_ref().is_some_and(CoverageSeen::is_full));
        }
        assert_eq!(
            script.count("/pods/agent-worker-7/portforward?ports=19256"),
            1
        );
        let most = script.most_open.load(Ordering::SeqCst);
        assert!((1..=AT_A_TIME).contains(&most), "{most}");
    }
}

#[rstest]
#[case(Agent::Refused, "connection refused")]
#[case(Agent::Closes, "--admin-allow-cidr")]
#[case(Agent::Says("HTTP/1.1 503 x\r\ncontent-length: 28\r\n\r\n{\"pending\":[\"cluster view\"]}".to_owned()), "it waits for: cluster view")]
#[case(Agent::SaysAndCloses("HTTP/1.1 404 Not Found\r\n\r\nno".to_owned()), "no agent of pathproof (HTTP/1.1 404 Not Found)")]
#[case(Agent::SaysAndCloses("HTTP/1.1 200 OK\r\n\r\n{\"schema\":7}".to_owned()), "schema 7, ours is 1")]
#[tokio::test]
async fn an_agent_that_does_not_answer_is_named(#[case] agent: Agent, #[case] expected: &str) {
    let (found, _) = survey(cluster(1, &agent), Ask::All).await;
    let row = rows(&found.nodes, now()).remove(0);
    // What its condition says stands beside it.
    assert_eq!((row.group, row.judged.name()), (Group::Doubtful, "proven"));
    let sentence = row.sentence.unwrap();
    assert!(
        sentence.contains("does not answer") && sentence.contains(expected),
        "{sentence}"
    );
}

#[tokio::test]
async fn an_agent_that_hangs_holds_nobody_up() {
    let mut script = cluster(2, &Agent::Says(answer(&sample::proven())));
    script
        .agents
        .insert("agent-worker-0".to_owned(), Agent::Hangs);
    let (client, _) = script.start().await;
    let reach = Reach {
        timeout: Duration::from_millis(500),
        ..reach()
    };
    let survey = Survey {
        selector: None,
        ask: Ask::All,
    };
    let found = Cluster::new(client, reach)
        .survey(&survey, now(), |_| {})
        .await
        .unwrap();
    assert!(
        matches!(&found.nodes[0].agent, AgentSeen::Silent(why) if why.contains("--request-timeout"))
    );
}

#[tokio::test]
async fn without_the_right_to_list_pods_the_conditions_are_left() {
    let said = "pods is forbidden: User \"jane\" cannot list resource \"pods\"";
    let script = cluster(3, &Agent::Closes).refuse("pods", 9, 403, said);
    let (found, script) = survey(script, Ask::Auto).await;
    assert!(
        rows(&found.nodes, now())
            .iter()
            .all(|row| row.group == Group::Sound)
    );
    let [note] = found.notes.as_slice() else {
        panic!("{:?}", found.notes);
    };
    assert!(
        note.contains("the right to list pods in namespace pathproof is missing"),
        "{note}"
    );
    assert!(
        note.contains("jane") && note.contains("fleet-rbac.yaml"),
        "{note}"
    );
    assert_eq!(script.count("portforward"), 0);
}

#[rstest]
#[case(
    "pods \"x\" is forbidden: User \"jane\" cannot get resource \"pods/portforward\"",
    "get pods/portforward"
)]
#[case("pods \"x\" is forbidden: ", "create pods/portforward")]
#[tokio::test]
async fn where_every_port_forward_is_denied_asking_ends(
    #[case] said: &'static str,
    #[case] right: &str,
) {
    let script = cluster(90, &Agent::Closes).refuse("portforward", 999, 403, said);
    let (found, script) = survey(script, Ask::All).await;
    let [note] = found.notes.as_slice() else {
        panic!("{:?}", found.notes);
    };
    let expected = format!("the right to {right} in namespace pathproof is missing");
    assert!(note.contains(&expected), "{note}");
    // Those that were under way beside it, and no more.
    assert!(script.count("portforward") <= 2 * AT_A_TIME);
    assert!(
        rows(&found.nodes, now())
            .iter()
            .all(|row| row.group == Group::Sound)
    );
}

/// Roles can name single pods.
#[tokio::test]
async fn a_denied_port_forward_leaves_the_other_nodes() {
    let said = "pods \"x\" is forbidden: ";
    let script = cluster(90, &Agent::Says(answer(&sample::proven())));
    let (found, script) = survey(script.refuse("portforward", 2, 403, said), Ask::All).await;
    assert_eq!(script.count("portforward"), 90);
    let not_asked = |facts: &&NodeFacts| facts.agent == AgentSeen::Unasked;
    assert_eq!(found.nodes.iter().filter(not_asked).count(), 2);
    let [note] = found.notes.as_slice() else {
        panic!("{:?}", found.notes);
    };
    let expected = "not known of 2 of 90 agents: the right to create pods/portforward";
    assert!(note.contains(expected), "{note}");
}

#[tokio::test]
async fn who_asks_the_sick_alone_is_not_told_of_the_others() {
    let script = cluster(3, &Agent::Closes);
    let (found, script) = survey(script, Ask::Sick).await;
    assert_eq!(script.count("portforward"), 0);
    assert!(found.notes.is_empty(), "{:?}", found.notes);
}

#[rstest]
#[case(403, true, "the right to list nodes in the whole cluster is missing")]
#[case(401, true, "log in again")]
#[case(500, false, "did not list nodes (500: why)")]
#[tokio::test]
async fn without_nodes_there_is_no_list(
    #[case] code: u16,
    #[case] permission: bool,
    #[case] expected: &str,
) {
    let (client, _) = Script::default()
        .refuse("nodes", 9, code, "why")
        .start()
        .await;
    let survey = Survey {
        selector: None,
        ask: Ask::Auto,
    };
    let error = Cluster::new(client, reach())
        .survey(&survey, now(), |_| {})
        .await
        .unwrap_err();
    assert_eq!(error.is_permission(), permission);
    assert!(error.to_string().contains(expected), "{error}");
}

#[tokio::test]
async fn nodes_without_an_agent_are_named() {
    let mut script = cluster(2, &Agent::Says(answer(&sample::proven())));
    let mut waiting = pod("worker-1");
    waiting["status"]["containerStatuses"][0]["state"] =
        json!({ "waiting": { "reason": "ImagePullBackOff" } });
    let nodes = ["worker-0", "worker-1", "worker-2"].map(|name| {
        let mut node = node(name);
        node["status"] = json!({});
        node
    });
    script.pages.insert("nodes", vec![list(nodes.to_vec())]);
    script
        .pages
        .insert("pods", vec![list(vec![pod("worker-0"), waiting])]);
    let (found, _) = survey(script, Ask::Auto).await;
    let rows = rows(&found.nodes, now());
    let said: Vec<(&str, &str)> = rows
        .iter()
        .map(|row| (row.node.as_str(), row.judged.name()))
        .collect();
    assert_eq!(
        said,
        [
            ("worker-1", "no answer"),
            ("worker-2", "no agent"),
            ("worker-0", "proven")
        ]
    );
    assert!(
        rows[0]
            .sentence
            .as_ref()
            .unwrap()
            .contains("ImagePullBackOff")
    );
}

#[tokio::test]
async fn a_namespace_without_agents_is_pointed_out() {
    let mut script = cluster(2, &Agent::Closes);
    script.pages.remove("pods");
    let (found, _) = survey(script, Ask::Auto).await;
    assert!(found.notes[0].contains("no pod of an agent is in namespace pathproof"));
    assert!(
        rows(&found.nodes, now())
            .iter()
            .all(|row| row.group == Group::Sound)
    );
}

#[tokio::test]
async fn in_a_large_cluster_only_some_are_asked() {
    let mut script = cluster(150, &Agent::Says(answer(&sample::proven())));
    let nodes = script.pages.get_mut("nodes").unwrap();
    nodes[0]["items"][149]["status"]["conditions"][1]["status"] = json!("False");
    nodes[0]["items"][149]["status"]["conditions"][1]["reason"] = json!("DatapathBroken");
    let (found, script) = survey(script, Ask::Auto).await;
    assert_eq!(script.count("portforward"), 1);
    assert_eq!(script.count("agent-worker-149"), 1);
    assert!(
        found.notes[0].contains("149 agents were not asked"),
        "{:?}",
        found.notes
    );
}

/// During an update a node has two pods.
#[test]
fn the_pod_that_runs_is_asked() {
    let seen = |name: &str, running, ready, deleting| PodSeen {
        name: name.to_owned(),
        node: "worker-1".to_owned(),
        running,
        ready,
        deleting,
        looks: String::new(),
    };
    let old = seen("old", true, true, true);
    let new = seen("new", true, true, false);
    let early = seen("early", false, false, false);
    for (pods, expected) in [
        (vec![old.clone(), new.clone()], "new"),
        (vec![new, old.clone()], "new"),
        (vec![early, old], "old"),
    ] {
        let mut nodes = vec![NodeFacts {
            node: NodeSeen {
                name: "worker-1".to_owned(),
                ..NodeSeen::default()
            },
            agent: AgentSeen::Unsought,
        }];
        let doors = look_for(&mut nodes, pods, &[0]);
        assert_eq!(doors, [(0, expected.to_owned())]);
    }
}

#[tokio::test]
async fn one_nodes_report_is_that_of_its_agent() {
    let report = sample::degraded();
    let (client, script) = cluster(1, &Agent::Says(answer(&report))).start().await;
    let cluster = Cluster::new(client, reach());
    let page = cluster.report("worker-0").await.unwrap();
    assert_eq!(page.report, report);
    assert_eq!(serde_json::from_str::<Report>(&page.body).unwrap(), report);
    assert_eq!(script.count("fieldSelector=spec.nodeName%3Dworker-0"), 1);
    // Nodes are not asked for: the right to read them is not needed here.
    assert_eq!(script.count("/nodes"), 0);
}

#[tokio::test]
async fn a_report_that_cannot_be_had_is_explained() {
    let (client, _) = Script::default().start().await;
    let error = Cluster::new(client, reach())
        .report("worker-9")
        .await
        .unwrap_err();
    let said = error.to_string();
    assert!(
        said.contains("node worker-9 in namespace pathproof") && said.contains("--namespace"),
        "{said}"
    );

    let script = cluster(1, &Agent::Closes).refuse("portforward", 9, 403, "jane cannot get");
    let (client, _) = script.start().await;
    let error = Cluster::new(client, reach())
        .report("worker-0")
        .await
        .unwrap_err();
    assert!(error.is_permission());
    assert!(
        error
            .to_string()
            .contains("get pods/portforward in namespace pathproof"),
        "{error}"
    );
}
