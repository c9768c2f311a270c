//! The definitions: name, kind, labels and meaning of each metric. One page.

use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{self, Registry, Unit};

/// A metric.
#[derive(Debug)]
pub(super) struct Definition {
    /// Without unit and without `_total`.
    pub(super) name: &'static str,
    pub(super) kind: MetricType,
    pub(super) unit: Option<&'static Unit>,
    pub(super) labels: &'static [&'static str],
    /// A sentence without its period.
    pub(super) help: &'static str,
}

impl Definition {
    /// Name by which it is queried.
    pub(super) fn full_name(&self) -> String {
        let unit = self.unit.map(|unit| format!("_{}", unit.as_str()));
        let total = matches!(self.kind, MetricType::Counter).then_some("_total");
        let (unit, total) = (unit.unwrap_or_default(), total.unwrap_or_default());
        format!("{}{unit}{total}", self.name)
    }

    /// Registers a metric that the library holds.
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

        /// All of them, in the order of the reference, with the heading that each begins.
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
        "1 for the state that the verdict on this family is in, 0 for the others; absent for a family without frontends";
    CAUSE = Gauge "pathproof_cause" ["family", "state", "cause"]
        "1 for the active cause of this family's state: of its failures, or why nothing is known; absent while there is none. operations.md has an entry for each";
    SINCE = Gauge "pathproof_state_since_timestamp" in Seconds []
        "Since when the node is in its state, as Unix time";
    VERDICT_AT = Gauge "pathproof_verdict_timestamp" in Seconds []
        "When the verdict was last computed, as Unix time; it stands still when the agent does";
    ANSWER = Gauge "pathproof_answer_ok" ["check"]
        "1 if this health check is answered 200, 0 if it is answered 503";
    WOULD_FAIL = Gauge "pathproof_would_fail" ["check"]
        "1 if this health check would be answered 503 when enforcing";
    ENFORCING = Gauge "pathproof_enforcing" []
        "1 where a broken datapath is answered 503, 0 in audit, by flag or annotation";
    BRAKED = Gauge "pathproof_braked" ["reason"]
        "1 while a 503 is held back because of other nodes: too many of them fail (fleet), their count may be on its way (waiting), nobody counts them any more (uncounted)";
    ELIGIBLE = Gauge "pathproof_node_eligible" []
        "1 if the node is not being removed, 0 if it is; absent while the Node object was never seen";
    LAST_PROOF = Gauge "pathproof_last_proof_timestamp" in Seconds ["family", "path"]
        "When a new connection was last proven, as Unix time; absent if never";
    TROUBLED = Gauge "pathproof_troubled_services" ["confirmed"]
        "Service ports in trouble; not confirmed are single failures";

    /// Connections
    CONNECTIONS = Counter "pathproof_connections" ["family", "path", "outcome"]
        "New connections to Services that were followed, by outcome: all of a Service with fewer than 480 a second, a sample of 240 to 980 a second of a busier one. Failures (leaked, refused, misrouted, stale, lost) exclude one another. Paths without traffic are absent, and so are the steps between arrived and the outcome";
    SERVICE_CONNECTIONS = Counter "pathproof_service_connections"
        ["service_namespace", "service_name", "service_port", "family", "path", "outcome"]
        "The same by Service port, of the Services that --service-metrics selects: by default those in trouble";
    HANDSHAKE = Histogram "pathproof_service_handshake" in Seconds
        ["service_namespace", "service_name", "service_port", "family"]
        "Time from the arrival of a connection's first SYN at this node to the SYN-ACK of its endpoint, by Service port: of the Services that --service-metrics selects, at most 6 while only those in trouble are shown";
    DATAGRAMS = Counter "pathproof_udp_datagrams" ["family", "outcome"]
        "Datagrams for UDP Services that were followed, by outcome: one of a flow at a time, and so many in time; judged apart, they make no verdict";
    SERVICE_DATAGRAMS = Counter "pathproof_service_udp_datagrams"
        ["service_namespace", "service_name", "service_port", "family", "path", "outcome"]
        "The same by Service port and path, of the Services that --service-metrics selects: by default those in trouble";
    SERVICES_OMITTED = Gauge "pathproof_service_metrics_omitted" []
        "Service ports in trouble without series of their own, because others are in more trouble; absent unless --service-metrics=trouble";
    DNS_ANSWER = Histogram "pathproof_dns_answer" in Seconds []
        "Time from the arrival of a followed datagram for a DNS Service (port 53, or a port named dns) to its first answer";
    FORWARDING_DELAY = Histogram "pathproof_forwarding_delay" in Seconds []
        "Time from the arrival of a connection's first SYN to its departure for an endpoint";
    EXTERNAL = Counter "pathproof_external_connections" ["family"]
        "New connections to Services from outside the node, as /drainz counts them: without the sentinel's and those of --drain-ignore-cidr";

