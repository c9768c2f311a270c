use clap::ValueEnum as _;
use jiff::{SignedDuration, Timestamp};
use rstest::rstest;

use super::*;
use crate::cluster::Manner;

const SLACK: Duration = Duration::from_millis(500);
const FLUSHED: Action = Action::Fault(Fault::ChainFlushed);
const STOPPED: Action = Action::Agent(AgentFault::Stopped);
const MARKED: Action = Action::Harmless(Harmless::NodeMarked);

fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds)
}

/// A minute with ten connections a second, all answered, and 200 throughout.
fn calm() -> Seen {
    let dialled = (0..600).map(|tenth| (Duration::from_millis(tenth * 100), true));
    Seen {
        steps: Vec::new(),
        dialled: dialled.collect(),
        answered: vec![codes(0.0, 60.0, 200, 200)],
        slack: SLACK,
        users: Users::Everybody,
    }
}

fn codes(from: f64, to: f64, healthz: u16, livez: u16) -> Answered {
    Answered {
        from: seconds(from),
        to: seconds(to),
        codes: Codes { healthz, livez },
    }
}

/// Adds an action; answers and connections stay unchanged.
fn with(mut seen: Seen, action: Action, from: f64, to: f64) -> Seen {
    seen.steps.push(Step {
        action,
        from: seconds(from),
        to: seconds(to),
    });
    seen
}

/// These codes for some time, and 200 before and after.
fn answering(mut seen: Seen, from: f64, to: f64, healthz: u16, livez: u16) -> Seen {
    seen.answered = vec![
        codes(0.0, from, 200, 200),
        codes(from, to, healthz, livez),
        codes(to, 60.0, 200, 200),
    ];
    seen
}

/// 503 on both paths for some time.
fn alarmed(seen: Seen, from: f64, to: f64) -> Seen {
    answering(seen, from, to, 503, 503)
}

/// A fault that every client feels.
fn broken(seen: Seen, action: Action, from: f64, to: f64) -> Seen {
    let mut seen = with(seen, action, from, to);
    for (begun, ok) in &mut seen.dialled {
        *ok &= !(seconds(from)..seconds(to)).contains(begun);
    }
    seen
}

fn violations(seen: &Seen) -> Vec<String> {
    let found = findings_of(seen).violations;
    found.into_iter().map(|(_, what)| what).collect()
}

#[test]
fn a_calm_minute_is_sound() {
    assert_eq!(violations(&calm()), [""; 0]);
}

#[test]
fn a_fault_that_is_reported_in_time_is_accepted() {
    let seen = alarmed(broken(calm(), FLUSHED, 20.0, 27.0), 21.2, 28.5);
    let found = findings_of(&seen);
    assert_eq!(found.violations, []);
    assert_eq!(found.detected.count(), 1);
    assert_eq!(found.detected.rank(100), Some(seconds(1.2)));
    assert_eq!(found.unjudged, []);
}

#[test]
fn a_fault_that_is_reported_late_or_never_is_found() {
    let late = alarmed(broken(calm(), FLUSHED, 20.0, 27.0), 23.0, 28.5);
    assert!(violations(&late)[0].contains("after 3.0s"));
    let never = broken(calm(), FLUSHED, 20.0, 27.0);
    assert!(violations(&never)[0].contains("never"));
}

/// Checks that the time to 503 counts from the last connection that worked, because the command that breaks
/// the node may take some time. 503 is due 4.5 s later, the time to 503 by traffic alone.
#[test]
fn a_fault_counts_from_its_last_connection_that_worked() {
    let late = |at: f64, told: f64| {
        let mut seen = alarmed(broken(calm(), FLUSHED, 20.0, 29.0), told, 30.5);
        seen.dialled[(at * 10.0) as usize].1 = true;
        findings_of(&seen)
    };
    assert_eq!(late(20.4, 23.0).violations.len(), 1, "during the injection");
    let found = late(21.5, 26.4);
    assert_eq!((found.violations.len(), found.detected.count()), (0, 1));
    assert_eq!(late(20.9, 26.0).violations.len(), 1, "503 after 5.1 s");
    assert_eq!(late(26.5, 26.1).violations.len(), 1, "after a late 503");
    // A fault is not judged if it ends before 503 is due after the last working connection.
    let mut never = broken(calm(), FLUSHED, 20.0, 27.0);
    never.dialled[255].1 = true;
    let found = findings_of(&never);
    assert_eq!((found.violations.len(), found.unjudged.len()), (0, 1));
}

