use pathproof_wire::evidence::{Pending, PendingKey, state};
use pathproof_wire::service::{NEAR, SourceClass, frontend_flag};
use rstest::rstest;

use super::sample::LISTED;
use super::*;

const SERVICE: u32 = 5;
const ANSWERED: u32 = state::FORWARDED | state::ANSWER_IN;

#[rstest]
#[case::answered(7, ANSWERED, SourceClass::Pod, 0, Some((7, 1, 0)), false)]
#[case::silent(7, state::FORWARDED, SourceClass::Pod, 0, Some((7, 0, 1)), true)]
#[case::of_an_outsider(7, state::FORWARDED, SourceClass::External, 0, Some((7, 0, 1)), false)]
#[case::here(NEAR.into(), ANSWERED, SourceClass::Pod, 0, None, false)]
#[case::not_known_where(0, ANSWERED, SourceClass::Pod, 0, None, false)]
#[case::here_and_silent(NEAR.into(), state::FORWARDED, SourceClass::Pod, 0, None, false)]
#[case::never_sent_on(0, state::LEAKED, SourceClass::Pod, 0, None, false)]
#[case::ambiguous(7, state::FORWARDED | state::AMBIGUOUS, SourceClass::Pod, 0, None, false)]
#[case::ambiguous_and_answered(7, ANSWERED | state::AMBIGUOUS, SourceClass::Pod, 0, Some((7, 1, 0)), false)]
#[case::probe(
    7,
    state::FORWARDED,
    SourceClass::Pod,
    frontend_flag::SENTINEL,
    None,
    false
)]
fn connections_by_node(
    #[case] peer: u32,
    #[case] state: u32,
    #[case] class: SourceClass,
    #[case] flags: u8,
    #[case] counted: Option<(u16, u32, u32)>,
    #[case] told: bool,
) {
    let mut sample = PeerSample::default();
    let pending = Pending {
        state,
        note: peer,
        class: class as u8,
        service: SERVICE,
        flags,
        ..Pending::default()
    };
    sample.add(&PendingKey::default(), &pending);
    let counts = sample.counts.iter();
    let counts: Vec<_> = counts
        .map(|count| (count.peer, count.answered, count.unanswered))
        .collect();
    assert_eq!(counts, Vec::from_iter(counted));
    assert_eq!(!sample.silences.is_empty(), told);
    let is_near = peer == u32::from(NEAR) && state & state::ANSWERED != 0;
    assert_eq!(sample.near, Vec::from_iter(is_near.then_some(SERVICE)));
}

/// A sample with more entries than fit does not exceed the limits.
#[test]
fn memory_is_bounded() {
    let mut ledger = PeerLedger::default();
    for round in 0..4u64 {
        let mut sample = PeerSample::default();
        for peer in 1..NEAR {
            let answered = if round == 0 {
                ANSWERED
            } else {
                state::FORWARDED
            };
            let pending = Pending {
                state: answered,
                note: peer.into(),
                client: pathproof_wire::service::mapped([10, 0, (peer >> 8) as u8, peer as u8]),
                ..Pending::default()
            };
            sample.add(&PendingKey::default(), &pending);
        }
        assert!(sample.silences.len() <= LISTED);
        ledger.absorb(
            &sample,
            Mono(round),
            (Duration::MAX, true),
            &BTreeMap::new(),
        );
    }
    let family = ledger.family(Family::V4);
    assert_eq!(family.totals.len(), PEERS);
    assert!(family.worked.len() <= PEERS && family.silent.len() <= KEPT);
}

const OVERLAY: u32 = 7;
const UPLINK: u32 = 2;

