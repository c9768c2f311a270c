use pathproof_facts::cause::{Cause, ProbeCause};
use pathproof_report::Report;
use pathproof_samples as sample;
use pathproof_samples::probed;
use rstest::rstest;

use super::{Chain, render};

fn page(report: &Report) -> String {
    render(report, false)
}

/// Compares pages with crates/cli/testdata/why. PATHPROOF_BLESS rewrites them, to be reviewed.
#[rstest]
#[case("proven", sample::proven())]
#[case("flushed", probed::flushed())]
#[case("broken", sample::broken())]
#[case("dropped", probed::dropped())]
#[case("filtered", probed::filtered())]
#[case("never_worked", probed::never_worked())]
#[case("degraded", sample::degraded())]
#[case("blind", sample::blind())]
#[case("crowded", probed::crowded())]
fn pages(#[case] name: &str, #[case] report: Report) {
    let page = page(&report);
    crate::page::assert_page("why", name, &page);
}

#[test]
fn flushed_rules_are_explained_stage_by_stage() {
    let report = probed::flushed();
    let chain = Chain::of(&report);
    assert_eq!(chain.lanes.len(), 5);
    let first = &chain.lanes[0];
    assert!(first.counts);
    let steps: Vec<(&str, bool)> = first
        .steps
        .iter()
        .map(|step| (step.stage.name(), step.reached))
        .collect();
    assert_eq!(
        steps,
        [("sent", true), ("arrived", true), ("translated", false)]
    );
    assert_eq!(first.steps[1].device.as_deref(), Some("pathproof-c0"));
    assert!(
        first.steps[2]
            .sentence
            .contains("untranslated through eth0"),
        "{first:?}"
    );
    let next: Vec<&str> = chain.next.iter().map(|remedy| &*remedy.subject).collect();
    assert_eq!(next, [Cause::Leaked.name(), Cause::Refused.name()]);
    let json = serde_json::to_value(&chain).unwrap();
    assert_eq!(json["lanes"][0]["steps"][2]["stage"], "translated");
    assert_eq!(json["lanes"][0]["to"], "10.96.240.1:80");
}

/// For UDP the observer cannot distinguish a leak from a loss; the TCP lane of the same path can.
#[test]
fn a_path_is_explained_once() {
    let mut report = probed::flushed();
    for lane in &mut report.verdict.families[0].lanes[3..] {
        probed::fail(lane, ProbeCause::LostBeforeLeaving, 8);
    }
    let page = page(&report);
    assert!(
        page.contains("The same on IPv4 host tcp, IPv4 off-cluster udp."),
        "{page}"
    );
    assert!(page.contains("The same on IPv4 node port udp."), "{page}");
    assert!(!page.contains("#lost"), "{page}");
}

#[test]
fn leaving_is_expected() {
    let page = page(&sample::blind());
    assert!(page.contains("as intended"), "{page}");
}

/// The reason of a family may differ from the node's, which is the reason of the worst family.
#[test]
fn json_has_the_sentence_of_each_family() {
    let report = probed::flushed();
    let json = serde_json::to_value(Chain::of(&report)).unwrap();
    let verdict = &report.verdict;
    assert_eq!(json["reason"], verdict.reason());
    for (family, shown) in verdict
        .families
        .iter()
        .zip(json["families"].as_array().unwrap())
    {
        assert_eq!(shown["reason"], verdict.reason_of(family));
    }
}

#[test]
fn an_outage_without_a_success_is_explained() {
    let page = page(&probed::dropped());
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "nothing succeeded since 24 s ago",
        "2320 connections from clients outside the node to default/np, default/cip, default/lb",
        "Ruled out: a filter on the sentinel's addresses",
        "also IPv4: 4 large transfers of the pod probe failed",
    ] {
        assert!(words.contains(part), "{part}: {page}");
    }
}
