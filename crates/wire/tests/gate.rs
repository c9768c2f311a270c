//! The sampling gate is bounded, decides the same at every hook, and favours no sender.

use pathproof_wire::gate::{
    ConnectionMark, FOLLOWED_WINDOWS, Glance, LOOKED_WINDOWS, Marks, Rate, Sampled,
    TRIES_PER_WINDOW, WHOLE, Wanted, WatchedData, number, window_shift,
};
use pathproof_wire::packet::{Kind, Segment};
use pathproof_wire::service::{Family, mapped};
use pathproof_wire::udp::Ports;
use proptest::prelude::*;
use rstest::rstest;

const SEED: u64 = 0x1234_5678_9abc_def1;
/// An arbitrary window other than the first.
const NOW: u32 = 70_000;

fn random(state: &mut u64) -> u32 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1);
    (*state >> 32) as u32
}

/// Makes `each` connections in each of `windows` windows. Returns the decisions of the last window.
fn busy(rate: &mut Rate, from: u32, windows: u32, each: u32) -> Vec<Sampled> {
    let (mut state, mut last) = (1, Vec::new());
    for window in from..from + windows {
        last = (0..each)
            .map(|_| rate.take(window, number(random(&mut state), SEED)))
            .collect();
    }
    last
}

fn followed(decisions: &[Sampled]) -> u32 {
    let of = decisions.iter().filter(|one| **one != Sampled::Out);
    of.count() as u32
}

#[rstest]
#[case(1)]
#[case(WHOLE - 1)]
fn a_quiet_service_is_followed_whole(#[case] each: u32) {
    let decisions = busy(&mut Rate::default(), NOW, 10, each);
    assert!(decisions.iter().all(|one| *one == Sampled::First));
}

/// At any higher rate, between half of [`WHOLE`] and all of it is followed, except for deviations of the
/// hash.
#[rstest]
#[case(100)]
#[case(1_300)]
#[case(10_000)]
#[case(50_000)]
fn a_busy_service_is_sampled(#[case] each: u32) {
    let of = followed(&busy(&mut Rate::default(), NOW, 5, each));
    assert!((WHOLE / 4..=WHOLE * 2).contains(&of), "{of}");
}

/// The number of followed connections is bounded even in the first window of a burst.
#[test]
fn a_sudden_rush() {
    let of = followed(&busy(&mut Rate::default(), NOW, 1, 50_000));
    assert!((WHOLE..=10 * WHOLE).contains(&of), "{of}");
}

#[test]
fn two_windows_after_a_rush_all_connections_are_followed() {
    const FEW: u32 = WHOLE - 1;
    let mut rate = Rate::default();
    busy(&mut rate, NOW, 4, 10_000);
    let later = busy(&mut rate, NOW + 5, 2, FEW);
    assert_eq!(followed(&later), FEW);
    let again = later.iter().filter(|one| **one == Sampled::MaybeAgain);
    assert!(again.count() as u32 > FEW / 2, "{later:?}");
    // 134 s are 1,023 to 2,047 windows. The largest shift is remembered for 2,048 windows at least and
    // twice as many at most.
    let much_later = busy(&mut rate, NOW + 2_040, 2, FEW);
    assert!(much_later.contains(&Sampled::MaybeAgain), "{much_later:?}");
    busy(&mut rate, NOW + 2_100, 1, 1);
    let over = busy(&mut rate, NOW + 4_200, 2, FEW);
    assert!(over.iter().all(|one| *one == Sampled::First), "{over:?}");
}

/// The same share of connections is followed for sequential, similar and random sequence numbers, and for
/// each of a hundred clients.
#[rstest]
#[case::in_sequence(|index: u32| index)]
#[case::strided(|index: u32| index.wrapping_mul(64_000))]
#[case::in_the_upper_bits(|index: u32| index << 12)]
#[case::random(|index: u32| random(&mut u64::from(index)))]
fn no_sequence_number_is_favoured(#[case] isn: fn(u32) -> u32) {
    const CLIENTS: u32 = 100;
    const EACH: u32 = 20 * WHOLE + 5;
    let mut rate = Rate::default();
    busy(&mut rate, NOW, 2, EACH);
    let mut by_client = vec![0_u32; CLIENTS as usize];
    let mut index = 0;
    for window in NOW + 2..NOW + 402 {
        for _ in 0..EACH {
            index += 1;
            let of = rate.take(window, number(isn(index), SEED));
            by_client[(index % CLIENTS) as usize] += u32::from(of != Sampled::Out);
        }
    }
    // One in 32 of 258,000 is 81 for each client, with a standard deviation of 9.
    let sum: u32 = by_client.iter().sum();
    assert!((7_600..8_550).contains(&sum), "{sum}");
    assert!(
        by_client.iter().all(|count| (35..=130).contains(count)),
        "{by_client:?}"
    );
}