    /// Sentinel
    PROBES = Counter "pathproof_probes" ["family", "path", "transport", "outcome"]
        "Probes of the sentinel by outcome: passed, or a cause of failure";
    VOID_PROBES = Counter "pathproof_void_probes" ["family"]
        "Probes of the sentinel that say nothing of their path, such as those during a move of its endpoint";
    PROBE_DURATION = Histogram "pathproof_probe_duration" in Seconds []
        "Time from sending a TCP probe's SYN to its answer at the prober; /verdict shows each stage";
    PROBE_ARMED = Gauge "pathproof_probe_armed" ["family", "path", "transport"]
        "1 once a probe of this path came through on this node in this boot: from then on its failures count";
    PROBE_FAILURES = Gauge "pathproof_probe_consecutive_failures" ["family", "path", "transport"]
        "Probes of this path that failed in a row up to now; absent while the last one passed";

    /// Freshness
    PROGRAMMING_LAG = Gauge "pathproof_programming_lag" in Seconds ["family", "path"]
        "How far the rules of this path lag behind what this node received: as measured when the sentinel's endpoint last moved, or for how long they have not followed, whichever is longer; absent while nothing is known";
    ROTATION_LAG = Histogram "pathproof_rotation_lag" in Seconds []
        "Time from the receipt of each move of the sentinel's endpoint to the first TCP probe of each path that followed it";
    LEFT_ENDPOINT = Histogram "pathproof_left_endpoint_age" in Seconds []
        "How long ago an endpoint had left its slice when a new connection was still sent to it; from single failures that the kernel reported, whose rate is limited";
    PROGRAMMING = Histogram "pathproof_network_programming" in Seconds ["change", "since"]
        "Time until connections followed a change of a Service's endpoints: to the first new connection to an endpoint that was added, to the last one to an endpoint that was removed. since=\"receipt\" counts from the change's receipt on this node, since=\"trigger\" from the time that its EndpointSlice names, such as a pod's readiness. TCP Services with connections often enough to show it alone";
    UNMEASURED = Counter "pathproof_network_programming_unmeasured" ["change"]
        "Changes of endpoints without a measurement: too few connections within a minute, replaced by the next change, or more than 1,024 at a time";

    /// Observer
    DEVICES_WANTED = Gauge "pathproof_observer_devices_wanted" []
        "Interfaces that should be watched";
    DEVICES_ATTACHED = Gauge "pathproof_observer_devices_attached" []
        "Interfaces that are watched in both directions";
    REATTACHED = Counter "pathproof_observer_reattached" []
        "Hooks that were found detached, or not first, and put back";
    COVERAGE_LOSS = Gauge "pathproof_coverage_loss" ["loss"]
        "1 for each part of the traffic that is not seen or not judged in full; absent if all is";
    UNJUDGED = Counter "pathproof_observer_unjudged" ["failure"]
        "Failed connections that were not judged while something kept the observer from seeing or knowing all of it (pathproof_coverage_loss)";
    PEERS = Gauge "pathproof_peers" ["state"]
        "Other nodes that answered connections to Services since the agent started, by whether they still do";
    DATAPATH = Gauge "pathproof_datapath_info"
        ["cilium", "replacement", "socket_lb", "routing", "xdp", "netkit", "sentinel_managed"]
        "Always 1; the labels say what the datapath was recognised as (docs/cilium.md), none where that does not apply";
    PATH = Gauge "pathproof_path_info" ["family", "path", "seen"]
        "Always 1; how much of this path's real traffic crosses the observer's hooks: full, partial or hidden";
    FAULTS = Counter "pathproof_observer_faults" ["fault"]
        "What the programs in the kernel could not do, since they were loaded; absent for what did not occur";

