//! Locks of starting agents, in the state folder. The kernel releases a lock when the process that holds it
//! ends.
//!
//! Agents share the host's network, so until a new agent has taken over the admin port, kubelet's probes of
//! the new pod reach the old agent. Without these locks the new pod would become ready, and the old one
//! would be removed, while the kernel still verifies the new agent's eBPF programs. The verification takes
//! minutes on a node without a free processor.

use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::time::Duration;
use std::{io, thread};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};

use crate::files;

const FILE: &str = "starting";
/// Number of attempts to get the lock, and the pause between them.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(5);

/// Marks this agent as starting while the value lives.
pub struct Starting {
    _lock: Option<File>,
}

impl Starting {
    /// Takes the lock. Without a state folder there is no lock, because no other agent could see it.
    pub fn begin(state_dir: Option<&Path>) -> Self {
        let lock = state_dir.map(lock).transpose();
        let lock = lock.unwrap_or_else(|error| {
            tracing::warn!(%error, "a predecessor cannot know that this agent is starting: during \
                                    an update the new pod may be called ready too early");
            None
        });
        Self { _lock: lock }
    }
}

/// If several agents start at once, only the first gets the lock, which is enough to show that an agent is
/// starting. Attempts are repeated, because a request to `/agent/startupz` holds the lock for a moment.
fn lock(dir: &Path) -> io::Result<File> {
    files::make_private(dir)?;
    let file = File::options()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(dir.join(FILE))?;
    for _ in 0..TRIES {
        match set(&file, libc::F_WRLCK) {
            Err(Errno::EAGAIN) => thread::sleep(PAUSE),
            tried => return Ok(tried.map(|()| file)?),
        }
    }
    Err(io::ErrorKind::WouldBlock.into())
}

/// Locks the file for as long as this descriptor is open. `flock` is not used, because it gives an
/// exclusive lock even to a process that can only read the folder, which would then appear as a starting
/// agent.
fn set(file: &File, kind: i32) -> nix::Result<()> {
    let whole = libc::flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&whole)).map(drop)
}

/// Whether an agent with this state folder is starting. Concurrent calls do not affect each other, because
/// their locks are shared.
pub fn is_any_starting(state_dir: &Path) -> bool {
    let file = File::open(state_dir.join(FILE));
    file.is_ok_and(|file| set(&file, libc::F_RDLCK) == Err(Errno::EAGAIN))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// For example, a pod that mounts the node's /run read-only.
    #[test]
    fn a_process_that_can_only_read_does_not_look_like_a_starting_agent() {
        let dir = tempfile::tempdir().unwrap();
        drop(Starting::begin(Some(dir.path())));
        let stranger = File::open(dir.path().join(FILE)).unwrap();
        stranger.lock().unwrap();
        assert!(set(&stranger, libc::F_WRLCK).is_err());
        set(&stranger, libc::F_RDLCK).unwrap();
        assert!(!is_any_starting(dir.path()));
    }

    #[test]
    fn an_agent_is_starting_until_it_has_started() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        assert!(!is_any_starting(&state), "no agent was starting");
        let one = Starting::begin(Some(&state));
        let other = Starting::begin(Some(&state));
        assert!(is_any_starting(&state));
        drop(one);
        assert!(!is_any_starting(&state), "the second has no lock");
        drop(other);
        let _again = Starting::begin(Some(&state));
        assert!(is_any_starting(&state));
        files::remove_all(&state).unwrap();
        assert!(!state.exists());
    }
}
