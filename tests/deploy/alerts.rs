//! Each alert fires for its fault, but not for the fault's negative control. No other alert fires.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Result;
use node_tests::deploy::{Tool, overlay, said};
use node_tests::prelude::*;
use tempfile::TempDir;

use crate::find::of_kind;
use crate::fleet::{ALWAYS_0, ALWAYS_1, FROM_MINUTE_10, Firing, Fleet, UNTIL_MINUTE_10};

const BROKEN: &str = "PathproofDatapathBroken";
const STAYS_BROKEN: &str = "PathproofDatapathStaysBroken";
pub(crate) const CRITICAL: &str = "critical";
pub(crate) const WARNING: &str = "warning";
const INFO: &str = "info";

/// Writes the shipped rule groups in promtool's format.
pub(crate) fn rules() -> (TempDir, PathBuf) {
    let file = node_tests::deploy::folder().join("chart/files/alerts/prometheus-rule.yaml");
    let text = fs::read_to_string(file).expect("the rules");
    let objects = node_tests::cluster::documents(&text).expect("YAML");
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("rules.yaml");
    fs::write(&path, objects[0]["spec"].to_string()).expect("write the rules");
    (dir, path)
}

/// Output of promtool for a file.
fn asked(arguments: &[&str], file: &Path) -> Needed<Result<String>> {
    Tool::Promtool.installed()?;
    let mut command = Tool::Promtool.command().expect("promtool");
    Ok(said(command.args(arguments).arg(file)))
}

#[track_caller]
pub(crate) fn promtool(arguments: &[&str], file: &Path) {
    needs!(asked(arguments, file)).expect("promtool accepts it");
}

/// Runs this promtool test against the shipped rules.
#[track_caller]
pub(crate) fn test_rules(test: &Value) {
    let (dir, _) = rules();
    let file = dir.path().join("test.yaml");
    fs::write(&file, test.to_string()).expect("write the test");
    promtool(&["test", "rules"], &file);
}

#[track_caller]
pub(crate) fn expect(fleet: &Fleet, expected: &[(&str, &[Firing])]) {
    expect_every("30s", fleet, expected);
}

/// Like [`expect`], with samples and evaluations every `interval`.
#[track_caller]
pub(crate) fn expect_every(interval: &str, fleet: &Fleet, expected: &[(&str, &[Firing])]) {
    let mut test = fleet.test("rules.yaml", expected);
    test["evaluation_interval"] = json!(interval);
    test["tests"][0]["interval"] = json!(interval);
    test_rules(&test);
}

pub(crate) fn firing(alert: &'static str, severity: &'static str) -> Vec<Firing> {
    vec![Firing::on(alert, severity, "node-2")]
}

/// The warning that each of these nodes is broken.
pub(crate) fn broken(nodes: impl IntoIterator<Item = usize>) -> Vec<Firing> {
    let on = |node| Firing::on(BROKEN, WARNING, &format!("node-{node}"));
    nodes.into_iter().map(on).collect()
}

/// The warning and the critical alert for each of these nodes, which stay broken.
pub(crate) fn stay_broken(nodes: impl Iterator<Item = usize> + Clone) -> Vec<Firing> {
    let on = |node| Firing::on(STAYS_BROKEN, CRITICAL, &format!("node-{node}"));
    let long: Vec<Firing> = nodes.clone().map(on).collect();
    [broken(nodes), long].concat()
}

/// A fleet whose first nodes are broken from minute 10 on.
pub(crate) fn first_broken(nodes: usize, all: usize) -> Fleet {
    let mut fleet = Fleet::healthy(all);
    for node in 1..=nodes {
        fleet.broken(&format!("node-{node}"), "IPv4", "leaked", FROM_MINUTE_10);
    }
    fleet
}

#[test]
fn rules_are_sound() {
    let (_dir, path) = rules();
    promtool(&["check", "rules"], &path);
}

#[test]
fn every_alert_is_fired_by_a_test() {
    let tests = [include_str!("alerts.rs"), include_str!("many.rs")].concat();
    let (_dir, path) = rules();
    let rules = fs::read_to_string(path).expect("the rules");
    let rules: Value = serde_json::from_str(&rules).expect("JSON");
    let groups = rules["groups"].as_array().expect("groups").iter();
    let alerts: Vec<&str> = groups
        .flat_map(|group| group["rules"].as_array().into_iter().flatten())
        .filter_map(|rule| rule["alert"].as_str())
        .collect();
    assert!(!alerts.is_empty(), "{rules}");
    for alert in alerts {
        assert!(tests.contains(&format!("\"{alert}\"")), "{alert}");
    }
}

