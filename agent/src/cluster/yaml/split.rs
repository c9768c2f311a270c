//! Cutting a file into documents and a list into items, by lines.

use super::Place;

/// A part of a file that is parsed alone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Document<'a> {
    /// Its text, whole lines.
    pub(super) text: &'a str,
    /// Line of the file that it begins at, from 1.
    pub(super) line: u64,
    /// Which document of the file it is, from 1.
    pub(super) number: u32,
    /// Columns before its keys: an item of a list is indented.
    pub(super) indent: usize,
}

impl Document<'_> {
    /// Where it begins: the first line that says something.
    pub(super) fn place(&self) -> Place {
        let blank = self.text.lines().take_while(|line| is_empty(line)).count();
        Place {
            line: self.line + blank as u64,
            column: 0,
            document: self.number,
        }
    }

    /// Whether there is nothing in it but comments.
    fn is_blank(&self) -> bool {
        self.text.lines().all(is_empty)
    }
}

fn is_empty(line: &str) -> bool {
    let line = line.trim_start();
    line.is_empty() || line.starts_with('#')
}

/// Whether a line separates documents. No scalar can hold such a line (YAML 1.2, section 9.1.2).
fn is_marker(line: &str) -> bool {
    line.split_at_checked(3).is_some_and(|(marker, rest)| {
        matches!(marker, "---" | "...") && (rest.is_empty() || rest.starts_with([' ', '\t', '\r']))
    })
}

/// Lines with where they begin; what follows the last line break is one too.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut next = 0;
    let ends = memchr::memchr_iter(b'\n', text.as_bytes()).chain([text.len()]);
    ends.map(move |end| {
        let start = std::mem::replace(&mut next, end + 1);
        (start, &text[start..end])
    })
}

/// The documents of a file. What follows a marker on its line belongs to the document.
pub(super) fn documents(text: &str) -> Vec<Document<'_>> {
    let mut cuts = vec![(0, 1)];
    for (number, (at, line)) in lines(text).enumerate() {
        if is_marker(line) {
            cuts.push((at, number as u64 + 1));
        }
    }
    let ends = cuts.iter().skip(1).map(|(at, _)| *at).chain([text.len()]);
    let mut number = 0;
    let mut documents = Vec::with_capacity(cuts.len());
    for ((start, line), end) in cuts.iter().zip(ends) {
        let document = strip_marker(&text[*start..end], *line);
        let document = Document {
            number: number + 1,
            ..document
        };
        if !document.is_blank() {
            number += 1;
            documents.push(document);
        }
    }
    documents
}

/// Takes a marker that stands alone off the head of a document.
fn strip_marker(text: &str, line: u64) -> Document<'_> {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let alone = is_marker(first) && is_empty(&first[3..]);
    let (text, line) = if alone {
        (rest, line + 1)
    } else {
        (text, line)
    };
    Document {
        text,
        line,
        number: 0,
        indent: 0,
    }
}

/// The items of a list document in block style; `None` where it is not in that style.
pub(super) fn items<'a>(document: &Document<'a>) -> Option<Vec<Document<'a>>> {
    let mut cuts: Vec<(usize, u64)> = Vec::new();
    let mut indent = None;
    let mut end = None;
    let mut inside = false;
    for (number, (at, line)) in lines(document.text).enumerate() {
        if is_empty(line) {
            continue;
        }
        let column = line.len() - line.trim_start_matches(' ').len();
        let is_item = line[column..].starts_with("- ");
        if !inside {
            inside = line.trim_end() == "items:";
            if !inside && column == 0 && line.starts_with("items:") {
                return (line.trim_end() == "items: []").then(Vec::new);
            }
        } else if is_item && indent.is_none_or(|indent| indent == column) {
            if end.is_some() {
                return None;
            }
            indent = Some(column);
            cuts.push((at, document.line + number as u64));
        } else if column <= indent.unwrap_or(0) {
            end = end.or(Some(at));
        }
    }
    // A null list is an empty one, a list without items no list.
    let indent = if inside {
        indent.unwrap_or(0)
    } else {
        return None;
    };
    let end = end.unwrap_or(document.text.len());
    let ends: Vec<usize> = cuts
        .iter()
        .skip(1)
        .map(|(at, _)| *at)
        .chain([end])
        .collect();
    let items = cuts.iter().zip(ends).map(|((start, line), end)| Document {
        text: &document.text[*start..end],
        line: *line,
        number: document.number,
        indent: indent + 2,
    });
    Some(items.collect())
}
