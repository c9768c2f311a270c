use k8s_openapi::api::core::v1::{Node as KubeNode, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use proptest::prelude::*;
use rstest::rstest;
use serde_json::Value;

use super::*;
use crate::cluster::yaml::saphyr;

/// What the full parser makes of a text.
fn full<T: DeserializeOwned>(text: &str) -> Option<T> {
    saphyr(text).ok()
}

#[rstest]
#[case(
    "a: 1\nb:\n- x\n- w: 2\n  z: 3\nc:\n  d: e\n",
    r#"{"a":1,"b":["x",{"w":2,"z":3}],"c":{"d":"e"}}"#
)]
#[case("a:\nb: \n", r#"{"a":null,"b":null}"#)]
#[case("a: \"1\"\nb: ''\nc: {}\nd: []\n", r#"{"a":"1","b":"","c":{},"d":[]}"#)]
#[case(
    "a: 10.0.0.1\nb: fd00::1\nc: 2001:db8::1\nd: 10.0.0.0/24\n",
    r#"{"a":"10.0.0.1","b":"fd00::1","c":"2001:db8::1","d":"10.0.0.0/24"}"#
)]
#[case(
    "a: true\nb: false\nc: null\nd: 0\n",
    r#"{"a":true,"b":false,"c":null,"d":0}"#
)]
#[case("# c\na:\n  # d\n\n  b: c d\n", r#"{"a":{"b":"c d"}}"#)]
#[case("-\n  a: 1\n-\n- - x\n  - z\n", r#"[{"a":1},null,["x","z"]]"#)]
#[case(
    "a:\n    - b:\n      - c\n      d: 1\n",
    r#"{"a":[{"b":["c"],"d":1}]}"#
)]
#[case::windows("a: b \r\nc:\r\n- d\r\n\r\n", r#"{"a":"b","c":["d"]}"#)]
#[case::no_last_line_break("a: 1\nb:", r#"{"a":1,"b":null}"#)]
fn what_it_reads(#[case] text: &str, #[case] json: &str) {
    let expected: Value = serde_json::from_str(json).unwrap();
    assert_eq!(
        parse::<Value>(text, false),
        Some(expected.clone()),
        "{text}"
    );
    assert_eq!(full::<Value>(text), Some(expected), "{text}");
}

#[rstest]
#[case::anchor("a: &x b\n")]
#[case::alias("a: *x\n")]
#[case::tag("a: !!str 1\n")]
#[case::flow_map("a: {b: c}\n")]
#[case::flow_seq("a: [b]\n")]
#[case::literal("a: |\n  b\n")]
#[case::folded("a: >\n  b\n")]
#[case::escape("a: \"\\n\"\n")]
#[case::doubled_quote("a: 'it''s'\n")]
#[case::comment_beside("a: b # c\n")]
#[case::comment_instead("a: # c\n  b: 1\n")]
#[case::two_lines("a: b\n  c\n")]
#[case::two_lines_below("a:\n  b\n  c\n")]
#[case::quoted_two_lines("a: \"b\n  c\"\n")]
#[case::quoted_key("\"a\": b\n")]
#[case::number_key("1: b\n")]
#[case::reserved_key("no: b\n")]
#[case::complex_key("? a\n: b\n")]
#[case::merge_key("<<: b\n")]
#[case::duplicate("a: 1\na: 2\n")]
#[case::tab("a:\t1\n")]
#[case::tab_in_a_comment("a: 1\n#\tb\n")]
#[case::lone_return("a: b\rc: d\n")]
#[case::last_return("a: b\r")]
#[case::old_bool("a: yes\n")]
#[case::capital_bool("a: True\n")]
#[case::octal("a: 010\n")]
#[case::hex("a: 0x10\n")]
#[case::float("a: 1.5\n")]
#[case::exponent("a: 1e3\n")]
#[case::sexagesimal("a: 190:20:30\n")]
#[case::date("a: 2026-11-21\n")]
#[case::negative("a: -1\n")]
#[case::infinity("a: .inf\n")]
#[case::tilde("a: ~\n")]
#[case::dedent("a:\n    b: 1\n  c: 2\n")]
#[case::indent("a: 1\n  b: 2\n")]
#[case::item_below_map("a: 1\n- b\n")]
#[case::map_below_items("- a\nb: 1\n")]
#[case::directive("%YAML 1.2\na: 1\n")]
#[case::nested_value("a: b: c\n")]
#[case::scalar("just words\n")]
#[case::at("a: @b\n")]
#[case::percent("a: %b\n")]
fn what_it_leaves_to_the_full_parser(#[case] text: &str) {
    assert_eq!(parse::<Value>(text, false), None, "{text}");
}