#[test]
fn nothing_fires_where_all_is_well() {
    expect(&Fleet::healthy(10), &[("5m", &[]), ("55m", &[])]);
}

/// Cases: a state, a duration that is too short for its alert, one that is long enough, alert and severity.
#[rstest]
#[case("broken", "11m30s", "12m30s", BROKEN, WARNING)]
#[case("stale", "11m30s", "12m30s", BROKEN, WARNING)]
#[case("degraded", "14m", "16m", "PathproofDatapathDegraded", WARNING)]
#[case("suspect", "24m", "26m", "PathproofDatapathSuspect", WARNING)]
#[case("unknown", "24m", "26m", "PathproofNothingKnown", INFO)]
fn a_state_that_lasts(
    #[case] state: &str,
    #[case] short: &str,
    #[case] long: &str,
    #[case] alert: &'static str,
    #[case] severity: &'static str,
) {
    let mut fleet = Fleet::healthy(10);
    fleet.state("node-2", "IPv6", state, FROM_MINUTE_10);
    expect(&fleet, &[(short, &[]), (long, &firing(alert, severity))]);
}

/// A broken node first is a warning. The critical alert fires only if the node does not recover by itself.
#[rstest]
#[case("broken")]
#[case("stale")]
fn a_single_node_is_a_warning_before_it_is_critical(#[case] state: &str) {
    let mut fleet = Fleet::healthy(10);
    fleet.state("node-2", "IPv4", state, FROM_MINUTE_10);
    let warned = firing(BROKEN, WARNING);
    let paged = stay_broken([2].into_iter());
    expect(
        &fleet,
        &[("12m30s", &warned), ("19m30s", &warned), ("20m30s", &paged)],
    );
}

#[test]
fn families_are_told_apart() {
    let mut fleet = Fleet::healthy(10);
    for family in ["IPv4", "IPv6"] {
        fleet.state("node-2", family, "broken", FROM_MINUTE_10);
    }
    let mut both = firing(BROKEN, WARNING);
    both[0].times = 2;
    expect(&fleet, &[("13m", &both)]);
}

#[test]
fn an_alert_ends_with_its_fault() {
    let mut fleet = Fleet::healthy(10);
    fleet.state("node-2", "IPv4", "broken", UNTIL_MINUTE_10);
    let fires = firing(BROKEN, WARNING);
    expect(&fleet, &[("9m", &fires), ("11m", &[])]);
}

#[test]
fn a_broken_node_that_leaves_is_only_a_warning() {
    let mut fleet = Fleet::healthy(10);
    fleet.set("pathproof_node_eligible", &["node=\"node-2\""], ALWAYS_0);
    expect(&fleet, &[("30m", &[])]);
    fleet.state("node-2", "IPv4", "broken", FROM_MINUTE_10);
    let warned = firing("PathproofBrokenWhileLeaving", WARNING);
    expect(&fleet, &[("14m", &[]), ("16m", &warned)]);
}

/// A node without the metric of eligibility must not count as one that is being removed.
#[test]
fn a_node_that_was_never_seen_counts() {
    let mut fleet = Fleet::healthy(10);
    fleet.remove("pathproof_node_eligible", "node=\"node-2\"");
    fleet.state("node-2", "IPv4", "broken", FROM_MINUTE_10);
    expect(&fleet, &[("13m", &firing(BROKEN, WARNING))]);
}

/// During an update two agents report the same node. There is one alert, and the worse state counts.
#[test]
fn two_agents_of_one_node_are_one_alert() {
    let mut fleet = Fleet::healthy(10);
    fleet.add_agent("node-2", "-new");
    expect(&fleet, &[("30m", &[])]);
    let new = [
        "pod=\"agent-node-2-new\"",
        "family=\"IPv4\"",
        "state=\"broken\"",
    ];
    fleet.set("pathproof_state", &new, FROM_MINUTE_10);
    expect(&fleet, &[("13m", &firing(BROKEN, WARNING))]);
}

