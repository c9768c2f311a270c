use std::time::Duration;

use jiff::Timestamp;
use pathproof_report::{PortWay, Report};
use pathproof_samples as sample;
use pathproof_wire::service::{Family, SourceClass};
use rstest::rstest;

use super::render;
use crate::page::{assert_colours, assert_page};

fn page(report: &Report) -> String {
    let now = sample::written() + Duration::from_millis(200);
    render(report, now, false)
}

/// Compares pages with crates/cli/testdata/status. PATHPROOF_BLESS rewrites them, to be reviewed.
#[rstest]
#[case("proven", sample::proven())]
#[case("broken", sample::broken())]
#[case("blind", sample::blind())]
#[case("degraded", sample::degraded())]
#[case("flushed", sample::probed::flushed())]
#[case("dropped", sample::probed::dropped())]
#[case("beside_cilium", sample::beside_cilium())]
#[case("never_worked", sample::probed::never_worked())]
#[case("crowded", sample::probed::crowded())]
fn pages(#[case] name: &str, #[case] report: Report) {
    assert_page("status", name, &page(&report));
}

#[test]
fn a_path_that_differs_by_family_names_the_family() {
    let mut report = sample::beside_cilium();
    let mut paths = report.datapath.paths.iter_mut();
    let sixth = paths.find(|path| (path.family, path.path) == (Family::V6, SourceClass::Host));
    sixth.unwrap().sentence = "translated by kube-proxy".to_owned();
    let page = page(&report);
    for line in [
        "Pod (IPv4 and IPv6): translated by Cilium",
        "Host (IPv4): translated by Cilium",
        "Host (IPv6): translated by kube-proxy",
    ] {
        assert!(page.contains(line), "{page}");
    }
}

#[test]
fn colours_change_nothing_that_is_read() {
    let report = sample::broken();
    let now = sample::written();
    let plain = render(&report, now, false);
    let coloured = render(&report, now, true);
    assert_colours(&coloured, &plain);
    assert!(coloured.contains("\x1b[1;7;31m BROKEN "));
}

#[test]
fn an_outdated_report_is_pointed_out() {
    let report = sample::proven();
    let now: Timestamp = sample::written() + Duration::from_secs(45);
    let page = render(&report, now, false);
    assert!(page.contains("This report is 45 s old"), "{page}");
}

#[test]
fn an_agent_without_listener_would_answer() {
    let mut report = sample::proven();
    assert!(page(&report).contains("/healthz answers 200"));
    report.port.way = PortWay::Off;
    let page = page(&report);
    assert!(page.contains("/healthz would answer 200"), "{page}");
    assert!(
        page.contains("the agent does not serve /healthz and /livez"),
        "{page}"
    );
}

#[rstest]
#[case::none(Some(0), None, None)]
#[case::unknown(None, None, None)]
#[case::ended(Some(2), None, Some(("2 older connections", "within 30 s")))]
#[case::left(Some(1), Some("the kernel refuses"), Some(("1 older connection ", "(the kernel refuses)")))]
fn connections_that_bypass_the_agent_are_shown(
    #[case] open: Option<u64>,
    #[case] left: Option<&str>,
    #[case] expected: Option<(&str, &str)>,
) {
    let mut report = sample::proven();
    report.port.kept.open = open;
    report.port.kept.left = left.map(str::to_owned);
    let words: Vec<_> = page(&report)
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    let page = words.join(" ");
    assert_eq!(page.contains("bypassed by"), expected.is_some(), "{page}");
    let (many, next) = expected.unwrap_or_default();
    assert!(page.contains(many) && page.contains(next), "{page}");
}

#[test]
fn a_missing_node_is_shown_once() {
    let mut report = sample::proven();
    let missing = "no Node is named here".to_owned();
    report.cluster.missing_node = Some(missing.clone());
    let early = page(&report);
    report.cluster.problems.push(missing);
    assert_eq!(page(&report), early);
    assert_eq!(early.matches("No Node is named here").count(), 1, "{early}");
}

#[test]
fn a_report_survives_json() {
    for report in [sample::proven(), sample::broken(), sample::blind()] {
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
    }
}
