//! Checks that the expressions of a dashboard or of alert rules are valid and name only existing metrics.
//!
//! Prometheus accepts a misspelt metric: the result is empty, or 0 if `or vector(0)` follows. So each name (a
//! word with `_` or `:`, or `up`) must have been scraped, or be in the reference of metrics.

use std::collections::BTreeSet;

use anyhow::Result;
use node_tests::prometheus::{Expression, Prometheus, Span};
use serde_json::Value;

/// Evaluates expressions over a time range. Returns the places of expressions without data, and the problems.
pub(super) fn evaluate(
    prometheus: &Prometheus,
    expressions: &[Expression],
    span: Span,
) -> Result<(Vec<String>, Vec<String>)> {
    let known = prometheus.label_values("__name__", "{__name__!=\"\"}")?;
    let (mut empty, mut problems) = (Vec::new(), Vec::new());
    for Expression {
        place,
        text,
        instant,
    } in expressions
    {
        let names = metrics(text);
        for name in names.difference(&known).filter(|name| !is_documented(name)) {
            problems.push(format!("{place}: there is no metric {name}"));
        }
        if names.is_empty() {
            problems.push(format!("{place}: names no metric: {text}"));
        }
        match prometheus.evaluate(text, span, *instant) {
            Ok(result) if is_empty(&result) => empty.push(place.clone()),
            Ok(_) => {}
            Err(error) => problems.push(format!("{place}: {error:#}: {text}")),
        }
    }
    Ok((empty, problems))
}

/// True if no series has a finite value.
fn is_empty(result: &Value) -> bool {
    let is_number = |point: &Value| {
        let number = point[1].as_str().unwrap_or("NaN").parse();
        number.is_ok_and(f64::is_finite)
    };
    let series = result.as_array().into_iter().flatten();
    !series.into_iter().any(|one| {
        let mut points = one["values"].as_array().into_iter().flatten();
        points.any(is_number) || is_number(&one["value"])
    })
}

/// True if the reference has this metric, or the histogram that this series belongs to.
fn is_documented(name: &str) -> bool {
    let reference = include_str!("../../../docs/metrics.md");
    let kind = |name: &str| {
        let (_, row) = reference.split_once(&format!("\n| `{name}` | "))?;
        row.split(" | ").next()
    };
    let parts = ["_bucket", "_sum", "_count"].into_iter();
    let mut wholes = parts.filter_map(|part| name.strip_suffix(part));
    let is_part = wholes.any(|whole| kind(whole) == Some("histogram"));
    is_part || kind(name).is_some_and(|kind| kind != "histogram")
}

/// PromQL keywords before a list of labels.
const GROUPING: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];

/// The metrics that an expression names: words that look like a metric and are neither labels nor functions.
fn metrics(expression: &str) -> BTreeSet<String> {
    let others = ["\\\"", "'", "`"];
    let quoted_otherwise = others.iter().any(|quote| expression.contains(quote));
    assert!(!quoted_otherwise, "only \" may quote: {expression}");
    let text: String = expression.split('"').step_by(2).collect();
    // A word before `(` is a function. The appended `;` ends the text's last word, so that it is handled like
    // the others.
    let text = text.split(['{', '}']).step_by(2).collect::<String>() + ";";
    let is_other = |c: char| !c.is_ascii_alphanumeric() && !"_:".contains(c);
    let is_metric = |word: &&str| {
        let is_name = word.starts_with(|c: char| c.is_ascii_alphabetic());
        let is_metric = word.contains(['_', ':']) || *word == "up";
        is_name && is_metric && !GROUPING.contains(word)
    };
    let (mut found, mut before) = (BTreeSet::new(), "");
    for part in text.split('(') {
        let labels = part.find(')').filter(|_| GROUPING.contains(&before));
        let part = part[labels.unwrap_or_default()..].trim_end();
        before = part.rsplit(is_other).next().unwrap_or_default();
        let words = part[..part.len() - before.len()].split(is_other);
        found.extend(words.filter(is_metric).map(str::to_owned));
    }
    found
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
                "sum by (node, le) (rate(pathproof_a_bucket{x=\"pathproof_b\"}[5m]))",
                vec!["pathproof_a_bucket"],
            ),
            (
                "(process_a{b=~\"c|d\"} > 1.5e3) * on (node) group_left (state) pathproof_d or vector(0)",
                vec!["pathproof_d", "process_a"],
            ),
            ("max_over_time(a_b:c[1h:30s] @ end())", vec!["a_b:c"]),
            ("sum(a_b) by (c_d) / e_f", vec!["a_b", "e_f"]),
            (
                "count_values(\"state\", max without(x_y) (a_b))",
                vec!["a_b"],
            ),
            ("time() - vector(1)", vec![]),
        ] {
            assert_eq!(named(expression), expected, "{expression}");
        }
    }

    #[test]
    fn the_reference_is_read() {
        for name in [
            "pathproof_state",
            "process_cpu_seconds_total",
            "pathproof_rotation_lag_seconds_bucket",
        ] {
            assert!(is_documented(name), "{name}");
        }
        assert!(!is_documented("pathproof_stat"));
        assert!(!is_documented("pathproof_rotation_lag_seconds"));
    }
}
