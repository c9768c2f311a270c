//! The journal of 503s, from sample reports.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use jiff::Timestamp;
use pathproof_facts::directory::ServiceInfo;
use pathproof_facts::switches::AuditBy;
use pathproof_facts::text;
use pathproof_facts::time::Mono;
use pathproof_judge::brake::BrakeReason;
use pathproof_report::Report;
use pathproof_report::episodes::{
    DAYS_KEPT, EPISODES_KEPT, End, Journal, SCHEMA, SERVICES_KEPT, day,
};
use pathproof_wire::evidence::{OUTCOMES, Outcome};
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::evidence::CountDelta;
use rstest::rstest;

use crate as sample;

const SECOND: u64 = 1_000_000_000;
/// The agent's start on its monotonic clock, in seconds.
const START: u64 = 3_600;

fn mono(second: u64) -> Mono {
    Mono((START + second) * SECOND)
}

fn begun() -> Journal {
    Journal::resume(None, "worker-1", "boot-1", mono(0))
}

/// The journal as a new agent reads it from the file.
fn read(journal: &mut Journal) -> Option<Journal> {
    serde_json::from_str(&journal.document()).unwrap()
}

/// The report of this second after the start in audit mode. On the wall clock, `day` days have passed too.
fn report(day: i64, second: u64, fails: bool) -> Report {
    let mut report = match fails {
        true => sample::broken(),
        false => sample::proven(),
    };
    report.verdict.at = mono(second);
    let written = 1_795_305_600 + day * 86_400 + second as i64;
    report.written = Timestamp::from_second(written).unwrap();
    report.answers.livez.status = 200;
    report.answers.livez.would_fail = fails;
    report
}

/// Judges once a second, first included and last excluded.
fn judge(journal: &mut Journal, seconds: std::ops::Range<u64>, fails: bool) {
    for second in seconds {
        journal.judged(&report(0, second, fails));
    }
}

fn observed(journal: &Journal) -> u64 {
    journal.observed_ns.values().sum::<u64>() / SECOND
}

#[test]
fn an_episode_lasts_from_the_first_503_to_the_next_200() {
    let mut journal = begun();
    judge(&mut journal, 0..10, false);
    judge(&mut journal, 10..15, true);
    assert_eq!(journal.episodes[0].end, End::Open);
    judge(&mut journal, 15..20, false);
    assert_eq!(journal.episodes.len(), 1);
    let episode = &journal.episodes[0];
    assert_eq!(episode.begin, report(0, 10, true).written);
    assert_eq!(episode.lasted, Duration::from_secs(5));
    let parts = (episode.end, &*episode.cause, episode.answered);
    assert_eq!(parts, (End::Recovered, "leaked", 200));
    let seconds = [9, 10, 16, 17].map(|second| report(0, second, true).written);
    assert_eq!(
        seconds.map(|at| episode.contains(at)),
        [false, true, true, false]
    );
}

/// The negative control: a node that is well, degraded or not observed has no episode.
#[test]
fn only_a_503_makes_an_episode_and_only_evidence_counts_as_observed() {
    let mut journal = begun();
    judge(&mut journal, 0..31, false);
    for (second, mut report) in [(31, sample::degraded()), (32, sample::blind())] {
        report.verdict.at = mono(second);
        journal.judged(&report);
    }
    judge(&mut journal, 33..34, false);
    assert_eq!(journal.episodes, VecDeque::new());
    assert_eq!(observed(&journal), 32, "not while it was blind");
}

