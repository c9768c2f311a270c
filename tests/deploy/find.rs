//! Functions that find objects of a rendering by kind and name.

use node_tests::deploy::identity;
use serde_json::Value;

#[track_caller]
pub(crate) fn named<'a>(objects: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is = |object: &&Value| object["kind"] == kind && object["metadata"]["name"] == name;
    let found = objects.iter().find(is);
    found.unwrap_or_else(|| {
        let all: Vec<String> = objects.iter().map(identity).collect();
        panic!("no {kind} {name} in {all:?}")
    })
}

#[track_caller]
pub(crate) fn of_kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    let found = objects.iter().find(|object| object["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind}"))
}
