//! Runs other programs: prints one line with the command, and names it in errors.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

use crate::image::{self, Arch};

/// The repository's root, which is the folder above this crate, so that tasks work from any folder.
pub(crate) fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}

/// Rows of a table in a text file, split at ` | `. Empty lines and comments (`#`) are skipped.
pub(crate) fn rows(text: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split(" | ").map(str::trim).collect())
}

pub(crate) fn git(folder: &Path) -> Command {
    // Accept a clone that belongs to another user: CI often runs as root.
    let safe = format!("safe.directory={}", folder.display());
    let mut git = Command::new("git");
    git.current_dir(folder).args(["-c", &safe]);
    git
}

/// Folders into which cargo unpacks libraries, the widest first. There is a folder for each registry, named
/// after its address; with a mirror the address differs.
pub(crate) fn registries() -> Result<Vec<PathBuf>> {
    let cargo = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo = cargo.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let all = cargo.context("neither CARGO_HOME nor HOME is set")?;
    let all = all.join("registry/src");
    let each = fs::read_dir(&all).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = each.map(|entry| entry.path()).collect();
    folders.push(all);
    folders.sort();
    Ok(folders)
}

/// The cargo that runs this task.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    // `cargo run` sets these for this package. With them, other packages' build scripts would run again.
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Waits until no other task in this clone holds the lock `what`. The lock ends when the returned file is
/// dropped.
pub(crate) fn alone(what: &str) -> Result<File> {
    let folder = root().join("target/tools");
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let path = folder.join(format!("{what}.lock"));
    let file = File::create(&path).with_context(|| format!("make {}", path.display()))?;
    if file.try_lock().is_err() {
        eprintln!("waiting for another task of this clone: {}", path.display());
        file.lock()
            .with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(file)
}

/// The command as a user would type it, for messages.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name();
    let words = program.into_iter().chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

/// Runs a command in this terminal; a failure is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    eprintln!("+ {}", shown(command));
    run_quietly(command)
}

/// [`run`] without printing the command.
pub(crate) fn run_quietly(command: &mut Command) -> Result<()> {
    let line = shown(command);
    let status = command
        .status()
        .with_context(|| format!("cannot start `{line}`"))?;
    if !status.success() {
        bail!("`{line}` failed ({status})");
    }
    Ok(())
}

/// Runs a command and returns its standard output; its errors stay visible.
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    let line = shown(command);
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start `{line}`"))?;
    if !output.status.success() {
        bail!("`{line}` failed ({})", output.status);
    }
    Ok(output.stdout)
}

/// The first line that a command prints, for version queries; `None` if it cannot be run.
pub(crate) fn first_line(command: &mut Command) -> Option<String> {
    let output = command.stderr(Stdio::null()).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    if !output.status.success() {
        return None;
    }
    text.lines().next().map(|line| line.trim().to_owned())
}

/// Passes standard output line by line to `line`; errors stay visible.
pub(crate) fn lines(command: &mut Command, mut line: impl FnMut(&str)) -> Result<ExitStatus> {
    let shown = shown(command);
    eprintln!("+ {shown}");
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{shown}`"))?;
    let stdout = child
        .stdout
        .take()
        .context("a piped child has no standard output")?;
    // Tests may print text that is not UTF-8.
    for bytes in BufReader::new(stdout).split(b'\n') {
        let bytes = bytes.with_context(|| format!("reading `{shown}`"))?;
        line(&String::from_utf8_lossy(&bytes));
    }
    child
        .wait()
        .with_context(|| format!("waiting for `{shown}`"))
}

/// Builds one program of the workspace and returns its path in any target folder.
pub(crate) fn build_program(package: &str, program: &str, profile: &str) -> Result<PathBuf> {
    // With node-tests selected too, libraries always have the same features, and are built only once.
    let mut command = cargo();
    command.args(["build", "-p", "node-tests", "-p", package]);
    command.args(["--bin", program, "--profile", profile]);
    built(&mut command, program)
}

/// The same for a test program.
pub(crate) fn build_test(package: &str, test: &str, profile: &str) -> Result<PathBuf> {
    let mut command = cargo();
    command.args(["test", "--no-run", "--package", package]);
    command.args(["--test", test, "--profile", profile]);
    built(&mut command, test)
}

/// Builds a program or test of package node-tests for an architecture, linked with Debian's C
/// library. `what`: arguments of cargo that select it.
pub(crate) fn build_for(arch: Arch, what: &[&str], name: &str) -> Result<PathBuf> {
    let mut command = cargo();
    command
        .args(what)
        .args(["--package", "node-tests", "--profile", "dev"]);
    if !arch.is_here() {
        image::prepare(arch)?;
        command.args(["--target", &arch.target()]);
        command.env(arch.linker_variable(), arch.compiler());
        eprintln!("+ {}", shown(&command));
    }
    built(&mut command, name)
}

/// Runs a `cargo build` and returns the path of the program with this name.
pub(crate) fn built(command: &mut Command, name: &str) -> Result<PathBuf> {
    command.args(["--message-format", "json-render-diagnostics"]);
    let messages = String::from_utf8(output(command)?)?;
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == name)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .with_context(|| format!("cargo built no program {name}"))
}

/// [`run`] for a program that cleans up after Ctrl-C.
pub(crate) fn run_through_interrupts(command: &mut Command) -> Result<()> {
    through_interrupts(|| run(command))
}

/// Runs a program that cleans up after Ctrl-C, which also receives the signal. This task waits for
/// it and then ends, so that nothing else begins, such as other steps of CI.
pub(crate) fn through_interrupts<T>(run: impl FnOnce() -> T) -> T {
    static INTERRUPTED: AtomicBool = AtomicBool::new(false);
    extern "C" fn note(_: libc::c_int) {
        INTERRUPTED.store(true, Ordering::Relaxed);
    }
    let handler = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the handler only stores to an atomic, so it may run at any time. The program that is
    // started gets the default back, because exec resets handlers (but would not reset SIG_IGN).
    let before = unsafe { libc::signal(libc::SIGINT, handler) };
    let result = run();
    // SAFETY: `before` is the previous handler, or the default.
    unsafe {
        libc::signal(libc::SIGINT, before);
    }
    if INTERRUPTED.load(Ordering::Relaxed) {
        // The shell's convention: 128 plus the signal.
        std::process::exit(128 + libc::SIGINT);
    }
    result
}

/// Options that a task passes to the program that it builds.
#[derive(Debug, clap::Args)]
pub(crate) struct Rest {
    /// Options of the program; for a list give `-- --help`
    #[arg(
        value_name = "OPTION",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) arguments: Vec<String>,
}
