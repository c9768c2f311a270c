//! While tests wait for packets, the processors are free for what later steps of CI need: servers
//! and tools, the static program, the fuzzer. It is built with idle time alone, in a process of its
//! own, whose words go to a file; a step that comes before its part is ready waits for it, by the
//! locks of cargo and of [`run::alone`].

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

use crate::{host, run};

/// In the order in which they are wanted; without root there is no server to be run.
const SERVERS: &[&str] = &["setup-cluster", "--all", "--cilium"];
const TASKS: [&[&str]; 2] = [&["image", "--program-only"], &["fuzz", "--build"]];

/// Begins. What fails here fails again in the step that needs it, and is said there.
pub(crate) fn begin() -> JoinHandle<()> {
    thread::spawn(|| {
        let servers = host::is_root().then_some(SERVERS);
        for task in servers.into_iter().chain(TASKS) {
            if let Err(error) = idle(task) {
                eprintln!("building ahead, {}: {error:#}", task.join(" "));
            }
        }
    })
}

fn idle(task: &[&str]) -> Result<()> {
    let log = log(task[0]);
    let status = start(task, &log)?.wait()?;
    anyhow::ensure!(status.success(), "{status}; see {}", log.display());
    Ok(())
}

fn log(task: &str) -> PathBuf {
    run::root().join(format!("target/ahead-{task}.log"))
}

fn start(task: &[&str], log: &Path) -> Result<Child> {
    let file = File::create(log).with_context(|| format!("make {}", log.display()))?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(task)
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file);
    // SAFETY: two calls into the kernel, one with a pointer to a value on the stack.
    unsafe {
        command.pre_exec(|| {
            end_with_this_task();
            only_idle_time()
        });
    }
    command
        .spawn()
        .with_context(|| format!("cannot start {}", task.join(" ")))
}

/// Programs that the task has just started run to their own end; no more are started.
fn end_with_this_task() {
    // SAFETY: the option takes a number, and fails for none that is a signal.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

/// Programs that the task starts in turn have this class too.
fn only_idle_time() -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters outlive the call; 0 is the calling process.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
