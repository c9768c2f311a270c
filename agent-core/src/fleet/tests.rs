use rstest::rstest;

use super::*;
use crate::cause::{Cause, State};
use crate::condition::Reason;
use crate::eligibility::Eligibility;
use crate::limits::Limits;
use crate::time::Mono;
use crate::verdict::{Coverage, Evidence, Finding, Rule};

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

fn with(status: Status, reason: &str) -> NodeFacts {
    NodeFacts {
        node: NodeSeen {
            condition: Some(condition(status, reason)),
            ..node("worker-1")
        },
        agent: AgentSeen::Unsought,
    }
}

fn told(state: State, cause: Option<Cause>, eligibility: Eligibility) -> NodeFacts {
    let verdict = Verdict {
        at: Mono(100_000_000_000),
        state,
        since: Mono(70_000_000_000),
        cause,
        why: None,
        finding: Finding::new(Rule::NotSampled, Evidence::Nothing),
        limits: Limits::default(),
        eligibility,
        families: Vec::new(),
        services: Vec::new(),
        services_omitted: 0,
        coverage: Coverage {
            attached: 4,
            wanted: 5,
            ..Coverage::default()
        },
    };
    let told = Told {
        verdict,
        written: NOW,
        sound: !matches!(state, State::Broken | State::Stale),
        audit: false,
    };
    NodeFacts {
        node: node("worker-1"),
        agent: AgentSeen::Told(Box::new(told)),
    }
}

#[rstest]
#[case(Status::True, "DatapathProven", Group::Sound, "proven", "")]
#[case(Status::False, "DatapathBrokenLeaked", Group::Sick, "broken", "leaked")]
#[case(Status::False, "DatapathStale", Group::Sick, "stale", "rules too old")]
#[case(Status::False, "DatapathRecovering", Group::Sick, "recovering", "")]
#[case(
    Status::True,
    "DatapathDegradedNoData",
    Group::Doubtful,
    "degraded",
    "no data"
)]
#[case(
    Status::True,
    "DatapathSuspectLost",
    Group::Doubtful,
    "suspect",
    "lost"
)]
#[case(
    Status::Unknown,
    "DatapathUnknownObserverBlind",
    Group::Doubtful,
    "unknown",
    "observer blind"
)]
#[case(Status::Unknown, "DatapathStarting", Group::Doubtful, "starting", "")]
#[case(Status::True, "NodeLeaving", Group::Leaving, "ready", "")]
#[case(Status::Unknown, "NodeLeaving", Group::Leaving, "unknown", "")]
// Of a later release, whose reasons are not known here.
#[case(
    Status::False,
    "DatapathHaunted",
    Group::Sick,
    "not ready",
    "DatapathHaunted"
)]
#[case(
    Status::True,
    "DatapathBlessed",
    Group::Sound,
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
    assert_eq!((row.group, row.judged.name()), (group, judged));
    assert_eq!(row.reason, short);
    assert_eq!(row.since, Some(before(Duration::from_secs(240))));
    assert_eq!((row.lag, row.coverage), (None, None));
    assert_eq!(row.source, Source::Condition);
}

#[test]
fn every_reason_has_its_row() {
    for reason in Reason::all() {
        let name = reason.name();
        for status in Status::ALL {
            let row = row(&with(status, &name), NOW);
            // A status of False is never shown as sound, whatever its reason.
            assert!(
                status != Status::False || row.group != Group::Sound || name == "DatapathProven",
                "{name}: {row:?}"
            );
        }
    }
}

#[rstest]
#[case(Duration::from_secs(899), Group::Sound, "proven")]
#[case(Duration::from_secs(901), Group::Doubtful, "out of date")]
fn a_condition_that_nobody_keeps_says_nothing(
    #[case] age: Duration,
    #[case] group: Group,
    #[case] judged: &str,
) {
    let mut facts = with(Status::True, "DatapathProven");
    let condition = facts.node.condition.as_mut().unwrap();
    condition.heartbeat = Some(before(age));
    let row = row(&facts, NOW);
    assert_eq!((row.group, row.judged.name()), (group, judged));
}

