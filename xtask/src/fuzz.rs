//! `cargo xtask fuzz`: mutates untrusted bytes with libFuzzer, for a given time. It uses the stable
//! compiler, with the flags of cargo-fuzz except those of a sanitizer.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::{host, image, run};

/// Flags by which libFuzzer records the code that an input reaches.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                     -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
                     -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// Maximum bytes to keep of a target, because they are part of every clone.
const KEPT: u64 = 32 * 1024;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Target: a folder of fuzz/corpus, or `all`
    target: String,
    /// Duration in seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only minimize fuzz/corpus: keep the smallest inputs with the same coverage
    #[arg(long, conflicts_with = "seconds")]
    keep: bool,
    /// Only run this input, such as one that failed before
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seconds", "keep"])]
    replay: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let names = targets()?;
    let all = args.target == "all" && args.replay.is_none() && !args.keep;
    let is_wanted = |name: &&String| all || **name == args.target;
    let wanted: Vec<&String> = names.iter().filter(is_wanted).collect();
    let Some(target) = wanted.first() else {
        let (target, names) = (&args.target, names.join(", "));
        bail!("there is no target {target}; the targets are {names}");
    };
    let fuzzer = Fuzzer::build()?;
    if let Some(file) = &args.replay {
        return run::run(fuzzer.command(target).arg(file));
    }
    if args.keep {
        return fuzzer.keep(target);
    }
    let mut wrong = Vec::new();
    for target in wanted {
        let mut search = fuzzer.search(target, args.seconds)?;
        if all {
            // Otherwise libFuzzer prints hundreds of lines, one for each input that it keeps.
            search.args(["-verbosity=0", "-print_final_stats=1"]);
        }
        if let Err(error) = run::run(&mut search) {
            wrong.push(format!("{target}: {error:#}"));
        }
    }
    ensure!(
        wrong.is_empty(),
        "failing inputs are in {}; run one again with cargo xtask fuzz TARGET --replay FILE ({})",
        folder().display(),
        wrong.join("; ")
    );
    Ok(())
}

fn corpus() -> PathBuf {
    run::root().join("fuzz/corpus")
}

/// All targets that have a corpus.
fn targets() -> Result<Vec<String>> {
    let names = files(&corpus())?.into_iter().map(|path| {
        let name = path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    });
    Ok(names.collect())
}

/// Files of a folder, sorted by name.
fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))?;
    let mut paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    paths.sort_unstable();
    Ok(paths)
}

/// The program that contains all targets.
struct Fuzzer(PathBuf);

impl Fuzzer {
    fn build() -> Result<Self> {
        host::install_programs("libFuzzer", &[("c++", "g++")])?;
        let host = image::rustc(&["--print", "host-tuple"])?;
        let mut build = run::cargo();
        build
            .args(["build", "--package", "pathproof-fuzz", "--bin", "fuzz"])
            .args(["--features", "libfuzzer", "--profile", "fuzz"])
            // An explicit target keeps the flags away from build scripts and macros.
            .args(["--target", &host])
            .env("RUSTFLAGS", FLAGS)
            .env("CARGO_TARGET_DIR", folder());
        run::built(&mut build, "fuzz").map(Self)
    }

    fn command(&self, target: &str) -> Command {
        let mut command = Command::new(&self.0);
        // No seed is longer than a few KiB.
        command.env("PATHPROOF_FUZZ", target).arg("-max_len=16384");
        command
    }

    /// Command that searches for new inputs and keeps them below target. A failing input is written next to
    /// them, and libFuzzer prints its path.
    fn search(&self, target: &str, seconds: u64) -> Result<Command> {
        let found = found(target)?;
        let mut command = self.command(target);
        command
            .arg(&found)
            .arg(corpus().join(target))
            .arg(format!("-artifact_prefix={}/wrong-", folder().display()))
            .arg(format!("-max_total_time={seconds}"))
            // A run of more than 20 s counts as a hang, as it would for a waiting client.
            .arg("-timeout=20");
        Ok(command)
    }

    /// Minimizes the corpus: compares which lines of code an input reaches and ignores how often, which
    /// keeps a hundred times fewer files.
    fn keep(&self, target: &str) -> Result<()> {
        let kept = corpus().join(target);
        let fresh = tempfile::tempdir_in(folder())?;
        let mut merge = self.command(target);
        merge
            .args(["-set_cover_merge=1", "-use_counters=0"])
            .arg(fresh.path())
            .arg(&kept)
            .arg(found(target)?);
        run::run(&mut merge)?;
        for old in files(&kept)?.iter().filter(|path| is_found(path)) {
            fs::remove_file(old)?;
        }
        let mut sum = files(&kept)?.iter().map(|file| size(file)).sum::<u64>();
        let mut files = files(fresh.path())?;
        files.sort_by_key(|file| size(file));
        let found = files.len();
        files.retain(|file| {
            sum += size(file);
            sum <= KEPT
        });
        for file in &files {
            fs::copy(
                file,
                kept.join(file.file_name().context("a file has a name")?),
            )?;
        }
        println!(
            "{target}: {} inputs are kept in {}, {} more exceed the limit of {KEPT} bytes",
            files.len(),
            kept.display(),
            found - files.len()
        );
        Ok(())
    }
}

/// Folder of the fuzzer's build and findings.
fn folder() -> PathBuf {
    run::root().join("target/fuzz")
}

/// Folder of a target's findings on this machine.
fn found(target: &str) -> Result<PathBuf> {
    let found = folder().join("corpus").join(target);
    fs::create_dir_all(&found).with_context(|| format!("make {}", found.display()))?;
    Ok(found)
}

/// Whether a fuzzer named the file, by the hash of its content; people use other names.
fn is_found(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.len() == 40 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn size(file: &Path) -> u64 {
    fs::metadata(file).map_or(0, |data| data.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With other flags, libFuzzer would run there without coverage, and find nothing.
    #[test]
    fn oss_fuzz_builds_with_the_same_flags() {
        let script = run::root().join("fuzz/oss-fuzz/build.sh");
        let script = fs::read_to_string(script).expect("the script");
        assert!(script.contains(&format!("RUSTFLAGS=\"$RUSTFLAGS {FLAGS}\"")));
    }

    #[test]
    fn seeds_with_other_names_are_kept() {
        assert!(is_found(Path::new(
            "a/2fd4e1c67a2d28fced849ee1bb76e7391b93eb12"
        )));
        for name in ["service.yaml", "2fd4e1c6", ""] {
            assert!(!is_found(Path::new(name)), "{name}");
        }
    }
}
