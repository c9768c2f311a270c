//! What must be true of an image that was written, read back from the file: digests, the one file
//! in it, its facts, and that its program is static and small enough.

use std::collections::BTreeSet;
use std::io::Read as _;

use anyhow::{Context, Result, bail, ensure};
use flate2::read::GzDecoder;
use object::Endianness;
use object::elf::{DT_NEEDED, EM_AARCH64, EM_X86_64, ET_DYN, FileHeader64, PT_DYNAMIC, PT_INTERP};
use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest, MediaType};
use serde::de::DeserializeOwned;

use super::blobs::{self, FOLDER, Files, sha256};
use super::facts::Facts;
use super::layout::{INDEX, MARKER};
use super::pack::{ENVIRONMENT, PROGRAM};
use super::program::Arch;

/// What the program may weigh (docs/specification.md): 15 MiB.
pub(super) const LIMIT: usize = 15 * 1024 * 1024;

/// Checks a layout against the facts, and gives the programs of its images.
pub(super) fn layout(files: &Files, facts: &Facts) -> Result<Vec<(Arch, Vec<u8>)>> {
    ensure!(files.contains_key(MARKER), "there is no {MARKER}");
    let index: ImageIndex = document(files, INDEX)?;
    let mut seen = BTreeSet::new();
    let mut programs = Vec::new();
    let mut open: Vec<Descriptor> = index.manifests().clone();
    while let Some(descriptor) = open.pop() {
        blob(files, &descriptor, &mut seen)?;
        if *descriptor.media_type() == MediaType::ImageIndex {
            let index: ImageIndex = document(files, &blobs::path(&descriptor))?;
            open.extend(index.manifests().iter().cloned());
            continue;
        }
        let manifest: ImageManifest = document(files, &blobs::path(&descriptor))?;
        blob(files, manifest.config(), &mut seen)?;
        for layer in manifest.layers() {
            blob(files, layer, &mut seen)?;
        }
        match manifest.subject() {
            Some(subject) => blob(files, subject, &mut seen)?,
            None => programs.push(image(files, &manifest, facts)?),
        }
    }
    let all: BTreeSet<&String> = files
        .keys()
        .filter(|path| path.starts_with(FOLDER))
        .collect();
    if let Some(path) = all.into_iter().find(|path| !seen.contains(*path)) {
        bail!("nothing names {path}");
    }
    programs.sort();
    Ok(programs)
}

/// The blob is there, and is what its name says.
fn blob(files: &Files, of: &Descriptor, seen: &mut BTreeSet<String>) -> Result<()> {
    let path = blobs::path(of);
    let bytes = files
        .get(&path)
        .with_context(|| format!("there is no {path}"))?;
    ensure!(
        sha256(bytes) == of.digest().digest() && bytes.len() as u64 == of.size(),
        "{path} is not what its name says"
    );
    seen.insert(path);
    Ok(())
}

/// One image: what it says of itself, and its only file.
fn image(files: &Files, manifest: &ImageManifest, facts: &Facts) -> Result<(Arch, Vec<u8>)> {
    let configuration: ImageConfiguration = document(files, &blobs::path(manifest.config()))?;
    let config = configuration
        .config()
        .as_ref()
        .context("it says not what to run")?;
    let labels = Some(facts.labels());
    ensure!(
        *config.labels() == labels && *manifest.annotations() == labels,
        "its labels are not those of this build"
    );
    ensure!(
        *config.entrypoint() == Some(vec![PROGRAM.to_owned()])
            && *config.env() == Some(vec![ENVIRONMENT.to_owned()]),
        "its entry point is not {PROGRAM}, or its environment not {ENVIRONMENT}"
    );
    let arch = [Arch::Amd64, Arch::Arm64]
        .into_iter()
        .find(|arch| arch.oci() == *configuration.architecture())
        .with_context(|| format!("it is for {}", configuration.architecture()))?;
    let [layer] = manifest.layers().as_slice() else {
        bail!("it has {} layers, not one", manifest.layers().len());
    };
    let mut tar = Vec::new();
    GzDecoder::new(files[&blobs::path(layer)].as_slice()).read_to_end(&mut tar)?;
    ensure!(
        configuration.rootfs().diff_ids() == &[format!("sha256:{}", sha256(&tar))],
        "its layer is not the one that its configuration names"
    );
    Ok((arch, only_file(&tar)?))
}

/// The program is all there is in the layer.
fn only_file(tar: &[u8]) -> Result<Vec<u8>> {
    let mut tar = tar::Archive::new(tar);
    let mut entries = tar.entries()?;
    let mut file = entries.next().context("the layer is empty")??;
    ensure!(
        file.path()?.to_string_lossy() == PROGRAM.trim_start_matches('/')
            && file.header().mode()? == 0o755,
        "the layer's first file is not an executable {PROGRAM}"
    );
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    ensure!(entries.next().is_none(), "the layer has more than one file");
    Ok(bytes)
}

/// The program runs without any other file: position-independent, no loader, no libraries.
pub(super) fn is_static(arch: Arch, program: &[u8]) -> Result<()> {
    let header = FileHeader64::<Endianness>::parse(program).context("it is no ELF file")?;
    let endian = header.endian()?;
    let machine = match arch {
        Arch::Amd64 => EM_X86_64,
        Arch::Arm64 => EM_AARCH64,
    };
    ensure!(
        header.e_machine(endian) == machine,
        "it is not for {}",
        arch.name()
    );
    ensure!(
        header.e_type(endian) == ET_DYN,
        "it is not position-independent"
    );
    for segment in header.program_headers(endian, program)? {
        ensure!(
            segment.p_type(endian) != PT_INTERP,
            "it wants a loader: it is not static"
        );
        if segment.p_type(endian) == PT_DYNAMIC {
            let entries = segment.dynamic(endian, program)?.unwrap_or_default();
            ensure!(
                entries.iter().all(|entry| entry.tag(endian) != DT_NEEDED),
                "it wants libraries: it is not static"
            );
        }
    }
    Ok(())
}

/// The program is no larger than promised.
pub(super) fn is_small(program: &[u8]) -> Result<()> {
    ensure!(
        program.len() <= LIMIT,
        "the program has {} bytes, {LIMIT} are the limit; docs/adr/0013-image.md says where they go",
        program.len()
    );
    Ok(())
}

/// No path of the machine that built it: those differ from machine to machine.
pub(super) fn names_no_path(program: &[u8], paths: &[&str]) -> Result<()> {
    for path in paths {
        let found = program
            .windows(path.len())
            .any(|window| window == path.as_bytes());
        ensure!(
            !found,
            "the program has a path of this machine in it: {path}"
        );
    }
    Ok(())
}

fn document<T: DeserializeOwned>(files: &Files, path: &str) -> Result<T> {
    let bytes = files
        .get(path)
        .with_context(|| format!("there is no {path}"))?;
    serde_json::from_slice(bytes).with_context(|| format!("{path} is not what it should be"))
}

#[cfg(test)]
mod tests;
