//! One run of a virtual machine: QEMU with a software processor, a kernel, and an archive. The
//! result is the guest's output, between the marks of init.sh, and how the run ended.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::package::Unpacked;
use crate::image::Arch;
use crate::{host, run};

/// Memory of a machine in MiB; it holds the archives twice while they are unpacked.
const MEMORY: &str = "1280";
/// Maximum run time of one machine.
const PATIENCE: Duration = Duration::from_secs(1800);
/// Memory and run time of a machine with a whole Kubernetes.
const MEMORY_OF_KUBERNETES: &str = "4096";
const PATIENCE_FOR_KUBERNETES: Duration = Duration::from_secs(3600);
/// Maximum time from the start to the first test; seconds on an idle machine.
const BOOT: Duration = Duration::from_secs(120);

pub(crate) struct Machine<'a> {
    pub(crate) kernel: &'a Unpacked,
    /// The archives, which are concatenated.
    pub(crate) archives: Vec<PathBuf>,
    /// File of the machine's disk, whose changes are discarded; only a whole Kubernetes has one.
    pub(crate) disk: Option<PathBuf>,
    /// Network namespace in which the machine runs and which it can reach; without one it has no network.
    pub(crate) namespace: Option<String>,
}

/// A line of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    /// The first process has started.
    Started,
    /// A program begins.
    Job(String),
    /// A program ended with this status.
    Ended(String, i32),
    /// The kernel reported an internal error.
    Complaint(String),
    /// MiB in use at the end.
    Memory(u32),
    /// All programs have run.
    Finished,
    /// Anything else, such as the output of programs.
    Text(String),
}

impl Line {
    fn of(text: &str) -> Self {
        let other = Self::Text(text.to_owned());
        let Some(mark) = text.strip_prefix("::") else {
            return other;
        };
        let (mark, rest) = mark.split_once(' ').unwrap_or((mark, ""));
        match mark {
            "started" => Self::Started,
            "job" => Self::Job(rest.to_owned()),
            "ended" => rest
                .rsplit_once(' ')
                .and_then(|(job, status)| Some(Self::Ended(job.to_owned(), status.parse().ok()?)))
                .unwrap_or(other),
            "complaint" => Self::Complaint(rest.to_owned()),
            "memory" => rest.parse().map_or(other, Self::Memory),
            "finished" => Self::Finished,
            _ => other,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Every program ran.
    Finished,
    /// No program began: the fault is in the kernel, QEMU or this task, not in a test.
    NeverStarted,
    /// The run exceeded its time limit.
    TooLong,
    /// The machine ended during the programs, for example by a kernel panic.
    Died,
}

impl Machine<'_> {
    /// Runs the machine and passes on every line at once.
    pub(crate) fn run(&self, mut take: impl FnMut(Line)) -> Result<End> {
        let scratch = tempfile::tempdir_in(&self.kernel.folder)?;
        let archive = scratch.path().join("initramfs");
        let mut join = Command::new("cat");
        run::run_quietly(join.args(&self.archives).stdout(File::create(&archive)?))?;
        let mut child = self.command(&archive)?.spawn().context("start QEMU")?;
        let output = child.stdout.take().context("a piped child has an output")?;
        let (send, lines) = mpsc::channel();
        let reader = thread::spawn(move || {
            for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
                let text = String::from_utf8_lossy(&line);
                if send.send(text.trim_end_matches('\r').to_owned()).is_err() {
                    return;
                }
            }
        });
        let patience = self
            .disk
            .as_ref()
            .map_or(PATIENCE, |_| PATIENCE_FOR_KUBERNETES);
        let start = Instant::now();
        let (mut started, mut finished) = (false, false);
        let end = loop {
            let limit = if started { patience } else { BOOT };
            match lines.recv_timeout(limit.saturating_sub(start.elapsed())) {
                Ok(text) => {
                    let line = Line::of(&text);
                    started |= line == Line::Started;
                    finished |= line == Line::Finished;
                    take(line);
                }
                Err(_) if finished => break End::Finished,
                Err(_) if !started => break End::NeverStarted,
                Err(RecvTimeoutError::Timeout) => break End::TooLong,
                Err(RecvTimeoutError::Disconnected) => break End::Died,
            }
        };
        // Ignore the error: a machine that has ended cannot be killed.
        let _ = child.kill();
        child.wait().context("wait for QEMU")?;
        let _ = reader.join();
        Ok(end)
    }

