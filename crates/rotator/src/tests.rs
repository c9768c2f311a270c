mod words;

use pathproof_report::condition::Reason;
use rstest::rstest;

use super::*;

const NOW: Wall = Wall(1_795_305_600_000_000_000);

fn before(span: Duration) -> Wall {
    Wall(NOW.0 - i64::try_from(span.as_nanos()).unwrap())
}

fn node(name: &str) -> NodeSeen {
    NodeSeen {
        name: name.to_owned(),
        ..NodeSeen::default()
    }
}

fn condition(status: Status, reason: &str) -> ConditionSeen {
    ConditionSeen {
        status,
        reason: reason.to_owned(),
        message: "what the agent said".to_owned(),
        transition: Some(before(Duration::from_secs(240))),
        heartbeat: Some(before(Duration::from_secs(100))),
    }
}

fn with(status: Status, reason: &str) -> NodeSeen {
    NodeSeen {
        condition: Some(condition(status, reason)),
        ..node("worker-1")
    }
}

#[rstest]
#[case(Status::True, "DatapathProven", Group::Healthy, "proven", "")]
#[case(
    Status::False,
    "DatapathBrokenLeaked",
    Group::NotReady,
    "broken",
    "leaked"
)]
#[case(
    Status::False,
    "DatapathStale",
    Group::NotReady,
    "stale",
    "rules too old"
)]
#[case(Status::False, "DatapathRecovering", Group::NotReady, "recovering", "")]
#[case(
    Status::True,
    "DatapathDegradedNoData",
    Group::Uncertain,
    "degraded",
    "no data"
)]
#[case(
    Status::True,
    "DatapathSuspectLost",
    Group::Uncertain,
    "suspect",
    "lost"
)]
#[case(
    Status::Unknown,
    "DatapathUnknownObserverBlind",
    Group::Uncertain,
    "unknown",
    "observer blind"
)]
#[case(Status::Unknown, "DatapathStarting", Group::Uncertain, "starting", "")]
#[case(Status::True, "NodeLeaving", Group::Leaving, "ready", "")]
#[case(Status::Unknown, "NodeLeaving", Group::Leaving, "unknown", "")]
// Reasons of a later release are unknown here.
#[case(
    Status::False,
    "DatapathHaunted",
    Group::NotReady,
    "not ready",
    "DatapathHaunted"
)]
#[case(
    Status::True,
    "DatapathBlessed",
    Group::Healthy,
    "ready",
    "DatapathBlessed"
)]
fn what_a_condition_amounts_to(
    #[case] status: Status,
    #[case] reason: &str,
    #[case] group: Group,
    #[case] judged: &str,
    #[case] short: &str,
) {
    let row = row(&with(status, reason), NOW);
    assert_eq!((row.group, row.verdict), (group, judged));
    assert_eq!(row.reason, short);
    assert_eq!(row.since, Some(before(Duration::from_secs(240))));
}

#[test]
fn within_a_group_the_worst_is_first() {
    let of = |status, reason| {
        let mut node = with(status, reason);
        node.name = reason.to_owned();
        node
    };
    let nodes = [
        of(Status::True, "DatapathProven"),
        of(Status::Unknown, "DatapathStarting"),
        of(Status::False, "DatapathRecovering"),
        of(Status::False, "DatapathStale"),
        of(Status::True, "DatapathDegradedLeaked"),
        of(Status::False, "DatapathBrokenLeaked"),
    ];
    let rows = rows(&nodes, NOW);
    let order: Vec<&str> = rows.iter().map(|row| row.verdict).collect();
    let expected = [
        "broken",
        "stale",
        "recovering",
        "degraded",
        "starting",
        "proven",
    ];
    assert_eq!(order, expected);
    let verdicts = WORST_FIRST.map(|(verdict, _)| verdict);
    assert!(rows.iter().all(|row| verdicts.contains(&row.verdict)));
}

#[test]
fn every_reason_has_its_row() {
    for reason in Reason::all() {
        let name = reason.name();
        for status in Status::ALL {
            let row = row(&with(status, &name), NOW);
            let verdicts = WORST_FIRST.map(|(verdict, _)| verdict);
            assert!(verdicts.contains(&row.verdict), "{}", row.verdict);
            // A condition with status False is never shown as healthy, whatever its reason.
            assert!(
                status != Status::False || row.group != Group::Healthy || name == "DatapathProven",
                "{name}: {row:?}"
            );
        }
    }
}

#[rstest]
#[case(Duration::from_secs(899), Group::Healthy, "proven")]
#[case(Duration::from_secs(901), Group::Uncertain, "out of date")]
fn an_outdated_condition_is_ignored(
    #[case] age: Duration,
    #[case] group: Group,
    #[case] judged: &str,
) {
    let mut node = with(Status::True, "DatapathProven");
    node.condition.as_mut().unwrap().heartbeat = Some(before(age));
    let row = row(&node, NOW);
    assert_eq!((row.group, row.verdict), (group, judged));
}

