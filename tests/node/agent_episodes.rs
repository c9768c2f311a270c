//! The journal of 503s in audit mode: a fault leaves one episode with its duration and the connections that failed
//! meanwhile, which outlives the agent, and `pathproof report` shows it.

use std::fs;

use node_tests::prelude::*;

use crate::commands::{assert_says, object, pathproof, told};

const AUDIT: [&str; 2] = ["--enforcement", "audit"];

fn episodes(scene: &Scene) -> Vec<Value> {
    let page = || scene.agent().admin("/episodes").ok();
    let page = until(PATIENCE, page).expect("the journal");
    assert_eq!(page.status, 200, "{}", page.body);
    let journal: Value = serde_json::from_str(&page.body).expect("JSON");
    journal["episodes"].as_array().expect("episodes").clone()
}

fn would_fail(report: &Value) -> bool {
    report["answers"]["livez"]["would_fail"] == true
}

#[test]
fn a_fault_in_audit_leaves_one_episode_that_the_report_shows() {
    let mut scene = Scene::busy(Backend::Nftables, &AUDIT);
    let watch = scene.watch();
    scene.rules.flush_services().expect("flush");
    scene.wait("a 503 that is held back", would_fail);
    let begin = Instant::now();
    thread::sleep(Duration::from_secs(4));
    let least = begin.elapsed();
    scene.rules.install().expect("install");
    scene.wait("no 503 any more", |report| !would_fail(report));
    // The test may see the begin late, by one request to a busy agent.
    let most = begin.elapsed() + scaled(Duration::from_secs(5));
    eventually("the end of the episode", || {
        episodes(&scene)[0]["end"] == "recovered"
    });
    assert_never_503(&watch);

    let all = episodes(&scene);
    let [episode] = &*all else {
        panic!("one fault: {all:#?}");
    };
    let lasted = Duration::from_nanos(episode["lasted_ns"].as_u64().expect("a duration"));
    assert!((least..=most).contains(&lasted), "{lasted:?}: {episode:#}");
    assert_eq!(episode["answered"], 200, "{episode:#}");
    // Clients open 20 connections a second to each Service.
    let failed = episode["failed"].as_object().expect("Services");
    for (service, failed) in failed {
        let is_users = ["demo/web:http", "demo/api:http", "demo/db:http"].contains(&&**service);
        assert!(is_users && failed.as_u64() > Some(0), "{episode:#}");
    }
    assert!(!failed.is_empty(), "{episode:#}");
    let recordings = scene.world.dir().join("state/recordings");
    let recording = episode["recording"].as_str().expect("a recording");
    assert!(recordings.join(recording).is_file(), "{episode:#}");

    // The next agent continues the journal.
    let file = scene.world.dir().join("state/state.episodes.json");
    eventually("the journal is written", || {
        fs::read_to_string(&file).is_ok_and(|text| text.contains("recovered"))
    });
    let status = scene.take_agent().terminate().expect("an end in order");
    assert_eq!(status.code(), Some(0));
    let from = file.to_string_lossy();
    let from_file = ["report", "--from", &from, "--output", "json"];
    let journals = object(pathproof(&scene.world, &from_file));
    assert_eq!(journals[0]["episodes"], json!(all));
    scene.start(&AUDIT);
    assert_eq!(episodes(&scene), all);

    let path = |name: &str| scene.world.dir().join(name).to_string_lossy().into_owned();
    let (verdicts, html) = (path("verdicts"), path("report.html"));
    let begin = episode["begin"].as_str().expect("a time");
    let node = &scene.world.node_name;
    fs::write(&verdicts, format!("{node} {begin} right flushed by hand\n")).expect("a verdict");
    let report = ["report", "--verdicts", &verdicts, "--html", &html];
    let page = told(pathproof(&scene.world, &report), 0);
    let words: Vec<&str> = page.split_whitespace().collect();
    let said = [
        "0 wrong in 0 node-hours",
        "of clients outside), demo/",
        "flushed by hand",
    ];
    assert_says(&words.join(" "), &said);
    let html = fs::read_to_string(&html).expect("the page");
    assert_says(&html, &["<rect class=\"right\"", node]);
}

/// The negative control: neither applications that end nor a node that leaves, which answers 503 on purpose, are
/// episodes.
#[test]
fn a_sound_node_has_no_episode() {
    let mut scene = Scene::busy(Backend::Nftables, &AUDIT);
    scene.servers.clear();
    scene.manifests.taint(AUTOSCALER_TAINT).expect("taint");
    eventually("503 on purpose", || scene.asked("/healthz") == 503);
    throughout(Duration::from_secs(6), || {
        assert_eq!(episodes(&scene), Vec::<Value>::new());
    });
    let page = told(pathproof(&scene.world, &["report"]), 0);
    assert_says(
        &page,
        &[
            "REPORT  1 node",
            "0 wrong in 0 node-hours, would have saved 0.0",
        ],
    );
}
