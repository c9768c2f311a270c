//! Images FROM scratch, as archives in the OCI layout that `ctr images import` reads: one layer with
//! a few programs, and the libraries that they are linked to.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

const MEDIA: &str = "application/vnd.oci.image";

/// Writes an image with one program, which is its entry point, under a full reference such as
/// "docker.io/library/pathproof:0.1.0".
pub(super) fn write(to: &Path, reference: &str, program: &Path, words: &[&str]) -> Result<()> {
    let name = program.file_name().context("a program has a name")?;
    let inside = Path::new("/").join(name);
    let mut files = vec![(inside.clone(), program.to_owned())];
    files.extend(
        libraries(program)?
            .into_iter()
            .map(|one| (one.clone(), one)),
    );
    let mut layer = Tar::default();
    for folder in ["etc", "proc", "run", "sys", "tmp", "var"] {
        layer.folder(folder);
    }
    layer.file(
        "etc/passwd",
        0o644,
        b"root:x:0:0::/:/\nnobody:x:65534:65534::/:/\n",
    );
    for (inside, file) in files {
        let bytes = fs::read(&file).with_context(|| format!("read {}", file.display()))?;
        let inside = inside.strip_prefix("/").context("an absolute path")?;
        layer.file(&inside.display().to_string(), 0o755, &bytes);
    }
    let layer = layer.end();
    let mut entry = vec![inside.display().to_string()];
    entry.extend(words.iter().map(ToString::to_string));
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": { "Entrypoint": entry, "Env": ["PATH=/"], "WorkingDir": "/" },
        "rootfs": { "type": "layers", "diff_ids": [sha256(&layer)] },
    });
    save(to, reference, &config, &layer).with_context(|| format!("write {}", to.display()))
}

fn save(to: &Path, reference: &str, config: &Value, layer: &[u8]) -> io::Result<()> {
    let config = config.to_string().into_bytes();
    let part = |kind: &str, bytes: &[u8]| {
        json!({
            "mediaType": format!("{MEDIA}.{kind}"),
            "digest": sha256(bytes),
            "size": bytes.len(),
        })
    };
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": format!("{MEDIA}.manifest.v1+json"),
        "config": part("config.v1+json", &config),
        "layers": [part("layer.v1.tar", layer)],
    });
    let manifest = manifest.to_string().into_bytes();
    let mut entry = part("manifest.v1+json", &manifest);
    entry["platform"] = json!({ "architecture": architecture(), "os": "linux" });
    entry["annotations"] = json!({ "io.containerd.image.name": reference });
    let index = json!({ "schemaVersion": 2, "manifests": [entry] }).to_string();
    let mut archive = Tar::default();
    archive.file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#);
    archive.file("index.json", 0o644, index.as_bytes());
    for blob in [&config[..], layer, &manifest] {
        let name = sha256(blob).replace("sha256:", "blobs/sha256/");
        archive.file(&name, 0o644, blob);
    }
    let mut file = BufWriter::new(File::create(to)?);
    file.write_all(&archive.end())?;
    file.flush()
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

fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut text = "sha256:".to_owned();
    for byte in digest(&SHA256, bytes).as_ref() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// As images name it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A tar file in the making (POSIX ustar): all of it root's, and of no time.
#[derive(Debug, Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn folder(&mut self, path: &str) {
        self.entry(&format!("{path}/"), 0o755, b'5', &[]);
    }

    fn file(&mut self, path: &str, mode: u32, bytes: &[u8]) {
        self.entry(path, mode, b'0', bytes);
    }

    fn entry(&mut self, path: &str, mode: u32, kind: u8, bytes: &[u8]) {
        let mut head = [0_u8; 512];
        let mut put = |at: usize, text: &str| {
            head[at..at + text.len()].copy_from_slice(text.as_bytes());
        };
        assert!(
            path.len() <= 100,
            "too long for a tar file's short names: {path}"
        );
        put(0, path);
        put(100, &format!("{mode:07o}"));
        put(108, "0000000");
        put(116, "0000000");
        put(124, &format!("{:011o}", bytes.len()));
        put(136, "00000000000");
        put(148, "        ");
        put(257, "ustar");
        put(263, "00");
        head[156] = kind;
        let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
        head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend(head);
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
    }

    fn end(mut self) -> Vec<u8> {
        self.0.extend([0; 1024]);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_reads_what_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut tar = Tar::default();
        tar.folder("etc");
        tar.file("etc/passwd", 0o644, b"root\n");
        tar.file("program", 0o755, &[7; 1000]);
        let file = folder.path().join("a.tar");
        fs::write(&file, tar.end()).expect("written");
        let listed = Command::new("tar")
            .arg("-tvf")
            .arg(&file)
            .output()
            .expect("tar");
        let text = String::from_utf8_lossy(&listed.stdout);
        assert!(listed.status.success(), "{text}");
        for words in [
            "drwxr-xr-x 0/0",
            "-rw-r--r-- 0/0",
            "1000 1970-01-01",
            "etc/passwd",
        ] {
            assert!(text.contains(words), "{words} in {text}");
        }
    }
}
