//! The lines that the demo prints, with the time since the start and ANSI colours. Output to a file or pipe
//! has no colours. The lines can also be drawn as a picture.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;

use anstyle_svg::{Term, WIN10_CONSOLE};
use anyhow::{Context, Result};

/// Columns before the text: time and mark.
const INDENT: usize = 11;
/// Total columns; longer lines wrap.
const WIDTH: usize = 100;

/// ANSI codes.
pub(super) const PLAIN: &str = "0";
pub(super) const BOLD: &str = "1";
pub(super) const DIM: &str = "2";
pub(super) const GREEN: &str = "1;32";
pub(super) const RED: &str = "1;31";
pub(super) const YELLOW: &str = "33";

/// Kind of a line: its mark, and the codes of the mark and of the text.
pub(super) type Kind = [&'static str; 3];
/// Something that the demo built, repaired or started.
pub(super) const ACT: Kind = ["▶ ", "1;36", BOLD];
pub(super) const FAULT: Kind = ["✖ ", RED, BOLD];
pub(super) const SEEN: Kind = ["● ", PLAIN, PLAIN];
/// An expected result came.
pub(super) const GOOD: Kind = ["✔ ", GREEN, GREEN];
/// An expected result did not come.
pub(super) const BAD: Kind = ["✘ ", RED, RED];
pub(super) const NOTE: Kind = ["  ", DIM, DIM];

pub(super) fn paint(code: &str, text: &str) -> String {
    format!("\x1b[{code}m{text}\x1b[0m")
}

#[derive(Debug)]
pub(super) struct Timeline {
    start: Instant,
    text: String,
}

impl Timeline {
    pub(super) fn new() -> Self {
        Self {
            start: Instant::now(),
            text: String::new(),
        }
    }

    /// A heading without a time.
    pub(super) fn title(&mut self, text: &str) {
        self.print(&format!("\n {}\n", paint(BOLD, text)));
    }

    /// A sentence with the current time.
    pub(super) fn tell(&mut self, kind: Kind, text: &str) {
        self.tell_at(Instant::now(), kind, text);
    }

    /// A sentence with the given time; it wraps.
    pub(super) fn tell_at(&mut self, at: Instant, [mark, of_mark, of_words]: Kind, text: &str) {
        let seconds = at.saturating_duration_since(self.start).as_secs_f64();
        let time = paint(DIM, &format!("{seconds:6.1} s "));
        let mut start = time + &paint(of_mark, mark);
        for part in wrap(text, WIDTH - INDENT) {
            self.print(&(start + &paint(of_words, &part)));
            start = " ".repeat(INDENT);
        }
    }

    /// A quotation below a line; long lines wrap.
    pub(super) fn quote(&mut self, text: &str) {
        for part in text.lines().flat_map(|line| wrap(line, WIDTH - INDENT - 2)) {
            let quoted = paint(DIM, &format!("│ {part}"));
            self.print(&format!("{:INDENT$}{quoted}", ""));
        }
    }

    /// A verbatim line without a time.
    pub(super) fn print(&mut self, line: &str) {
        // Ignore the error: a closed standard output must not end the demo before it has cleaned up.
        let _ = writeln!(anstream::stdout(), "{line}");
        self.text += &format!("{line}\n");
    }

    /// Draws everything that was printed.
    pub(super) fn draw(&self, file: &Path) -> Result<()> {
        // Replace faint letters, which are hardly legible in a picture, by grey ones.
        let text = self.text.replace("\x1b[2m", "\x1b[90m");
        let picture = Term::new().palette(WIN10_CONSOLE).render_svg(&text);
        fs::write(file, picture).with_context(|| format!("write {}", file.display()))
    }
}

/// Breaks a line at spaces if it has more than `width` columns.
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
