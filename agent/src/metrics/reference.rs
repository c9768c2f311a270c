//! docs/metrics.md, generated from the definitions.

use std::fmt::Write as _;

use super::definitions::ALL;

const HEAD: &str = "\
<!-- Written by `cargo xtask gen-docs` from agent/src/metrics/definitions.rs. Do not edit. -->
# Metrics

The admin port serves these metrics at `/metrics`, as OpenMetrics text. A path is the origin of a
connection: `pod` (a pod of this node), `host` (the node itself) or `external` (anything else).
Probes have the paths `pod`, `off_cluster`, `node_port` and `host`.
[Behaviour](behaviour.md) explains states and outcomes.
";

/// Every combination of labels costs storage, so every label needs a bound. A test compares the
/// bounds with the exposed series.
const CONVENTIONS: &str = r#"
## Conventions

- Base units: seconds and bytes, as floating point numbers. A name ends in its unit (`_seconds`, `_bytes`), or in `_timestamp_seconds` for a point in time (Unix time); counters add `_total`. Metrics without a unit are counts, or 0 and 1.
- Counters begin at zero when the agent starts, unless the table says otherwise.
- A gauge is absent, not 0, while its value is unknown.
- Label values never come from packets, addresses, pods or error texts. Maximum number of values for one agent:

| label | at most | values |
|---|---|---|
| `family` | 2 | IPv4, IPv6 |
| `path` | 4 | Origin of a connection, or path of a probe |
| `transport` | 2 | tcp, udp |
| `state` | 7 | The states of behaviour.md |
| `cause` | 29 | Causes, and reasons for Unknown; one at a time for a family |
| `rule` | 38 | Rules of the judge (`finding.rule` in /verdict); a few at a time for a family |
| `outcome` | 12 | Outcomes of connections; of probes: passed, or a cause of failure |
| `service_namespace` | 1251 | Namespace of a Service; empty for service_name="other" |
| `service_name` | 1251 | Name of a Service, or "other" |
| `service_port` | 1251 | Name of a Service's port; empty if it has none |
| `confirmed` | 2 | true, false |
| `loss` | 32 | Kinds of traffic that is not fully observed or judged |
| `fault` | 15 | Faults of the eBPF programs |
| `failure` | 6 | Failures of connections |
| `cilium` | 2 | yes, no |
| `replacement` | 4 | yes, no, unknown, none |
| `socket_lb` | 4 | yes, no, unknown, none |
| `routing` | 4 | native, vxlan, geneve, none |
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
| `event` | 4 | Events of a connection to a listener |
| `kind` | 2 | condition, event |
| `result` | 9 | Results of a write |
| `version` | 1 | The agent's |
| `abi` | 1 | The kernel layouts' |

- No metric has a label that Prometheus Operator sets on targets (`namespace`, `service`, `pod`, `container`, `endpoint`, `node`): no scrape needs `honorLabels`.

## Series of an agent

| node, both families | series at most |
|---|---|
| healthy, `--service-metrics=trouble` or `off`, any number of Services | 300 |
| healthy, some Services failing, `trouble`, any number of Services | 500 |
| `--service-metrics=all` | 300, and about 9 for each Service port, family and path with traffic, and 7 for each TCP port and family that accepted connections |

A test checks the first two rows with 500 and with 10,000 Service ports.

`--service-metrics` selects the Services that get their own series of `pathproof_service_connections_total`, `pathproof_service_handshake_seconds` and `pathproof_service_udp_datagrams_total`:

- `trouble`: Services that the verdict names, and Services with a failed connection in the last 15 minutes. Confirmed ones come first, then those with most failures. The limits are 50 ports and 150 series for TCP Services, and 10 ports and 40 series for UDP Services; `pathproof_service_metrics_omitted` counts the ports beyond them. The outcomes are `arrived`, `proven`, and failures that occurred. The histogram of handshakes, 7 series, is shown for the first 6 TCP ports.
- `all`: every Service port with traffic, with failures from zero on. The first 1,000 ports (per family) have their own series, and 250 more from their first failure on. All others are summed as `service_name="other"`.
- `off`: none. `/verdict` and `pathproof status` still show Services.

A series shows the total since the agent started, even if it was absent for a time, so `rate()` and `increase()` see no reset.
Prometheus computes no increase from the first sample of a series: the first failure of a Service is missing from the rate of its own series, but not from that of `pathproof_connections_total`.
The series of a deleted Service disappear.

The agent does not set the label `node`. Prometheus must add it to the target, as the chart's PodMonitor does. [The dashboard](dashboard.md) and the alerts need it.
"#;

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