/// After an action that disturbs the sentinel, the agent gets more time, or the fault is not judged because
/// evidence is missing.
#[rstest]
#[case::filtered(Harmless::RangeDropped)]
#[case::short_of_memory(Harmless::MemoryTight)]
fn a_disturbed_sentinel_gives_the_agent_more_time(#[case] disturbing: Harmless) {
    let dropped = Action::Harmless(disturbing);
    let late = alarmed(broken(calm(), FLUSHED, 20.0, 29.0), 24.0, 30.5);
    assert_eq!(violations(&with(late, dropped, 14.0, 16.0)), [""; 0]);
    let data = Action::Fault(Fault::DataDropped);
    let never = broken(calm(), data, 20.0, 29.0);
    assert_eq!(violations(&never).len(), 1);
    let never = with(never, dropped, 14.0, 16.0);
    assert_eq!(violations(&never), [""; 0]);
    assert_eq!(findings_of(&never).unjudged.len(), 1);
}

#[test]
fn an_agent_that_is_away_need_not_report_a_fault() {
    let never = with(broken(calm(), FLUSHED, 20.0, 27.0), STOPPED, 19.0, 22.0);
    assert_eq!(violations(&never), [""; 0]);
}

#[test]
fn an_alarm_without_a_fault_is_found() {
    let alarm = alarmed(calm(), 20.0, 21.0);
    assert!(violations(&alarm)[0].contains("without a fault"));
    // Harmless actions excuse no 503, even if connections fail because of them.
    let killed = Action::Harmless(Harmless::BackendKilled);
    let harmless = alarmed(broken(calm(), killed, 18.0, 22.0), 20.0, 21.0);
    assert!(violations(&harmless)[0].contains("without a fault"));
}

/// Clients that a world denies are not users, so their failures excuse no 503.
#[test]
fn a_world_excuses_no_alarm() {
    for &world in World::value_variants() {
        let unfelt = with(calm(), Action::World(world), 15.0, 25.0);
        let felt = broken(calm(), Action::World(world), 18.0, 22.0);
        for seen in [unfelt, felt] {
            let found = violations(&alarmed(seen, 20.0, 21.0));
            assert!(found[0].contains("without a fault"), "{world:?}");
        }
    }
}

#[test]
fn a_world_excuses_no_missed_fault() {
    for &world in World::value_variants() {
        let beside = with(calm(), Action::World(world), 10.0, 30.0);
        let beside = broken(beside, FLUSHED, 20.0, 29.0);
        let never = violations(&beside);
        assert!(never[0].contains("never"), "{world:?}");
        let told = |at: f64| violations(&alarmed(beside.clone(), at, 30.0));
        assert_eq!(told(21.5), [""; 0]);
        assert!(told(23.0)[0].contains("after 3.0s"), "{world:?}");
    }
}

/// The sentinel's probes use other routes, so only connections fail.
#[test]
fn cut_routes_are_detected_by_connections_alone() {
    let cut = || broken(calm(), Action::Fault(Fault::RoutesGone), 20.0, 29.0);
    let found = findings_of(&alarmed(cut(), 24.9, 30.5));
    assert_eq!((found.violations.len(), found.detected.count()), (0, 1));
    assert!(violations(&alarmed(cut(), 25.1, 30.5))[0].contains("after 5.1s"));
    // A disturbed sentinel is no excuse: connections alone suffice to detect this fault.
    let dropped = Action::Harmless(Harmless::RangeDropped);
    let blind = with(cut(), dropped, 14.0, 28.0);
    assert!(violations(&blind)[0].contains("never"));
}

/// If the sentinel is disturbed and there is only one kind of clients, a policy or firewall against them
/// looks like this fault.
#[test]
fn one_kind_of_clients_beside_a_disturbed_sentinel_is_not_judged() {
    let dropped = Action::Harmless(Harmless::RangeDropped);
    let cut = Action::Fault(Fault::ForwardDropped);
    let mut never = with(broken(calm(), cut, 20.0, 29.0), dropped, 14.0, 16.0);
    assert_eq!(violations(&never).len(), 1);
    never.users = Users::Outside;
    assert_eq!(
        (violations(&never).len(), findings_of(&never).unjudged.len()),
        (0, 1)
    );
}

