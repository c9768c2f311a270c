//! Steers new connections to the agent's listeners, even if another process listens at the dialled port.
//! The program runs in the node's network namespace when the kernel selects the listener for a new
//! connection to the node. It affects only connections to the ports of the agent's rules and to the
//! Services' health check node ports. While the agent is frozen or not ready, another process that listens at
//! the port gets them.
//!
//! Programs of this kind run in the order in which they were attached, and the choice of the last one
//! counts. So the program of a new agent takes over the connections of the old agent when it is attached.

use aya_ebpf::bindings::sk_action::SK_PASS;
use aya_ebpf::bindings::{BPF_SK_LOOKUP_F_NO_REUSEPORT, BPF_SK_LOOKUP_F_REPLACE, bpf_sk_lookup};
use aya_ebpf::helpers::bpf_ktime_get_ns;
use aya_ebpf::macros::sk_lookup;
use aya_ebpf::programs::SkLookupContext;
use pathproof_wire::service::{Family, TCP};
use pathproof_wire::steer::{ADMIN, Dialled, HEALTHZ, SERVICES, SteerRule, mapped, port_bit};

use crate::maps::{STEER_OWNERS, STEER_PORTS, STEER_RULES, STEER_SOCKETS, STEER_UNTIL};

const AF_INET: u32 = 2;
/// Selects this listener rather than another one of its `SO_REUSEPORT` group.
const ALONE: u64 = BPF_SK_LOOKUP_F_NO_REUSEPORT as u64;
/// Replaces the choice of an earlier program.
const REPLACE: u64 = BPF_SK_LOOKUP_F_REPLACE as u64;

/// See `abi::program::STEER`.
#[sk_lookup]
pub fn pathproof_steer(ctx: SkLookupContext) -> u32 {
    steer(&ctx);
    SK_PASS
}

#[inline(always)]
fn steer(ctx: &SkLookupContext) {
    let seen = Seen(ctx.lookup);
    if seen.protocol() != u32::from(TCP) {
        return;
    }
    let port = seen.port();
    // The port is checked first, because most connections need no other check.
    let (index, flags) = match rule_of(port) {
        Some((index, rule)) => {
            let dialled = seen.dialled(port);
            let is_frozen = is_frozen();
            let left_alone = rule.yields(&dialled, is_frozen) && is_owned(&dialled);
            if left_alone || !rule.names(&dialled) {
                return;
            }
            let is_replaced = rule.replaces(is_frozen);
            (index, if is_replaced { ALONE | REPLACE } else { ALONE })
        }
        None if !is_of_service(&seen, port) => return,
        // Connections of the node itself to a health check node port stay with the Service proxy, and those
        // of others while the agent is frozen.
        None if seen.dialled(port).is_for_owner() || is_frozen() => return,
        None => (SERVICES, ALONE | REPLACE),
    };
    // This fails if there is no listener, or if an earlier choice is not to be replaced. Then the earlier choice
    // stands, or the kernel selects a listener as usual.
    let _ = STEER_SOCKETS.redirect_sk_lookup(ctx, index, flags);
}

/// Whether this is a Service's health check node port.
#[inline(always)]
fn is_of_service(seen: &Seen, port: u32) -> bool {
    let family = match seen.family() {
        AF_INET => Family::V4,
        _ => Family::V6,
    };
    let (word, bit) = port_bit(family, port as u16);
    STEER_PORTS.get(word).is_some_and(|word| *word & bit != 0)
}

/// The rule of a port, with its index.
#[inline(always)]
fn rule_of(port: u32) -> Option<(u32, &'static SteerRule)> {
    for index in [HEALTHZ, ADMIN] {
        let rule = STEER_RULES.get(index)?;
        if rule.port == port {
            return Some((index, rule));
        }
    }
    None
}

/// Whether the agent's answering thread has not run for seconds: it was stopped, or gets no CPU time. The
/// port's owner must then answer, because connections to the agent would only time out.
#[inline(always)]
fn is_frozen() -> bool {
    // SAFETY: a plain helper call.
    let now = unsafe { bpf_ktime_get_ns() };
    STEER_UNTIL.get(0).is_none_or(|until| *until < now)
}

/// Whether another process listens at this connection's destination.
#[inline(always)]
fn is_owned(dialled: &Dialled) -> bool {
    // SAFETY: the values are not read.
    unsafe {
        STEER_OWNERS.get(dialled.destination).is_some() || STEER_OWNERS.get(dialled.any()).is_some()
    }
}

/// The context, read word by word: the verifier rejects wider accesses, which the compiler would otherwise
/// combine.
struct Seen(*const bpf_sk_lookup);

macro_rules! word {
    ($seen:expr, $($field:tt)+) => {
        // SAFETY: the context is the kernel's; the verifier rewrites the access.
        unsafe { (&raw const (*$seen.0).$($field)+).read_volatile() }
    };
}

impl Seen {
    #[inline(always)]
    fn protocol(&self) -> u32 {
        word!(self, protocol)
    }

    #[inline(always)]
    fn family(&self) -> u32 {
        word!(self, family)
    }

    #[inline(always)]
    fn port(&self) -> u32 {
        word!(self, local_port)
    }

    #[inline(always)]
    fn dialled(&self, port: u32) -> Dialled {
        // Both families are read, because the compiler merges two branches that read into one with a
        // computed address, which the verifier rejects. Fields of the other family are zero.
        let (remote_ip4, local_ip4) = (word!(self, remote_ip4), word!(self, local_ip4));
        let remote_ip6 = [
            word!(self, remote_ip6[0]),
            word!(self, remote_ip6[1]),
            word!(self, remote_ip6[2]),
            word!(self, remote_ip6[3]),
        ];
        let local_ip6 = [
            word!(self, local_ip6[0]),
            word!(self, local_ip6[1]),
            word!(self, local_ip6[2]),
            word!(self, local_ip6[3]),
        ];
        let (source, destination) = if self.family() == AF_INET {
            (
                mapped(remote_ip4.to_ne_bytes()),
                mapped(local_ip4.to_ne_bytes()),
            )
        } else {
            (address(remote_ip6), address(local_ip6))
        };
        Dialled {
            source,
            destination,
            port,
        }
    }
}

/// Four words in the byte order of the packet.
#[inline(always)]
fn address(words: [u32; 4]) -> [u8; 16] {
    let [a, b, c, d] = words.map(u32::to_ne_bytes);
    [
        a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3], c[0], c[1], c[2], c[3], d[0], d[1], d[2],
        d[3],
    ]
}
