//! Counts the kernel's reasons for dropping packets of followed connections. The program is attached to the
//! tracepoint `skb:kfree_skb` only while connections are being lost.
//!
//! The program has no relocations against the kernel's types. Instead the agent reads the offsets from the
//! kernel's BTF and writes them into a map. The first three arguments of the tracepoint have not changed
//! since Linux 5.17, which added the reason. Linux 6.11 added a fourth argument.

#![expect(
    clippy::needless_borrows_for_generic_args,
    reason = "what is borrowed lies on the stack; constants would be read at a wrong offset"
)]

use aya_ebpf::bindings::BPF_NOEXIST;
use aya_ebpf::helpers::bpf_probe_read_kernel;
use aya_ebpf::macros::raw_tracepoint;
use aya_ebpf::programs::RawTracePointContext;
use pathproof_wire::dropped::{DropKey, Handshake, SkbLayout};
use pathproof_wire::packet::Bytes;

use crate::atomic;
use crate::maps::{DROPS, PENDING, SKB_LAYOUT};

/// See `abi::program::DROPPED`.
#[raw_tracepoint(tracepoint = "kfree_skb")]
pub fn pathproof_dropped(ctx: RawTracePointContext) -> Option<()> {
    let layout = SKB_LAYOUT.get(0).filter(|layout| layout.head != 0)?;
    let found = find(ctx.arg(0), layout)?;
    let pending = PENDING.get_ptr(&found.key)?;
    // SAFETY: a map value's pointer, valid until the program ends.
    let pending = unsafe { &*pending };
    if found.counts(pending) {
        count(DropKey {
            service: pending.service,
            reason: ctx.arg(2),
        });
    }
    Some(())
}

/// The SYN or SYN-ACK in this packet, or in the inner packet of a tunnel.
#[inline(always)]
fn find(skb: u64, layout: &SkbLayout) -> Option<Handshake> {
    let head: u64 = read(skb + u64::from(layout.head))?;
    let outer: u16 = read(skb + u64::from(layout.network_header))?;
    if let Some(found) = Handshake::read(&Packet(head + u64::from(outer))) {
        return Some(found);
    }
    let inner: u16 = read(skb + u64::from(layout.inner_network_header))?;
    // Zero if there is no inner packet.
    if inner == 0 {
        return None;
    }
    Handshake::read(&Packet(head + u64::from(inner)))
}

#[inline(always)]
fn count(key: DropKey) {
    if DROPS.get_ptr(&key).is_none() {
        // It must be a variable on the stack: a constant would be read from the section of constants, at a
        // wrong offset.
        let none = 0;
        // Fails if another CPU was faster, or if there is no room; then the packet is not counted.
        let _ = DROPS.insert(&key, &none, u64::from(BPF_NOEXIST));
    }
    if let Some(count) = DROPS.get_ptr_mut(&key) {
        atomic::add(count, 1);
    }
}

/// A packet in the kernel's memory. Reads beyond its end return other bytes of the kernel, which match no
/// connection.
struct Packet(u64);

impl Bytes for Packet {
    #[inline(always)]
    fn length(&self) -> usize {
        usize::from(u16::MAX)
    }

    #[inline(always)]
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        read(self.0 + offset as u64)
    }

    #[inline(always)]
    fn words<const N: usize>(&self, offset: usize) -> Option<[u32; N]> {
        read(self.0 + offset as u64)
    }
}

#[inline(always)]
fn read<T>(at: u64) -> Option<T> {
    // SAFETY: the helper checks the address; integers and arrays of integers accept any bytes.
    unsafe { bpf_probe_read_kernel(at as *const T) }.ok()
}
