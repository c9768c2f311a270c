//! Tests that failed in parallel and passed alone. CI excuses a limited number of them in a run, and each
//! at most once a week, so a file records them.

use std::cell::Cell;
use std::fmt::Write as _;
use std::fs;
use std::io::ErrorKind;

use anyhow::{Context, Result};
use jiff::Timestamp;
use jiff::civil::Date;
use jiff::tz::TimeZone;

use crate::run;

/// Maximum number of excused tests in a run, over all groups of tests (docs/internal/specification.md).
/// More failures are no accident.
const MOST: usize = 3;

/// A test with one of these in its name checks that no client gets a 503 without a fault.
const NAMES: [&str; 3] = ["never_503", "no_503", "lose_no_answer"];
/// Assertions of tests/ panic with one of these if a node without a fault answers 503, or may have
/// done so: a comparison of codes, or a repaired node that does not return to 200.
const WORDS: [&str; 9] = [
    "false 503",
    "left: 503",
    "left: (200, 503)",
    "never 200",
    "never [200",
    "healthz: 503",
    "livez: 503",
    "never seen: 200",
    "never seen: proven and 200",
];

/// Tests that a run may still excuse.
pub(crate) struct Budget(Cell<usize>);

impl Budget {
    /// Excuses nothing, as outside of CI.
    pub(crate) fn nothing() -> Self {
        Self::after(MOST)
    }

    /// The rest of the budget after this many excused tests.
    pub(crate) fn after(excused: usize) -> Self {
        Self(Cell::new(MOST.saturating_sub(excused)))
    }

    /// Selects the failed tests that run again, alone: none if there are more than the run may still
    /// excuse, and never a test that saw a false 503.
    pub(crate) fn again(&self, failed: &[String], panics: &[String]) -> Vec<String> {
        if failed.len() > self.0.get() {
            return Vec::new();
        }
        let may = failed.iter().filter(|test| !is_false_503(test, panics));
        may.cloned().collect()
    }

    pub(crate) fn spend(&self, excused: usize) {
        self.0.set(self.0.get().saturating_sub(excused));
    }
}

fn is_false_503(test: &str, panics: &[String]) -> bool {
    let thread = format!("thread '{test}'");
    let may_be = |panic: &String| WORDS.iter().any(|words| panic.contains(words));
    let saw_it = |panic: &String| panic.starts_with(&thread) && may_be(panic);
    NAMES.iter().any(|name| test.contains(name)) || panics.iter().any(saw_it)
}

/// Days within which a test is excused only once.
const DAYS: i32 = 7;
/// Days that the history covers.
const KEPT_DAYS: i32 = 90;

/// The history of this clone; CI's workflow carries it from run to run.
pub(crate) const FILE: &str = "target/ci/excused.txt";

/// Adds the excused tests of this run, with their panics, to the history. Returns those that were
/// excused less than a week before.
pub(crate) fn keep(unsteady: &[String], panics: &[String]) -> Result<Vec<String>> {
    let path = run::root().join(FILE);
    fs::create_dir_all(run::root().join("target/ci")).context("make target/ci")?;
    let before = match fs::read_to_string(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        read => read.with_context(|| format!("read {FILE}"))?,
    };
    let today = Timestamp::now().to_zoned(TimeZone::UTC).date();
    let repeated = repeated(&before, unsteady, today);
    let all = recent(&before, today) + &text(unsteady, panics, today);
    fs::write(&path, all).with_context(|| format!("write {FILE}"))?;
    Ok(repeated)
}

/// Age in days and test of an entry in the history. Lines of panics begin with spaces.
fn entry(line: &str, today: Date) -> Option<(i32, &str)> {
    let (date, test) = line.split_once(' ')?;
    let days = today.since(date.parse::<Date>().ok()?).ok()?.get_days();
    Some((days, test))
}

fn repeated(before: &str, unsteady: &[String], today: Date) -> Vec<String> {
    let lately = |test: &&String| {
        let mut entries = before.lines().filter_map(|line| entry(line, today));
        entries.any(|(days, name)| days < DAYS && name == *test)
    };
    unsteady.iter().filter(lately).cloned().collect()
}

/// The history without outdated entries.
fn recent(before: &str, today: Date) -> String {
    let mut keeps = false;
    let mut kept = String::new();
    for line in before.lines() {
        if let Some((days, _)) = entry(line, today) {
            keeps = days < KEPT_DAYS;
        }
        if keeps {
            let _ = writeln!(kept, "{line}");
        }
    }
    kept
}

