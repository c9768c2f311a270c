//! The sentinel's programs, which are attached only to the four ends of its two veth pairs. Programs at
//! near ends stamp packets of probes and pass all packets, except answers to control probes. Programs at
//! far ends answer probes or collect answers, and drop all other packets. The observer's programs also use
//! this module to identify probes at uplinks. Parsing and answers are in `pathproof-wire` (`probe::packet`,
//! `probe::answer`).
//!
//! A packet that has the format of a probe, but is not registered, is never answered. It may be another
//! agent's probe, since two agents run during an upgrade. So it is passed on to the next program, which may
//! be that agent's. If there is none, the kernel drops the packet, since no frame is addressed to a far
//! end's hardware address.

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::{BPF_NOEXIST, TC_ACT_SHOT};
use aya_ebpf::helpers::{bpf_get_socket_cookie, bpf_ktime_get_ns, bpf_redirect};
use aya_ebpf::macros::classifier;
use aya_ebpf::programs::TcContext;
use pathproof_wire::classify::World;
use pathproof_wire::probe::answer::{Wire, answer};
use pathproof_wire::probe::packet::{Kind, ProbePacket, destination, parse, ports, source};
use pathproof_wire::probe::{
    HostProbe, Phase, Probe, ProbeEvent, ProbeKey, Stage, UDP, probe_event, probe_flag,
};
use pathproof_wire::service::{FrontendKey, TCP, frontend_flag};

use crate::hooks::PASS;
use crate::kernel::Skb;
use crate::maps::{HOST_PROBES, PROBE_EVENTS, PROBES};

/// Return code that drops one of pathproof's packets.
pub const DROP: i32 = TC_ACT_SHOT;

/// See `abi::program::ARRIVED`.
#[classifier]
pub fn pathproof_arrived(ctx: TcContext) -> i32 {
    let _ = stamp_request(&ctx, Stage::Arrived);
    PASS
}

/// See `abi::program::TRANSLATED`.
#[classifier]
pub fn pathproof_translated(ctx: TcContext) -> i32 {
    if let Some(unknown) = stamp_request(&ctx, Stage::Translated) {
        let _ = register_own(&ctx, &unknown);
    }
    PASS
}

/// See `abi::program::RETURNED`.
#[classifier]
pub fn pathproof_returned(ctx: TcContext) -> i32 {
    returned(&ctx).unwrap_or(PASS)
}

/// See `abi::program::ECHO`.
#[classifier]
pub fn pathproof_echo(ctx: TcContext) -> i32 {
    echo(&ctx).unwrap_or(DROP)
}

/// See `abi::program::COLLECT`.
#[classifier]
pub fn pathproof_collect(ctx: TcContext) -> i32 {
    collect(&ctx).unwrap_or(DROP)
}

/// Whether a packet comes from a socket of a host probe ([`HostProbe`]).
#[inline(always)]
pub fn is_of_own_socket(ctx: &TcContext) -> bool {
    // SAFETY: the context is that of this program.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    HOST_PROBES.get_ptr(cookie).is_some()
}

/// Whether a packet goes to the sentinel's address and belongs to a registered probe.
#[inline(always)]
pub fn is_stray<W: World>(ctx: &TcContext, world: &W) -> bool {
    goes_to_sentinel(&Skb(ctx), world).is_some()
}

#[inline(always)]
fn goes_to_sentinel<W: World>(skb: &Skb, world: &W) -> Option<()> {
    let packet = parse(skb)?;
    let key = match packet.kind {
        Kind::Unreachable => return None,
        _ => packet.closes().unwrap_or(packet.key),
    };
    Entry::of(&key)?;
    let (_, port) = ports(skb, &packet)?;
    // A UDP probe is looked up by the TCP frontend: the sentinel has the same port for TCP and UDP, and the
    // map does not contain its UDP frontends.
    let frontend = world.frontend(&FrontendKey {
        address: destination(skb, packet.family)?,
        port,
        protocol: TCP,
        padding: 0,
    })?;
    (frontend.flags & frontend_flag::SENTINEL != 0).then_some(())
}

