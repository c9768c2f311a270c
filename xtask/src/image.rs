//! `cargo xtask image`: the container image, FROM scratch with one static program, written as an
//! OCI layout and as archives that can be loaded. No container engine takes part
//! (docs/adr/0013-image.md).

mod blobs;
mod check;
mod facts;
mod layout;
mod pack;
mod program;
mod proof;
mod sbom;
mod trial;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use oci_spec::image::Descriptor;

use crate::run;
use blobs::Blobs;
use facts::{Facts, NAME};
use program::Arch;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Architectures, by default this machine's
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ARCH,...")]
    arch: Vec<Arch>,
    /// Profile to build with; what is shipped is built with dist
    #[arg(long, default_value = "dist")]
    profile: String,
    /// Build a second time in a copy of the sources elsewhere and compare the bytes
    #[arg(long)]
    check: bool,
    /// Only the static program, for deploy/image/Dockerfile
    #[arg(long, conflicts_with = "check")]
    program_only: bool,
}

/// What was written for one architecture.
#[derive(Debug)]
struct Written {
    arch: Arch,
    program: Vec<u8>,
    archive: PathBuf,
    manifest: Descriptor,
    sbom: PathBuf,
    components: usize,
    /// How the program was tried, in words.
    tried: String,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut arches = args.arch.clone();
    if arches.is_empty() {
        arches.push(Arch::here()?);
    }
    arches.sort();
    arches.dedup();
    if args.program_only {
        for arch in arches {
            println!("{}", program_only(arch, &args.profile)?.display());
        }
        return Ok(());
    }
    let facts = Facts::read()?;
    let (written, named) = build(&facts, &arches, &args.profile)?;
    summary(&facts, &args.profile, &written, &named);
    if args.check {
        check::twice(&written, &args.profile)?;
    }
    Ok(())
}

/// Builds the image for this machine and gives the archive: `ctr images import`, `podman load` and
/// `docker load` read it, under the name that deploy/base asks for.
pub(crate) fn archive(profile: &str) -> Result<PathBuf> {
    let (mut written, _) = build(&Facts::read()?, &[Arch::here()?], profile)?;
    let one = written.pop().context("no image was built")?;
    Ok(one.archive)
}

/// The image of this machine, as CI proves it.
pub(crate) fn for_ci() -> Result<()> {
    run(&Args {
        arch: Vec::new(),
        profile: "dist".to_owned(),
        check: false,
        program_only: false,
    })
}

/// The static program for this machine alone, where cargo built it.
pub(crate) fn program(profile: &str) -> Result<PathBuf> {
    let arch = Arch::here()?;
    program::prepare(arch)?;
    program::build(arch, profile, &run::root(), None)
}

/// Builds, writes and proves images, and gives what their common name stands for.
fn build(facts: &Facts, arches: &[Arch], profile: &str) -> Result<(Vec<Written>, Descriptor)> {
    let folder = folder(profile);
    fs::create_dir_all(&folder)?;
    let mut blobs = Blobs::default();
    let (mut images, mut referrers, mut written) = (Vec::new(), Vec::new(), Vec::new());
    for arch in arches {
        program::prepare(*arch)?;
        let file = program::build(*arch, profile, &run::root(), None)?;
        let program = fs::read(&file).with_context(|| format!("reading {}", file.display()))?;
        let mut own = Blobs::default();
        let image = pack::image(&mut own, facts, *arch, &program)?;
        blobs.extend(own.clone());

        let stem = format!("{NAME}-{}-linux-{}", facts.version, arch.name());
        let archive = folder.join(format!("{stem}.tar"));
        let bytes = layout::tar(&layout::loadable(own, facts, &image)?, facts.created)?;
        write(&archive, &bytes)?;

        let (document, components) = sbom::document(facts, *arch, &program)?;
        let sbom = folder.join(format!("{stem}.cdx.json"));
        write(&sbom, &document)?;
        referrers.push(pack::sbom(&mut blobs, facts, &image.manifest, document)?);

        prove(
            &layout::untar(&fs::read(&archive)?)?,
            facts,
            &[*arch],
            profile,
        )
        .with_context(|| format!("{} is not sound", archive.display()))?;
        written.push(Written {
            arch: *arch,
            tried: trial::trial(*arch, &file)?,
            program,
            archive,
            manifest: image.manifest.clone(),
            sbom,
            components,
        });
        images.push(image);
    }
    let (files, named) = layout::folder(blobs, facts, &images, referrers)?;
    let to = folder.join("oci");
    layout::write_folder(&files, &to)?;
    prove(&layout::read_folder(&to)?, facts, arches, profile)
        .with_context(|| format!("{} is not sound", to.display()))?;
    Ok((written, named))
}

