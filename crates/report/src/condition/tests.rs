//! Reasons and messages by state, cause and eligibility, against docs/behaviour.md; and how often
//! they are written.
//!
//! Length: one table of all messages, and one model of the API server for all writes.

use std::time::Duration;

use pathproof_facts::time::{Mono, Wall};
use proptest::prelude::*;
use rstest::rstest;

use super::*;

const BEHAVIOUR: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/behaviour.md"
));

const SECOND: Duration = Duration::from_secs(1);
const HOUR: u64 = 3_600;

fn at(seconds: u64) -> Mono {
    Mono(seconds * 1_000_000_000)
}

fn wall(seconds: u64) -> Wall {
    Wall(1_795_305_600_000_000_000 + (seconds * 1_000_000_000) as i64)
}

fn condition_of(status: Status, reason: Reason) -> ConditionState {
    ConditionState {
        status,
        reason,
        leaving: reason == Reason::Leaving,
    }
}

fn sound() -> ConditionState {
    condition_of(Status::True, Reason::Proven)
}

fn broken() -> ConditionState {
    condition_of(Status::False, Reason::Broken(Some(Cause::Leaked)))
}

fn unknown() -> ConditionState {
    condition_of(Status::Unknown, Reason::Unknown(Some(Why::Idle)))
}

#[test]
fn names_are_camel_case_and_read_back() {
    for reason in Reason::all() {
        let name = reason.name();
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "{name}");
        assert!(name.starts_with(|c: char| c.is_ascii_uppercase()), "{name}");
        // The API accepts 128 characters in an Event's reason.
        assert!(name.len() <= 64, "{name}");
        assert_eq!(Reason::parse(&name), Some(reason));
    }
    assert_eq!(Reason::parse("KubeletReady"), None);
}

#[test]
fn behaviour_md_lists_every_reason() {
    let page = BEHAVIOUR.split("<!-- reasons -->").nth(1).unwrap();
    for reason in Reason::all() {
        let (pattern, word) = match reason {
            Reason::Broken(cause) => ("`DatapathBroken`*Cause*", cause.map(Cause::name)),
            Reason::Degraded(cause) => ("`DatapathDegraded`*Cause*", cause.map(Cause::name)),
            Reason::Suspect(cause) => ("`DatapathSuspect`*Cause*", cause.map(Cause::name)),
            Reason::Unknown(why) => ("`DatapathUnknown`*Why*", why.map(Why::name)),
            plain => {
                let row = format!("| `{}` |", plain.name());
                assert!(page.contains(&row), "{row}");
                continue;
            }
        };
        assert!(page.contains(pattern), "{pattern}");
        if let Some(word) = word {
            let name = reason.name();
            let tail = pattern.trim_start_matches('`').split('`').next().unwrap();
            let row = format!("| `{}` | `{word}` |", name.trim_start_matches(tail));
            assert!(page.contains(&row), "{row}");
        }
    }
}

/// A node's schedule, second by second, with an API server that accepts everything.
fn writes(
    schedule: &mut Schedule,
    seconds: u64,
    condition_of: impl Fn(u64) -> ConditionState,
) -> Vec<u64> {
    let mut writes = Vec::new();
    for second in 0..seconds {
        let condition = condition_of(second);
        schedule.observe(condition, at(second), wall(second));
        if schedule.due().is_some_and(|due| due <= at(second)) {
            let transition = schedule.transition().unwrap();
            schedule.wrote(condition, transition, at(second));
            writes.push(second);
        }
    }
    writes
}

fn schedule(node: &str, found: Option<Written>) -> Schedule {
    Schedule::new(node, Pace::default(), found, at(0))
}

fn most_in_an_hour(writes: &[u64]) -> usize {
    let within = |from: &u64| {
        writes
            .iter()
            .filter(|at| (*from..*from + HOUR).contains(at))
            .count()
    };
    writes.iter().map(within).max().unwrap_or(0)
}

#[test]
fn a_change_to_false_and_back_is_written_within_the_jitter() {
    let condition_of = |second| {
        if (100..200).contains(&second) {
            broken()
        } else {
            sound()
        }
    };
    let writes = writes(&mut schedule("node-1", None), 290, condition_of);
    let jitter = Pace::default().jitter.as_secs();
    for change in [0, 100, 200] {
        assert!(
            writes
                .iter()
                .any(|at| (change..=change + jitter).contains(at)),
            "{writes:?}"
        );
    }
    assert!(writes.len() <= 4, "{writes:?}");
}

