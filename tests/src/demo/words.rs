//! How the demo writes what it saw.

use super::timeline::{Span, Style, span};
use super::verdict::Seen;
use crate::watch::Codes;

/// The last lines of a log, none longer than a terminal shows: a verifier's log is megabytes.
pub(super) fn tail(log: &str) -> String {
    let lines: Vec<String> = log
        .lines()
        .map(|line| line.chars().take(300).collect())
        .collect();
    lines[lines.len().saturating_sub(20)..].join("\n")
}

pub(super) fn codes_line(codes: Codes) -> Vec<Span> {
    let code = |code: u16| match code {
        0 => span(Style::Warn, "no answer"),
        200 => span(Style::Good, "200"),
        code => span(Style::Bad, code.to_string()),
    };
    vec![
        span(Style::Plain, "/healthz "),
        code(codes.healthz),
        span(Style::Plain, "   /livez "),
        code(codes.livez),
    ]
}

pub(super) fn verdict_line(verdict: &Seen) -> Vec<Span> {
    let style = match verdict.state.as_str() {
        "proven" => Style::Good,
        "broken" | "stale" => Style::Bad,
        _ => Style::Warn,
    };
    vec![
        span(Style::Plain, "verdict "),
        span(style, described(verdict)),
    ]
}

pub(super) fn shown(codes: Codes) -> String {
    let word = |code: u16| {
        if code == 0 {
            "none".to_owned()
        } else {
            code.to_string()
        }
    };
    format!(
        "/healthz {}, /livez {}",
        word(codes.healthz),
        word(codes.livez)
    )
}

pub(super) fn described(verdict: &Seen) -> String {
    match &verdict.cause {
        Some(cause) => format!("{} ({cause})", verdict.state),
        None => verdict.state.clone(),
    }
}
