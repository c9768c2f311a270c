//! Small eBPF programs of the tests' own: put together instruction by instruction, loaded and
//! attached by `bpf(2)`. No compiler is needed, and none of it is pathproof's.
//!
//! What is attached is detached when its [`Attached`] is dropped.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use anyhow::{Context, Result, bail};

mod map;

pub use map::{Entry, Map};

const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
/// The verifier's words, where it refuses.
const LOG: usize = 64 * 1024;

/// Place to attach a program, which decides what the program is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// TCX, what comes in by an interface; at the tail.
    Ingress,
    /// TCX, what leaves by it; at the tail.
    Egress,
    /// Generic XDP at an interface.
    Xdp,
    /// IPv4 sockets of a cgroup that connect.
    Connect4,
    /// IPv6 sockets of a cgroup that connect.
    Connect6,
    /// IPv4 sockets of a cgroup that were bound.
    PostBind4,
}

impl Hook {
    fn numbers(self) -> Numbers {
        let (program, expected, link, flags) = match self {
            Self::Ingress => (3, 0, 46, 0),
            Self::Egress => (3, 0, 47, 0),
            // In the stack, for every kind of device.
            Self::Xdp => (6, 0, 37, 2),
            Self::Connect4 => (18, 10, 10, 0),
            Self::Connect6 => (18, 11, 11, 0),
            Self::PostBind4 => (9, 12, 12, 0),
        };
        Numbers {
            program,
            expected,
            link,
            flags,
        }
    }
}

/// A hook in linux/bpf.h.
struct Numbers {
    /// `bpf_prog_type`.
    program: u32,
    /// `bpf_attach_type` that the program expects.
    expected: u32,
    /// `bpf_attach_type` of its link.
    link: u32,
    /// Flags of the link.
    flags: u32,
}

pub type Register = u8;

/// Instructions under way.
#[derive(Clone, Debug, Default)]
pub struct Code {
    words: Vec<u64>,
    /// Jumps to the end of the block under way.
    open: Vec<usize>,
}

const fn word(code: u8, dst: Register, src: Register, offset: i16, value: i32) -> u64 {
    code as u64
        | (dst as u64) << 8
        | (src as u64) << 12
        | (offset as u16 as u64) << 16
        | (value as u32 as u64) << 32
}

impl Code {
    /// A program that does nothing but return a number.
    pub fn returning(value: i32) -> Self {
        let mut code = Self::default();
        code.answer(value);
        code
    }

    fn push(&mut self, word: u64) -> &mut Self {
        self.words.push(word);
        self
    }

    /// `dst = value`, 32 bits of it.
    pub fn set(&mut self, dst: Register, value: i32) -> &mut Self {
        self.push(word(0xb4, dst, 0, 0, value))
    }

    /// `dst = src`.
    pub fn copy(&mut self, dst: Register, src: Register) -> &mut Self {
        self.push(word(0xbf, dst, src, 0, 0))
    }

    /// `dst = src`, 32 bits of it.
    pub fn copy32(&mut self, dst: Register, src: Register) -> &mut Self {
        self.push(word(0xbc, dst, src, 0, 0))
    }

    /// Any arithmetic with a number, by its opcode.
    pub fn alu(&mut self, code: u8, dst: Register, value: i32) -> &mut Self {
        self.push(word(code, dst, 0, 0, value))
    }

    /// `dst` = a map, by its descriptor: two instructions.
    pub fn map(&mut self, dst: Register, map: RawFd) -> &mut Self {
        self.push(word(0x18, dst, 1, 0, map)).push(0)
    }

    /// `dst += value`.
    pub fn add(&mut self, dst: Register, value: i32) -> &mut Self {
        self.push(word(0x07, dst, 0, 0, value))
    }

    /// `dst = *(src + offset)`, of 1, 2 or 4 bytes.
    pub fn load(&mut self, size: usize, dst: Register, src: Register, offset: i16) -> &mut Self {
        let code = match size {
            1 => 0x71,
            2 => 0x69,
            _ => 0x61,
        };
        self.push(word(code, dst, src, offset, 0))
    }

    /// `*(dst + offset) = value`, 4 bytes.
    pub fn store(&mut self, dst: Register, offset: i16, value: i32) -> &mut Self {
        self.push(word(0x62, dst, 0, offset, value))
    }

