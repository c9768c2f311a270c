//! Images FROM scratch, which buildah builds as archives for `ctr images import`. Each contains one program
//! and the libraries that it links to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;

use crate::deploy::said;

/// Writes an image with one program as its entry point, under a full reference such as
/// "docker.io/library/pathproof:0.1.0".
pub(super) fn write(to: &Path, reference: &str, program: &Path, words: &[&str]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (context, root) = (folder.path(), folder.path().join("root"));
    for folder in ["etc", "proc", "run", "sys", "tmp", "var"] {
        fs::create_dir_all(root.join(folder))?;
    }
    let users = "root:x:0:0::/:/\nnobody:x:65534:65534::/:/\n";
    fs::write(root.join("etc/passwd"), users)?;
    let name = program.file_name().context("a program has a name")?;
    fs::copy(program, root.join(name)).context("copy the program")?;
    for library in libraries(program)? {
        let copy = root.join(library.strip_prefix("/")?);
        fs::create_dir_all(copy.parent().context("a file is in a folder")?)?;
        fs::copy(&library, copy).with_context(|| format!("copy {}", library.display()))?;
    }
    let inside = Path::new("/").join(name).display().to_string();
    let entry = json!([&[inside.as_str()], words].concat());
    let recipe = format!("FROM scratch\nCOPY root /\nENV PATH=/\nWORKDIR /\nENTRYPOINT {entry}\n");
    fs::write(context.join("Dockerfile"), recipe)?;
    let mut build = Command::new("buildah");
    build
        .arg("--root")
        .arg(context.join("images"))
        .arg("--runroot")
        .arg(context.join("run"))
        .args(["--storage-driver", "vfs", "build", "--quiet"])
        .args(["--isolation", "chroot", "--ignorefile", "/dev/null"])
        .arg("--file")
        .arg(context.join("Dockerfile"))
        .arg(format!("--tag=docker-archive:{}:{reference}", to.display()))
        .arg(context);
    said(&mut build).context("run buildah, of Debian's package of that name")?;
    Ok(())
}

/// Shared libraries and the loader, by the paths that the program uses.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    // ldd fails for a statically linked program, so its error is ignored.
    let text = said(Command::new("ldd").arg(program)).unwrap_or_default();
    ensure!(!text.contains("not found"), "a library is missing:\n{text}");
    let words = text.split_whitespace().filter(|word| word.starts_with('/'));
    Ok(words.map(PathBuf::from).collect())
}
