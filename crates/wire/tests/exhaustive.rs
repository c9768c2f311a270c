//! Bounded proofs: every value of a small space, where the properties of the other files and the fuzzers draw some.
//! Debug builds panic if an index is out of bounds or a number overflows.

use std::collections::HashSet;
use std::net::SocketAddr;

use frame::Frame;
use packet::Extension::{Fragment, HopByHop};
use packet::{Packet, VLAN, flag};
use pathproof_wire::abi::{LOSS_WINDOW_NS, RETRANSMIT_NS};
use pathproof_wire::evidence::{Fault, Outcome, Pending, state};
use pathproof_wire::gate::{ConnectionMark, Rate, Sampled, WHOLE, window_shift};
use pathproof_wire::packet::{Link, Segment, parse, parse_plain, udp};
use pathproof_wire::probe::answer::answer;
use pathproof_wire::probe::{UDP_MAGIC, packet as probe};
use pathproof_wire::service::{ExpectedHandling, Family, frontend_flag};
use pathproof_wire::transition::{Kind, Sighting, advance, detail, failed};
use rstest::rstest;

#[path = "parts/frame.rs"]
pub mod frame;
#[path = "../../../tests/src/packet.rs"]
pub mod packet;

const ISN: u32 = 0xfeed_beef;

/// Each kind of packet that a parser accepts, with the fewest headers.
fn packets(family: Family) -> [Packet; 6] {
    let (client, server) = match family {
        Family::V4 => ("198.18.0.1:40001", "198.18.0.2:8080"),
        Family::V6 => ("[2001:2::1]:40001", "[2001:2::2]:8080"),
    };
    let [client, server]: [SocketAddr; 2] =
        [client, server].map(|at| at.parse().expect("an address"));
    let payload = [&UDP_MAGIC[..], &ISN.to_be_bytes()].concat();
    let syn = packet::syn(client, server, ISN);
    let unreachable = match family {
        Family::V4 => 3,
        Family::V6 => 1,
    };
    [
        packet::icmp_error(server.ip(), client.ip(), unreachable, 1, &syn),
        syn,
        packet::syn_ack(server, client, ISN),
        packet::reset(server, client, ISN),
        packet::tcp(client, server, flag::ACK | flag::PSH, 1, 1, &payload),
        packet::udp(client, server, &payload),
    ]
}

type Seen = Result<Option<Segment>, Fault>;

/// Results of the observer's parsers, with what holds for any bytes. The sentinel's parsers must only not fail.
fn parsed(bytes: &[u8], link: Link) -> (Seen, Option<(Segment, usize)>) {
    let seen = parse(&bytes, link);
    if let Some(plain) = parse_plain(&bytes, link) {
        assert_eq!(seen, Ok(Some(plain)), "{bytes:x?}");
    }
    if let Ok(Some(segment)) = seen {
        assert!((segment.payload as usize) < bytes.len(), "{bytes:x?}");
    }
    let datagram = udp::parse(&bytes, link).ok().flatten();
    if let Some((segment, at)) = datagram {
        assert!(at + segment.payload as usize <= bytes.len(), "{bytes:x?}");
    }
    if link == Link::Ethernet
        && let Some(packet) = probe::parse(&bytes)
    {
        let end = packet.transport + packet.header_len;
        assert!(end as usize <= bytes.len(), "{bytes:x?}");
        let _ = answer(&Frame::new(bytes.to_vec()), &packet);
    }
    (seen, datagram)
}