#[test]
fn numbers_are_no_strings_and_strings_no_numbers() {
    assert!(parse::<Service>("metadata:\n  name: 80\n", false).is_none());
    assert!(parse::<EndpointSlice>("ports:\n- port: \"80\"\n", false).is_none());
    assert!(parse::<Service>("spec:\n  ports:\n  - targetPort: http\n", false).is_some());
}

#[test]
fn an_only_item_is_one() {
    let item = Some(Value::from("a"));
    assert_eq!(parse::<Value>("- a\n", true), item);
    for text in ["- a\n- b\n", "a: 1\n", "[]", "a: []\n", ""] {
        assert_eq!(parse::<Value>(text, true), None, "{text}");
    }
}

/// A visitor may stop where it has enough, but what follows must be understood too.
#[test]
fn what_nobody_reads_is_looked_at() {
    assert!(parse::<Service>("x:\n  z: 1.5\n  w: [a]\n", false).is_none());
    assert!(parse::<Service>("x:\n  z: 1.5\n  z: 2\n", false).is_none());
    assert!(parse::<Service>("x:\n- z: 1.5\n  w: 010\n", false).is_some());
    assert!(parse::<(i64,)>("- 1\n- 2\n", false).is_none());
}

#[test]
fn depth_is_bounded() {
    let deep: String = (0..200)
        .map(|level| format!("{}a:\n", " ".repeat(level)))
        .collect();
    assert_eq!(parse::<Value>(&deep, false), None);
}

/// YAML as a person, kubectl or an adversary might put it.
fn any_line() -> impl Strategy<Value = String> {
    let indent = 0..5_usize;
    let dash = prop::sample::select(vec!["", "", "- ", "- - ", "-  "]);
    let key = prop::sample::select(vec![
        "metadata:",
        "name:",
        "namespace:",
        "labels:",
        "spec:",
        "ports:",
        "port:",
        "endpoints:",
        "addresses:",
        "conditions:",
        "ready:",
        "kind:",
        "a.b/c-d:",
        "",
        "",
    ]);
    let value = prop::sample::select(vec![
        "",
        "",
        " x",
        " 80",
        " 010",
        " \"80\"",
        " 'a b'",
        " 10.0.0.1",
        " fd00::1",
        " true",
        " yes",
        " {}",
        " []",
        " [a]",
        " {a: b}",
        " a # c",
        " # c",
        " |",
        " >-",
        " &a b",
        " *a",
        " a: b",
        " null",
        " ~",
        " 1.5",
        " 12:30:45",
        " \"a",
        " a\"",
        " -1",
        "x",
        " a:",
        " \"a\" b",
    ]);
    (indent, dash, key, value).prop_map(|(indent, dash, key, value)| {
        format!("{}{dash}{key}{value}\n", " ".repeat(indent))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, ..ProptestConfig::default() })]

    /// Whatever it accepts, the full parser reads the same.
    #[test]
    fn it_agrees_with_the_full_parser_or_refuses(lines in prop::collection::vec(any_line(), 1..9)) {
        let text = lines.concat();
        if let Some(value) = parse::<Value>(&text, false) {
            prop_assert_eq!(full::<Value>(&text), Some(value), "{}", &text);
        }
        macro_rules! agrees {
            ($($kind:ty),*) => { $(
                if let Some(object) = parse::<$kind>(&text, false) {
                    prop_assert_eq!(full::<$kind>(&text), Some(object), "{}", &text);
                }
            )* };
        }
        agrees!(Service, KubeNode, EndpointSlice);
    }
}
