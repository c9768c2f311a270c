//! The four lists of the chart's values are the same: values.yaml, the schema, the README and the defaults
//! with which the rke1 profile compares.

use std::collections::BTreeSet;
use std::fs;

use node_tests::cluster::documents;
use node_tests::deploy::folder;
use serde_json::Value;

fn read(name: &str) -> String {
    let path = folder().join("chart").join(name);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Collects the path of every value. A value with free content counts as one.
fn paths(values: &Value, path: &str, found: &mut BTreeSet<String>) {
    const FREE: [&str; 4] = ["resources", "nodeSelector", "labels", "affinity"];
    match values.as_object() {
        Some(map) if !map.is_empty() && !FREE.iter().any(|name| path.ends_with(name)) => {
            for (key, value) in map {
                let path = format!("{path}.{key}");
                paths(value, path.trim_start_matches('.'), found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

/// Collects the paths of the schema's properties in the same way.
fn schema_paths(schema: &Value, path: &str, found: &mut BTreeSet<String>) {
    match schema["properties"].as_object() {
        Some(map) if !path.ends_with("resources") => {
            // Helm passes `global` on from the chart that this one is part of.
            let is_open = schema["additionalProperties"] != false;
            assert_eq!(is_open, path == "global", "{path}");
            for (key, value) in map {
                let path = format!("{path}.{key}");
                schema_paths(value, path.trim_start_matches('.'), found);
            }
        }
        _ => {
            found.insert(path.to_owned());
        }
    }
}

#[test]
fn values_schema_and_readme_know_the_same() {
    let values = documents(&read("values.yaml")).expect("YAML");
    let mut in_values = BTreeSet::new();
    paths(&values[0], "", &mut in_values);
    let schema = serde_json::from_str(&read("values.schema.json")).expect("JSON");
    let mut in_schema = BTreeSet::new();
    schema_paths(&schema, "", &mut in_schema);
    assert_eq!(in_values, in_schema);
    let readme = read("README.md");
    let row = |line: &str| Some(line.strip_prefix("| `")?.split('`').next()?.to_owned());
    let (_, table) = readme.split_once("<!-- values:").expect("the table");
    let in_readme: BTreeSet<String> = table.lines().filter_map(row).collect();
    assert_eq!(in_values, in_readme);
}

/// The rke1 profile has defaults of the agent's values, and refuses values that differ from them.
#[test]
fn defaults_of_the_agent_are_those_of_the_values() {
    let mut values = documents(&read("values.yaml")).expect("YAML");
    let mut agent = values[0]["agent"].take();
    // Leave out these ports, which policies reserve with every profile.
    let used = agent
        .as_object_mut()
        .expect("values")
        .remove("healthzBindAddress");
    let port = agent["admin"]
        .as_object_mut()
        .expect("values")
        .remove("port");
    assert!(used.is_some() && port.is_some());
    let defaults = documents(&read("files/agent-defaults.yaml")).expect("YAML");
    assert_eq!(defaults[0], agent);
}
