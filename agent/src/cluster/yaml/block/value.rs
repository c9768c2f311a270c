//! serde over the lines, as they come: nothing stands between them and the objects. Types must fit as they stand: a number where a string is wanted, or any
//! spelling that YAML's versions read differently, is refused.

use std::fmt;
use std::iter::empty;

use serde::de::value::{BorrowedStrDeserializer, MapDeserializer, SeqDeserializer};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::forward_to_deserialize_any;

use super::{Line, Lines, Node, entry, is_item, is_reserved, scalar};

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

/// Deeper than any Kubernetes object that matters here.
const MAX_DEPTH: usize = 32;

/// Reads a node as what the visitor asks for.
pub(super) struct Reader<'r, 'a> {
    lines: &'r mut Lines<'a>,
    node: Node<'a>,
    depth: usize,
}

impl<'r, 'a> Reader<'r, 'a> {
    pub(super) fn new(lines: &'r mut Lines<'a>, node: Node<'a>) -> Self {
        Self {
            lines,
            node,
            depth: 0,
        }
    }

    fn map<'de, V: Visitor<'de>>(self, indent: usize, visitor: V) -> Result<V::Value, Refused>
    where
        'a: 'de,
    {
        let first_key = self.lines.keys.len();
        let mut entries = Entries {
            lines: self.lines,
            indent,
            depth: deeper(self.depth)?,
            first_key,
            value: None,
            ended: false,
        };
        let value = visitor.visit_map(&mut entries)?;
        entries.lines.keys.truncate(first_key);
        entries.ended.then_some(value).ok_or(Refused)
    }

    fn seq<'de, V: Visitor<'de>>(self, indent: usize, visitor: V) -> Result<V::Value, Refused>
    where
        'a: 'de,
    {
        let mut items = Items {
            lines: self.lines,
            indent,
            depth: deeper(self.depth)?,
        };
        let value = visitor.visit_seq(&mut items)?;
        // A visitor that wants so many takes no notice of more.
        items.next()?.is_none().then_some(value).ok_or(Refused)
    }
}

fn deeper(depth: usize) -> Result<usize, Refused> {
    (depth < MAX_DEPTH).then_some(depth + 1).ok_or(Refused)
}

/// A plain scalar that is a string to every YAML: a word, or an address.
fn is_string(text: &str) -> bool {
    match text.as_bytes().first() {
        Some(first) if first.is_ascii_alphabetic() => !is_reserved(text),
        Some(b'/') => true,
        // 10.0.0.1, 2001:db8::1: too many points or colons for a number; but 190:20:30 is one to
        // YAML 1.1, and 2001-01-01 a date.
        Some(first) if first.is_ascii_digit() => {
            text.bytes().filter(|byte| *byte == b'.').count() == 3
                || text.as_bytes().windows(2).any(|pair| pair == b"::")
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

impl<'de, 'a: 'de> Deserializer<'de> for Reader<'_, 'a> {
    type Error = Refused;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.node {
            Node::Null | Node::Plain("null") => visitor.visit_unit(),
            Node::Quoted(text) => visitor.visit_borrowed_str(text),
            Node::Plain("true") => visitor.visit_bool(true),
            Node::Plain("false") => visitor.visit_bool(false),
            Node::Plain(text) => match integer(text) {
                Some(number) => visitor.visit_i64(number),
                None if is_string(text) => visitor.visit_borrowed_str(text),
                None => Err(Refused),
            },
            Node::EmptyMap => visitor.visit_map(MapDeserializer::new(empty::<(&str, ())>())),
            Node::EmptySeq => visitor.visit_seq(SeqDeserializer::new(empty::<()>())),
            Node::Map(indent) => self.map(indent, visitor),
            Node::Seq(indent) => self.seq(indent, visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.node {
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

    /// What nobody wants may be any scalar, but its lines must be understood.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Refused> {
        match self.node {
            Node::Map(_) | Node::Seq(_) => self.deserialize_any(visitor),
            _ => visitor.visit_unit(),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct enum identifier
    }
}

/// A sequence at an indentation.
struct Items<'r, 'a> {
    lines: &'r mut Lines<'a>,
    indent: usize,
    depth: usize,
}

impl<'a> Items<'_, 'a> {
    fn next(&mut self) -> Result<Option<Node<'a>>, Refused> {
        let Some(line) = self.lines.line.filter(|line| line.indent >= self.indent) else {
            return Ok(None);
        };
        if line.indent > self.indent {
            return Err(Refused);
        }
        if !is_item(line.content) {
            // The next key of the mapping that holds a sequence at its own indentation.
            return Ok(None);
        }
        let rest = line.content[1..].trim_start_matches(' ');
        if is_item(rest) || entry(rest).is_some() {
            // What follows the dash is the first line of a node of its own.
            let line = Line {
                indent: self.indent + line.content.len() - rest.len(),
                content: rest,
            };
            self.lines.line = Some(line);
            return Ok(Some(line.node()));
        }
        self.lines.advance();
        match rest {
            "" => Ok(Some(self.lines.nested(self.indent, false))),
            rest => scalar(rest).map(Some).ok_or(Refused),
        }
    }
}

impl<'de, 'a: 'de> SeqAccess<'de> for Items<'_, 'a> {
    type Error = Refused;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Refused> {
        let Some(node) = self.next()? else {
            return Ok(None);
        };
        let reader = Reader {
            lines: self.lines,
            node,
            depth: self.depth,
        };
        seed.deserialize(reader).map(Some)
    }
}

/// A mapping at an indentation.
struct Entries<'r, 'a> {
    lines: &'r mut Lines<'a>,
    indent: usize,
    depth: usize,
    /// Where its keys begin among those of all mappings.
    first_key: usize,
    value: Option<Node<'a>>,
    ended: bool,
}

impl<'a> Entries<'_, 'a> {
    fn next(&mut self) -> Result<Option<(&'a str, Node<'a>)>, Refused> {
        let Some(line) = self.lines.line.filter(|line| line.indent >= self.indent) else {
            return Ok(None);
        };
        if line.indent > self.indent || is_item(line.content) {
            return Err(Refused);
        }
        let (key, value) = entry(line.content).ok_or(Refused)?;
        if self.lines.keys[self.first_key..].contains(&key) {
            return Err(Refused);
        }
        self.lines.keys.push(key);
        self.lines.advance();
        let value = match value {
            "" => self.lines.nested(self.indent, true),
            value => scalar(value).ok_or(Refused)?,
        };
        Ok(Some((key, value)))
    }
}

impl<'de, 'a: 'de> MapAccess<'de> for Entries<'_, 'a> {
    type Error = Refused;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Refused> {
        let Some((key, value)) = self.next()? else {
            self.ended = true;
            return Ok(None);
        };
        self.value = Some(value);
        let key: BorrowedStrDeserializer<'_, Refused> = BorrowedStrDeserializer::new(key);
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Refused> {
        let reader = Reader {
            lines: self.lines,
            node: self.value.take().ok_or(Refused)?,
            depth: self.depth,
        };
        seed.deserialize(reader)
    }
}
