//! `World` over BPF maps and helpers, and packet bytes by `bpf_skb_load_bytes`.

use core::cell::Cell;

use aya_ebpf::EbpfContext;
use aya_ebpf::bindings::{
    __sk_buff, BPF_FIB_LKUP_RET_FRAG_NEEDED, BPF_FIB_LKUP_RET_NO_NEIGH, BPF_FIB_LKUP_RET_SUCCESS,
    BPF_NOEXIST, bpf_fib_lookup,
};
use aya_ebpf::helpers::{bpf_fib_lookup as fib_lookup, bpf_ktime_get_ns};
use aya_ebpf::maps::lpm_trie::Key;
use aya_ebpf::programs::TcContext;
use pathproof_wire::abi;
use pathproof_wire::classify::{AnomalyParts, Connection, MAX_TRIES, World};
use pathproof_wire::evidence::{
    Anomaly, Fault, OUTCOMES, Outcome, Pending, PendingKey, ServiceCounts, TOUCH_CHUNK,
    TOUCH_WORDS, proof_slot,
};
use pathproof_wire::gate::{ConnectionMark, Sampled, WatchedData};
use pathproof_wire::packet::{Bytes, Segment};
use pathproof_wire::service::{
    Address, EndpointEntry, EndpointKey, Family, FrontendKey, FrontendValue, SOURCE_CLASSES,
    SourceClass,
};

use crate::maps::{
    ANOMALIES, COUNTS, DEVICES, ENDPOINTS, FAULTS, FRONTENDS, MARKS, PENDING, PROOFS, RATES,
    SOURCES, TOUCHED, UDP_PENDING,
};
use crate::{atomic, limits};

/// Bytes of a packet, read by checked loads.
pub struct Skb<'a>(pub &'a TcContext);

impl Bytes for Skb<'_> {
    #[inline(always)]
    fn length(&self) -> usize {
        self.0.len() as usize
    }

    #[inline(always)]
    fn load<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        self.0.load(offset).ok()
    }

    #[inline(always)]
    fn words<const N: usize>(&self, offset: usize) -> Option<[u32; N]> {
        self.0.load(offset).ok()
    }
}

/// The kernel's implementation of [`World`] for one packet. `UDP` selects the maps for datagrams.
pub struct Kernel<'a, const UDP: bool> {
    ctx: &'a TcContext,
    /// The time, or zero until it is needed. It is read late, because most parsed packets are no evidence.
    now: Cell<u64>,
}

/// A connection in the map. Its pointer is valid until the program ends.
pub struct Entry(*mut Pending);

impl Connection for Entry {
    #[inline(always)]
    fn fields(&self) -> &Pending {
        // SAFETY: see the type.
        unsafe { &*self.0 }
    }

    #[inline(always)]
    fn state(&self) -> u32 {
        // SAFETY: see the type; volatile, since another CPU may move it between two reads.
        unsafe { (&raw const (*self.0).state).read_volatile() }
    }

    #[inline(always)]
    fn swap(&self, from: u32, to: u32) -> bool {
        // SAFETY: see the type.
        atomic::swap(unsafe { &raw mut (*self.0).state }, from, to)
    }

    #[inline(always)]
    fn answered_after(&self, us: u32) {
        // SAFETY: see the type; one aligned word, written only by the CPU that changed the state.
        unsafe { (&raw mut (*self.0).note).write_volatile(us) };
    }

    #[inline(always)]
    fn sent_to(&self, peer: u16, device: u32, range: u32) {
        // SAFETY: see the type; one aligned word. If two CPUs write it, the last value is right.
        unsafe { (&raw mut (*self.0).note).write_volatile(u32::from(peer)) };
        // SAFETY: as above.
        unsafe { (&raw mut (*self.0).left_by).write_volatile(device) };
        // SAFETY: as above.
        unsafe { (&raw mut (*self.0).range).write_volatile(range) };
    }
}

impl<'a, const UDP: bool> Kernel<'a, UDP> {
    #[inline(always)]
    pub fn new(ctx: &'a TcContext) -> Self {
        Self {
            ctx,
            now: Cell::new(0),
        }
    }

