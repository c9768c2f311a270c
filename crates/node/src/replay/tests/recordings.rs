//! Recordings of real nodes (network namespaces, real rules and packets) from tests/node and
//! tests/worlds: real faults that must have a cause, and harmless worlds that must not be accused.
//! If a change of the judge's rules affects a recorded node, these tests fail first.
//!
//! After a change of the judge's data, `PATHPROOF_BLESS=1 cargo test -p pathproof-node --lib recordings`
//! rewrites them. The recorded events stay; the outcomes and the judge at the start of each part are taken
//! from the replay. The tests here define what must not change.
//!
//! To take one again: `PATHPROOF_KEEP_RECORDINGS=folder cargo test -p node-tests --test node NAME`,
//! or `--test worlds`.

use pathproof_facts::cause::{Cause, State};
use rstest::rstest;

use super::super::*;
use crate::record::Line;

fn recorded(name: &str) -> Replayed {
    let path = format!(
        "{}/testdata/recordings/{name}.pathproof",
        env!("CARGO_MANIFEST_DIR")
    );
    if std::env::var_os("PATHPROOF_BLESS").is_some() {
        write_anew(&path);
    }
    let bytes = std::fs::read(&path).unwrap();
    let replayed = replay(&bytes, None).unwrap();
    assert_eq!(
        replayed.differs, None,
        "{name} was judged otherwise when it was recorded"
    );
    replayed
}

/// The worst state and cause of a recording, whether it ever answered 503, and its last state.
fn played(name: &str) -> (State, Option<Cause>, bool, State) {
    let replayed = recorded(name);
    let moments = &replayed.moments;
    // Of several moments with the worst state, the last one counts, because causes change while a fault
    // begins.
    let worst = moments
        .iter()
        .max_by_key(|moment| moment.update.verdict.state)
        .unwrap();
    let verdict = &worst.update.verdict;
    let failed = moments
        .iter()
        .any(|moment| moment.update.answers.healthz.status == 503);
    let last = moments.last().unwrap().update.verdict.state;
    (verdict.state, verdict.cause, failed, last)
}

#[rstest]
#[case("fault-flushed-idle", Cause::Leaked)]
#[case("fault-flushed-busy", Cause::Leaked)]
#[case("fault-rules-removed-iptables", Cause::Leaked)]
#[case("fault-rewritten", Cause::Misrouted)]
#[case("fault-forwarding-off", Cause::ForwardingOff)]
#[case("fault-data-dropped", Cause::NoData)]
#[case("fault-node-ports-gone", Cause::Refused)]
#[case("fault-masquerade-missing", Cause::NotMasqueraded)]
#[case("fault-masquerade-gone-idle", Cause::NotMasqueraded)]
#[case("fault-masquerade-gone-busy", Cause::NotMasqueraded)]
#[case("fault-table-deleted-idle", Cause::Leaked)]
#[case("fault-routes-gone-in-an-old-view", Cause::Misrouted)]
fn a_real_fault_is_named_and_forgiven(#[case] name: &str, #[case] cause: Cause) {
    assert_eq!(
        played(name),
        (State::Broken, Some(cause), true, State::Proven)
    );
}

#[test]
fn a_fault_in_one_family_is_a_fault_of_the_node() {
    let (state, cause, failed, _) = played("fault-ipv6-alone");
    assert_eq!((state, failed), (State::Broken, true));
    assert!(
        matches!(cause, Some(Cause::Refused | Cause::Leaked)),
        "{cause:?}"
    );
}

/// Lost answers of probes alone are not enough for a 503: a filter of the sentinel's address range has the
/// same effect. There were no other connections.
#[test]
fn lost_answers_alone_are_no_503() {
    let (state, cause, failed, _) = played("fault-answers-lost");
    assert_eq!(
        (state, cause, failed),
        (State::Suspect, Some(Cause::AnswerLost), false)
    );
}

