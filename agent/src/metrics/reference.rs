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
| `outcome` | 12 | Outcomes of connections; of probes passed and the causes of failures |
| `service_namespace` | 1251 | Namespace of a Service; empty for service_name="other" |
| `service_name` | 1251 | Name of a Service, or "other" |
| `service_port` | 1251 | Name of a Service's port; empty if it has none |
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
| `check` | 4 | healthz, livez, service (health check node ports), other |
| `quota` | 2 | service, namespace |
| `reason` | 3 | fleet, waiting, uncounted |
| `code` | 3 | 200, 503, 404 |
| `listener` | 3 | healthz, admin, service |
| `event` | 4 | What becomes of a connection to a listener |
| `kind` | 2 | condition, event |
| `result` | 9 | What becomes of a write |
| `version` | 1 | The agent's |
| `abi` | 1 | The kernel layouts' |

- No label is one that Prometheus Operator sets on a target (`namespace`, `service`, `pod`, `container`, `endpoint`, `node`): no scrape needs `honorLabels`.

## Series of an agent

| node, both families | series at most |
|---|---|
| healthy, `--service-metrics=trouble` or `off`, any number of Services | 300 |
| healthy but for failures of single Services, `trouble`, any number of Services | 500 |
| `--service-metrics=all` | 300, and about 9 for each Service port, family and path with traffic |

A test holds the first two with 500 and with 10,000 Service ports.

`--service-metrics` selects the Services that have series of their own, `pathproof_service_connections_total` and `pathproof_service_udp_datagrams_total`:

- `trouble`: Services that the verdict names, and Services of which a connection failed within the last 15 minutes. Those that the verdict confirms come first, then those with most failures. At most 50 ports and 150 series of TCP Services, and 10 ports and 40 series of UDP Services, are shown; `pathproof_service_metrics_omitted` counts the ports that are left out. Shown are the outcomes `arrived` and `proven`, and the others that occurred, without the steps `forwarded` and `answered`.
- `all`: every Service port with traffic, the failures from zero on. 1,000 ports (once per family) are counted by themselves, and 250 more from their first failure on. The rest are counted together as `service_name="other"`; no connection is left out of the sum.
- `off`: none. `/verdict` and `pathproof status` show Services all the same.

The agent counts every one of those Services whether it is shown or not, and a series shows the total since the agent started.
A series that disappears and comes back therefore continues at a higher value: `rate()` and `increase()` find no reset.
Prometheus takes no increase from the first sample of a series. So the failure with which a series appears is in its value, and in the rate of `pathproof_connections_total`, which begins at zero, but not in its own rate.
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
