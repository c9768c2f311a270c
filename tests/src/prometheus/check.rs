//! Whether a page of expressions (a dashboard's, alert rules') is sound: each evaluates, names only
//! metrics that agents have, and gives data unless it is known that there is none.
//!
//! A misspelt metric is no error to Prometheus: it is just not there, and behind `or vector(0)` not
//! even empty. So names are looked up, in what was scraped and in docs/metrics.md.

use std::collections::BTreeSet;

use anyhow::Result;
use serde_json::Value;

use super::{Prometheus, Span};

/// An expression, ready to be evaluated.
#[derive(Clone, Debug)]
pub struct Expression {
    /// Where it stands, for a person.
    pub place: String,
    /// PromQL, without variables.
    pub text: String,
    /// Evaluated at the end of the time range alone, as tables and alerts are.
    pub instant: bool,
}

/// An expression with what it gave.
#[derive(Clone, Debug)]
pub struct Evaluated {
    /// Which.
    pub expression: Expression,
    /// The API's `result`.
    pub result: Value,
}

impl Evaluated {
    /// No series, or none with a number.
    pub fn is_empty(&self) -> bool {
        let series = self
            .result
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        !series.iter().any(|one| {
            let points = one["values"].as_array().cloned();
            let points = points.unwrap_or_else(|| vec![one["value"].clone()]);
            points.iter().any(|point| {
                let number = point[1].as_str().unwrap_or("NaN");
                number.parse().is_ok_and(f64::is_finite)
            })
        })
    }
}

/// All of them over a time range: what they gave, and what is wrong, in sentences.
pub fn evaluate(
    prometheus: &Prometheus,
    expressions: &[Expression],
    span: Span,
) -> Result<(Vec<Evaluated>, Vec<String>)> {
    let mut known = prometheus.label_values("__name__", None)?;
    known.extend(documented());
    let (mut evaluated, mut problems) = (Vec::new(), Vec::new());
    for expression in expressions {
        let Expression {
            place,
            text,
            instant,
        } = expression;
        for name in metrics(text).difference(&known) {
            problems.push(format!("{place}: there is no metric {name}"));
        }
        let result = match instant {
            true => prometheus.at(text, span.end),
            false => prometheus.over(text, span),
        };
        match result {
            Ok(result) => evaluated.push(Evaluated {
                expression: expression.clone(),
                result,
            }),
            Err(error) => problems.push(format!("{place}: {error:#}: {text}")),
        }
    }
    Ok((evaluated, problems))
}

/// Every metric of the reference, histograms by their parts.
pub fn documented() -> BTreeSet<String> {
    let reference = pathproof::metrics::reference();
    let rows = reference.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| `")?.split(" | ");
        Some((
            cells.next()?.trim_end_matches('`').to_owned(),
            cells.next()?,
        ))
    });
    rows.flat_map(|(name, kind)| match kind {
        "histogram" => ["_bucket", "_sum", "_count"]
            .map(|part| format!("{name}{part}"))
            .to_vec(),
        _ => vec![name],
    })
    .collect()
}

/// Words that are neither metrics nor functions.
const KEYWORDS: [&str; 8] = [
    "and", "or", "unless", "bool", "offset", "inf", "nan", "atan2",
];
/// Words before a list of labels.
const GROUPING: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];

/// The metrics that an expression names.
pub fn metrics(expression: &str) -> BTreeSet<String> {
    let text = without_labels(expression);
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let mut found = BTreeSet::new();
    let mut rest = text.as_str();
    while let Some(start) = rest.find(is_part) {
        let end = rest[start..]
            .find(|c| !is_part(c))
            .map_or(rest.len(), |end| start + end);
        let (word, after) = (&rest[start..end], rest[end..].trim_start());
        // `@ end()` and the like are functions too; numbers and durations begin with a digit.
        let is_name = !word.starts_with(|c: char| c.is_ascii_digit());
        rest = &rest[end..];
        if GROUPING.contains(&word) && after.starts_with('(') {
            rest = after.split_once(')').map_or("", |(_, rest)| rest);
        } else if is_name
            && !after.starts_with('(')
            && !KEYWORDS.contains(&word.to_lowercase().as_str())
            && !is_aggregation(word)
        {
            found.insert(word.to_owned());
        }
    }
    found
}

/// `sum by (node) (...)`: the only functions that no bracket need follow at once.
fn is_aggregation(word: &str) -> bool {
    const NAMES: [&str; 12] = [
        "sum",
        "min",
        "max",
        "avg",
        "group",
        "stddev",
        "stdvar",
        "count",
        "count_values",
        "bottomk",
        "topk",
        "quantile",
    ];
    NAMES.contains(&word)
}

/// Without strings, selectors in braces and ranges in brackets.
fn without_labels(expression: &str) -> String {
    let (mut out, mut depth, mut quote) = (String::new(), 0_usize, None);
    let mut characters = expression.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(_), '\\') => drop(characters.next()),
            (Some(open), _) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'' | '`') => quote = Some(c),
            (None, '{' | '[') => depth += 1,
            (None, '}' | ']') => depth = depth.saturating_sub(1),
            (None, _) if depth == 0 => out.push(c),
            (None, _) => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(expression: &str) -> Vec<String> {
        metrics(expression).into_iter().collect()
    }

    #[test]
    fn metrics_are_told_from_everything_else() {
        for (expression, expected) in [
            ("up == 0", vec!["up"]),
            (
                "sum by (node, le) (rate(a_bucket{x=\"y_total\"}[5m]))",
                vec!["a_bucket"],
            ),
            (
                "(a{b=~\"c|d\"} > 1.5e3) * on (node) group_left (state) d or vector(0)",
                vec!["a", "d"],
            ),
            (
                "max_over_time(a[1h:30s] @ end()) unless on(node) b offset 5m",
                vec!["a", "b"],
            ),
            ("topk by (node) (1, max without(x) (a))", vec!["a"]),
            ("sum(a) by (b)", vec!["a"]),
            ("count_values(\"state\", a)", vec!["a"]),
            ("time() - a:b", vec!["a:b"]),
        ] {
            assert_eq!(named(expression), expected, "{expression}");
        }
    }

    #[test]
    fn the_reference_is_read() {
        let all = documented();
        for name in [
            "pathproof_state",
            "process_cpu_seconds_total",
            "pathproof_rotation_lag_seconds_bucket",
        ] {
            assert!(all.contains(name), "{name}: {all:?}");
        }
        assert!(!all.contains("pathproof_rotation_lag_seconds"));
    }
}
