//! A reader of the plain block style: mappings and sequences by indentation, one scalar to a
//! line, no anchors, tags, comments beside values, multi-line or escaped scalars.
//!
//! It must be right or refuse: whatever could mean something else to a full YAML parser gives
//! `None`, and the full parser reads the text instead. Tests hold the two against each other.

use serde::Deserialize;
use serde::de::DeserializeOwned;

mod value;

/// Parses a document, or the only item of a sequence.
pub(super) fn parse<T: DeserializeOwned>(text: &str, only_item: bool) -> Option<T> {
    let mut lines = Lines::new(text)?;
    let node = lines.first()?;
    let reader = value::Reader::new(&mut lines, node);
    let parsed = if only_item {
        <(T,)>::deserialize(reader).ok()?.0
    } else {
        T::deserialize(reader).ok()?
    };
    lines.line.is_none().then_some(parsed)
}

/// What stands at one place of the document. Mappings and sequences are read on from there.
#[derive(Clone, Copy)]
enum Node<'a> {
    /// Nothing after the colon or the dash.
    Null,
    /// A scalar without quotes.
    Plain(&'a str),
    /// A scalar in quotes, without escapes.
    Quoted(&'a str),
    /// `{}`.
    EmptyMap,
    /// `[]`.
    EmptySeq,
    /// A mapping whose first line is the current one, at this indentation.
    Map(usize),
    /// A sequence, as above.
    Seq(usize),
}

/// A line that says something.
#[derive(Clone, Copy)]
struct Line<'a> {
    indent: usize,
    content: &'a str,
}

/// The lines of a document, one at a time.
struct Lines<'a> {
    rest: &'a str,
    line: Option<Line<'a>>,
    /// Keys of the mappings that are being read, the outermost first.
    keys: Vec<&'a str>,
}

impl<'a> Lines<'a> {
    /// Tabs and other control characters are for the full parser.
    fn new(text: &'a str) -> Option<Self> {
        let bytes = text.as_bytes();
        let is_control = |byte: u8| byte < b' ' && byte != b'\n' && byte != b'\r';
        // Without a way out early: this is checked many bytes at a time.
        let controls = bytes
            .iter()
            .fold(false, |any, byte| any | is_control(*byte));
        let mut returns = memchr::memchr_iter(b'\r', bytes);
        if controls || !returns.all(|at| bytes.get(at + 1) == Some(&b'\n')) {
            return None;
        }
        let mut lines = Self {
            rest: text,
            line: None,
            keys: Vec::new(),
        };
        lines.advance();
        Some(lines)
    }

    fn advance(&mut self) {
        self.line = None;
        while self.line.is_none() && !self.rest.is_empty() {
            let end = memchr::memchr(b'\n', self.rest.as_bytes());
            let (line, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
            self.rest = rest.get(1..).unwrap_or_default();
            let indent = line.bytes().take_while(|byte| *byte == b' ').count();
            let content = line[indent..].trim_end_matches([' ', '\r']);
            if !content.is_empty() && !content.starts_with('#') {
                self.line = Some(Line { indent, content });
            }
        }
    }

    /// The node that the document is.
    fn first(&self) -> Option<Node<'a>> {
        self.line.map(Line::node)
    }

    /// The value that begins on the line after its key or dash.
    fn nested(&self, indent: usize, in_map: bool) -> Node<'a> {
        match self.line {
            Some(line) if line.indent > indent => line.node(),
            Some(line) if in_map && line.indent == indent && is_item(line.content) => line.node(),
            _ => Node::Null,
        }
    }
}

impl<'a> Line<'a> {
    /// The mapping or sequence whose first line this is.
    fn node(self) -> Node<'a> {
        if is_item(self.content) {
            Node::Seq(self.indent)
        } else {
            Node::Map(self.indent)
        }
    }
}

fn is_item(content: &str) -> bool {
    content == "-" || content.starts_with("- ")
}

/// Splits `key: value`, where the key is a plain word.
fn entry(content: &str) -> Option<(&str, &str)> {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'/' | b'-' | b'_');
    let end = content.bytes().position(|byte| !word(byte))?;
    let (key, rest) = content.split_at(end);
    let rest = rest.strip_prefix(':')?;
    if !rest.is_empty() && !rest.starts_with(' ') {
        return None;
    }
    let starts = key.starts_with(|c: char| c.is_ascii_alphabetic());
    (starts && !is_reserved(key)).then(|| (key, rest.trim_start_matches(' ')))
}

fn scalar(text: &str) -> Option<Node<'_>> {
    match text.as_bytes()[0] {
        quote @ (b'"' | b'\'') => {
            let inner = text.get(1..)?.strip_suffix(quote as char)?;
            let plain = memchr::memchr2(quote, b'\\', inner.as_bytes()).is_none();
            plain.then_some(Node::Quoted(inner))
        }
        _ if text == "{}" => Some(Node::EmptyMap),
        _ if text == "[]" => Some(Node::EmptySeq),
        first => {
            let starts = first.is_ascii_alphanumeric() || first >= 0x80 || first == b'/';
            (starts && !means_more(text.as_bytes())).then_some(Node::Plain(text))
        }
    }
}

/// Whether a plain scalar has a mapping's colon or a comment in it.
fn means_more(text: &[u8]) -> bool {
    memchr::memchr2_iter(b':', b'#', text).any(|at| match text[at] {
        b':' => text.get(at + 1).is_none_or(|next| *next == b' '),
        _ => at > 0 && text[at - 1] == b' ',
    })
}

/// Words that some version of YAML reads as null or a truth value.
fn is_reserved(word: &str) -> bool {
    const WORDS: [&str; 9] = ["null", "true", "false", "yes", "no", "on", "off", "y", "n"];
    word.len() <= 5
        && WORDS
            .iter()
            .any(|reserved| word.eq_ignore_ascii_case(reserved))
}

#[cfg(test)]
mod tests;
