//! Every name in JSON, metrics and texts, compared with one golden file.

use std::fmt::Write as _;

use pathproof_facts::cause::{Cause, Failure, ProbeCause, State, Why};
use pathproof_facts::names::*;
use pathproof_facts::owners::{DatapathOwners, Owner};
use pathproof_facts::testing::{assert_words, in_json};
use pathproof_facts::trace::{ProbePath, Transport};
use pathproof_judge::eligibility::Eligibility;
use pathproof_judge::explain::{ShownStage, path_label};
use pathproof_judge::verdict::finding::{Evidence, Finding, Rule};
use pathproof_judge::verdict::{LaneState, PathState};
use pathproof_wire::service::{Family, SourceClass};
use pathproof_witness::probes::VoidReason;
use pathproof_witness::topology::{Seen, Tristate};
use serde::Serialize;

use crate::SentinelCondition;
use crate::condition::Status;

/// Checks that a value has the same name in JSON, and returns it.
fn one_name<T: Serialize>(value: T, name: &str) -> String {
    assert_eq!(name, in_json(value));
    name.to_owned()
}

fn table<T: Copy>(text: &mut String, title: &str, all: &[T], row: impl Fn(T) -> String) {
    let _ = writeln!(text, "{title}");
    for one in all {
        let _ = writeln!(text, "  {}", row(*one));
    }
}

#[test]
fn every_name_is_what_is_documented() {
    let mut text = String::new();
    let out = &mut text;
    table(out, "families", &Family::ALL, |family| {
        of_family(family).to_owned()
    });
    table(out, "paths of connections", &SourceClass::ALL, |class| {
        of_path(class).to_owned()
    });
    table(out, "paths of probes", &ProbePath::ALL, |path| {
        format!("{} ({})", one_name(path, path.name()), path_label(path))
    });
    table(out, "transports", &Transport::ALL, |transport| {
        one_name(transport, transport.name())
    });
    table(out, "failures", &Failure::ALL, |failure| {
        format!("{}: {}", in_json(failure), Cause::of(failure).name())
    });
    table(out, "causes of probes", &ProbeCause::ALL, |cause| {
        let clear = match cause.is_unambiguous() {
            true => "unambiguous",
            false => "ambiguous",
        };
        format!("{}: {}, {clear}", cause.name(), cause.cause().name())
    });
    table(out, "states", &State::ALL, |state| {
        format!(
            "{}{}",
            state.name(),
            if state.fails() { ": fails" } else { "" }
        )
    });
    table(out, "causes", &Cause::ALL, |cause| cause.name().to_owned());
    table(out, "whys", &Why::ALL, |why| why.name().to_owned());
    table(out, "owners", &Owner::ALL, |owner| {
        let alone: DatapathOwners = [owner].into_iter().collect();
        let kube_proxy = match alone.is_kube_proxy() {
            true => ", kube-proxy's",
            false => "",
        };
        format!("{}: {}{kube_proxy}", in_json(owner), owner.label())
    });
    table(out, "what is told", &Tristate::ALL, |value| {
        one_name(value, value.name())
    });
    table(out, "what is seen", &Seen::ALL, |extent| {
        one_name(extent, extent.name())
    });
    table(out, "states of lanes", &LaneState::ALL, |state| {
        one_name(state, state.name())
    });
    let paths = [PathState::Proven, PathState::Failing, PathState::Quiet];
    table(out, "states of paths", &paths, in_json);
    table(out, "void", &VoidReason::ALL, in_json);
    table(out, "stages", &ShownStage::ALL, |stage| {
        one_name(stage, stage.name())
    });
    table(out, "the sentinel", &SentinelCondition::ALL, |condition| {
        one_name(condition, condition.name())
    });
    table(out, "status of the condition", &Status::ALL, |status| {
        assert_eq!(Status::parse(status.name()), Some(status));
        status.name().to_owned()
    });
    assert_eq!(Status::parse("true"), None);
    let taint = "ToBeDeletedByClusterAutoscaler".to_owned();
    let mark = "label kured=rebooting".to_owned();
    let nodes = [
        &Eligibility::Eligible,
        &Eligibility::Deleting,
        &Eligibility::Tainted { taint },
        &Eligibility::Marked { mark },
        &Eligibility::NeverSeen,
    ];
    table(out, "nodes", &nodes, |node| {
        format!("{}: {node}", node.name())
    });
    assert_words("names", &text);
}

/// In JSON, a finding keeps its family, or has none.
#[test]
fn a_finding_keeps_its_family() {
    for family in [None, Some(Family::V4), Some(Family::V6)] {
        let finding = Finding {
            family,
            ..Finding::new(Rule::Idle, Evidence::Nothing)
        };
        let json = serde_json::to_value(&finding).unwrap();
        let named = json.get("family").and_then(|name| name.as_str());
        assert_eq!(named, family.map(of_family));
        assert_eq!(serde_json::from_value::<Finding>(json).unwrap(), finding);
    }
    let null = serde_json::json!({"rule": "idle", "family": null, "evidence": {"kind": "nothing"}});
    assert_eq!(
        serde_json::from_value::<Finding>(null).unwrap().family,
        None
    );
}

#[test]
fn owners_are_a_set() {
    let set = |owners: &[Owner]| -> DatapathOwners { owners.iter().copied().collect() };
    let list = |owners: DatapathOwners| -> Vec<Owner> { owners.iter().collect() };
    for bits in 0u8..1 << Owner::ALL.len() {
        let there = |owner: &Owner| bits & (1 << *owner as u8) != 0;
        let expected: Vec<Owner> = Owner::ALL.into_iter().filter(there).collect();
        let owners = set(&expected);
        assert_eq!(list(owners), expected);
        assert_eq!(
            list(set(&[&expected[..], &expected].concat())),
            expected,
            "twice"
        );
        assert_eq!(owners.is_empty(), expected.is_empty());
        for owner in Owner::ALL {
            assert_eq!(owners.contains(owner), expected.contains(&owner));
        }
        let modes = [
            Owner::KubeProxyIptables,
            Owner::KubeProxyNftables,
            Owner::Ipvs,
        ];
        let cilium = [Owner::Cilium, Owner::CiliumReplacement];
        let has = |those: &[Owner]| expected.iter().any(|owner| those.contains(owner));
        assert_eq!(owners.is_kube_proxy(), has(&modes) && !has(&cilium));
        assert_eq!(owners.is_unknown(), expected == [Owner::Unknown]);
        let known = set(&[Owner::Ipvs, Owner::Cilium]);
        let beyond: Vec<Owner> = expected
            .iter()
            .copied()
            .filter(|owner| !known.contains(*owner))
            .collect();
        assert_eq!(list(owners.beyond(known)), beyond);
        let json = serde_json::to_value(owners).unwrap();
        assert_eq!(json, serde_json::to_value(&expected).unwrap());
        assert_eq!(
            serde_json::from_value::<DatapathOwners>(json).unwrap(),
            owners
        );
    }
}
