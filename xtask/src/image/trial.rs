//! Runs the program of the image with no other files than `/etc/hosts` and a kubeconfig.
//!
//! This shows that it needs no loader and no library, and that its C library resolves a host name
//! without further files. A program of another architecture runs in qemu if that is installed.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context, Result, ensure};

use super::program::Arch;
use crate::{host, run};

/// A name that no resolver knows (RFC 6761); only this /etc/hosts contains it.
const SERVER: &str = "api.pathproof.test";
/// Timeout until the program connects to the server of that name, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// Runs the program of an unpacked image, in the image's root if this machine can do that. Returns a phrase
/// about how it ran.
pub(super) fn trial(arch: Arch, root: &Path) -> Result<String> {
    let program = root.join("pathproof");
    if arch != Arch::here()? {
        return emulated(arch, &program);
    }
    if !host::is_root() {
        says_version(&mut Command::new(program))?;
        return Ok("runs here (not tried in the image's root, which needs root)".to_owned());
    }
    let chroot = || {
        let mut command = Command::new(host::find("chroot").unwrap_or_else(|| "chroot".into()));
        command.arg(root).arg("/pathproof");
        command
    };
    says_version(&mut chroot()).context("in the image's root")?;
    finds_its_server(root, chroot()).context("in the image's root")?;
    says_what_it_lacks(root, chroot()).context("in the image's root")?;
    Ok("runs in the image's root and finds its server by name".to_owned())
}

fn says_version(command: &mut Command) -> Result<()> {
    let said = String::from_utf8(run::output(command.arg("version"))?)?;
    let revision = super::revision(12);
    ensure!(
        said.starts_with(&format!(
            "pathproof {} (revision {revision},",
            super::VERSION
        )),
        "the program says of its version: {said}"
    );
    Ok(())
}

fn emulated(arch: Arch, program: &Path) -> Result<String> {
    let emulator = format!("qemu-{}-static", arch.processor());
    let Some(emulator) = host::find(&emulator) else {
        return Ok(format!(
            "not run here: for that install {emulator} (Debian: qemu-user-static)"
        ));
    };
    says_version(Command::new(&emulator).arg(program))?;
    Ok("says its version in qemu; no packet was tried".to_owned())
}

/// With a host name in its kubeconfig, the program connects to the server that /etc/hosts names.
fn finds_its_server(root: &Path, mut command: Command) -> Result<()> {
    let server = TcpListener::bind("127.0.0.1:0")?;
    server.set_nonblocking(true)?;
    let port = server.local_addr()?.port();
    fs::create_dir(root.join("etc"))?;
    fs::write(root.join("etc/hosts"), format!("127.0.0.1 {SERVER}\n"))?;
    fs::write(root.join("kubeconfig"), kubeconfig("http", port))?;
    command.args(["rotate", "--kubeconfig", "/kubeconfig"]);
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let (start, mut ended, mut came) = (Instant::now(), None, false);
    while !came && ended.is_none() && start.elapsed() < PATIENCE {
        thread::sleep(Duration::from_millis(20));
        ended = child.try_wait()?;
        came = server.accept().is_ok();
    }
    let _ = child.kill();
    let output = child.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let how = ended.map_or("no connection came".to_owned(), |status| status.to_string());
    ensure!(came, "{SERVER} was not found by name ({how}): {said}");
    Ok(())
}

/// The image contains no certificates, so a kubeconfig without an authority is refused with the remedy.
fn says_what_it_lacks(root: &Path, mut command: Command) -> Result<()> {
    fs::write(root.join("kubeconfig"), kubeconfig("https", 6443))?;
    command.args(["rotate", "--kubeconfig", "/kubeconfig"]);
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        !output.status.success() && said.contains("/etc/ssl/certs (the image has none)"),
        "without a certificate authority the program says: {said}"
    );
    Ok(())
}

fn kubeconfig(scheme: &str, port: u16) -> String {
    format!(
        r#"{{"apiVersion": "v1", "kind": "Config", "current-context": "here",
"clusters": [{{"name": "here", "cluster": {{"server": "{scheme}://{SERVER}:{port}"}}}}],
"users": [{{"name": "me", "user": {{}}}}],
"contexts": [{{"name": "here", "context": {{"cluster": "here", "user": "me"}}}}]}}"#
    )
}
