//! `cargo xtask newcomer`: clones HEAD into a new folder, with an empty target folder, and runs README's
//! commands there exactly as written. Libraries that cargo has downloaded are not downloaded again.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::commands::{self, Run};
use crate::{ci, run};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only commands that contain this, such as demo
    filter: Option<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let folder = tempfile::tempdir().context("make a folder for the clone (TMPDIR)")?;
    let clone = folder.path().join("pathproof");
    let mut rows = vec![row("git clone", || git_clone(&clone))];
    if rows[0].2.is_ok() {
        let readme = clone.join("README.md");
        let readme = fs::read_to_string(&readme)
            .with_context(|| format!("cannot read {}", readme.display()))?;
        let wanted = of_readme(&readme, args.filter.as_deref());
        ensure!(!wanted.is_empty(), "no command of README is wanted");
        rows.extend(wanted.iter().map(|line| row(line, || shell(line, &clone))));
    }
    let failed = rows.iter().filter(|(.., result)| result.is_err()).count();
    print!("\n{}", table(rows));
    ensure!(failed == 0, "{failed} of README's commands failed");
    Ok(())
}

/// A command, how long it took, and its result.
type Row = (String, Duration, Result<()>);

fn row(command: &str, act: impl FnOnce() -> Result<()>) -> Row {
    let (took, result) = ci::timed(command, act);
    (command.to_owned(), took, result)
}

fn table(rows: Vec<Row>) -> String {
    let rows = rows.into_iter();
    let rows = rows.map(|(command, took, result)| (command, took, ci::outcome(result.err())));
    ci::table(&rows.collect::<Vec<_>>())
}

/// Commands that the list assigns to the newcomer, in README's order.
fn of_readme(text: &str, filter: Option<&str>) -> Vec<String> {
    let all = commands::of_page(text)
        .into_iter()
        .map(|(_, command)| command);
    all.filter(|command| matches!(commands::known(command), Some((_, Run::Newcomer))))
        .filter(|command| filter.is_none_or(|word| command.contains(word)))
        .collect()
}

fn git_clone(to: &Path) -> Result<()> {
    let from = run::root();
    // A clone that belongs to another user is still this clone: CI often runs as root.
    let safe = format!("safe.directory={}", from.join(".git").display());
    let mut git = Command::new("git");
    git.args(["-c", &safe, "clone", "--quiet"]);
    run::run(git.arg(from).arg(to))
}

fn shell(line: &str, folder: &Path) -> Result<()> {
    let mut shell = Command::new("sh");
    shell.args(["-c", line]).current_dir(folder);
    run::run(shell.env_remove("CARGO_TARGET_DIR"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_of_readme() {
        let readme = fs::read_to_string(run::root().join("README.md")).unwrap();
        assert_eq!(of_readme(&readme, None)[0], "cargo xtask demo");
        assert_eq!(of_readme(&readme, Some("dist")).len(), 1);
        let other = "```\nkubectl pathproof\ncargo xtask test\n```\n";
        assert_eq!(of_readme(other, None), ["cargo xtask test"]);
    }

    #[test]
    fn a_command_that_fails_is_named_with_its_time() {
        let table = table(vec![
            row("true", || Ok(())),
            row("false", || shell("exit 3", Path::new("/"))),
        ]);
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].ends_with("ok"), "{table}");
        assert!(
            lines[1].contains("false") && lines[1].contains("FAILED"),
            "{table}"
        );
    }
}
