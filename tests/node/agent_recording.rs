//! A 503 can be replayed from its recording and explained.

use std::fs;
use std::path::PathBuf;

use node_tests::prelude::*;

use crate::commands::{assert_says, pathproof, told};

fn recordings(scene: &Scene) -> Vec<PathBuf> {
    let folder = scene.world.dir().join("state/recordings");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

#[test]
fn a_503_is_recorded_replayed_and_explained() {
    let scene = Scene::idle(Backend::Nftables, &[]);
    scene.wait_probed();
    let watch = scene.watch();
    assert!(recordings(&scene).is_empty(), "nothing happened yet");
    scene.rules.flush_services().expect("flush");
    wait_answers(&watch, 503);
    scene.rules.install().expect("install");
    wait_answers(&watch, 200);
    eventually("both changes are recorded", || {
        recordings(&scene).len() >= 2
    });

    let files = recordings(&scene);
    let [into, out_of] = [&files[0], &files[1]].map(|path| path.to_string_lossy().into_owned());
    let pathproof = |args: &[&str]| pathproof(&scene.world, args);
    let text = told(pathproof(&["replay", &into]), 0);
    assert_says(
        &text,
        &["/healthz 503", "broken", "reached the same verdicts"],
    );
    let timeline = told(pathproof(&["replay", &out_of]), 0);
    let mut changes = timeline.lines().filter(|line| line.contains("/livez "));
    let broken = changes.find(|change| change.contains("/livez 503"));
    let broken = broken.expect("the 503 is in it too");
    let last = changes.next_back().expect("a later change");
    assert!(last.contains("/livez 200"), "{last}");

    let at = broken.split_whitespace().next().expect("a time");
    let state = scene.world.dir().join("state");
    let state = state.to_string_lossy();
    let text = told(pathproof(&["why", "--at", at, "--state-dir", &state]), 0);
    assert!(text.contains("BROKEN") || text.contains("broken"), "{text}");
    assert!(!text.contains("There are no probes"), "{text}");
}

/// The negative control: a healthy node writes no recording by itself. A recording taken by hand and redacted
/// replays without a 503.
#[test]
fn a_sound_node_records_nothing_by_itself() {
    let mut scene = Scene::busy(Backend::Nftables, &[]);
    scene.wait_proven();
    let path = scene.world.dir().join("taken.pathproof");
    let path = path.to_string_lossy().into_owned();
    let taken = pathproof(&scene.world, &["record", "--redact", "--output", &path]);
    assert_says(&told(taken, 0), &["addresses replaced"]);
    let text = told(pathproof(&scene.world, &["replay", &path]), 0);
    assert!(!text.contains("503"), "{text}");
    assert!(recordings(&scene).is_empty());
    let long_ago = ["why", "--at", "2001-01-01T00:00:00Z", "--recording", &path];
    let why = pathproof(&scene.world, &long_ago).output().expect("why");
    assert!(!why.status.success());
    assert_says(&String::from_utf8_lossy(&why.stderr), &["begins at"]);
    scene.traffic();
}
