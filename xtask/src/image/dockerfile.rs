//! What deploy/image/Dockerfile says agrees with what `cargo xtask image` does.

use std::collections::BTreeMap;
use std::fs;

use clap::Parser as _;

use super::facts::{self, Facts};
use super::pack::{ENVIRONMENT, PROGRAM};
use crate::{Task, run};

/// Instructions of a Dockerfile: continued lines joined, comments left out.
fn instructions(text: &str) -> Vec<(String, String)> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    let joined = lines.join("\n").replace("\\\n", " ");
    let lines = joined.lines().filter_map(|line| line.split_once(' '));
    lines
        .map(|(name, rest)| (name.to_owned(), rest.trim().to_owned()))
        .collect()
}

/// The instructions of the stage that builds, and of the one that is the image.
fn stages() -> [Vec<(String, String)>; 2] {
    let text = fs::read_to_string(run::root().join("deploy/image/Dockerfile")).unwrap();
    let all = instructions(&text);
    let last = all.iter().rposition(|(name, _)| name == "FROM").unwrap();
    [all[..last].to_vec(), all[last..].to_vec()]
}

#[track_caller]
fn only<'a>(stage: &'a [(String, String)], name: &str) -> &'a str {
    let found: Vec<_> = stage.iter().filter(|(n, _)| n == name).collect();
    assert_eq!(found.len(), 1, "{name}: {found:?}");
    &found[0].1
}

/// `key="value"` pairs.
fn labels(text: &str) -> BTreeMap<String, String> {
    let mut rest = text;
    let mut labels = BTreeMap::new();
    while let Some((key, after)) = rest.split_once("=\"") {
        let (value, after) = after.split_once('"').unwrap();
        labels.insert(key.trim().to_owned(), value.to_owned());
        rest = after;
    }
    labels
}

#[test]
fn the_image_has_the_same_entry_point_environment_and_file() {
    let [_, image] = stages();
    assert_eq!(only(&image, "FROM"), "scratch");
    assert_eq!(only(&image, "ENTRYPOINT"), format!("[{PROGRAM:?}]"));
    assert_eq!(only(&image, "ENV"), ENVIRONMENT);
    let copy = only(&image, "COPY");
    assert!(
        copy.contains("--chmod=0755") && copy.ends_with(&format!(" {PROGRAM}")),
        "{copy}"
    );
}

#[test]
fn the_image_has_the_same_labels() {
    let [_, image] = stages();
    let mut facts = Facts::read().unwrap();
    // These two come as arguments of the build.
    facts.revision = Some("$REVISION".to_owned());
    let mut wanted: BTreeMap<_, _> = facts.labels().into_iter().collect();
    let created = oci_spec::image::ANNOTATION_CREATED.to_owned();
    wanted.insert(created, "$CREATED".to_owned());
    assert_eq!(labels(only(&image, "LABEL")), wanted);
    let arguments: Vec<_> = image.iter().filter(|(name, _)| name == "ARG").collect();
    assert_eq!(arguments.len(), 2);
}

#[test]
fn the_program_is_built_by_the_task_with_its_profile() {
    let [build, _] = stages();
    let line = only(&build, "RUN");
    let task = line.split("&&").next().unwrap();
    let words = task.replace("\"$TARGETARCH\"", "arm64");
    let words = words.split_whitespace().skip(1);
    let Task::Image(args) = crate::Args::try_parse_from(words).unwrap().task else {
        panic!("another task: {line}");
    };
    assert!(args.program_only);
    assert_eq!(args.profile, "dist");
    let file = format!("target/image/{}-linux-$TARGETARCH", facts::NAME);
    assert!(line.contains(&file), "{line}");
}

#[test]
fn the_compiler_is_the_one_that_the_workspace_names() {
    let [build, _] = stages();
    let from = only(&build, "FROM");
    assert!(
        from.contains(concat!("rust:", env!("CARGO_PKG_RUST_VERSION"), "-")),
        "{from}"
    );
}
