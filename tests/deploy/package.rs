//! The packaged chart has the binary's version, and contains what it needs and no more.

use std::fs;
use std::process::Command;

use node_tests::cluster::documents;
use node_tests::deploy::{Tool, folder, overlay, said};
use node_tests::prelude::*;

use crate::find::of_kind;

fn chart() -> Value {
    let text = fs::read_to_string(folder().join("chart/Chart.yaml")).expect("Chart.yaml");
    documents(&text).expect("YAML").remove(0)
}

#[test]
fn versions_are_those_of_the_binary() {
    let version = env!("CARGO_PKG_VERSION");
    let chart = chart();
    assert_eq!(chart["version"], version);
    assert_eq!(chart["appVersion"], version);
    let image = format!("pathproof:{version}");
    let images = chart["annotations"]["artifacthub.io/images"].as_str();
    let images = documents(images.expect("images")).expect("YAML");
    assert_eq!(images[0][0]["image"], image.as_str());
    for file in [
        "base/agent.yaml",
        "base/rotator.yaml",
        "base/echo.yaml",
        "cleanup/cleanup.yaml",
    ] {
        let path = folder().join(file);
        let text = fs::read_to_string(&path).expect("a file of the base");
        assert!(
            text.contains(&format!("image: {image}\n")),
            "{}",
            path.display()
        );
    }
}

/// All taints are tolerated, because load balancers probe tainted nodes too, and the cleanup must reach every
/// node that ran the agent. `same` compares the chart with this base.
#[rstest]
#[case::agent("base/agent.yaml")]
#[case::echo("base/echo.yaml")]
#[case::cleanup("cleanup/cleanup.yaml")]
fn every_taint_is_tolerated(#[case] file: &str) {
    let text = fs::read_to_string(folder().join(file)).expect("a file");
    let objects = documents(&text).expect("YAML");
    let set = of_kind(&objects, "DaemonSet");
    let tolerations = &set["spec"]["template"]["spec"]["tolerations"];
    assert_eq!(*tolerations, json!([{ "operator": "Exists" }]));
}

/// The comment lists all images, because users who mirror images need a complete list.
#[test]
fn images_of_the_cleanup_are_named_in_its_comment() {
    let read = |name: &str| {
        let path = folder().join("cleanup").join(name);
        fs::read_to_string(path).expect("a file of the cleanup")
    };
    let objects = documents(&read("cleanup.yaml")).expect("YAML");
    let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"];
    let comment: String = read("kustomization.yaml")
        .lines()
        .filter(|line| line.starts_with('#'))
        .collect();
    let lists = ["initContainers", "containers"].map(|list| pod[list].as_array());
    let containers: Vec<&Value> = lists.into_iter().flatten().flatten().collect();
    assert_eq!(containers.len(), 2, "{pod}");
    for container in containers {
        let image = container["image"].as_str().expect("an image");
        assert!(comment.contains(image), "{image}");
        let (name, _) = image.rsplit_once(':').expect("a tag");
        let replaced = format!("{{name: {name}, newName");
        assert!(comment.contains(&replaced), "no {replaced}");
    }
}

/// API servers before 1.30 refuse the field `appArmorProfile`. It is replaced by an annotation, which must
/// name the container.
#[test]
fn the_cleanup_is_accepted_below_1_30() {
    needs!(Tool::Kubectl.installed());
    let objects = overlay("../cleanup", &["cleanup-before-1.30"]).expect("an overlay");
    let set = of_kind(&objects, "DaemonSet");
    assert!(!set.to_string().contains("appArmorProfile"), "{set}");
    let template = &set["spec"]["template"];
    let name = template["spec"]["initContainers"][0]["name"].as_str();
    let key = format!(
        "container.apparmor.security.beta.kubernetes.io/{}",
        name.expect("a name")
    );
    assert_eq!(template["metadata"]["annotations"][key], "unconfined");
}

