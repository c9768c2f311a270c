//! What the demo prints: lines of styled words with the time since the start. The same lines go to
//! the terminal (coloured on a terminal), to a file and to a picture.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};

/// Columns before the text: time and mark.
const INDENT: usize = 11;
/// Columns in all; longer sentences wrap.
const WIDTH: usize = 100;

/// How a word looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    Plain,
    Bold,
    Dim,
    Good,
    Bad,
    Warn,
    Act,
}

impl Style {
    fn ansi(self) -> &'static str {
        match self {
            Self::Plain => "0",
            Self::Bold => "1",
            Self::Dim => "2",
            Self::Good => "1;32",
            Self::Bad => "1;31",
            Self::Warn => "33",
            Self::Act => "1;36",
        }
    }
}

/// What a line tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The demo did something good: built, repaired, started.
    Act,
    /// The demo broke something.
    Fault,
    /// Something was seen.
    Seen,
    /// What was expected has come.
    Good,
    /// It has not.
    Bad,
    /// Words beside it.
    Note,
}

impl Kind {
    fn mark(self) -> Span {
        match self {
            Self::Act => span(Style::Act, "▶ "),
            Self::Fault => span(Style::Bad, "✖ "),
            Self::Seen => span(Style::Plain, "● "),
            Self::Good => span(Style::Good, "✔ "),
            Self::Bad => span(Style::Bad, "✘ "),
            Self::Note => span(Style::Dim, "  "),
        }
    }

    fn style(self) -> Style {
        match self {
            Self::Act | Self::Fault => Style::Bold,
            Self::Seen => Style::Plain,
            Self::Good => Style::Good,
            Self::Bad => Style::Bad,
            Self::Note => Style::Dim,
        }
    }
}

/// A piece of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) style: Style,
    pub(super) text: String,
}

/// A piece of a line.
pub(super) fn span(style: Style, text: impl Into<String>) -> Span {
    Span {
        style,
        text: text.into(),
    }
}

/// A printed line.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) spans: Vec<Span>,
}

/// The lines so far.
#[derive(Debug)]
pub(super) struct Timeline {
    start: Instant,
    colours: bool,
    lines: Vec<Line>,
}

impl Timeline {
    pub(super) fn new() -> Self {
        let colours = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        Self {
            start: Instant::now(),
            colours,
            lines: Vec::new(),
        }
    }

    pub(super) fn lines(&self) -> &[Line] {
        &self.lines
    }

    /// A heading without a time.
    pub(super) fn title(&mut self, text: &str) {
        self.print(vec![]);
        self.print(vec![span(Style::Bold, format!(" {text}"))]);
        self.print(vec![]);
    }

    /// A line without a time, as it is.
    pub(super) fn raw(&mut self, spans: Vec<Span>) {
        self.print(spans);
    }

    /// A sentence, now.
    pub(super) fn tell(&mut self, kind: Kind, text: &str) {
        self.tell_at(Instant::now(), kind, vec![span(kind.style(), text)]);
    }

    /// Words, with the moment they belong to. A single sentence that is too long wraps.
    pub(super) fn tell_at(&mut self, at: Instant, kind: Kind, words: Vec<Span>) {
        let seconds = at.saturating_duration_since(self.start).as_secs_f64();
        let mut head = vec![span(Style::Dim, format!("{seconds:6.1} s ")), kind.mark()];
        let mut rest = Vec::new();
        match words.as_slice() {
            [only] => {
                let mut parts = wrap(&only.text, WIDTH - INDENT).into_iter();
                head.extend(parts.next().map(|part| span(only.style, part)));
                rest.extend(parts.map(|part| span(only.style, part)));
            }
            _ => head.extend(words),
        }
        self.print(head);
        for part in rest {
            self.print(vec![span(Style::Plain, " ".repeat(INDENT)), part]);
        }
    }

    /// A quotation below a line, wrapped.
    pub(super) fn quote(&mut self, text: &str) {
        for part in wrap(text, WIDTH - INDENT - 2) {
            let indent = span(Style::Plain, " ".repeat(INDENT));
            self.print(vec![indent, span(Style::Dim, format!("│ {part}"))]);
        }
    }

    /// A line of a program's output below a line, as it is.
    pub(super) fn quote_as_is(&mut self, line: &str) {
        let indent = span(Style::Plain, " ".repeat(INDENT));
        let line = span(Style::Dim, format!("│ {line}"));
        self.print(vec![indent, line]);
    }

    fn print(&mut self, spans: Vec<Span>) {
        let line = Line { spans };
        let text = if self.colours {
            coloured(&line)
        } else {
            plain(&line)
        };
        // A reader that went away is no reason to leave the world behind.
        let _ = writeln!(io::stdout(), "{text}");
        self.lines.push(line);
    }

    /// Writes the lines to a file.
    pub(super) fn record(&self, file: &Path) -> Result<()> {
        let text: String = self.lines.iter().map(|line| plain(line) + "\n").collect();
        fs::write(file, text).with_context(|| format!("write {}", file.display()))
    }
}

fn plain(line: &Line) -> String {
    line.spans
        .iter()
        .map(|span| span.text.as_str())
        .collect::<String>()
        .trim_end()
        .to_owned()
}

fn coloured(line: &Line) -> String {
    let paint = |span: &Span| format!("\x1b[{}m{}\x1b[0m", span.style.ansi(), span.text);
    line.spans.iter().map(paint).collect()
}

/// Breaks at spaces, to at most `width` columns.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("there is always one");
        if last.is_empty() {
            last.push_str(word);
        } else if last.chars().count() + 1 + word.chars().count() <= width {
            last.push(' ');
            last.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}
