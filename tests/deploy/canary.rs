//! A second release that runs another version on some nodes, beside the first release.

use std::collections::BTreeSet;

use node_tests::deploy::{Chart, Tool, identity};
use node_tests::prelude::*;

use crate::find::named;

const NAME: &str = "pathproof-canary";

fn values() -> Value {
    json!({
        "shared": { "create": false },
        "image": { "registry": "registry.example.com", "tag": "0.2.0" },
        "agent": { "nodeSelector": { "pool": "canary" } },
        "namespace": { "create": true },
        "networkPolicy": { "enabled": true },
        "rotator": { "withdraw": "label", "replicas": 2, "podDisruptionBudget": { "enabled": true } },
        "metrics": { "prometheusRule": { "enabled": true }, "dashboard": { "enabled": true } },
    })
}

/// The values of the first release serve both: objects of which the cluster has one are left out.
#[rstest]
#[case::pod_monitor("podMonitor")]
#[case::service_monitor("serviceMonitor")]
fn a_canary_brings_its_agents_and_nothing_else(#[case] monitor: &str) {
    needs!(Tool::Helm.installed());
    let mut values = values();
    values["agent"]["admin"] = json!({ "allowCidrs": ["10.0.0.0/8"] });
    values["metrics"][monitor] = json!({ "enabled": true });
    let canary = Chart::with(values.clone())
        .release(NAME)
        .render()
        .expect("a canary");
    let names: Vec<String> = canary.iter().map(identity).collect();
    assert_eq!(names, [format!("DaemonSet pathproof/{NAME}-agent")]);

    values["shared"] = json!({ "create": true });
    let first = Chart::with(values).render().expect("the first release");
    let shared: BTreeSet<String> = first.iter().map(identity).collect();
    assert!(
        shared.is_disjoint(&names.into_iter().collect()),
        "{shared:?}"
    );
    // The rights and the policies of the first release are for this account.
    let pod = |objects: &[Value], name: &str| {
        named(objects, "DaemonSet", name)["spec"]["template"]["spec"].clone()
    };
    let (ours, theirs) = (
        pod(&canary, &format!("{NAME}-agent")),
        pod(&first, "pathproof-agent"),
    );
    assert_eq!(ours["serviceAccountName"], theirs["serviceAccountName"]);
    named(&first, "ServiceAccount", "pathproof-agent");
    assert_eq!(
        ours["containers"][0]["args"],
        theirs["containers"][0]["args"]
    );
}

#[test]
fn the_notes_name_the_first_release() {
    needs!(Tool::Helm.installed());
    let notes = Chart::with(values()).release(NAME).notes().expect("notes");
    for words in [
        "daemonset/pathproof-canary-agent",
        "are those of the first release",
    ] {
        assert!(notes.contains(words), "no {words} in {notes}");
    }
    assert!(!notes.contains("No policy"), "{notes}");
}
