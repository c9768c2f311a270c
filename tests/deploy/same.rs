//! The chart and the kustomizations give the same objects for each profile.

use std::collections::BTreeMap;

use node_tests::built::versions::KUBERNETES;
use node_tests::deploy::{Chart, PROFILES, REGISTRY, Tool, folder, identity, overlay};
use node_tests::prelude::*;

/// Ranges of clients that the component pod-monitor allows.
const PRIVATE: [&str; 4] = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"];

/// Labels that the chart gives every object, as Helm's guide recommends.
pub(crate) const RELEASE_LABELS: [&str; 4] = [
    "app.kubernetes.io/instance",
    "app.kubernetes.io/version",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
];

type Objects = BTreeMap<String, Value>;

fn by_identity(objects: Vec<Value>) -> Objects {
    let count = objects.len();
    let named: Objects = objects
        .into_iter()
        .map(|object| (identity(&object), object))
        .collect();
    assert_eq!(named.len(), count, "an object is there twice");
    named
}

/// The first field that differs between two values, with both of its values.
fn difference(path: &str, chart: &Value, kustomize: &Value) -> Option<String> {
    match (chart, kustomize) {
        (Value::Object(left), Value::Object(right)) => {
            let keys = left.keys().chain(right.keys());
            keys.into_iter().find_map(|key| {
                let of = |side: &Value| side.get(key).cloned().unwrap_or_default();
                difference(&format!("{path}.{key}"), &of(chart), &of(kustomize))
            })
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => left
            .iter()
            .zip(right)
            .enumerate()
            .find_map(|(at, (l, r))| difference(&format!("{path}[{at}]"), l, r)),
        _ if chart == kustomize => None,
        _ => Some(format!("{path}: chart {chart}, kustomize {kustomize}")),
    }
}

/// The first object and field that differ between the renderings.
fn first_difference(chart: &Objects, kustomize: &Objects) -> Option<String> {
    let names = chart.keys().chain(kustomize.keys());
    names
        .into_iter()
        .find_map(|name| match (chart.get(name), kustomize.get(name)) {
            (Some(left), Some(right)) => difference(name, left, right),
            (Some(_), None) => Some(format!("{name}: the chart alone has it")),
            _ => Some(format!("{name}: kustomize alone has it")),
        })
}

/// The chart's objects without the release's labels and the image's registry, which kustomize does not set.
fn of_chart(chart: Chart) -> Objects {
    let mut objects = chart.render().expect("the chart");
    for object in &mut objects {
        let what = identity(object);
        let labels = object["metadata"]["labels"].as_object_mut();
        let labels = labels.unwrap_or_else(|| panic!("{what} has no labels"));
        for label in RELEASE_LABELS {
            let is_there = labels.remove(label).is_some();
            assert!(is_there, "{what} has no label {label}");
        }
        let of_pods = "/spec/template/metadata/labels";
        if let Some(labels) = object.pointer_mut(of_pods).and_then(Value::as_object_mut) {
            labels.retain(|label, _| !RELEASE_LABELS.contains(&label.as_str()));
        }
        if let Some(image) = object.pointer_mut("/spec/template/spec/containers/0/image") {
            let name = image.as_str().expect("an image");
            *image = json!(name.trim_start_matches(&format!("{REGISTRY}/")));
        }
    }
    by_identity(objects)
}

fn tools() -> Needed {
    Tool::Helm.installed()?;
    Tool::Kubectl.installed()
}

/// Asserts that the overlay with these components renders the chart's objects.
#[track_caller]
fn assert_same(chart: &Objects, profile: &str, components: &[&str]) {
    let kustomize = overlay(profile, components).expect("the overlay");
    let mut kustomize = by_identity(kustomize);
    take_namespace(&mut kustomize);
    assert_eq!(first_difference(chart, &kustomize), None);
}

/// Removes the Namespace. The chart renders none, because it must exist before helm installs anything.
fn take_namespace(objects: &mut Objects) {
    let namespace = objects.remove("Namespace /pathproof").expect("a Namespace");
    let labels = &namespace["metadata"]["labels"];
    assert_eq!(labels["pod-security.kubernetes.io/enforce"], "privileged");
}

#[rstest]
fn the_chart_and_the_overlay_are_the_same(
    #[values("beside-kube-proxy", "cilium", "rke1", "standalone")] profile: &str,
) {
    needs!(tools());
    let chart = of_chart(Chart::with(json!({ "profile": profile })));
    assert_same(&chart, profile, &[]);
}

/// Each component has the same effect as these values.
#[rstest]
#[case("beside-kube-proxy", &["enforce"], json!({ "agent": { "enforcement": "enforce" } }))]
#[case("cilium", &["alerts"], json!({ "metrics": { "prometheusRule": { "enabled": true } } }))]
#[case("rke1", &["alerts"], json!({ "metrics": { "prometheusRule": { "enabled": true } } }))]
#[case("standalone", &["pod-monitor", "enforce"], json!({
    "agent": { "enforcement": "enforce", "admin": { "allowCidrs": PRIVATE } },
    "metrics": { "podMonitor": { "enabled": true } },
}))]
#[case("beside-kube-proxy", &["pod-monitor", "alerts"], json!({
    "agent": { "admin": { "allowCidrs": PRIVATE } },
    "metrics": { "podMonitor": { "enabled": true }, "prometheusRule": { "enabled": true } },
}))]
#[case("standalone", &["withdraw"], json!({ "rotator": { "withdraw": "label" } }))]
fn components_are_values(
    #[case] profile: &str,
    #[case] components: &[&str],
    #[case] mut values: Value,
) {
    needs!(tools());
    values["profile"] = json!(profile);
    assert_same(&of_chart(Chart::with(values)), profile, components);
}

