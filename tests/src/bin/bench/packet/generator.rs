//! A different connection for every run of BPF_PROG_TEST_RUN. A small program writes the next client, server
//! and initial sequence number into the test packet, and then tail-calls the program under test. So one
//! system call covers a million new connections, and measures a burst without the effects of system calls on
//! the caches. The peer, an empty program, has its own generator, so both figures include the generator's
//! cost.
//!
//! The generator changes packets, so it is assembled here and is not part of the eBPF object.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

use anyhow::{Context, Result};
use aya::programs::SchedClassifier;
use node_tests::bpf::{call, descriptor};
use node_tests::{observer, packet};

use super::{CLIENTS, ENDPOINTS, FIRST_ENDPOINT, FIRST_FRONTEND, IN_USE, PODS};

pub(super) struct Generator {
    program: OwnedFd,
    packet: Vec<u8>,
    device: u32,
    /// Keeps the program under test loaded.
    _targets: OwnedFd,
}

const MAP_CREATE: libc::c_int = 0;
const MAP_UPDATE_ELEM: libc::c_int = 2;
const PROG_LOAD: libc::c_int = 5;
const PROG_TEST_RUN: libc::c_int = 10;
const CLASSIFIER: u64 = 3;
const PROG_ARRAY: u32 = 3;
/// Bytes of Ethernet, IPv4 and the written part of TCP.
const PACKET: i32 = 54;
/// Offsets in `struct __sk_buff`.
const MARK: i16 = 8;
const DATA: i16 = 76;
const DATA_END: i16 = 80;

impl Generator {
    /// Makes a generator that calls `target` with one packet of each connection, as if at device `device`.
    /// The packet is the SYN or its answer, with the address of the frontend or of an endpoint.
    pub(super) fn new(
        target: &SchedClassifier,
        device: u32,
        is_answer: bool,
        of_endpoint: bool,
    ) -> Result<Self> {
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
        let Code(code) = instructions(is_answer, of_endpoint, targets.as_raw_fd());
        // prog_type and insn_cnt, insns, license.
        let mut load = [
            CLASSIFIER | (code.len() as u64) << 32,
            code.as_ptr() as u64,
            c"GPL".as_ptr() as u64,
        ];
        let program = descriptor(PROG_LOAD, &mut load).context("load the generator")?;
        let (client, server) = (super::client(7), super::frontend(7));
        let packet = match is_answer {
            true => packet::syn_ack(server, client, 0),
            false => packet::syn(client, server, 0),
        };
        Ok(Self {
            program,
            packet: packet.bytes(),
            device,
            _targets: targets,
        })
    }

    /// Runs `count` connections from number `first` on. Returns the kernel's mean time of one run in
    /// nanoseconds.
    pub(super) fn run(&self, first: u32, count: u32) -> Result<u32> {
        let mut context = observer::context(self.device);
        context[MARK as usize..MARK as usize + 4].copy_from_slice(&first.to_ne_bytes());
        // prog_fd, retval, sizes of data in and out, data in, data out, repeat and duration, sizes
        // of context in and out, context in, context out, flags and cpu, batch size.
        let mut attr = [0_u64; 10];
        attr[0] = u64::from(self.program.as_raw_fd() as u32);
        attr[1] = self.packet.len() as u64;
        attr[2] = self.packet.as_ptr() as u64;
        attr[4] = u64::from(count);
        attr[5] = context.len() as u64;
        attr[6] = context.as_ptr() as u64;
        call(PROG_TEST_RUN, &mut attr).context("run the generator")?;
        Ok((attr[4] >> 32) as u32)
    }
}

