//! Closes connections without leaving anything in the kernel. A socket that is closed in the usual way stays
//! until its client has acknowledged everything, for minutes if the client does not answer, and its memory
//! counts towards the agent's container.

use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use socket2::SockRef;

/// Makes the coming close of a connection a reset, which discards what is unsent or not acknowledged.
pub(super) fn reset(socket: &impl AsFd) {
    // If this fails, the connection is closed in the usual way.
    let _ = SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

/// Whether the client has not yet acknowledged everything that was sent.
pub(super) fn is_unread(socket: &impl AsRawFd) -> bool {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the pointer is to a local that outlives the call, which writes an integer there.
    let asked = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    asked == 0 && bytes > 0
}