/// A registered probe. Its pointer is valid until the program ends.
struct Entry(*mut Probe);

impl Entry {
    #[inline(always)]
    fn of(key: &ProbeKey) -> Option<Self> {
        PROBES.get_ptr_mut(key).map(Self)
    }

    #[inline(always)]
    fn flags(&self) -> u32 {
        // SAFETY: see the type.
        unsafe { (*self.0).flags }
    }

    /// Sets a flag. Returns whether it was clear. No other program writes flags of the same probe.
    #[inline(always)]
    fn raise(&self, flag: u32) -> bool {
        let flags = self.flags();
        // SAFETY: see the type.
        unsafe { (*self.0).flags = flags | flag };
        flags & flag == 0
    }

    /// Stamps a stage unless it has a stamp. Returns the time if it was stamped now.
    #[inline(always)]
    fn stamp(&self, phase: Phase, stage: Stage) -> Option<u64> {
        // SAFETY: see the type; both indexes are below the lengths.
        let stamp = unsafe {
            match phase {
                Phase::Handshake => &raw mut (*self.0).stamps[0][stage as usize],
                Phase::Data => &raw mut (*self.0).stamps[1][stage as usize],
            }
        };
        // SAFETY: one aligned word of a live map value.
        if unsafe { *stamp } != 0 {
            return None;
        }
        let now = now();
        // SAFETY: as above.
        unsafe { *stamp = now };
        Some(now)
    }
}

#[inline(always)]
fn now() -> u64 {
    // SAFETY: a helper without arguments.
    unsafe { bpf_ktime_get_ns() }
}

/// Stamps a SYN or data on its way to the echo. Returns the packet if its probe is not registered.
#[inline(always)]
fn stamp_request(ctx: &TcContext, stage: Stage) -> Option<ProbePacket> {
    let packet = parse(&Skb(ctx))?;
    let phase = packet.kind.request()?;
    let Some(probe) = Entry::of(&packet.key) else {
        return Some(packet);
    };
    probe.stamp(phase, stage);
    None
}

/// Registers the probe of a SYN that the agent's `connect` sent. The agent could not register it, because
/// the kernel chooses the initial sequence number. The socket's cookie identifies the SYN.
#[inline(always)]
fn register_own(ctx: &TcContext, packet: &ProbePacket) -> Option<()> {
    if packet.kind != Kind::Syn {
        return None;
    }
    // SAFETY: the context is that of this program.
    let cookie = unsafe { bpf_get_socket_cookie(ctx.as_ptr()) };
    let host = HOST_PROBES.get_ptr_mut(cookie)?;
    // SAFETY: the pointer is valid until the program ends.
    if unsafe { (*host).seen } != 0 {
        return None;
    }
    let mut probe = Probe {
        flags: probe_flag::HOST,
        ..Probe::default()
    };
    probe.stamps[Phase::Handshake as usize][Stage::Translated as usize] = now();
    PROBES
        .insert(packet.key, probe, u64::from(BPF_NOEXIST))
        .ok()?;
    let seen = HostProbe {
        token: packet.key.token,
        seen: 1,
    };
    // SAFETY: as above. Both fields are written as one word, so that no reader sees only one of them.
    unsafe { host.cast::<u64>().write_volatile(word(seen)) };
    Some(())
}

/// A host probe as one word, with its fields in memory order.
#[inline(always)]
fn word(host: HostProbe) -> u64 {
    // All BPF targets of this build are little-endian.
    u64::from(host.seen) << 32 | u64::from(host.token)
}