/// The sentinel returns in the API at once, but its rules return only when the proxy runs again.
#[test]
fn a_frozen_proxy_keeps_a_new_sentinel_from_its_rules() {
    let deleted = Action::Harmless(Harmless::SentinelDeleted);
    let seen = alarmed(broken(calm(), FLUSHED, 20.0, 29.0), 24.0, 30.5);
    let seen = with(seen, deleted, 2.0, 4.0);
    assert!(violations(&seen)[0].contains("after 4.0s"));
    let frozen = Action::World(World::ProxyFrozen);
    let before = with(seen.clone(), frozen, 5.0, 12.0);
    assert!(violations(&before)[0].contains("after 4.0s"));
    assert_eq!(violations(&with(seen, frozen, 3.0, 12.0)), [""; 0]);
}

#[test]
fn an_alarm_that_outlasts_its_fault_is_found() {
    let long = alarmed(broken(calm(), FLUSHED, 20.0, 27.0), 21.0, 34.0);
    assert!(violations(&long)[0].contains("without a fault"));
    assert_eq!(violations(&with(long, STOPPED, 27.0, 31.0)), [""; 0]);
}

/// The agent is killed in the middle of a fault and takes long to start again.
#[test]
fn an_agent_that_was_away_repeats_its_answer_for_a_moment() {
    let mut seen = broken(calm(), FLUSHED, 10.0, 20.0);
    seen.answered = vec![
        codes(0.0, 11.5, 200, 200),
        codes(11.5, 19.0, 503, 503),
        codes(19.0, 22.1, 0, 0),
        codes(22.1, 27.0, 503, 503),
        codes(27.0, 60.0, 200, 200),
    ];
    assert!(violations(&seen)[0].contains("without a fault"));
    let seen = with(seen, Action::Agent(AgentFault::Killed), 19.0, 22.0);
    assert_eq!(violations(&seen), [""; 0]);
}

#[test]
fn an_alarm_that_comes_back_after_the_repair_is_found() {
    let mut seen = broken(calm(), FLUSHED, 20.0, 27.0);
    seen.answered = vec![
        codes(0.0, 21.0, 200, 200),
        codes(21.0, 28.0, 503, 503),
        codes(28.0, 29.0, 200, 200),
        codes(29.0, 30.0, 503, 503),
        codes(30.0, 60.0, 200, 200),
    ];
    assert!(violations(&seen)[0].contains("without a fault"));
    // A fault may end before 503 is due. The 503 that follows is due to its last connections.
    let late = alarmed(broken(calm(), FLUSHED, 25.5, 27.0), 27.5, 28.5);
    assert_eq!(violations(&late), [""; 0]);
}

#[test]
fn an_alarm_that_is_taken_back_while_the_fault_lasts_is_found() {
    let taken_back = || alarmed(broken(calm(), FLUSHED, 20.0, 27.0), 21.2, 22.0);
    assert!(violations(&taken_back())[0].contains("200 at /livez again"));
    // 200 is right while connections work, and also just before the repair.
    let mut worked = taken_back();
    worked.dialled[215].1 = true;
    assert_eq!(violations(&worked), [""; 0]);
    let last = alarmed(broken(calm(), FLUSHED, 20.0, 27.0), 21.2, 26.5);
    assert_eq!(violations(&last), [""; 0]);
}

/// 503 is excused during faults and until the first 200 after them. If that is most of the time, the storm
/// shows little.
#[test]
fn a_storm_in_which_503_is_hardly_ever_wrong_shows_little() {
    let found = findings_of(&calm());
    assert_eq!((found.alert, found.were_alert()), (100, true));
    let found = findings_of(&alarmed(broken(calm(), FLUSHED, 20.0, 50.0), 21.2, 51.0));
    assert_eq!((found.alert, found.were_alert()), (48, true));
    let found = findings_of(&alarmed(broken(calm(), FLUSHED, 10.0, 50.0), 11.2, 51.0));
    assert_eq!((found.alert, found.were_alert()), (31, false));
}

/// The fault was injected but had no effect.
#[test]
fn an_alarm_while_every_connection_works_is_found() {
    let seen = with(alarmed(calm(), 21.0, 28.0), FLUSHED, 20.0, 27.0);
    assert!(violations(&seen)[0].contains("every connection worked"));
}

#[test]
fn a_marked_node_is_503_at_healthz_alone() {
    let seen = with(calm(), MARKED, 20.0, 26.0);
    assert!(violations(&seen)[0].contains("marked for deletion"));
    let mut seen = answering(seen, 20.2, 26.2, 503, 200);
    assert_eq!(violations(&seen), [""; 0]);
    seen.steps.clear();
    assert!(violations(&seen)[0].contains("not marked"));
}

