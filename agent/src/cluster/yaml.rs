//! Kubernetes objects out of the text of a YAML file, or of a JSON file, which is YAML too.
//!
//! serde-saphyr parses; nothing here interprets YAML beyond the lines that separate documents.
//! Each document is parsed alone, because the parser cannot continue after a syntax error.
//! As in kubectl, a document becomes JSON values first and a typed object second: only `kind`
//! selects the type, and it may come last. Of a list one item is in memory at a time.

use std::fmt;

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::de::{DeserializeOwned, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;

/// Parser events and nodes of one document. One list of 10,000 Services and 100,000 endpoints has
/// four million nodes.
const MAX_EVENTS: usize = 16_000_000;
/// Parser events of one document that come from aliases.
const MAX_REPLAYED: usize = 100_000;

/// Where in a file something stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Line, from 1.
    pub line: u64,
    /// Column, from 1; 0 where only the line is known.
    pub column: u64,
    /// Document in the file, from 1.
    pub document: u32,
}

/// An object of a kind that matters here.
#[derive(Debug)]
pub enum Object {
    /// A Node.
    Node(Box<Node>),
    /// A Service.
    Service(Box<Service>),
    /// An EndpointSlice.
    Slice(Box<EndpointSlice>),
}

/// What stands at one place of a file.
#[derive(Debug)]
pub enum Item {
    /// An object.
    Object(Object),
    /// Something of a kind that does not matter here.
    Ignored {
        /// Its kind, with the API group where it has one.
        kind: String,
    },
    /// Something that cannot be read, in the parser's words.
    Broken(String),
}

/// Calls `see` for every object in the text of a file, in order.
pub fn read(text: &str, see: &mut dyn FnMut(Place, Item)) {
    for document in documents(text) {
        let root = Root {
            document: &document,
            see: &mut *see,
        };
        let parsed = serde_saphyr::with_deserializer_from_str_with_options(
            document.text,
            options(),
            |yaml| yaml.deserialize_any(root),
        );
        if let Err(error) = parsed {
            let (place, item) = document.broken(&error);
            see(place, item);
        }
    }
}

/// The library's limits on size would refuse a large list; the size of a file is limited before it
/// is read. `n` and `no` are names here.
fn options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_events: MAX_EVENTS, max_nodes: MAX_EVENTS },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPLAYED },
        emit_comments: false,
        strict_booleans: true,
        with_snippet: false,
    }
}

/// A part of a file that is parsed alone.
struct Document<'a> {
    text: &'a str,
    /// Lines of the file before it.
    above: u64,
    /// The first line that is more than a comment.
    place: Place,
}

impl Document<'_> {
    fn broken(&self, error: &serde_saphyr::Error) -> (Place, Item) {
        let mut place = self.place;
        let text = error.to_string();
        let mut reason = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(location) = error.location() {
            // Its lines are those of the document; the place has those of the file.
            let (line, column) = (location.line(), location.column());
            let suffix = format!(" at line {line}, column {column}");
            reason.truncate(reason.strip_suffix(&suffix).map_or(reason.len(), str::len));
            (place.line, place.column) = (self.above + line, column);
        }
        (place, Item::Broken(reason))
    }
}

/// Whether a line separates documents. No scalar can hold such a line (YAML 1.2, section 9.1.2).
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

/// The documents of a file that have content, each with the marker before it.
fn documents(text: &str) -> Vec<Document<'_>> {
    let mut documents: Vec<Document<'_>> = Vec::new();
    let (mut start, mut above, mut at, mut open) = (0, 0, 0, false);
    for (number, line) in (0_u64..).zip(text.split_inclusive('\n')) {
        if is_marker(line) {
            (start, above, open) = (at, number, false);
        }
        at += line.len();
        if !open && has_content(line) {
            open = true;
            let place = Place {
                line: number + 1,
                column: 0,
                document: u32::try_from(documents.len() + 1).unwrap_or(u32::MAX),
            };
            documents.push(Document {
                text: "",
                above,
                place,
            });
        }
        if let Some(document) = documents.last_mut().filter(|_| open) {
            document.text = &text[start..at];
        }
    }
    documents
}

