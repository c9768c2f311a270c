//! docs/metrics.md, written from the definitions.

use std::fmt::Write as _;

use super::definitions::ALL;

const HEAD: &str = "\
<!-- Written by `cargo xtask gen-docs` from agent/src/metrics/definitions.rs. Do not edit. -->
# Metrics

`/metrics` on the admin port, in OpenMetrics text. Paths are where a connection comes from: `pod`
(of this node), `host` (this node itself) or `external` (anything else). Families are `IPv4` and
`IPv6`. States and outcomes are explained in behaviour.md.
";

/// Every combination of labels costs storage: one without a bound has no place here. A test
/// compares the bounds with what is exposed.
const CONVENTIONS: &str = r#"
## Conventions

- Base units: seconds and bytes, as floating point numbers. A name ends in its unit (`_seconds`, `_bytes`), a point in time in `_timestamp_seconds` (Unix time), a counter in `_total` behind that. What has no unit is a count, or 0 and 1.
- A counter begins at zero when the agent does; `rate()` knows.
- A gauge whose value is not known is absent, not 0.
- No label takes its values from packets, addresses, pods or error texts. Each has a bound, for one agent:

| label | at most | values |
|---|---|---|
| `family` | 2 | IPv4, IPv6 |
| `path` | 4 | Where a connection comes from, or which way a probe takes |
| `transport` | 2 | tcp, udp |
| `state` | 7 | The states of behaviour.md |
| `cause` | 20 | Causes, and reasons why nothing is known; one at a time for a family |
| `outcome` | 12 | Outcomes of connections; of probes passed, void and their causes |
| `stage` | 5 | Stages of a probe |
| `namespace` | 1001 | Of a Service; empty for service="other" |
| `service` | 1001 | 1,000 Service ports (once per family) with series of their own; the rest are "other" |
| `port` | 1001 | Name of a Service's port |
| `confirmed` | 2 | true, false |
| `loss` | 32 | Kinds of traffic that is not seen or not judged in full |
| `fault` | 15 | What the programs in the kernel may fail to do |
| `failure` | 6 | Failures of connections |
| `cilium` | 2 | yes, no |
| `replacement` | 4 | yes, no, unknown, none |
| `socket_lb` | 4 | yes, no, unknown, none |
| `routing` | 5 | native, vxlan, geneve, none |
| `xdp` | 2 | yes, no |
| `netkit` | 2 | yes, no |
| `sentinel_managed` | 3 | yes, no, unknown |
| `seen` | 3 | full, partial, hidden |
| `change` | 2 | added, removed |
| `since` | 2 | receipt, trigger |
| `owner` | 3 | service, sentinel, node |
| `endpoint` | 4 | healthz, livez, service (health check node ports), other |
| `quota` | 2 | service, namespace |
| `reason` | 3 | fleet, waiting, uncounted |
| `code` | 3 | 200, 503, 404 |
| `listener` | 3 | healthz, admin, service |
| `event` | 4 | What becomes of a connection to a listener |
| `kind` | 2 | condition, event |
| `result` | 9 | What becomes of a write |
| `version` | 1 | The agent's |
| `abi` | 1 | The kernel layouts' |

Only `pathproof_service_connections_total` grows with the cluster: a Service port, family and path with traffic has 7 series, and one more for each other outcome that occurred.
Beyond 1,000 Service ports (once per family), those that come later are counted together as `service="other"`; no connection is left out of the sum.
A Service that is deleted takes its series along.

The label `node` is not the agent's: Prometheus adds it from where it scrapes, as the chart's PodMonitor does. [The dashboard](dashboard.md) and the alerts need it.
"#;

/// The page.
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    for (group, definition) in ALL {
        // Writing to a String cannot fail, here and below.
        if let Some(group) = group {
            let _ = write!(
                page,
                "\n## {}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n",
                group.trim()
            );
        }
        let labels: Vec<String> = definition
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        let _ = writeln!(
            page,
            "| `{}` | {} | {} | {} |",
            definition.full_name(),
            definition.kind.as_str(),
            labels.join(", "),
            definition.help
        );
    }
    page + CONVENTIONS
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
