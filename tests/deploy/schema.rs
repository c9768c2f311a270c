//! Validates objects against the API servers' schemas, as kubeconform does with `-strict`: it checks types
//! and required fields, and refuses unknown fields.
//!
//! The schemas are extracts: see schemas/README.md.

use std::fs;
use std::path::Path;

use serde_json::{Map, Value};

/// Schemas of a release of Kubernetes and of Prometheus Operator, by kind.
pub(crate) struct Schemas {
    kinds: Map<String, Value>,
    definitions: Map<String, Value>,
}

impl Schemas {
    /// Reads the schemas of a checked-in release.
    pub(crate) fn of(version: &str) -> Self {
        let mut all = Self {
            kinds: Map::new(),
            definitions: Map::new(),
        };
        for name in [
            format!("kubernetes-{version}"),
            "prometheus-operator-0.85.0".to_owned(),
        ] {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/schemas");
            let text = fs::read_to_string(folder.join(format!("{name}.json")));
            let mut parsed: Value =
                serde_json::from_str(&text.expect("a file of schemas")).expect("JSON");
            for (key, into) in [
                ("kinds", &mut all.kinds),
                ("definitions", &mut all.definitions),
            ] {
                let Value::Object(part) = parsed[key].take() else {
                    panic!("{name} has no {key}");
                };
                into.extend(part);
            }
        }
        all
    }

    /// Errors of an object, each with its path.
    pub(crate) fn errors(&self, object: &Value) -> Vec<String> {
        let text = |key: &str| object[key].as_str().unwrap_or_default().to_owned();
        let kind = format!("{} {}", text("apiVersion"), text("kind"));
        let Some(name) = self.kinds.get(&kind) else {
            return vec![format!("there is no {kind}")];
        };
        let mut found = Vec::new();
        let schema = serde_json::json!({ "$ref": name });
        self.check(&schema, object, &kind, &mut found);
        found
    }

    fn check(&self, schema: &Value, value: &Value, path: &str, found: &mut Vec<String>) {
        if let Some(name) = schema["$ref"].as_str() {
            // The API also accepts a bare number as a quantity.
            if name.ends_with(".Quantity") && value.is_number() {
                return;
            }
            let schema = &self.definitions[name];
            return self.check(schema, value, path, found);
        }
        let is_either =
            schema["format"] == "int-or-string" || schema["x-kubernetes-int-or-string"] == true;
        let fits = match schema["type"].as_str() {
            _ if is_either => value.is_string() || value.is_i64(),
            Some("object") => value.is_object(),
            Some("array") => value.is_array(),
            Some("string") => value.is_string(),
            Some("integer") => value.is_i64(),
            Some("number") => value.is_number(),
            Some("boolean") => value.is_boolean(),
            _ => true,
        };
        if !fits {
            found.push(format!("{path} is {value}, not of type {}", schema["type"]));
            return;
        }
        if let Some(allowed) = schema["enum"].as_array()
            && !allowed.contains(value)
        {
            found.push(format!("{path} is {value}, not one of {allowed:?}"));
        }
        if let Some(items) = value.as_array() {
            for (at, item) in items.iter().enumerate() {
                self.check(&schema["items"], item, &format!("{path}[{at}]"), found);
            }
        }
        if let Some(fields) = value.as_object() {
            self.check_fields(schema, fields, path, found);
        }
    }

    fn check_fields(
        &self,
        schema: &Value,
        fields: &Map<String, Value>,
        path: &str,
        found: &mut Vec<String>,
    ) {
        for name in schema["required"].as_array().into_iter().flatten() {
            if !fields.contains_key(name.as_str().unwrap_or_default()) {
                found.push(format!("{path} has no {name}"));
            }
        }
        let others = &schema["additionalProperties"];
        let is_open = schema["x-kubernetes-preserve-unknown-fields"] == true
            || (schema["properties"].is_null() && others.is_null());
        for (name, value) in fields {
            let path = format!("{path}.{name}");
            let known = &schema["properties"][name];
            match (known.is_null(), others.is_null()) {
                (false, _) => self.check(known, value, &path, found),
                (true, false) => self.check(others, value, &path, found),
                (true, true) if !is_open => found.push(format!("{path} is no field")),
                (true, true) => {}
            }
        }
    }
}

#[test]
fn faults_are_found_and_their_negative_control_is_not() {
    use serde_json::json;

    let sound = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": "x", "labels": { "a": "b" } },
        "spec": { "minAvailable": "50%", "selector": { "matchLabels": { "a": "b" } } },
    });
    let schemas = Schemas::of("1.28.15");
    assert_eq!(schemas.errors(&sound), [""; 0]);
    for (pointer, fault, words) in [
        ("/spec/minAvailable", json!(true), "minAvailable is true"),
        ("/spec/selector", json!(null), "selector is null"),
        (
            "/spec/selector",
            json!({ "match": {} }),
            "selector.match is no field",
        ),
        ("/metadata/labels/a", json!(1), "metadata.labels.a is 1"),
        (
            "/kind",
            json!("PodDisruption"),
            "there is no policy/v1 PodDisruption",
        ),
    ] {
        let mut wrong = sound.clone();
        *wrong.pointer_mut(pointer).expect("a field") = fault;
        let found = schemas.errors(&wrong);
        assert!(
            found.len() == 1 && found[0].contains(words),
            "{words}: {found:?}"
        );
    }
    let set = json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "x" },
        "spec": { "selector": {} },
    });
    let found = schemas.errors(&set);
    assert_eq!(found, ["apps/v1 DaemonSet.spec has no \"template\""]);
    // The older release has no such policies.
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": { "name": "x" },
    });
    assert_eq!(schemas.errors(&policy).len(), 1);
    assert_eq!(Schemas::of("1.36.3").errors(&policy), [""; 0]);
}