    #[inline(always)]
    fn counts(&self, service: u32) -> Option<*mut ServiceCounts> {
        COUNTS.get_ptr_mut(service)
    }
}

impl<const UDP: bool> World for Kernel<'_, UDP> {
    type Connection = Entry;

    #[inline(always)]
    fn now(&self) -> u64 {
        if self.now.get() == 0 {
            // SAFETY: a helper without arguments.
            self.now.set(unsafe { bpf_ktime_get_ns() });
        }
        self.now.get()
    }

    #[inline(always)]
    fn device(&self) -> u32 {
        // SAFETY: the context's skb is valid; the verifier rewrites the access.
        unsafe { (*self.ctx.skb.skb).ifindex }
    }

    #[inline(always)]
    fn device_flags(&self) -> u32 {
        // SAFETY: the value is one word; during an update either version is sound.
        unsafe { DEVICES.get(self.device()) }.copied().unwrap_or(0)
    }

    #[inline(always)]
    fn route_names_device(&self, segment: &Segment) -> bool {
        routed_to(self.ctx.skb.skb, segment) == self.device()
    }

    #[inline(always)]
    fn frontend(&self, key: &FrontendKey) -> Option<FrontendValue> {
        // SAFETY: the agent replaces whole elements; the old one stays valid until RCU frees it.
        unsafe { FRONTENDS.get(key) }.copied()
    }

    #[inline(always)]
    fn endpoint(&self, key: &EndpointKey) -> Option<EndpointEntry> {
        // SAFETY: as for `frontend`.
        unsafe { ENDPOINTS.get(key) }.copied()
    }

    #[inline(always)]
    fn meet(&self, key: &EndpointKey) {
        if let Some(entry) = ENDPOINTS.get_ptr_mut(key) {
            // SAFETY: a map value's pointer; one aligned word.
            unsafe { (&raw mut (*entry).met_ns).write_volatile(self.now()) };
        }
    }

    #[inline(always)]
    fn source_class(&self, address: &Address) -> SourceClass {
        match SOURCES.get(Key::new(128, *address)) {
            Some(class) => SourceClass::from_index(*class),
            None => SourceClass::External,
        }
    }

    #[inline(always)]
    fn take_budget(&self, source: &Address) -> bool {
        limits::take_source(source, self.now())
    }

    #[inline(always)]
    fn take_rate(&self, service: u32) -> bool {
        limits::take_datagram(service, self.now())
    }

    #[inline(always)]
    fn mark(&self, segment: &Segment) {
        if !UDP {
            return mark_connection(segment.isn);
        }
        if let Some(marks) = MARKS.get_ptr_mut(0) {
            // SAFETY: a map value's pointer; each field is one aligned word.
            unsafe { &mut *marks }.follow(limits::window() as u16, segment);
        }
    }

    #[inline(always)]
    fn mark_answered(&self, answer: &Segment) {
        if let Some(marks) = MARKS.get_ptr_mut(0) {
            // SAFETY: as in `mark`.
            unsafe { &mut *marks }.answer(answer);
        }
    }

    #[inline(always)]
    fn watch(&self, number: u32) {
        if UDP {
            return;
        }
        // SAFETY: each place is an aligned word. If two CPUs write a place at once, a number may get the
        // window of another one, and is watched slightly too short or too long.
        unsafe { &mut *watched() }.watch(limits::window(), number);
    }

    #[inline(always)]
    fn is_for_other_host(&self) -> bool {
        /// `PACKET_OTHERHOST` of `linux/if_packet.h`.
        const OTHER_HOST: u32 = 3;
        // SAFETY: as in `device`.
        unsafe { (*self.ctx.skb.skb).pkt_type == OTHER_HOST }
    }

    #[inline(always)]
    fn sample(&self, service: u32, isn: u32) -> Sampled {
        let Some(rate) = RATES.get_ptr_mut(service) else {
            return Sampled::First;
        };
        // SAFETY: as in `mark`.
        let rate = unsafe { &mut *rate };
        let sampled = rate.take(limits::window(), limits::number(isn));
        if limits::follows_all() {
            Sampled::First
        } else {
            sampled
        }
    }

    #[inline(always)]
    fn is_sampled(&self, service: u32, isn: u32) -> bool {
        match RATES.get_ptr_mut(service) {
            // SAFETY: as in `mark`.
            Some(rate) => unsafe { &*rate }.includes(limits::window(), limits::number(isn)),
            None => true,
        }
    }

    #[inline(always)]
    fn connection(&self, key: &PendingKey) -> Option<Entry> {
        if UDP {
            return UDP_PENDING.get_ptr_mut(key).map(Entry);
        }
        if !may_be_followed(key.isn) {
            return None;
        }
        PENDING.get_ptr_mut(key).map(Entry)
    }

    #[inline(always)]
    fn follow(&self, key: &PendingKey, pending: &Pending) -> bool {
        /// `-EEXIST`: another CPU has already added the connection, or its SYN was repeated after the mark
        /// expired.
        const EXISTS: i32 = -17;
        let (map, full) = if UDP {
            (&UDP_PENDING, Fault::UdpFull)
        } else {
            (&PENDING, Fault::PendingFull)
        };
        if !UDP {
            mark_connection(key.isn);
        }
        match map.insert(key, pending, u64::from(BPF_NOEXIST)) {
            Ok(()) => true,
            Err(EXISTS) => false,
            Err(_) => {
                self.fault(full);
                false
            }
        }
    }

    #[inline(always)]
    fn count(&self, service: u32, class: u8, outcome: Outcome) {
        let Some(counts) = self.counts(service) else {
            return;
        };
        let class = usize::from(class);
        if class >= SOURCE_CLASSES || outcome as usize >= OUTCOMES {
            return;
        }
        // SAFETY: a map value's pointer, indexes checked above.
        atomic::add_one(unsafe { &raw mut (*counts).counts[class][outcome as usize] });
        // The index is below TOUCH_WORDS, since the Service has counts. The mask shows this to the
        // verifier. A comparison is not enough: the compiler then reads the index from the stack again, and
        // the verifier of Linux 6.1 forgets the comparison (finding 25).
        const { assert!(TOUCH_WORDS.is_power_of_two()) };
        let word = (service / TOUCH_CHUNK) as usize & (TOUCH_WORDS - 1);
        if let Some(touched) = TOUCHED.get_ptr_mut(0) {
            // SAFETY: as above, and within the array.
            atomic::add_one(unsafe { &raw mut (*touched).words[word] });
        }
    }

    #[inline(always)]
    fn prove(&self, family: u32, class: u8) {
        if let Some(last) = PROOFS.get_ptr_mut(proof_slot(family, class)) {
            // SAFETY: a map value's pointer; one aligned word.
            unsafe { *last = self.now() };
        }
    }

    #[inline(always)]
    fn fault(&self, fault: Fault) {
        count(fault);
    }

    #[inline(always)]
    fn report(&self, anomaly: &AnomalyParts<'_>) {
        let Some(counts) = self.counts(anomaly.service()) else {
            return;
        };
        // SAFETY: a map value's pointer; if two CPUs run this at once, they send at most one report too
        // many.
        let reported = unsafe { &mut (*counts).reported_ns };
        let now = self.now();
        if now.saturating_sub(*reported) < abi::SERVICE_REPORT_NS || !limits::take_report(now) {
            return self.fault(Fault::ReportLimited);
        }
        *reported = now;
        let Some(mut entry) = ANOMALIES.reserve::<Anomaly>(0) else {
            return self.fault(Fault::RingFull);
        };
        entry.write(anomaly.record(now, self.device()));
        entry.submit(0);
    }
}

