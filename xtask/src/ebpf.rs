//! Compiles pathproof-ebpf with its flags and strips it. The same sources, compiler and LLVM must produce
//! the same bytes in any folder and on any machine; `build-ebpf --check` verifies that. So every path that
//! could reach the object is remapped here.

pub(crate) mod provenance;
#[path = "../../agent/build/sources.rs"]
pub(crate) mod sources;
pub(crate) mod toolchain;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use provenance::Provenance;
use toolchain::Toolchain;

use crate::tools::BPF_LINKER;
use crate::{host, run};

/// Debian's folder of the LLVM that the linker uses.
pub(crate) const LLVM: &str = "/usr/lib/llvm-22";
/// Advice if a part of the tool chain is missing.
pub(crate) const SETUP: &str = "run: cargo xtask setup-ebpf";
/// The kernel's instruction set. v3 (kernel 5.12 or newer) adds the 32-bit compare-and-swap that
/// the state of a connection needs.
const TARGET_CPU: &str = "v3";
const TARGET: &str = "bpfel-unknown-none";

/// Builds the agent for a real kernel. In a debug build its build script accepts an outdated
/// object, for host tests that do not use it; this function does not.
pub(crate) fn agent(profile: &str) -> Result<PathBuf> {
    insist_on_sources()?;
    run::build_program("pathproof", "pathproof", profile)
}

/// Fails if the checked-in object is older than its sources.
pub(crate) fn insist_on_sources() -> Result<()> {
    Provenance::read()?.insist_on_sources()
}

/// Builds the object in `target` and returns its stripped bytes.
pub(crate) fn compile(toolchain: &Toolchain, target: &Path) -> Result<Vec<u8>> {
    let mut build = cargo(toolchain, "build", target)?;
    // cargo uses the terminal, to show warnings of the eBPF side.
    run::run(&mut build)?;
    let built = target.join(TARGET).join("release/pathproof-ebpf");
    let stripped = target.join("pathproof.bpf.o");
    let mut strip = Command::new(objcopy()?);
    run::run_quietly(strip.arg("--strip-debug").arg(&built).arg(&stripped))?;
    let bytes = fs::read(&stripped).with_context(|| format!("cannot read {stripped:?}"))?;
    let has_btf = bytes.windows(5).any(|w| w == b".BTF\0");
    ensure!(has_btf, "{stripped:?} holds no BTF; is the linker too old?");
    Ok(bytes)
}

/// Runs clippy on the eBPF side with the eBPF compiler. A compiler without clippy can still build.
pub(crate) fn clippy(toolchain: &Toolchain, target: &Path) -> Result<()> {
    if !toolchain.bin.join("cargo-clippy").exists() {
        let version = &toolchain.version;
        eprintln!("note: {version} has no clippy: pathproof-ebpf was not linted");
        return Ok(());
    }
    let mut clippy = cargo(toolchain, "clippy", target)?;
    run::run(clippy.args(["--", "-D", "warnings"]))
}

fn cargo(toolchain: &Toolchain, act: &str, target: &Path) -> Result<Command> {
    let root = run::root();
    let linker = linker()?;
    let mut command = Command::new(toolchain.bin.join("cargo"));
    command
        .current_dir(&root)
        .args([act, "--package", "pathproof-ebpf", "--release", "--locked"])
        .args(["-Z", "build-std=core", "--target", TARGET, "--target-dir"])
        .arg(target);
    isolate(&mut command);
    for (name, value) in [
        ("OPT_LEVEL", "3"),
        ("LTO", "false"),
        ("CODEGEN_UNITS", "1"),
        ("STRIP", "none"),
        ("PANIC", "abort"),
        ("INCREMENTAL", "false"),
    ] {
        command.env(format!("CARGO_PROFILE_RELEASE_{name}"), value);
    }
    let flags = rustflags(&root, toolchain)?.join("\x1f");
    command
        .env("RUSTC", toolchain.bin.join("rustc"))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_ENCODED_RUSTFLAGS", flags);
    // clippy-driver and the linker are found in PATH.
    let folder = linker.parent().context("the linker lies in no folder")?;
    let mut path = vec![toolchain.bin.clone(), folder.to_owned()];
    let old = std::env::var_os("PATH").unwrap_or_default();
    path.extend(std::env::split_paths(&old));
    let path = std::env::join_paths(path).context("a folder has a colon")?;
    command.env("PATH", path);
    Ok(command)
}

/// Variables of cargo, rustup and the shell that would change the build. Others that begin with
/// `CARGO_` are removed too, except harmless ones.
const FOREIGN: &str = "CARGO RUSTFLAGS RUSTC_WRAPPER RUSTC_WORKSPACE_WRAPPER RUSTUP_TOOLCHAIN RUSTDOC \
    RUSTDOCFLAGS LD_LIBRARY_PATH";
/// Variables that locate cargo and the package registry (mirrors, proxies): they change no byte.
const HARMLESS: &str =
    "CARGO_HOME CARGO_HTTP_ CARGO_NET_ CARGO_REGISTRY CARGO_REGISTRIES_ CARGO_SOURCE_";

/// Removes what the caller's cargo, rustup and shell would add to the build.
fn isolate(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let is_harmless = HARMLESS.split(' ').any(|begin| text.starts_with(begin));
        let is_cargos = text.starts_with("CARGO_") && !is_harmless;
        if is_cargos || FOREIGN.split(' ').any(|foreign| foreign == text) {
            command.env_remove(&name);
        }
    }
}

fn rustflags(root: &Path, toolchain: &Toolchain) -> Result<Vec<String>> {
    let mut flags = vec![
        "--cfg=bpf_target_arch=\"x86_64\"".to_owned(),
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        format!("-Ctarget-cpu={TARGET_CPU}"),
        // rustc uses the last match, so the widest prefix comes first.
        remap(&toolchain.sysroot, "rust"),
        remap(root, "pathproof"),
    ];
    let registries = run::registries()?;
    flags.extend(registries.iter().map(|one| remap(one, "registry")));
    Ok(flags)
}

fn remap(from: &Path, to: &str) -> String {
    format!("--remap-path-prefix={}={to}", from.display())
}

pub(crate) fn linker() -> Result<PathBuf> {
    let linker = BPF_LINKER.find();
    linker.with_context(|| format!("{} is not here; {SETUP}", BPF_LINKER.package))
}

/// llvm-objcopy of LLVM 22.
pub(crate) fn objcopy() -> Result<PathBuf> {
    let own = Path::new(LLVM).join("bin/llvm-objcopy");
    let found = host::find("llvm-objcopy-22").or_else(|| own.is_file().then_some(own));
    found.with_context(|| format!("llvm-objcopy-22 is not here; {SETUP}"))
}

/// The version of LLVM that linker and llvm-objcopy belong to.
pub(crate) fn llvm_version() -> Result<String> {
    let mut command = Command::new(objcopy()?);
    let output = String::from_utf8(run::output(command.arg("--version"))?)?;
    let mut words = output
        .split_whitespace()
        .skip_while(|word| *word != "version");
    let version = words.nth(1).map(str::to_owned);
    version.context("llvm-objcopy does not say its version")
}
