//! Counts tests: parses the output of libtest while it is shown, and adds up the results.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::AddAssign;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: usize,
    pub(crate) failed: usize,
    pub(crate) skipped: usize,
}

impl Tally {
    pub(crate) const PASSED: Tally = Tally {
        passed: 1,
        failed: 0,
        skipped: 0,
    };
    pub(crate) const FAILED: Tally = Tally {
        passed: 0,
        failed: 1,
        skipped: 0,
    };
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

/// Formats the closing line of a run.
impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} passed, {} failed, {} skipped",
            self.passed, self.failed, self.skipped
        )
    }
}

#[derive(Debug, Default)]
pub(crate) struct Counted {
    pub(crate) tally: Tally,
    /// Names of tests that failed.
    pub(crate) failed: Vec<String>,
    /// "test: why" of tests that skipped themselves.
    pub(crate) skipped: Vec<String>,
    /// Names of tests that failed beside others and passed alone; counted as passed.
    pub(crate) unsteady: Vec<String>,
    /// Panic messages of failed tests: the panic line and the lines after it.
    pub(crate) panics: Vec<String>,
    /// A test binary started and gave no result, or nothing could be run; counted as one failure.
    pub(crate) died: bool,
    /// Seconds and name of each test whose time was reported.
    pub(crate) times: Vec<(f64, String)>,
}

impl From<Tally> for Counted {
    fn from(tally: Tally) -> Self {
        Self {
            tally,
            ..Self::default()
        }
    }
}

impl AddAssign for Counted {
    fn add_assign(&mut self, other: Self) {
        self.tally += other.tally;
        self.failed.extend(other.failed);
        self.skipped.extend(other.skipped);
        self.unsteady.extend(other.unsteady);
        self.panics.extend(other.panics);
        self.died |= other.died;
        self.times.extend(other.times);
    }
}

impl Counted {
    /// A step of CI that cannot run on this machine; prints the reason.
    pub(crate) fn skip(step: &str, why: &str) -> Self {
        println!("SKIPPED  {step}: {why}");
        Self::skips(vec![format!("{step}: {why}")])
    }

    /// Only skips, each "test: why".
    pub(crate) fn skips(skipped: Vec<String>) -> Self {
        Self {
            tally: Tally {
                skipped: skipped.len(),
                ..Tally::default()
            },
            skipped,
            ..Self::default()
        }
    }

    /// Whether the name of every failed test is known.
    pub(crate) fn is_whole(&self) -> bool {
        !self.died && self.failed.len() == self.tally.failed
    }

    /// Merges a second run of only the failed tests: those that then passed were unsteady. Tests are
    /// excused only if both runs are complete and the second one ran exactly these tests.
    pub(crate) fn after(mut self, asked: &[String], again: &Self) -> Self {
        let ran = again.tally.passed + again.tally.failed;
        if !self.is_whole() || !again.is_whole() || ran != asked.len() {
            return self;
        }
        let failed = |test: &String| !asked.contains(test) || again.failed.contains(test);
        (self.failed, self.unsteady) = self.failed.into_iter().partition(failed);
        self.tally.failed = self.failed.len();
        self.tally.passed += self.unsteady.len();
        self.panics.extend_from_slice(&again.panics);
        self
    }
}

/// Number of tests in the list of the slowest.
const SLOWEST: usize = 20;

/// A heading and the slowest tests, one a line, with their times; empty without times.
pub(crate) fn slowest(times: &mut [(f64, String)]) -> String {
    if times.is_empty() {
        return String::new();
    }
    times.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let lines = times.iter().take(SLOWEST);
    lines.fold("\nslowest tests\n".to_owned(), |text, (seconds, test)| {
        format!("{text}{seconds:>7.1} s   {test}\n")
    })
}

/// Lines to keep after the panic line: for a comparison, the message and both sides.
const PANIC_LINES: usize = 8;
const PANIC_WIDTH: usize = 600;

/// Of the output of passed tests, only lines with these prefixes are shown.
const SHOWN: [&str; 2] = ["TOUCHED ", "MEASURED "];