#[test]
fn two_services_choose_the_same() {
    let (mut one, mut other) = (Rate::default(), Rate::default());
    assert_eq!(
        busy(&mut one, NOW, 3, 700),
        busy(&mut other, NOW + 9, 3, 700)
    );
}

#[test]
fn what_arrives_is_known_when_it_leaves() {
    let mut rate = Rate::default();
    busy(&mut rate, NOW, 3, 5_000);
    let mut state = 9;
    for _ in 0..1_000 {
        let number = number(random(&mut state), SEED);
        let is_out = rate.take(NOW + 2, number) == Sampled::Out;
        assert_eq!(rate.includes(NOW + 2, number), !is_out);
    }
    assert!(rate.includes(NOW + 4, 1), "nothing came for a while");
}

#[rstest]
#[case::a_hundred_ticks_a_second(10_000_000, 3)]
#[case::two_hundred_and_fifty(4_000_000, 5)]
#[case::three_hundred(3_333_333, 5)]
#[case::a_thousand(1_000_000, 7)]
#[case::a_clock_that_is_fine(1, 10)]
#[case::nonsense(u64::MAX, 0)]
fn a_window_is_65_to_134_ms(#[case] tick_ns: u64, #[case] shift: u32) {
    assert_eq!(window_shift(tick_ns), shift);
    if (1_000_000..=10_000_000).contains(&tick_ns) {
        assert!((65_000_000..=134_300_000).contains(&(tick_ns << shift)));
    }
}

fn datagram(client: u32, id: u32, service: u16) -> Segment {
    Segment {
        source: mapped(client.to_be_bytes()),
        destination: mapped([10, 96, 0, 10]),
        kind: Kind::Datagram,
        family: Family::V4,
        isn: id,
        payload: 64,
        source_port: [200, 1],
        destination_port: service.to_be_bytes(),
        beginning: id.to_be_bytes(),
    }
}

fn glance(segment: &Segment) -> Glance {
    let last = |address: [u8; 16]| {
        let [.., m, n, o, p] = address;
        u32::from_ne_bytes([m, n, o, p])
    };
    let ([a, b], [c, d]) = (segment.source_port, segment.destination_port);
    Glance {
        source: last(segment.source),
        destination: last(segment.destination),
        ports: u32::from_ne_bytes([a, b, c, d]),
        beginning: u32::from_ne_bytes(segment.beginning),
        payload: segment.payload,
    }
}

fn answer_to(segment: &Segment) -> Segment {
    Segment {
        source: segment.destination,
        destination: segment.source,
        source_port: segment.destination_port,
        destination_port: segment.source_port,
        payload: 128,
        ..*segment
    }
}

const TO: Ports = Ports {
    from: false,
    to: true,
};
const FROM: Ports = Ports {
    from: true,
    to: false,
};

proptest! {
    /// A followed datagram is read wherever it leaves, with any addresses and among any other datagrams.
    /// Its answer is read too, until the client is marked as answered.
    #[test]
    fn what_is_followed_is_read_everywhere(
        client: u32, id: u32, now: u16, after in 0..=FOLLOWED_WINDOWS, node: u32, dns: bool,
        others in proptest::collection::vec((any::<u32>(), any::<u32>()), 0..200),
    ) {
        let mut marks = Box::<Marks>::default();
        let service = if dns { 53 } else { 443 };
        let asked = datagram(client, id, service);
        marks.follow(now, &asked);
        for (client, id) in others {
            let other = datagram(client, id, service);
            marks.wants(now, &glance(&other), TO, 0);
            if (client, id) != (asked_by(&asked), id_of(&asked)) {
                marks.follow(now, &other);
                // Another message of the same client is another flow only on the DNS port.
                if dns || client != asked_by(&asked) {
                    marks.answer(&answer_to(&other));
                }
            }
        }
        let now = now.wrapping_add(after);
        // Marks store window 0 as window 1.
        prop_assume!(now != 0);
        let masqueraded = Segment { source: mapped(node.to_be_bytes()), ..asked };
        prop_assert_eq!(marks.wants(now, &glance(&masqueraded), TO, 1), Wanted::Yes);
        let answer = answer_to(&asked);
        prop_assert_eq!(marks.wants(now, &glance(&answer), FROM, 1), Wanted::Yes);
        marks.answer(&answer);
        prop_assert_eq!(marks.wants(now, &glance(&answer), FROM, 1), Wanted::No);
    }
}

fn asked_by(segment: &Segment) -> u32 {
    let [.., m, n, o, p] = segment.source;
    u32::from_be_bytes([m, n, o, p])
}

