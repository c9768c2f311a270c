//! An OCI layout: as a folder with every architecture, and as one tar file for each, which
//! containerd, podman and docker load.

use std::fs;
use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result};
use jiff::Timestamp;
use oci_spec::image::{
    ANNOTATION_REF_NAME, Descriptor, ImageIndexBuilder, MediaType, OciLayoutBuilder,
};
use serde_json::json;

use super::blobs::{self, Blobs, FOLDER, Files, json};
use super::facts::Facts;
use super::pack::{self, Image};

pub(super) const INDEX: &str = "index.json";
pub(super) const MARKER: &str = "oci-layout";
/// What docker reads: its own format of archives, which names the same blobs.
pub(super) const DOCKER: &str = "manifest.json";
/// The name that containerd gives to an image it imports.
const CONTAINERD_NAME: &str = "io.containerd.image.name";

/// The layout with all images, and with the artifacts that refer to them. Where there is more than
/// one image the name stands for an index of them. Gives what the name stands for, too.
pub(super) fn folder(
    mut blobs: Blobs,
    facts: &Facts,
    images: &[Image],
    referrers: Vec<Descriptor>,
) -> Result<(Files, Descriptor)> {
    let mut named = match images {
        [image] => image.manifest.clone(),
        several => {
            let index = ImageIndexBuilder::default()
                .schema_version(2_u32)
                .media_type(MediaType::ImageIndex)
                .manifests(
                    several
                        .iter()
                        .map(|image| image.manifest.clone())
                        .collect::<Vec<_>>(),
                )
                .annotations(facts.labels())
                .build()?;
            blobs.add_json(MediaType::ImageIndex, &index)?
        }
    };
    let target = named.clone();
    name(&mut named, facts);
    let entries = [named].into_iter().chain(referrers).collect();
    Ok((files(blobs, entries)?, target))
}

/// The layout with one image alone, and docker's manifest beside it.
pub(super) fn loadable(blobs: Blobs, facts: &Facts, image: &Image) -> Result<Files> {
    let mut named = image.manifest.clone();
    name(&mut named, facts);
    let mut files = files(blobs, vec![named])?;
    let docker = json!([{
        "Config": blobs::path(&image.config),
        "Layers": [blobs::path(&image.layer)],
        "RepoTags": [facts.reference()],
    }]);
    files.insert(DOCKER.to_owned(), json(&docker)?);
    Ok(files)
}

fn name(descriptor: &mut Descriptor, facts: &Facts) {
    let pairs = [
        (ANNOTATION_REF_NAME, facts.version.clone()),
        (CONTAINERD_NAME, facts.full_reference()),
    ];
    let pairs = pairs.map(|(key, value)| (key.to_owned(), value));
    descriptor.set_annotations(Some(pairs.into()));
}

fn files(blobs: Blobs, entries: Vec<Descriptor>) -> Result<Files> {
    let index = ImageIndexBuilder::default()
        .schema_version(2_u32)
        .media_type(MediaType::ImageIndex)
        .manifests(entries)
        .build()?;
    let marker = OciLayoutBuilder::default()
        .image_layout_version("1.0.0")
        .build()?;
    let mut files = blobs.into_files();
    files.insert(INDEX.to_owned(), json(&index)?);
    files.insert(MARKER.to_owned(), json(&marker)?);
    Ok(files)
}

/// Writes files into a folder, in place of what was there.
pub(super) fn write_folder(files: &Files, to: &Path) -> Result<()> {
    let gone = to.exists();
    if gone {
        fs::remove_dir_all(to).with_context(|| format!("cannot empty {}", to.display()))?;
    }
    fs::create_dir_all(to.join(FOLDER))?;
    for (path, bytes) in files {
        let file = to.join(path);
        fs::write(&file, bytes).with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// The files of a folder, as [`write_folder`] writes them.
pub(super) fn read_folder(from: &Path) -> Result<Files> {
    let mut files = Files::new();
    for folder in ["", FOLDER] {
        let path = from.join(folder);
        let entries =
            fs::read_dir(&path).with_context(|| format!("cannot read {}", path.display()))?;
        for entry in entries {
            let file = entry?.path();
            if file.is_file() {
                let name = file.strip_prefix(from)?.to_string_lossy().into_owned();
                files.insert(name, fs::read(&file)?);
            }
        }
    }
    Ok(files)
}

/// Files as one tar file: in order, root's, all of one time.
pub(super) fn tar(files: &Files, created: Timestamp) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for folder in ["blobs/", "blobs/sha256/"] {
        let mut header = pack::header(0, 0o755, created);
        header.set_entry_type(tar::EntryType::Directory);
        tar.append_data(&mut header, folder, std::io::empty())?;
    }
    for (path, bytes) in files {
        let mut header = pack::header(bytes.len(), 0o644, created);
        tar.append_data(&mut header, path, bytes.as_slice())?;
    }
    Ok(tar.into_inner()?)
}

/// The files of a tar file.
pub(super) fn untar(bytes: &[u8]) -> Result<Files> {
    let mut files = Files::new();
    for entry in tar::Archive::new(bytes).entries()? {
        let mut entry = entry?;
        if entry.header().entry_type().is_file() {
            let path = entry.path()?.to_string_lossy().into_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes)?;
            files.insert(path, bytes);
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests;
