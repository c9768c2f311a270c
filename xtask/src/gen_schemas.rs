//! `cargo xtask gen-schemas`: writes tests/deploy/schemas, extracts of the schemas in the Go modules of
//! Kubernetes and Prometheus Operator. It needs Go and the network; the tests need neither.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::setup_cluster::KUBERNETES;
use crate::{go, run};

/// The oldest release whose schemas are compared. Admission policies exist only in later releases.
const OLDEST: &str = "v1.28.15";
const OPERATOR: (&str, &str) = (
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
);

/// All objects that the chart may render: versions, and the kinds of each.
const KINDS: &str = "
    v1 | ConfigMap Namespace ResourceQuota Service ServiceAccount
    admissionregistration.k8s.io/v1 | ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding
    apps/v1 | DaemonSet Deployment
    networking.k8s.io/v1 | NetworkPolicy
    policy/v1 | PodDisruptionBudget
    rbac.authorization.k8s.io/v1 | ClusterRole ClusterRoleBinding Role RoleBinding
";

/// Objects of Prometheus Operator, by the files of its module.
const CUSTOM: [&str; 3] = ["podmonitors", "prometheusrules", "servicemonitors"];

/// Parts of a schema that are compared.
const KEPT: &str = "$ref additionalProperties anyOf enum format items properties required type \
    x-kubernetes-int-or-string x-kubernetes-preserve-unknown-fields";

pub(crate) fn run() -> Result<()> {
    for version in [OLDEST, KUBERNETES] {
        let module = go::module("k8s.io/kubernetes", version)?;
        let swagger = read(&module.join("api/openapi-spec/swagger.json"))?;
        write("kubernetes", version, &of_kubernetes(&swagger))?;
    }
    let module = go::module(OPERATOR.0, OPERATOR.1)?;
    let mut all = Extract::default();
    for name in CUSTOM {
        let file = format!("jsonnet/prometheus-operator/{name}-crd.json");
        all.add_custom(&read(&module.join(file))?)?;
    }
    write("prometheus-operator", OPERATOR.1, &all)
}

fn read(path: &Path) -> Result<Value> {
    let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(serde_json::from_slice(&text)?)
}

fn write(name: &str, version: &str, extract: &Extract) -> Result<()> {
    let version = version.trim_start_matches('v');
    let file = format!("tests/deploy/schemas/{name}-{version}.json");
    let all = json!({ "kinds": extract.kinds, "definitions": extract.definitions });
    let text = serde_json::to_string_pretty(&all)? + "\n";
    fs::write(run::root().join(&file), text).with_context(|| format!("cannot write {file}"))?;
    println!("wrote {file}");
    Ok(())
}

/// Kinds by apiVersion and kind, and the definitions that they need.
#[derive(Debug, Default)]
struct Extract {
    kinds: BTreeMap<String, String>,
    definitions: BTreeMap<String, Value>,
}

fn of_kubernetes(swagger: &Value) -> Extract {
    let mut all = Extract::default();
    let known = swagger["definitions"].as_object();
    for row in run::rows(KINDS) {
        let (version, kinds) = (row[0], row[1]);
        let group = version.trim_end_matches("v1").trim_end_matches('/');
        for kind in kinds.split(' ') {
            let wanted = json!({ "group": group, "kind": kind, "version": "v1" });
            let is_it = |(_, schema): &(&String, &Value)| {
                let kinds = schema["x-kubernetes-group-version-kind"].as_array();
                kinds.is_some_and(|kinds| kinds.contains(&wanted))
            };
            if let Some((name, _)) = known.into_iter().flatten().find(is_it) {
                all.kinds.insert(format!("{version} {kind}"), name.clone());
                all.add(name, &swagger["definitions"]);
            }
        }
    }
    all
}

impl Extract {
    /// Adds a definition, and all that it refers to.
    fn add(&mut self, name: &str, known: &Value) {
        if self.definitions.contains_key(name) {
            return;
        }
        let schema = trimmed(&known[name]);
        let mut names = Vec::new();
        references(&schema, &mut names);
        self.definitions.insert(name.to_owned(), schema);
        for name in names {
            self.add(&name, known);
        }
    }