#[test]
fn failed_connections_count_from_the_503_on_by_service() {
    let service = |id: u32, name: &str| {
        let mut info = ServiceInfo::plain("shop", name, Family::V4);
        (info.udp, info.sentinel) = (name == "dns", name == "sentinel");
        (id, info)
    };
    let mut directory =
        BTreeMap::from([(90, service(90, "dns").1), (91, service(91, "sentinel").1)]);
    directory.extend((0..10).map(|id| service(id, &format!("s{id}"))));
    let delta = |class: SourceClass, service: u32| {
        let mut counts = [0; OUTCOMES];
        counts[Outcome::Arrived as usize] = 9;
        counts[Outcome::Leaked as usize] = 2;
        counts[Outcome::AnswerNotDelivered as usize] = 4;
        CountDelta {
            service,
            class,
            counts,
            lost: 1,
        }
    };
    let services = (0..10).chain([90, 91, 92]);
    let counts: Vec<CountDelta> = services
        .map(|service| delta(SourceClass::Pod, service))
        .collect();
    let mut journal = begun();
    journal.count(&counts, &directory);
    judge(&mut journal, 0..1, true);
    journal.count(&counts, &directory);
    journal.count(&counts[..1], &directory);
    judge(&mut journal, 1..2, false);
    journal.count(&counts, &directory);
    let episode = &journal.episodes[0];
    assert_eq!(episode.failed.len(), SERVICES_KEPT);
    assert_eq!(episode.failed["shop/s0"], 6);
    assert_eq!(episode.failed["shop/s7"], 3);
    assert_eq!((episode.failed_others, episode.connections()), (6, 33));
    assert_eq!(episode.failed_outside, 0, "pods alone");
    judge(&mut journal, 2..3, true);
    for class in SourceClass::ALL {
        journal.count(&[delta(class, 0), delta(class, 91)], &directory);
    }
    let episode = &journal.episodes[1];
    assert_eq!((episode.connections(), episode.failed_outside), (9, 3));
}

/// Cases: boot of the new agent, seconds without an agent, and whether the node fails still.
#[rstest]
#[case::fails_still("boot-1", 20, true, End::Open, 29)]
#[case::mended_meanwhile("boot-1", 20, false, End::NotObserved, 4)]
#[case::rebooted("boot-2", 20, true, End::NotObserved, 4)]
#[case::without_a_boot_id("", 20, true, End::NotObserved, 4)]
#[case::without_an_agent_for_long("boot-1", 700, true, End::NotObserved, 4)]
fn a_restart_in_the_middle(
    #[case] boot: &str,
    #[case] gap: u64,
    #[case] fails: bool,
    #[case] end: End,
    #[case] lasted: u64,
) {
    let mut journal = begun();
    judge(&mut journal, 0..5, true);
    journal.boot_id = boot.replace("boot-2", "boot-1");
    let before = read(&mut journal);
    let restarted = 5 + gap;
    let mut journal = Journal::resume(before, "worker-1", boot, mono(restarted));
    judge(&mut journal, restarted..restarted + 5, fails);
    let first = &journal.episodes[0];
    assert_eq!((first.end, first.lasted.as_secs()), (end, lasted));
    let is_second = fails && end == End::NotObserved;
    assert_eq!(journal.episodes.len(), 1 + usize::from(is_second));
    assert_eq!(observed(&journal), 4 + 4, "not the time without an agent");
}

/// An agent that starts with what a former one remembered has a first verdict by that, and perhaps another one in
/// the same moment.
#[test]
fn a_503_that_ends_in_the_moment_in_which_it_begins_is_no_episode() {
    let mut journal = begun();
    judge(&mut journal, 0..1, true);
    judge(&mut journal, 0..5, false);
    assert_eq!(journal.episodes, VecDeque::new());
}

#[test]
fn the_journal_of_another_node_or_version_is_not_continued() {
    let mut journal = begun();
    judge(&mut journal, 0..5, true);
    let other = Journal::resume(read(&mut journal), "worker-2", "boot-1", mono(6));
    assert!(other.episodes.is_empty() && other.node == "worker-2");
    journal.schema = SCHEMA + 1;
    let later = Journal::resume(read(&mut journal), "worker-1", "boot-1", mono(6));
    assert!(later.episodes.is_empty() && later.schema == SCHEMA);
}

#[test]
fn a_clock_that_is_set_changes_no_duration_and_deletes_nothing() {
    let mut journal = begun();
    judge(&mut journal, 0..5, false);
    judge(&mut journal, 5..8, true);
    for (second, days) in [(8, 20_000), (9, -15_000), (10, 0)] {
        journal.judged(&report(days, second, true));
        journal.document();
    }
    judge(&mut journal, 11..12, false);
    assert_eq!(journal.episodes.len(), 1);
    assert_eq!(journal.episodes[0].lasted, Duration::from_secs(6));
    assert_eq!(observed(&journal), 11);
    assert_eq!(journal.observed_ns.len(), 3);
}

