use clap::Parser as _;
use pathproof_report::condition::Status;
use pathproof_rotator::{ConditionSeen, NodeSeen};
use rstest::rstest;

use super::*;

const NOW: Wall = Wall(1_795_305_600_000_000_000);

fn before(seconds: i64) -> Wall {
    Wall(NOW.0 - seconds * 1_000_000_000)
}

fn condition(name: &str, status: Status, reason: &str, message: &str, since: i64) -> NodeSeen {
    NodeSeen {
        name: name.to_owned(),
        condition: Some(ConditionSeen {
            status,
            reason: reason.to_owned(),
            message: message.to_owned(),
            transition: Some(before(since)),
            heartbeat: Some(before(70)),
        }),
        ..NodeSeen::default()
    }
}

fn proven(name: &str, since: i64) -> NodeSeen {
    let message = "IPv4: a new connection from a pod of this node succeeded 40 ms ago \
                   [pathproof 0.1.0, enforce]";
    condition(name, Status::True, "DatapathProven", message, since)
}

fn mixed() -> Vec<Row> {
    let leaked = "IPv4: every Service with new connections failed for 12 s (shop/web:http, \
                  shop/cart:grpc: leaked, left the node untranslated); no connection succeeded in \
                  that time [pathproof 0.1.0, enforce, braked]";
    let stale = "IPv4: connections succeed, except to \
                 shop/checkout-with-a-rather-long-name-for-a-service:https (stale, sent to an \
                 endpoint that was removed; 40 failed so far) [pathproof 0.0.9, audit]";
    let mut leaving = proven("worker-7", 3_590);
    leaving
        .taints
        .push("ToBeDeletedByClusterAutoscaler".to_owned());
    let mut old = proven("worker-5", 86_400 * 3);
    old.condition.as_mut().unwrap().heartbeat = Some(before(11_000));
    let mut windows = proven("win-1", 0);
    windows.condition = None;
    windows.foreign_os = Some("windows".to_owned());
    let mut bare = windows.clone();
    bare.name = "worker-6".to_owned();
    bare.foreign_os = None;
    let nodes = [
        proven("worker-1", 3_590),
        proven("worker-2", 86_400 * 4),
        condition(
            "worker-3",
            Status::False,
            "DatapathBrokenLeaked",
            leaked,
            250,
        ),
        condition(
            "worker-4",
            Status::True,
            "DatapathDegradedStale",
            stale,
            180,
        ),
        old,
        bare,
        leaving,
        windows,
    ];
    rows(&nodes, NOW)
}

/// A healthy cluster.
fn sound() -> Vec<Row> {
    let nodes = [1, 2, 3].map(|index| proven(&format!("worker-{index}"), 3_590));
    rows(&nodes, NOW)
}

fn page(rows: &[Row], colour: bool) -> String {
    List::of(rows, false, NOW).page("kubectl pathproof", colour)
}

/// Compares pages with crates/cli/testdata/fleet. PATHPROOF_BLESS rewrites them, to be reviewed.
#[rstest]
#[case("mixed", mixed())]
#[case("doubtful", mixed().into_iter().filter(|row| row.group != Group::NotReady).collect())]
#[case("sound", sound())]
#[case("empty", Vec::new())]
fn pages(#[case] name: &str, #[case] rows: Vec<Row>) {
    crate::page::assert_text("fleet", name, &page(&rows, false));
}

/// Checks the list quoted in these pages, where `...` marks omitted lines.
#[rstest]
#[case(include_str!("../../../../docs/operations.md"))]
#[case(include_str!("../../../../docs/quickstart.md"))]
fn docs_quote_what_is_printed(#[case] docs: &str) {
    let page = page(&mixed(), false);
    let (_, quoted) = docs.split_once("NOT READY ").expect("a quoted list");
    let (quoted, _) = quoted.split_once("```").expect("its end");
    let quoted = format!("NOT READY {quoted}");
    for line in quoted.lines().filter(|line| *line != "...") {
        assert!(
            page.lines().any(|known| known == line),
            "{line:?} is not in\n{page}"
        );
    }
}

/// Names wider than a terminal are printed whole, because they are copied.
#[test]
fn long_names_are_never_cut() {
    let name = format!("ip-10-0-31-5.{}compute.internal", "eu-central-1.".repeat(8));
    let nodes = [condition(
        &name,
        Status::False,
        "DatapathBroken",
        "lost",
        250,
    )];
    let page = page(&rows(&nodes, NOW), false);
    assert!(page.contains(&format!(" {name} ")), "{page}");
}

#[test]
fn sound_nodes_can_be_left_out() {
    let mixed = mixed();
    let list = List::of(&mixed, true, NOW);
    let page = list.page("kubectl pathproof", false);
    assert!(
        page.contains("worker-3") && !page.contains("worker-1 "),
        "{page}"
    );
    assert!(page.contains("3 other nodes hidden"), "{page}");
    let document = serde_json::to_value(&list).unwrap();
    assert_eq!(document["summary"]["nodes"], 8);
    assert_eq!(document["nodes"].as_array().unwrap().len(), 5);
}