/// The negative control is another change that leaves the status True.
#[test]
fn a_node_that_leaves_is_written_within_the_jitter() {
    let jitter = Pace::default().jitter.as_secs();
    for (reason, soon) in [(Reason::Leaving, true), (Reason::Degraded(None), false)] {
        let changed = condition_of(Status::True, reason);
        let condition_of = |second| if second < 100 { sound() } else { changed };
        let writes = writes(&mut schedule("node-1", None), 130, condition_of);
        let is_soon = |at: &u64| (100..=100 + jitter).contains(at);
        assert_eq!(writes.iter().any(is_soon), soon, "{writes:?}");
        assert_eq!(writes.len(), 2, "{writes:?}");
    }
}

/// Other changes used up the budget. The negative control is one more of those.
#[test]
fn a_node_that_leaves_does_not_wait_for_the_budget() {
    let degraded = condition_of(Status::True, Reason::Degraded(None));
    let suspect = condition_of(Status::True, Reason::Suspect(None));
    let leaving = condition_of(Status::True, Reason::Leaving);
    for (last, soon) in [(leaving, true), (suspect, false)] {
        let course = [sound(), degraded, suspect, degraded, last];
        let condition_of = |second| course[second as usize / 50];
        let writes = writes(&mut schedule("node-1", None), 250, condition_of);
        let is_soon = |at: &u64| (200..=205).contains(at);
        assert_eq!(writes.iter().any(is_soon), soon, "{writes:?}");
    }
}

#[test]
fn what_does_not_last_is_not_written() {
    let suspect = condition_of(Status::True, Reason::Suspect(Some(Cause::Lost)));
    let condition_of = |second| if second % 9 < 4 { suspect } else { sound() };
    let written = writes(&mut schedule("node-1", None), HOUR, condition_of);
    assert!(most_in_an_hour(&written) <= 13, "{written:?}");
}

#[test]
fn an_agent_that_begins_keeps_what_it_finds() {
    let found = Written {
        status: Status::True,
        reason: Some(Reason::Proven),
        transition: wall(0),
    };
    let mut schedule = schedule("node-1", Some(found));
    // At first the agent knows nothing, then it knows what the previous agent knew.
    let condition_of = |second| if second < 5 { unknown() } else { sound() };
    let written = writes(&mut schedule, 301, condition_of);
    assert_eq!(written.len(), 1, "a heartbeat: {written:?}");
    assert_eq!(schedule.transition(), Some(wall(0)));
}

/// Before the first write there is nothing to renew.
#[test]
fn a_changed_mode_is_written_once_and_soon() {
    let mut schedule = schedule("node-1", None);
    schedule.renew(at(0));
    schedule.observe(sound(), at(0), wall(0));
    schedule.wrote(sound(), wall(0), at(1));
    assert!(schedule.due() > Some(at(150)), "{:?}", schedule.due());
    schedule.renew(at(20));
    let due = schedule.due().unwrap();
    assert!(due >= at(30) && due <= at(35), "{due:?}");
    schedule.renew(at(25));
    assert_eq!(schedule.due(), Some(due), "no later");
    schedule.wrote(sound(), wall(0), at(35));
    assert!(schedule.due() > Some(at(185)), "{:?}", schedule.due());
}

#[test]
fn a_node_that_is_registered_again_gets_its_condition_at_once() {
    let mut schedule = schedule("node-1", None);
    schedule.follow(&"first".into());
    schedule.observe(sound(), at(0), wall(0));
    schedule.wrote(sound(), wall(0), at(1));
    schedule.follow(&"first".into());
    assert!(schedule.due() > Some(at(150)), "{:?}", schedule.due());
    // The Node was gone, and writes to it were rejected.
    schedule.failed(Refusal::Denied, at(100));
    schedule.follow(&"second".into());
    assert!(schedule.due() <= Some(at(100)), "{:?}", schedule.due());
    assert_eq!(schedule.transition(), Some(wall(0)));
}

#[test]
fn the_heartbeat_keeps_its_place_over_a_restart() {
    let steady = |_| sound();
    let mut before = schedule("node-1", None);
    let last = *writes(&mut before, HOUR, steady).last().unwrap();
    let found = Some(Written {
        status: Status::True,
        reason: Some(Reason::Proven),
        transition: wall(0),
    });
    let mut after = Schedule::new("node-1", Pace::default(), found, at(last + 100));
    after.observe(sound(), at(last + 100), wall(last + 100));
    let due = after.due().unwrap();
    assert!(due > at(last + 298) && due < at(last + 302), "{due:?}");
}

