//! The remedies for every cause and every reason for Unknown.

use std::fmt::Write as _;

use pathproof_facts::cause::{Cause, ProbeCause, State, Why};
use pathproof_facts::names;
use pathproof_facts::testing::assert_words;
use pathproof_judge::explain::*;
use pathproof_judge::verdict::Verdict;
use pathproof_wire::service::Family;

use crate as sample;
use crate::probed;

fn told(text: &mut String, remedy: &Remedy) {
    // Only who prints the page knows the address of the docs.
    assert!(!remedy.advice.contains("docs/"), "{remedy:?}");
    let _ = writeln!(text, "  {}, {}", remedy.subject, remedy.page);
    let _ = writeln!(text, "    {}", remedy.advice);
    for command in &remedy.commands {
        let _ = writeln!(text, "    $ {command}");
    }
}

/// A sound verdict whose families have these causes.
fn with(causes: [Option<Cause>; 2]) -> Verdict {
    let mut verdict = sample::proven().verdict;
    for (family, cause) in verdict.families.iter_mut().zip(causes) {
        family.cause = cause;
    }
    verdict
}

#[test]
fn every_cause_leads_somewhere() {
    let mut text = String::new();
    for cause in Cause::ALL {
        for causes in [[Some(cause), None], [None, Some(cause)], [Some(cause); 2]] {
            let families = causes.iter().zip(Family::ALL);
            let families = families.filter_map(|(cause, family)| cause.map(|_| family));
            let families: Vec<&str> = families.map(names::of_family).collect();
            let _ = writeln!(text, "{}", families.join(" and "));
            for remedy in next(&with(causes)) {
                told(&mut text, &remedy);
            }
        }
    }
    for why in Why::ALL {
        let _ = writeln!(text, "nothing is known");
        told(&mut text, &of_why(why));
    }
    assert_words("remedies", &text);
}

fn order(verdict: &Verdict) -> Vec<String> {
    next(verdict)
        .into_iter()
        .map(|remedy| remedy.subject)
        .collect()
}

#[test]
fn what_accuses_the_node_comes_first() {
    assert_eq!(order(&sample::proven().verdict), [""; 0]);
    let mut broken = sample::broken().verdict;
    assert_eq!(order(&broken), ["leaked", "refused"]);
    broken.services[0].cause = Cause::Stale;
    assert_eq!(order(&broken), ["leaked", "refused", "stale"]);
    assert_eq!(order(&sample::blind().verdict), ["observer_blind"]);
    // A filter may also send ICMP errors.
    let mut verdict = sample::proven().verdict;
    probed::fail(
        &mut verdict.families[0].lanes[0],
        ProbeCause::Unreachable,
        4,
    );
    assert_eq!(order(&verdict), ["lost"]);
}

#[test]
fn a_lane_that_never_worked_gives_a_remedy_if_nothing_else_is_known() {
    let mut verdict = sample::proven().verdict;
    probed::never(&mut verdict.families[1].lanes[1], ProbeCause::Refused);
    assert_eq!(order(&verdict), [""; 0]);
    for state in [State::Unknown, State::Starting] {
        verdict.state = state;
        assert_eq!(order(&verdict), ["refused"]);
    }
    probed::fail(&mut verdict.families[1].lanes[0], ProbeCause::NoData, 4);
    assert_eq!(order(&verdict), ["no_data", "refused"]);
}

/// A UDP lane adds no remedy if the TCP lane explains its failure.
#[test]
fn an_explained_lane_adds_no_remedy() {
    let mut verdict = sample::proven().verdict;
    let lanes = &mut verdict.families[0].lanes;
    probed::fail(&mut lanes[0], ProbeCause::Leaked, 4);
    probed::fail(&mut lanes[3], ProbeCause::LostBeforeLeaving, 4);
    assert_eq!(order(&verdict), ["leaked"]);
    probed::fail(
        &mut lanes_of(&mut verdict)[4],
        ProbeCause::LostBeforeLeaving,
        4,
    );
    assert_eq!(order(&verdict), ["leaked", "lost"]);
}

fn lanes_of(verdict: &mut Verdict) -> &mut [pathproof_judge::verdict::LaneView] {
    &mut verdict.families[0].lanes
}

/// Two lanes of a family count as one, and the commands are those of the family.
#[test]
fn a_family_counts_once() {
    let mut verdict = sample::proven().verdict;
    for lane in &mut verdict.families[1].lanes[..2] {
        probed::fail(lane, ProbeCause::ForwardingOff, 4);
    }
    let remedies = next(&verdict);
    assert_eq!(remedies.len(), 1);
    assert!(
        remedies[0]
            .advice
            .contains("net.ipv6.conf.all.forwarding=1"),
        "{remedies:?}"
    );
}
