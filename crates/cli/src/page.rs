//! Lines of text, with or without colours.

use std::fmt::Write as _;

use pathproof_facts::cause::State;
use pathproof_facts::text::visible;
use pathproof_report::SentinelCondition;

#[cfg(test)]
pub(super) use tests::{assert_colours, assert_page, assert_text};

/// Maximum width of a page, so that an ordinary terminal breaks no line.
const WIDTH: usize = 80;
/// Column where the text of a section begins.
pub(super) const TEXT: usize = 16;
/// Maximum number of sentences under one title.
const LINES_SHOWN: usize = 6;

/// Purpose of a piece of text, with the code that selects it; the terminal's palette decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    Plain = 0,
    Heading = 1,
    Faint = 2,
    Good = 32,
    Warn = 33,
    Bad = 31,
    Unsure = 36,
}

impl Style {
    pub(super) fn of(state: State) -> Self {
        match state {
            State::Proven => Style::Good,
            State::Unknown | State::Starting => Style::Unsure,
            State::Suspect | State::Degraded => Style::Warn,
            State::Stale | State::Broken => Style::Bad,
        }
    }

    pub(super) fn of_sentinel(state: SentinelCondition) -> Self {
        match state {
            SentinelCondition::Off | SentinelCondition::Altered => Style::Warn,
            _ => Style::Plain,
        }
    }
}

/// A page being written. Only visible characters count towards columns.
#[derive(Debug, Default)]
pub(super) struct Text {
    text: String,
    colour: bool,
    column: usize,
    title: String,
}

impl Text {
    pub(super) fn new(colour: bool) -> Self {
        Self {
            colour,
            ..Self::default()
        }
    }

    pub(super) fn put(&mut self, style: Style, text: &str) -> &mut Self {
        match style {
            Style::Plain => self.styled("", text),
            _ => self.styled(&(style as u8).to_string(), text),
        }
    }

    fn styled(&mut self, code: &str, text: &str) -> &mut Self {
        let text = &*visible(text);
        if self.colour && !code.is_empty() && !text.is_empty() {
            // Writing to a String cannot fail.
            let _ = write!(self.text, "\x1b[{code}m{text}\x1b[0m");
        } else {
            self.text.push_str(text);
        }
        self.column += text.chars().count();
        self
    }

    /// Pads to a column, or with one blank if the text is beyond it already.
    pub(super) fn to(&mut self, column: usize) -> &mut Self {
        let blanks = column.checked_sub(self.column).unwrap_or(1);
        self.text.extend(std::iter::repeat_n(' ', blanks));
        self.column += blanks;
        self
    }

    /// Writes text that ends before a column.
    pub(super) fn right(&mut self, style: Style, column: usize, text: &str) -> &mut Self {
        let text = visible(text);
        self.to(column.saturating_sub(text.chars().count()))
            .put(style, &text)
    }

    pub(super) fn line(&mut self) {
        let kept = self.text.trim_end_matches(' ').len();
        self.text.truncate(kept);
        self.text.push('\n');
        self.column = 0;
    }

    /// Ends a paragraph with one blank line.
    pub(super) fn gap(&mut self) {
        if !self.text.is_empty() && !self.text.ends_with("\n\n") {
            self.line();
        }
    }

    /// Writes a wrapped paragraph from here on; further lines begin at `indent`.
    pub(super) fn wrapped(&mut self, style: Style, indent: usize, text: &str) {
        let mut blank = 0;
        for word in text.split_whitespace() {
            if self.column > indent && self.column + blank + word.chars().count() > WIDTH {
                self.line();
                self.to(indent);
            } else if blank > 0 {
                self.put(Style::Plain, " ");
            }
            self.put(style, word);
            blank = 1;
        }
        self.line();
    }

    /// Writes the headline: a state, a name, and further text.
    pub(super) fn head(&mut self, style: Style, word: &str, name: &str, rest: &str) {
        let word = word.to_uppercase();
        // Bold and inverse: the style's colour becomes the background.
        match self.colour {
            true => self.styled(&format!("1;7;{}", style as u8), &format!(" {word} ")),
            false => self.put(Style::Plain, &word),
        };
        self.put(Style::Plain, "  ");
        self.put(Style::Heading, name)
            .put(Style::Plain, rest)
            .line();
    }

    /// Begins an entry of a section. The title is only written before the first entry.
    pub(super) fn begin(&mut self, title: &str) -> &mut Self {
        if self.title != title {
            title.clone_into(&mut self.title);
            self.put(Style::Heading, title);
        }
        self.to(TEXT)
    }

    pub(super) fn section(&mut self, title: &str, style: Style, text: &str) {
        self.begin(title).wrapped(style, TEXT, text);
    }

    /// Writes a further paragraph of an entry.
    pub(super) fn more(&mut self, style: Style, text: &str) {
        self.to(TEXT).wrapped(style, TEXT, text);
    }

    /// Writes sentences under one title, at most [`LINES_SHOWN`].
    pub(super) fn list(&mut self, title: &str, style: Style, lines: &[String]) {
        for line in lines.iter().take(LINES_SHOWN) {
            self.section(title, style, &sentence(line));
        }
        if lines.len() > LINES_SHOWN {
            let hidden = lines.len() - LINES_SHOWN;
            self.more(Style::Faint, &format!("and {hidden} more"));
        }
    }

    /// Returns the page without blank lines at its end.
    pub(super) fn finish(mut self) -> String {
        let kept = self.text.trim_end_matches('\n').len();
        self.text.truncate(kept);
        self.text.push('\n');
        self.text
    }
}

/// A number with separated thousands.
pub(super) fn grouped(number: u64) -> String {
    let mut text = number.to_string();
    for end in (1..text.len()).rev().skip(2).step_by(3) {
        text.insert(end, ',');
    }
    text
}

/// `1 Service`, `2 Services`.
pub(super) fn counted(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(number))
}

/// The reason as a sentence, with a capital and a period. A name at its start is not capitalized.
pub(super) fn sentence(reason: &str) -> String {
    let word = reason.split_whitespace().next().unwrap_or_default();
    let is_name = !word.chars().all(|c| c.is_ascii_lowercase() || c == ',');
    let mut text = reason.to_owned();
    if let Some(first) = text.get_mut(..1).filter(|_| !is_name) {
        first.make_ascii_uppercase();
    }
    if !text.ends_with('.') {
        text.push('.');
    }
    text
}

#[cfg(test)]
mod tests;