#[rstest]
#[case("harmless-agent-stopped", State::Proven, None)]
#[case("harmless-backends-killed", State::Proven, None)]
#[case("harmless-datapath-changes-hands", State::Proven, None)]
#[case("harmless-own-routes-flushed", State::Proven, None)]
#[case("harmless-policy-for-one-client", State::Proven, None)]
#[case("harmless-sentinel-edited", State::Proven, None)]
#[case("harmless-one-service-broken", State::Degraded, Some(Cause::Misrouted))]
#[case("harmless-one-chain-emptied", State::Degraded, Some(Cause::Leaked))]
#[case("harmless-range-dropped", State::Suspect, Some(Cause::Lost))]
#[case("harmless-range-reset", State::Suspect, Some(Cause::Refused))]
fn a_harmless_world_is_not_accused(
    #[case] name: &str,
    #[case] worst: State,
    #[case] cause: Option<Cause>,
) {
    let (state, named, failed, _) = played(name);
    assert_eq!((state, named, failed), (worst, cause, false));
}

/// The accusation with its cause, and the last state of the recording.
#[rstest]
#[case("fault-routes-gone", (State::Broken, Cause::Misrouted), State::Broken)]
#[case("fault-table-deleted-busy", (State::Broken, Cause::Leaked), State::Degraded)]
#[case("fault-stale-endpoint", (State::Stale, Cause::Stale), State::Proven)]
fn a_fault_under_traffic_is_named(
    #[case] name: &str,
    #[case] (state, cause): (State, Cause),
    #[case] end: State,
) {
    assert_eq!(played(name), (state, Some(cause), true, end));
}

/// Nodes with other software that changes rules or packets. The answer is 200 until the Service rules are
/// flushed.
#[rstest]
#[case("world-mirrored", 60)]
#[case("world-denied-on-a-quiet-node", 60)]
#[case("world-late-proxy", 60)]
#[case("world-graceful-ending", 30)]
fn a_world_of_other_software_is_healthy_until_it_is_flushed(
    #[case] name: &str,
    #[case] seconds: i64,
) {
    let replayed = recorded(name);
    let answered = |moment: &Moment| moment.update.answers.healthz.status;
    let failing = |moment: &&Moment| answered(moment) == 503;
    let first = replayed.moments.iter().find(failing).unwrap();
    let healthy = (first.at.0 - replayed.span.0.0) / 1_000_000_000;
    assert!(healthy >= seconds, "{healthy} s");
    assert_eq!(first.update.verdict.cause, Some(Cause::Leaked));
    assert_eq!(replayed.moments.last().map(answered), Some(200));
}

/// Replays a recording and writes it with the new outcomes.
fn write_anew(path: &str) {
    let bytes = std::fs::read(path).unwrap();
    let mut lines = Lines::new(&bytes);
    let Some(Line::Part { agent, judge, .. }) = lines.next().unwrap() else {
        panic!("{path} begins with no part");
    };
    let mut node = Node::replay(*judge);
    let (mut text, mut outcome) = (Vec::new(), None);
    let mut write = |line: Line<serde_json::Value, serde_json::Value>| {
        serde_json::to_writer(&mut text, &line).unwrap();
        text.push(b'\n');
    };
    let part = |node: &Node| Line::Part {
        recording: VERSION,
        agent: agent.clone(),
        judge: serde_json::to_value(node.judge()).unwrap(),
    };
    write(part(&node));
    while let Some(line) = lines.next().unwrap() {
        match line {
            Line::Part { judge, .. } => {
                node.judge.advance(judge.now);
                write(part(&node));
            }
            Line::Judged(_) => {}
            Line::At(at, event) => {
                write(Line::At(at, serde_json::to_value(&event).unwrap()));
                for effect in node.step(event, at) {
                    if let Effect::Publish(update) = effect {
                        let now = RecordedResult::of(&update);
                        if outcome.replace(now) != Some(now) {
                            write(Line::Judged(now));
                        }
                    }
                }
            }
        }
    }
    // Replaces the file atomically, because another test may be reading it.
    let new = format!("{path}.new");
    std::fs::write(&new, crate::record::compress(&text)).unwrap();
    std::fs::rename(&new, path).unwrap();
}