/// Components for clusters or nodes that lack a feature.
#[rstest]
#[case("1.29.5", &["before-1.30"], json!({}))]
#[case("1.25.0", &["before-1.30", "enforce"], json!({ "agent": { "enforcement": "enforce" } }))]
#[case("1.30.2", &["before-1.31"], json!({}))]
#[case(KUBERNETES, &["without-bpffs"], json!({ "agent": { "pins": false } }))]
fn components_for_missing_features_equal_the_chart(
    #[case] version: &'static str,
    #[case] components: &[&str],
    #[case] mut values: Value,
    #[values("beside-kube-proxy", "rke1")] profile: &str,
) {
    needs!(tools());
    // The rke1 profile has no agents: it refuses their values, and components have nothing to patch.
    if profile == "rke1" {
        values["agent"] = json!({});
    }
    values["profile"] = json!(profile);
    let chart = of_chart(Chart::with(values).kubernetes(version));
    assert_same(&chart, profile, components);
}

/// The chart can include the Namespace, for tools that apply rendered objects. helm does not delete it at an
/// uninstall.
#[test]
fn the_namespace_is_the_same() {
    needs!(tools());
    let mut chart = of_chart(Chart::with(json!({ "namespace": { "create": true } })));
    let namespace = chart.get_mut("Namespace /pathproof").expect("a Namespace");
    let metadata = namespace["metadata"].as_object_mut().expect("metadata");
    let annotations = metadata.remove("annotations");
    let kept = json!({ "helm.sh/resource-policy": "keep" });
    assert_eq!(annotations, Some(kept));
    let kustomize = by_identity(overlay("beside-kube-proxy", &[]).expect("the overlay"));
    assert_eq!(first_difference(&chart, &kustomize), None);
}

#[test]
fn the_dashboard_is_the_same_file() {
    needs!(tools());
    let values = json!({ "metrics": { "dashboard": { "enabled": true } } });
    let chart = of_chart(Chart::with(values));
    assert_same(&chart, "beside-kube-proxy", &["dashboard"]);
    let map = &chart["ConfigMap pathproof/pathproof-dashboard"];
    let json = map["data"]["pathproof.json"].as_str().expect("a dashboard");
    serde_json::from_str::<Value>(json).expect("JSON");
    // kubectl apply stores a copy of the object in an annotation, whose size the API server limits.
    assert!(
        map.to_string().len() < 256 * 1024,
        "too large for kubectl apply"
    );
}

#[test]
fn a_difference_is_found_and_named() {
    let object = json!({ "kind": "A", "metadata": { "name": "x" }, "spec": { "list": [1, 2] } });
    let mut other = object.clone();
    other["spec"]["list"][1] = json!(3);
    let (left, right) = (by_identity(vec![object]), by_identity(vec![other]));
    assert_eq!(first_difference(&left, &left.clone()), None);
    assert_eq!(
        first_difference(&left, &right).as_deref(),
        Some("A /x.spec.list[1]: chart 2, kustomize 3")
    );
    let nothing = Objects::new();
    let missing = first_difference(&nothing, &right);
    assert_eq!(missing.as_deref(), Some("A /x: kustomize alone has it"));
}

#[test]
fn every_overlay_is_a_profile() {
    let folder = folder().join("overlays");
    let entries = std::fs::read_dir(folder).expect("overlays");
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("a name")
        })
        .collect();
    names.sort();
    assert_eq!(names, PROFILES);
}
