//! `cargo xtask ahead STEP`: builds the tools of a step of CI, with idle time alone.
//!
//! While tests wait for packets, the processors are free for the tools of later steps. CI starts one
//! such process after another; their output goes to files. A step that begins before its tools are
//! ready waits for them, by the locks of cargo and of [`run::alone`].

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};

use anyhow::{Context, Result};

use crate::run;

/// Begins, in the order of the steps. A failure repeats in the step itself, which reports it.
pub(crate) fn begin(steps: Vec<&'static str>) -> JoinHandle<()> {
    thread::spawn(move || {
        for step in steps {
            if let Err(error) = idle(step) {
                eprintln!("building ahead for {step}: {error:#}");
            }
        }
    })
}

fn idle(step: &str) -> Result<()> {
    let log = run::root().join(format!("target/ahead-{step}.log"));
    let file = File::create(&log).with_context(|| format!("make {}", log.display()))?;
    let mut command = Command::new(std::env::current_exe()?);
    command
        .args(["ahead", step])
        .stdin(Stdio::null())
        .stdout(file.try_clone()?)
        .stderr(file);
    let status = start(&mut command)
        .with_context(|| format!("cannot start {}", run::shown(&command)))?
        .wait()?;
    anyhow::ensure!(status.success(), "{status}; see {}", log.display());
    Ok(())
}

/// Starts a command that gets idle time alone, and ends with the thread that starts it.
#[cfg(target_os = "linux")]
pub(crate) fn start(command: &mut Command) -> std::io::Result<Child> {
    use std::os::unix::process::CommandExt as _;

    // SAFETY: two calls into the kernel, one with a pointer to a value on the stack.
    unsafe {
        command.pre_exec(|| {
            end_with_this_task();
            only_idle_time()
        });
    }
    command.spawn()
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn start(command: &mut Command) -> std::io::Result<Child> {
    command.spawn()
}

/// Programs that the task has just started run to their own end; no more are started.
#[cfg(target_os = "linux")]
fn end_with_this_task() {
    // SAFETY: the option takes a number, and fails for none that is a signal.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
}

/// Programs that the task starts in turn have this class too.
#[cfg(target_os = "linux")]
fn only_idle_time() -> std::io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: the parameters outlive the call; 0 is the calling process.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const parameters) };
    if result == 0 {
        Ok(())
    } else {
        Err(std::io::Error::last_os_error())
    }
}
