//! Every number that a judgement rests on, in one place.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::owners::Declared;
use crate::time::ns;

/// Interval between readings of the kernel's evidence.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// The same while all is well and no connection came since the last sample: an idle node pays half,
/// and nothing that takes seconds to confirm comes late.
pub(crate) const IDLE_INTERVAL: Duration = Duration::from_millis(500);
/// State checkpoint intervals: while all is well, and while it is not. A kill loses no more than
/// that of a run of failures. A change is written at once.
pub(crate) const REMEMBER: Duration = Duration::from_secs(10);
pub(crate) const REMEMBER_TROUBLE: Duration = Duration::from_secs(1);
/// Interval between readings of the datapath's shape where nothing else asks for it.
pub(crate) const SHAPE_INTERVAL: Duration = Duration::from_secs(30);
/// Number of single failures that are kept for display.
pub(crate) const SIGHTINGS_KEPT: usize = 20;

/// Check interval of devices and programs while probes begin to fail.
pub(crate) const SUSPECT_INTERVAL: Duration = Duration::from_millis(100);
/// The same while they go on failing, or say nothing for reasons that lie there.
pub(crate) const FAILING_INTERVAL: Duration = Duration::from_secs(2);
/// Failures in a row that are judged at once; the last of them may confirm.
pub(crate) const SOON: u32 = 5;
/// Maximum age of the kernel's own state: an older one is ignored.
pub(crate) const KERNEL_AGE: Duration = Duration::from_secs(15);
/// Time for which one uncached reading serves: paths come and go, and the API server is asked by
/// every node at once.
pub(crate) const READING_SERVES: Duration = Duration::from_secs(10);
/// The pause between readings that differ doubles this many times, to 160 s.
pub(crate) const READING_DOUBLES: u32 = 4;

/// Grace period after a silent source is back, in which misrouted connections are not judged: its
/// resources come back one by one, and kube-proxy may be later than the agent. After some failures it
/// pauses for up to a minute (the reflectors of client-go: 30 s, jittered up to twice that), and then has to
/// list and to write its rules.
pub(crate) const CATCH_UP: Duration = Duration::from_secs(90);

/// Interval between readings of the table of connections: while all is well, and while something is
/// lost.
pub(crate) const TABLE_INTERVAL: Duration = Duration::from_secs(10);
pub(crate) const TABLE_LOSING_INTERVAL: Duration = Duration::from_millis(500);
/// Time for which the table counts as full after the last connection that it dropped. For the same time
/// after a probe lost to it, a passing probe is no proof.
pub(crate) const TABLE_FULL: Duration = Duration::from_millis(2_500);

/// Interval between lookups of the ways of clients whose connections are lost, and number of these clients.
pub(crate) const LOOKUP_INTERVAL: Duration = Duration::from_millis(500);
pub(crate) const LOST_CLIENTS: usize = 4;
/// Interval between lookups of the ways of a client that is served, until they are open.
pub(crate) const FIRST_LOOKUPS: Duration = Duration::from_secs(5);
/// A way must be blocked for this long.
pub(crate) const LOOKED_UP: Duration = Duration::from_secs(1);
/// A neighbour must be silent for this long: Linux sends three requests, a second apart, before it gives up.
pub(crate) const NEIGHBOUR_ASKED: Duration = Duration::from_millis(3_200);

/// The kernel's reasons for drops are read until nothing was lost for this long.
pub(crate) const DROPS_QUIET: Duration = Duration::from_secs(10);
/// Of a loss that goes on they are read for this long, and again after a rest.
pub(crate) const DROPS_WATCHED: Duration = Duration::from_secs(30);
pub(crate) const DROPS_REST: Duration = Duration::from_secs(90);
/// A reason is shown for this long after the last packet that was dropped for it.
pub(crate) const DROPS_KEPT: Duration = Duration::from_secs(600);

