//! More than twenty values files, as users have them in Git (deploy/chart/ci), and the one for production
//! (deploy/examples). Each passes lint, and its objects fit the schemas of the oldest and the newest tested
//! release. Immutable fields never change.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use node_tests::built::versions::KUBERNETES;
use node_tests::cluster::documents;
use node_tests::deploy::{Chart, PROFILES, Tool, folder, identity};
use node_tests::prelude::*;

use crate::args;
use crate::same::RELEASE_LABELS;
use crate::schema::Schemas;

/// Releases of Kubernetes whose schemas are checked in.
const RELEASES: [&str; 2] = ["1.28.15", "1.36.3"];

fn files() -> Vec<(String, Value)> {
    let entries = fs::read_dir(folder().join("chart/ci")).expect("values files");
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.expect("an entry").path())
        .collect();
    paths.push(folder().join("examples/production-values.yaml"));
    let mut files: Vec<(String, Value)> = paths
        .into_iter()
        .map(|path| {
            let name = path
                .file_name()
                .and_then(OsStr::to_str)
                .expect("a name")
                .to_owned();
            let text = fs::read_to_string(path).expect("a values file");
            assert!(text.starts_with("# "), "{name}: begin with what it is");
            (name, documents(&text).expect("YAML").remove(0))
        })
        .collect();
    files.sort_by(|one, other| one.0.cmp(&other.0));
    files
}

/// Whether the values suit a release: those before 1.30 have no policies, which `withdraw` needs.
fn fits(values: &Value, release: &str) -> bool {
    values["rotator"]["withdraw"] != "label" || release != "1.28.15"
}

struct Rendering {
    name: String,
    release: &'static str,
    values: Value,
    objects: Vec<Value>,
}

/// The renderings of all files. They are made once for all tests.
fn renderings() -> &'static [Rendering] {
    static ALL: OnceLock<Vec<Rendering>> = OnceLock::new();
    let render = |(name, values): (String, Value)| {
        RELEASES.into_iter().filter_map(move |release| {
            if !fits(&values, release) {
                return None;
            }
            let objects = Chart::with(values.clone()).kubernetes(release).render();
            let objects = objects.unwrap_or_else(|error| panic!("{name} {release}: {error:#}"));
            Some(Rendering {
                name: name.clone(),
                release,
                values: values.clone(),
                objects,
            })
        })
    };
    ALL.get_or_init(|| files().into_iter().flat_map(render).collect())
}

#[test]
fn the_newest_schemas_are_those_of_the_release_that_is_tried() {
    let tried = KUBERNETES.trim_start_matches('v');
    assert_eq!(RELEASES[1], tried, "run: cargo xtask gen-schemas");
}

#[test]
fn there_are_twenty_and_each_passes_lint() {
    needs!(Tool::Helm.installed());
    let files = files();
    assert!(files.len() >= 20, "{}", files.len());
    let profile = |values: &Value| values["profile"].as_str().unwrap_or(PROFILES[0]).to_owned();
    let profiles: BTreeSet<String> = files.iter().map(|(_, values)| profile(values)).collect();
    assert!(profiles.iter().eq(PROFILES), "{profiles:?}");
    for (name, values) in files {
        assert!(
            name.ends_with("-values.yaml"),
            "{name}: chart-testing skips it"
        );
        let linted = Chart::with(values).lint();
        let told = linted.unwrap_or_else(|error| panic!("{name}: {error:#}"));
        let is_sound = !told.contains("[WARNING]") && !told.contains("[ERROR]");
        assert!(is_sound, "{name}: {told}");
    }
}

#[test]
fn objects_have_the_fields_of_the_api() {
    needs!(Tool::Helm.installed());
    let schemas = RELEASES.map(|release| (release, Schemas::of(release)));
    for Rendering {
        name,
        release,
        objects,
        ..
    } in renderings()
    {
        assert!(objects.len() > 5, "{name} on {release}");
        let known = schemas.iter().find(|(known, _)| known == release);
        let (_, schemas) = known.expect("schemas");
        for object in objects {
            let errors = schemas.errors(object);
            let what = identity(object);
            assert_eq!(errors, [""; 0], "{name} on {release}: {what}");
        }
        args::check(objects);
    }
}

fn is_label_value(value: &Value) -> bool {
    let Some(text) = value.as_str() else {
        return false;
    };
    let inside = |sign: char| sign.is_ascii_alphanumeric() || "-_.".contains(sign);
    let edge = |sign: Option<char>| sign.is_none_or(|sign| sign.is_ascii_alphanumeric());
    text.len() <= 63
        && text.chars().all(inside)
        && edge(text.chars().next())
        && edge(text.chars().last())
}

