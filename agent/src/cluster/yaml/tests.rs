use rstest::rstest;

use super::*;

/// `line kind name`, `line ignored`, or `line:column broken reason`.
fn told(text: &str) -> Vec<String> {
    let mut told = Vec::new();
    read(text, &mut |position, item| {
        told.push(match item {
            Item::Object(object) => {
                let name = object.metadata().name.as_deref().unwrap_or("?");
                format!("{} {} {name}", position.line, object.kind().name())
            }
            Item::Ignored => format!("{} ignored", position.line),
            Item::Broken(reason) => {
                format!("{}:{} broken {reason}", position.line, position.column)
            }
        });
    });
    told
}

const SERVICE: &str = "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n";

#[rstest]
#[case::one(SERVICE, &["1 Service a"])]
#[case::windows("apiVersion: v1\r\nkind: Service\r\nmetadata:\r\n  name: a\r\n", &["1 Service a"])]
#[case::bom("\u{feff}apiVersion: v1\nkind: Node\nmetadata: {name: n}\n", &["1 Node n"])]
#[case::nothing("", &[])]
#[case::comments("# a\n---\n# b\n\n---\n", &[])]
#[case::documents(
    "# head\n---\napiVersion: v1\nkind: Node\nmetadata:\n  name: n\n--- # next\n\napiVersion: v1\nkind: Pod\n...\n---\nkind: Service\napiVersion: v1\nmetadata:\n  name: a\n",
    &["3 Node n", "9 ignored", "13 Service a"])]
#[case::other_groups(
    "apiVersion: serving.knative.dev/v1\nkind: Service\n---\napiVersion: apps/v1\nkind: Deployment\n",
    &["1 ignored", "4 ignored"])]
#[case::flow("{apiVersion: v1, kind: Service, metadata: {name: a}}", &["1 Service a"])]
#[case::flow_after_marker("--- {apiVersion: v1, kind: Service, metadata: {name: a}}\n", &["1 Service a"])]
#[case::quoted_kind("\"apiVersion\": v1\n\"kind\": Service\nmetadata: {name: a}\n", &["1 Service a"])]
#[case::no_kind("a: 1\n", &["1 ignored"])]
#[case::block_scalar_with_dashes(
    "apiVersion: v1\nkind: ConfigMap\ndata:\n  a: |\n    kind: Service\n    --- no marker\n---\napiVersion: v1\nkind: Node\nmetadata:\n  name: n\n",
    &["1 ignored", "8 Node n"])]
#[case::list(
    "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata:\n    name: a\n- kind: Pod\n  apiVersion: v1\n- apiVersion: v1\n  kind: Node\n  metadata:\n    name: n\nmetadata:\n  resourceVersion: \"\"\n",
    &["4 Service a", "8 ignored", "10 Node n"])]
#[case::indented_list(
    "apiVersion: v1\nitems:\n  - apiVersion: v1\n    kind: Service\n    metadata:\n      name: a\n      labels:\n        x: y\n    spec:\n      ports:\n      - port: 80\n  - {apiVersion: v1, kind: Node, metadata: {name: n}}\nkind: List\n",
    &["3 Service a", "12 Node n"])]
#[case::typed_list(
    "apiVersion: discovery.k8s.io/v1\nkind: EndpointSliceList\nitems:\n- addressType: IPv4\n  metadata:\n    name: s\n",
    &["4 EndpointSlice s"])]
#[case::flow_list(
    "{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Service, metadata: {name: a}}]}",
    &["1 Service a"])]
#[case::empty_list("apiVersion: v1\nkind: List\nitems: []\n", &[])]
#[case::json(
    "\n{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[{\"apiVersion\":\"v1\",\"kind\":\"Service\",\"metadata\":{\"name\":\"a\"}}]}\n---\n{\"kind\":\"Pod\"}\n",
    &["2 Service a", "4 ignored"])]
#[case::indented_json(
    "{\n\t\"apiVersion\": \"v1\",\n\t\"kind\": \"Node\",\n\t\"metadata\": {\"name\": \"\\u006e\\/\"}\n}\n",
    &["1 Node n/"])]
