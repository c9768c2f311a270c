//! bpf(2) commands that aya lacks.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Calls a command that returns a new descriptor.
pub fn descriptor<T: ?Sized>(command: libc::c_int, attr: &mut T) -> io::Result<OwnedFd> {
    let fd = call(command, attr)?;
    // SAFETY: the kernel just gave this descriptor to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Calls any command, with the member of `union bpf_attr` that it reads.
pub fn call<T: ?Sized>(command: libc::c_int, attr: &mut T) -> io::Result<libc::c_long> {
    let length = size_of_val(attr);
    let attr = std::ptr::from_mut(attr).cast::<libc::c_void>();
    // SAFETY: the kernel reads and writes no more than the length given, and checks pointers.
    match unsafe { libc::syscall(libc::SYS_bpf, command, attr, length) } {
        number @ 0.. => Ok(number),
        _ => Err(io::Error::last_os_error()),
    }
}
