use pathproof_judge::eligibility::Eligibility;
use pathproof_samples as sample;
use rstest::rstest;

use super::*;
use crate::lifecycle::tests::CapturedLog;

/// An answer of the agent: its status code, and whether it reports the datapath as healthy.
type Told = (u16, bool);
const OK: Told = (200, true);
const FAILS: Told = (503, false);
/// The datapath works, and the node leaves.
const LEAVES: Told = (503, true);

fn verdict(state: State, ms: u64) -> Verdict {
    let mut verdict = match state {
        State::Broken => sample::broken(),
        State::Degraded => sample::degraded(),
        State::Unknown => sample::blind(),
        _ => sample::proven(),
    }
    .verdict;
    (verdict.state, verdict.at) = (state, Mono(ms * 1_000_000));
    verdict
}

fn answers([healthz, livez]: [Told; 2]) -> Answers {
    let mut answers = Answers::before_the_first();
    for (answer, told) in [(&mut answers.healthz, healthz), (&mut answers.livez, livez)] {
        (answer.status, answer.healthy) = told;
    }
    answers
}

/// A short text for a line: its level, its subject, the old and the new value.
fn words(line: &Line) -> String {
    let what = line.what.split(' ').find(|word| word.starts_with('/'));
    let old = line.old.as_deref().unwrap_or("none");
    format!(
        "{} {}{old}>{}",
        line.level,
        what.unwrap_or_default(),
        line.new
    )
}

/// The lines after a node was proven for a minute.
#[rstest]
#[case::nothing(State::Proven, [OK; 2], &[])]
#[case::rules_flushed(State::Broken, [FAILS; 2],
    &["ERROR proven>broken", "ERROR /healthz200>503", "ERROR /livez200>503"])]
#[case::audited(State::Broken, [OK; 2], &["ERROR proven>broken"])]
#[case::suspect(State::Suspect, [OK; 2], &["WARN proven>suspect"])]
#[case::degraded(State::Degraded, [OK; 2], &["WARN proven>degraded"])]
#[case::unknown(State::Unknown, [OK; 2], &["WARN proven>unknown"])]
#[case::unknown_and_closed(State::Unknown, [FAILS; 2],
    &["WARN proven>unknown", "ERROR /healthz200>503", "ERROR /livez200>503"])]
#[case::leaving(State::Proven, [LEAVES, OK], &["INFO /healthz200>503"])]
fn a_change_has_the_level_of_its_harm(
    #[case] state: State,
    #[case] told: [Told; 2],
    #[case] expected: &[&str],
) {
    let mut changes = Changes::default();
    let first = changes.lines(&verdict(State::Proven, 0), &answers([OK; 2]));
    assert_eq!(
        first.iter().map(words).collect::<Vec<_>>(),
        ["INFO none>proven"]
    );
    let mut changed = verdict(state, 60_000);
    if told[0] == LEAVES {
        changed.eligibility = Eligibility::Deleting;
    }
    let lines = changes.lines(&changed, &answers(told));
    assert_eq!(lines.iter().map(words).collect::<Vec<_>>(), expected);
    assert_eq!(
        changes.lines(&changed, &answers(told)),
        [],
        "each change is logged once"
    );
    let back = changes.lines(&verdict(State::Proven, 90_000), &answers([OK; 2]));
    assert_eq!(back.len(), expected.len());
    assert!(
        back.iter().all(|line| line.level == Level::INFO),
        "{back:?}"
    );
}

/// At start, an unknown state is not logged as a warning.
#[rstest]
#[case::blind_at_first(State::Unknown, [OK; 2], &["INFO none>unknown"])]
#[case::booting(State::Starting, [FAILS, OK], &["INFO none>starting", "INFO /healthznone>503"])]
#[case::broken(State::Broken, [FAILS; 2],
    &["ERROR none>broken", "ERROR /healthznone>503", "ERROR /liveznone>503"])]
fn the_first_lines(#[case] state: State, #[case] told: [Told; 2], #[case] expected: &[&str]) {
    let lines = Changes::default().lines(&verdict(state, 0), &answers(told));
    assert_eq!(lines.iter().map(words).collect::<Vec<_>>(), expected);
}

/// The state flaps with every sample for a minute, and then stays.
#[test]
fn a_flapping_state_is_logged_once_a_second() {
    let mut changes = Changes::default();
    let mut logged: Vec<u64> = Vec::new();
    for ms in (0..60_000).step_by(250) {
        let state = [State::Proven, State::Suspect][usize::from(ms % 500 == 0)];
        let lines = changes.lines(&verdict(state, ms), &answers([OK; 2]));
        logged.extend(lines.iter().map(|_| ms));
    }
    let close = logged.windows(2).find(|pair| pair[1] - pair[0] < 1_000);
    assert_eq!(close, None, "{logged:?}");
    let last = changes.lines(&verdict(State::Degraded, 61_000), &answers([OK; 2]));
    assert_eq!(
        last[0].new, "degraded",
        "the log ends with the current state"
    );
    // A failing state is logged at once.
    let lines = changes.lines(&verdict(State::Broken, 61_250), &answers([OK; 2]));
    assert_eq!(words(&lines[0]), "ERROR degraded>broken");
}

#[test]
fn a_line_quotes_the_reason() {
    let log = CapturedLog::begin();
    let mut changes = Changes::default();
    for (state, told, at) in [(State::Proven, OK, 0), (State::Broken, FAILS, 2_000)] {
        let lines = changes.lines(&verdict(state, at), &answers([told; 2]));
        lines.iter().for_each(|line| line.write("worker-1"));
    }
    let text = log.end();
    let reason = verdict(State::Broken, 2_000).reason();
    let expected = format!(
        "the answer of /livez changed node=\"worker-1\" old=\"200\" new=\"503\" cause=\"leaked\" reason={reason:?}"
    );
    assert!(text.contains(&expected), "{text}\n{expected}");
}
