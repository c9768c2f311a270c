use std::time::Duration;

use rstest::rstest;

use super::*;
use agent_core::condition::Status;
use agent_core::fleet::{AgentSeen, ConditionSeen, NodeSeen, Told};
use agent_core::report::{Report, sample};

fn now() -> Wall {
    let at = sample::written() + Duration::from_millis(200);
    Wall(i64::try_from(at.as_nanosecond()).unwrap())
}

fn before(seconds: i64) -> Wall {
    Wall(now().0 - seconds * 1_000_000_000)
}

fn told(name: &str, report: &Report) -> NodeFacts {
    let livez = report.answers.livez;
    let told = Told {
        verdict: report.verdict.clone(),
        written: Wall(i64::try_from(report.written.as_nanosecond()).unwrap()),
        sound: livez.status == 200,
        audit: livez.would_fail,
    };
    NodeFacts {
        node: NodeSeen {
            name: name.to_owned(),
            ..NodeSeen::default()
        },
        agent: AgentSeen::Told(Box::new(told)),
    }
}

fn condition(name: &str, status: Status, reason: &str, message: &str, since: i64) -> NodeFacts {
    NodeFacts {
        node: NodeSeen {
            name: name.to_owned(),
            condition: Some(ConditionSeen {
                status,
                reason: reason.to_owned(),
                message: message.to_owned(),
                transition: Some(before(since)),
                heartbeat: Some(before(70)),
            }),
            ..NodeSeen::default()
        },
        agent: AgentSeen::Unsought,
    }
}

fn proven(name: &str, since: i64) -> NodeFacts {
    let message = "new connections to Services get through, last seen 40 ms ago";
    condition(name, Status::True, "DatapathProven", message, since)
}

/// Every kind of node, with rights for everything.
fn asked() -> Fleet {
    let mut leaving = told("worker-7", &sample::proven());
    leaving
        .node
        .taints
        .push("ToBeDeletedByClusterAutoscaler".to_owned());
    let mut silent = proven("worker-5", 86_400 * 3);
    silent.agent = AgentSeen::Silent(
        "its agent does not answer: it did not answer within 10 s (--request-timeout)".to_owned(),
    );
    let mut windows = proven("win-1", 0);
    windows.node.condition = None;
    windows.node.foreign_os = Some("windows".to_owned());
    windows.agent = AgentSeen::Missing;
    let mut bare = windows.clone();
    bare.node.name = "worker-6".to_owned();
    bare.node.foreign_os = None;
    let nodes = [
        told("worker-1", &sample::proven()),
        told("worker-2", &sample::proven()),
        told("worker-3", &sample::probed::flushed()),
        told("worker-4", &sample::degraded()),
        silent,
        bare,
        leaving,
        told("worker-8", &sample::blind()),
        windows,
    ];
    Fleet::of(&nodes, Vec::new(), now())
}

/// With rights on Nodes alone.
fn by_conditions() -> Fleet {
    let broken = "no new connection to a Service gets through on IPv4: leaked, VIP left \
                  untranslated (212 connections to 2 Services from 6 clients in 12 s)";
    let mut leaving = condition(
        "ip-10-0-31-7.eu-central-1.compute.internal",
        Status::True,
        "NodeLeaving",
        "the node is about to be removed: taint karpenter.sh/disrupted. Its datapath: new \
         connections to Services get through",
        95,
    );
    leaving.node.deleting = true;
    let mut old = proven("ip-10-0-31-9.eu-central-1.compute.internal", 900_000);
    old.node.condition.as_mut().unwrap().heartbeat = Some(before(11_000));
    let nodes = [
        proven("ip-10-0-31-4.eu-central-1.compute.internal", 400_000),
        condition(
            "ip-10-0-31-5.eu-central-1.compute.internal",
            Status::False,
            "DatapathBrokenLeaked",
            broken,
            250,
        ),
        leaving,
        old,
    ];
    let note = "lag and coverage are not known: the right to list pods in namespace pathproof is \
                missing (the API server: pods is forbidden); deploy/examples/fleet-rbac.yaml has \
                the roles";
    Fleet::of(&nodes, vec![note.to_owned()], now())
}

/// Nothing to worry about.
fn sound() -> Fleet {
    let nodes: Vec<NodeFacts> = (1..4)
        .map(|index| told(&format!("worker-{index}"), &sample::proven()))
        .collect();
    Fleet::of(&nodes, Vec::new(), now())
}

/// Longer than a screen.
fn large() -> Fleet {
    let nodes: Vec<NodeFacts> = (0..60)
        .map(|index| match index {
            7 => condition("worker-7", Status::False, "DatapathStale", "too old", 40),
            index => proven(&format!("worker-{index}"), 100_000),
        })
        .collect();
    Fleet::of(&nodes, Vec::new(), now())
}

fn view(colour: bool) -> View<'static> {
    View {
        colour,
        now: now(),
        sick_alone: false,
        program: "kubectl pathproof",
    }
}