#[test]
fn a_failing_cluster_still_fits_a_screen_or_two() {
    let nodes: Vec<NodeSeen> = (0..500)
        .map(|index| {
            let name = format!("worker-{index}");
            condition(
                &name,
                Status::False,
                "DatapathBroken",
                "everything is lost",
                40,
            )
        })
        .collect();
    let page = page(&rows(&nodes, NOW), false);
    assert_eq!(page.matches("Everything is lost.").count(), 20);
    assert_eq!(page.matches(" broken ").count(), 500);
}

#[test]
fn colours_change_nothing_that_is_read() {
    let plain = page(&mixed(), false);
    let coloured = page(&mixed(), true);
    crate::page::assert_colours(&coloured, &plain);
    assert!(coloured.contains("\x1b[31mbroken\x1b[0m"), "{coloured}");
}

#[test]
fn the_document_names_what_the_page_shows() {
    let mixed = mixed();
    let document = serde_json::to_value(List::of(&mixed, false, NOW)).unwrap();
    let first = &document["nodes"][0];
    assert_eq!(first["node"], "worker-3");
    assert_eq!(first["group"], "not_ready");
    assert_eq!(first["verdict"], "broken");
    assert_eq!(first["since"], "2026-11-21T23:55:50Z");
    assert_eq!(first["leaving"], serde_json::Value::Null);
    let agent = serde_json::json!({"version": "0.1.0", "enforcement": "enforce", "braked": true});
    assert_eq!(first["agent"], agent);
    let leaving = document["nodes"].as_array().unwrap().iter();
    let leaving: Vec<_> = leaving.filter(|node| node["group"] == "leaving").collect();
    assert_eq!(leaving.len(), 1);
    assert_eq!(leaving[0]["leaving"], "ToBeDeletedByClusterAutoscaler");
}

#[rstest]
#[case("kubectl-pathproof", true)]
#[case("/usr/local/bin/kubectl-pathproof", true)]
#[case("kubectl_pathproof", true)]
#[case("pathproof", false)]
#[case("kubectl-pathproof.exe", true)]
#[case("/opt/kubectl-pathproof/pathproof", false)]
fn the_name_it_is_called_by(#[case] called: &str, #[case] plugin: bool) {
    assert_eq!(is_plugin(OsStr::new(called)), plugin);
}

#[test]
fn the_plugins_command_line_is_sound() {
    use clap::CommandFactory as _;

    use crate::args::{FleetArgs, FleetCommand, Line, Plugin};

    Plugin::command().debug_assert();
    let words = ["why", "worker-3", "--context", "prod", "-o", "json"];
    let short = Plugin::try_parse_from(["kubectl-pathproof"].iter().chain(&words)).unwrap();
    let long: Line<FleetArgs> = Line::try_parse_from(["fleet"].iter().chain(&words)).unwrap();
    assert_eq!(long.args, short.fleet);
    assert!(
        matches!(&short.fleet.command, Some(FleetCommand::Why(target)) if target.node == "worker-3")
    );
    assert_eq!(short.fleet.kubectl.0, ["--context=prod"]);
    // Options before the command have the same effect.
    let words = ["--context", "prod", "-o", "json", "why", "worker-3"];
    let again = Plugin::try_parse_from(["kubectl-pathproof"].iter().chain(&words)).unwrap();
    assert_eq!(again.fleet, short.fleet);
}

#[rstest]
#[case(&["-s", "https://x"], &["--server=https://x"])]
#[case(&["--insecure-skip-tls-verify"], &["--insecure-skip-tls-verify=true"])]
#[case(&["--insecure-skip-tls-verify=false"], &["--insecure-skip-tls-verify=false"])]
#[case(&["--as-group", "a", "--as=me", "--as-group=b"], &["--as=me", "--as-group=a", "--as-group=b"])]
#[case(&["--request-timeout", "3"], &["--request-timeout=3"])]
fn kubectls_options_are_passed_on(#[case] said: &[&str], #[case] passed: &[&str]) {
    let words = ["kubectl-pathproof"].iter().chain(said);
    let plugin = crate::args::Plugin::try_parse_from(words).unwrap();
    assert_eq!(plugin.fleet.kubectl.0, passed);
}

#[rstest]
#[case(&["why"])]
#[case(&["why", "-x"])]
#[case(&["why", ""])]
#[case(&["why", "worker-3,spec.nodeName=worker-4"])]
#[case(&["status", ".worker"])]
#[case(&["status", "worker-3", "--watch"])]
fn what_is_no_node_is_refused(#[case] said: &[&str]) {
    let words = ["kubectl-pathproof"].iter().chain(said);
    assert!(crate::args::Plugin::try_parse_from(words).is_err());
}
