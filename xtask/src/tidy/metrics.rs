//! Finds metrics that nothing changes: a series that is always 0 misleads on a dashboard.

use super::tree::Tree;
use super::{Violation, code};

/// Types of prometheus-client that make a field a metric.
const TYPES: [&str; 4] = ["Counter", "Gauge", "Histogram", "Family"];

/// Every metric that a metrics file declares is changed somewhere in the agent.
pub(super) fn unused(tree: &Tree, violations: &mut Vec<Violation>) {
    let rust = tree.ending(".rs");
    let agent = rust.filter(|(path, _)| path.starts_with("agent/src/"));
    let agent = agent.map(|(path, text)| (path, code::only(text)));
    let agent: Vec<(&str, String)> = agent.collect();
    let metrics = |(path, _): &&(&str, String)| path.starts_with("agent/src/metrics");
    for (path, code) in agent.iter().filter(metrics) {
        for (line, field) in fields(code) {
            if !agent.iter().any(|(_, code)| changes(code, field)) {
                let message = format!("nothing changes the metric {field}; remove it or count it");
                violations.push(Violation::new(path, line, message));
            }
        }
    }
}

/// Fields of structs whose type is a metric: lines `name: Type<...>,`.
fn fields(code: &str) -> impl Iterator<Item = (usize, &str)> {
    code.lines().enumerate().filter_map(|(number, line)| {
        let line = line.trim().strip_suffix(',')?;
        let (name, kind) = line.split_once(": ")?;
        let name = name.rsplit(' ').next()?;
        let in_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        let is_name = name.chars().all(in_name);
        let (kind, parameters) = kind
            .split_once('<')
            .map_or((kind, false), |(k, _)| (k, true));
        // The project's Family, of addresses, has no parameters.
        let is_metric = TYPES.contains(&kind) && (parameters || kind != "Family");
        (is_name && is_metric).then_some((number + 1, name))
    })
}

/// Whether code uses a field other than by cloning it, which only registers it.
fn changes(code: &str, field: &str) -> bool {
    let needle = format!(".{field}");
    code.match_indices(&needle).any(|(at, _)| {
        let rest = code[at + needle.len()..].trim_start();
        !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_')
            && rest.starts_with('.')
            && !rest.starts_with(".clone()")
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::check;
    use super::*;

    const DECLARED: &str = "//! x\npub(crate) struct Metrics {\n    /// Of them.\n    \
        pub(crate) lost: Family<Labels, Counter>,\n    name: String,\n    family: Family,\n}\n\
        fn new() { registry.register(\"lost\", \"x\", metrics.lost.clone()); }\n";

    #[test]
    fn a_metric_that_is_only_registered_is_found() {
        let found = check(unused, &[("agent/src/metrics.rs", DECLARED)]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0].starts_with("agent/src/metrics.rs:4: "),
            "{found:?}"
        );
        let comment = ("agent/src/app.rs", "// metrics.lost.inc()");
        assert_eq!(
            check(unused, &[("agent/src/metrics.rs", DECLARED), comment]).len(),
            1
        );
        let other = ("agent/src/app.rs", "metrics.lost_more.inc()");
        assert_eq!(
            check(unused, &[("agent/src/metrics.rs", DECLARED), other]).len(),
            1
        );
    }

    #[test]
    fn a_metric_that_is_counted_is_left_alone() {
        for user in [
            "metrics.lost.inc()",
            "metrics\n    .lost\n    .get_or_create(&l).inc()",
        ] {
            let files = [
                ("agent/src/metrics.rs", DECLARED),
                ("agent/src/app.rs", user),
            ];
            assert_eq!(check(unused, &files), [""; 0]);
        }
    }
}