/// Nodes with these labels are excluded, because a DaemonSet's pods would stay Pending there.
#[rstest]
#[case::agent("base/agent.yaml")]
#[case::echo("base/echo.yaml")]
#[case::cleanup("cleanup/cleanup.yaml")]
fn nodes_without_daemonsets_are_excluded(
    #[case] file: &str,
    #[values(
        ("eks.amazonaws.com/compute-type", "fargate"),
        ("type", "virtual-kubelet")
    )]
    label: (&str, &str),
) {
    let text = fs::read_to_string(folder().join(file)).expect("a file");
    let objects = documents(&text).expect("YAML");
    let pod = &of_kind(&objects, "DaemonSet")["spec"]["template"]["spec"];
    let affinity = &pod["affinity"]["nodeAffinity"];
    let required = &affinity["requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = required["nodeSelectorTerms"].as_array().expect("terms");
    // Every term must exclude the label: a node gets the pod if it matches one of the terms.
    let (key, value) = label;
    let excluded = json!({ "key": key, "operator": "NotIn", "values": [value] });
    for term in terms {
        let expressions = term["matchExpressions"].as_array().expect("expressions");
        assert!(expressions.contains(&excluded), "{term}");
    }
    assert!(!terms.is_empty(), "{affinity}");
}

/// Links into the repository name its address, and files that it has.
#[test]
fn the_chart_links_to_files_of_the_repository() {
    let chart = chart();
    let repository = env!("CARGO_PKG_REPOSITORY");
    assert_eq!(chart["home"], repository);
    assert_eq!(chart["sources"], json!([repository]));
    let exists = |path: &str| folder().join("..").join(path).is_file();
    let links = chart["annotations"]["artifacthub.io/links"].as_str();
    let links = documents(links.expect("links")).expect("YAML");
    for link in links[0].as_array().expect("a list") {
        let url = link["url"].as_str().expect("a URL");
        let path = url.strip_prefix(&format!("{repository}/blob/main/"));
        assert!(path.is_some_and(exists), "{url}");
    }
    let icon = chart["icon"].as_str().expect("an icon");
    let raw = repository.replace("github.com", "raw.githubusercontent.com");
    let path = icon.strip_prefix(&format!("{raw}/main/"));
    assert!(path.is_some_and(exists), "{icon}");
}

/// A release builds the image for both.
#[test]
fn the_chart_names_the_images_platforms() {
    let chart = chart();
    let images = chart["annotations"]["artifacthub.io/images"].as_str();
    let images = documents(images.expect("images")).expect("YAML");
    assert_eq!(
        images[0][0]["platforms"],
        json!(["linux/amd64", "linux/arm64"])
    );
    assert!(chart["kubeVersion"].is_string());
    assert_eq!(chart["annotations"]["artifacthub.io/license"], "Apache-2.0");
}

/// Annotations that Artifact Hub parses as YAML.
#[test]
fn annotations_are_what_artifact_hub_reads() {
    let chart = chart();
    for (name, keys) in [
        ("images", ["name", "image"]),
        ("links", ["name", "url"]),
        ("changes", ["kind", "description"]),
    ] {
        let text = chart["annotations"][format!("artifacthub.io/{name}")].as_str();
        let list = documents(text.expect("an annotation")).expect("YAML");
        let entries = list[0].as_array().expect("a list");
        assert!(!entries.is_empty(), "{name}");
        for (entry, key) in entries
            .iter()
            .flat_map(|entry| keys.map(|key| (entry, key)))
        {
            assert!(entry[key].is_string(), "{name}: no {key} in {entry}");
        }
    }
}

#[test]
fn the_package_holds_what_it_needs_and_no_more() {
    needs!(Tool::Helm.installed());
    let dir = tempfile::tempdir().expect("a folder");
    let mut package = Tool::Helm.command().expect("helm");
    package
        .arg("package")
        .arg(folder().join("chart"))
        .arg("--destination")
        .arg(dir.path());
    for home in ["HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME"] {
        package.env(home, dir.path());
    }
    said(&mut package).expect("a package");
    let file = format!("pathproof-{}.tgz", env!("CARGO_PKG_VERSION"));
    let list = said(Command::new("tar").arg("-tzf").arg(dir.path().join(file)));
    let list = list.expect("a list");
    for needed in [
        "values.schema.json",
        "README.md",
        "templates/NOTES.txt",
        "files/alerts/prometheus-rule.yaml",
    ] {
        let line = format!("pathproof/{needed}");
        assert!(list.lines().any(|have| have == line), "no {needed}: {list}");
    }
    assert!(!list.contains("kustomization"), "{list}");
}
