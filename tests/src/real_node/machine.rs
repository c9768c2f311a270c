//! The node's machine: its own mount, PID, cgroup, UTS and IPC namespaces, and the network of the world's
//! node. Its first process is a script (box.sh). Killing that process ends everything inside and unmounts
//! everything.

use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::cgroups::{Groups, enter};
use super::site::Site;
use crate::deploy::said;
use crate::prelude::*;
use crate::process::{Process, signal};

const SCRIPT: &str = include_str!("box.sh");
/// Limit for short steps.
const PATIENCE: Duration = Duration::from_secs(20);

/// The running machine; everything in it ends when dropped.
#[derive(Debug)]
pub(super) struct Machine {
    outer: Process,
    /// Process id of the machine's first process, as seen from outside.
    first: u32,
    doors: Vec<PathBuf>,
    pub(super) site: Site,
    // Dropped last: groups can be removed only when they are empty.
    pub(super) groups: Groups,
}

impl Machine {
    /// Starts the machine. The site's folder is visible inside.
    pub(super) fn start(site: Site) -> Result<Self> {
        let (groups, folder) = (Groups::make(&site.groups)?, &site.folder);
        fs::create_dir_all(folder.join("cni"))?;
        let mut command = site.network.command("unshare");
        command
            .args(["--mount", "--propagation", "private"])
            .args(["--cgroup", "--uts", "--ipc", "--pid", "--fork"])
            .args(["--kill-child", "--mount-proc"])
            .args(["bash", "-c", SCRIPT, "box", site.name])
            .arg(folder)
            .args(groups.controllers());
        enter(&mut command, groups.first_doors());
        let mut outer = Process::start(command, "box", folder)?;
        let up = folder.join("up");
        outer.wait("its mounts", PATIENCE, || up.exists())?;
        Ok(Self {
            first: child_of(outer.pid()).context("the box has a first process")?,
            outer,
            doors: groups.doors()?,
            site,
            groups,
        })
    }

    /// A command on the machine. Its process is `nsenter`, which waits for the actual program.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.site.network.command("nsenter");
        command
            .args(["--target", &self.first.to_string()])
            .arg(format!("--wdns={}", self.site.folder.display()))
            .args(["--mount", "--pid", "--cgroup", "--uts", "--ipc", "--"])
            .arg(program);
        enter(&mut command, self.doors.clone());
        command
    }

    /// Runs a command on the machine; returns its standard output.
    pub(super) fn run(&self, program: impl AsRef<OsStr>, words: &[&str]) -> Result<String> {
        said(self.command(program).args(words))
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // Kill the first process; its parent exits once everything inside has ended.
        signal(self.first, libc::SIGKILL);
        let _ = until(PATIENCE, || self.outer.exited().ok().flatten());
    }
}

/// Kills the actual program of a daemon and waits for its end.
pub(super) fn kill(mut daemon: Process) -> Result<()> {
    let program = child_of(daemon.pid()).context("it runs")?;
    signal(program, libc::SIGKILL);
    until(PATIENCE, || daemon.exited().ok().flatten()).context("it ends")?;
    Ok(())
}

/// Waits until a single-threaded process has a child, and returns this child.
fn child_of(parent: u32) -> Option<u32> {
    until(PATIENCE, || {
        let children = fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        children.ok()?.trim_end().parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::world::layout;
    use crate::{needs, skip};

    #[test]
    fn everything_on_it_ends_with_it() {
        needs!(skip::root());
        needs!(skip::needed(super::super::cgroups::version()));
        let world = World::builder().build().expect("a world");
        let site = Site::node(&world).expect("a site");
        let folder = site.folder.clone();
        let machine = Machine::start(site).expect("a machine");
        let seen = machine
            .run("cat", &["/proc/self/cgroup"])
            .expect("its groups");
        let is_own = |line: &str| line.ends_with(":/") || line.ends_with(":/daemons");
        assert!(seen.lines().all(is_own), "{seen}");
        // Start a child that outlives its parent, as the shims of containers do.
        let orphan = "(sleep 5417 & echo $! > orphan); hostname; exec sleep 5417";
        let mut command = machine.command("bash");
        command.args(["-c", orphan]);
        let sleeper = Process::start(command, "sleeper", &folder).expect("a daemon");
        let shown = until(PATIENCE, || sleeper.log().contains(NODE_NAME).then_some(()));
        assert!(shown.is_some(), "{}", sleeper.log());
        let groups = machine.doors.clone();
        assert!(groups.iter().all(|group| group.exists()));
        let first = machine.first;
        let inside = machine
            .run("bash", &["-c", "cat /proc/[0-9]*/comm"])
            .expect("its processes");
        let sleepers = inside.lines().filter(|name| *name == "sleep").count();
        assert!(sleepers >= 2, "{inside}");
        drop(machine);
        assert!(!Path::new(&format!("/proc/{first}")).exists());
        assert!(child_of_any("sleep", "5417").is_none(), "the orphan lives");
        assert!(groups.iter().all(|group| !group.exists()), "{groups:?}");
    }

    #[test]
    fn two_of_one_world_are_apart() {
        needs!(skip::root());
        needs!(skip::needed(super::super::cgroups::version()));
        let world = World::builder().build().expect("a world");
        let site = Site::node(&world).expect("a site");
        let other = Site {
            name: layout::WORKER_NAME,
            network: world.worker.clone(),
            folder: world.quick_dir().expect("a folder").join("worker"),
            groups: format!("{}-worker", world.name()),
            ..site.clone()
        };
        let first = Machine::start(site).expect("a machine");
        let second = Machine::start(other).expect("a second machine");
        for (machine, address) in [(&first, layout::NODE.0), (&second, layout::WORKER.0)] {
            let addresses = machine.run("ip", &["-br", "address"]).expect("addresses");
            assert!(addresses.contains(&address.to_string()), "{addresses}");
            let name = machine.run("hostname", &[]).expect("a name");
            assert_eq!(name.trim_end(), machine.site.name);
            // A path that both have: containerd's socket is in this folder.
            let mark = ["-c", "test ! -e /run/mark && : > /run/mark"];
            machine.run("bash", &mark).expect("a /run of its own");
        }
        let groups = second.doors.clone();
        drop(first);
        assert!(second.run("test", &["-e", "/run/mark"]).is_ok(), "it ended");
        drop(second);
        assert!(groups.iter().all(|group| !group.exists()), "{groups:?}");
    }

    /// The folder in /proc of a process that runs `name` with the argument `word`.
    fn child_of_any(name: &str, word: &str) -> Option<PathBuf> {
        let entries = fs::read_dir("/proc").ok()?.flatten();
        let mut paths = entries.map(|entry| entry.path());
        paths.find(|path| {
            fs::read_to_string(path.join("cmdline"))
                .is_ok_and(|text| text == format!("{name}\0{word}\0"))
        })
    }
}
