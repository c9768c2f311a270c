use std::fs;
use std::path::{Path, PathBuf};

use super::*;

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    entries
        .flat_map(|path| {
            if path.is_dir() {
                files(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

/// The groups name their test programs, so a new program without a group would never run.
#[test]
fn every_test_program_is_named() {
    let groups = [&KERNEL, &NODE, &WORLDS, &CLUSTER, &CILIUM, &INSTALL];
    let named = [
        &groups.map(|group| group.targets).concat()[..],
        &DEPLOY_TARGET,
    ]
    .concat();
    let tests = run::root().join("tests");
    let mains = files(&tests)
        .into_iter()
        .filter(|file| file.ends_with("main.rs"));
    let programs = mains.filter_map(|file| {
        let folder = file
            .parent()?
            .strip_prefix(&tests)
            .ok()?
            .to_str()?
            .to_owned();
        (!folder.starts_with("src")).then_some(folder)
    });
    for program in programs {
        assert!(
            named.contains(&program.as_str()),
            "{program} is in no target"
        );
    }
}

#[test]
fn programs_have_no_tests_of_their_own() {
    for file in files(&run::root().join("tests/src/bin")) {
        let text = fs::read_to_string(&file).unwrap();
        assert!(
            !text.contains("#[test]"),
            "{} would not be run",
            file.display()
        );
    }
}
