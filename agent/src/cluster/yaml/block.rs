//! A reader of the plain block style: mappings and sequences by indentation, one scalar to a
//! line, no anchors, tags, comments beside values, multi-line or escaped scalars.
//!
//! It must be right or refuse: whatever could mean something else to a full YAML parser gives
//! `None`, and the full parser reads the text instead. Tests hold the two against each other.

use serde::de::DeserializeOwned;

mod value;

/// A node of the document.
#[derive(Debug, PartialEq)]
enum Node<'a> {
    /// Nothing after the colon or the dash.
    Null,
    /// A scalar without quotes.
    Plain(&'a str),
    /// A scalar in quotes, without escapes.
    Quoted(&'a str),
    Map(Vec<(&'a str, Node<'a>)>),
    Seq(Vec<Node<'a>>),
}

/// Parses a document, or the only item of a sequence.
pub(super) fn parse<T: DeserializeOwned>(text: &str, only_item: bool) -> Option<T> {
    let node = Reader::new(text).document()?;
    let node = match node {
        Node::Seq(mut items) if only_item && items.len() == 1 => items.pop()?,
        node if !only_item => node,
        _ => return None,
    };
    T::deserialize(value::Reader(&node)).ok()
}

/// A line that says something.
#[derive(Clone, Copy)]
struct Line<'a> {
    indent: usize,
    content: &'a str,
}

struct Reader<'a> {
    rest: std::str::Lines<'a>,
    line: Option<Line<'a>>,
    refused: bool,
}

/// Deeper than any Kubernetes object that matters here.
const MAX_DEPTH: usize = 32;

impl<'a> Reader<'a> {
    fn new(text: &'a str) -> Self {
        let mut reader = Self {
            rest: text.lines(),
            line: None,
            refused: false,
        };
        reader.advance();
        reader
    }

    fn advance(&mut self) {
        self.line = None;
        for line in self.rest.by_ref() {
            let content = line.trim_start_matches(' ');
            let indent = line.len() - content.len();
            let content = content.trim_end_matches(' ');
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            // Tabs, directives and control characters are for the full parser.
            if content.bytes().any(|byte| byte < b' ') || content.starts_with('%') {
                self.refused = true;
                return;
            }
            self.line = Some(Line { indent, content });
            return;
        }
    }

    fn document(&mut self) -> Option<Node<'a>> {
        let node = self.node(self.line?.indent, 0)?;
        (self.line.is_none() && !self.refused).then_some(node)
    }

    /// The mapping or sequence whose first line is the current one, at `indent`.
    fn node(&mut self, indent: usize, depth: usize) -> Option<Node<'a>> {
        if depth > MAX_DEPTH {
            return None;
        }
        if is_item(self.line?.content) {
            self.seq(indent, depth)
        } else {
            self.map(indent, depth)
        }
    }

    fn map(&mut self, indent: usize, depth: usize) -> Option<Node<'a>> {
        let mut entries: Vec<(&str, Node)> = Vec::new();
        while let Some(line) = self.line.filter(|line| line.indent >= indent) {
            if line.indent > indent || is_item(line.content) {
                return None;
            }
            let (key, value) = entry(line.content)?;
            if entries.iter().any(|(other, _)| *other == key) {
                return None;
            }
            self.advance();
            let value = match value {
                "" => self.nested(indent, true, depth)?,
                value => scalar(value)?,
            };
            entries.push((key, value));
        }
        Some(Node::Map(entries))
    }

    fn seq(&mut self, indent: usize, depth: usize) -> Option<Node<'a>> {
        let mut items = Vec::new();
        while let Some(line) = self.line.filter(|line| line.indent >= indent) {
            if line.indent > indent {
                return None;
            }
            if !is_item(line.content) {
                // The next key of the mapping that holds a sequence at its own indentation.
                break;
            }
            let rest = line.content[1..].trim_start_matches(' ');
            if rest.is_empty() {
                self.advance();
                items.push(self.nested(indent, false, depth)?);
            } else if is_item(rest) || entry(rest).is_some() {
                // What follows the dash is the first line of a node of its own.
                let inner = indent + line.content.len() - rest.len();
                self.line = Some(Line {
                    indent: inner,
                    content: rest,
                });
                items.push(self.node(inner, depth + 1)?);
            } else {
                self.advance();
                items.push(scalar(rest)?);
            }
        }
        Some(Node::Seq(items))
    }

    /// The value that begins on the line after its key or dash.
    fn nested(&mut self, indent: usize, in_map: bool, depth: usize) -> Option<Node<'a>> {
        match self.line {
            Some(line) if line.indent > indent => {
                // A lone scalar may go on over lines.
                if !is_item(line.content) {
                    entry(line.content)?;
                }
                self.node(line.indent, depth + 1)
            }
            Some(line) if in_map && line.indent == indent && is_item(line.content) => {
                self.seq(indent, depth + 1)
            }
            _ if self.refused => None,
            _ => Some(Node::Null),
        }
    }
}

fn is_item(content: &str) -> bool {
    content == "-" || content.starts_with("- ")
}

/// Splits `key: value`, where the key is a plain word.
fn entry(content: &str) -> Option<(&str, &str)> {
    let end = content
        .bytes()
        .position(|byte| byte == b':' || byte == b' ')?;
    let (key, rest) = content.split_at(end);
    let rest = rest.strip_prefix(':')?;
    if !rest.is_empty() && !rest.starts_with(' ') {
        return None;
    }
    let word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'/' | b'-' | b'_');
    let starts = key.starts_with(|c: char| c.is_ascii_alphabetic());
    (starts && key.bytes().all(word) && !is_reserved(key))
        .then(|| (key, rest.trim_start_matches(' ')))
}

fn scalar(text: &str) -> Option<Node<'_>> {
    match text.as_bytes()[0] {
        quote @ (b'"' | b'\'') => {
            let inner = text.get(1..)?.strip_suffix(quote as char)?;
            let plain = !inner.bytes().any(|byte| byte == quote || byte == b'\\');
            plain.then_some(Node::Quoted(inner))
        }
        _ if text == "{}" => Some(Node::Map(Vec::new())),
        _ if text == "[]" => Some(Node::Seq(Vec::new())),
        first => {
            let starts = first.is_ascii_alphanumeric() || first >= 0x80 || first == b'/';
            let means_more = text.contains(": ") || text.contains(" #") || text.ends_with(':');
            (starts && !means_more).then_some(Node::Plain(text))
        }
    }
}

/// Words that some version of YAML reads as null or a truth value.
fn is_reserved(word: &str) -> bool {
    const WORDS: [&str; 9] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    WORDS
        .iter()
        .any(|reserved| word.eq_ignore_ascii_case(reserved))
}

#[cfg(test)]
mod tests;
