mod all_names;

use std::fmt::Write as _;

use pathproof_facts::cluster::ObjectName;
use pathproof_facts::testing::{assert_words, in_json};
use pathproof_node::Condition;
use pathproof_node::replay::replay;
use pathproof_wire::evidence::OUTCOMES;

use super::*;

#[test]
fn every_state_of_the_sentinel_has_its_sentence() {
    let service = ObjectName::new("pathproof", "pathproof-sentinel");
    let conditions = [
        Condition::Absent,
        Condition::Altered("Service pathproof/pathproof-sentinel has no port 80"),
        Condition::Off("CAP_NET_RAW is missing"),
        Condition::Settling,
        Condition::Probing,
    ];
    let mut text = String::new();
    for condition in &conditions {
        for synced in [true, false] {
            let report = SentinelReport::of(&service, condition, synced);
            assert_eq!(
                report.service.as_deref(),
                Some("pathproof/pathproof-sentinel")
            );
            let (state, sentence) = (report.state.name(), report.sentence);
            let _ = writeln!(text, "{state}: {sentence}");
        }
    }
    let disabled = SentinelReport::disabled();
    let _ = writeln!(text, "{}: {}", disabled.state.name(), disabled.sentence);
    assert_eq!(disabled.service, None);
    assert_words("sentinel", &text);
}

#[test]
fn every_outcome_is_counted_by_its_name() {
    let counts: [u64; OUTCOMES] = std::array::from_fn(|index| index as u64 + 1);
    let outcomes = OutcomeCounts::new(&counts, 99);
    let json = serde_json::to_value(outcomes).unwrap();
    for outcome in Outcome::ALL {
        let name = match outcome {
            Outcome::AnswerNotDelivered => "unheard".to_owned(),
            _ => format!("{outcome:?}").to_lowercase(),
        };
        assert_eq!(json[&name], counts[outcome as usize], "{name}");
    }
    assert_eq!(json["lost"], 99);
    let failures = outcomes.failures();
    assert_eq!(failures.len(), Failure::ALL.len());
    for (failure, count) in failures {
        assert_eq!(json[in_json(failure)], count, "{failure:?}");
    }
}

#[test]
fn problems_of_writing_are_gathered() {
    let of = |problem: Option<&str>| WriteReport {
        written: None,
        problem: problem.map(str::to_owned),
    };
    let problems = |condition, events| -> Vec<String> {
        let report = PublishReport { condition, events };
        report.problems().map(str::to_owned).collect()
    };
    assert_eq!(problems(None, Some(of(None))), [""; 0]);
    assert_eq!(
        problems(Some(of(Some("one"))), Some(of(Some("two")))),
        ["one", "two"]
    );
}

/// The report on a recording's last moment includes its sentinel.
#[test]
fn a_replay_is_a_report() {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../node/testdata/recordings/fault-flushed-idle.pathproof"
    );
    let replayed = replay(&std::fs::read(path).unwrap(), None).unwrap();
    let moment = replayed.moments.last().unwrap();
    let report = Report::replayed(&replayed, moment);
    assert_eq!(report.node, replayed.node);
    assert_eq!(report.verdict, moment.update.verdict);
    assert_eq!(i128::from(moment.at.0), report.written.as_nanosecond());
    assert_eq!(report.answers.livez.status, 200);
    assert_eq!(report.sentinel.state, SentinelCondition::Probing);
    assert!(
        report.sentinel.sentence.ends_with(" is probed"),
        "{:?}",
        report.sentinel
    );
}