/// A sound datapath must have been sound for this long before 200.
pub(crate) const CLEAN: Duration = Duration::from_secs(1);
/// If the answer was undecided for longer than this right before a 503, load balancers used the node
/// although failures were unconfirmed. Longer than a confirmation takes.
pub(crate) const DOUBTFUL: Duration = Duration::from_secs(10);
/// Maximum time for which an undecided state holds such a 503.
pub(crate) const DOUBTED: Duration = Duration::from_secs(30);
/// Broken again this soon after 200 is a flap.
pub(crate) const FLAP_WINDOW: Duration = Duration::from_secs(30);
/// The longest dwell.
pub(crate) const DWELL_MAX: Duration = Duration::from_secs(300);
/// Longer than a rollout waits at each node (minReadySeconds of the manifests, 30 s).
pub(crate) const WATCHED: Duration = Duration::from_secs(60);
/// A verdict that a former agent gave longer ago is not compared with: a pod is replaced, its image
/// fetched, within this time.
pub(crate) const RECENT: Duration = Duration::from_secs(600);

/// An endpoint that left this long ago is not dialled by its own address any more, but for stale rules and
/// clients that keep addresses. Linux repeats a SYN after up to 32 s, and one that was first sent before
/// the address was watched passes for a new connection.
pub(crate) const DIALLED_AFTER: Duration = Duration::from_secs(40);
/// A Service without a failure for this long is forgotten.
pub(crate) const KEPT: Duration = Duration::from_secs(30);
/// Time for which failures of real connections count that nothing refuted and nobody tried again: load
/// balancers that received 503 send no clients.
pub(crate) const HELD: Duration = Duration::from_secs(300);
/// Clients that succeeded so shortly before a fault were dialling when it began.
pub(crate) const ACTIVE: Duration = Duration::from_secs(10);
/// Lanes that worked before the agent was away for longer than this have to work again.
pub(crate) const FORGOTTEN: Duration = Duration::from_secs(3_600);
/// A Service whose first endpoints came within this time accuses nobody: a proxy may be late with them.
pub(crate) const FIRST_ENDPOINTS: Duration = Duration::from_secs(15);

/// Failures of a Service do not count for this long after another one began or ceased to claim a
/// frontend of it: connections that were under way, and the proxy's rules, are older than the view.
pub(crate) const DISPUTED: Duration = Duration::from_secs(10);

