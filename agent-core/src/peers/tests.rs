use rstest::rstest;

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

/// Whatever comes in one look, no more is kept than fits.
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
                client: agent_common::service::mapped([10, 0, (peer >> 8) as u8, peer as u8]),
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