#[test]
fn a_clock_that_is_ahead_makes_nothing_old() {
    let mut facts = with(Status::True, "DatapathProven");
    facts.node.condition.as_mut().unwrap().heartbeat = Some(Wall(NOW.0 + 3_600_000_000_000));
    assert_eq!(row(&facts, NOW).group, Group::Sound);
}

#[test]
fn an_agent_that_answers_outranks_the_condition() {
    let mut facts = told(State::Broken, Some(Cause::Leaked), Eligibility::Eligible);
    facts.node.condition = Some(condition(Status::True, "DatapathProven"));
    let row = row(&facts, NOW);
    assert_eq!((row.group, row.judged.name()), (Group::Sick, "broken"));
    assert_eq!(row.reason, "leaked");
    assert_eq!(row.since, Some(before(Duration::from_secs(30))));
    let coverage = row.coverage.unwrap();
    assert_eq!((coverage.attached, coverage.wanted), (4, 5));
    assert!(!coverage.is_full());
    assert_eq!(row.source, Source::Agent);
}

#[test]
fn what_is_still_answered_503_is_recovering() {
    let mut facts = told(State::Proven, None, Eligibility::Eligible);
    if let AgentSeen::Told(told) = &mut facts.agent {
        told.sound = false;
    }
    let row = row(&facts, NOW);
    assert_eq!((row.group, row.judged), (Group::Sick, Judged::Recovering));
}

#[rstest]
#[case::tainted(|of: &mut NodeSeen| of.taints.push("ToBeDeletedByClusterAutoscaler".to_owned()), true)]
#[case::deleted(|of: &mut NodeSeen| of.deleting = true, true)]
#[case::cordoned(|of: &mut NodeSeen| of.taints.push("node.kubernetes.io/unschedulable".to_owned()), false)]
fn a_node_that_leaves_stands_apart(#[case] change: fn(&mut NodeSeen), #[case] leaves: bool) {
    for facts in [
        told(State::Broken, Some(Cause::Leaked), Eligibility::Eligible),
        with(Status::False, "DatapathBrokenLeaked"),
        NodeFacts {
            node: node("worker-1"),
            agent: AgentSeen::Missing,
        },
    ] {
        let mut facts = facts;
        change(&mut facts.node);
        let row = row(&facts, NOW);
        assert_eq!(row.group == Group::Leaving, leaves, "{row:?}");
        assert_eq!(row.eligible == Eligible::Yes, !leaves);
    }
}

#[test]
fn an_agent_knows_taints_that_it_was_told_of() {
    let taint = "karpenter.sh/disrupted".to_owned();
    let row = row(
        &told(State::Proven, None, Eligibility::Tainted { taint }),
        NOW,
    );
    assert_eq!(row.group, Group::Leaving);
    assert_eq!(
        row.eligible,
        Eligible::No("karpenter.sh/disrupted".to_owned())
    );
}

#[test]
fn a_broken_node_that_leaves_is_told_by_its_message() {
    let mut facts = with(Status::False, "DatapathBrokenLeaked");
    facts.node.condition.as_mut().unwrap().message =
        "the node is about to be removed: taint x/y. Its datapath: leaked".to_owned();
    let row = row(&facts, NOW);
    assert_eq!((row.group, row.judged.name()), (Group::Leaving, "broken"));
}

#[rstest]
#[case(AgentSeen::Missing, "no agent")]
#[case(AgentSeen::Silent("its agent does not answer".to_owned()), "no answer")]
#[case(AgentSeen::Unsought, "unknown")]
#[case(AgentSeen::Unasked, "unknown")]
fn a_node_of_which_nothing_is_known_is_in_doubt(#[case] agent: AgentSeen, #[case] judged: &str) {
    let facts = NodeFacts {
        node: node("worker-1"),
        agent,
    };
    let row = row(&facts, NOW);
    assert_eq!((row.group, row.judged.name()), (Group::Doubtful, judged));
    assert_eq!(row.source, Source::Nobody);
}