/// The numbers of the verdict's rules; times are nanoseconds in JSON. The defaults are what the
/// promises are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// A proof older than this proves nothing; nor do failures accuse.
    #[serde(with = "ns")]
    pub proof_age: Duration,
    /// Everything must have failed for this long.
    #[serde(with = "ns")]
    pub broken_after: Duration,
    /// And the last failure must not be older than this when that time is up.
    #[serde(with = "ns")]
    pub broken_fresh: Duration,
    /// At least so many Services must fail.
    pub broken_services: usize,
    /// Of at least so many namespaces, where the node has Services of as many in use.
    pub broken_namespaces: usize,
    /// With at least so many current endpoints together.
    pub broken_endpoints: u32,
    /// Seen from at least so many pods of this node.
    pub broken_sources: usize,
    /// Failures beside proofs are suspect once none got through for this long.
    #[serde(with = "ns")]
    pub suspect_after: Duration,
    /// A cause that only part of the traffic feels accuses once that part has failed for this long.
    #[serde(with = "ns")]
    pub partial_after: Duration,
    /// An endpoint that left may still be dialled for this long without a word.
    #[serde(with = "ns")]
    pub left_grace: Duration,
    /// New connections to an endpoint that left this long ago (or three times the node's usual
    /// lag, if that is longer) are stale.
    #[serde(with = "ns")]
    pub stale_after: Duration,
    /// And the last of them must have been seen within this time.
    #[serde(with = "ns")]
    pub stale_fresh: Duration,
    /// Once connections of a Service get through, it is stale no more after so long without another.
    #[serde(with = "ns")]
    pub stale_quiet: Duration,
    /// Minimum number of stale connections, or one less if a generation of the sentinel is late too.
    pub stale_connections: usize,
    /// A change should be on the wire this long after this node received it, or after three times the node's usual
    /// lag if that is longer.
    #[serde(with = "ns")]
    pub unmet_after: Duration,
    /// A Service is broken after so many failures.
    pub service_failures: u32,
    /// Refused and lost connections of a Service must stretch over this long.
    #[serde(with = "ns")]
    pub service_spread: Duration,
    /// Once connections get through again, a Service is repaired after so long without a failure.
    #[serde(with = "ns")]
    pub service_quiet: Duration,
    /// Answers must be unheard by so many clients.
    pub unheard_sources: usize,
    /// A gap between two looks at the kernel longer than this (a stopped or starved agent, a
    /// suspended machine) ends every unconfirmed run of failures.
    #[serde(with = "ns")]
    pub sample_gap: Duration,
    /// So many probes in a row must fail.
    pub probe_failures: u32,
    /// A probe sent this long after it was due says nothing if it fails.
    #[serde(with = "ns")]
    pub probe_late: Duration,
    /// Nor does one that was given up this long after it was sent, which is more than its timeout.
    #[serde(with = "ns")]
    pub probe_overdue: Duration,
    /// Nothing heard of any probe for longer than this (a stopped or starved agent) ends every
    /// unconfirmed run of failed probes. Several times the interval of probes.
    #[serde(with = "ns")]
    pub probe_gap: Duration,
    /// Failed probes accuse only when the sentinel has not changed for this long, and its devices
    /// were not found damaged.
    #[serde(with = "ns")]
    pub sentinel_settled: Duration,
    /// A real connection that was let through before a fault may be answered this long after the
    /// first probe failed, and contradicts nothing.
    #[serde(with = "ns")]
    pub proof_overlap: Duration,
    /// A generation of the sentinel that was received this long ago and is not on the wire is stale.
    #[serde(with = "ns")]
    pub lag_after: Duration,
    /// With a sentinel, nothing proven for this long after boot is still a start.
    #[serde(with = "ns")]
    pub boot_deadline: Duration,
    /// A lane counts from its first probe on, as if it had worked before. Of a lane that really
    /// never worked, a failure may be how the cluster is made.
    pub assume_armed: bool,
    /// What the operator says translates here: after the boot deadline a lane counts from its first clear
    /// failure on, unless something else is there.
    #[serde(default)]
    pub declared: Option<Declared>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            proof_age: Duration::from_secs(30),
            broken_after: Duration::from_secs(3),
            broken_fresh: Duration::from_secs(2),
            broken_services: 2,
            broken_namespaces: 2,
            broken_endpoints: 3,
            broken_sources: 2,
            suspect_after: Duration::from_secs(1),
            partial_after: Duration::from_secs(9),
            left_grace: Duration::from_secs(2),
            stale_after: Duration::from_secs(15),
            stale_fresh: Duration::from_secs(8),
            stale_quiet: Duration::from_millis(2_500),
            stale_connections: 3,
            unmet_after: Duration::from_secs(4),
            service_failures: 3,
            service_spread: Duration::from_secs(1),
            service_quiet: Duration::from_secs(3),
            unheard_sources: 2,
            sample_gap: Duration::from_secs(5),
            probe_failures: 4,
            probe_late: Duration::from_millis(200),
            probe_overdue: Duration::from_millis(500),
            probe_gap: Duration::from_secs(1),
            sentinel_settled: Duration::from_secs(10),
            proof_overlap: Duration::from_secs(1),
            lag_after: Duration::from_secs(120),
            boot_deadline: Duration::from_secs(120),
            assume_armed: false,
            declared: None,
        }
    }
}

impl Limits {
    /// For a check that begins and ends within seconds: it has no memory of lanes that worked, and
    /// it made the sentinel's devices itself.
    pub fn one_shot() -> Self {
        Self {
            assume_armed: true,
            sentinel_settled: Duration::ZERO,
            ..Self::default()
        }
    }

    /// Minimum time since an endpoint's departure for a connection to it to be stale.
    pub fn stale_age(&self, usual_lag: Option<Duration>) -> Duration {
        let lag = usual_lag.map_or(Duration::ZERO, |lag| lag.saturating_mul(3));
        self.stale_after.max(lag)
    }
}