#[test]
fn a_clock_that_is_ahead_makes_nothing_old() {
    let mut node = with(Status::True, "DatapathProven");
    node.condition.as_mut().unwrap().heartbeat = Some(Wall(NOW.0 + 3_600_000_000_000));
    assert_eq!(row(&node, NOW).group, Group::Healthy);
}

#[rstest]
#[case::tainted(|node: &mut NodeSeen| node.taints.push("ToBeDeletedByClusterAutoscaler".to_owned()), true)]
#[case::deleted(|node: &mut NodeSeen| node.deleting = true, true)]
#[case::cordoned(|node: &mut NodeSeen| node.taints.push("node.kubernetes.io/unschedulable".to_owned()), false)]
fn a_node_that_leaves_stands_apart(#[case] change: fn(&mut NodeSeen), #[case] leaves: bool) {
    for mut node in [with(Status::False, "DatapathBrokenLeaked"), node("bare")] {
        change(&mut node);
        let row = row(&node, NOW);
        assert_eq!(row.group == Group::Leaving, leaves, "{row:?}");
        assert_eq!(row.leaving.is_some(), leaves);
    }
}

#[test]
fn a_broken_node_that_leaves_is_recognised_by_its_message() {
    let mut node = with(Status::False, "DatapathBrokenLeaked");
    node.condition.as_mut().unwrap().message =
        "the node is about to be removed: taint x/y. Its datapath: leaked".to_owned();
    let row = row(&node, NOW);
    assert_eq!((row.group, row.verdict), (Group::Leaving, "broken"));
}

#[rstest]
#[case("it works [pathproof 0.1.0, audit]", "it works", Some(("0.1.0", "audit", false)))]
#[case("a [b] [pathproof 0.1.0, enforce, braked]", "a [b]", Some(("0.1.0", "enforce", true)))]
#[case("what an earlier agent wrote", "what an earlier agent wrote", None)]
#[case("to [fd00::1]", "to [fd00::1]", None)]
#[case("cut [pathproof 0.1.0]", "cut [pathproof 0.1.0]", None)]
fn the_message_names_its_agent(
    #[case] message: &str,
    #[case] sentence: &str,
    #[case] expected: Option<(&str, &str, bool)>,
) {
    let (found, agent) = AgentSeen::read(message);
    assert_eq!(found, sentence);
    let shown = |agent: &AgentSeen| agent.sign(found);
    assert!(agent.as_ref().is_none_or(|agent| shown(agent) == message));
    let expected = expected.map(|(version, enforcement, braked)| AgentSeen {
        version: version.to_owned(),
        enforcement: enforcement.to_owned(),
        braked,
    });
    assert_eq!(agent, expected);
}

#[test]
fn a_row_shows_the_agent_and_not_in_its_sentence() {
    let mut node = with(Status::False, "DatapathBrokenLeaked");
    let seen = node.condition.as_mut().unwrap();
    seen.message.push_str(" [pathproof 0.1.0, enforce]");
    let agent = AgentSeen::read(&seen.message).1;
    assert!(agent.is_some());
    for age in [100, 3_600] {
        node.condition.as_mut().unwrap().heartbeat = Some(before(Duration::from_secs(age)));
        let row = row(&node, NOW);
        assert_eq!(row.agent, agent);
        assert!(row.sentence.unwrap().ends_with("what the agent said"));
    }
}

#[test]
fn a_node_without_a_condition_is_in_doubt() {
    let row = row(&node("worker-1"), NOW);
    assert_eq!((row.group, row.verdict), (Group::Uncertain, "unknown"));
    assert_eq!(row.reason, "no condition");
}

#[test]
fn no_agent_is_expected_on_other_systems() {
    let windows = NodeSeen {
        foreign_os: Some("windows".to_owned()),
        ..node("win-1")
    };
    let row = row(&windows, NOW);
    assert_eq!((row.group, row.verdict), (Group::NotLinux, "no agent"));
    assert_eq!(row.reason, "windows node");
}

#[test]
fn the_sick_come_first_and_the_leaving_stand_apart() {
    let named = |name: &str, node| NodeSeen {
        name: name.to_owned(),
        ..node
    };
    let leaving = NodeSeen {
        deleting: true,
        ..with(Status::False, "DatapathBroken")
    };
    let nodes = [
        named("c", with(Status::True, "DatapathProven")),
        named("b", with(Status::True, "DatapathProven")),
        named("leaving", leaving),
        named("degraded", with(Status::True, "DatapathDegraded")),
        named("unknown", with(Status::Unknown, "DatapathUnknown")),
        named("stale", with(Status::False, "DatapathStale")),
        named("broken", with(Status::False, "DatapathBroken")),
    ];
    let rows = rows(&nodes, NOW);
    let order: Vec<&str> = rows.iter().map(|row| row.node.as_str()).collect();
    assert_eq!(
        order,
        [
            "broken", "stale", "degraded", "unknown", "leaving", "b", "c"
        ]
    );
    let tally = Tally::of(&rows);
    assert_eq!((tally.nodes, tally.not_ready, tally.uncertain), (7, 2, 2));
    assert_eq!((tally.leaving, tally.healthy), (1, 2));
}