/// Follows the output of `cargo test -- --show-output`, with or without `--report-time`.
///
/// libtest cannot mark a running test as skipped. Such a test passes and prints a line `SKIPPED: why`, which
/// is found in the output of passed tests. Of that output, only lines that begin as in [`SHOWN`] are shown.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Sum over all binaries.
    counted: Counted,
    /// Number of binaries that started and gave no result yet.
    open: usize,
    /// Tests of the current binary that skipped themselves.
    skipping: BTreeSet<String>,
    /// Number of further lines that belong to the last panic.
    panicking: usize,
    /// Inside the section with the output of passed tests.
    in_successes: bool,
    test: String,
}

impl Reader {
    /// Processes a line; returns whether to show it.
    pub(crate) fn line(&mut self, line: &str) -> bool {
        if line == "successes:" {
            self.in_successes = true;
        } else if line == "failures:" || line.starts_with("test result: ") {
            self.in_successes = false;
        }
        if !self.in_successes {
            if let Some(line) = line.strip_prefix("test ") {
                self.test_ended(line);
            }
            self.open += usize::from(is_start(line));
            self.panic(line);
            self.result(line);
            return true;
        }
        let test = line.strip_prefix("---- ");
        if let Some(test) = test.and_then(|rest| rest.strip_suffix(" stdout ----")) {
            test.clone_into(&mut self.test);
        }
        if let Some(why) = line.strip_prefix("SKIPPED: ") {
            self.counted.skipped.push(format!("{}: {why}", self.test));
            self.skipping.insert(self.test.clone());
        }
        SHOWN.iter().any(|word| line.starts_with(word))
    }

    /// Processes a line like `name ... FAILED <1.234s>` without the word `test` before it.
    fn test_ended(&mut self, line: &str) {
        let time = line.strip_suffix("s>").and_then(|l| l.rsplit_once(" <"));
        let time = time.and_then(|(line, seconds)| Some((line, seconds.parse::<f64>().ok()?)));
        let line = time.map_or(line, |(line, _)| line);
        let Some((test, outcome)) = line.split_once(" ... ") else {
            return;
        };
        if outcome == "FAILED" {
            self.counted.failed.push(test.to_owned());
        } else if outcome.starts_with("ignored") {
            self.counted.skipped.push(format!("{test}: ignored"));
        }
        if let Some((_, seconds)) = time {
            self.counted.times.push((seconds, test.to_owned()));
        }
    }

    /// Keeps lines like `thread 'name' (7) panicked at file.rs:1:2:` and those that follow.
    fn panic(&mut self, line: &str) {
        let short: String = line.chars().take(PANIC_WIDTH).collect();
        if line.starts_with("thread '") && line.contains(" panicked at ") {
            self.counted.panics.push(short);
            self.panicking = PANIC_LINES;
        } else if line == "stack backtrace:" {
            self.panicking = 0;
        } else if let (Some(panic), 1..) = (self.counted.panics.last_mut(), self.panicking) {
            *panic += "\n    ";
            *panic += &short;
            self.panicking -= 1;
        }
    }

    /// Adds a line like `test result: ok. 5 passed; 0 failed; 1 ignored; 0 measured; ...`.
    fn result(&mut self, line: &str) {
        let Some(rest) = line.strip_prefix("test result: ") else {
            return;
        };
        self.open = self.open.saturating_sub(1);
        let tally = &mut self.counted.tally;
        let parts = rest.split([';', '.']);
        let numbers = parts.filter_map(|part| {
            let (number, word) = part.trim().split_once(' ')?;
            Some((number.parse::<usize>().ok()?, word))
        });
        for (number, word) in numbers {
            match word {
                "passed" => tally.passed += number.saturating_sub(self.skipping.len()),
                "failed" => tally.failed += number,
                "ignored" => tally.skipped += number + self.skipping.len(),
                _ => {}
            }
        }
        self.skipping.clear();
    }

    /// `well`: whether the test command succeeded.
    pub(crate) fn finish(self, well: bool) -> Counted {
        let mut counted = self.counted;
        counted.died = self.open > 0 || (!well && counted.tally.failed == 0);
        counted.tally.failed += usize::from(counted.died);
        counted
    }
}