    /// File of the kernel's messages.
    pub(crate) fn console(&self) -> PathBuf {
        self.kernel.folder.join("console.log")
    }

    /// File of all output of programs, including tests that passed.
    pub(crate) fn output(&self) -> PathBuf {
        self.kernel.folder.join("output.log")
    }

    /// The last lines of the kernel's messages.
    pub(crate) fn last_words(&self) -> String {
        let text = fs::read(self.console()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    fn command(&self, archive: &Path) -> Result<Command> {
        let arch = self.kernel.kernel.arch;
        let qemu = format!("qemu-system-{}", arch.processor());
        let qemu = host::find(&qemu).with_context(|| format!("no {qemu}"))?;
        let (hardware, lines) = hardware(arch);
        let words = |command: &mut Command, words: &str| {
            command.args(words.split(' '));
        };
        let mut command = match &self.namespace {
            Some(name) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", name]).arg(qemu);
                words(&mut command, NETWORK);
                command
            }
            None => Command::new(qemu),
        };
        words(&mut command, OPTIONS);
        command
            .current_dir(run::root())
            .arg("-serial")
            .arg(format!("file:{}", self.console().display()));
        words(&mut command, hardware);
        let (mut disk, mut memory) = ("", MEMORY);
        if let Some(file) = &self.disk {
            let drive = format!("file={},if=virtio,format=raw,snapshot=on", file.display());
            command.args(["-drive", &drive]);
            (disk, memory) = ("disk=vda ", MEMORY_OF_KUBERNETES);
        }
        command
            .args(["-m", memory])
            .arg("-kernel")
            .arg(self.kernel.image())
            .arg("-initrd")
            .arg(archive)
            .arg("-append")
            .arg(format!("{lines} {disk}{KERNEL_OPTIONS}"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Ok(command)
    }
}

/// Options of every machine, with two processors.
const OPTIONS: &str =
    "-accel tcg,thread=multi -smp 2 -nodefaults -no-user-config -display none -no-reboot";
const KERNEL_OPTIONS: &str =
    "quiet loglevel=4 panic=-1 oops=panic random.trust_cpu=on mitigations=off";
/// Network options for access to an API server.
const NETWORK: &str =
    "-netdev user,id=uplink,ipv6=off -device virtio-net-pci,netdev=uplink,romfile=";

/// The options of QEMU and the kernel's command line, which differ between the two architectures. QEMU's first serial line is the kernel's console, the second carries the results. The
/// kernel passes `results`, which it does not know, to the first process as an environment variable.
fn hardware(arch: Arch) -> (&'static str, &'static str) {
    match arch {
        // Not microvm: without HPET and PM timer its clock cannot be calibrated on a busy machine,
        // and the boot hangs.
        Arch::Amd64 => (
            "-machine q35 -cpu max -serial stdio",
            "console=ttyS0 results=ttyS1",
        ),
        // Not `-cpu max`: emulated pointer authentication takes most of the time. This machine has only one
        // serial line, so the results need a PCI device.
        Arch::Arm64 => (
            "-machine virt,gic-version=3 -cpu neoverse-n1 \
             -chardev stdio,id=results -device pci-serial,chardev=results",
            "console=ttyAMA0 results=ttyS0",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_differ_from_the_output_of_programs() {
        assert_eq!(Line::of("::started 6.1.0-56-cloud-amd64"), Line::Started);
        assert_eq!(
            Line::of("::ended node 101"),
            Line::Ended("node".to_owned(), 101)
        );
        assert_eq!(Line::of("::finished"), Line::Finished);
        assert_eq!(Line::of("::memory 431"), Line::Memory(431));
        for text in [
            "test a::b ... ok",
            "::ended node",
            "::memory much",
            "",
            "::1 is IPv6",
        ] {
            assert_eq!(Line::of(text), Line::Text(text.to_owned()));
        }
    }
}