/// Every packet with each value of each byte, whole, cut after that byte, and cut by one byte. A cut packet is no
/// evidence, or the same as the whole one: a length may have become smaller.
#[rstest]
fn each_byte_and_each_length(
    #[values(Family::V4, Family::V6)] family: Family,
    #[values(Link::Ethernet, Link::None)] link: Link,
    #[values(false, true)] longer: bool,
) {
    for packet in packets(family) {
        let packet = match longer {
            true => packet
                .tagged(VLAN)
                .ip_options(2)
                .extension(HopByHop(0))
                .extension(Fragment(0)),
            false => packet,
        };
        let bytes = match link {
            Link::Ethernet => packet.bytes(),
            Link::None => packet.without_link().bytes(),
        };
        let sound = parsed(&bytes, link);
        assert!(
            matches!(sound.0, Ok(Some(_))) || sound.1.is_some(),
            "{bytes:x?}"
        );
        for at in 0..bytes.len() {
            assert_eq!(parsed(&bytes[..at], link).1, None);
            let mut changed = bytes.clone();
            for value in 0..=u8::MAX {
                changed[at] = value;
                let whole = parsed(&changed, link);
                for length in [at + 1, bytes.len() - 1] {
                    let cut = parsed(&changed[..length], link);
                    let is_packet = matches!(cut.0, Ok(Some(_)));
                    assert!(!is_packet || cut.0 == whole.0, "{changed:x?} to {length}");
                    let is_datagram = cut.1.is_some();
                    assert!(!is_datagram || cut.1 == whole.1, "{changed:x?} to {length}");
                }
            }
        }
    }
}

/// A followed connection, with what was counted for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Account {
    state: u32,
    /// Index in [`AGES`].
    age: usize,
    /// Bits of [`Outcome`]s, without retransmissions.
    counted: u32,
    is_proven: bool,
    /// Whether the agent counted it as failed.
    has_failed: bool,
}

/// One age of each span that the rules distinguish.
const AGES: [u64; 3] = [0, RETRANSMIT_NS, LOSS_WINDOW_NS + 1];

/// Every kind of sighting with every combination of the details that the rules read of it.
fn sightings() -> Vec<Sighting> {
    use Kind::{
        Again, AnswerIn, AnswerOut, DataAnswered, DataIn, DataOut, Misdelivered, RefusalOut,
        Shared, ToEndpoint, ToLeft, ToStranger, Untranslated,
    };
    let plain = [
        Again,
        Shared,
        ToLeft,
        ToStranger,
        Misdelivered,
        Untranslated,
        AnswerOut,
        DataIn,
        DataOut,
        DataAnswered,
    ];
    let mut all = plain.map(|kind| Sighting::new(kind, 0)).to_vec();
    let details = [
        (ToEndpoint, detail::PROVEN | detail::ASIDE),
        (
            AnswerIn,
            detail::FROM_ENDPOINT | detail::ACCEPTS | detail::LAST,
        ),
        (RefusalOut, detail::ICMP),
    ];
    for (kind, bits) in details {
        let of_kind = (0..=bits).filter(|some| some & !bits == 0);
        all.extend(of_kind.map(|some| Sighting::new(kind, some)));
    }
    all
}

/// Everything that can follow: time passes, the agent sweeps, or a packet is seen.
fn after(now: Account, fields: &Pending, sightings: &[Sighting]) -> Vec<Account> {
    let age = AGES[now.age];
    let mut next = Vec::new();
    if now.age + 1 < AGES.len() {
        next.push(Account {
            age: now.age + 1,
            ..now
        });
    }
    let at = Pending {
        state: now.state,
        ..*fields
    };
    if failed(&at, age).is_some() {
        next.push(Account {
            has_failed: true,
            ..now
        });
    }
    for sighting in sightings {
        let step = advance(now.state, *sighting, fields, age);
        assert_eq!(step.state & now.state, now.state, "{now:x?} {sighting:?}");
        assert!(!(step.proof && now.is_proven), "{now:x?} {sighting:?}");
        let is_new = now.state & state::FAILING == 0;
        let may_fail = ExpectedHandling::from_byte(fields.owed).is_forward();
        assert!(
            step.doubt.is_none() || (is_new && may_fail),
            "{now:x?} {sighting:?}"
        );
        let counts = step.outcome.filter(|one| *one != Outcome::Retransmitted);
        let bit = counts.map_or(0, |outcome| 1 << outcome as u32);
        assert_eq!(
            now.counted & bit,
            0,
            "twice {counts:?}: {now:x?} {sighting:?}"
        );
        next.push(Account {
            state: step.state,
            counted: now.counted | bit,
            is_proven: now.is_proven || step.proof,
            ..now
        });
    }
    next
}

