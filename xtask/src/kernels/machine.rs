//! One run of a virtual machine: QEMU with its software processor, a kernel, an archive; what the
//! guest wrote, between the marks of init.sh, and how it ended.

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

/// Processors of the guest.
const PROCESSORS: &str = "2";
/// Maximum time from the start to the first test; seconds on an idle machine.
const BOOT: Duration = Duration::from_secs(120);

/// A machine and its contents.
pub(crate) struct Machine<'a> {
    pub(crate) kernel: &'a Unpacked,
    /// The archives, one behind the other.
    pub(crate) archives: Vec<PathBuf>,
    /// The file of its disk, which it changes for itself alone.
    pub(crate) disk: Option<PathBuf>,
    /// MiB.
    pub(crate) memory: u32,
    /// Maximum run time in all.
    pub(crate) patience: Duration,
    /// The network namespace that it reaches, and runs in; without one it has no network.
    pub(crate) namespace: Option<String>,
}

/// A line of the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Line {
    /// The first process runs on this kernel.
    Started(String),
    /// A program begins.
    Job(String),
    /// It ended with this status.
    Ended(String, i32),
    /// The kernel complained about itself.
    Complaint(String),
    /// MiB that were in use at the end.
    Memory(u32),
    /// All programs ran.
    Finished,
    /// Anything else: what programs print.
    Text(String),
}

impl Line {
    fn of(text: &str) -> Self {
        let other = || Self::Text(text.to_owned());
        let Some((mark, rest)) = text.strip_prefix("::").map(|rest| {
            let (mark, rest) = rest.split_once(' ').unwrap_or((rest, ""));
            (mark, rest.to_owned())
        }) else {
            return other();
        };
        match mark {
            "started" => Self::Started(rest),
            "job" => Self::Job(rest),
            "ended" => rest
                .rsplit_once(' ')
                .and_then(|(job, status)| Some(Self::Ended(job.to_owned(), status.parse().ok()?)))
                .unwrap_or_else(other),
            "complaint" => Self::Complaint(rest),
            "memory" => rest.parse().map_or_else(|_| other(), Self::Memory),
            "finished" => Self::Finished,
            _ => other(),
        }
    }
}

/// End of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Every program ran.
    Finished,
    /// No program began: the kernel, QEMU or this task is to blame, and no test.
    NeverStarted,
    /// It was ended for want of time.
    TooLong,
    /// It went away amid the programs: the kernel panicked, perhaps.
    Died,
}

