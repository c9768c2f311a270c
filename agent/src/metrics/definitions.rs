//! The definitions: name, kind, labels and meaning of each metric. One page.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{self, Registry, Unit};

#[derive(Debug)]
pub(super) struct Definition {
    /// Name without unit and without `_total`.
    pub(super) name: &'static str,
    pub(super) kind: MetricType,
    pub(super) unit: Option<&'static Unit>,
    pub(super) labels: &'static [&'static str],
    /// One sentence without its period.
    pub(super) help: &'static str,
}

impl Definition {
    /// Name in queries.
    pub(super) fn full_name(&self) -> String {
        let unit = self.unit.map(|unit| format!("_{}", unit.as_str()));
        let total = matches!(self.kind, MetricType::Counter).then_some("_total");
        let (unit, total) = (unit.unwrap_or_default(), total.unwrap_or_default());
        format!("{}{unit}{total}", self.name)
    }

    /// Registers a metric whose values the library keeps.
    pub(super) fn register<M: registry::Metric + Clone>(&self, to: &mut Registry, metric: M) -> M {
        match self.unit {
            Some(unit) => {
                to.register_with_unit(self.name, self.help, unit.clone(), metric.clone());
            }
            None => to.register(self.name, self.help, metric.clone()),
        }
        metric
    }
}

