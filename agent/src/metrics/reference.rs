//! docs/metrics.md, written from the definitions.

use std::fmt::Write as _;

use super::definitions::{ALL, Kind};

const HEAD: &str = "\
<!-- Written by `cargo xtask gen-docs` from agent/src/metrics/definitions.rs. Do not edit. -->
# Metrics

`/metrics` on the admin port, in OpenMetrics text. Paths are where a connection comes from: `pod`
(of this node), `host` (this node itself) or `external` (anything else). Families are `IPv4` and
`IPv6`. States and outcomes are explained in behaviour.md.
";

/// The page.
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    for (group, definition) in ALL {
        if let Some(group) = group {
            let _ = write!(
                page,
                "\n## {}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n",
                group.trim()
            );
        }
        let kind = match definition.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let labels: Vec<String> = definition
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        // Writing to a String cannot fail.
        let _ = writeln!(
            page,
            "| `{}` | {kind} | {} | {} |",
            definition.full_name(),
            labels.join(", "),
            definition.help
        );
    }
    page
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_in_docs_is_current() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
        let checked_in = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            checked_in == super::reference(),
            "docs/metrics.md is not what the definitions say: run `cargo xtask gen-docs`"
        );
    }
}
