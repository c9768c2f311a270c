//! Every answer of `/drainz` and every error of its query, as sentences; and bounds.

use std::fmt::Write as _;

use pathproof_facts::testing::{assert_words, in_json};

use super::*;

fn view(watched: u64, last: Option<u64>, seen: u64) -> DrainView {
    DrainView {
        since: Some(ms(60_000)),
        watched: Some(ms(watched)),
        last: last.map(ms),
        seen: Some(ms(seen)),
        ..DrainView::default()
    }
}

#[test]
fn every_answer_has_its_sentence() {
    let blind = DrainView {
        blind: Some("eth0 is not observed".to_owned()),
        ..view(1_000, None, 70_000)
    };
    let stays = DrainView {
        since: None,
        ..view(1_000, None, 70_000)
    };
    let unwatched = DrainView {
        since: Some(ms(60_000)),
        ..DrainView::default()
    };
    let views = [
        view(1_000, Some(59_000), 75_000),
        view(1_000, Some(74_000), 75_000),
        view(1_000, Some(59_000), 64_000),
        view(69_000, Some(68_000), 71_000),
        stays,
        blind,
        unwatched,
        view(1_000, None, 60_000),
    ];
    let mut text = String::new();
    for view in views {
        let now = view
            .seen
            .unwrap_or(ms(60_000))
            .plus(Duration::from_millis(50));
        let now = now.max(ms(68_000));
        let answer = view.answer(&Ask::default(), now);
        let _ = writeln!(text, "{}: {}", in_json(answer.reason), answer.message);
    }
    for query in ["quiet=soon", "waited=2d", "quite=10s"] {
        let error = Ask::parse(query).unwrap_err();
        let _ = writeln!(text, "{query}: {error}");
    }
    let _ = writeln!(text, "--timeout=x: {}", timeout("x").unwrap_err());
    let _ = writeln!(text, "--quiet=0: {}", quiet_time("0").unwrap_err());
    assert_words("drain", &text);
}

/// The maximum age of a sample.
#[rstest]
#[case(5_000, DrainReason::Quiet)]
#[case(5_001, DrainReason::Blind)]
fn a_sample_is_valid_for_five_seconds(#[case] age: u64, #[case] expected: DrainReason) {
    let answer = view(1_000, None, 75_000).answer(&Ask::default(), ms(75_000 + age));
    assert_eq!(answer.reason, expected);
}

/// A connection at the very start of the quiet time still counts.
#[rstest]
#[case::before(59_999, 69_999, DrainReason::Waiting)]
#[case::at_it(60_000, 69_999, DrainReason::Connections)]
#[case::quiet_is_over(60_000, 70_000, DrainReason::Quiet)]
fn quiet_has_its_bounds(#[case] last: u64, #[case] seen: u64, #[case] expected: DrainReason) {
    let answer = view(1_000, Some(last), seen).answer(&Ask::default(), ms(seen));
    assert_eq!(answer.reason, expected, "{answer:?}");
}

#[test]
fn a_connection_at_the_moment_of_the_taint_counts() {
    let mut drain = leaving();
    drain.look(
        &outside(61_000, &[(60_000, CLIENT), (59_999, CLIENT)]),
        None,
    );
    assert_eq!(drain.view().connections, 1);
}

/// The quiet time is known before the node leaves, as far back as the observation goes.
#[test]
fn quiet_time_is_known_before_the_node_leaves() {
    let quiet = |view: DrainView| view.quiet();
    assert_eq!(quiet(DrainView::default()), None);
    let span = |ms| Some(Duration::from_millis(ms));
    assert_eq!(quiet(view(1_000, None, 75_000)), span(74_000));
    assert_eq!(quiet(view(1_000, Some(70_000), 75_000)), span(5_000));
    assert_eq!(quiet(view(72_000, Some(70_000), 75_000)), span(3_000));
}

#[rstest]
#[case("1", Some(1_000))]
#[case("999ms", None)]
#[case("10m", Some(600_000))]
#[case("600.001", None)]
#[case(" 30s ", Some(30_000))]
fn quiet_times_have_bounds(#[case] text: &str, #[case] expected: Option<u64>) {
    let expected = expected.map(Duration::from_millis);
    assert_eq!(quiet_time(text).ok(), expected);
}

#[rstest]
#[case("0", Some(0))]
#[case("86400", Some(86_400_000))]
#[case("24h", Some(86_400_000))]
#[case("86400.001", None)]
#[case("-1", None)]
#[case("", None)]
fn waits_have_bounds(#[case] text: &str, #[case] expected: Option<u64>) {
    let expected = expected.map(Duration::from_millis);
    assert_eq!(timeout(text).ok(), expected);
}

#[test]
fn a_query_is_written_as_it_is_read() {
    assert_eq!(Ask::default().query(), "quiet=10.000");
    assert_eq!(waited(3).query(), "quiet=10.000&waited=3.000");
}