/// Pages as they are printed, to be looked at: agent/testdata/fleet. With PATHPROOF_BLESS set
/// they are written anew.
#[rstest]
#[case("asked", asked())]
#[case("sound", sound())]
#[case("empty", Fleet::of(&[], Vec::new(), now()))]
fn pages(#[case] name: &str, #[case] fleet: Fleet) {
    crate::cli::paper::assert_page("fleet", name, &render(&fleet, &view(false)));
}

/// Names that are longer than a terminal is wide are printed whole all the same: they are copied.
#[test]
fn long_names_are_never_cut() {
    let page = render(&by_conditions(), &view(false));
    crate::cli::paper::assert_text("fleet", "by_conditions", &page);
    assert!(
        page.contains(" ip-10-0-31-5.eu-central-1.compute.internal "),
        "{page}"
    );
}

#[test]
fn sound_nodes_can_be_left_out() {
    let view = View {
        sick_alone: true,
        ..view(false)
    };
    let page = render(&asked(), &view);
    assert!(
        page.contains("worker-3") && !page.contains("worker-1 "),
        "{page}"
    );
    assert!(page.contains("3 sound nodes left out"), "{page}");
    let document = serde_json::to_value(Document::of(&asked(), &view)).unwrap();
    assert_eq!(document["summary"]["nodes"], 9);
    assert_eq!(document["nodes"].as_array().unwrap().len(), 6);
}

#[test]
fn a_long_list_ends_as_it_begins() {
    let page = render(&large(), &view(false));
    let lines: Vec<&str> = page.lines().collect();
    assert!(lines[0].starts_with("SICK  60 nodes: 1 sick, 59 sound"));
    assert_eq!(lines.first(), lines.last());
}

#[test]
fn a_cluster_in_flames_still_fits_a_screen_or_two() {
    let nodes: Vec<NodeFacts> = (0..500)
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
    let page = render(&Fleet::of(&nodes, Vec::new(), now()), &view(false));
    assert_eq!(page.matches("Everything is lost.").count(), 20);
    assert_eq!(page.matches(" broken ").count(), 500);
}

#[test]
fn colours_change_nothing_that_is_read() {
    let plain = render(&asked(), &view(false));
    let coloured = render(&asked(), &view(true));
    let mut read = String::new();
    let mut rest = coloured.as_str();
    while let Some((before, code)) = rest.split_once('\x1b') {
        read.push_str(before);
        rest = code.split_once('m').unwrap().1;
    }
    read.push_str(rest);
    // The badge has a border where there is colour.
    assert_eq!(read.replacen(" SICK ", "SICK", 1), plain);
    assert!(coloured.contains("\x1b[31mbroken\x1b[0m"), "{coloured}");
}

#[test]
fn the_document_names_what_the_page_shows() {
    let document = serde_json::to_value(Document::of(&asked(), &view(false))).unwrap();
    let first = &document["nodes"][0];
    assert_eq!(first["node"], "worker-3");
    assert_eq!(first["group"], "sick");
    assert_eq!(first["verdict"], "broken");
    assert_eq!(first["source"], "agent");
    assert_eq!(first["coverage"]["attached"], 5);
    assert_eq!(first["eligible"], true);
    let leaving = document["nodes"].as_array().unwrap().iter();
    let leaving = leaving.filter(|node| node["group"] == "leaving");
    let names: Vec<_> = leaving.map(|node| node["node"].as_str().unwrap()).collect();
    assert_eq!(names, ["worker-8", "worker-7"]);
}

#[rstest]
#[case("kubectl-pathproof", true)]
#[case("/usr/local/bin/kubectl-pathproof", true)]
#[case("kubectl_pathproof", true)]
#[case("pathproof", false)]
#[case("/opt/kubectl-pathproof/pathproof", false)]
fn the_name_it_is_called_by(#[case] called: &str, #[case] plugin: bool) {
    assert_eq!(is_plugin(OsStr::new(called)), plugin);
}

#[test]
fn the_plugins_command_line_is_sound() {
    use clap::{CommandFactory as _, Parser as _};

    use crate::args::{Args, Command, FleetCommand, Plugin};

    Plugin::command().debug_assert();
    let short = [
        "kubectl-pathproof",
        "why",
        "worker-3",
        "--context",
        "prod",
        "-o",
        "json",
    ];
    let plugin = Plugin::try_parse_from(short).unwrap();
    let long = [
        "pathproof",
        "fleet",
        "why",
        "worker-3",
        "--context",
        "prod",
        "-o",
        "json",
    ];
    let args = Args::try_parse_from(long).unwrap();
    assert_eq!(args.command, Command::Fleet(Box::new(plugin.fleet.clone())));
    assert!(matches!(plugin.fleet.command, Some(FleetCommand::Why(of)) if of.node == "worker-3"));
    assert_eq!(plugin.fleet.access.context.as_deref(), Some("prod"));
    // kubectl's way round, too.
    let before = [
        "kubectl-pathproof",
        "--context",
        "prod",
        "-o",
        "json",
        "why",
        "worker-3",
    ];
    let again = Plugin::try_parse_from(before).unwrap();
    assert_eq!(again.fleet.access, plugin.fleet.access);
    assert!(Plugin::try_parse_from(["kubectl-pathproof", "why"]).is_err());
    assert!(Plugin::try_parse_from(["kubectl-pathproof", "--as-group", "x"]).is_err());
}
