//! JSON files, and lists in a style that cannot be split by eye.

use serde_json::Value;

use super::peek::Header;
use super::{Broken, Item, Kind, Object, Place, one_line};

/// Whether a text that begins like JSON is JSON as far as its first value goes; else it may be
/// YAML in flow style.
pub(super) fn is_json(text: &str) -> bool {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde::de::IgnoredAny>();
    matches!(values.next(), Some(Ok(_)))
}

/// Reads objects or lists, one after the other.
pub(super) fn read(text: &str, see: &mut dyn FnMut(Place, Item)) {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let (mut document, mut line, mut from) = (0, 1, 0);
    loop {
        let before = values.byte_offset();
        let blank = text[before..].len() - text[before..].trim_start().len();
        line += text[from..before + blank].matches('\n').count() as u64;
        from = before + blank;
        document += 1;
        let place = Place {
            line,
            column: 0,
            document,
        };
        match values.next() {
            None => return,
            Some(Ok(value)) => {
                let header = header(&value);
                match header.list_of() {
                    Some(default) => read_list(value, default.as_ref(), place, see),
                    None => read_value(value, &header, place, see),
                }
            }
            Some(Err(error)) => {
                let place = Place {
                    line: error.line() as u64,
                    column: error.column() as u64,
                    document,
                };
                return see(place, broken(place, &error));
            }
        }
    }
}

/// Reads the items of a list.
pub(super) fn read_list(
    mut list: Value,
    default: Option<&Header<'_>>,
    place: Place,
    see: &mut dyn FnMut(Place, Item),
) {
    let Some(Value::Array(items)) = list.get_mut("items").map(Value::take) else {
        return;
    };
    for item in items {
        let header = header(&item);
        match default.filter(|_| header.kind.is_empty()) {
            Some(default) => read_value(item, default, place, see),
            None => read_value(item, &header, place, see),
        }
    }
}

fn read_value(value: Value, header: &Header<'_>, place: Place, see: &mut dyn FnMut(Place, Item)) {
    let parsed = match header.wanted() {
        Some(Kind::Node) => serde_json::from_value(value).map(Object::Node),
        Some(Kind::Service) => serde_json::from_value(value).map(Object::Service),
        Some(Kind::Slice) => serde_json::from_value(value).map(Object::Slice),
        None => {
            return see(
                place,
                Item::Ignored {
                    kind: header.words(),
                },
            );
        }
    };
    match parsed {
        Ok(object) => see(place, Item::Object(object)),
        Err(error) => see(place, broken(place, &error)),
    }
}

fn header(value: &Value) -> Header<'static> {
    let field = |name: &str| {
        value
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    Header {
        api_version: field("apiVersion").into(),
        kind: field("kind").into(),
    }
}

fn broken(place: Place, error: &serde_json::Error) -> Item {
    Item::Broken(Broken {
        place,
        reason: one_line(&error.to_string()),
    })
}