macro_rules! definitions {
    ($($(#[doc = $group:literal])? $id:ident = $kind:ident $name:literal $(in $unit:ident)?
        [$($label:literal),*] $help:literal;)*) => {
        $(pub(super) const $id: &Definition = &Definition {
            name: $name,
            kind: MetricType::$kind,
            unit: definitions!(@unit $($unit)?),
            labels: &[$($label),*],
            help: $help,
        };)*

        /// All definitions, in the order of the reference, each with the heading that it starts.
        pub(super) const ALL: &[(Option<&str>, &Definition)] =
            &[$((definitions!(@group $($group)?), $id)),*];
    };
    (@unit) => { None };
    (@unit $unit:ident) => { Some(&Unit::$unit) };
    (@group) => { None };
    (@group $group:literal) => { Some($group) };
}

definitions! {
    /// Verdict and answers
    STATE = Gauge "pathproof_state" ["family", "state"]
        "1 for the current state of this IP family, 0 for the other states; absent if the family has no frontends";
    CAUSE = Gauge "pathproof_cause" ["family", "state", "cause"]
        "1 for the active cause of this family's state: the kind of failure, or why the state is unknown; absent without a cause. docs/operations.md explains each cause";
    FINDING = Gauge "pathproof_finding" ["family", "rule"]
        "1 while this rule of the judge finds something in this IP family; every finding is shown, and none changes the answer of another. /verdict has the evidence of each; absent while the rule finds nothing";
    SINCE = Gauge "pathproof_state_since_timestamp" in Seconds []
        "Start of the node's current state, as Unix time";
    VERDICT_AT = Gauge "pathproof_verdict_timestamp" in Seconds []
        "Time of the last verdict, as Unix time; it stops advancing if the agent hangs";
    ANSWER = Gauge "pathproof_answer_ok" ["check"]
        "1 if this health check answers 200, 0 if it answers 503";
    WOULD_FAIL = Gauge "pathproof_would_fail" ["check"]
        "1 if this health check would answer 503 when enforcing";
    ENFORCING = Gauge "pathproof_enforcing" []
        "1 if a broken datapath is answered 503, 0 in audit mode (set by flag or annotation)";
    BRAKED = Gauge "pathproof_braked" ["reason"]
        "1 while the fleet brake holds back a 503: too many nodes fail (fleet), the next count of failing nodes is pending (waiting), or the rotator no longer counts (uncounted)";
    ELIGIBLE = Gauge "pathproof_node_eligible" []
        "1 if the node is not being removed, 0 if it is; absent until the Node object was received";
    LAST_PROOF = Gauge "pathproof_last_proof_timestamp" in Seconds ["family", "path"]
        "Time of the last proven new connection, as Unix time; absent if there was none";
    TROUBLED = Gauge "pathproof_troubled_services" ["confirmed"]
        "Service ports with failing connections; confirmed=\"false\" if there are too few failures to count";

    /// Connections
    CONNECTIONS = Counter "pathproof_connections" ["family", "path", "outcome"]
        "Observed new connections to Services, by outcome: all of them for a Service with fewer than 240 a second, a sample of 120 to 490 a second for a busier one. A failed connection counts as exactly one of leaked, refused, misrouted, stale, lost. unheard counts connections whose client repeated its SYN after the answer had left the node. Paths without traffic have no series, and intermediate steps of a connection are not counted";
    SERVICE_CONNECTIONS = Counter "pathproof_service_connections"
        ["service_namespace", "service_name", "service_port", "family", "path", "outcome"]
        "Observed new connections by Service port and outcome, for the Services that --service-metrics selects: by default those with failures";
    HANDSHAKE = Histogram "pathproof_service_handshake" in Seconds
        ["service_namespace", "service_name", "service_port", "family"]
        "Time from the arrival of a connection's first SYN at this node to the SYN-ACK of its endpoint, by Service port, for the Services that --service-metrics selects: by default at most 6 with failures";
    DATAGRAMS = Counter "pathproof_udp_datagrams" ["family", "outcome"]
        "Observed datagrams to UDP Services, by outcome: at most one of a flow at a time, and a limited rate; they do not change the verdict";
    SERVICE_DATAGRAMS = Counter "pathproof_service_udp_datagrams"
        ["service_namespace", "service_name", "service_port", "family", "path", "outcome"]
        "Observed datagrams by UDP Service port, path and outcome, for the Services that --service-metrics selects: by default those with failures";
    SERVICES_OMITTED = Gauge "pathproof_service_metrics_omitted" []
        "Service ports with failures that have no series, because the limit on series is reached; absent unless --service-metrics=trouble";
    DNS_ANSWER = Histogram "pathproof_dns_answer" in Seconds []
        "Time from the arrival of an observed datagram for a DNS Service (port 53, or a port named dns) to its first answer";
    FORWARDING_DELAY = Histogram "pathproof_forwarding_delay" in Seconds []
        "Time from the arrival of a connection's first SYN to its departure for an endpoint";
    EXTERNAL = Counter "pathproof_external_connections" ["family"]
        "New connections to Services from outside the node that /drainz counts: without the sentinel's probes and without sources in --drain-ignore-cidr";

    /// Sentinel
    PROBES = Counter "pathproof_probes" ["family", "path", "transport", "outcome"]
        "Sentinel probes by outcome: passed, or the cause of the failure";
    VOID_PROBES = Counter "pathproof_void_probes" ["family"]
        "Inconclusive sentinel probes, such as those during a change of the sentinel's endpoint";
    PROBE_DURATION = Histogram "pathproof_probe_duration" in Seconds []
        "Time from sending a TCP probe's SYN to its answer at the prober; /verdict shows each stage";
    PROBE_ARMED = Gauge "pathproof_probe_armed" ["family", "path", "transport"]
        "1 once failures of this path count: after a probe passed since boot or, with \
         --datapath=kube-proxy or cilium, when probes fail with an unambiguous cause, two minutes \
         after boot or after a later change of the sentinel or the proxy";
    PROBE_FAILURES = Gauge "pathproof_probe_consecutive_failures" ["family", "path", "transport"]
        "Consecutive failed probes of this path; absent if the last probe passed";

    /// Freshness
    PROGRAMMING_LAG = Gauge "pathproof_programming_lag" in Seconds ["family", "path"]
        "Lag of this path's rules behind the API objects that this node received: measured at the last change of the sentinel's endpoint, or the time since a change that the rules have not followed, whichever is longer; absent while unknown";
    ROTATION_LAG = Histogram "pathproof_rotation_lag" in Seconds []
        "Time from the receipt of a change of the sentinel's endpoint to the first TCP probe of each path that reached the new endpoint";
    LEFT_ENDPOINT = Histogram "pathproof_left_endpoint_age" in Seconds []
        "Time since the removal of an endpoint when a new connection was still sent to it; from individual failures that the kernel reports at a limited rate";
    PROGRAMMING = Histogram "pathproof_network_programming" in Seconds ["change", "since"]
        "Time until connections followed a change of a Service's endpoints: until the first new connection to an added endpoint, or the last one to a removed endpoint. since=\"receipt\" counts from the receipt of the change on this node, since=\"trigger\" from the time in its EndpointSlice, such as a pod's readiness. Only for TCP Services with enough connections";
    UNMEASURED = Counter "pathproof_network_programming_unmeasured" ["change"]
        "Endpoint changes that could not be measured: too few connections within a minute, replaced by the next change, or more than 1,024 at a time";

    /// Observer
    DEVICES_WANTED = Gauge "pathproof_observer_devices_wanted" []
        "Interfaces that the configuration selects for observation";
    DEVICES_ATTACHED = Gauge "pathproof_observer_devices_attached" []
        "Interfaces that are observed in both directions";
    REATTACHED = Counter "pathproof_observer_reattached" []
        "Hooks that the agent attached again after another program detached them or moved before them";
    COVERAGE_LOSS = Gauge "pathproof_coverage_loss" ["loss"]
        "1 for each kind of traffic that is not fully observed or judged; absent if there is none";
    UNJUDGED = Counter "pathproof_observer_unjudged" ["failure"]
        "Failed connections that were not judged because coverage was incomplete (pathproof_coverage_loss)";
    DATAPATH = Gauge "pathproof_datapath_info"
        ["cilium", "replacement", "socket_lb", "routing", "xdp", "netkit", "sentinel_managed"]
        "Always 1; the labels describe the recognised datapath (docs/cilium.md); a label is none if it does not apply";
    PATH = Gauge "pathproof_path_info" ["family", "path", "seen"]
        "Always 1; the label seen is the share of this path's real traffic that the observer sees: full, partial or hidden";
    FAULTS = Counter "pathproof_observer_faults" ["fault"]
        "Faults of the eBPF programs since they were loaded; absent for faults that did not occur";

    /// Connection tracking
    CONNTRACK_ENTRIES = Gauge "pathproof_conntrack_entries" []
        "Entries of the kernel's conntrack table, which all pods of the node share; absent if the kernel does not report them";
    CONNTRACK_LIMIT = Gauge "pathproof_conntrack_limit" []
        "Maximum number of conntrack entries (net.netfilter.nf_conntrack_max)";
    CONNTRACK_FULL_DROPS = Counter "pathproof_conntrack_full_drops" []
        "Packets of new connections that the kernel dropped since the agent started because the conntrack table was full; drops between two readings may be missed";
    CONNTRACK_EVENTS = Counter "pathproof_conntrack_events" ["event"]
        "The kernel's conntrack counters since boot: drop (for any reason), insert_failed (also rises on sound nodes, from races of DNS clients), early_drop (an unanswered entry was evicted for a new one)";

    /// Cluster view and expectations
    VIEW_SYNCED = Gauge "pathproof_view_synced" []
        "1 once the agent has received all objects of the cluster view";
    VIEW_PROBLEMS = Gauge "pathproof_view_problems" []
        "Current problems with the API server's objects or the manifests folder, such as files that cannot be read";
    EXPECTED_SERVICES = Gauge "pathproof_expected_services" []
        "Services that this node must route";
    FRONTEND_CONFLICTS = Gauge "pathproof_contested_frontends" ["owner"]
        "Frontends that are not judged because two Services use the same address (service), or because a Service uses an address that the sentinel's probes dial (sentinel) or one of the agent's own ports (node)";
    EXPECTED_MISSING = Gauge "pathproof_expected_missing" []
        "Frontends, endpoints or source prefixes that are not observed because a BPF map is full";
    EXPECTED_UNJUDGED = Gauge "pathproof_unjudged_services" ["quota"]
        "Services that are not judged because they exceed the limit for one Service (service) or their namespace's share of the BPF maps (namespace)";

    /// Listeners
    REQUESTS = Counter "pathproof_healthz_requests" ["check", "code"]
        "Requests answered on the healthz port; check=\"service\" counts those on health check node ports of Services, \"other\" unknown paths";
    PROXY_HEALTHZ = Counter "kubeproxy_proxy_healthz" ["code"]
        "Requests answered on /healthz, under kube-proxy's metric name; only if the agent runs in place of kube-proxy's binary (profile rke1)";
    PROXY_LIVEZ = Counter "kubeproxy_proxy_livez" ["code"]
        "Requests answered on /livez, under kube-proxy's metric name; only if the agent runs in place of kube-proxy's binary (profile rke1)";
    OPEN = Gauge "pathproof_http_open_connections" ["listener"]
        "Open connections to this listener";
    TURNED = Counter "pathproof_http_connections" ["listener", "event"]
        "Connections to this listener by event: accepted, denied by the allow-list, evicted to make room for a new one, timed_out; absent for events that did not occur";

    /// Publishing
    WRITES = Counter "pathproof_publish_writes" ["kind", "result"]
        "Writes to the API server by kind (condition, event) and result; absent for kinds that are not published and for failures that did not occur";

    /// Agent
    BUILD = Gauge "pathproof_build_info" ["version", "abi"]
        "Always 1; the labels are the agent's version and the version of its kernel data layouts";
    START = Gauge "process_start_time" in Seconds []
        "Start time of the agent, as Unix time";
    CPU = Counter "process_cpu" in Seconds []
        "User and system CPU time of the agent";
    MEMORY = Gauge "process_resident_memory" in Bytes []
        "Resident memory of the agent, without its BPF maps";
}
