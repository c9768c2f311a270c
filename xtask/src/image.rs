//! `cargo xtask image`: the container image, FROM scratch with one static program, built from
//! deploy/image/Dockerfile by buildah (docs/internal/design/shell.md#image).

mod notices;
mod program;
mod proof;
mod sbom;
mod trial;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};
pub(crate) use program::{Arch, prepare, prepare_target, rustc, without_paths};
pub(crate) use sbom::of_plugin as sboms_of_plugin;

use crate::tidy::tracked;
use crate::{host, run};

pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Name to which container runtimes complete `pathproof:VERSION`. Kubelet finds an imported image
/// only under this name.
const REFERENCE: &str = concat!("docker.io/library/pathproof:", env!("CARGO_PKG_VERSION"));

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Architectures [default: this machine's]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ARCH,...")]
    arch: Vec<Arch>,
    /// Build image and eBPF object a second time from a copy of the sources, and compare the bytes
    /// (for a release)
    #[arg(long)]
    check: bool,
    /// Build only the static program and the licences, which deploy/image/Dockerfile copies
    #[arg(long, conflicts_with = "check")]
    program_only: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let arches = match args.arch.as_slice() {
        [] => vec![Arch::here()?],
        named => named.to_vec(),
    };
    if args.check {
        crate::task("build-ebpf --check")?;
    }
    for arch in arches {
        let program = placed(arch)?;
        if args.program_only {
            println!("{}", program.display());
            continue;
        }
        let archive = pack(arch)?;
        let tried = proof::of(arch, &archive, &program)?;
        let sboms = sbom::of_image(arch)?;
        if args.check {
            twice(arch, &program)?;
        }
        let size = fs::metadata(&program)?.len() as f64 / f64::from(1 << 20);
        println!("\n{REFERENCE} for linux/{}", arch.name());
        println!("  program  {size:.1} MiB, static; {tried}");
        println!("  image    {}", archive.display());
        for sbom in sboms {
            println!("  SBOM     {}", sbom.display());
        }
        let archive = archive.display();
        println!(
            "load it:
  node     ctr --namespace k8s.io images import {archive}
  desk     podman load --input {archive}    (or docker load)
  registry skopeo copy docker-archive:{archive} docker://REGISTRY/pathproof:{VERSION}"
        );
    }
    Ok(())
}

/// The image for this machine, as an archive that `ctr images import` reads.
pub(crate) fn archive() -> Result<PathBuf> {
    let arch = Arch::here()?;
    placed(arch)?;
    pack(arch)
}

/// The static program for an architecture, named as the Dockerfile expects it, and its SBOMs.
pub(crate) fn parts(arch: Arch) -> Result<(PathBuf, Vec<PathBuf>)> {
    Ok((placed(arch)?, sbom::of_image(arch)?))
}

/// The static program for this machine, where cargo built it.
pub(crate) fn program() -> Result<PathBuf> {
    program_for(Arch::here()?)
}

/// The static program for an architecture, where cargo built it.
pub(crate) fn program_for(arch: Arch) -> Result<PathBuf> {
    program::prepare(arch)?;
    program::build(arch, &run::root(), None)
}

/// Folder with the licences, which the image and the archives contain.
pub(crate) fn licences() -> PathBuf {
    folder().join("licenses")
}

/// The static program, where the Dockerfile expects it, with the licences beside it.
fn placed(arch: Arch) -> Result<PathBuf> {
    notices::write(&licences())?;
    let built = program_for(arch)?;
    let to = folder().join(format!("pathproof-linux-{}", arch.name()));
    fs::create_dir_all(folder())?;
    fs::copy(&built, &to).with_context(|| format!("cannot write {}", to.display()))?;
    Ok(to)
}

/// Builds the image twice, which takes a second, and compares the archives.
fn pack(arch: Arch) -> Result<PathBuf> {
    let archive = folder().join(format!("pathproof-{VERSION}-linux-{}.tar", arch.name()));
    let again = archive.with_extension("again.tar");
    buildah(arch, &archive)?;
    buildah(arch, &again)?;
    ensure!(
        fs::read(&archive)? == fs::read(&again)?,
        "two builds of the image differ: {} and {}",
        archive.display(),
        again.display()
    );
    fs::remove_file(again)?;
    Ok(archive)
}