    /// `*(dst + offset) = src`, 4 bytes.
    pub fn put(&mut self, dst: Register, offset: i16, src: Register) -> &mut Self {
        self.push(word(0x63, dst, src, offset, 0))
    }

    /// Goes on behind the block under way unless the register holds `value`.
    pub fn only_if(&mut self, register: Register, value: i32) -> &mut Self {
        self.open.push(self.words.len());
        self.push(word(0x56, register, 0, 0, value))
    }

    /// Goes on behind the block under way where `register > limit`.
    pub fn only_up_to(&mut self, register: Register, limit: Register) -> &mut Self {
        self.open.push(self.words.len());
        self.push(word(0x2d, register, limit, 0, 0))
    }

    /// Ends the block under way.
    pub fn end(&mut self) -> &mut Self {
        let here = self.words.len();
        for at in self.open.drain(..) {
            let offset = (here - at - 1) as i16;
            self.words[at] |= u64::from(offset as u16) << 16;
        }
        self
    }

    /// Calls a helper by its number.
    pub fn call(&mut self, helper: i32) -> &mut Self {
        self.push(word(0x85, 0, 0, 0, helper))
    }

    /// Returns what register 0 holds.
    pub fn exit(&mut self) -> &mut Self {
        self.push(word(0x95, 0, 0, 0, 0))
    }

    /// Returns a number.
    pub fn answer(&mut self, value: i32) -> &mut Self {
        self.set(0, value).exit()
    }
}

#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel: u32,
    flags: u32,
    name: [u8; 16],
    device: u32,
    attach_type: u32,
}

/// A command of bpf(2) that gives a new descriptor.
pub fn descriptor<T: ?Sized>(command: libc::c_int, attr: &mut T) -> io::Result<OwnedFd> {
    let fd = call(command, attr)?;
    // SAFETY: the kernel just gave this descriptor to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Any command of bpf(2), with the arm of `union bpf_attr` that it reads.
pub fn call<T: ?Sized>(command: libc::c_int, attr: &mut T) -> io::Result<libc::c_long> {
    let length = size_of_val(attr);
    let attr = std::ptr::from_mut(attr).cast::<libc::c_void>();
    // SAFETY: the kernel reads and writes no more than the length given, and checks pointers.
    match unsafe { libc::syscall(libc::SYS_bpf, command, attr, length) } {
        number @ 0.. => Ok(number),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A program in the kernel.
#[derive(Debug)]
pub struct Program(pub OwnedFd, Hook);

impl Program {
    /// Loads it; the kernel keeps 15 bytes of its name.
    pub fn load(hook: Hook, name: &str, code: &Code) -> Result<Self> {
        let mut log = vec![0u8; LOG];
        let numbers = hook.numbers();
        let mut attr = LoadAttr {
            kind: numbers.program,
            count: code.words.len() as u32,
            instructions: code.words.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            log_level: 1,
            log_size: log.len() as u32,
            log: log.as_mut_ptr() as u64,
            attach_type: numbers.expected,
            ..LoadAttr::default()
        };
        for (to, from) in attr.name.iter_mut().zip(name.bytes().take(15)) {
            *to = from;
        }
        match descriptor(PROG_LOAD, &mut attr) {
            Ok(program) => Ok(Self(program, hook)),
            Err(error) => {
                let said = log.split(|byte| *byte == 0).next().unwrap_or_default();
                bail!("load {name}: {error}\n{}", String::from_utf8_lossy(said))
            }
        }
    }

    /// Attaches it to an interface of the calling thread's namespace, or to a cgroup (a descriptor).
    pub fn attach(self, target: u32) -> Result<Attached> {
        let Numbers { link, flags, .. } = self.1.numbers();
        let mut attr = [0; 16];
        attr[..4].copy_from_slice(&[self.0.as_raw_fd() as u32, target, link, flags]);
        let link = descriptor(LINK_CREATE, &mut attr);
        let link = link.with_context(|| format!("attach to {:?}", self.1))?;
        Ok(Attached {
            link,
            program: self,
        })
    }
}

/// An attached program. Dropped, it is detached.
#[derive(Debug)]
pub struct Attached {
    #[expect(dead_code, reason = "held open")]
    link: OwnedFd,
    #[expect(dead_code, reason = "held open")]
    program: Program,
}
