//! Stops some threads of another process by ptrace(2), as a debugger does. A signal such as SIGSTOP would
//! stop all of them.

use std::marker::PhantomData;
use std::{fs, io};

use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

use crate::prelude::*;

/// The stopped threads, which run again when this value is dropped. The value stays in the thread that made
/// it, because only that thread may let the others run.
#[derive(Debug)]
pub struct StoppedThreads {
    threads: Vec<i32>,
    _stays: PhantomData<*const ()>,
}

impl StoppedThreads {
    /// Stops the threads of a process, except those with this name.
    pub fn all_but(name: &str, pid: u32) -> io::Result<Self> {
        let mut stopped = Self {
            threads: Vec::new(),
            _stays: PhantomData,
        };
        // List the threads again each time, because one that still runs may start another.
        loop {
            let all = threads(pid)?;
            let left = all
                .iter()
                .find(|(thread, of)| of != name && !stopped.threads.contains(thread));
            let Some((thread, _)) = left else {
                return Ok(stopped);
            };
            stopped.stop(pid, *thread)?;
        }
    }

    fn stop(&mut self, pid: u32, thread: i32) -> io::Result<()> {
        // A thread that sleeps in the kernel holds no lock that the remaining threads need.
        let slept = until(PATIENCE, || sleeps(pid, thread).then_some(()));
        slept.ok_or(io::ErrorKind::TimedOut)?;
        trace(libc::PTRACE_SEIZE, thread)?;
        self.threads.push(thread);
        trace(libc::PTRACE_INTERRUPT, thread)?;
        // Take the notice of the stop here. Otherwise `Child::try_wait` would take it for an exit.
        waitpid(Pid::from_raw(thread), Some(WaitPidFlag::__WALL))?;
        Ok(())
    }
}

impl Drop for StoppedThreads {
    fn drop(&mut self) {
        for thread in &self.threads {
            // This fails if the process was killed, and then there is nothing left to do.
            let _ = trace(libc::PTRACE_DETACH, *thread);
        }
    }
}

/// Ids and names of the threads of a process.
fn threads(pid: u32) -> io::Result<Vec<(i32, String)>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/task"))? {
        let entry = entry?;
        let thread = entry.file_name().to_string_lossy().parse();
        // Leave out a thread that has just ended.
        let name = fs::read_to_string(entry.path().join("comm"));
        if let (Ok(thread), Ok(name)) = (thread, name) {
            all.push((thread, name.trim_end().to_owned()));
        }
    }
    Ok(all)
}

fn sleeps(pid: u32, thread: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).unwrap_or_default();
    // The state follows the thread's name, which is in parentheses.
    let state = stat.rsplit(") ").next();
    state.is_some_and(|state| state.starts_with('S'))
}

/// The system call itself, because C libraries declare the type of `request` differently.
fn trace(request: impl Into<i64>, thread: i32) -> io::Result<()> {
    let (request, thread): (i64, i64) = (request.into(), thread.into());
    // SAFETY: the requests that are used here have no arguments, and touch no memory of this process.
    let result = unsafe { libc::syscall(libc::SYS_ptrace, request, thread, 0_i64, 0_i64) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