fn text(unsteady: &[String], panics: &[String], today: Date) -> String {
    let mut text = String::new();
    for test in unsteady {
        let thread = format!("thread '{test}'");
        let _ = writeln!(text, "{today} {test}");
        for panic in panics.iter().filter(|panic| panic.starts_with(&thread)) {
            let _ = writeln!(text, "    {panic}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn strings(all: &[&str]) -> Vec<String> {
        all.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn three_tests_are_excused_in_a_run_whatever_their_groups() {
        let budget = Budget::after(0);
        let four = strings(&["a", "b", "c", "d"]);
        assert_eq!(budget.again(&four, &[]), [""; 0]);
        assert_eq!(budget.again(&four[..2], &[]), four[..2]);
        budget.spend(2);
        assert_eq!(budget.again(&four[2..], &[]), [""; 0], "one is left");
        assert_eq!(budget.again(&four[2..3], &[]), ["c"]);
        budget.spend(1);
        assert_eq!(budget.again(&four[3..], &[]), [""; 0], "none is left");
        assert_eq!(Budget::after(2).again(&four[2..], &[]), [""; 0]);
        assert_eq!(Budget::after(2).again(&four[3..], &[]), ["d"]);
    }

    #[test]
    fn nothing_is_excused_outside_of_ci() {
        assert_eq!(Budget::nothing().again(&strings(&["a"]), &[]), [""; 0]);
    }

    #[test]
    fn a_false_503_is_never_excused() {
        let failed = strings(&[
            "agent_twins::never_503::harmless_1",
            "calm::no_503_without_a_fault_in_nftables_mode",
            "agent_faults::outsiders_alone_never_flip_it",
            "sentinel_input::foreign",
            "agent_faults::mended",
            "agent_http::slow",
        ]);
        let panics = strings(&[
            "thread 'agent_faults::outsiders_alone_never_flip_it' (7) panicked at a.rs:1:1:\n    false 503: [..]",
            "thread 'sentinel_input::foreign' (9) panicked at c.rs:1:1:\n    assertion `left == right` failed\n      left: 503",
            "thread 'agent_faults::mended' (9) panicked at d.rs:1:1:\n    never 200: not seen within 40s",
            "thread 'agent_http::slow' (8) panicked at b.rs:1:1:\n    never seen: 503",
        ]);
        let budget = Budget::after(0);
        assert_eq!(budget.again(&failed[..3], &panics), [""; 0]);
        assert_eq!(budget.again(&failed[3..], &panics), ["agent_http::slow"]);
        assert_eq!(
            budget.again(&failed[2..3], &[]),
            failed[2..3],
            "the same test, failed for another reason"
        );
    }

    /// Failures without one of [`WORDS`] would be excused, so these assertions must use them.
    #[test]
    fn assertions_against_503_use_the_words() {
        for (file, function) in [
            ("tests/src/scene.rs", "pub fn assert_never_503("),
            ("tests/src/scene.rs", "pub fn wait_answers("),
            ("tests/cluster/calm.rs", "fn still("),
            ("tests/cluster/parity.rs", "fn agree("),
            ("tests/cluster/takeover.rs", "fn wait_answers("),
        ] {
            let text = fs::read_to_string(run::root().join(file)).expect(file);
            let (_, rest) = text.split_once(function).expect(function);
            let body = rest.split("\nfn ").next().unwrap_or_default();
            let said = body.contains(WORDS[0]) || body.contains("\"never {");
            assert!(said, "{file}: {function}");
        }
    }

    #[test]
    fn the_file_has_each_excused_test_with_its_panics() {
        let panics = strings(&["thread 'b' (1) panicked", "thread 'a' (2) panicked at a.rs"]);
        let unsteady = strings(&["a"]);
        assert_eq!(
            text(&unsteady, &panics, day("2026-11-26")),
            "2026-11-26 a\n    thread 'a' (2) panicked at a.rs\n"
        );
        assert_eq!(text(&[], &panics, day("2026-11-26")), "");
    }

    fn day(text: &str) -> Date {
        text.parse().expect("a date")
    }

    #[test]
    fn a_test_is_excused_once_in_a_week() {
        let history = "2026-11-20 a::b\n    thread 'a::b' (2) panicked at a.rs\n2026-11-25 c\n";
        let unsteady = strings(&["a::b", "b", "c"]);
        let on = |date: &str| repeated(history, &unsteady, day(date));
        assert_eq!(on("2026-11-26"), ["a::b", "c"]);
        assert_eq!(on("2026-11-27"), ["c"]);
        assert_eq!(on("2026-12-25"), [""; 0]);
        assert_eq!(repeated("", &unsteady, day("2026-11-26")), [""; 0]);
    }

    #[test]
    fn old_entries_leave_with_their_panics() {
        let old = "2026-01-01 a\n    thread 'a' (2) panicked at a.rs\n        left: 1\n";
        let new = "2026-11-25 c\n    thread 'c' (2) panicked at c.rs\n";
        assert_eq!(recent(&format!("{old}{new}"), day("2026-11-26")), new);
    }
}