/// Whether the map of connections may contain this one. A miss in that map costs 190 ns under load, because
/// each entry has a separate cache line, and nearly all lookups on a busy node are misses.
#[inline(never)]
pub fn may_be_followed(isn: u32) -> bool {
    let mark = ConnectionMark::new(limits::window(), isn);
    match MARKS.get_ptr_mut(0) {
        // SAFETY: a map value's pointer; one aligned word within the array, volatile as in `state`.
        Some(marks) => {
            mark.is_in(unsafe { (&raw const (*marks).connections[mark.place]).read_volatile() })
        }
        None => true,
    }
}

/// Connections whose data is watched. Every segment with PSH is compared with them, so this is a global,
/// which needs no map lookup.
static mut WATCHED: WatchedData = WatchedData::NONE;

#[inline(always)]
pub fn watched() -> *mut WatchedData {
    &raw mut WATCHED
}

#[inline(never)]
fn mark_connection(isn: u32) {
    let mark = ConnectionMark::new(limits::window(), isn);
    let Some(marks) = MARKS.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: as above.
    let word = unsafe { &raw mut (*marks).connections[mark.place] };
    for _ in 0..MAX_TRIES {
        // SAFETY: as above.
        let old = unsafe { word.read_volatile() };
        let new = mark.set_in(old);
        if old == new || atomic::swap(word, old, new) {
            return;
        }
    }
}

