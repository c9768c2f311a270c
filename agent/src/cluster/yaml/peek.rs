//! What an object is, at a glance: its kind and API version.

use std::borrow::Cow;

use super::split::{Document, lines};
use super::{Item, Kind, parse_fully};

/// Kind and API version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header<'a> {
    pub(super) api_version: Cow<'a, str>,
    pub(super) kind: Cow<'a, str>,
}

impl Header<'_> {
    /// Which of the kinds that matter it is. Group and kind decide: a Service of Knative's is
    /// another thing. A version nobody serves is left to the parser to refuse.
    pub(super) fn wanted(&self) -> Option<Kind> {
        match (self.group(), &*self.kind) {
            ("", "Node") => Some(Kind::Node),
            ("", "Service") => Some(Kind::Service),
            ("discovery.k8s.io", "EndpointSlice") => Some(Kind::Slice),
            _ => None,
        }
    }

    /// For a list: what its items are where they do not say so themselves.
    pub(super) fn list_of(&self) -> Option<Option<Header<'static>>> {
        let kind = self.kind.strip_suffix("List")?;
        if kind.is_empty() {
            return Some(None);
        }
        let item = Header {
            api_version: Cow::Owned(self.api_version.clone().into_owned()),
            kind: Cow::Owned(kind.to_owned()),
        };
        item.wanted()?;
        Some(Some(item))
    }

    /// Its name among what is ignored.
    pub(super) fn words(&self) -> String {
        match (self.group(), &*self.kind) {
            (_, "") => "without a kind".to_owned(),
            ("", kind) => kind.to_owned(),
            (group, kind) => format!("{kind}.{group}"),
        }
    }

    fn group(&self) -> &str {
        self.api_version
            .split_once('/')
            .map_or("", |(group, _)| group)
    }
}

/// Reads the header off the lines, where it stands plainly among the keys at `indent`.
pub(super) fn header(text: &str, indent: usize) -> Option<Header<'_>> {
    let (mut kind, mut api_version) = (None, None);
    for (_, line) in lines(text) {
        let Some(key) = key_at(line, indent) else {
            continue;
        };
        let field = match key.split_once(": ") {
            Some(("kind", value)) => (&mut kind, value),
            Some(("apiVersion", value)) => (&mut api_version, value),
            _ => continue,
        };
        if field.0.replace(plain(field.1)?).is_some() {
            return None;
        }
        if kind.is_some() && api_version.is_some() {
            break;
        }
    }
    Some(Header {
        kind: Cow::Borrowed(kind?),
        api_version: Cow::Borrowed(api_version?),
    })
}

/// The text of a line whose key stands at `indent`; a dash may take the place of blanks.
fn key_at(line: &str, indent: usize) -> Option<&str> {
    let (lead, key) = line.split_at_checked(indent)?;
    let blank = lead.bytes().all(|byte| matches!(byte, b' ' | b'-'));
    (blank && !key.starts_with([' ', '-', '#'])).then_some(key)
}

fn plain(value: &str) -> Option<&str> {
    let value = value.split(" #").next().unwrap_or_default().trim();
    let value = value.trim_matches(|quote| quote == '"' || quote == '\'');
    let simple = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '/' | '-' | '_');
    (!value.is_empty() && value.chars().all(simple)).then_some(value)
}

/// Reads the header by parsing; `None` for an empty document.
pub(super) fn header_by_parsing(document: &Document<'_>) -> Result<Option<Header<'static>>, Item> {
    #[derive(serde::Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Top {
        #[serde(default)]
        api_version: String,
        #[serde(default)]
        kind: String,
    }
    let top = parse_fully::<Option<Top>>(document)?;
    Ok(top.map(|top| Header {
        api_version: top.api_version.into(),
        kind: top.kind.into(),
    }))
}