/// All sequences of sightings and times, however long: each account that any of them reaches. A connection is
/// answered, rejected or failed, and never two of these. After a failure nothing else of it is counted.
#[rstest]
fn one_connection_one_outcome(
    #[values(0, 1, 2, 3, 4)] owed: u8,
    #[values(0, frontend_flag::HOST_ENDPOINT)] flags: u8,
) {
    let fields = Pending {
        owed,
        flags,
        ..Pending::default()
    };
    let sightings = sightings();
    let mut known = HashSet::from([Account::default()]);
    let mut left = vec![Account::default()];
    while let Some(now) = left.pop() {
        let has = |outcome: Outcome| now.counted >> outcome as u32 & 1;
        let ends = has(Outcome::Answered) + has(Outcome::Rejected) + u32::from(now.has_failed);
        assert!(ends <= 1, "{now:x?}");
        for next in after(now, &fields, &sightings) {
            let through = 1 << Outcome::Forwarded as u32 | 1 << Outcome::Answered as u32;
            let is_late = now.has_failed && (next.counted & !now.counted) & through != 0;
            assert!(!is_late, "{now:x?} to {next:x?}");
            if known.insert(next) {
                left.push(next);
            }
        }
    }
    // Otherwise the search ended early.
    assert!(known.len() > 1_000, "{}", known.len());
    let fails = known.iter().any(|account| account.has_failed);
    assert_eq!(fails, ExpectedHandling::from_byte(owed).is_forward());
}

const EDGES: [u32; 8] = [0, 1, WHOLE - 1, WHOLE, 2_048, 4_097, u32::MAX - 1, u32::MAX];

/// Any content of the map, such as that of another version, and any window.
#[test]
fn rates_of_any_content() {
    let mut index = [0; 6];
    loop {
        let [window, seen, shift, high, high_before, turned] = index.map(|at: usize| EDGES[at]);
        let rate = Rate {
            window,
            seen,
            shift,
            high,
            high_before,
            turned,
        };
        for now in [
            window,
            window.wrapping_add(1),
            window.wrapping_sub(1),
            0,
            u32::MAX,
        ] {
            for number in [0, 1, 1 << 12, u32::MAX] {
                let mut taken = rate;
                let sampled = taken.take(now, number);
                assert_eq!(taken.window, now, "{rate:?}");
                assert_eq!(
                    taken.includes(now, number),
                    sampled != Sampled::Out,
                    "{rate:?}"
                );
                // A rate of an older window excludes no connection.
                assert!(taken.includes(now.wrapping_add(2), number), "{rate:?}");
            }
        }
        // Counts up like an odometer.
        let Some(place) = index.iter().position(|at| at + 1 < EDGES.len()) else {
            return;
        };
        index[place] += 1;
        index[..place].fill(0);
    }
}

/// A mark is found in its turn and in the next, and not after two, in each slot and whatever the word held.
#[test]
fn marks_of_every_turn() {
    let words = [
        0,
        1,
        0x0fff,
        0x00ff_ffff,
        0x7fff_ffff,
        0xff00_0fff,
        u32::MAX,
    ];
    for turn in 0..=u8::MAX {
        for isn in 0..100 {
            // The first and the last window of a turn.
            let at = |turn: u8, window| ConnectionMark::new(u32::from(turn) << 5 | window, isn);
            for word in words {
                let word = at(turn, 0).set_in(word);
                assert!(at(turn, 31).is_in(word), "{turn} {isn} {word:x}");
                assert!(
                    at(turn.wrapping_add(1), 0).is_in(word),
                    "{turn} {isn} {word:x}"
                );
                let later = at(turn.wrapping_add(2), 0);
                assert!(!later.is_in(word), "{turn} {isn} {word:x}");
            }
        }
    }
}

/// A window is never longer than 2^27 ns if a tick is not, and shifts stay below the width of the counter.
#[test]
fn windows_of_any_tick() {
    let powers = (0..u64::BITS).map(|power| 1_u64 << power);
    let ticks = powers.flat_map(|tick| [tick - 1, tick, tick + 1]);
    for tick in ticks.chain([u64::MAX]) {
        let shift = window_shift(tick);
        assert!(shift <= 10, "{tick}");
        assert!(tick > 1 << 27 || tick << shift <= 1 << 27, "{tick}");
    }
}
