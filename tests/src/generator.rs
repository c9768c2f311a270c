//! Another connection for every run of BPF_PROG_TEST_RUN: a small program that writes the next
//! client, server and initial sequence number into the test packet and then calls the program under
//! test (a tail call). So a million fresh connections are one system call, and what is measured is
//! what a burst of them costs, not what the system call left of the caches. What the generator
//! itself costs is in the peer's figure too: the empty program, called by a generator of its own.
//!
//! It changes packets, so it is loaded here, from instructions, and is no part of the object.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use anyhow::{Context, Result};
use aya::programs::SchedClassifier;

use crate::bpf::{call, descriptor};

/// Which packet of a connection is made, by what is written where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// From the server to the client: a SYN-ACK; else a SYN.
    pub answer: bool,
    /// The server is an endpoint; else it is the frontend.
    pub endpoint: bool,
}

/// Addresses that the generator chooses from. A connection's are those of its number.
#[derive(Clone, Copy, Debug)]
pub struct Ranges {
    /// The first client; there are 2^22 behind it, and its lower bits are zero.
    pub clients: u32,
    /// The first frontend.
    pub frontends: u32,
    /// How many there are, one after the other.
    pub frontend_count: u32,
    /// The first endpoint.
    pub endpoints: u32,
    /// How many there are. That of a frontend is its own number times `per_frontend`, modulo this.
    pub endpoint_count: u32,
    /// See above.
    pub per_frontend: u32,
}

/// A loaded generator.
pub struct Generator {
    program: OwnedFd,
    /// Holds the program under test.
    _targets: OwnedFd,
}

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const PROG_TEST_RUN: libc::c_int = 10;
const PROG_ARRAY: u32 = 3;
const SCHED_CLS: u32 = 3;
/// Bytes of Ethernet, IPv4 and the part of TCP that is written.
const PACKET: i32 = 54;
/// Bytes of `struct __sk_buff`, and offsets in it.
const CONTEXT_LEN: usize = 192;
const MARK: i16 = 8;
const IFINDEX: usize = 40;
const DATA: i16 = 76;
const DATA_END: i16 = 80;

impl Generator {
    /// Makes one that calls `target`.
    pub fn new(target: &SchedClassifier, shape: Shape, ranges: &Ranges) -> Result<Self> {
        // union bpf_attr: map_type, key_size, value_size, max_entries.
        let targets = descriptor(MAP_CREATE, &mut [PROG_ARRAY, 4, 4, 1]).context("make a map")?;
        let (key, value) = (0_u32, target.fd()?.as_fd().as_raw_fd() as u32);
        // map_fd and padding, key, value, flags.
        let mut update = [
            u64::from(targets.as_raw_fd() as u32),
            &raw const key as u64,
            &raw const value as u64,
            0,
        ];
        call(MAP_UPDATE_ELEM, &mut update).context("put the program under test into a map")?;
        let code = instructions(shape, ranges, targets.as_raw_fd());
        let license = c"Dual MIT/GPL";
        // prog_type and insn_cnt, insns, license, no log.
        let mut load = [0_u64; 16];
        load[0] = u64::from(SCHED_CLS) | (code.len() as u64) << 32;
        load[1] = code.as_ptr() as u64;
        load[2] = license.as_ptr() as u64;
        let program = descriptor(PROG_LOAD, &mut load).context("load the generator")?;
        Ok(Self {
            program,
            _targets: targets,
        })
    }

    /// Runs `count` connections, the first of which has the number `first`, as if their packets
    /// crossed the device. The kernel's mean of one run, in nanoseconds.
    pub fn run(&self, packet: &[u8], device: u32, first: u32, count: u32) -> Result<u32> {
        let mut context = [0_u8; CONTEXT_LEN];
        context[MARK as usize..MARK as usize + 4].copy_from_slice(&first.to_ne_bytes());
        context[IFINDEX..IFINDEX + 4].copy_from_slice(&device.to_ne_bytes());
        // prog_fd, retval, sizes of data in and out, data in, data out, repeat and duration, sizes
        // of context in and out, context in, context out, flags and cpu, batch size.
        let mut attr = [0_u64; 10];
        attr[0] = u64::from(self.program.as_raw_fd() as u32);
        attr[1] = packet.len() as u64;
        attr[2] = packet.as_ptr() as u64;
        attr[4] = u64::from(count);
        attr[5] = context.len() as u64;
        attr[6] = context.as_ptr() as u64;
        call(PROG_TEST_RUN, &mut attr).context("run the generator")?;
        Ok((attr[4] >> 32) as u32)
    }
}