#[test]
fn a_silent_agent_is_named_beside_what_its_condition_says() {
    let mut facts = with(Status::True, "DatapathProven");
    facts.agent = AgentSeen::Silent("its agent does not answer: refused".to_owned());
    let row = row(&facts, NOW);
    assert_eq!((row.group, row.judged.name()), (Group::Doubtful, "proven"));
    assert!(row.sentence.unwrap().contains("refused"));
}

#[test]
fn no_agent_is_missed_on_other_systems() {
    let facts = NodeFacts {
        node: NodeSeen {
            foreign_os: Some("windows".to_owned()),
            ..node("win-1")
        },
        agent: AgentSeen::Missing,
    };
    let row = row(&facts, NOW);
    assert_eq!((row.group, row.judged), (Group::Sound, Judged::NoAgent));
    assert_eq!(row.reason, "windows node");
}

fn named(name: &str, mut facts: NodeFacts) -> NodeFacts {
    facts.node.name = name.to_owned();
    facts
}

#[test]
fn the_sick_come_first_and_the_leaving_stand_apart() {
    let mut leaving = with(Status::False, "DatapathBroken");
    leaving.node.deleting = true;
    let facts = [
        named("c", with(Status::True, "DatapathProven")),
        named("b", with(Status::True, "DatapathProven")),
        named("leaving", leaving),
        named("degraded", with(Status::True, "DatapathDegraded")),
        named("unknown", with(Status::Unknown, "DatapathUnknown")),
        named("stale", with(Status::False, "DatapathStale")),
        named("broken", with(Status::False, "DatapathBroken")),
    ];
    let rows = rows(&facts, NOW);
    let order: Vec<&str> = rows.iter().map(|row| row.node.as_str()).collect();
    assert_eq!(
        order,
        [
            "broken", "stale", "degraded", "unknown", "leaving", "b", "c"
        ]
    );
    let tally = Tally::of(&rows);
    assert_eq!((tally.nodes, tally.sick, tally.doubtful), (7, 2, 2));
    assert_eq!((tally.leaving, tally.sound, tally.asked), (1, 2, 0));
}

/// So many proven nodes, then a broken, a leaving one and one without a condition.
fn cluster(proven: usize) -> Vec<NodeSeen> {
    let mut nodes: Vec<NodeSeen> = (0..proven)
        .map(|index| NodeSeen {
            name: format!("worker-{index}"),
            ..with(Status::True, "DatapathProven").node
        })
        .collect();
    nodes.push(NodeSeen {
        deleting: true,
        ..with(Status::True, "NodeLeaving").node
    });
    nodes.push(node("bare"));
    nodes.push(with(Status::False, "DatapathBroken").node);
    nodes
}

#[rstest]
#[case(Ask::Auto, 97, 100)]
#[case(Ask::Auto, 98, 3)]
#[case(Ask::All, 4_997, 5_000)]
#[case(Ask::Sick, 10, 3)]
#[case(Ask::None, 10, 0)]
fn so_many_agents_are_asked(#[case] ask: Ask, #[case] proven: usize, #[case] expected: usize) {
    let nodes = cluster(proven);
    let places = to_ask(ask, &nodes, NOW);
    assert_eq!(places.len(), expected);
    if let [first, second, third, ..] = places.as_slice() {
        // The sick one, the one in doubt, the leaving one.
        assert_eq!([*first, *second, *third], [proven + 2, proven + 1, proven]);
    }
}

#[test]
fn a_cluster_in_flames_is_not_asked_whole() {
    let sick = with(Status::False, "DatapathBroken").node;
    let nodes = vec![sick; 5_000];
    assert_eq!(to_ask(Ask::Auto, &nodes, NOW).len(), MOST);
    assert_eq!(to_ask(Ask::Sick, &nodes, NOW).len(), 5_000);
}
