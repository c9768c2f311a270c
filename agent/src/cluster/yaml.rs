//! Parses Kubernetes objects from a YAML file, or a JSON file, which is YAML too.
//!
//! serde-saphyr parses; this module interprets only the lines that separate documents. Each document is
//! parsed alone, because the parser cannot continue after a syntax error. As in kubectl, an object becomes
//! JSON values first and a typed object second: `kind` selects the type, and may be the last field. One item
//! of a list is in memory at a time, because `kubectl get` prints a whole cluster as one list.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::with_deserializer_from_str_with_options as with_deserializer;

use super::facts::{Kind, Parsed};

/// Maximum parser events and nodes per document. One list of 10,000 Services and 100,000 endpoints has
/// four million nodes.
const MAX_EVENTS: usize = 16_000_000;
/// Maximum parser events per document that come from aliases.
const MAX_REPLAYED: usize = 100_000;

#[derive(Debug)]
pub enum Item {
    Object(Parsed),
    /// An object of a kind that does not matter here.
    Ignored,
    /// A document that is not YAML: its place as line and column, and the parser's message.
    Broken(String),
}

/// Calls `see` for every object in the text, in order.
pub fn read(text: &str, see: &mut dyn FnMut(Item)) {
    for (above, document) in documents(text) {
        let root = Root { see: &mut *see };
        let parsed = with_deserializer(document, options(), |yaml| yaml.deserialize_any(root));
        if let Err(error) = parsed {
            see(Item::Broken(complaint(&error, above)));
        }
    }
}

/// The library's default limits would refuse a large list. Higher limits are safe, because the size of a file
/// is limited before it is read. `n` and `no` are strings, not booleans.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_events: MAX_EVENTS, max_nodes: MAX_EVENTS },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPLAYED },
        emit_comments: false,
        strict_booleans: true,
        with_snippet: false,
    }
}

/// An error of the parser, which counts lines from the start of the document.
fn complaint(error: &serde_saphyr::Error, above: u64) -> String {
    let text = error.to_string();
    let reason = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let Some(location) = error.location() else {
        return format!("{}: cannot be parsed: {reason}", above + 1);
    };
    let (line, column) = (location.line(), location.column());
    let suffix = format!(" at line {line}, column {column}");
    let reason = reason.strip_suffix(&suffix).unwrap_or(&reason);
    format!("{}:{column}: cannot be parsed: {reason}", above + line)
}

/// Whether a line separates documents. No scalar can contain such a line (YAML 1.2, section 9.1.2).
fn is_marker(line: &str) -> bool {
    line.split_at_checked(3).is_some_and(|(marker, rest)| {
        let ends = rest.is_empty() || rest.starts_with([' ', '\t', '\r', '\n']);
        ends && matches!(marker, "---" | "...")
    })
}

/// Whether a line is more than a marker, a directive or a comment.
fn has_content(line: &str) -> bool {
    let rest = if is_marker(line) { &line[3..] } else { line };
    let rest = rest.trim_start();
    !rest.is_empty() && !rest.starts_with(['#', '%'])
}

/// The non-empty documents of a file, each with the marker before it and the number of lines above.
fn documents(text: &str) -> impl Iterator<Item = (u64, &str)> {
    let mut documents: Vec<(u64, &str)> = Vec::new();
    let (mut start, mut end) = (0, 0);
    for (number, line) in (0_u64..).zip(text.split_inclusive('\n')) {
        if is_marker(line) || number == 0 {
            start = end;
            documents.push((number, ""));
        }
        end += line.len();
        if let Some((_, document)) = documents.last_mut() {
            *document = &text[start..end];
        }
    }
    let documents = documents.into_iter();
    documents.filter(|(_, document)| document.lines().any(has_content))
}

/// Reads the top-level mapping of a document.
struct Root<'a> {
    see: &'a mut dyn FnMut(Item),
}

impl<'de> Visitor<'de> for Root<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a Kubernetes object")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut fields = Map::new();
        let mut is_list = false;
        while let Some(key) = map.next_key::<String>()? {
            if key == "items" {
                is_list = true;
                let list = Value::Object(fields.clone());
                let see = &mut *self.see;
                map.next_value_seed(Items { list, see })?;
            } else {
                fields.insert(key, map.next_value()?);
            }
        }
        if !is_list {
            (self.see)(item(&Value::Object(fields), &Value::Null));
        }
        Ok(())
    }
}

struct Items<'a> {
    /// Fields of the list before its items.
    list: Value,
    see: &'a mut dyn FnMut(Item),
}

impl<'de> DeserializeSeed<'de> for Items<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Items<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of Kubernetes objects")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        while let Some(object) = items.next_element::<Value>()? {
            (self.see)(item(&object, &self.list));
        }
        Ok(())
    }
}

/// Parses an object, which may be an item of a list.
fn item(object: &Value, list: &Value) -> Item {
    let (mut version, mut kind) = (object["apiVersion"].as_str(), object["kind"].as_str());
    // Items of a ServiceList may omit both.
    if kind.is_none() {
        version = list["apiVersion"].as_str();
        kind = list["kind"]
            .as_str()
            .and_then(|kind| kind.strip_suffix("List"));
    }
    match Kind::of(version.unwrap_or_default(), kind.unwrap_or_default()) {
        Some(kind) => Item::Object(kind.parse(object)),
        None => Item::Ignored,
    }
}

#[cfg(test)]
mod tests;