/// Builds the image with a separate store, so that no other image or cached layer affects it.
fn buildah(arch: Arch, archive: &Path) -> Result<()> {
    host::install_programs("the image", &[("buildah", "buildah")])?;
    if archive.exists() {
        // buildah neither extends nor replaces an archive.
        fs::remove_file(archive)?;
    }
    let store = tempfile::tempdir()?;
    let mut buildah = Command::new("buildah");
    buildah.current_dir(run::root());
    buildah.arg("--root").arg(store.path().join("images"));
    buildah.arg("--runroot").arg(store.path().join("run"));
    buildah
        .args("--storage-driver vfs build --quiet --isolation chroot".split(' '))
        // The history would name the owner of the program, and the label the version of buildah.
        .args(["--omit-history", "--identity-label=false"])
        .args(["--timestamp", &created()])
        .arg(format!("--platform=linux/{}", arch.name()))
        .arg(format!("--build-arg=VERSION={VERSION}"))
        .arg(format!("--build-arg=REVISION={}", revision(40)))
        .arg("--file=deploy/image/Dockerfile");
    let tag = format!("--tag=docker-archive:{}:{REFERENCE}", archive.display());
    run::run(buildah.arg(tag).arg(folder()))
}

/// Builds the program again, from a copy of the sources with a separate target folder.
fn twice(arch: Arch, program: &Path) -> Result<()> {
    let elsewhere = tempfile::tempdir_in(folder())?;
    let (sources, target) = (elsewhere.path().join("a"), elsewhere.path().join("b"));
    copy_sources(&sources)?;
    let again = program::build(arch, &sources, Some(&target))?;
    if fs::read(program)? != fs::read(&again)? {
        let kept = elsewhere.keep();
        anyhow::bail!(
            "linux/{}: the second build, in {}, differs; compare the programs with diffoscope",
            arch.name(),
            kept.display()
        );
    }
    println!("linux/{}: a second build gave the same bytes", arch.name());
    Ok(())
}

/// Copies the files that git tracks to another folder.
pub(crate) fn copy_sources(to: &Path) -> Result<()> {
    let root = run::root();
    for path in tracked(&root)? {
        let file = to.join(&path);
        fs::create_dir_all(file.parent().unwrap_or(to))?;
        fs::copy(root.join(&path), file)?;
    }
    Ok(())
}

fn folder() -> PathBuf {
    run::root().join("target/image")
}

/// The commit, with a mark if files differ from it; "unknown" outside a clone.
fn revision(digits: u8) -> String {
    let describe = format!("describe --always --abbrev={digits} --exclude=* --dirty");
    git(&describe).unwrap_or_else(|| "unknown".to_owned())
}

/// The only time in an image or archive, in seconds: `SOURCE_DATE_EPOCH` if it is set
/// (reproducible-builds.org), else the commit's time.
pub(crate) fn created() -> String {
    let said = env::var("SOURCE_DATE_EPOCH").ok();
    said.or_else(|| git("log -1 --format=%ct"))
        .unwrap_or_else(|| "0".to_owned())
}

fn git(arguments: &str) -> Option<String> {
    run::first_line(run::git(&run::root()).args(arguments.split(' ')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_objects_of_deploy_ask_for_this_image() {
        let file = run::root().join("deploy/base/agent.yaml");
        let text = fs::read_to_string(file).unwrap();
        let line = format!("image: pathproof:{VERSION}");
        assert!(text.lines().any(|l| l.trim() == line), "no line {line:?}");
    }

    /// The mark distinguishes two images that were built from one commit with different files.
    #[test]
    fn the_revision_has_a_mark_if_files_differ() {
        let differs = git("status --porcelain --untracked-files=no").is_some();
        assert_eq!(revision(12).ends_with("-dirty"), differs);
    }
}
