//! A lane in every state, with every cause and every reason for a void probe.

use std::fmt::Write as _;

use pathproof_facts::cause::ProbeCause;
use pathproof_facts::testing::assert_words;
use pathproof_facts::time::Mono;
use pathproof_facts::trace::{Lane, ProbePath, Transport};
use pathproof_judge::explain::*;
use pathproof_judge::verdict::finding::VoidCause;
use pathproof_judge::verdict::{LaneState, LaneView};
use pathproof_wire::service::Family;
use pathproof_witness::probes::VoidReason;
use rstest::rstest;

use crate::{ago, probed};

const NOW: Mono = Mono(3_600_000_000_000);

fn lane(path: ProbePath, transport: Transport) -> LaneView {
    LaneView {
        path,
        transport,
        client: Some("198.18.0.1".parse().unwrap()),
        last_pass: Some(ago(1_900)),
        ..probed::passing(Family::V4).remove(0)
    }
}

fn failing(path: ProbePath, cause: ProbeCause) -> LaneView {
    LaneView {
        state: LaneState::Failing,
        cause: Some(cause),
        failures: 4,
        ..lane(path, Transport::Tcp)
    }
}

/// Writes a sentence and checks that it ends with the meaning, if there is one.
fn said(text: &mut String, family: Family, view: &LaneView) {
    let sentence = sentence(family, view, NOW);
    let _ = writeln!(text, "  {sentence}");
    let told = view.cause.is_some() || view.void_cause.is_some();
    match meaning(family, view) {
        Some(meaning) => assert!(
            told && !meaning.is_empty() && sentence.ends_with(&meaning),
            "{sentence}: {meaning:?}"
        ),
        None => assert!(!told, "{sentence}"),
    }
}

#[test]
fn every_lane_has_its_sentence() {
    let mut text = String::new();
    let out = &mut text;
    let _ = writeln!(out, "lanes");
    for family in Family::ALL {
        for path in ProbePath::ALL {
            for transport in Transport::ALL {
                let label = lane_label(Lane {
                    path,
                    family,
                    transport,
                });
                let _ = writeln!(out, "  {label}");
            }
        }
    }
    for cause in ProbeCause::ALL {
        let _ = writeln!(out, "failing, {}", cause.name());
        for path in ProbePath::ALL {
            said(out, Family::V4, &failing(path, cause));
        }
        let local = LaneView {
            refusal_clear: true,
            failures: 1,
            ..failing(ProbePath::NodePort, cause)
        };
        said(out, Family::V6, &local);
        let unknown = LaneView {
            client: None,
            transport: Transport::Udp,
            ..failing(ProbePath::OffCluster, cause)
        };
        said(out, Family::V4, &unknown);
    }
    let _ = writeln!(out, "never worked");
    let never = |path, cause| LaneView {
        state: LaneState::NeverWorked,
        // A lane without a run of failures has no use for its flag `local`.
        refusal_clear: path == ProbePath::OffCluster,
        cause,
        ..lane(path, Transport::Tcp)
    };
    for path in ProbePath::ALL {
        said(out, Family::V4, &never(path, Some(ProbeCause::Refused)));
    }
    said(out, Family::V4, &never(ProbePath::Pod, None));
    let _ = writeln!(out, "void");
    let mut causes = VoidReason::ALL.map(VoidCause::Probe).to_vec();
    causes.extend([
        VoidCause::Damage("pathproof-c0 is gone".to_owned()),
        VoidCause::Unsent("permission denied".to_owned()),
        VoidCause::Former,
    ]);
    for cause in causes.into_iter().map(Some).chain([None]) {
        let view = LaneView {
            state: LaneState::Void,
            void_cause: cause,
            ..lane(ProbePath::OffCluster, Transport::Tcp)
        };
        said(out, Family::V4, &view);
    }
    let _ = writeln!(out, "passing and off");
    let passing = lane(ProbePath::NodePort, Transport::Udp);
    said(out, Family::V6, &passing);
    let without_time = LaneView {
        last_pass: None,
        ..passing.clone()
    };
    said(out, Family::V6, &without_time);
    for beside_cilium in [false, true] {
        let off = LaneView {
            state: LaneState::Off,
            beside_cilium,
            ..passing.clone()
        };
        said(out, Family::V6, &off);
    }
    let in_conflict = LaneView {
        state: LaneState::Off,
        conflicting_service: Some("shop/web".to_owned()),
        ..passing.clone()
    };
    said(out, Family::V6, &in_conflict);
    assert_words("lanes", &text);
}

/// A UDP lane is not reported separately if only the TCP lane of its path has an unambiguous cause.
#[rstest]
#[case::told(Some(ProbeCause::LostBeforeLeaving), Some(ProbeCause::Leaked), true)]
#[case::it_is_clear_itself(Some(ProbeCause::Leaked), Some(ProbeCause::Leaked), false)]
#[case::it_has_no_cause(None, Some(ProbeCause::Leaked), false)]
#[case::neither_is_clear(
    Some(ProbeCause::LostBeforeLeaving),
    Some(ProbeCause::LostBeforeLeaving),
    false
)]
#[case::tcp_has_no_cause(Some(ProbeCause::LostBeforeLeaving), None, false)]
fn tcp_explains_udp(
    #[case] udp: Option<ProbeCause>,
    #[case] tcp: Option<ProbeCause>,
    #[case] expected: bool,
) {
    let of = |path, transport, state, cause| LaneView {
        state,
        cause,
        ..lane(path, transport)
    };
    let (path, failing) = (ProbePath::NodePort, LaneState::Failing);
    let asked = of(path, Transport::Udp, failing, udp);
    let told = of(path, Transport::Tcp, failing, tcp);
    assert_eq!(
        is_explained(&asked, &[asked.clone(), told.clone()]),
        expected
    );
    // A TCP lane, and lanes of another path or state, are reported separately.
    let itself = of(path, Transport::Tcp, failing, udp);
    assert!(!is_explained(&itself, &[told]));
    let others = [
        of(ProbePath::Host, Transport::Tcp, failing, tcp),
        of(path, Transport::Udp, failing, tcp),
        of(path, Transport::Tcp, LaneState::NeverWorked, tcp),
    ];
    assert!(!is_explained(&asked, &others));
}