#[test]
fn old_days_and_then_old_episodes_are_deleted() {
    let mut journal = begun();
    for day in 0..40 {
        let second = day as u64 * 10;
        journal.judged(&report(day, second, false));
        for (second, fails) in [(second + 1, true), (second + 2, false)] {
            journal.judged(&report(day, second, fails));
        }
    }
    journal.document();
    assert_eq!(journal.observed_ns.len(), DAYS_KEPT);
    assert_eq!(journal.episodes.len(), DAYS_KEPT);
    assert_eq!(journal.deleted, 0);
    let first = journal.observed_ns.keys().next().copied();
    assert_eq!(first, Some(day(journal.episodes[0].begin)));
    for second in 1_000..1_000 + 2 * EPISODES_KEPT as u64 {
        journal.judged(&report(39, second, second % 2 == 0));
    }
    let document = journal.document();
    assert_eq!(journal.episodes.len(), EPISODES_KEPT);
    assert_eq!(journal.deleted, DAYS_KEPT as u64);
    assert!(document.len() < 100_000, "{} bytes", document.len());
}

#[test]
fn an_episode_before_the_first_observed_day_stays_while_there_is_room() {
    let mut journal = begun();
    journal.judged(&report(0, 0, true));
    journal.judged(&report(1, 1, false));
    journal.document();
    assert_eq!(journal.observed_ns.len(), 1);
    assert_eq!(journal.episodes.len(), 1);
}

/// Each case has audit mode, the fleet brake, and whether the brake counts as the reason for the 200.
#[rstest]
#[case::braked(false, true, true)]
#[case::braked_in_audit(true, true, false)]
#[case::audit(true, false, false)]
fn only_an_enforcing_node_is_held_by_the_brake(
    #[case] audits: bool,
    #[case] holds: bool,
    #[case] held: bool,
) {
    let mut report = report(0, 0, true);
    report.answers.audit = audits.then_some(AuditBy::Flag);
    report.answers.held = holds.then_some(BrakeReason::Waiting);
    let mut journal = begun();
    journal.judged(&report);
    assert_eq!(journal.episodes[0].held, held);
}

#[test]
fn it_is_written_when_an_episode_changes_and_once_a_minute() {
    let mut journal = begun();
    let mut due = |second: u64, fails: bool| {
        let due = journal.judged(&report(0, second, fails));
        if due {
            journal.document();
        }
        due
    };
    assert!(due(0, false), "at the start");
    assert!(!due(59, false));
    assert!(due(60, false), "after a minute");
    assert!(due(61, true), "an episode begins");
    assert!(!due(62, true));
    assert!(due(63, false), "and ends");
}

#[test]
fn an_episode_names_the_recording_of_its_begin_while_it_is_kept() {
    let mut journal = begun();
    journal.recorded("before");
    judge(&mut journal, 0..2, true);
    journal.document();
    journal.recorded("begin");
    assert!(journal.judged(&report(0, 2, true)), "to be written again");
    journal.recorded("later");
    assert_eq!(journal.episodes[0].recording.as_deref(), Some("begin"));
    journal.forget_recordings(|file| file == "begin");
    assert_eq!(journal.episodes[0].recording.as_deref(), Some("begin"));
    journal.forget_recordings(|_| false);
    assert_eq!(journal.episodes[0].recording, None);
}

/// A Service's name is external text; the document is read with curl on a terminal.
#[test]
fn names_in_the_document_steer_no_terminal() {
    let mut journal = begun();
    judge(&mut journal, 0..1, true);
    let failed = &mut journal.episodes[0].failed;
    failed.insert("shop/\u{1b}[2J\u{202e}".to_owned(), 1);
    let document = journal.document();
    assert!(!document.contains(text::is_hidden), "{document}");
    let back = read(&mut journal).unwrap();
    assert_eq!(back.episodes, journal.episodes);
}