/// Stamps an answer that enters. The answer to a control probe is reported and dropped here, since the node
/// has no connection for it.
#[inline(always)]
fn returned(ctx: &TcContext) -> Option<i32> {
    let packet = parse(&Skb(ctx))?;
    let phase = packet.kind.answer()?;
    let probe = Entry::of(&packet.key)?;
    let first = probe.stamp(phase, Stage::Returned);
    if probe.flags() & probe_flag::CONTROL == 0 {
        return None;
    }
    if let Some(at_ns) = first {
        tell(&packet, event_of(phase), at_ns);
    }
    Some(DROP)
}

/// Sends a registered probe's packet back.
#[inline(always)]
fn echo(ctx: &TcContext) -> Option<i32> {
    let packet = parse(&Skb(ctx))?;
    let phase = packet.kind.request()?;
    let Some(probe) = Entry::of(&packet.key) else {
        return Some(PASS);
    };
    if probe.stamp(phase, Stage::Echoed).is_some() {
        note_ends(ctx, &packet, phase, &probe)?;
    }
    answer(&Skb(ctx), &packet)?;
    // The datapath may have set a mark on the way here, which a packet from a wire would not have.
    ctx.set_mark(0);
    // SAFETY: a helper that takes numbers only; see `Kernel::device` for the index.
    Some(unsafe { bpf_redirect((*ctx.skb.skb).ifindex, 0) } as i32)
}

/// Records the source and the destination port of the probe's first packet at the echo.
#[inline(always)]
fn note_ends(ctx: &TcContext, packet: &ProbePacket, phase: Phase, probe: &Entry) -> Option<()> {
    if phase == Phase::Data && packet.key.protocol != UDP {
        return Some(());
    }
    let skb = Skb(ctx);
    let address = source(&skb, packet.family)?;
    let (from, to) = ports(&skb, packet)?;
    // SAFETY: a live map value; only this program writes these fields.
    unsafe {
        (*probe.0).echo_source = address;
        (*probe.0).echo_source_port = from;
        (*probe.0).echo_port = to;
    }
    Some(())
}

/// Collects a packet that reaches the client.
#[inline(always)]
fn collect(ctx: &TcContext) -> Option<i32> {
    let packet = parse(&Skb(ctx))?;
    let Some(probe) = Entry::of(&packet.key) else {
        return Some(PASS);
    };
    let (event, at_ns) = match packet.kind {
        Kind::Reset if probe.raise(probe_flag::REFUSED) => (probe_event::REFUSED, now()),
        Kind::Unreachable if probe.raise(probe_flag::UNREACHABLE) => (probe_event::REFUSED, now()),
        kind => {
            let phase = kind.answer()?;
            (event_of(phase), probe.stamp(phase, Stage::Collected)?)
        }
    };
    tell(&packet, event, at_ns);
    None
}

/// Kind of the event that reports an answer.
#[inline(always)]
fn event_of(phase: Phase) -> u32 {
    match phase {
        Phase::Handshake => probe_event::HANDSHAKE,
        Phase::Data => probe_event::DATA,
    }
}

/// Sends an event to the agent. If the ring is full, the stamps still contain the result.
#[inline(always)]
fn tell(packet: &ProbePacket, kind: u32, at_ns: u64) {
    let Some(mut entry) = PROBE_EVENTS.reserve::<ProbeEvent>(0) else {
        return;
    };
    entry.write(ProbeEvent {
        at_ns,
        key: packet.key,
        kind,
        sequence: packet.sequence,
        acknowledged: packet.acknowledged,
        padding: 0,
    });
    entry.submit(0);
}

impl Wire for Skb<'_> {
    #[inline(always)]
    fn store<const N: usize>(&self, offset: usize, bytes: [u8; N]) -> Option<()> {
        self.0.store(offset, &bytes, 0).ok()
    }

    #[inline(always)]
    fn adjust(&self, offset: usize, from: u32, to: u32) -> Option<()> {
        let size = size_of::<u32>() as u64;
        let (from, to) = (u64::from(from), u64::from(to));
        self.0.l4_csum_replace(offset, from, to, size).ok()
    }
}
