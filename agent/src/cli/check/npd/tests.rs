use pathproof_facts::cause::{Cause, State, Why};
use pathproof_judge::verdict::{self, Evidence, Finding};
use pathproof_samples as sample;
use rstest::rstest;
use serde::Deserialize;

use super::*;

/// The exit code and the line printed at `now`.
fn of_at(report: &Report, now: Timestamp) -> (Exit, String) {
    let (status, text) = of_report(report, now);
    (status, line(&text))
}

fn of(report: &Report) -> (Exit, String) {
    of_at(report, sample::written())
}

/// Whether node-problem-detector prints the line uncut.
fn is_one_short_line(line: &str) -> bool {
    !line.is_empty() && line.len() <= 80 && !line.contains('\n')
}

#[rstest]
#[case(
    sample::proven(),
    0,
    "proven: IPv4: a new connection from a pod of this node succeeded 40 ms ago"
)]
#[case(
    sample::degraded(),
    0,
    "degraded stale: IPv4: connections fail to shop/checkout-with-a-rather-long-na…"
)]
#[case(
    sample::broken(),
    1,
    "broken leaked: IPv4 cluster IPs: the last 8 probes left the node untranslated…"
)]
#[case(
    sample::probed::flushed(),
    1,
    "broken leaked: IPv4 cluster IPs: the last 8 probes left the node untranslated…"
)]
fn reports(#[case] report: Report, #[case] code: u8, #[case] expected: &str) {
    let (status, line) = of(&report);
    assert_eq!((status as u8, line.as_str()), (code, expected));
    assert!(is_one_short_line(&line));
}

#[test]
fn every_verdict_has_its_code_and_fits() {
    let causes = Cause::ALL.map(Some).into_iter().chain([None]);
    let whys: Vec<Option<Why>> = Why::ALL.map(Some).into_iter().chain([None]).collect();
    for cause in causes {
        for why in &whys {
            for state in State::ALL {
                for healthy in [true, false] {
                    let mut report = sample::proven();
                    report.verdict.state = state;
                    report.verdict.cause = cause;
                    report.verdict.why = *why;
                    report.verdict.finding = Finding::new(
                        verdict::Rule::SentinelAltered,
                        Evidence::Sentinel {
                            said: Some("ä".repeat(200)),
                        },
                    );
                    report.answers.livez.status = if healthy { 200 } else { 503 };
                    let (status, line) = of(&report);
                    let expected = match state {
                        State::Unknown | State::Starting => Exit::PluginUnknown,
                        _ if healthy => Exit::Success,
                        _ => Exit::Failure,
                    };
                    assert_eq!(status, expected, "{line:?}");
                    assert!(is_one_short_line(&line), "{line:?}");
                    assert!(line.starts_with(state.name()), "{line:?}");
                }
            }
        }
    }
}

#[test]
fn a_verdict_without_consequences_is_still_a_problem() {
    let mut report = sample::broken();
    report.answers.livez.status = 200;
    report.answers.livez.would_fail = true;
    assert_eq!(of(&report).0, Exit::Failure);
}

#[rstest]
#[case(Eligibility::Deleting)]
#[case(Eligibility::Tainted { taint: format!("example.org/{}", "x".repeat(60)) })]
fn a_node_that_leaves_is_no_problem(#[case] eligibility: Eligibility) {
    for mut report in [sample::proven(), sample::broken(), sample::blind()] {
        report.verdict.eligibility = eligibility.clone();
        let (status, line) = of(&report);
        assert_eq!(status, Exit::Success, "{line:?}");
        assert!(
            line.starts_with("leaving: ") && is_one_short_line(&line),
            "{line:?}"
        );
    }
}

#[rstest]
#[case(10, Exit::Success)]
#[case(11, Exit::PluginUnknown)]
fn an_outdated_report_is_unknown(#[case] seconds: u64, #[case] expected: Exit) {
    let now = sample::written() + Duration::from_secs(seconds);
    let (status, line) = of_at(&sample::proven(), now);
    assert_eq!(status, expected, "{line:?}");
    assert!(is_one_short_line(&line), "{line:?}");
}

#[rstest]
#[case(
    "nobody listens",
    "no agent answers at 127.0.0.1:1: check that `pathproof run` is running, and g…"
)]
fn an_error_is_one_short_line(#[case] why: &str, #[case] expected: &str) {
    let source = std::io::Error::other(why);
    let error = crate::cli::FetchError::Unreachable("127.0.0.1:1".to_owned(), source);
    let line = line(&error.to_string());
    assert_eq!(line, expected);
    assert!(is_one_short_line(&line));
    let long = crate::cli::FetchError::Denied("x\n".repeat(300));
    assert!(is_one_short_line(&super::line(&long.to_string())));
}

// Fields of a monitor in node-problem-detector (pkg/custompluginmonitor/types/config.go and
// types.go), whose parser silently ignores misspelt fields.

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Monitor {
    plugin: String,
    #[serde(rename = "pluginConfig")]
    config: PluginConfig,
    source: String,
    #[serde(rename = "metricsReporting")]
    metrics: bool,
    conditions: Vec<Condition>,
    rules: Vec<NpdRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginConfig {
    invoke_interval: String,
    timeout: String,
    max_output_length: usize,
    concurrency: usize,
    enable_message_change_based_condition_update: bool,
    skip_initial_status: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Condition {
    r#type: String,
    reason: String,
    message: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NpdRule {
    r#type: String,
    condition: String,
    reason: String,
    path: String,
    args: Vec<String>,
    timeout: String,
}

fn seconds(text: &str) -> u64 {
    text.strip_suffix('s').unwrap().parse().unwrap()
}

#[test]
fn node_problem_detector_accepts_the_monitor() {
    use clap::Parser as _;

    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../deploy/npd/pathproof-monitor.json"
    );
    let text = std::fs::read_to_string(file).unwrap();
    let monitor: Monitor = serde_json::from_str(&text).unwrap();
    assert_eq!(monitor.plugin, "custom");
    assert!(!monitor.source.is_empty() && monitor.metrics);
    let config = &monitor.config;
    assert!(seconds(&config.invoke_interval) > 0 && config.concurrency > 0);
    assert_eq!(config.max_output_length, LONGEST);
    // A new message alone must not update the condition: its numbers change all the time.
    assert!(!config.enable_message_change_based_condition_update);
    // No condition is set before the first run.
    assert!(config.skip_initial_status);
    let longest = fetch::PLUGIN.0 + fetch::PLUGIN.1;
    assert!(longest < Duration::from_secs(seconds(&config.timeout)));
    let [rule] = monitor.rules.as_slice() else {
        panic!("one rule");
    };
    assert_eq!(rule.r#type, "permanent");
    assert!(seconds(&rule.timeout) <= seconds(&config.timeout));
    let preset = monitor
        .conditions
        .iter()
        .find(|condition| condition.r#type == rule.condition);
    let preset = preset.expect("a permanent problem has a preset condition");
    assert!(!preset.message.is_empty() && preset.reason != rule.reason);
    // In node-problem-detector True means a problem; in the agent's condition it means the opposite. So
    // their types must differ.
    assert_ne!(rule.condition, pathproof_report::condition::TYPE);
    let program = std::path::Path::new(&rule.path);
    assert!(program.is_absolute());
    let words = std::iter::once(rule.path.as_str()).chain(rule.args.iter().map(String::as_str));
    let args = crate::args::Args::try_parse_from(words).unwrap();
    assert!(matches!(args.command, crate::args::Command::Check(said) if said.npd));
}
