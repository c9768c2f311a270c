//! The page of `report` as one HTML file with a timeline, for a ticket or a mail: no scripts, no other files.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use jiff::civil::Date;
use pathproof_facts::text::styled;
use pathproof_report::episodes::day;

use super::{Audit, Row};

/// Widths in the timeline: names of nodes, all days, and the narrowest bar; and the height of a line.
const LABELS: f64 = 300.0;
const DAYS: f64 = 780.0;
const NARROWEST: f64 = 3.0;
const LINE: usize = 20;
/// Each of this many days has a label.
const DAYS_NAMED: usize = 7;
const DAY: f64 = 86_400.0;
const HEAD: &str = "<!doctype html>
<html lang=\"en\"><meta charset=\"utf-8\"><title>pathproof report</title>
<style>body{font:15px sans-serif;margin:2em}svg{font-size:12px}line{stroke:#ccc}
.right{fill:#1a7f37}.wrong{fill:#cf222e}.unknown{fill:#bf8700}</style>
";

/// Text as HTML, for content and quoted attributes. Names of Services and nodes are external text, so every
/// text that is not this program's passes here.
fn escaped(text: &str) -> String {
    styled(text, false)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

pub(super) fn page(audit: &Audit<'_>) -> String {
    let rows = audit.rows();
    let (headline, page) = (audit.headline(&rows), audit.page(false));
    format!(
        "{HEAD}<h1>{}</h1>\n{}<pre>{}</pre>\n</html>\n",
        escaped(&headline),
        timeline(&rows, &audit.days()),
        escaped(&page)
    )
}

/// A line for each node with episodes, and a column for each day.
fn timeline(rows: &[Row<'_>], days: &BTreeSet<Date>) -> String {
    let nodes: BTreeSet<&str> = rows.iter().map(|row| row.node).collect();
    let column = DAYS / days.len().max(1) as f64;
    let bottom = LINE * nodes.len();
    let height = bottom + LINE;
    let mut svg = format!("<svg width=\"1100\" height=\"{height}\" role=\"img\">\n");
    // Writing to a String cannot fail.
    for (index, day) in days.iter().enumerate() {
        let x = LABELS + column * index as f64;
        let _ = write!(svg, "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y2=\"{bottom}\"/>");
        if index % DAYS_NAMED == 0 {
            let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{height}\">{day}</text>");
        }
    }
    for (index, node) in nodes.into_iter().enumerate() {
        let (y, name) = (LINE * index + 14, escaped(node));
        let _ = writeln!(svg, "<text y=\"{y}\">{name}</text>");
        for row in rows.iter().filter(|row| row.node == node) {
            svg.push_str(&bar(row, days, LINE * index + 3, column));
        }
    }
    svg + "</svg>\n"
}

/// An episode as a bar. A browser shows its title to a pointer above it.
fn bar(row: &Row<'_>, days: &BTreeSet<Date>, y: usize, column: f64) -> String {
    let begin = row.episode.begin;
    let before = days.range(..day(begin)).count() as f64;
    let of_day = begin.as_second().rem_euclid(86_400) as f64 / DAY;
    let x = LABELS + column * (before + of_day);
    let width = column * row.episode.lasted.as_secs_f64() / DAY;
    let width = width.max(NARROWEST);
    let title = format!("{begin} {} {}", row.lasted(), row.episode.cause);
    format!(
        "<rect class=\"{}\" x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"14\"><title>{}</title></rect>\n",
        row.judged.name(),
        escaped(&title)
    )
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn markup_and_hidden_characters_are_escaped() {
        let expected = "a &lt;b c=&quot;d&quot;&gt;&amp;amp; &#39;\\u{202e}\nузел";
        assert_eq!(escaped("a <b c=\"d\">&amp; '\u{202e}\nузел"), expected);
    }
}
