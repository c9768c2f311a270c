use rstest::rstest;

use super::*;
use crate::cluster::facts::identity;

/// `kind name`, `ignored`, `kind name: reason`, or `line:column: reason`.
fn told(text: &str) -> Vec<String> {
    let mut told = Vec::new();
    read(text, &mut |item| {
        told.push(match item {
            Item::Object(parsed) => {
                let (kind, metadata) = identity(&parsed);
                let name = metadata.name.as_deref().unwrap_or("?");
                let error = parsed.as_ref().err();
                let error = error.map_or(String::new(), |error| format!(": {}", error.error));
                format!("{} {name}{error}", kind.name())
            }
            Item::Ignored => "ignored".to_owned(),
            Item::Broken(why) => why,
        });
    });
    told
}

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n";

#[rstest]
#[case::one(SERVICE, &["Service a"])]
#[case::windows("apiVersion: v1\r\nkind: Service\r\nmetadata:\r\n  name: a\r\n", &["Service a"])]
#[case::bom("\u{feff}apiVersion: v1\nkind: Node\nmetadata: {name: n}\n", &["Node n"])]
#[case::nothing("", &[])]
#[case::comments("# a\n---\n# b\n\n---\n", &[])]
#[case::documents(
    "# head\n---\napiVersion: v1\nkind: Node\nmetadata:\n  name: n\n--- # next\n\napiVersion: v1\nkind: Pod\n...\n---\nkind: Service\napiVersion: v1\nmetadata:\n  name: a\n",
    &["Node n", "ignored", "Service a"])]
#[case::other_groups(
    "apiVersion: serving.knative.dev/v1\nkind: Service\n---\napiVersion: apps/v1\nkind: Deployment\n",
    &["ignored", "ignored"])]
#[case::flow("{apiVersion: v1, kind: Service, metadata: {name: a}}", &["Service a"])]
#[case::flow_after_marker("--- {apiVersion: v1, kind: Service, metadata: {name: a}}\n", &["Service a"])]
#[case::quoted_kind("\"apiVersion\": v1\n\"kind\": Service\nmetadata: {name: a}\n", &["Service a"])]
#[case::no_kind("a: 1\n", &["ignored"])]
#[case::block_scalar_with_dashes(
    "apiVersion: v1\nkind: ConfigMap\ndata:\n  a: |\n    kind: Service\n    --- no marker\n---\napiVersion: v1\nkind: Node\nmetadata:\n  name: n\n",
    &["ignored", "Node n"])]
#[case::list(
    "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata:\n    name: a\n- kind: Pod\n  apiVersion: v1\n- apiVersion: v1\n  kind: Node\n  metadata:\n    name: n\nmetadata:\n  resourceVersion: \"\"\n",
    &["Service a", "ignored", "Node n"])]
#[case::indented_list(
    "apiVersion: v1\nitems:\n  - apiVersion: v1\n    kind: Service\n    metadata:\n      name: a\n      labels:\n        x: y\n    spec:\n      ports:\n      - port: 80\n  - {apiVersion: v1, kind: Node, metadata: {name: n}}\nkind: List\n",
    &["Service a", "Node n"])]
#[case::typed_list(
    "apiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\nitems:\n- addressType: IPv4\n  metadata:\n    name: s\n",
    &["EndpointSlice s"])]
#[case::flow_list(
    "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Service, metadata: {name: a}}]}",
    &["Service a"])]
#[case::empty_list("apiVersion: v1\nkind: List\nitems: []\n", &[])]
#[case::json(
    "\n{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"a\"}}]}\n---\n{\"kind\":\"Pod\"}\n",
    &["Service a", "ignored"])]
#[case::indented_json(
    "{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Node\",\n\t\"metadata\": {\"name\": \"\\u006e\\/\"}\n}\n",
    &["Node n/"])]
#[case::end_marker("apiVersion: v1\nkind: Pod\n...\n# x\nkind: Pod\n", &["ignored", "ignored"])]
#[case::directive("%YAML 1.2\n---\nkind: Pod\n", &["ignored"])]
#[case::items_without_kind(
    "apiVersion: v1\nitems:\n- metadata: {name: a}\nkind: ServiceList\n",
    &["ignored"])]
#[case::kind_at_the_end(
    "spec: {clusterIP: 10.96.0.1}\nmetadata: {name: a}\nkind: Service\napiVersion: v1\n",
    &["Service a"])]
#[case::plain_scalars_that_are_strings(
    "apiVersion: v1\nkind: Service\nmetadata: {name: no}\n",
    &["Service no"])]
#[case::wrong_version("apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\n", &["ignored"])]
fn objects_of_a_file(#[case] text: &str, #[case] expected: &[&str]) {
    assert_eq!(told(text), expected);
}

#[test]
fn a_document_without_keys_is_found_at_its_start() {
    assert!(told("- just\n- words\n")[0].starts_with("1: cannot be parsed"));
    let second = told("kind: Pod\n---\n- just\n- words\n");
    assert!(second[1].starts_with("2: cannot be parsed"), "{second:?}");
}

#[rstest]
#[case::tab("apiVersion: v1\nkind: Service\nmetadata:\n\tname: a\n", "4:")]
#[case::unclosed("apiVersion: v1\nkind: Service\nmetadata: {name: a\nspec: {}\n", "4:")]
#[case::indentation(
    "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n namespace: b\n",
    "5:"
)]
#[case::duplicate_key(
    "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n  name: b\n",
    "5:3"
)]
fn breakage_has_line_and_column_of_the_file(#[case] text: &str, #[case] position: &str) {
    let good = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n";
    assert!(told(text)[0].starts_with(position), "{:?}", told(text));
    // If the second document is invalid, lines are still counted from the start of the file, and the other
    // documents are read.
    let told = told(&format!("{good}---\n{text}---\n{good}"));
    let (line, column) = position.split_once(':').unwrap();
    let line: u64 = line.parse().unwrap();
    assert_eq!(told[0], "Node n");
    assert!(
        told[1].starts_with(&format!("{}:{column}", line + 4)),
        "{told:?}"
    );
    assert!(told[1].contains(": cannot be parsed: "), "{told:?}");
    assert_eq!(told[2], "Node n");
}

#[test]
fn a_broken_item_leaves_the_others() {
    let text = "apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  metadata:
    name: a
  spec:
    ports: 7
- apiVersion: v1
  kind: Node
  metadata:
    name: n
";
    let broken = "Service a: invalid type: integer `7`, expected a sequence";
    assert_eq!(told(text), [broken, "Node n"]);
}

#[test]
fn unbounded_growth_is_refused() {
    let aliases: String = (1..12)
        .map(|n| format!("a{n}: &a{n} [{}]\n", format!("*a{},", n - 1).repeat(9)))
        .collect();
    let aliases = format!("a0: &a0 [x]\n{aliases}");
    let deep = "[".repeat(100_000);
    for text in [aliases, deep] {
        let told = told(&format!("{text}\n---\n{SERVICE}"));
        assert!(told[0].contains(": cannot be parsed: "), "{told:?}");
        assert_eq!(told[1], "Service a", "{told:?}");
    }
}