#[case::end_marker("apiVersion: v1\nkind: Pod\n...\n# x\nkind: Pod\n", &["1 ignored", "5 ignored"])]
#[case::directive("%YAML 1.2\n---\nkind: Pod\n", &["3 ignored"])]
#[case::items_without_kind(
    "apiVersion: v1\nitems:\n- metadata: {name: a}\nkind: ServiceList\n",
    &["3 ignored"])]
#[case::kind_at_the_end(
    "spec: {clusterIP: 10.96.0.1}\nmetadata: {name: a}\nkind: Service\napiVersion: v1\n",
    &["1 Service a"])]
#[case::plain_scalars_that_are_strings(
    "apiVersion: v1\nkind: Service\nmetadata: {name: no, labels: {a: 1.10, b: true}}\n",
    &["1 Service no"])]
#[case::wrong_version(
    "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\n",
    &["1:1 broken invalid value: string \"discovery.k8s.io/v1beta1\", expected discovery.k8s.io/v1"])]
fn objects_of_a_file(#[case] text: &str, #[case] expected: &[&str]) {
    assert_eq!(told(text), expected);
}

#[rstest]
#[case::type_of_a_field(
    "apiVersion: v1\nkind: Service\nspec:\n  ports:\n  - port: http\n",
    "5:11"
)]
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
#[case::not_a_mapping("- just\n- words\n", "1:")]
fn breakage_has_line_and_column_of_the_file(#[case] text: &str, #[case] position: &str) {
    let good = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n";
    assert!(told(text)[0].starts_with(position), "{:?}", told(text));
    // If the second document is invalid, lines are still counted from the start of the file, and the other
    // documents are read.
    let told = told(&format!("{good}---\n{text}---\n{good}"));
    let (line, column) = position.split_once(':').unwrap();
    let line: u64 = line.parse().unwrap();
    assert_eq!(told[0], "1 Node n");
    assert!(
        told[1].starts_with(&format!("{}:{column}", line + 4)),
        "{told:?}"
    );
    assert!(told[1].contains(" broken "), "{told:?}");
    assert!(told[2].ends_with("Node n"));
}

#[test]
fn a_broken_item_leaves_the_others() {
    let text = "apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Service
  spec:
    ports: 7
- apiVersion: v1
  kind: Node
  metadata:
    name: n
";
    let broken = "4:0 broken invalid type: integer `7`, expected a sequence";
    assert_eq!(told(text), [broken, "8 Node n"]);
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
        assert!(told[0].contains(" broken "), "{told:?}");
        assert!(told[1].ends_with("Service a"), "{told:?}");
    }
}

/// 120,000 maps take more memory than any object of an API server. `managedFields` is not kept.
#[rstest]
#[case::ports("spec:\n  ports:\n", 120_000, false)]
#[case::fewer_ports("spec:\n  ports:\n", 20_000, true)]
#[case::fields_that_are_not_kept("  managedFields:\n", 120_000, true)]
fn an_object_beyond_the_limit_is_named_and_others_are_read(
    #[case] field: &str,
    #[case] count: usize,
    #[case] is_read: bool,
) {
    let object = format!("{SERVICE}{field}{}", "  - {}\n".repeat(count));
    let expected = |line: usize| match is_read {
        true => format!("{line} Service a"),
        false => format!(
            "{line}:0 broken Service default/a takes more than 64 MiB of memory, as no object of \
             an API server does: make several objects of it"
        ),
    };
    let small = "apiVersion: v1\nkind: Node\nmetadata: {name: n}\n";
    let documents = told(&format!("{small}---\n{object}---\n{small}"));
    assert_eq!(documents.len(), 3, "{documents:?}");
    assert_eq!(documents[1], expected(5));
    let indented = |text: &str| text.replace('\n', "\n  ").trim_end().to_owned();
    let head = "apiVersion: v1\nkind: List\nitems:\n";
    let list = format!("{head}- {}\n- {}\n", indented(&object), indented(small));
    let items = told(&list);
    assert_eq!(items.len(), 2, "{items:?}");
    assert_eq!(items[0], expected(4));
    assert!(items[1].ends_with("Node n"), "{items:?}");
}
