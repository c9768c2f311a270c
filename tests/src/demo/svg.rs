//! The timeline as a picture: a terminal window in SVG, no scripts, no fonts from elsewhere.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::timeline::{Line, Style};

const LINE: usize = 19;
const COLUMN: f64 = 8.4;
const MARGIN: usize = 16;
const BAR: usize = 34;

/// Writes the picture.
pub(super) fn write(file: &Path, lines: &[Line]) -> Result<()> {
    fs::write(file, render(lines)?).with_context(|| format!("write {}", file.display()))
}

fn render(lines: &[Line]) -> Result<String> {
    let columns = lines.iter().map(columns).max().unwrap_or(0);
    let width = (columns as f64 * COLUMN) as usize + 2 * MARGIN;
    let height = lines.len() * LINE + BAR + 2 * MARGIN;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" role=\"img\" aria-label=\"timeline of the demo\">\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#0d1117\"/>\n"
    );
    for (index, colour) in ["#ff5f57", "#febc2e", "#28c840"].iter().enumerate() {
        let x = MARGIN + 6 + index * 20;
        writeln!(
            svg,
            "<circle cx=\"{x}\" cy=\"20\" r=\"6\" fill=\"{colour}\"/>"
        )?;
    }
    svg.push_str(
        "<g font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', \
         monospace\" font-size=\"14\" xml:space=\"preserve\" style=\"white-space: pre\">\n",
    );
    for (row, line) in lines.iter().enumerate() {
        write_line(&mut svg, line, BAR + MARGIN + row * LINE)?;
    }
    svg.push_str("</g>\n</svg>\n");
    Ok(svg)
}

/// One text element a piece, at its column: fonts differ in the width of marks.
fn write_line(svg: &mut String, line: &Line, y: usize) -> Result<()> {
    let mut column = 0;
    for span in &line.spans {
        let length = span.text.chars().count();
        if !span.text.trim().is_empty() {
            let lead = span.text.chars().take_while(|c| *c == ' ').count();
            let x = MARGIN as f64 + (column + lead) as f64 * COLUMN;
            let text = span.text.trim();
            let extent = text.chars().count() as f64 * COLUMN;
            let (fill, weight) = look(span.style);
            writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y}\" fill=\"{fill}\"{weight} textLength=\"{extent:.1}\" \
                 lengthAdjust=\"spacingAndGlyphs\">{}</text>",
                escape(text)
            )?;
        }
        column += length;
    }
    Ok(())
}

fn columns(line: &Line) -> usize {
    line.spans
        .iter()
        .map(|span| span.text.chars().count())
        .sum()
}

fn look(style: Style) -> (&'static str, &'static str) {
    const BOLD: &str = " font-weight=\"bold\"";
    match style {
        Style::Plain => ("#c9d1d9", ""),
        Style::Bold => ("#f0f6fc", BOLD),
        Style::Dim => ("#8b949e", ""),
        Style::Good => ("#3fb950", BOLD),
        Style::Bad => ("#f85149", BOLD),
        Style::Warn => ("#d29922", ""),
        Style::Act => ("#58a6ff", BOLD),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
