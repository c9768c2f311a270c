//! Parses Kubernetes objects from a YAML file, or a JSON file, which is YAML too.
//!
//! serde-saphyr parses; this module interprets only the lines that separate documents. Each document is
//! parsed alone, because the parser cannot continue after a syntax error. As in kubectl, a document becomes
//! JSON values first and a typed object second: `kind` selects the type, and may be the last field. One item
//! of a list is in memory at a time.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::{Spanned, with_deserializer_from_str_with_options as with_deserializer};

use self::bounded::{Bounded, Fields, LIMIT};
pub use super::facts::Object;
use super::facts::{Kind, used_metadata};

mod bounded;

/// Maximum parser events and nodes per document. One list of 10,000 Services and 100,000 endpoints has
/// four million nodes.
const MAX_EVENTS: usize = 16_000_000;
/// Maximum parser events per document that come from aliases.
const MAX_REPLAYED: usize = 100_000;

#[derive(Clone, Copy, Debug, Default)]
pub struct Position {
    pub line: u64,
    /// Column, from 1; 0 if only the line is known.
    pub column: u64,
}

impl Position {
    fn line(line: u64) -> Self {
        Self { line, column: 0 }
    }
}

/// The content at one position of a file.
#[derive(Debug)]
pub enum Item {
    Object(Object),
    /// An object of a kind that does not matter here.
    Ignored,
    /// Unreadable, with the parser's message.
    Broken(String),
}

/// Calls `see` for every object in the text, in order.
pub fn read(text: &str, see: &mut dyn FnMut(Position, Item)) {
    for document in documents(text) {
        let see = &mut *see;
        let root = Root {
            document: &document,
            see,
        };
        let parsed = with_deserializer(document.text, options(), |yaml| yaml.deserialize_any(root));
        if let Err(error) = parsed {
            document.complain(&error, see);
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

/// A part of a file that is parsed alone.
struct Document<'a> {
    text: &'a str,
    /// Number of lines before the document.
    above: u64,
    /// First line of the document that has more than a comment; 0 if there is none.
    line: u64,
}

impl Document<'_> {
    fn complain(&self, error: &serde_saphyr::Error, see: &mut dyn FnMut(Position, Item)) {
        let mut position = Position::line(self.line);
        let text = error.to_string();
        let mut reason = text.split_whitespace().collect::<Vec<_>>().join(" ");
        if let Some(location) = error.location() {
            // The parser counts lines from the start of the document; `position` counts them from the start of
            // the file.
            let (line, column) = (location.line(), location.column());
            let suffix = format!(" at line {line}, column {column}");
            reason.truncate(reason.strip_suffix(&suffix).map_or(reason.len(), str::len));
            (position.line, position.column) = (self.above + line, column);
        }
        see(position, Item::Broken(reason));
    }
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

/// The non-empty documents of a file, each with the marker before it.
fn documents(text: &str) -> impl Iterator<Item = Document<'_>> {
    let mut documents: Vec<Document<'_>> = Vec::new();
    let (mut start, mut end) = (0, 0);
    for (number, line) in (0_u64..).zip(text.split_inclusive('\n')) {
        if is_marker(line) || number == 0 {
            start = end;
            documents.push(Document {
                text: "",
                above: number,
                line: 0,
            });
        }
        end += line.len();
        if let Some(document) = documents.last_mut() {
            document.text = &text[start..end];
            if document.line == 0 && has_content(line) {
                document.line = number + 1;
            }
        }
    }
    documents.into_iter().filter(|document| document.line > 0)
}

/// Reads the top-level mapping of a document.
struct Root<'a> {
    document: &'a Document<'a>,
    see: &'a mut dyn FnMut(Position, Item),
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
        let mut left = LIMIT;
        let mut is_list = false;
        while let Some(key) = map.next_key::<String>()? {
            if key == "items" {
                is_list = true;
                map.next_value_seed(Items {
                    document,
                    header: header(&fields),
                    see: &mut *see,
                })?;
            } else {
                fields.insert(key, map.next_value_seed(Bounded(&mut left))?);
            }
        }
        let header = header(&fields);
        if is_list && header.ends_with("List") {
            return Ok(());
        }
        if left == 0 {
            see(Position::line(document.line), too_large(&header, fields));
            return Ok(());
        }
        let item = match (item(&header, fields), matters(&header)) {
            // Parse the text again as the typed object. Unlike the JSON values, the parser reports line and
            // column, and accepts numbers as strings.
            (Item::Broken(_), Some(kind)) => {
                match with_deserializer(document.text, options(), |yaml| kind.read(yaml)) {
                    Ok(object) => Item::Object(object),
                    Err(error) => {
                        document.complain(&error, see);
                        return Ok(());
                    }
                }
            }
            (item, _) => item,
        };
        see(Position::line(document.line), item);
        Ok(())
    }
}

struct Items<'a> {
    document: &'a Document<'a>,
    /// Header of the list, as far as known from the fields before `items`.
    header: String,
    see: &'a mut dyn FnMut(Position, Item),
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
        while let Some(item) = items.next_element::<Spanned<Fields>>()? {
            let position = Position::line(self.document.above + item.referenced.line());
            let Fields { map, fits } = item.value;
            let mut header = header(&map);
            if header.ends_with('/') {
                // Items of a ServiceList may omit apiVersion and kind.
                let of_list = self.header.strip_suffix("List");
                header = of_list.unwrap_or_default().to_owned();
            }
            let item = match fits {
                true => self::item(&header, map),
                false => too_large(&header, map),
            };
            (self.see)(position, item);
        }
        Ok(())
    }
}

/// API group and kind of an object. The group matters, because Knative has a kind Service too. The version is
/// left out, because the typed object refuses unknown versions.
fn header(fields: &Map<String, Value>) -> String {
    let field = |name| fields.get(name).and_then(Value::as_str).unwrap_or_default();
    let group = field("apiVersion").split_once('/');
    format!("{}/{}", group.map_or("", |(group, _)| group), field("kind"))
}

fn matters(header: &str) -> Option<Kind> {
    match header {
        "/Node" => Some(Kind::Node),
        "/Service" => Some(Kind::Service),
        "discovery.k8s.io/EndpointSlice" => Some(Kind::Slice),
        _ => None,
    }
}

fn item(header: &str, fields: Map<String, Value>) -> Item {
    match matters(header).map(|kind| kind.read(Value::Object(fields))) {
        None => Item::Ignored,
        Some(Ok(object)) => Item::Object(object),
        Some(Err(error)) => Item::Broken(error.to_string()),
    }
}

/// An object that was read only in part.
fn too_large(header: &str, mut fields: Map<String, Value>) -> Item {
    let metadata = fields.remove("metadata").unwrap_or_default();
    let metadata = used_metadata(metadata).unwrap_or_default();
    match matters(header) {
        // The kind is unknown if it comes after the limit.
        None if header != "/" => Item::Ignored,
        kind => Item::Broken(format!(
            "{} takes more than {} MiB of memory, as no object of an API server does: make several \
             objects of it",
            kind.map_or_else(|| "an object".to_owned(), |kind| kind.title(&metadata)),
            LIMIT >> 20,
        )),
    }
}

#[cfg(test)]
mod tests;
