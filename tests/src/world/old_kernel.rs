//! A kernel that can do less than this one: a seccomp filter in the agent's process answers bpf(2)
//! as an older kernel would. Nothing else of the machine is touched.

use std::io;

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JUMP, BPF_K, BPF_LD, BPF_RET, BPF_STMT, BPF_W};
use libc::{sock_filter, sock_fprog};

/// Commands of bpf(2) (linux/bpf.h).
const BPF_MAP_CREATE: u32 = 0;
const BPF_PROG_LOAD: u32 = 5;
const BPF_MAP_LOOKUP_BATCH: u32 = 24;
const BPF_MAP_DELETE_BATCH: u32 = 27;
const BPF_LINK_CREATE: u32 = 28;

/// Offsets in `struct seccomp_data` (linux/seccomp.h): the number of the call, and the low half of
/// its first argument.
const NUMBER: u32 = 0;
const COMMAND: u32 = if cfg!(target_endian = "little") {
    16
} else {
    20
};

/// What an older kernel lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OldKernel {
    /// Built without bpf(2).
    NoBpf,
    /// It does not know the kinds of maps.
    NoMaps,
    /// It does not know what programs are made of.
    NoPrograms,
    /// It has no links of the kind that TCX takes.
    NoTcx,
    /// It reads one element of a map at a time.
    NoBatchLookup,
    /// It deletes one element of a map at a time.
    NoBatchDelete,
}

impl OldKernel {
    /// Makes this thread, and whatever it starts, live on that kernel for good. Only calls that are
    /// async-signal-safe: may be used between fork and exec.
    pub fn begin(self) -> io::Result<()> {
        let mut filter = self.filter();
        let program = sock_fprog {
            len: filter.len() as u16,
            filter: filter.as_mut_ptr(),
        };
        // SAFETY: the filter outlives the calls, which copy it; nothing else is handed over.
        let failed = unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(
                    libc::PR_SET_SECCOMP,
                    libc::SECCOMP_MODE_FILTER,
                    &raw const program,
                ) != 0
        };
        if failed {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Other calls and other commands are allowed; the last line is the refusal.
    fn filter(self) -> [sock_filter; 6] {
        let (command, error) = match self {
            Self::NoBpf => (None, libc::ENOSYS),
            Self::NoMaps => (Some(BPF_MAP_CREATE), libc::EINVAL),
            Self::NoPrograms => (Some(BPF_PROG_LOAD), libc::EINVAL),
            Self::NoTcx => (Some(BPF_LINK_CREATE), libc::EINVAL),
            Self::NoBatchLookup => (Some(BPF_MAP_LOOKUP_BATCH), libc::EINVAL),
            Self::NoBatchDelete => (Some(BPF_MAP_DELETE_BATCH), libc::EINVAL),
        };
        let answer = |answer| statement(BPF_RET | BPF_K, answer);
        [
            statement(BPF_LD | BPF_W | BPF_ABS, NUMBER),
            jump_if(libc::SYS_bpf as u32, 0, 2),
            statement(BPF_LD | BPF_W | BPF_ABS, COMMAND),
            // Without a command every one is refused.
            jump_if(command.unwrap_or_default(), 1, u8::from(command.is_none())),
            answer(libc::SECCOMP_RET_ALLOW),
            answer(libc::SECCOMP_RET_ERRNO | error as u32),
        ]
    }
}

fn statement(code: u32, value: u32) -> sock_filter {
    // SAFETY: makes a value of its arguments.
    unsafe { BPF_STMT(code as u16, value) }
}

/// How many lines are left out where the value is this one, and where it is another.
fn jump_if(value: u32, same: u8, other: u8) -> sock_filter {
    // SAFETY: makes a value of its arguments.
    unsafe { BPF_JUMP((BPF_JMP | BPF_JEQ | BPF_K) as u16, value, same, other) }
}