/// Reads the mapping that a document is.
struct Root<'a> {
    document: &'a Document<'a>,
    see: &'a mut dyn FnMut(Place, Item),
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
        let Self { document, see } = self;
        let mut fields = Map::new();
        let mut is_list = false;
        while let Some(key) = map.next_key::<String>()? {
            if key == "items" {
                is_list = true;
                map.next_value_seed(Items {
                    document,
                    header: Header::of(&fields),
                    see: &mut *see,
                })?;
            } else {
                fields.insert(key, map.next_value()?);
            }
        }
        let header = Header::of(&fields);
        if !(is_list && header.kind.ends_with("List")) {
            let (place, item) = header.item(Value::Object(fields), document.place, Some(document));
            see(place, item);
        }
        Ok(())
    }
}

/// Reads the items of a list.
struct Items<'a> {
    document: &'a Document<'a>,
    /// Of the list, as far as it stands before the items.
    header: Header,
    see: &'a mut dyn FnMut(Place, Item),
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
        while let Some(item) = items.next_element::<Spanned<Map<String, Value>>>()? {
            let place = Place {
                line: self.document.above + item.referenced.line(),
                ..self.document.place
            };
            let mut header = Header::of(&item.value);
            if header.kind.is_empty() {
                header = self.header.of_items();
            }
            let (place, item) = header.item(Value::Object(item.value), place, None);
            (self.see)(place, item);
        }
        Ok(())
    }
}

/// What an object is. Group and kind decide: a Service of Knative's is another thing. A version
/// that nobody serves is left to the typed object to refuse.
struct Header {
    group: String,
    kind: String,
}

impl Header {
    fn of(fields: &Map<String, Value>) -> Self {
        let field = |name| fields.get(name).and_then(Value::as_str).unwrap_or_default();
        let group = field("apiVersion").split_once('/');
        Self {
            group: group.map_or("", |(group, _)| group).to_owned(),
            kind: field("kind").to_owned(),
        }
    }

    /// Items of a ServiceList need not say that they are Services.
    fn of_items(&self) -> Self {
        Self {
            group: self.group.clone(),
            kind: self
                .kind
                .strip_suffix("List")
                .unwrap_or_default()
                .to_owned(),
        }
    }

    /// The typed object, where it is of a kind that matters. `whole`: it is the document.
    fn item(&self, value: Value, place: Place, whole: Option<&Document<'_>>) -> (Place, Item) {
        let object = match (&*self.group, &*self.kind) {
            ("", "Node") => typed(value, place, whole).map(Object::Node),
            ("", "Service") => typed(value, place, whole).map(Object::Service),
            ("discovery.k8s.io", "EndpointSlice") => typed(value, place, whole).map(Object::Slice),
            (_, "") => Err((place, ignored("without a kind"))),
            ("", kind) => Err((place, ignored(kind))),
            (group, kind) => Err((place, ignored(&format!("{kind}.{group}")))),
        };
        object.map_or_else(|other| other, |object| (place, Item::Object(object)))
    }
}

fn ignored(kind: &str) -> Item {
    Item::Ignored {
        kind: kind.to_owned(),
    }
}

fn typed<T: DeserializeOwned>(
    value: Value,
    place: Place,
    whole: Option<&Document<'_>>,
) -> Result<T, (Place, Item)> {
    serde_json::from_value(value).or_else(|error| match whole {
        // Values have no line and column; the parser names those of the error.
        Some(document) => serde_saphyr::from_str_with_options(document.text, options())
            .map_err(|error| document.broken(&error)),
        None => Err((place, Item::Broken(error.to_string()))),
    })
}

#[cfg(test)]
mod tests;
