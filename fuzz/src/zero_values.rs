//! Objects with null or zero in any of their fields, as Go writes unset fields without `omitempty`. The agent
//! must read them: otherwise an object's last good version would stay in use for ever.
//!
//! The first byte selects the object, each other byte a field. agent/src/cluster/api/tests/zero_values.rs tries
//! each field alone.

use jiff::Timestamp;
use pathproof::cluster::api::listed;
use serde_json::{Value, json};

const OBJECTS: [&str; 3] = [
    include_str!("../corpus/api_objects/node.jsonl"),
    include_str!("../corpus/api_objects/service.jsonl"),
    include_str!("../corpus/api_objects/slice.jsonl"),
];
/// Fields without which an API server refuses the object, or that tell its ports apart.
const NEEDED: &str = "apiVersion kind metadata name port protocol ipMode addressType";

pub(crate) fn check(bytes: &[u8]) -> bool {
    let Some((first, choices)) = bytes.split_first() else {
        return false;
    };
    let text = OBJECTS[usize::from(*first) % OBJECTS.len()];
    let mut object: Value = serde_json::from_str(text).expect("an object");
    let mut all = Vec::new();
    fields(&object, "", &mut all);
    for choice in choices {
        let at = &all[usize::from(choice / 2) % all.len()];
        // There is none if an earlier choice replaced what it was in.
        if let Some(field) = object.pointer_mut(at) {
            *field = if choice.is_multiple_of(2) {
                Value::Null
            } else {
                zero(field)
            };
        }
    }
    let update = listed("worker-1", object.to_string().as_bytes()).expect("a view");
    // The line is read as every kind of object: the others refuse it.
    let title = format!("API server: {} ", object["kind"].as_str().expect("a kind"));
    for problem in update.problems.iter().map(ToString::to_string) {
        let is_lost = problem.starts_with(&title) && problem.ends_with("stays in use");
        assert!(!is_lost, "{problem}: {object}");
    }
    true
}

/// Every field that may be missing, as a JSON pointer. In Go, labels are a map of strings, which are never null.
fn fields(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(all) if !at.ends_with("/labels") => {
            for (key, inner) in all {
                let at = format!("{at}/{key}");
                fields(inner, &at, found);
                if NEEDED.split(' ').all(|name| name != key) {
                    found.push(at);
                }
            }
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            items.for_each(|(index, inner)| fields(inner, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}

/// Go's zero value of a field's type.
fn zero(field: &Value) -> Value {
    match field {
        Value::Null => Value::Null,
        Value::Bool(_) => json!(false),
        Value::Number(_) => json!(0),
        Value::String(text) if text.parse::<Timestamp>().is_ok() => json!("0001-01-01T00:00:00Z"),
        Value::String(_) => json!(""),
        Value::Array(_) => json!([]),
        Value::Object(_) => json!({}),
    }
}
