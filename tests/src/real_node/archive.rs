//! Images FROM scratch, by buildah, as archives that `ctr images import` reads: one program and the
//! libraries that it is linked to.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::json;

/// Writes an image with one program, which is its entry point, under a full reference such as
/// "docker.io/library/pathproof:0.1.0".
pub(super) fn write(to: &Path, reference: &str, program: &Path, words: &[&str]) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let (context, root) = (folder.path(), folder.path().join("root"));
    for folder in ["etc", "proc", "run", "sys", "tmp", "var"] {
        fs::create_dir_all(root.join(folder))?;
    }
    let users = "root:x:0:0::/:/\nnobody:x:65534:65534::/:/\n";
    fs::write(root.join("etc/passwd"), users)?;
    let inside = Path::new("/").join(program.file_name().context("a program has a name")?);
    let libraries = libraries(program)?
        .into_iter()
        .map(|one| (one.clone(), one));
    for (inside, file) in libraries.chain([(inside.clone(), program.to_owned())]) {
        let copy = root.join(inside.strip_prefix("/").context("an absolute path")?);
        fs::create_dir_all(copy.parent().context("a file is in a folder")?)?;
        fs::copy(&file, copy).with_context(|| format!("copy {}", file.display()))?;
    }
    let mut entry = vec![inside.display().to_string()];
    entry.extend(words.iter().map(ToString::to_string));
    let recipe = format!(
        "FROM scratch\nCOPY root /\nENV PATH=/\nWORKDIR /\nENTRYPOINT {}\n",
        json!(entry)
    );
    fs::write(context.join("Dockerfile"), recipe)?;
    let built = Command::new("buildah")
        .arg("--root")
        .arg(context.join("images"))
        .arg("--runroot")
        .arg(context.join("run"))
        .args(["--storage-driver", "vfs", "build", "--quiet"])
        .args(["--isolation", "chroot", "--ignorefile", "/dev/null"])
        .arg("--file")
        .arg(context.join("Dockerfile"))
        .arg(format!("--tag=docker-archive:{}:{reference}", to.display()))
        .arg(context)
        .output()
        .context("run buildah, of Debian's package of that name")?;
    let said = String::from_utf8_lossy(&built.stderr);
    ensure!(built.status.success(), "buildah cannot build: {said}");
    Ok(())
}

/// Shared libraries and the loader, by the paths at which the program looks for them.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd")
        .arg(program)
        .output()
        .context("run ldd")?;
    if !output.status.success() {
        // Statically linked.
        return Ok(Vec::new());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    ensure!(!text.contains("not found"), "a library is missing:\n{text}");
    let words = text.split_whitespace();
    Ok(words
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect())
}
