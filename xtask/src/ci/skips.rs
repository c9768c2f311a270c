//! Skips that CI accepts (.ci/skips.txt). Every other skip is a failure in CI: a machine that lost
//! Go, apt or the network must not pass.

use std::collections::BTreeSet;

use anyhow::{Context, Result, bail};

use crate::run;
use crate::tally::Counted;

const FILE: &str = ".ci/skips.txt";

pub(super) struct Accepted(Vec<(String, String)>);

impl Accepted {
    pub(super) fn read() -> Result<Self> {
        let text = std::fs::read_to_string(run::root().join(FILE));
        Self::of(&text.with_context(|| format!("read {FILE}"))?)
    }

    fn of(text: &str) -> Result<Self> {
        let entries = run::rows(text).map(|parts| match parts[..] {
            [name, reason, why] if ![name, reason, why].contains(&"") => {
                Ok((name.to_owned(), reason.to_owned()))
            }
            _ => bail!("{FILE}: {parts:?} is not NAME | PART OF THE REASON | WHY"),
        });
        Ok(Self(entries.collect::<Result<_>>()?))
    }

    /// Whether the list contains this skip, `MODULE::TEST: why`.
    fn has(&self, line: &str) -> bool {
        let (name, why) = line.split_once(": ").unwrap_or((line, ""));
        let has = |(entry, reason): &(String, String)| {
            // The line also names the kernel, the modules and the case, so the entry is compared with each
            // part.
            name.split([' ', ':']).any(|part| part == entry) && why.contains(reason)
        };
        self.0.iter().any(has)
    }

    /// Counts skips that are not on the list as failures, and returns their lines.
    pub(super) fn hold(&self, counted: &mut Counted) -> Vec<String> {
        let refused = counted.skipped.iter().filter(|line| !self.has(line));
        let mut lines: Vec<String> = refused.cloned().collect();
        let name = |line: &str| line.split(": ").next().unwrap_or_default().to_owned();
        let names: BTreeSet<String> = lines.iter().map(|line| name(line)).collect();
        let tally = &mut counted.tally;
        let unnamed = tally.skipped.saturating_sub(counted.skipped.len());
        if unnamed > 0 {
            lines.push(format!("{unnamed} without a name and a reason"));
        }
        let failures = (names.len() + unnamed).min(tally.skipped);
        tally.skipped -= failures;
        tally.failed += failures;
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CI, NIGHTLY};
    use super::*;
    use crate::tally::Tally;
    use crate::tidy;

    const LIST: &str =
        "# words\n\nadvisories | cannot be fetched | no network\na_test | cgroup v1 | v2 alone\n";

    /// Result of these skips in CI: passed, failed, skipped.
    fn held(skipped: usize, lines: &[&str]) -> (String, Vec<String>) {
        let mut counted = Counted {
            tally: Tally {
                passed: 7,
                failed: 0,
                skipped,
            },
            skipped: lines.iter().map(ToString::to_string).collect(),
            ..Counted::default()
        };
        let refused = Accepted::of(LIST).expect("a list").hold(&mut counted);
        (counted.tally.to_string(), refused)
    }

    #[test]
    fn a_skip_on_the_list_is_a_skip() {
        let lines = [
            "advisories: the database cannot be fetched (offline)",
            "first::a_test: a_test needs a cgroup v1 hierarchy of memory",
        ];
        let (sum, refused) = held(2, &lines);
        assert_eq!(sum, "7 passed, 0 failed, 2 skipped");
        assert_eq!(refused, [""; 0]);
    }

    #[test]
    fn a_skip_that_is_not_listed_with_its_reason_is_a_failure() {
        let lines = [
            "first::a_test: a_test needs kubelet (run `cargo xtask setup-cluster --all`)",
            "another_test: needs root",
            "[6.1-cloud] calm::no_503: cannot build kube-apiserver",
        ];
        let (sum, refused) = held(3, &lines);
        assert_eq!(sum, "7 passed, 3 failed, 0 skipped");
        assert_eq!(refused, lines);
    }

    #[test]
    fn a_test_with_two_reasons_is_one_failure() {
        let (sum, refused) = held(1, &["b: needs nft", "b: needs ip"]);
        assert_eq!(sum, "7 passed, 1 failed, 0 skipped");
        assert_eq!(refused.len(), 2);
    }

    #[test]
    fn a_skip_without_a_name_is_a_failure() {
        let (sum, refused) = held(2, &["advisories: it cannot be fetched"]);
        assert_eq!(sum, "7 passed, 1 failed, 1 skipped");
        assert_eq!(refused, ["1 without a name and a reason"]);
    }

    #[test]
    fn a_line_without_a_reason_is_refused() {
        for line in [
            "a_test",
            "a_test | cgroup v1",
            "a_test |  | why",
            "a | b | c | d",
        ] {
            assert!(Accepted::of(line).is_err(), "{line}");
        }
    }

    /// An entry for a test that no longer exists would accept a future test of that name.
    #[test]
    fn every_entry_is_a_step_or_a_test() {
        let Accepted(entries) = Accepted::read().expect("the list");
        let root = run::root();
        let files = tidy::tracked(&root).expect("files of the repository");
        let rust = files.iter().filter(|path| path.ends_with(".rs"));
        let texts: Vec<String> = rust
            .filter_map(|path| std::fs::read_to_string(root.join(path)).ok())
            .collect();
        for (name, _) in entries {
            let is_step = CI.iter().chain(NIGHTLY).any(|step| step.name == name);
            let test = format!("fn {name}(");
            let is_test = texts.iter().any(|text| text.contains(&test));
            assert!(is_step || is_test, "{FILE}: there is no {name}");
        }
    }
}
