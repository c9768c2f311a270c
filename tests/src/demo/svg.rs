//! The timeline as a picture: a terminal window in SVG, no scripts, no fonts from elsewhere.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::timeline::{Line, Span};

const LINE: usize = 19;
const COLUMN: f64 = 8.4;
const MARGIN: usize = 16;
const BAR: usize = 34;

/// Writes the picture.
pub(super) fn write(file: &Path, lines: &[Line]) -> Result<()> {
    let columns = |line: &Line| line.iter().map(|(_, text)| text.chars().count()).sum();
    let columns: usize = lines.iter().map(columns).max().unwrap_or(0);
    let width = (columns as f64 * COLUMN) as usize + 2 * MARGIN;
    let height = lines.len() * LINE + BAR + 2 * MARGIN;
    let rows = (BAR + MARGIN..).step_by(LINE);
    let texts: String = lines
        .iter()
        .zip(rows)
        .map(|(line, y)| texts(line, y))
        .collect();
    let svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" aria-label="timeline of the demo">
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
<circle cx="22" cy="20" r="6" fill="#ff5f57"/>
<circle cx="42" cy="20" r="6" fill="#febc2e"/>
<circle cx="62" cy="20" r="6" fill="#28c840"/>
<g font-family="ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace" font-size="14" xml:space="preserve" style="white-space: pre">
{texts}</g>
</svg>
"##
    );
    fs::write(file, svg).with_context(|| format!("write {}", file.display()))
}

/// One text element a piece, at its column: fonts differ in the width of marks.
fn texts(line: &[Span], y: usize) -> String {
    let mut svg = String::new();
    let mut column = 0;
    for (style, text) in line {
        let (length, shown) = (text.chars().count(), text.trim_start());
        let lead = length - shown.chars().count();
        let x = MARGIN as f64 + (column + lead) as f64 * COLUMN;
        let extent = shown.trim_end().chars().count() as f64 * COLUMN;
        let weight = if style.code.starts_with('1') {
            " font-weight=\"bold\""
        } else {
            ""
        };
        if !shown.is_empty() {
            svg += &format!(
                "<text x=\"{x:.1}\" y=\"{y}\" fill=\"{}\"{weight} textLength=\"{extent:.1}\" \
                 lengthAdjust=\"spacingAndGlyphs\">{}</text>\n",
                style.colour,
                escape(shown.trim_end())
            );
        }
        column += length;
    }
    svg
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
