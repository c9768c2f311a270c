//! Every reason and message of the condition.

use std::fmt::Write as _;
use std::time::Duration;

use pathproof_facts::testing::assert_words;
use pathproof_facts::trace::{ProbePath, Transport};
use pathproof_judge::eligibility::Eligibility;
use pathproof_judge::verdict::{Evidence, Finding, Rule, Verdict};
use pathproof_report::condition::{MESSAGE_MAX, Reason, bounded, condition, message, says_leaving};
use pathproof_wire::service::Family;
use pathproof_witness::evidence::CoverageLoss;
use rstest::rstest;

use crate as sample;
use crate::{ago, probed};

fn tainted() -> Eligibility {
    Eligibility::Tainted {
        taint: "ToBeDeletedByClusterAutoscaler".to_owned(),
    }
}

#[test]
fn every_reason_has_its_name() {
    let mut text = String::new();
    for reason in Reason::all() {
        let _ = writeln!(text, "{}", reason.name());
    }
    assert_words("reasons", &text);
}

/// One realistic verdict of every state.
fn verdicts() -> [Verdict; 7] {
    let judged = |rule, evidence| {
        let mut verdict = sample::proven().verdict;
        let finding = Finding {
            family: Some(Family::V4),
            ..Finding::new(rule, evidence)
        };
        sample::set_finding(&mut verdict, 0, finding);
        verdict
    };
    let late = Evidence::Late {
        path: ProbePath::OffCluster,
        transport: Transport::Tcp,
        owners: Default::default(),
        late: Duration::from_secs(130),
        generation: Some(20_001),
        wanted: Some(20_003),
    };
    let (at, never) = (ago(60_000), None);
    let why = "the agent needs CAP_BPF".to_owned();
    let loss = Some(CoverageLoss::NotLoaded { why });
    [
        sample::proven().verdict,
        probed::filtered().verdict,
        sample::degraded().verdict,
        judged(Rule::StaleByProbes, late),
        sample::broken().verdict,
        judged(Rule::Starting, Evidence::Boot { at, never }),
        judged(Rule::ObserverBlind, Evidence::Unseen { loss }),
    ]
}

#[test]
fn every_state_has_its_message() {
    let mut text = String::new();
    for mut verdict in verdicts() {
        let state = verdict.state.name();
        let of = |eligibility, sound| {
            let verdict = Verdict {
                eligibility,
                ..verdict.clone()
            };
            condition(&verdict, sound)
        };
        for sound in [true, false] {
            let unseen = of(Eligibility::NeverSeen, sound);
            assert_eq!(unseen, of(Eligibility::Eligible, sound));
        }
        for node in [Eligibility::Eligible, tainted(), Eligibility::Deleting] {
            verdict.eligibility = node;
            for sound in [true, false] {
                let condition = condition(&verdict, sound);
                let leaving = if condition.leaving { ", leaving" } else { "" };
                let livez = if sound { 200 } else { 503 };
                let (status, reason) = (condition.status.name(), condition.reason.name());
                let _ = writeln!(text, "{state}, {livez}: {status}, {reason}{leaving}");
                let message = |lenience| message(&verdict, condition, lenience);
                let enforced = message(None);
                let audited = message(Some("--enforcement is audit"));
                assert_eq!(says_leaving(&enforced), condition.leaving);
                let _ = writeln!(text, "  {enforced}");
                if audited != enforced {
                    let _ = writeln!(text, "  {audited}");
                }
            }
        }
    }
    assert_words("condition", &text);
}

/// The limit is in bytes, and shorter messages are unchanged.
#[rstest]
#[case("x", MESSAGE_MAX, MESSAGE_MAX, false)]
#[case("x", MESSAGE_MAX + 1, MESSAGE_MAX, true)]
#[case("x", 3 * MESSAGE_MAX, MESSAGE_MAX, true)]
#[case("ä", MESSAGE_MAX / 2, MESSAGE_MAX, false)]
// A character is not split: 498 of two bytes, and three bytes of the ellipsis.
#[case("ä", MESSAGE_MAX / 2 + 1, MESSAGE_MAX - 1, true)]
fn long_messages_are_cut(
    #[case] letter: &str,
    #[case] letters: usize,
    #[case] bytes: usize,
    #[case] cut: bool,
) {
    let whole = letter.repeat(letters);
    let kept = bounded(whole.clone());
    assert_eq!((kept.len(), kept.ends_with('…')), (bytes, cut));
    assert!(whole.starts_with(kept.trim_end_matches('…')));
}
