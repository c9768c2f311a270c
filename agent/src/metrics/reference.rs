//! docs/metrics.md, written from the definitions.

use std::fmt::Write as _;

use super::definitions::{ALL, Kind};
use super::labels::LABELS;

const HEAD: &str = "\
<!-- Written by `cargo xtask gen-docs` from agent/src/metrics/definitions.rs. Do not edit. -->
# Metrics

`/metrics` on the admin port, in OpenMetrics text. Paths are where a connection comes from: `pod`
(of this node), `host` (this node itself) or `external` (anything else). Families are `IPv4` and
`IPv6`. States and outcomes are explained in behaviour.md.
";

const CONVENTIONS: &str = "
## Conventions

- Base units: seconds and bytes, as floating point numbers. A name ends in its unit (`_seconds`, `_bytes`), a point in time in `_timestamp_seconds` (Unix time), a counter in `_total` behind that. What has no unit is a count, or 0 and 1.
- A counter begins at zero when the agent does; `rate()` knows.
- A gauge whose value is not known is absent, not 0.
- No label takes its values from packets, addresses, pods or error texts. Each has a bound, for one agent:

| label | at most | values |
|---|---|---|
";

const SERVICES: &str = "
Only `pathproof_service_connections_total` grows with the cluster: a Service port, family and path with traffic has 7 series, and one more for each other outcome that occurred.
Beyond 1,000 Service ports (once per family), those that come later are counted together as `service=\"other\"`; no connection is left out of the sum.
A Service that is deleted takes its series along.

The label `node` is not the agent's: Prometheus adds it from where it scrapes, as the chart's PodMonitor does. [The dashboard](dashboard.md) and the alerts need it.
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
    conventions(&mut page);
    page
}

fn conventions(page: &mut String) {
    page.push_str(CONVENTIONS);
    for label in LABELS {
        let _ = writeln!(
            page,
            "| `{}` | {} | {} |",
            label.name, label.most, label.values
        );
    }
    page.push_str(SERVICES);
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