/// The node is broken again and again, each time for less than the minute that the alert for a broken node
/// needs.
#[test]
fn a_node_that_breaks_again_and_again() {
    let livez = ["node=\"node-2\",", "check=\"livez\""];
    let mut fleet = Fleet::healthy(10);
    fleet.set("pathproof_would_fail", &livez, "0x19 1 0x100");
    expect(&fleet, &[("10m", &[]), ("12m", &[])]);
    fleet.set("pathproof_would_fail", &livez, "0x19 1 0x4 1 0x100");
    let flaps = firing("PathproofNodeFlaps", WARNING);
    expect(&fleet, &[("11m", &[]), ("14m", &flaps), ("40m", &[])]);
    fleet.set("pathproof_node_eligible", &["node=\"node-2\","], ALWAYS_0);
    expect(&fleet, &[("14m", &[])]);
}

/// The critical alert fires if the node does not stop flapping. Each recovery lasts three minutes.
#[test]
fn a_node_that_keeps_flapping() {
    let livez = ["node=\"node-2\",", "check=\"livez\""];
    let cycle = "1 0x5 ".repeat(16);
    let mut fleet = Fleet::healthy(10);
    fleet.set("pathproof_would_fail", &livez, &format!("0x19 {cycle}"));
    let warned = firing("PathproofNodeFlaps", WARNING);
    let paged = [
        warned.clone(),
        firing("PathproofNodeKeepsFlapping", CRITICAL),
    ];
    expect(
        &fleet,
        &[("15m", &warned), ("42m", &warned), ("45m", &paged.concat())],
    );
}

/// The node is held at 503 after each fault, or stays suspect after a fault. No state lasts, and the answer
/// hardly changes, so only this alert can show it.
#[rstest]
#[case::is_held("1x27 0 ", "broken")]
#[case::is_held_while_suspect("1x50 ", "suspect")]
fn a_node_that_stays_out_of_service(#[case] answers: &str, #[case] state: &str) {
    let livez = ["node=\"node-2\",", "check=\"livez\""];
    let out = firing("PathproofNodeOutOfService", CRITICAL);
    let mut fleet = Fleet::healthy(10);
    fleet.set(
        "pathproof_would_fail",
        &livez,
        &format!("0x19 {}", answers.repeat(8)),
    );
    let changes = format!("0x19 {}", "0 1x2 ".repeat(20));
    fleet.state("node-2", "IPv4", state, &changes);
    expect(&fleet, &[("26m", &[]), ("29m", &out)]);
    // One unknown family does not suppress the alert. Two unknown families do.
    let mut idle = fleet.clone();
    idle.state("node-2", "IPv6", "unknown", "1x200");
    let unknown = firing("PathproofNothingKnown", INFO);
    expect(&idle, &[("29m", &[out, unknown.clone()].concat())]);
    idle.state("node-2", "IPv4", "unknown", "1x200");
    let mut both = unknown;
    both[0].times = 2;
    expect(&idle, &[("29m", &both)]);
    fleet.set("pathproof_node_eligible", &["node=\"node-2\","], ALWAYS_0);
    expect(&fleet, &[("29m", &[])]);
}

#[test]
fn rules_that_lag() {
    let mut fleet = Fleet::healthy(10);
    let path = ["node=\"node-2\",", "family=\"IPv4\""];
    fleet.set("pathproof_programming_lag_seconds", &path, "0.2x19 9x100");
    expect(&fleet, &[("30m", &[])]);
    fleet.set("pathproof_programming_lag_seconds", &path, "0.2x19 45x100");
    let warned = firing("PathproofRulesLag", WARNING);
    expect(&fleet, &[("14m", &[]), ("16m", &warned)]);
}

#[test]
fn traffic_that_is_not_seen() {
    let mut fleet = Fleet::healthy(10);
    let labels = "job=\"pathproof\",node=\"node-2\",loss=\"not_first\"";
    fleet.put("pathproof_coverage_loss", labels, FROM_MINUTE_10);
    let told = firing("PathproofCoveragePartial", INFO);
    expect(&fleet, &[("39m", &[]), ("41m", &told)]);
}

/// If an agent cannot be scraped, only the alert about that fires, whatever the agent reported before.
#[test]
fn an_agent_that_cannot_be_scraped() {
    let mut fleet = Fleet::healthy(10);
    fleet.state("node-2", "IPv4", "broken", UNTIL_MINUTE_10);
    for (metric, values) in [
        ("pathproof_state", "1x19 stale"),
        ("pathproof_verdict_timestamp_seconds", "0+30x19 stale"),
    ] {
        fleet.set(metric, &["node=\"node-2\","], values);
    }
    fleet.set("up", &["node=\"node-2\","], UNTIL_MINUTE_10);
    let warned = firing("PathproofAgentDown", WARNING);
    expect(&fleet, &[("14m", &[]), ("16m", &warned)]);
}