    fn add_custom(&mut self, definition: &Value) -> Result<()> {
        let kind = definition["spec"]["names"]["kind"].as_str();
        let kind = kind.context("a CRD has no kind")?;
        let versions = definition["spec"]["versions"].as_array();
        let mut versions = versions.into_iter().flatten();
        let version = versions.find(|one| one["name"] == "v1");
        let version = version.with_context(|| format!("{kind} has no v1"))?;
        let mut schema = trimmed(&version["schema"]["openAPIV3Schema"]);
        let metadata = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
        schema["properties"]["metadata"] = json!({ "$ref": metadata });
        let name = format!("monitoring.coreos.com/v1 {kind}");
        self.kinds.insert(name, kind.to_owned());
        self.definitions.insert(kind.to_owned(), schema);
        Ok(())
    }
}

/// A schema without descriptions, with references shortened to names.
fn trimmed(schema: &Value) -> Value {
    let mut kept = Map::new();
    for (key, value) in schema.as_object().into_iter().flatten() {
        if KEPT.split(' ').all(|kept| kept != key) {
            continue;
        }
        let value = match (key.as_str(), value) {
            ("properties", Value::Object(fields)) => fields
                .iter()
                .map(|(name, field)| (name.clone(), trimmed(field)))
                .collect(),
            ("anyOf", Value::Array(ways)) => ways.iter().map(trimmed).collect(),
            ("items" | "additionalProperties", Value::Object(_)) => trimmed(value),
            ("$ref", Value::String(path)) => json!(path.rsplit('/').next()),
            _ => value.clone(),
        };
        kept.insert(key.clone(), value);
    }
    Value::Object(kept)
}

/// Names of the definitions that a trimmed schema refers to.
fn references(schema: &Value, names: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            let name = fields.get("$ref").and_then(Value::as_str);
            names.extend(name.map(str::to_owned));
            fields.values().for_each(|field| references(field, names));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, names)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_come_with_what_they_refer_to() {
        let kind = json!([{ "group": "apps", "kind": "DaemonSet", "version": "v1" }]);
        let swagger = json!({ "definitions": {
            "a.DaemonSet": {
                "description": "x", "x-kubernetes-group-version-kind": kind,
                "properties": {
                    "description": { "type": "string", "description": "y" },
                    "spec": { "items": { "$ref": "#/definitions/a.Spec" } },
                },
            },
            "a.Spec": { "type": "object", "properties": { "self": { "$ref": "#/definitions/a.Spec" } } },
            "a.Other": { "type": "object" },
        } });
        let all = of_kubernetes(&swagger);
        assert_eq!(all.kinds["apps/v1 DaemonSet"], "a.DaemonSet");
        assert_eq!(all.kinds.len(), 1);
        let expected = json!({ "properties": {
            "description": { "type": "string" }, "spec": { "items": { "$ref": "a.Spec" } },
        } });
        assert_eq!(all.definitions["a.DaemonSet"], expected);
        assert!(all.definitions.contains_key("a.Spec") && all.definitions.len() == 2);
    }

    #[test]
    fn a_custom_kind_is_that_of_its_v1() {
        let of = |name: &str, kind: &str| {
            json!({ "name": name, "schema": { "openAPIV3Schema": {
                "properties": { "spec": { "type": kind } },
            } } })
        };
        let versions = [of("v1alpha1", "string"), of("v1", "object")];
        let names = json!({ "kind": "PodMonitor" });
        let mut all = Extract::default();
        all.add_custom(&json!({ "spec": { "names": names, "versions": versions } }))
            .unwrap();
        let schema = &all.definitions["PodMonitor"];
        assert_eq!(schema["properties"]["spec"]["type"], "object");
        assert_eq!(
            all.kinds["monitoring.coreos.com/v1 PodMonitor"],
            "PodMonitor"
        );
        let old = json!({ "spec": { "names": names, "versions": [] } });
        assert!(all.add_custom(&old).is_err());
    }
}
