//! The table of metrics: name, kind, labels and meaning of each, and the source of its values.

use Source::{Always, Library, Rotator, Turn, Value};
use pathproof_facts::switches::Enforcement;
use pathproof_report::Report;
use prometheus_client::encoding::EncodeMetric;
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::counters::Counted;
use super::readings::{self as read, unix};
use super::samples::Samples;
use super::{Current, Rotating, rotator};

pub(super) struct Definition {
    /// Name without unit and without `_total`.
    pub(super) name: &'static str,
    pub(super) kind: MetricType,
    pub(super) unit: Option<&'static Unit>,
    pub(super) labels: &'static [&'static str],
    /// One sentence without its period.
    pub(super) help: &'static str,
    pub(super) source: Source,
}

/// Where the samples of a metric come from.
#[derive(Clone, Copy)]
pub(super) enum Source {
    /// One value without labels, of the last report; `None` while it is unknown.
    Value(fn(&Report) -> Option<f64>),
    /// The last report: absent before the first one.
    Turn(fn(&Report, &mut Samples<'_>)),
    /// Counted connections, or the process.
    Always(fn(&Current, &mut Samples<'_>)),
    /// State of a rotator: absent in an agent.
    Rotator(fn(&Rotating, &mut Samples<'_>)),
    /// A metric of the library, which counts events as they occur: absent while it is empty.
    Library(fn(&Counted) -> &dyn EncodeMetric),
}

macro_rules! definitions {
    ($($(#[doc = $group:literal])? $kind:ident $name:literal $(in $unit:ident)?
        [$($label:literal),*] = $source:expr, $help:literal;)*) => {
        /// All definitions, in the order of the reference, each with the heading that it starts.
        pub(super) const ALL: &[(Option<&str>, Definition)] = &[$((
            definitions!(@group $($group)?),
            Definition {
                name: $name,
                kind: MetricType::$kind,
                unit: definitions!(@unit $($unit)?),
                labels: &[$($label),*],
                help: $help,
                source: $source,
            },
        )),*];
    };
    (@unit) => { None };
    (@unit $unit:ident) => { Some(&Unit::$unit) };
    (@group) => { None };
    (@group $group:literal) => { Some($group) };
}

definitions! {
    /// Verdict and answers
    Gauge "pathproof_state" ["family", "state"] = Turn(read::states),
        "1 for the current state of this IP family, 0 for the other states; absent if the family has no frontends";
    Gauge "pathproof_cause" ["family", "state", "cause"] = Turn(read::causes),
        "1 for the active cause of this family's state: the kind of failure, or why the state is unknown; absent without a cause. `pathproof why` explains it";
    Gauge "pathproof_finding" ["family", "rule"] = Turn(read::findings),
        "1 while this rule of the judge finds something in this IP family; every finding is shown, and none changes the answer of another. /verdict has the evidence of each; absent while the rule finds nothing";
    Gauge "pathproof_state_since_timestamp" in Seconds []
        = Value(|report| Some(unix(report, report.verdict.since))),
        "Start of the node's current state, as Unix time";
    Gauge "pathproof_verdict_timestamp" in Seconds []
        = Value(|report| Some(unix(report, report.verdict.at))),
        "Time of the last verdict, as Unix time; it stops advancing if the agent hangs";
    Gauge "pathproof_answer_ok" ["check"]
        = Turn(|report, to| read::checks(report, to, |answer| answer.status == 200)),
        "1 if this health check answers 200, 0 if it answers 503";
    Gauge "pathproof_would_fail" ["check"]
        = Turn(|report, to| read::checks(report, to, |answer| answer.would_fail)),
        "1 if this health check would answer 503 when enforcing";
    Gauge "pathproof_enforcing" []
        = Value(|report| Some(f64::from(report.agent.enforcement == Enforcement::Enforce))),
        "1 if a broken datapath is answered 503, 0 in audit mode (set by flag, annotation or label)";
    Gauge "pathproof_braked" ["reason"] = Turn(read::brake),
        "1 while the fleet brake holds back a 503: too many nodes fail (fleet), or of a zone or pool (domain), too many are marked as being removed (leaving), the next count is pending (waiting), the rotator no longer counts (uncounted), or nodes without a count answer in turns (turn)";
    Gauge "pathproof_node_eligible" [] = Value(read::eligibility),
        "1 if the node is not being removed, 0 if it is; absent until the Node object was received";
    Gauge "pathproof_last_proof_timestamp" in Seconds ["family", "path"] = Turn(read::last_proofs),
        "Time of the last proven new connection, as Unix time; absent if there was none";
    Gauge "pathproof_troubled_services" ["confirmed"] = Turn(read::services_in_trouble),
        "Service ports with failing connections; confirmed=\"false\" if there are too few failures to count";

    /// Connections
    Counter "pathproof_connections" ["family", "path", "outcome"]
        = Always(|current, to| current.connections.write(to)),
        "Observed new connections to Services, by outcome: all of them for a Service with fewer than 240 a second, a sample of 120 to 490 a second for a busier one. A failed connection counts as exactly one of leaked, refused, misrouted, stale, lost. unheard counts connections whose client repeated its SYN after the answer had left the node. Paths without traffic have no series, and intermediate steps of a connection are not counted";
    Counter "pathproof_service_connections"
        ["service_namespace", "service_name", "service_port", "family", "path", "outcome"]
        = Always(|current, to| current.services().write(to)),
        "Observed new connections by Service port and outcome, for the Services that --service-metrics selects: by default those with failures";
    Counter "pathproof_udp_datagrams" ["family", "outcome"]
        = Always(|current, to| current.datagrams.write_datagrams(to)),
        "Observed datagrams to UDP Services, by outcome: at most one of a flow at a time, and a limited rate; they do not change the verdict";
    Counter "pathproof_service_udp_datagrams"
        ["service_namespace", "service_name", "service_port", "family", "path", "outcome"]
        = Always(|current, to| current.udp_services().write(to)),
        "Observed datagrams by UDP Service port, path and outcome, for the Services that --service-metrics selects: by default those with failures";
    Gauge "pathproof_service_metrics_omitted" [] = Always(read::services_omitted),
        "Service ports with failures that have no series, because the limit on series is reached; absent unless --service-metrics=trouble";
    Counter "pathproof_external_connections" ["family"] = Turn(read::external_connections),
        "New connections to Services from outside the node that /drainz counts: without the sentinel's probes and without sources in --drain-ignore-cidr";

    /// Sentinel
    Counter "pathproof_probes" ["family", "path", "transport", "outcome"]
        = Library(|counted| &counted.probes),
        "Sentinel probes by outcome: passed, or the cause of the failure";
    Counter "pathproof_void_probes" ["family"] = Library(|counted| &counted.void_probes),
        "Inconclusive sentinel probes, such as those during a change of the sentinel's endpoint";
    Gauge "pathproof_probe_armed" ["family", "path", "transport"] = Turn(read::armed_probes),
        "1 once failures of this path count: after a probe passed since boot or, with \
         --datapath=kube-proxy or cilium, when probes fail with an unambiguous cause, two minutes \
         after boot or after a later change of the sentinel or the proxy";
    Gauge "pathproof_probe_consecutive_failures" ["family", "path", "transport"]
        = Turn(read::failing_probes),
        "Consecutive failed probes of this path; absent if the last probe passed";

    /// Freshness
    Gauge "pathproof_programming_lag" in Seconds ["family", "path"] = Turn(read::programming_lags),
        "Lag of this path's rules behind the API objects that this node received: measured at the last change of the sentinel's endpoint, or the time since a change that the rules have not followed, whichever is longer; absent while unknown";
    Histogram "pathproof_rotation_lag" in Seconds []
        = Library(|counted| &counted.rotations),
        "Time from the receipt of a change of the sentinel's endpoint to the first TCP probe of each path that reached the new endpoint";

    /// Observer
    Gauge "pathproof_observer_devices_wanted" []
        = Value(|report| Some(f64::from(report.verdict.coverage.wanted))),
        "Interfaces that the configuration selects for observation";
    Gauge "pathproof_observer_devices_attached" []
        = Value(|report| Some(f64::from(report.verdict.coverage.attached))),
        "Interfaces that are observed in both directions";
    Counter "pathproof_observer_reattached" [] = Value(|report| Some(report.reattached as f64)),
        "Hooks that the agent attached again after another program detached them or moved before them";
    Gauge "pathproof_coverage_loss" ["loss"] = Turn(read::coverage_losses),
        "1 for each kind of traffic that is not fully observed or judged; absent if there is none";
    Counter "pathproof_observer_faults" ["fault"] = Turn(read::faults),
        "Faults of the eBPF programs since they were loaded; absent for faults that did not occur";

    /// Connection tracking
    Gauge "pathproof_conntrack_entries" []
        = Value(|report| report.verdict.conntrack.table.map(|table| table.entries as f64)),
        "Entries of the kernel's conntrack table, which all pods of the node share; absent if the kernel does not report them";
    Gauge "pathproof_conntrack_limit" []
        = Value(|report| report.verdict.conntrack.table.map(|table| table.limit as f64)),
        "Maximum number of conntrack entries (net.netfilter.nf_conntrack_max)";
    Counter "pathproof_conntrack_full_drops" [] = Value(read::conntrack_full_drops),
        "Packets of new connections that the kernel dropped since the agent started because the conntrack table was full; drops between two readings may be missed";

    /// Cluster view and expectations
    Gauge "pathproof_view_synced" [] = Value(|report| Some(f64::from(report.cluster.synced))),
        "1 once the agent has received all objects of the cluster view";
    Gauge "pathproof_view_problems" [] = Value(|report| Some(report.cluster.problems.len() as f64)),
        "Current problems with the API server's objects or the manifests folder, such as files that cannot be read";
    Gauge "pathproof_expected_services" []
        = Value(|report| Some(report.expectations.services as f64)),
        "Services that this node must route";
    Gauge "pathproof_contested_frontends" ["owner"] = Turn(read::frontend_conflicts),
        "Frontends that are not judged because two Services use the same address (service), or because a Service uses an address that the sentinel's probes dial (sentinel) or one of the agent's own ports (node)";
    Gauge "pathproof_expected_missing" []
        = Value(|report| Some(report.expectations.missing as f64)),
        "Frontends, endpoints or source prefixes that are not observed because a BPF map is full";
    Gauge "pathproof_unjudged_services" ["quota"] = Turn(read::unjudged_services),
        "Services that are not judged because they exceed the limit for one Service (service) or their namespace's share of the BPF maps (namespace)";

    /// Listeners
    Counter "pathproof_healthz_requests" ["check", "code"]
        = Library(|counted| &counted.answers),
        "Requests answered on the healthz port; check=\"service\" counts those on health check node ports of Services, \"other\" unknown paths, and some malformed requests";
    Counter "kubeproxy_proxy_healthz" ["code"] = Library(|counted| &counted.as_kube_proxy[0]),
        "Requests answered on /healthz, under kube-proxy's metric name; only if the agent runs in place of kube-proxy's binary (profile rke1)";
    Counter "kubeproxy_proxy_livez" ["code"] = Library(|counted| &counted.as_kube_proxy[1]),
        "Requests answered on /livez, under kube-proxy's metric name; only if the agent runs in place of kube-proxy's binary (profile rke1)";
    Gauge "pathproof_http_open_connections" ["listener"] = Library(|counted| &counted.open),
        "Open connections to this listener";
    Counter "pathproof_http_connections" ["listener", "event"]
        = Library(|counted| &counted.turned),
        "Connections to this listener by event: accepted, denied by the allow-list, evicted to make room for a new one, timed_out; absent for events that did not occur";
    Gauge "pathproof_bypassing_connections" []
        = Value(|report| report.port.kept.open.map(|open| open as f64)),
        "Connections of clients outside from before the agent answered, which another process still answers (--end-kept-connections); absent while unknown";

    /// Publishing
    Counter "pathproof_publish_writes" ["kind", "result"] = Library(|counted| &counted.writes),
        "Writes to the API server by kind (condition, event) and result; absent for kinds that are not published and for failures that did not occur";

    /// Rotator
    Gauge "pathproof_rotator_leader" []
        = Rotator(|rotating, to| to.value(Some(f64::from(rotating.leads)))),
        "1 if this rotator leads; while it is 0, the next four are absent";
    Gauge "pathproof_rotator_count_timestamp" in Seconds []
        = Rotator(|rotating, to| {
            to.value(rotating.counted.as_ref().map(|(at, _)| at.0 as f64 / 1e9));
        }),
        "Time of the last complete count of nodes, as Unix time";
    Gauge "pathproof_rotator_nodes" []
        = Rotator(|rotating, to| to.value(rotating.of_count(|report| report.nodes))),
        "Nodes whose agents publish the condition";
    Gauge "pathproof_rotator_failing_nodes" []
        = Rotator(|rotating, to| to.value(rotating.of_count(|report| report.count().unsound))),
        "Failing nodes among them";
    Gauge "pathproof_rotator_domain_failing_nodes" ["label", "value"]
        = Rotator(rotator::failing_by_domain),
        "Failing nodes of the zones and pools that the count lists";
    Counter "pathproof_rotator_writes" ["kind", "result"] = Rotator(rotator::writes),
        "Writes to the API server by kind (lease, slice, count, label) and result";

    /// Agent
    Gauge "pathproof_build_info" ["version", "revision", "abi"] = Turn(read::build),
        "Always 1; the labels are the agent's version, the commit that it was built from, and the version of its kernel data layouts";
    Gauge "process_start_time" in Seconds []
        = Value(|report| Some(report.agent.started.as_nanosecond() as f64 / 1e9)),
        "Start time of the agent, as Unix time";
    Counter "process_cpu" in Seconds [] = Always(|_, to| to.value(read::cpu_seconds())),
        "User and system CPU time of the agent";
    Gauge "process_resident_memory" in Bytes [] = Always(|_, to| to.value(read::resident_bytes())),
        "Resident memory of the agent, without its BPF maps";
}
