//! Checks the workflows of GitHub with actionlint. tidy/workflows.rs has this repository's rules about them.

use std::process::Command;

use anyhow::Result;

use crate::go::Module;
use crate::run;
use crate::tally::{Counted, Tally};

pub(crate) const ACTIONLINT: Module = Module {
    name: "actionlint",
    path: "github.com/rhysd/actionlint",
    version: "v1.7.12",
    programs: &["cmd/actionlint"],
    takes: "15 s",
    ..Module::EMPTY
};

/// Skipped if actionlint cannot be built: without Go, or without a module proxy.
pub(crate) fn for_ci() -> Result<Counted> {
    let folder = match ACTIONLINT.ready() {
        Ok(folder) => folder,
        Err(error) => {
            let why = format!("actionlint cannot be built ({error:#})");
            return Ok(Counted::skip("workflows", &why));
        }
    };
    run::run(
        Command::new(folder.join("actionlint"))
            .current_dir(run::root())
            // The result must not depend on other linters of this machine.
            .args(["-shellcheck=", "-pyflakes="]),
    )?;
    Ok(Tally::PASSED.into())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;
    use std::process::Output;

    use super::*;

    /// The first script of a workflow, without its indentation.
    fn script(name: &str) -> String {
        let file = run::root().join(".github/workflows").join(name);
        let text = fs::read_to_string(file).unwrap();
        let (before, rest) = text.split_once("run: |\n").unwrap();
        let depth = before.rsplit('\n').next().unwrap().len() + 2;
        let margin = " ".repeat(depth);
        let lines = rest.lines().map_while(|line| line.strip_prefix(&margin));
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Runs it as GitHub does.
    fn play(script: &str, folder: &Path, env: &[(&str, &str)]) -> Output {
        let mut bash = Command::new("bash");
        bash.args(["-e", "-o", "pipefail", "-c", script]);
        bash.current_dir(folder).envs(env.iter().copied());
        bash.output().unwrap()
    }

    /// Replaces `gh` by a script that prints the conclusions of the newest runs.
    #[test]
    fn a_release_needs_a_green_ci_and_nightly() {
        let folder = tempfile::tempdir().unwrap();
        let gh = folder.path().join("gh");
        let says = "case $2 in *ci.yml*) echo $CI_SAYS;; *nightly.yml*) echo $NIGHTLY_SAYS;; *) exit 1;; esac";
        fs::write(&gh, format!("#!/bin/sh\n{says}\n")).unwrap();
        fs::set_permissions(&gh, fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!(
            "{}:{}",
            folder.path().display(),
            std::env::var("PATH").unwrap()
        );
        let script = script("release.yml");
        for (ci, nightly, passes) in [
            ("success", "success", true),
            ("success", "failure", false),
            ("success", "in_progress", false),
            ("missing", "success", false),
        ] {
            let env = [
                ("PATH", path.as_str()),
                ("GITHUB_SHA", "abc"),
                ("CI_SAYS", ci),
                ("NIGHTLY_SAYS", nightly),
            ];
            let output = play(&script, folder.path(), &env);
            let said = String::from_utf8_lossy(&output.stdout);
            assert_eq!(output.status.success(), passes, "{said}{output:?}");
            let sentence = format!("for abc: CI is {ci}, nightly is {nightly}.");
            assert_eq!(said.contains(&sentence), !passes, "{said}");
        }
    }

    #[test]
    fn the_jobs_with_rights_wait_for_the_one_that_checks() {
        let file = run::root().join(".github/workflows/release.yml");
        let text = fs::read_to_string(file).unwrap();
        for (job, needs) in [("build", "tested"), ("publish", "build")] {
            let (_, job) = text.split_once(&format!("\n  {job}:\n")).unwrap();
            let (head, _) = job.split_once("runs-on:").unwrap();
            assert!(head.contains(&format!("needs: {needs}\n")), "{head}");
        }
    }

    #[test]
    fn commits_are_signed_off() {
        let folder = tempfile::tempdir().unwrap();
        let git = |words: &str| {
            let mut git = run::git(folder.path());
            git.args(["-c", "user.name=me", "-c", "user.email=me@example.com"]);
            run::output(git.args(words.split(' '))).unwrap()
        };
        git("init --quiet");
        git("commit --quiet --allow-empty --message base");
        let base = String::from_utf8(git("rev-parse HEAD")).unwrap();
        let script = script("dco.yml");
        let checked = || play(&script, folder.path(), &[("BASE", base.trim())]);
        git("commit --quiet --allow-empty --signoff --message signed");
        let output = checked();
        assert!(output.status.success(), "{output:?}");
        git("commit --quiet --allow-empty --message bare");
        let output = checked();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success(), "{said}");
        assert!(
            said.contains(" bare\n") && !said.contains("signed\n"),
            "{said}"
        );
    }
}
