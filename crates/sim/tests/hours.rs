//! Node-hours: a few are right, and judges that are wrong on purpose are found.

use std::time::Duration;

use pathproof_facts::switches::Enforcement;
use pathproof_judge::answer::UnknownPolicy;
use pathproof_node::Settings;
use pathproof_node::replay::replay;
use pathproof_sim::cells::hours::{Found, Life, Tally, play_hours};
use rstest::rstest;

#[test]
fn twenty_node_hours_are_right() {
    let length = Duration::from_secs(20 * 3_600);
    let mut wrong = Vec::new();
    let tally = play_hours(length, 3, 2, |_, ended| {
        assert_eq!(Life::parse(&ended.life.to_string()), Some(ended.life));
        wrong.extend(ended.found.is_wrong().then(|| ended.text.clone()));
    });
    assert_eq!(wrong, [""; 0]);
    assert!(tally.is_right());
    let [stepped, skipped] = tally.time;
    assert!(stepped + skipped >= length && skipped > 5 * stepped);
    assert!(tally.found[&Found::InTime] > 0);
    assert!(tally.unseen.len() < Tally::default().unseen.len());
}

fn blind(settings: &mut Settings) {
    settings.enforcement = Enforcement::Audit;
}

fn hasty(settings: &mut Settings) {
    settings.unknown_policy = UnknownPolicy::Closed;
}

/// On a node on which nothing happens before its rules are flushed.
#[rstest]
#[case(blind, Found::Missed)]
#[case(hasty, Found::False503)]
fn a_wrong_judge_is_found(#[case] change: fn(&mut Settings), #[case] found: Found) {
    let life = Life::parse("0.0.1").expect("a case");
    let ended = life.play(|node| node.configured(change).recorded());
    assert_eq!(ended.found, found, "{}", ended.text);
    let mut tally = Tally::default();
    tally.add(&ended);
    assert!(!tally.is_right());
    let replayed = replay(&ended.recording, None).expect("a recording");
    assert_eq!(replayed.differs, None);
}