fn id_of(segment: &Segment) -> u32 {
    u32::from_be_bytes(segment.beginning)
}

#[test]
fn a_flow_is_read_once_in_a_while() {
    let mut marks = Box::<Marks>::default();
    let bulk = |id| glance(&datagram(7, id, 443));
    assert_eq!(marks.wants(100, &bulk(1), TO, 0), Wanted::Yes);
    for window in 100..=100 + LOOKED_WINDOWS {
        assert_eq!(marks.wants(window, &bulk(2), TO, 0), Wanted::No);
    }
    assert_eq!(marks.wants(100, &bulk(2), TO, 1), Wanted::Yes, "going out");
    let later = 101 + LOOKED_WINDOWS;
    assert_eq!(marks.wants(later, &bulk(3), TO, 0), Wanted::Yes);
    assert_eq!(marks.wants(later, &bulk(3), FROM, 0), Wanted::No);
}

#[test]
fn flows_of_one_destination_are_bounded() {
    let mut marks = Box::<Marks>::default();
    let count = |marks: &mut Marks, now, wanted| {
        let all = (0..5_000).map(|client| glance(&datagram(client, client, 443)));
        let of = all.map(|at| marks.wants(now, &at, TO, 0));
        of.filter(|one| *one == wanted).count()
    };
    assert_eq!(count(&mut marks, 5, Wanted::Yes), TRIES_PER_WINDOW as usize);
    assert!(count(&mut marks, 5, Wanted::OverRate) > 4_800);
    let elsewhere = Glance {
        destination: 99,
        ..glance(&datagram(1, 1, 443))
    };
    assert_eq!(marks.wants(5, &elsewhere, TO, 0), Wanted::Yes);
}

/// A mark is kept for one to two turns. Marks in the same word do not affect each other.
#[test]
fn a_connection_is_marked_for_a_turn() {
    const TURN: u32 = 32;
    let (mut state, mut words) = (7, vec![0_u32; 2048]);
    let numbers: Vec<u32> = (0..3_000).map(|_| random(&mut state)).collect();
    for isn in &numbers {
        let mark = ConnectionMark::new(NOW, *isn);
        words[mark.place] = mark.set_in(words[mark.place]);
    }
    let found = |windows: u32, isn: u32| {
        let mark = ConnectionMark::new(NOW + windows, isn);
        mark.is_in(words[mark.place])
    };
    for isn in &numbers {
        assert!((0..=TURN).all(|windows| found(windows, *isn)), "{isn}");
        assert!(!found(2 * TURN, *isn), "{isn}");
    }
    // 3,000 of 24,576 places are marked.
    let others = (0..10_000).filter(|_| found(1, random(&mut state))).count();
    assert!((900..1_400).contains(&others), "{others}");
}

/// Marks of the previous turn are kept, and those of two turns ago are not.
#[test]
fn marks_of_the_turn_before_stay() {
    let at = |turn: u32, isn: u32| ConnectionMark::new(turn << 5, isn);
    let place = at(0, 1).place;
    let others: Vec<u32> = (2..)
        .filter(|isn| at(0, *isn).place == place)
        .take(40)
        .collect();
    let first = at(7, 1).set_in(0);
    let isn = others
        .into_iter()
        .find(|isn| !at(7, *isn).is_in(first))
        .expect("another place");
    let second = at(8, isn).set_in(first);
    assert!(at(8, 1).is_in(second) && at(8, isn).is_in(second));
    let third = at(9, isn).set_in(second);
    assert!(!at(9, 1).is_in(third) && at(9, isn).is_in(third));
    // Another CPU is slightly ahead.
    let behind = at(8, 1).set_in(at(9, isn).set_in(0));
    assert!(at(8, isn).is_in(behind) && at(9, isn).is_in(behind) && at(9, 1).is_in(behind));
    // The turn's number has 8 bits.
    assert!(at(255, 1).set_in(0) != 0 && at(256, 1).is_in(at(255, 1).set_in(0)));
}

/// A place is kept while an answered connection is followed, and then reused.
#[test]
fn data_is_watched_where_there_is_a_place() {
    let mut watched = WatchedData::NONE;
    assert!(!watched.has(0), "no place was taken");
    watched.watch(1_000, 7);
    assert!(watched.has(7));
    assert!(!watched.has(8));
    let taken: Vec<u32> = (0..200_000).filter(|number| *number != 7).collect();
    for number in &taken {
        watched.watch(1_010, *number);
    }
    assert!(watched.has(7), "its place is kept");
    let kept = taken.iter().filter(|number| watched.has(**number));
    assert_eq!(kept.count(), 511);
    for number in &taken {
        watched.watch(1_040, *number);
    }
    assert!(!watched.has(7));
}