    /// Connection tracking
    CONNTRACK_ENTRIES = Gauge "pathproof_conntrack_entries" []
        "Entries of the kernel's connection table, which all pods of the node share; absent where the kernel does not show them";
    CONNTRACK_LIMIT = Gauge "pathproof_conntrack_limit" []
        "Maximum number of entries (net.netfilter.nf_conntrack_max)";
    CONNTRACK_FULL_DROPS = Counter "pathproof_conntrack_full_drops" []
        "Packets of new connections that the kernel dropped because the table was full, since the agent started, as far as it read the counts at that moment";
    CONNTRACK_EVENTS = Counter "pathproof_conntrack_events" ["event"]
        "The kernel's own counts since boot: drop (for any reason), insert_failed (rises on sound nodes too, by races of DNS clients), early_drop (an unanswered entry gave way to a new one)";

    /// Cluster view and expectations
    VIEW_SYNCED = Gauge "pathproof_view_synced" []
        "1 once the cluster view was complete";
    VIEW_PROBLEMS = Gauge "pathproof_view_problems" []
        "Things wrong with the source of the cluster view now, such as files that cannot be read";
    EXPECTED_SERVICES = Gauge "pathproof_expected_services" []
        "Services that this node must route";
    CONTESTED = Gauge "pathproof_contested_frontends" ["owner"]
        "Frontends that more than one claims, which are not judged: of Services (service), dialled by the sentinel's probes (sentinel), or the agent's own ports (node)";
    EXPECTED_MISSING = Gauge "pathproof_expected_missing" []
        "Expected entries that found no place in a map of the kernel and are not watched";
    EXPECTED_UNJUDGED = Gauge "pathproof_unjudged_services" ["quota"]
        "Services that are not judged because they need more than they may have: beyond the limit of one Service (service), or their namespace's share of the maps (namespace)";

    /// Listeners
    REQUESTS = Counter "pathproof_healthz_requests" ["check", "code"]
        "Requests answered on the health port; check=\"service\" are those at health check node ports of Services, \"other\" unknown paths";
    PROXY_HEALTHZ = Counter "kubeproxy_proxy_healthz" ["code"]
        "In kube-proxy's place only, under its name: requests answered on /healthz";
    PROXY_LIVEZ = Counter "kubeproxy_proxy_livez" ["code"]
        "In kube-proxy's place only, under its name: requests answered on /livez";
    OPEN = Gauge "pathproof_http_open_connections" ["listener"]
        "Open connections";
    TURNED = Counter "pathproof_http_connections" ["listener", "event"]
        "Connections accepted; denied by the allow-list; evicted to make room for a newcomer; timed_out. Absent for what did not occur";

    /// Publishing
    WRITES = Counter "pathproof_publish_writes" ["kind", "result"]
        "Writes to the API server by kind (condition, event) and what became of them; absent for what is not published, and for failures that did not occur";

    /// Agent
    BUILD = Gauge "pathproof_build_info" ["version", "abi"]
        "Always 1; the labels say what runs";
    START = Gauge "process_start_time" in Seconds []
        "When the agent started, as Unix time";
    CPU = Counter "process_cpu" in Seconds []
        "User and system CPU time of the agent";
    MEMORY = Gauge "process_resident_memory" in Bytes []
        "Resident memory of the agent, without the maps in the kernel";
}