/// The program's instructions. The packet's mark is the connection's number and increases with each run. It
/// is multiplied by odd constants, so that consecutive numbers are unrelated and all 2^32 initial sequence
/// numbers differ. There are 2^22 clients. The endpoint of a frontend has the frontend's number times
/// [`ENDPOINTS`], modulo [`PODS`].
fn instructions(is_answer: bool, of_endpoint: bool, targets: i32) -> Code {
    const SOURCE: i16 = 26;
    const DESTINATION: i16 = 30;
    const SEQUENCE: i16 = 38;
    const ACKNOWLEDGED: i16 = 42;
    let (client_at, server_at, sequence_at) = match is_answer {
        true => (DESTINATION, SOURCE, ACKNOWLEDGED),
        false => (SOURCE, DESTINATION, SEQUENCE),
    };

    let mut code = Code::default();
    code.copy(6, 1).load(7, 6, MARK).copy32(1, 7);
    code.alu(ADD32, 1, 1).put(6, MARK, 1);
    code.load(2, 6, DATA).load(3, 6, DATA_END);
    code.copy(4, 2).alu(ADD64, 4, PACKET);
    // If the packet is too short, return a verdict that the caller rejects.
    code.op(JUMP_UP_TO, 4, 3, 2, 0).alu(MOV64, 0, 2).exit();

    code.copy32(1, 7).alu(MUL32, 1, 0x9e37_79b1_u32 as i32);
    code.alu(ADD32, 1, i32::from(is_answer));
    code.alu(TO_BE, 1, 32).put(2, sequence_at, 1);

    code.copy32(1, 7).alu(MUL32, 1, 0xc2b2_ae3d_u32 as i32);
    code.alu(SHIFT_RIGHT32, 1, 10);
    code.alu(OR32, 1, CLIENTS as i32);
    code.alu(TO_BE, 1, 32).put(2, client_at, 1);

    code.copy32(1, 7).alu(MUL32, 1, 0x85eb_ca77_u32 as i32);
    code.alu(SHIFT_RIGHT32, 1, 8);
    code.alu(MODULO32, 1, IN_USE as i32);
    if of_endpoint {
        code.alu(MUL32, 1, ENDPOINTS as i32);
        code.alu(MODULO32, 1, PODS as i32);
        code.alu(ADD32, 1, FIRST_ENDPOINT as i32);
    } else {
        code.alu(ADD32, 1, FIRST_FRONTEND as i32);
    }
    code.alu(TO_BE, 1, 32).put(2, server_at, 1);

    code.copy(1, 6).map(2, targets).alu(MOV64, 3, 0);
    // Return the same verdict if the tail call fails.
    code.op(CALL, 0, 0, 0, TAIL_CALL).alu(MOV64, 0, 2).exit();
    code
}

#[derive(Default)]
struct Code(Vec<u64>);

impl Code {
    /// Any instruction: opcode, destination and source register, offset, number.
    fn op(&mut self, code: u8, dst: u8, src: u8, offset: i16, value: i32) -> &mut Self {
        let registers = u64::from(dst) << 8 | u64::from(src) << 12;
        let operands = u64::from(offset as u16) << 16 | u64::from(value as u32) << 32;
        self.0.push(u64::from(code) | registers | operands);
        self
    }

    fn alu(&mut self, code: u8, dst: u8, value: i32) -> &mut Self {
        self.op(code, dst, 0, 0, value)
    }

    fn copy(&mut self, dst: u8, src: u8) -> &mut Self {
        self.op(0xbf, dst, src, 0, 0)
    }

    fn copy32(&mut self, dst: u8, src: u8) -> &mut Self {
        self.op(0xbc, dst, src, 0, 0)
    }

    /// `dst = *(src + offset)`, 4 bytes.
    fn load(&mut self, dst: u8, src: u8, offset: i16) -> &mut Self {
        self.op(0x61, dst, src, offset, 0)
    }

    /// `*(dst + offset) = src`, 4 bytes.
    fn put(&mut self, dst: u8, offset: i16, src: u8) -> &mut Self {
        self.op(0x63, dst, src, offset, 0)
    }

    /// `dst` = a map, by its descriptor: two instructions.
    fn map(&mut self, dst: u8, map: RawFd) -> &mut Self {
        self.op(0x18, dst, 1, 0, map).op(0, 0, 0, 0, 0)
    }

    fn exit(&mut self) -> &mut Self {
        self.op(0x95, 0, 0, 0, 0)
    }
}

// Opcodes (linux/bpf.h, linux/bpf_common.h).
const CALL: u8 = 0x85;
/// Jumps if one register is at most another one.
const JUMP_UP_TO: u8 = 0xbd;
const MOV64: u8 = 0xb7;
const ADD64: u8 = 0x07;
const ADD32: u8 = 0x04;
const MUL32: u8 = 0x24;
const OR32: u8 = 0x44;
const SHIFT_RIGHT32: u8 = 0x74;
const MODULO32: u8 = 0x94;
const TO_BE: u8 = 0xdc;
const TAIL_CALL: i32 = 12;
