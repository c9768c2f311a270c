//! serde over the nodes. Types must fit as they stand: a number where a string is wanted, or any
//! spelling that YAML's versions read differently, is refused.

use std::fmt;

use serde::de::value::StrDeserializer;
use serde::de::{
    self, DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::{Node, is_reserved};

/// Not for this reader.
#[derive(Debug)]
pub(super) struct Refused;

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("refused")
    }
}

impl std::error::Error for Refused {}

impl de::Error for Refused {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Refused
    }
}

/// Reads a node as what the visitor asks for.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a, 'n>(pub(super) &'n Node<'a>);

/// A plain scalar that is a string to every YAML: a word, or an address.
fn is_string(text: &str) -> bool {
    match text.as_bytes().first() {
        Some(first) if first.is_ascii_alphabetic() => !is_reserved(text),
        Some(b'/') => true,
        // 10.0.0.1, 2001:db8::1: too many points or colons for a number; but 190:20:30 is one to
        // YAML 1.1, and 2001-01-01 a date.
        Some(first) if first.is_ascii_digit() => {
            text.bytes().filter(|byte| *byte == b'.').count() == 3
                || text.contains("::")
                || is_uuid(text)
        }
        _ => false,
    }
}

/// Every object has one. Four dashes: no number has more than two, no date more than two.
fn is_uuid(text: &str) -> bool {
    let dash = |at: usize| matches!(at, 8 | 13 | 18 | 23);
    let fits = |(at, byte): (usize, u8)| match dash(at) {
        true => byte == b'-',
        false => byte.is_ascii_hexdigit(),
    };
    text.len() == 36 && text.bytes().enumerate().all(fits)
}

fn integer(text: &str) -> Option<i64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    (plain && (text == "0" || !text.starts_with('0')))
        .then(|| text.parse().ok())
        .flatten()
}

impl<'de, 'a: 'de, 'n> Deserializer<'de> for Reader<'a, 'n> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.0 {
            Node::Null => visitor.visit_unit(),
            Node::Quoted(text) => visitor.visit_borrowed_str(text),
            Node::Plain("true") => visitor.visit_bool(true),
            Node::Plain("false") => visitor.visit_bool(false),
            Node::Plain("null") => visitor.visit_unit(),
            Node::Plain(text) => match integer(text) {
                Some(number) => visitor.visit_i64(number),
                None if is_string(text) => visitor.visit_borrowed_str(text),
                None => Err(Refused),
            },
            Node::Map(entries) => visitor.visit_map(Entries {
                entries: entries.iter(),
                value: None,
            }),
            Node::Seq(items) => visitor.visit_seq(Items(items.iter())),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.0 {
            Node::Null | Node::Plain("null") => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Refused> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct enum identifier
    }
}

struct Items<'a, 'n>(std::slice::Iter<'n, Node<'a>>);

impl<'de, 'a: 'de, 'n> SeqAccess<'de> for Items<'a, 'n> {
    type Error = Refused;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Refused> {
        self.0
            .next()
            .map(|node| seed.deserialize(Reader(node)))
            .transpose()
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.len())
    }
}

struct Entries<'a, 'n> {
    entries: std::slice::Iter<'n, (&'a str, Node<'a>)>,
    value: Option<&'n Node<'a>>,
}

impl<'de, 'a: 'de, 'n> MapAccess<'de> for Entries<'a, 'n> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refused> {
        let Some((key, value)) = self.entries.next() else {
            return Ok(None);
        };
        self.value = Some(value);
        let key: StrDeserializer<'_, Refused> = (*key).into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refused> {
        seed.deserialize(Reader(self.value.take().ok_or(Refused)?))
    }
}
