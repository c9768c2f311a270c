//! Replays all kept inputs of the fuzzers as regression tests.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use pathproof_fuzz::TARGETS;

/// Number of kept inputs that each target understands. The others are damaged on purpose. If a number
/// falls, a parser refuses what it used to accept.
const UNDERSTOOD: [(&str, usize); 17] = [
    ("api_objects", 5),
    ("api_watch", 3),
    ("btf", 1),
    ("connections", 26),
    ("fleet_report", 3),
    ("http", 5),
    ("kube_proxy_flags", 3),
    ("manifests", 2),
    ("netlink", 10),
    ("packets", 36),
    ("pod_probe", 2),
    ("recordings", 2),
    ("remembered", 2),
    ("reports", 3),
    ("sock_diag", 2),
    ("text", 5),
    ("zero_values", 3),
];

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// Paths and bytes of a target's kept inputs.
fn kept(target: &str) -> BTreeMap<PathBuf, Vec<u8>> {
    let folder = corpus().join(target);
    let entries = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("no kept inputs in {}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let read = |path: PathBuf| {
        let bytes = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        (path, bytes)
    };
    paths.map(read).collect()
}

/// The line before a panic names the file.
#[test]
fn all_kept_inputs_are_read_without_a_fault() {
    let found = TARGETS.map(|(name, target)| {
        let kept = kept(name);
        let mut understood = 0;
        for (path, bytes) in &kept {
            println!("{}", path.display());
            understood += usize::from(target(bytes));
        }
        println!("{name}: {understood} of {} are understood", kept.len());
        (name, understood)
    });
    // A corpus that is no longer understood only tests the first line of a parser.
    assert_eq!(
        found, UNDERSTOOD,
        "after a change of the corpus, write its numbers here"
    );
}

#[test]
fn every_folder_is_of_a_target() {
    let entries = fs::read_dir(corpus()).expect("the corpus");
    let folders = entries.map(|entry| entry.expect("an entry").file_name());
    let mut folders: Vec<String> = folders
        .map(|name| name.into_string().expect("a name"))
        .collect();
    folders.sort_unstable();
    assert_eq!(folders, TARGETS.map(|(name, _)| name));
}

/// The corpus is part of every clone.
#[test]
fn the_corpus_is_small() {
    let of = |name| kept(name).values().map(Vec::len).sum::<usize>();
    let sum: usize = TARGETS.iter().map(|(name, _)| of(name)).sum();
    assert!(
        sum < 300 * 1024,
        "{sum} bytes: see `cargo xtask fuzz --keep`"
    );
}