#[inline(always)]
pub fn count(fault: Fault) {
    if let Some(count) = FAULTS.get_ptr_mut(fault as u32) {
        // SAFETY: a per-CPU map value's pointer. If one program interrupts another between the load and the
        // store, one count is lost at most.
        unsafe { *count += 1 };
    }
}

/// The device that the route to a segment's destination specifies, as for forwarding; 0 if there is none.
/// It is a separate function because it is large and is called in two places.
#[inline(never)]
fn routed_to(skb: *mut __sk_buff, segment: &Segment) -> u32 {
    let ctx = &TcContext::new(skb);
    const AF_INET: u8 = 2;
    const AF_INET6: u8 = 10;
    /// Aligned, so that it is zeroed by words rather than by a call that goes byte by byte.
    #[repr(align(8))]
    struct Params(bpf_fib_lookup);
    // SAFETY: integers only; all zero is a sound value.
    let mut params: Params = unsafe { core::mem::zeroed() };
    let params = &mut params.0;
    // SAFETY: see `Kernel::device`. The lookup treats the packet as one that entered by this device. The
    // input device affects only routing rules that match on it.
    params.ifindex = unsafe { (*ctx.skb.skb).ifindex };
    params.l4_protocol = pathproof_wire::service::TCP;
    match segment.family {
        Family::V4 => {
            params.family = AF_INET;
            params.__bindgen_anon_3.ipv4_src = last_word(&segment.source);
            params.__bindgen_anon_4.ipv4_dst = last_word(&segment.destination);
        }
        Family::V6 => {
            params.family = AF_INET6;
            params.__bindgen_anon_3.ipv6_src = words(&segment.source);
            params.__bindgen_anon_4.ipv6_dst = words(&segment.destination);
        }
    }
    // SAFETY: the helper reads and writes the struct whose size it is given.
    let result = unsafe { fib_lookup(ctx.as_ptr(), params, size_of::<bpf_fib_lookup>() as i32, 0) };
    // The device is set in these three cases: a missing neighbour or a small MTU does not change the route.
    let named = result == i64::from(BPF_FIB_LKUP_RET_SUCCESS)
        || result == i64::from(BPF_FIB_LKUP_RET_NO_NEIGH)
        || result == i64::from(BPF_FIB_LKUP_RET_FRAG_NEEDED);
    if named { params.ifindex } else { 0 }
}

#[inline(always)]
fn last_word(address: &Address) -> u32 {
    words(address)[3]
}

/// Four words in the byte order of the packet.
#[inline(always)]
fn words(address: &Address) -> [u32; 4] {
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = *address;
    [
        u32::from_ne_bytes([a, b, c, d]),
        u32::from_ne_bytes([e, f, g, h]),
        u32::from_ne_bytes([i, j, k, l]),
        u32::from_ne_bytes([m, n, o, p]),
    ]
}