/// If the API server could not deliver a change, a wrong answer is not the agent's mistake. Without such a
/// reason it is.
#[test]
fn an_answer_is_excused_while_the_mark_cannot_reach_the_agent() {
    let marked = with(calm(), MARKED, 20.0, 26.0);
    let trouble = Action::Api(Manner::Closed);
    let unheard = with(marked.clone(), trouble, 12.0, 21.0);
    assert_eq!(violations(&unheard), [""; 0]);
    let heard = with(marked.clone(), trouble, 27.0, 30.0);
    assert!(violations(&heard)[0].contains("marked for deletion"));
    // A late removal of the mark is excused in the same way.
    let late = answering(marked, 20.2, 40.0, 503, 200);
    assert!(violations(&late)[0].contains("not marked"));
    assert_eq!(violations(&with(late, trouble, 25.0, 38.0)), [""; 0]);
}

#[test]
fn silence_is_wrong_unless_the_agent_was_away() {
    let silent = |to: f64| answering(calm(), 20.0, to, 200, 0);
    assert_eq!(violations(&silent(22.0)), [""; 0], "too short to matter");
    assert!(violations(&silent(24.0))[0].contains("no answer for 4.0s"));
    let beside = |action: Action, from: f64, to: f64| {
        let seen = with(silent(24.0), action, from, to);
        violations(&seen).len()
    };
    assert_eq!(beside(Action::Agent(AgentFault::Killed), 19.0, 22.0), 0);
    assert_eq!(beside(Action::Agent(AgentFault::Killed), 10.0, 12.0), 1);
    // A successor answers, so nothing excuses the silence.
    assert_eq!(beside(Action::Agent(AgentFault::Replaced), 19.0, 22.0), 1);
}

#[test]
fn a_storm_that_judges_less_than_four_fifths_of_its_faults_is_blind() {
    let findings = |faults, unjudged| Findings {
        faults,
        unjudged: vec![(Duration::ZERO, "the agent was away".to_owned()); unjudged],
        ..Findings::default()
    };
    for (faults, unjudged, blind) in [
        (0, 0, false),
        (2, 0, false),
        (2, 1, true),
        (10, 2, false),
        (10, 3, true),
        (11, 7, true),
    ] {
        let found = findings(faults, unjudged);
        assert_eq!(found.are_blind(), blind, "{unjudged} of {faults}");
    }
    // The same holds for findings that `findings_of` makes from a storm with one unjudged fault.
    let seen = with(broken(calm(), FLUSHED, 20.0, 27.0), STOPPED, 19.0, 22.0);
    assert!(findings_of(&seen).are_blind());
}

#[test]
fn an_answer_that_is_neither_200_nor_503_is_found() {
    let seen = answering(calm(), 20.0, 40.0, 200, 404);
    assert!(violations(&seen)[0].contains("404"));
}

/// A journal with one episode, in seconds since the start of the storm.
fn journal(begin: i64, lasts: f64) -> Vec<Entry> {
    let start = Timestamp::UNIX_EPOCH;
    let begin = (start + SignedDuration::from_secs(begin)).to_string();
    let lasted = seconds(lasts).as_nanos() as u64;
    let journal = json!({ "episodes": [{ "begin": begin, "lasted_ns": lasted }] });
    Entry::all(&journal, start).unwrap()
}

#[test]
fn the_journal_has_each_fault_and_nothing_else() {
    let seen = alarmed(broken(calm(), FLUSHED, 20.0, 27.0), 21.2, 28.5);
    let wrong = |seen: &Seen, journal: &[Entry]| {
        let mut findings = findings_of(seen);
        judge_journal(seen, journal, &mut findings);
        let wrong = findings.violations.into_iter();
        wrong.map(|(_, what)| what).collect::<Vec<_>>()
    };
    assert_eq!(wrong(&seen, &journal(21, 7.4)), [""; 0]);
    let missing = wrong(&seen, &[]);
    assert!(missing[0].contains("not in the journal"), "{missing:?}");
    let late = wrong(&seen, &journal(24, 4.0));
    assert!(late[0].contains("not in the journal"), "{late:?}");
    let mut both = journal(21, 7.4);
    both.extend(journal(45, 2.0));
    let unfounded = wrong(&seen, &both);
    assert!(unfounded[0].contains("without a fault"), "{unfounded:?}");
}
