//! Commands that run kubectl, as processes with a script in its place: the arguments that kubectl gets, and
//! the use of its output and exit code.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

mod fleet;
mod preflight;

/// The folder of the script, and the folders of `cat` and `sh`, which the script needs.
const SCRIPT: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/testdata/kubectl:/usr/bin:/bin"
);
/// A search path without kubectl.
const NOWHERE: &str = "/nowhere";

#[derive(Debug)]
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
    /// The arguments of each call of kubectl, one after another.
    arguments: Vec<String>,
}

/// A folder with a file for each answer that the fake kubectl prints.
struct Canned(TempDir);

impl Canned {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn put(&self, name: &str, content: &Value) {
        fs::write(self.0.path().join(name), content.to_string()).unwrap();
    }

    /// Runs the binary by this name, with this search path.
    fn run(&self, program: &str, path: &str, words: &[&str]) -> Said {
        let output = Command::new(env!("CARGO_BIN_EXE_pathproof"))
            .arg0(program)
            .args(words)
            .env_clear()
            .env("PATH", path)
            .env("CANNED", self.0.path())
            .output()
            .unwrap();
        let arguments = fs::read_to_string(self.0.path().join("arguments")).unwrap_or_default();
        Said {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
            arguments: arguments.lines().map(str::to_owned).collect(),
        }
    }
}
