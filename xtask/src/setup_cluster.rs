//! `cargo xtask setup-cluster`: the servers of the cluster tests, once for a clone.
//!
//! kube-apiserver and kube-proxy are built from the Go module in tests/cluster/servers, which pins
//! every version; etcd comes out of Debian's package. All lie in target/tools: no service is
//! installed or started, and nothing outside the clone changes but Go's own caches.

mod go;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{host, run};

/// Release of the servers, as tests/cluster/servers/go.mod pins it.
const KUBERNETES: &str = "v1.36.3";
/// What is built.
const SERVERS: [&str; 2] = ["kube-apiserver", "kube-proxy"];
/// Packages that a build from nothing compiles, about: for the progress alone.
const PACKAGES: usize = 2000;

pub(crate) fn run() -> Result<()> {
    let folder = ready()?;
    println!(
        "ready in {}; use them with: cargo xtask test",
        folder.display()
    );
    Ok(())
}

/// The folder of the servers, which are built first where one is missing.
pub(crate) fn ready() -> Result<PathBuf> {
    let folder = run::root().join("target/tools/kubernetes").join(KUBERNETES);
    fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    etcd(&folder)?;
    let missing: Vec<&str> = SERVERS
        .into_iter()
        .filter(|server| !is_built(&folder.join(server)))
        .collect();
    if !missing.is_empty() {
        build(&folder, &missing)?;
    }
    Ok(folder)
}

fn is_built(server: &Path) -> bool {
    let wanted = format!("Kubernetes {KUBERNETES}");
    run::first_line(Command::new(server).arg("--version")).is_some_and(|line| line == wanted)
}

/// Builds servers of the module, and tells how far it has come.
fn build(folder: &Path, servers: &[&str]) -> Result<()> {
    let go = go::find()?;
    eprintln!(
        "building {} {KUBERNETES} with {} into target/tools: once, about 5 min on 2 processors",
        servers.join(" and "),
        go.version
    );
    let mut command = Command::new(&go.program);
    command
        .current_dir(run::root().join("tests/cluster/servers"))
        .env("CGO_ENABLED", "0")
        .env("GOTOOLCHAIN", "auto")
        // A workspace file or flags of the user's must not change what is built.
        .env("GOWORK", "off")
        .env("GOFLAGS", "")
        .args([
            "build",
            "-v",
            "-trimpath",
            "-buildvcs=false",
            "-ldflags",
            &link_flags(),
        ])
        .arg("-o")
        .arg(folder)
        .args(
            servers
                .iter()
                .map(|server| format!("k8s.io/kubernetes/cmd/{server}")),
        )
        .stderr(Stdio::piped());
    follow(&mut command)?;
    match servers
        .iter()
        .find(|server| !is_built(&folder.join(server)))
    {
        Some(server) => bail!("{server} was built but does not say that it is {KUBERNETES}"),
        None => Ok(()),
    }
}

/// Small, and of the version that API clients see.
fn link_flags() -> String {
    let mut parts = KUBERNETES.trim_start_matches('v').split('.');
    let mut part = || parts.next().unwrap_or_default();
    let variable = |name, value| format!(" -X k8s.io/component-base/version.{name}={value}");
    [
        ("gitVersion", KUBERNETES),
        ("gitMajor", part()),
        ("gitMinor", part()),
    ]
    .into_iter()
    .fold("-s -w".to_owned(), |flags, (name, value)| {
        flags + &variable(name, value)
    })
}

/// `go build -v` names each package that it compiles, and `go: downloading` each module.
fn follow(command: &mut Command) -> Result<()> {
    eprintln!("+ {}", run::shown(command));
    let mut child = command.spawn().context("cannot start go")?;
    let stderr = child
        .stderr
        .take()
        .context("a piped child has no standard error")?;
    let (mut compiled, mut downloaded, mut told) = (0, 0, Instant::now());
    let mut complaints = Vec::new();
    for line in BufReader::new(stderr).lines() {
        let line = line.context("reading what go says")?;
        if line.starts_with("go: downloading ") {
            downloaded += 1;
        } else if line.contains(' ') {
            complaints.push(line);
        } else {
            compiled += 1;
        }
        if told.elapsed() > Duration::from_secs(10) {
            told = Instant::now();
            eprintln!(
                "  {downloaded} modules downloaded, {compiled} of about {PACKAGES} packages compiled"
            );
        }
    }
    let status = child.wait()?;
    if !status.success() {
        bail!("go build failed ({status}):\n{}", complaints.join("\n"));
    }
    Ok(())
}

/// etcd of this machine, or out of Debian's package: unpacked, since installing it would start it.
fn etcd(folder: &Path) -> Result<()> {
    let own = folder.join("etcd");
    if own.is_file() || host::find("etcd").is_some() {
        return Ok(());
    }
    if host::find("apt-get").is_none() || host::find("dpkg-deb").is_none() {
        bail!(
            "the cluster tests need etcd, and there is no apt-get here: put etcd 3.4 or newer into \
             PATH (https://github.com/etcd-io/etcd/releases) and try again"
        );
    }
    eprintln!("the cluster tests need etcd: unpacking Debian's etcd-server into target/tools");
    let scratch = tempfile::tempdir_in(folder)?;
    let download = || {
        run::run(Command::new("apt-get").current_dir(scratch.path()).args([
            "download",
            "--quiet",
            "etcd-server",
        ]))
    };
    if download().is_err() {
        // A fresh machine has no package lists, or stale ones.
        host::update_lists()?;
        download()?;
    }
    let package = fs::read_dir(scratch.path())?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|kind| kind == "deb"))
        .context("apt-get download left no package")?;
    let root = scratch.path().join("root");
    run::run(
        Command::new("dpkg-deb")
            .arg("--extract")
            .arg(package)
            .arg(&root),
    )?;
    fs::rename(root.join("usr/bin/etcd"), &own).context("no etcd in Debian's package")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_pins_the_release_that_is_built() {
        let module = fs::read_to_string(run::root().join("tests/cluster/servers/go.mod")).unwrap();
        assert!(
            module.contains(&format!("k8s.io/kubernetes {KUBERNETES} ")),
            "{module}"
        );
        assert_eq!(
            link_flags(),
            "-s -w -X k8s.io/component-base/version.gitVersion=v1.36.3 \
             -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=36"
        );
    }
}
