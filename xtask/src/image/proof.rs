//! Requirements on an image, checked on the archive: one static program below the size limit,
//! without paths of this machine, that runs without any other file.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::program::Arch;
use super::{REFERENCE, trial};
use crate::run;

/// Maximum size of the program (docs/internal/specification.md).
const LIMIT: usize = 25 * 1024 * 1024;

/// Checks the image in an archive, and returns how its program was tried.
pub(super) fn of(arch: Arch, archive: &Path, program: &Path) -> Result<String> {
    let bytes = fs::read(program)?;
    ensure!(
        bytes.len() <= LIMIT,
        "the program has {} bytes, more than the limit of {LIMIT}",
        bytes.len()
    );
    let home = std::env::home_dir().unwrap_or_default();
    for folder in [run::root(), home.join(".cargo"), home.join(".rustup")] {
        // A single name, such as /src, also occurs in paths of libraries.
        ensure!(
            folder.components().count() < 3 || !names(&bytes, &folder),
            "the program contains a path of this machine: {}",
            folder.display()
        );
    }
    is_static(arch, program)?;

    let folder = tempfile::tempdir()?;
    let root = folder.path().join("root");
    fs::create_dir(&root)?;
    untar(archive, folder.path())?;
    let manifest = document(&folder.path().join("manifest.json"))?;
    let [image] = manifest.as_array().map_or(&[][..], Vec::as_slice) else {
        anyhow::bail!("{} has more than one image", archive.display());
    };
    let config = image["Config"].as_str().context("no configuration")?;
    let config = document(&folder.path().join(config))?;
    ensure!(
        image["RepoTags"] == serde_json::json!([REFERENCE])
            && config["architecture"] == arch.name(),
        "the image has another name or architecture: {image}"
    );
    let [Value::String(layer)] = image["Layers"].as_array().map_or(&[][..], Vec::as_slice) else {
        anyhow::bail!("the image has more than one layer: {image}");
    };
    untar(&folder.path().join(layer), &root)?;
    let entries = names_in(&root)?;
    ensure!(
        entries == ["licenses", "pathproof"] && fs::read(root.join("pathproof"))? == bytes,
        "the image has more in it than the program and its licences: {entries:?}"
    );
    let licences = names_in(&root.join("licenses"))?;
    ensure!(
        licences == names_in(&super::licences())?,
        "the image has other licences: {licences:?}"
    );
    trial::trial(arch, &root)
}

/// Names in a folder, sorted.
fn names_in(folder: &Path) -> Result<Vec<OsString>> {
    let entries = fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))?;
    let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
    let mut names = names.collect::<Result<Vec<_>, _>>()?;
    names.sort();
    Ok(names)
}

fn names(program: &[u8], folder: &Path) -> bool {
    let folder = folder.as_os_str().as_encoded_bytes();
    program.windows(folder.len()).any(|window| window == folder)
}

/// Checks that the program is position-independent and needs neither a loader nor libraries.
fn is_static(arch: Arch, program: &Path) -> Result<()> {
    let mut readelf = Command::new("readelf");
    readelf.env("LC_ALL", "C").arg("--wide").arg("--dynamic");
    readelf.args(["--file-header", "--segments"]).arg(program);
    let text = String::from_utf8(run::output(&mut readelf)?)?;
    let machine = arch.processor().replace('_', "-");
    ensure!(
        text.to_lowercase().contains(&machine) && text.contains("DYN (Position-Independent"),
        "the program is not position-independent code for {}",
        arch.name()
    );
    ensure!(
        !text.contains("INTERP") && !text.contains("(NEEDED)"),
        "the program is not static: it needs a loader or libraries"
    );
    Ok(())
}

fn untar(archive: &Path, to: &Path) -> Result<()> {
    let mut tar = Command::new("tar");
    run::run_quietly(tar.arg("-xf").arg(archive).arg("-C").arg(to))
}

fn document(file: &Path) -> Result<Value> {
    let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    Ok(serde_json::from_slice(&bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_with_libraries_is_refused() {
        let own = std::env::current_exe().unwrap();
        let error = is_static(Arch::here().unwrap(), &own).unwrap_err();
        assert!(error.to_string().contains("not static"), "{error}");
    }

    #[test]
    fn a_path_of_this_machine_is_found() {
        let program = b"at /home/me/src/main.rs";
        assert!(names(program, Path::new("/home/me")));
        assert!(!names(program, Path::new("/home/you")));
    }
}