/// What was written keeps what is promised of it.
fn prove(files: &blobs::Files, facts: &Facts, arches: &[Arch], profile: &str) -> Result<()> {
    let programs = proof::layout(files, facts)?;
    let found: Vec<Arch> = programs.iter().map(|(arch, _)| *arch).collect();
    anyhow::ensure!(
        found == arches,
        "it has images for {found:?}, not for {arches:?}"
    );
    for (arch, program) in &programs {
        proof::is_static(*arch, program)?;
        if profile == "dist" {
            proof::is_small(program)?;
            let home = std::env::home_dir().unwrap_or_default();
            let paths = [run::root(), home.join(".cargo"), home.join(".rustup")];
            // One name alone, such as /src, is found in paths of libraries too.
            let long = paths.iter().filter(|path| path.components().count() > 2);
            let paths: Vec<&str> = long.filter_map(|path| path.to_str()).collect();
            proof::names_no_path(program, &paths)?;
        }
    }
    Ok(())
}

/// Where images lie: those that are shipped apart from those of tests.
fn folder(profile: &str) -> PathBuf {
    let folder = run::root().join("target/image");
    match profile {
        "dist" => folder,
        other => folder.join(other),
    }
}

fn program_only(arch: Arch, profile: &str) -> Result<PathBuf> {
    program::prepare(arch)?;
    let built = program::build(arch, profile, &run::root(), None)?;
    let folder = folder(profile);
    fs::create_dir_all(&folder)?;
    let to = folder.join(format!("{NAME}-linux-{}", arch.name()));
    fs::copy(&built, &to).with_context(|| format!("cannot write {}", to.display()))?;
    Ok(to)
}

fn write(file: &Path, bytes: &[u8]) -> Result<()> {
    fs::write(file, bytes).with_context(|| format!("cannot write {}", file.display()))
}

/// What a person wants to know after it.
fn summary(facts: &Facts, profile: &str, written: &[Written], named: &Descriptor) {
    let revision = facts.revision.as_deref().unwrap_or("unknown");
    println!(
        "\n{} at {revision}, of {}",
        facts.reference(),
        facts.created
    );
    for one in written {
        println!("\nlinux/{}", one.arch.name());
        println!(
            "  program  {} of at most {}, static; {}",
            mebibytes(one.program.len()),
            mebibytes(proof::LIMIT),
            one.tried
        );
        println!("  digest   {}", one.manifest.digest());
        let size = fs::metadata(&one.archive).map_or(0, |file| file.len() as usize);
        println!("  archive  {}  {}", shown(&one.archive), mebibytes(size));
        println!(
            "  SBOM     {}  {} components",
            shown(&one.sbom),
            one.components
        );
    }
    let oci = shown(&folder(profile).join("oci"));
    println!("\nall of it  {oci}  an OCI layout, {}", named.digest());
    let first = written
        .first()
        .map_or_else(String::new, |one| shown(&one.archive));
    println!("\nload it:");
    println!("  on a node     ctr --namespace k8s.io images import {first}");
    println!("  at a desk     podman load --input {first}    (or docker load)");
    println!(
        "  in a registry skopeo copy --all oci:{oci}:{} docker://YOUR-REGISTRY/{}",
        facts.version,
        facts.reference()
    );
}

/// A path as it is seen from the repository.
fn shown(path: &Path) -> String {
    let root = run::root();
    path.strip_prefix(&root)
        .unwrap_or(path)
        .display()
        .to_string()
}

fn mebibytes(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / (1024.0 * 1024.0))
}

#[cfg(test)]
mod dockerfile;