#[test]
fn the_transition_moves_with_the_status_alone() {
    let mut schedule = schedule("node-1", None);
    let mut write = |second, condition| {
        schedule.observe(condition, at(second), wall(second));
        let transition = schedule.transition().unwrap();
        schedule.wrote(condition, transition, at(second));
        transition
    };
    assert_eq!(write(10, sound()), wall(10));
    assert_eq!(
        write(20, condition_of(Status::True, Reason::Leaving)),
        wall(10)
    );
    assert_eq!(write(30, broken()), wall(30));
    assert_eq!(
        write(40, condition_of(Status::False, Reason::Stale)),
        wall(30)
    );
    assert_eq!(write(50, sound()), wall(50));
}

#[test]
fn a_change_that_ended_during_an_outage_moves_no_transition_time() {
    let mut schedule = schedule("node-1", None);
    schedule.observe(sound(), at(10), wall(10));
    schedule.wrote(sound(), wall(10), at(10));
    schedule.observe(broken(), at(20), wall(20));
    schedule.failed(Refusal::Failed { wait: None }, at(25));
    schedule.observe(sound(), at(30), wall(30));
    // The attempt may have succeeded: the condition is written again, unchanged.
    assert!(schedule.due().unwrap() <= at(40));
    assert_eq!(schedule.transition(), Some(wall(10)));
}

#[test]
fn without_rights_it_is_tried_every_ten_minutes() {
    let mut schedule = schedule("node-1", None);
    let mut tries = Vec::new();
    for second in 0..HOUR {
        let condition = if second % 60 < 30 { sound() } else { broken() };
        schedule.observe(condition, at(second), wall(second));
        if schedule.due().unwrap() <= at(second) {
            schedule.failed(Refusal::Denied, at(second));
            tries.push(second);
        }
    }
    assert!((5..=6).contains(&tries.len()), "{tries:?}");
}

fn any_condition() -> impl Strategy<Value = ConditionState> {
    prop_oneof![
        Just(sound()),
        Just(broken()),
        Just(unknown()),
        Just(condition_of(Status::True, Reason::Leaving)),
        Just(condition_of(Status::True, Reason::Suspect(None))),
        Just(condition_of(Status::False, Reason::Recovering)),
    ]
}

fn any_course() -> impl Strategy<Value = Vec<(ConditionState, u64)>> {
    prop::collection::vec((any_condition(), 1u64..400), 1..80)
}

fn condition_at(course: &[(ConditionState, u64)], second: u64) -> ConditionState {
    let mut end = 0;
    for (condition, lasts) in course {
        end += lasts;
        if second < end {
            return *condition;
        }
    }
    course[course.len() - 1].0
}

