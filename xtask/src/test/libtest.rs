//! Runs `cargo test` and follows the output of the test programs.

use std::process::Command;

use anyhow::Result;

use crate::excused::Budget;
use crate::run;
use crate::tally::{Counted, Reader};

/// Tests that only `--kernels` runs: one needs IPVS, which few kernels have, and others set the
/// system's clock or a system limit. Elsewhere they would be skipped each time. These are whole
/// names, since a part could exclude another test.
const IN_MACHINES_ONLY: [&str; 3] = [
    "a_wiped_table_is_503_in_ipvs_mode_and_its_twins_are_not",
    "a_clock_that_is_set_makes_no_fault_and_hides_none",
    "a_full_conntrack_table_is_named_and_stays_503_until_there_is_room",
];

/// `cargo test` whose programs report the time of each test. This option of libtest is unstable, but the
/// stable compiler has it with RUSTC_BOOTSTRAP. Only the programs get this variable, because cargo itself
/// would rebuild everything with it.
pub(super) fn cargo_test() -> Command {
    let mut command = run::cargo();
    command.args(["--config", RUNNER, "test"]);
    command
}

/// Arguments that exclude tests.
pub(super) fn skip<'a>(names: &'a [&'a str]) -> impl Iterator<Item = &'a str> {
    names.iter().flat_map(|name| ["--skip", name])
}

const RUNNER: &str = r#"target.'cfg(all())'.runner = ["env", "RUSTC_BOOTSTRAP=1"]"#;
/// Arguments of the programs in every counted run.
const REPORT: [&str; 3] = ["--show-output", "-Zunstable-options", "--report-time"];

/// Runs `cargo test ...` with this selection of tests, shows the output and counts.
///
/// Tests on a real kernel wait for packets in parallel with many others on two processors. In CI, a
/// few that fail run once more, alone. A test that passes then still shows a bug in the test or the
/// agent: it is named at the end, but does not block an unrelated change.
pub(super) fn follow(
    command: &mut Command,
    selection: &[&str],
    budget: &Budget,
) -> Result<Counted> {
    let mut alone = run::cargo();
    alone.args(command.get_args());
    let envs = command.get_envs();
    alone.envs(envs.filter_map(|(name, value)| Some((name, value?))));
    command.args(["--no-fail-fast", "--"]).args(REPORT);
    let counted = count(command.args(selection).args(skip(&IN_MACHINES_ONLY)))?;
    if !counted.is_whole() {
        return Ok(counted);
    }
    let again = budget.again(&counted.failed, &counted.panics);
    if again.is_empty() {
        return Ok(counted);
    }
    eprintln!("running again, alone: {}", again.join(", "));
    alone.args(["--no-fail-fast", "--", "--exact"]).args(REPORT);
    let second = count(alone.args(&again).env("RUST_TEST_THREADS", "1"))?;
    let counted = counted.after(&again, &second);
    budget.spend(counted.unsteady.len());
    Ok(counted)
}

fn count(command: &mut Command) -> Result<Counted> {
    let mut reader = Reader::default();
    let status = run::lines(command, |line| {
        if reader.line(line) {
            println!("{line}");
        }
    })?;
    Ok(reader.finish(status.success()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn each_name_leaves_out_one_test() {
        let folders = ["tests/cluster", "tests/node"].map(|folder| run::root().join(folder));
        let files = folders
            .iter()
            .flat_map(|folder| fs::read_dir(folder).unwrap());
        let texts = files.map(|file| fs::read_to_string(file.unwrap().path()).unwrap_or_default());
        let text: String = texts.collect();
        for name in IN_MACHINES_ONLY {
            let is_it = |line: &&str| line.starts_with("fn ") && line.contains(name);
            assert_eq!(text.lines().filter(is_it).count(), 1, "{name}");
        }
    }
}