impl Machine<'_> {
    /// Runs it and hands over every line as it comes.
    pub(crate) fn run(&self, mut take: impl FnMut(Line)) -> Result<End> {
        let scratch = tempfile::tempdir_in(&self.kernel.folder)?;
        let archive = scratch.path().join("initramfs");
        join(&self.archives, &archive)?;
        let console = self.console();
        let mut child = self
            .command(&archive, &console)?
            .spawn()
            .context("start QEMU")?;
        let output = child.stdout.take().context("a piped child has an output")?;
        let (send, lines) = mpsc::channel();
        let reader = thread::spawn(move || {
            let mut reader = BufReader::new(output);
            let mut bytes = Vec::new();
            while reader
                .read_until(b'\n', &mut bytes)
                .is_ok_and(|count| count > 0)
            {
                let text = String::from_utf8_lossy(&bytes);
                if send
                    .send(text.trim_end_matches(['\n', '\r']).to_owned())
                    .is_err()
                {
                    return;
                }
                bytes.clear();
            }
        });
        let start = Instant::now();
        let (mut started, mut end) = (false, None);
        loop {
            let limit = if started {
                self.patience
            } else {
                BOOT.min(self.patience)
            };
            match lines.recv_timeout(limit.saturating_sub(start.elapsed())) {
                Ok(text) => {
                    let line = Line::of(&text);
                    started |= matches!(line, Line::Started(_));
                    if line == Line::Finished {
                        end = Some(End::Finished);
                    }
                    take(line);
                }
                Err(RecvTimeoutError::Timeout) => {
                    end = end.or(started.then_some(End::TooLong));
                    break;
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        // An error is ignored: a machine that has ended of itself cannot be killed.
        let _ = child.kill();
        child.wait().context("wait for QEMU")?;
        let _ = reader.join();
        Ok(end.unwrap_or(if started {
            End::Died
        } else {
            End::NeverStarted
        }))
    }

    /// File of the kernel's own messages.
    pub(crate) fn console(&self) -> PathBuf {
        self.kernel.folder.join("console.log")
    }

    /// File of all output of programs, also of tests that passed.
    pub(crate) fn output(&self) -> PathBuf {
        self.kernel.folder.join("output.log")
    }

    /// The end of the kernel's own words.
    pub(crate) fn last_words(&self) -> String {
        let text = fs::read(self.console()).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    fn command(&self, archive: &Path, console: &Path) -> Result<Command> {
        let hardware = Hardware::of(self.kernel.kernel.arch);
        let qemu = hardware.program;
        let qemu = host::find(qemu).with_context(|| format!("no {qemu}"))?;
        let mut command = Command::new("ip");
        match &self.namespace {
            Some(name) => {
                command.args(["netns", "exec", name]).arg(qemu);
                let network = "user,id=uplink,ipv6=off";
                command.args([
                    "-netdev",
                    network,
                    "-device",
                    "virtio-net-pci,netdev=uplink,romfile=",
                ]);
            }
            None => command = Command::new(qemu),
        }
        command
            .current_dir(run::root())
            .args(["-accel", "tcg,thread=multi", "-cpu", hardware.processor])
            .args(["-machine", hardware.machine, "-smp", PROCESSORS, "-m"])
            .arg(self.memory.to_string())
            .args([
                "-nodefaults",
                "-no-user-config",
                "-display",
                "none",
                "-no-reboot",
            ])
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .args(hardware.results)
            .arg("-kernel")
            .arg(self.kernel.image())
            .arg("-initrd")
            .arg(archive);
        let mut disk = "";
        if let Some(file) = &self.disk {
            let file = file.display();
            command.args([
                "-drive",
                &format!("file={file},if=virtio,format=raw,snapshot=on"),
            ]);
            disk = "disk=vda ";
        }
        command
            .arg("-append")
            .arg(format!(
                "{} {disk}quiet loglevel=4 panic=-1 oops=panic random.trust_cpu=on mitigations=off",
                hardware.lines
            ))
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        Ok(command)
    }
}

/// Differences between the machines of two architectures.
struct Hardware {
    program: &'static str,
    machine: &'static str,
    processor: &'static str,
    /// Options of the serial line that carries results; the first one is the kernel's console.
    results: &'static [&'static str],
    /// Names of both lines on the kernel's command line. The first process has `results` in its
    /// environment, as the kernel does with words that it does not know.
    lines: &'static str,
}

impl Hardware {
    fn of(arch: Arch) -> Self {
        match arch {
            Arch::Amd64 => Self {
                program: "qemu-system-x86_64",
                // Not microvm: without HPET and PM timer its clock cannot be calibrated on a busy
                // machine, and it hangs at boot.
                machine: "q35",
                processor: "max",
                results: &["-serial", "stdio"],
                lines: "console=ttyS0 results=ttyS1",
            },
            Arch::Arm64 => Self {
                program: "qemu-system-aarch64",
                machine: "virt,gic-version=3",
                // Not max: emulated pointer authentication takes most of the time.
                processor: "neoverse-n1",
                // This machine has one serial line, of another kind.
                results: &[
                    "-chardev",
                    "stdio,id=results",
                    "-device",
                    "pci-serial,chardev=results",
                ],
                lines: "console=ttyAMA0 results=ttyS0",
            },
        }
    }
}

fn join(archives: &[PathBuf], to: &Path) -> Result<()> {
    let mut whole = File::create(to)?;
    for archive in archives {
        let mut part =
            File::open(archive).with_context(|| format!("open {}", archive.display()))?;
        std::io::copy(&mut part, &mut whole)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_told_from_what_programs_print() {
        assert_eq!(
            Line::of("::started 6.1.0-56-cloud-amd64"),
            Line::Started("6.1.0-56-cloud-amd64".to_owned())
        );
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