proptest! {
    #[test]
    fn an_unchanged_condition_is_written_twelve_times_an_hour(
        number in 0u32..10_000,
        condition in any_condition(),
    ) {
        let mut schedule = schedule(&format!("node-{number}"), None);
        let written = writes(&mut schedule, 3 * HOUR, |_| condition);
        // The first write is a change.
        prop_assert!(most_in_an_hour(&written[1..]) <= 12, "{written:?}");
        let pause = written.windows(2).map(|pair| pair[1] - pair[0]).max();
        prop_assert!(pause <= Some(451), "{written:?}");
    }

    #[test]
    fn whatever_happens_ten_seconds_pass_between_writes(course in any_course()) {
        let mut schedule = schedule("node-1", None);
        let written = writes(&mut schedule, 2 * HOUR, |second| condition_at(&course, second));
        for pair in written.windows(2) {
            prop_assert!(pair[1] - pair[0] >= 10, "{written:?}");
        }
    }

    #[test]
    fn changes_without_an_accusation_stay_within_a_budget(course in any_course()) {
        let calm = |second| match condition_at(&course, second) {
            ConditionState { status: Status::False, .. } => unknown(),
            other => other,
        };
        let written = writes(&mut schedule("node-1", None), 3 * HOUR, calm);
        // 12 heartbeats, 12 changes within the budget, the budget's initial burst of 3, one beyond it to a
        // leaving node, and the first write.
        prop_assert!(most_in_an_hour(&written) <= 12 + 12 + 3 + 1 + 1, "{written:?}");
    }

    #[test]
    fn in_the_end_what_stands_is_written(course in any_course(), fails in any::<[bool; 16]>()) {
        let mut schedule = schedule("node-1", None);
        let (mut has, mut tries) = (None, 0);
        let quiet = course.iter().map(|(_, lasts)| lasts).sum::<u64>();
        for second in 0..quiet + 600 {
            let condition = condition_at(&course, second);
            schedule.observe(condition, at(second), wall(second));
            if schedule.due().is_some_and(|due| due <= at(second)) {
                let failed = second < quiet && fails[tries % fails.len()];
                tries += 1;
                if failed {
                    schedule.failed(Refusal::Failed { wait: None }, at(second));
                } else {
                    let transition = schedule.transition().unwrap();
                    schedule.wrote(condition, transition, at(second));
                    has = Some(condition);
                }
            }
        }
        prop_assert_eq!(has, Some(condition_at(&course, u64::MAX)));
    }

    #[test]
    fn messages_are_bounded_at_a_character(length in 0usize..1_200, letter in "[aé☃]") {
        let text = letter.repeat(length);
        let short = bounded(text.clone());
        prop_assert!(short.len() <= MESSAGE_MAX);
        prop_assert!(short == text || short.ends_with('…'));
    }

    #[test]
    fn events_stay_within_a_budget(course in any_course()) {
        let mut announcer = Announcer::new("node-1", Pace::default(), None);
        let mut said: Vec<(u64, ConditionState)> = Vec::new();
        for second in 0..2 * HOUR {
            announcer.observe(condition_at(&course, second), at(second));
            if announcer.due().is_some_and(|due| due <= at(second)) {
                let condition = condition_at(&course, second);
                announcer.sent(condition, Ok(()), at(second));
                said.push((second, condition));
            }
        }
        // No two Events in a row have the same subject.
        let key = |condition: &ConditionState| (condition.status == Status::False, condition.leaving);
        for pair in said.windows(2) {
            prop_assert_ne!(key(&pair[0].1), key(&pair[1].1));
        }
        let seconds: Vec<u64> = said.iter().map(|(second, _)| *second).collect();
        prop_assert!(most_in_an_hour(&seconds) <= 6 + 60);
    }
}

/// The Events for these conditions, a minute each.
fn announcements(found: Option<Written>, course: &[ConditionState]) -> Vec<String> {
    let mut announcer = Announcer::new("node-1", Pace::default(), found);
    let mut said = Vec::new();
    for second in 0..60 * course.len() as u64 {
        let condition = course[second as usize / 60];
        announcer.observe(condition, at(second));
        if announcer.due().is_some_and(|due| due <= at(second)) {
            said.push(condition.reason.name());
            announcer.sent(condition, Ok(()), at(second));
        }
    }
    said
}

#[test]
fn transitions_alone_are_announced() {
    let leaving = condition_of(Status::True, Reason::Leaving);
    let broken_and_leaving = ConditionState {
        leaving: true,
        ..broken()
    };
    let course = [
        unknown(),
        sound(),
        broken(),
        sound(),
        leaving,
        broken_and_leaving,
        leaving,
        sound(),
    ];
    let expected = [
        "DatapathBrokenLeaked",
        "DatapathProven",
        "NodeLeaving",
        "DatapathBrokenLeaked",
        "NodeLeaving",
        "DatapathProven",
    ];
    let said = announcements(None, &course);
    assert_eq!(said, expected);
}

#[rstest]
#[case(Status::False, Some(Reason::Broken(Some(Cause::Leaked))), broken())]
#[case(
    Status::True,
    Some(Reason::Leaving),
    condition_of(Status::True, Reason::Leaving)
)]
#[case(Status::True, None, sound())]
fn what_a_previous_agent_announced_is_not_announced_again(
    #[case] status: Status,
    #[case] reason: Option<Reason>,
    #[case] condition: ConditionState,
) {
    let found = Written {
        status,
        reason,
        transition: wall(0),
    };
    assert_eq!(announcements(Some(found), &[condition, condition]), [""; 0]);
}

#[test]
fn a_recovery_within_the_jitter_is_not_announced() {
    let mut announcer = Announcer::new("node-1", Pace::default(), None);
    announcer.observe(broken(), at(10));
    let due = announcer.due().unwrap();
    assert!(due >= at(10) && due <= at(10).plus(5 * SECOND));
    announcer.observe(sound(), at(11));
    assert_eq!(announcer.due(), None);
}