/// The program. The number of a connection is the packet's mark, raised with each run. It is
/// multiplied by odd constants, so that numbers that follow each other have nothing in common, and
/// no two of 2^32 the same initial sequence number.
fn instructions(shape: Shape, ranges: &Ranges, targets: i32) -> Vec<u64> {
    const SOURCE: i16 = 26;
    const DESTINATION: i16 = 30;
    const SEQUENCE: i16 = 38;
    const ACKNOWLEDGED: i16 = 42;
    let (client_at, server_at) = if shape.answer {
        (DESTINATION, SOURCE)
    } else {
        (SOURCE, DESTINATION)
    };
    let sequence_at = if shape.answer { ACKNOWLEDGED } else { SEQUENCE };

    let mut code = vec![
        op(MOV64_REG, 6, 1, 0, 0),
        op(LOAD_WORD, 7, 6, MARK, 0),
        op(MOV32_REG, 1, 7, 0, 0),
        op(ADD32, 1, 0, 0, 1),
        op(STORE_WORD, 6, 1, MARK, 0),
        op(LOAD_WORD, 2, 6, DATA, 0),
        op(LOAD_WORD, 3, 6, DATA_END, 0),
        op(MOV64_REG, 4, 2, 0, 0),
        op(ADD64, 4, 0, 0, PACKET),
    ];
    let mut body = vec![
        op(MOV32_REG, 1, 7, 0, 0),
        op(MUL32, 1, 0, 0, 0x9e37_79b1_u32 as i32),
        op(ADD32, 1, 0, 0, i32::from(shape.answer)),
        op(TO_BE, 1, 0, 0, 32),
        op(STORE_WORD, 2, 1, sequence_at, 0),
        op(MOV32_REG, 1, 7, 0, 0),
        op(MUL32, 1, 0, 0, 0xc2b2_ae3d_u32 as i32),
        op(SHIFT_RIGHT32, 1, 0, 0, 10),
        op(OR32, 1, 0, 0, ranges.clients as i32),
        op(TO_BE, 1, 0, 0, 32),
        op(STORE_WORD, 2, 1, client_at, 0),
        op(MOV32_REG, 1, 7, 0, 0),
        op(MUL32, 1, 0, 0, 0x85eb_ca77_u32 as i32),
        op(SHIFT_RIGHT32, 1, 0, 0, 8),
        op(MODULO32, 1, 0, 0, ranges.frontend_count as i32),
    ];
    if shape.endpoint {
        body.push(op(MUL32, 1, 0, 0, ranges.per_frontend as i32));
        body.push(op(MODULO32, 1, 0, 0, ranges.endpoint_count as i32));
        body.push(op(ADD32, 1, 0, 0, ranges.endpoints as i32));
    } else {
        body.push(op(ADD32, 1, 0, 0, ranges.frontends as i32));
    }
    body.extend([
        op(TO_BE, 1, 0, 0, 32),
        op(STORE_WORD, 2, 1, server_at, 0),
        op(MOV64_REG, 1, 6, 0, 0),
        // A map's descriptor: two instructions.
        op(LOAD_IMMEDIATE, 2, PSEUDO_MAP, 0, targets),
        op(0, 0, 0, 0, 0),
        op(MOV64, 3, 0, 0, 0),
        op(CALL, 0, 0, 0, TAIL_CALL),
    ]);
    code.push(op(JUMP_GREATER, 4, 3, body.len() as i16, 0));
    code.extend(body);
    // Too short a packet, or the tail call failed: a verdict that the caller would notice.
    code.push(op(MOV64, 0, 0, 0, 2));
    code.push(op(EXIT, 0, 0, 0, 0));
    code
}

// Opcodes (linux/bpf.h, linux/bpf_common.h).
const MOV64: u8 = 0xb7;
const MOV64_REG: u8 = 0xbf;
const MOV32_REG: u8 = 0xbc;
const ADD64: u8 = 0x07;
const ADD32: u8 = 0x04;
const MUL32: u8 = 0x24;
const OR32: u8 = 0x44;
const SHIFT_RIGHT32: u8 = 0x74;
const MODULO32: u8 = 0x94;
const TO_BE: u8 = 0xdc;
const LOAD_WORD: u8 = 0x61;
const STORE_WORD: u8 = 0x63;
const LOAD_IMMEDIATE: u8 = 0x18;
const JUMP_GREATER: u8 = 0x2d;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
/// Source register of [`LOAD_IMMEDIATE`]: the number is a map's descriptor.
const PSEUDO_MAP: u8 = 1;
/// Helper.
const TAIL_CALL: i32 = 12;

/// One instruction.
fn op(code: u8, destination: u8, source: u8, offset: i16, immediate: i32) -> u64 {
    let [low, high] = offset.to_ne_bytes();
    let [a, b, c, d] = immediate.to_ne_bytes();
    u64::from_ne_bytes([code, source << 4 | destination, low, high, a, b, c, d])
}