#[test]
fn a_node_without_an_agent() {
    let mut fleet = Fleet::healthy(10);
    fleet.add_bare_node("windows", "Windows Server 2022 Datacenter");
    fleet.add_bare_node("fargate-ip-10-0-1-2.ec2.internal", "Amazon Linux 2");
    fleet.add_bare_node("virtual-node-aci-linux", "");
    expect(&fleet, &[("30m", &[])]);
    fleet.add_bare_node("bare", "Debian GNU/Linux 12 (bookworm)");
    let missing = [Firing::on("PathproofAgentMissing", WARNING, "bare")];
    expect(&fleet, &[("14m", &[]), ("16m", &missing)]);
}

/// If no agent is scraped, there is one alert for all nodes.
#[test]
fn nobody_is_scraped() {
    let mut fleet = Fleet::default();
    for node in 1..=10 {
        fleet.add_bare_node(&format!("node-{node}"), "Debian GNU/Linux 12 (bookworm)");
    }
    let alone = [Firing::on("PathproofNotScraped", WARNING, "")];
    expect(&fleet, &[("9m", &[]), ("20m", &alone)]);
}

#[test]
fn an_agent_that_does_not_judge() {
    let mut fleet = Fleet::healthy(10);
    let one = ["node=\"node-2\","];
    fleet.set(
        "pathproof_verdict_timestamp_seconds",
        &one,
        "0+30x19 570x100",
    );
    let warned = firing("PathproofVerdictStandsStill", WARNING);
    expect(&fleet, &[("14m", &[]), ("21m", &warned)]);
}

#[test]
fn an_endpoint_that_does_not_move() {
    const MOVES: &str = "pathproof_rotation_lag_seconds_count";
    let all: [&str; 0] = [];
    let mut fleet = Fleet::healthy(3);
    // The rotator pauses for ten minutes after an outage of the API server. This is no alert.
    fleet.set(MOVES, &all, "0+0.5x19 10x20 10+0.5x80");
    expect(&fleet, &[("25m", &[]), ("55m", &[])]);
    // In this case the rotator never rotates again.
    fleet.set(MOVES, &all, "0+0.5x19 10x100");
    let stopped = [Firing::on("PathproofRotationStopped", WARNING, "")];
    expect(&fleet, &[("30m", &[]), ("45m", &stopped)]);
    // If one node saw the endpoint move, the rotator works.
    let mut seen = fleet.clone();
    seen.set(MOVES, &["node=\"node-2\","], "0+0.5x120");
    expect(&seen, &[("45m", &[])]);
    // Without probes, no agent can notice that the endpoint moves, so there is no alert.
    fleet.set("pathproof_probe_armed", &all, ALWAYS_0);
    expect(&fleet, &[("45m", &[])]);
}

/// A node that audits stays in service, so it is a page. Negative control: a node that enforces.
#[rstest]
#[case::audits(ALWAYS_0, true)]
#[case::enforces(ALWAYS_1, false)]
fn a_broken_node_in_audit(#[case] enforcing: &str, #[case] pages: bool) {
    let mut fleet = Fleet::healthy(10);
    fleet.broken("node-2", "IPv4", "leaked", FROM_MINUTE_10);
    let agent = "job=\"pathproof\",node=\"node-2\",pod=\"agent-node-2\"";
    fleet.put("pathproof_enforcing", agent, enforcing);
    let page = pages.then(|| firing("PathproofBrokenInAudit", CRITICAL));
    let expected = [broken([2]), page.unwrap_or_default()].concat();
    expect(&fleet, &[("11m30s", &[]), ("12m30s", &expected)]);
    // The node is never broken for ten minutes, and almost always 503. Only a node without a page gets another.
    let cycles = format!("0x19 {}", "1x15 0 ".repeat(6));
    fleet.broken("node-2", "IPv4", "leaked", &cycles);
    let livez = ["node=\"node-2\",", "check=\"livez\""];
    fleet.set("pathproof_would_fail", &livez, FROM_MINUTE_10);
    let out = (!pages).then(|| firing("PathproofNodeOutOfService", CRITICAL));
    let expected = [expected, out.unwrap_or_default()].concat();
    expect(&fleet, &[("30m", &expected)]);
}