/// A sample of connections to these nodes: node, device, and whether it was answered.
fn look(ledger: &mut PeerLedger, at: u64, connections: &[(u16, u32, bool)]) {
    let mut sample = PeerSample::default();
    for (peer, device, answered) in connections {
        let pending = Pending {
            state: if *answered {
                ANSWERED
            } else {
                state::FORWARDED
            },
            note: (*peer).into(),
            left_by: *device,
            range: 100 + u32::from(*peer),
            class: SourceClass::External as u8,
            service: SERVICE,
            ..Pending::default()
        };
        sample.add(&PendingKey::default(), &pending);
    }
    let names = BTreeMap::from([
        (OVERLAY, Arc::from("flannel.1")),
        (UPLINK, Arc::from("eth0")),
    ]);
    sample.name_devices(|index| names.get(&index).cloned());
    let text = serde_json::to_string(&sample).unwrap();
    assert_eq!(serde_json::from_str::<PeerSample>(&text).unwrap(), sample);
    let service = ServiceInfo {
        endpoints: 3,
        ..ServiceInfo::plain("shop", "web", Family::V4)
    };
    let directory = BTreeMap::from([(SERVICE, service)]);
    let limits = (Duration::from_secs(60), true);
    ledger.absorb(&sample, Mono(at), limits, &directory);
}

/// Numbers of nodes and of connections that went astray.
fn astray(ledger: &PeerLedger) -> Option<(usize, u32)> {
    let mut astray = ledger.astray(Family::V4);
    let (device, found) = astray.next()?;
    assert_eq!((&**device, astray.next()), ("flannel.1", None));
    assert_eq!(found.by, BTreeSet::from(["eth0".into()]));
    assert_eq!(found.services[&SERVICE], "shop/web");
    Some((found.peers(), found.connections))
}

#[test]
fn connections_that_leave_by_another_device_are_astray_until_the_usual_one_answers() {
    let mut ledger = PeerLedger::default();
    look(
        &mut ledger,
        1,
        &[(1, OVERLAY, true), (2, OVERLAY, true), (3, UPLINK, true)],
    );
    // Node 1 is only silent, and the other ranges have no usual device yet.
    look(
        &mut ledger,
        2,
        &[(1, OVERLAY, false), (3, UPLINK, false), (4, UPLINK, false)],
    );
    assert_eq!(astray(&ledger), None);
    look(&mut ledger, 3, &[(1, UPLINK, false), (1, UPLINK, false)]);
    assert_eq!(astray(&ledger), Some((1, 2)));
    // Another range has always been reached by the uplink: its answer does not clear the overlay.
    look(&mut ledger, 4, &[(2, UPLINK, false), (3, UPLINK, true)]);
    assert_eq!(astray(&ledger), Some((2, 3)));
    look(&mut ledger, 5, &[(2, OVERLAY, true), (1, UPLINK, false)]);
    assert_eq!(astray(&ledger), None, "an answer of the same sample wins");
    look(&mut ledger, 6, &[(1, UPLINK, false)]);
    assert_eq!(astray(&ledger), Some((1, 1)));
    ledger.forget_silence();
    assert_eq!(astray(&ledger), None);
}

#[test]
fn routes_that_moved_are_learned_from_an_answer() {
    let mut ledger = PeerLedger::default();
    look(&mut ledger, 1, &[(1, OVERLAY, true), (2, OVERLAY, true)]);
    look(&mut ledger, 2, &[(1, UPLINK, false), (2, UPLINK, false)]);
    assert_eq!(astray(&ledger), Some((2, 2)));
    look(&mut ledger, 3, &[(1, UPLINK, true)]);
    assert_eq!(astray(&ledger), None);
    look(&mut ledger, 4, &[(1, UPLINK, false)]);
    assert_eq!(astray(&ledger), None, "the uplink is its usual device");
}

#[test]
fn a_count_without_a_device_teaches_nothing() {
    let count = PeerCount {
        family: Family::V4,
        peer: 1,
        range: 0,
        device: 0,
        answered: 1,
        unanswered: 0,
    };
    let sample = PeerSample {
        counts: vec![count],
        ..PeerSample::default()
    };
    assert!(sample.has_answer_of(Family::V4, 1) && !sample.has_answer_of(Family::V4, 2));
    let mut ledger = PeerLedger::default();
    ledger.absorb(&sample, Mono(1), (Duration::MAX, true), &BTreeMap::new());
    look(&mut ledger, 2, &[(1, UPLINK, false)]);
    assert_eq!(astray(&ledger), None);
}
