//! What the demo prints: lines of styled words with the time since the start. The same lines go to
//! the terminal (coloured on a terminal) and to a picture.

use std::io::{self, IsTerminal, Write};
use std::time::Instant;

/// Columns before the text: time and mark.
const INDENT: usize = 11;
/// Columns in all; longer sentences wrap.
const WIDTH: usize = 100;

/// How a word looks: its ANSI code, and its colour in a picture.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style {
    pub(super) code: &'static str,
    pub(super) colour: &'static str,
}

impl Style {
    pub(super) const PLAIN: Self = Self::new("0", "#c9d1d9");
    pub(super) const BOLD: Self = Self::new("1", "#f0f6fc");
    pub(super) const DIM: Self = Self::new("2", "#8b949e");
    pub(super) const GOOD: Self = Self::new("1;32", "#3fb950");
    pub(super) const BAD: Self = Self::new("1;31", "#f85149");
    pub(super) const WARN: Self = Self::new("33", "#d29922");
    pub(super) const ACT: Self = Self::new("1;36", "#58a6ff");

    const fn new(code: &'static str, colour: &'static str) -> Self {
        Self { code, colour }
    }
}

/// Kind of a line: its mark, how the mark looks, and how the words do.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    mark: &'static str,
    of_mark: Style,
    words: Style,
}

impl Kind {
    /// The demo did something good: built, repaired, started.
    pub(super) const ACT: Self = Self::new("▶ ", Style::ACT, Style::BOLD);
    /// The demo broke something.
    pub(super) const FAULT: Self = Self::new("✖ ", Style::BAD, Style::BOLD);
    /// Something was seen.
    pub(super) const SEEN: Self = Self::new("● ", Style::PLAIN, Style::PLAIN);
    /// What was expected has come.
    pub(super) const GOOD: Self = Self::new("✔ ", Style::GOOD, Style::GOOD);
    /// It has not.
    pub(super) const BAD: Self = Self::new("✘ ", Style::BAD, Style::BAD);
    /// Words beside it.
    pub(super) const NOTE: Self = Self::new("  ", Style::DIM, Style::DIM);

    const fn new(mark: &'static str, of_mark: Style, words: Style) -> Self {
        Self {
            mark,
            of_mark,
            words,
        }
    }
}

/// A piece of a line.
pub(super) type Span = (Style, String);
/// A printed line.
pub(super) type Line = Vec<Span>;

pub(super) fn span(style: Style, text: impl Into<String>) -> Span {
    (style, text.into())
}

/// The lines so far.
#[derive(Debug)]
pub(super) struct Timeline {
    start: Instant,
    colours: bool,
    pub(super) lines: Vec<Line>,
}

impl Timeline {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            colours: io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
            lines: Vec::new(),
        }
    }

    /// A heading without a time.
    pub(super) fn title(&mut self, text: &str) {
        self.print(vec![]);
        self.print(vec![span(Style::BOLD, format!(" {text}"))]);
        self.print(vec![]);
    }

    /// A sentence, now; it wraps.
    pub(super) fn tell(&mut self, kind: Kind, text: &str) {
        let parts = wrap(text, WIDTH - INDENT).into_iter();
        let mut parts = parts.map(move |part| span(kind.words, part));
        self.tell_at(Instant::now(), kind, parts.next().into_iter().collect());
        for part in parts {
            self.print(vec![span(Style::PLAIN, " ".repeat(INDENT)), part]);
        }
    }

    /// Words, with the moment they belong to.
    pub(super) fn tell_at(&mut self, at: Instant, kind: Kind, words: Line) {
        let seconds = at.saturating_duration_since(self.start).as_secs_f64();
        let time = span(Style::DIM, format!("{seconds:6.1} s "));
        self.print([vec![time, span(kind.of_mark, kind.mark)], words].concat());
    }

    /// A quotation below a line; long lines wrap.
    pub(super) fn quote(&mut self, text: &str) {
        for part in text.lines().flat_map(|line| wrap(line, WIDTH - INDENT - 2)) {
            let indent = span(Style::PLAIN, " ".repeat(INDENT));
            self.print(vec![indent, span(Style::DIM, format!("│ {part}"))]);
        }
    }

    /// A line without a time, as it is.
    pub(super) fn print(&mut self, line: Line) {
        let paint = |(style, text): &Span| format!("\x1b[{}m{text}\x1b[0m", style.code);
        let text = match self.colours {
            true => line.iter().map(paint).collect(),
            false => plain(&line),
        };
        // A reader that went away is no reason to leave the world behind.
        let _ = writeln!(io::stdout(), "{text}");
        self.lines.push(line);
    }
}

/// The words alone.
pub(super) fn plain(line: &[Span]) -> String {
    let text: String = line.iter().map(|(_, text)| text.as_str()).collect();
    text.trim_end().to_owned()
}

/// Breaks a line at spaces, where it has more than `width` columns.
fn wrap(line: &str, width: usize) -> Vec<String> {
    let mut parts = vec![String::new()];
    for word in line.split_inclusive(' ') {
        let last = parts.last_mut().expect("there is always one");
        let columns = last.chars().count() + word.trim_end().chars().count();
        if last.is_empty() || columns <= width {
            last.push_str(word);
        } else {
            parts.push(word.to_owned());
        }
    }
    parts
}
