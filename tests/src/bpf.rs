//! Small eBPF classifiers of the tests' own: put together instruction by instruction, loaded and
//! attached by `bpf(2)`. No compiler is needed, and none of it is pathproof's.
//!
//! What is attached is detached when its [`Attached`] is dropped.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use anyhow::{Context, Result, bail};

const PROG_LOAD: libc::c_int = 5;
const LINK_CREATE: libc::c_int = 28;
/// `BPF_PROG_TYPE_SCHED_CLS` and `BPF_TCX_INGRESS`.
const CLASSIFIER: u32 = 3;
const INGRESS: u32 = 46;
/// The verifier's words, where it refuses.
const LOG: usize = 64 * 1024;

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
        code.set(0, value).exit();
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

    /// `dst = *(src + offset)`, 4 bytes.
    pub fn load(&mut self, dst: Register, src: Register, offset: i16) -> &mut Self {
        self.push(word(0x61, dst, src, offset, 0))
    }

    /// `*(dst + offset) = src`, 4 bytes.
    pub fn put(&mut self, dst: Register, offset: i16, src: Register) -> &mut Self {
        self.push(word(0x63, dst, src, offset, 0))
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

/// A classifier in the kernel.
#[derive(Debug)]
pub struct Program(pub OwnedFd);

impl Program {
    /// Loads it; the kernel keeps 15 bytes of its name.
    pub fn load(name: &str, code: &Code) -> Result<Self> {
        let mut log = vec![0u8; LOG];
        let mut attr = LoadAttr {
            kind: CLASSIFIER,
            count: code.words.len() as u32,
            instructions: code.words.as_ptr() as u64,
            license: c"GPL".as_ptr() as u64,
            log_level: 1,
            log_size: log.len() as u32,
            log: log.as_mut_ptr() as u64,
            ..LoadAttr::default()
        };
        for (to, from) in attr.name.iter_mut().zip(name.bytes().take(15)) {
            *to = from;
        }
        match descriptor(PROG_LOAD, &mut attr) {
            Ok(program) => Ok(Self(program)),
            Err(error) => {
                let said = log.split(|byte| *byte == 0).next().unwrap_or_default();
                bail!("load {name}: {error}\n{}", String::from_utf8_lossy(said))
            }
        }
    }

    /// Attaches it, by TCX and at the tail, to what comes in by an interface of the calling thread's
    /// namespace.
    pub fn attach(self, device: u32) -> Result<Attached> {
        let mut attr = [0; 16];
        attr[..3].copy_from_slice(&[self.0.as_raw_fd() as u32, device, INGRESS]);
        let link = descriptor(LINK_CREATE, &mut attr).context("attach a classifier")?;
        Ok(Attached(link))
    }
}

/// The link of an attached program. Dropped, the program is detached.
#[derive(Debug)]
pub struct Attached(#[expect(dead_code, reason = "held open")] OwnedFd);