/// One Service fails on the first nodes, another Service on node 8, and node 9 is degraded for another cause.
#[rstest]
#[case::on_two_nodes(2, false)]
#[case::on_three_nodes(3, true)]
fn a_service_that_fails_on_nodes(#[case] nodes: usize, #[case] many: bool) {
    const DEGRADED: &str = "PathproofDatapathDegraded";
    let mut fleet = Fleet::healthy(10);
    let failing: Vec<String> = (1..=nodes).map(|node| format!("node-{node}")).collect();
    let web = failing.iter().map(|node| (&**node, "web"));
    for (node, service) in web.chain([("node-8", "api")]) {
        fleet.state(node, "IPv4", "degraded", FROM_MINUTE_10);
        let series = format!(
            "job=\"pathproof\",node=\"{node}\",service_namespace=\"shop\",service_name=\"{service}\",outcome=\"lost\""
        );
        fleet.put(
            "pathproof_service_connections_total",
            &series,
            "0x19 0+5x100",
        );
    }
    fleet.state("node-9", "IPv4", "degraded", FROM_MINUTE_10);
    let others = ["node-8", "node-9"].map(|node| Firing::on(DEGRADED, WARNING, node));
    let mut expected = others.to_vec();
    match many {
        true => expected.push(Firing::of_fleet(
            "PathproofServiceFailsOnManyNodes",
            WARNING,
        )),
        false => expected.extend(
            failing
                .iter()
                .map(|node| Firing::on(DEGRADED, WARNING, node)),
        ),
    }
    expect(
        &fleet,
        &[("13m", &[]), ("16m", &expected), ("40m", &expected)],
    );
}

/// In summary and description the node is filled in, and no label is empty.
#[test]
fn words_are_filled_in() {
    let labels = json!({ "severity": WARNING, "node": "node-1", "family": "IPv4" });
    let words = [
        "Node node-1 does not route Services over IPv4",
        "New IPv4 connections to Services have failed on node node-1, or gone to removed endpoints, \
         for more than 2 minutes. The node is not being removed. `kubectl pathproof why node-1` names \
         the cause.",
    ];
    expect_words(&first_broken(1, 10), BROKEN, &labels, words);
}

/// Summary and description of the only alert of this name, which fires at minute 13.
#[track_caller]
pub(crate) fn expect_words(fleet: &Fleet, alert: &str, labels: &Value, words: [&str; 2]) {
    let mut test = fleet.test("rules.yaml", &[]);
    let runbook = format!("{}#{}", crate::references::RUNBOOKS, alert.to_lowercase());
    test["tests"][0]["alert_rule_test"] = json!([{
        "eval_time": "13m",
        "alertname": alert,
        "exp_alerts": [{
            "exp_labels": labels,
            "exp_annotations": {
                "summary": words[0], "description": words[1], "runbook_url": runbook,
            },
        }],
    }]);
    test_rules(&test);
}

/// Checks the tests themselves: promtool must report an alert that a test does not expect.
#[test]
fn an_alert_that_is_not_expected_is_found() {
    let (dir, _) = rules();
    let test = first_broken(1, 10).test("rules.yaml", &[("13m", &[])]);
    let file = dir.path().join("wrong.yaml");
    fs::write(&file, test.to_string()).expect("write the test");
    let told = needs!(asked(&["test", "rules"], &file));
    let error = format!("{:#}", told.expect_err("an alert"));
    assert!(error.contains(BROKEN), "{error}");
}

/// The PodMonitor sets the labels by which the rules select series.
#[test]
fn rules_rely_on_what_the_pod_monitor_sets() {
    needs!(Tool::Kubectl.installed());
    let objects = overlay("beside-kube-proxy", &["pod-monitor"]).expect("an overlay");
    let monitor = &of_kind(&objects, "PodMonitor")["spec"];
    let agent = of_kind(&objects, "DaemonSet");
    let pod = &agent["spec"]["template"]["metadata"]["labels"];
    let job = monitor["jobLabel"].as_str().expect("a label");
    assert_eq!(pod[job], "pathproof", "job is the pod's label {job}");
    assert_eq!(&monitor["selector"]["matchLabels"], pod);
    let relabelings = monitor["podMetricsEndpoints"][0]["relabelings"].as_array();
    let node = relabelings
        .expect("relabelings")
        .iter()
        .find(|relabeling| relabeling["targetLabel"] == "node")
        .expect("node");
    let source: Value = json!(["__meta_kubernetes_pod_node_name"]);
    assert_eq!(node["sourceLabels"], source);
    // `honorLabels` is not needed, because no metric has a label of the target.
    assert!(monitor["podMetricsEndpoints"][0]["honorLabels"].is_null());
}