/// `running 12 tests`.
fn is_start(line: &str) -> bool {
    let words: Vec<&str> = line.split(' ').collect();
    matches!(words[..], ["running", number, "test" | "tests"] if number.parse::<usize>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> (Tally, Vec<String>, String) {
        let mut reader = Reader::default();
        let shown: Vec<&str> = text.lines().filter(|line| reader.line(line)).collect();
        let Counted { tally, skipped, .. } = reader.finish(true);
        (tally, skipped, shown.join("\n"))
    }

    #[test]
    fn results_of_several_binaries_add_up() {
        let (tally, skipped, _) = read(
            "running 2 tests\ntest a ... ok\n\
             test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
             test result: FAILED. 1 passed; 3 failed; 4 ignored; 0 measured; 0 filtered out; finished in 1.50s",
        );
        assert_eq!(
            tally,
            Tally {
                passed: 3,
                failed: 3,
                skipped: 4
            }
        );
        assert_eq!(tally.to_string(), "3 passed, 3 failed, 4 skipped");
        assert!(skipped.is_empty());
    }

    #[test]
    fn a_test_that_skips_itself_counts_as_skipped_and_not_as_passed() {
        let (tally, skipped, shown) = read(
            "test nodeport ... ok\n\nsuccesses:\n\n---- nodeport stdout ----\n\
             SKIPPED: nodeport needs nft\nSKIPPED: nodeport needs ip\nnoise\n\nsuccesses:\n    nodeport\n\n\
             test result: ok. 2 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out",
        );
        assert_eq!(
            tally,
            Tally {
                passed: 1,
                failed: 0,
                skipped: 1
            }
        );
        assert_eq!(skipped.len(), 2);
        assert!(
            !shown.contains("noise") && shown.contains("test nodeport ... ok"),
            "{shown}"
        );
    }

    #[test]
    fn what_a_passed_test_measured_or_touched_is_shown() {
        let (.., shown) = read(
            "test a ... ok\n\nsuccesses:\n\n---- a stdout ----\nnot MEASURED\n\
             TOUCHED the DaemonSet, 1 times in this run\nMEASURED 503 after 1 s\nMEASUREDLY\n\n\
             successes:\n    a\n\ntest result: ok. 1 passed; 0 failed; 0 ignored",
        );
        assert_eq!(
            shown,
            "test a ... ok\n\nTOUCHED the DaemonSet, 1 times in this run\nMEASURED 503 after 1 s\n\
             test result: ok. 1 passed; 0 failed; 0 ignored"
        );
    }

    #[test]
    fn an_ignored_test_is_named() {
        let (tally, skipped, _) = read(
            "running 1 test\ntest src/a.rs - b (line 7) ... ignored\n\
             test result: ok. 0 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out",
        );
        assert_eq!(tally.skipped, 1);
        assert_eq!(skipped, ["src/a.rs - b (line 7): ignored"]);
    }

    #[test]
    fn times_are_no_part_of_a_name_or_an_outcome() {
        let counted = counted(
            "running 4 tests\ntest a ... ok <0.250s>\ntest b ... FAILED <12.000s>\n\
             test c ... ignored\ntest d ... words <1s>\n\
             test result: FAILED. 2 passed; 1 failed; 1 ignored; 0 measured; 0 filtered out",
            false,
        );
        assert_eq!(counted.failed, ["b"]);
        assert_eq!(counted.skipped, ["c: ignored"]);
        let mut times = counted.times;
        assert_eq!(
            slowest(&mut times),
            "\nslowest tests\n   12.0 s   b\n    1.0 s   d\n    0.2 s   a\n"
        );
        let mut many: Vec<_> = (0..30).map(|n| (f64::from(n), "x".to_owned())).collect();
        assert_eq!(slowest(&mut many).lines().count(), 2 + SLOWEST);
    }

    #[test]
    fn panics_of_failed_tests_are_kept_with_their_message() {
        let counted = counted(
            "running 2 tests\ntest a ... FAILED\n\nsuccesses:\n\n\
             thread 'b' (1) panicked at b.rs:1:1:\nas it should\n\nfailures:\n\n---- a stdout ----\n\n\
             thread 'a' (2) panicked at a.rs:3:5:\nassertion failed: verdict:\n  a\n  b\n  left: 1\n right: 2\n\
             stack backtrace:\nnoise",
            false,
        );
        assert_eq!(
            counted.panics,
            [
                "thread 'a' (2) panicked at a.rs:3:5:\n    assertion failed: verdict:\n      a\n      b\n      \
                 left: 1\n     right: 2"
            ]
        );
    }

    #[test]
    fn words_of_tests_are_no_results() {
        let (tally, ..) = read("test a_test_result ... ok\nthe test result: 5 passed; no");
        assert_eq!(tally, Tally::default());
    }

    fn counted(text: &str, well: bool) -> Counted {
        let mut reader = Reader::default();
        for line in text.lines() {
            reader.line(line);
        }
        reader.finish(well)
    }

    const FIRST: &str = "running 5 tests\ntest a ... FAILED\ntest b ... ok\ntest c ... FAILED\n\
                         test result: FAILED. 3 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out";

    /// Three tests passed and two failed; then the two run alone, with the output `again`.
    fn after(again: &str, well: bool) -> Counted {
        let first = counted(FIRST, false);
        assert_eq!(first.failed, ["a", "c"]);
        let asked = first.failed.clone();
        first.after(&asked, &counted(again, well))
    }

    #[test]
    fn what_passes_alone_is_unsteady_and_what_fails_again_has_failed() {
        let counted = after(
            "running 2 tests\ntest a ... ok\ntest c ... FAILED\n\
             test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 3 filtered out",
            false,
        );
        assert_eq!(counted.tally.to_string(), "4 passed, 1 failed, 0 skipped");
        assert_eq!(counted.failed, ["c"]);
        assert_eq!(counted.unsteady, ["a"]);
    }

    #[test]
    fn a_test_that_did_not_run_again_is_not_excused() {
        let first = counted(FIRST, false);
        let again = "running 1 test\ntest a ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored";
        let counted = first.after(&["a".to_owned()], &counted(again, true));
        assert_eq!(counted.tally.to_string(), "4 passed, 1 failed, 0 skipped");
        assert_eq!(counted.failed, ["c"]);
        assert_eq!(counted.unsteady, ["a"]);
    }

    #[test]
    fn a_second_run_that_is_not_whole_excuses_nothing() {
        let nothing = "running 0 tests\ntest result: ok. 0 passed; 0 failed; 0 ignored";
        let one = "running 1 test\ntest a ... ok\ntest result: ok. 1 passed; 0 failed; 0 ignored";
        let dead = "running 2 tests\ntest a ... ok\ntest c ... ";
        let unnamed = "running 2 tests\ntest a ... ok\ntest c ... words of a child\nFAILED\n\
                       test result: FAILED. 1 passed; 1 failed; 0 ignored";
        for (again, well) in [
            ("", false),
            (nothing, true),
            (one, true),
            (dead, false),
            (unnamed, false),
        ] {
            let counted = after(again, well);
            let sum = counted.tally.to_string();
            assert_eq!(sum, "3 passed, 2 failed, 0 skipped", "{again}");
            assert!(counted.unsteady.is_empty());
        }
    }

    /// The binary's remaining tests never ran, and its failures may have the same cause as its end.
    #[test]
    fn a_binary_that_dies_has_failed_and_is_not_excused() {
        let died = counted(&format!("{FIRST}\nrunning 300 tests\ntest d ... ok"), false);
        assert_eq!(died.tally.failed, 3);
        let asked = died.failed.clone();
        let again = "running 2 tests\ntest result: ok. 2 passed; 0 failed; 0 ignored";
        assert_eq!(died.after(&asked, &counted(again, true)).tally.failed, 3);
        let alone = counted("error: could not compile", false);
        assert_eq!(alone.tally.failed, 1);
        assert_eq!(counted("", true).tally, Tally::default());
    }
}
