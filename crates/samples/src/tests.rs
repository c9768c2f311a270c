mod condition;
mod episodes;
mod sentences;

use std::fmt::Write as _;

use pathproof_facts::testing::assert_words;
use pathproof_judge::drain::{Ask, DrainReason};
use pathproof_report::Report;
use pathproof_report::drain::DrainReport;
use serde_json::Value;

use crate as sample;

#[test]
fn a_report_has_sentences_and_is_read_back_without_them() {
    for report in [
        sample::broken(),
        sample::blind(),
        sample::probed::filtered(),
    ] {
        let json = serde_json::to_value(&report).unwrap();
        let verdict = &json["verdict"];
        assert_eq!(verdict["reason"], report.verdict.reason());
        assert!(verdict["finding"]["rule"].is_string(), "{verdict}");
        let family = &verdict["families"][0];
        assert_eq!(family["reason"], verdict["reason"]);
        assert_eq!(family["findings"][0]["sentence"], verdict["reason"]);
        for lane in family["lanes"].as_array().into_iter().flatten() {
            assert!(lane["sentence"].as_str().unwrap().starts_with("IPv4 "));
        }
        let back: Report = serde_json::from_value(json).unwrap();
        assert_eq!(back, report);
    }
}

/// Later, a Service or interface may be gone, or another one may have its id.
#[test]
fn sightings_keep_the_names_they_had_when_seen() {
    let named = sample::broken();
    let of = |service: &str, device: &str| {
        let mut report = named.clone();
        report.failed_connections[0].service = service.to_owned();
        report.failed_connections[0].device = device.to_owned();
        report
    };
    for mut later in [
        of("service id 39", "interface 18"),
        of("shop/other", "veth2"),
    ] {
        later.keep_names(&named);
        assert_eq!(later.failed_connections, named.failed_connections);
        // At start the ids are not known yet.
        let mut known = named.clone();
        known.keep_names(&of("service id 39", "interface 18"));
        assert_eq!(known.failed_connections, named.failed_connections);
    }
    let mut another = of("shop/other", "veth2");
    another.failed_connections[0].client = "10.244.1.18".parse().unwrap();
    let before = another.clone();
    another.keep_names(&named);
    assert_eq!(another, before);
}

/// A document's values, one per line. A long list shows only its first four and last three entries.
fn flat(text: &mut String, path: &str, value: &Value) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, value) in fields {
                flat(text, &format!("{path}.{name}"), value);
            }
        }
        Value::Array(all) if !all.is_empty() => {
            for (index, value) in all.iter().enumerate() {
                if index < 4 || index + 4 > all.len() {
                    flat(text, &format!("{path}[{index}]"), value);
                }
            }
        }
        value => {
            let _ = writeln!(text, "{path}: {value}");
        }
    }
}

/// The first sample is compared in full, and the others by their differences from it.
#[test]
fn sample_reports_do_not_change() {
    let of = |report: &Report| {
        let mut text = String::new();
        flat(&mut text, "", &serde_json::to_value(report).unwrap());
        text
    };
    let proven = of(&sample::proven());
    let mut text = format!("proven\n{proven}");
    let samples = [
        ("broken", sample::broken()),
        ("blind", sample::blind()),
        ("degraded", sample::degraded()),
        ("beside_cilium", sample::beside_cilium()),
        ("flushed", sample::probed::flushed()),
        ("dropped", sample::probed::dropped()),
        ("filtered", sample::probed::filtered()),
        ("never_worked", sample::probed::never_worked()),
    ];
    for (name, report) in samples {
        let _ = writeln!(text, "{name}");
        let of = of(&report);
        let differs = |line: &&str| !proven.lines().any(|known| known == *line);
        for line in of.lines().filter(differs) {
            let _ = writeln!(text, "{line}");
        }
    }
    assert_words("samples", &text);
}

#[test]
fn a_drain_report_has_wall_clock_times() {
    let mut report = sample::blind();
    let now = report.verdict.at;
    let blind = DrainReport::of(&report, &Ask::default(), now);
    assert_eq!(
        (blind.reason, blind.is_quiet()),
        (DrainReason::Blind, false)
    );
    report.drain.blind = None;
    report.drain.last = Some(sample::ago(100_000));
    let drained = DrainReport::of(&report, &Ask::default(), now);
    assert!(drained.draining && drained.is_quiet(), "{drained:?}");
    let json = serde_json::to_value(&drained).unwrap();
    let expected = serde_json::json!({
        "draining": true,
        "reason": "quiet",
        "message": "no new connection from outside for 94 s",
        "node": "tainted",
        "since": "2026-11-21T12:58:25.25Z",
        "connections": 1_720,
        "total": 94_514,
        "ignored": 720,
        "lastConnection": "2026-11-21T12:58:20.25Z",
        "quietFor": 94.94,
        "quiet": 10.0,
    });
    assert_eq!(json, expected);
    report.drain.since = None;
    let stays = DrainReport::of(&report, &Ask::default(), now);
    assert_eq!((stays.since, stays.connections), (None, None));
    assert!(!stays.draining);
}
