//! Text of YAML or JSON files to Kubernetes objects, one at a time.
//!
//! Documents are split at their markers and the items of a `kind: List` by indentation, so that
//! each object is parsed alone: kinds nobody wants cost a glance, memory is one object's, and a
//! broken object leaves the others readable. Two parsers stand behind this. serde-saphyr
//! understands all of YAML and takes 2.2 s for 10,000 slices of ten endpoints; a reader of the
//! plain block style (`block`) that kubectl and client libraries write takes a tenth of that,
//! and refuses, without a word, whatever it is not sure of. Errors are always serde-saphyr's.

use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::de::DeserializeOwned;

mod block;
mod json;
mod peek;
mod split;

use peek::Header;
use split::Document;

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

/// Text that is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Broken {
    /// Where.
    pub place: Place,
    /// What is wrong, in the parser's words.
    pub reason: String,
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
    /// Something that cannot be read.
    Broken(Broken),
}

/// Calls `see` for everything in the text of a file, in order.
pub fn read(text: &str, see: &mut dyn FnMut(Place, Item)) {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.trim_start().starts_with('{') && json::is_json(text) {
        json::read(text, see);
        return;
    }
    for document in split::documents(text) {
        read_document(&document, see);
    }
}

fn read_document(document: &Document<'_>, see: &mut dyn FnMut(Place, Item)) {
    let header = match peek::header(document.text, 0) {
        Some(header) => header,
        None => match peek::header_by_parsing(document) {
            Ok(Some(header)) => header,
            Ok(None) => return,
            Err(broken) => return see(document.place(), broken),
        },
    };
    match header.list_of() {
        Some(default_kind) => read_list(document, default_kind, see),
        None => read_object(document, &header, Shape::Object, see),
    }
}

fn read_list(
    document: &Document<'_>,
    default: Option<Header<'_>>,
    see: &mut dyn FnMut(Place, Item),
) {
    let Some(items) = split::items(document) else {
        // Flow style, or anything else that cannot be split by eye.
        return match parse_fully(document) {
            Ok(list) => json::read_list(list, default.as_ref(), document.place(), see),
            Err(broken) => see(document.place(), broken),
        };
    };
    for item in items {
        let header = peek::header(item.text, item.indent).or_else(|| default.clone());
        match header {
            Some(header) => read_object(&item, &header, Shape::OnlyItem, see),
            None => {
                let reason = "an item of the list has no kind".to_owned();
                see(
                    item.place(),
                    Item::Broken(Broken {
                        place: item.place(),
                        reason,
                    }),
                );
            }
        }
    }
}

/// What the text of an object is, as YAML.
#[derive(Clone, Copy)]
enum Shape {
    /// The object.
    Object,
    /// A sequence of it alone.
    OnlyItem,
}

fn read_object(
    document: &Document<'_>,
    header: &Header<'_>,
    shape: Shape,
    see: &mut dyn FnMut(Place, Item),
) {
    let parsed = match header.wanted() {
        Some(Kind::Node) => parse(document, shape).map(|node| Object::Node(Box::new(node))),
        Some(Kind::Service) => parse(document, shape).map(|svc| Object::Service(Box::new(svc))),
        Some(Kind::Slice) => parse(document, shape).map(|slice| Object::Slice(Box::new(slice))),
        None => {
            return see(
                document.place(),
                Item::Ignored {
                    kind: header.words(),
                },
            );
        }
    };
    match parsed {
        Ok(object) => see(document.place(), Item::Object(object)),
        Err(broken) => see(document.place(), broken),
    }
}

/// The kinds that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Node,
    Service,
    Slice,
}

fn parse<T: DeserializeOwned>(document: &Document<'_>, shape: Shape) -> Result<T, Item> {
    if let Some(parsed) = block::parse(document.text, matches!(shape, Shape::OnlyItem)) {
        return Ok(parsed);
    }
    match shape {
        Shape::Object => parse_fully(document),
        Shape::OnlyItem => parse_fully::<(T,)>(document).map(|(item,)| item),
    }
}

/// Parses with the full parser. Its errors speak of lines, and those should be the file's: on an
/// error the text is parsed once more, below as many empty lines as stand before it.
fn parse_fully<T: DeserializeOwned>(document: &Document<'_>) -> Result<T, Item> {
    saphyr(document.text).map_err(|error| {
        let above = usize::try_from(document.line - 1).unwrap_or(0);
        let again = saphyr::<T>(&("\n".repeat(above) + document.text));
        broken(document, &again.err().unwrap_or(error))
    })
}

fn saphyr<T: DeserializeOwned>(text: &str) -> Result<T, serde_saphyr::Error> {
    // The text is in memory already and came from whoever may change this node's view: budgets
    // against amplification stay, those on mere size go.
    let budget = serde_saphyr::budget! {
        max_events: usize::MAX,
        max_nodes: usize::MAX,
        max_total_scalar_bytes: usize::MAX,
    };
    let options = serde_saphyr::options! { budget: budget, with_snippet: false };
    serde_saphyr::from_str_with_options(text, options)
}

fn broken(document: &Document<'_>, error: &serde_saphyr::Error) -> Item {
    let mut place = document.place();
    let mut reason = one_line(&error.to_string());
    if let Some(location) = error.location() {
        place.line = location.line();
        place.column = location.column();
        // The place is told with the file already.
        let place = format!(" at line {}, column {}", place.line, place.column);
        reason.truncate(reason.strip_suffix(&place).map_or(reason.len(), str::len));
    }
    Item::Broken(Broken { place, reason })
}

/// An error's text as one line.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests;