#[test]
fn every_object_has_the_recommended_labels() {
    needs!(Tool::Helm.installed());
    for Rendering {
        name,
        values,
        objects,
        ..
    } in renderings()
    {
        for object in objects {
            let what = identity(object);
            let labels = object["metadata"]["labels"].as_object();
            let labels = labels.unwrap_or_else(|| panic!("{name}: {what} has no labels"));
            for label in RELEASE_LABELS {
                assert!(labels.contains_key(label), "{name}: {what} has no {label}");
            }
            assert_eq!(
                labels["app.kubernetes.io/name"], "pathproof",
                "{name}: {what}"
            );
            for (label, value) in labels {
                assert!(is_label_value(value), "{name}: {what}: {label}={value}");
            }
            let common = values["commonLabels"].as_object().into_iter().flatten();
            let pod = &object["spec"]["template"]["metadata"]["labels"];
            for (label, value) in common {
                assert_eq!(labels.get(label), Some(value), "{name}: {what}");
                assert!(pod.is_null() || pod[label] == *value, "{name}: {what}");
            }
            let common = values["commonAnnotations"]
                .as_object()
                .into_iter()
                .flatten();
            for (key, value) in common {
                assert_eq!(
                    object["metadata"]["annotations"][key], *value,
                    "{name}: {what}"
                );
            }
        }
        let names: BTreeSet<String> = objects.iter().map(identity).collect();
        assert_eq!(
            names.len(),
            objects.len(),
            "{name}: an object is there twice"
        );
    }
}

/// Selectors never change, because they are immutable and an upgrade that changed one would fail. The pods
/// have the selector's labels in addition to those that users add.
#[test]
fn selectors_never_change() {
    needs!(Tool::Helm.installed());
    let mut seen = 0;
    for Rendering { name, objects, .. } in renderings() {
        for object in objects {
            let pod = &object["spec"]["template"]["metadata"]["labels"];
            if pod.is_null() {
                continue;
            }
            let whole = object["metadata"]["name"].as_str().expect("a name");
            let (_, component) = whole.rsplit_once('-').expect("a component");
            let selector = json!({
                "app.kubernetes.io/name": "pathproof", "app.kubernetes.io/component": component,
            });
            assert_eq!(
                object["spec"]["selector"],
                json!({ "matchLabels": selector }),
                "{name}"
            );
            for (label, value) in selector.as_object().expect("labels") {
                assert_eq!(pod[label], *value, "{name}: {whole}");
            }
            seen += 1;
        }
    }
    assert!(seen > 80, "{seen}");
}

/// Pods, bindings and policies name only objects that the chart or the user creates.
#[test]
fn accounts_and_roles_fit_together() {
    needs!(Tool::Helm.installed());
    for Rendering {
        name,
        values,
        objects,
        ..
    } in renderings()
    {
        let of = |kind: &str| -> BTreeSet<&str> {
            let of_kind = objects.iter().filter(|object| object["kind"] == kind);
            of_kind
                .filter_map(|object| object["metadata"]["name"].as_str())
                .collect()
        };
        let mut accounts = of("ServiceAccount");
        for part in ["agent", "rotator"] {
            let own = &values[part]["serviceAccount"];
            if own["create"] == false {
                let theirs = own["name"].as_str().expect("a name");
                assert!(accounts.insert(theirs), "{name}: {theirs} is created");
            }
        }
        for object in objects {
            let account = object["spec"]["template"]["spec"]["serviceAccountName"].as_str();
            assert!(
                account.is_none_or(|one| accounts.contains(one)),
                "{name}: {account:?}"
            );
            for subject in object["subjects"].as_array().into_iter().flatten() {
                let account = subject["name"].as_str().expect("a name");
                assert!(accounts.contains(account), "{name}: {account}");
            }
            if let Some(role) = object["roleRef"]["name"].as_str() {
                let kind = object["roleRef"]["kind"].as_str().expect("a kind");
                assert!(of(kind).contains(role), "{name}: no {kind} {role}");
            }
            if let Some(policy) = object["spec"]["policyName"].as_str() {
                let policies = of("ValidatingAdmissionPolicy");
                assert!(policies.contains(policy), "{name}: no policy {policy}");
            }
            if let Some(who) = object["spec"]["matchConditions"][0]["expression"].as_str()
                && let Some((_, account)) = who.split_once("system:serviceaccount:pathproof:")
            {
                let account = account.trim_end_matches('"');
                assert!(accounts.contains(account), "{name}: {account}");
            }
        }
        let has_rights = values["rbac"]["create"] != false;
        assert_eq!(!of("ClusterRole").is_empty(), has_rights, "{name}");
    }
}
