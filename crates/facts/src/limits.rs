//! The numbers of the judgement that are configurable or that several modules share.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::owners::Declared;
use crate::time::ns;

/// Interval between samples of the kernel's evidence.
pub const SAMPLE_INTERVAL: Duration = Duration::from_millis(250);
/// Interval between samples while all is well and no connection arrived since the last one. It halves the
/// cost of an idle node, and does not delay rules that need seconds to confirm.
pub const IDLE_INTERVAL: Duration = Duration::from_millis(500);
/// Intervals between writes of the state file: on a healthy node, and on an unhealthy one. A killed agent
/// loses at most this much of a run of failures. Changes are written at once.
pub const STATE_INTERVAL: Duration = Duration::from_secs(10);
pub const STATE_INTERVAL_UNHEALTHY: Duration = Duration::from_secs(1);
/// Interval between reads of the datapath's topology when no event requires one.
pub const TOPOLOGY_INTERVAL: Duration = Duration::from_secs(30);
/// Maximum number of single failed connections that are kept for display.
pub const FAILED_CONNECTIONS_KEPT: usize = 20;

/// Interval between checks of the sentinel's devices and programs during the first [`PROMPT_PROBES`] failed
/// probes in a row.
pub const SUSPECT_INTERVAL: Duration = Duration::from_millis(100);
/// Interval between such checks ([`SUSPECT_INTERVAL`]) after more than [`PROMPT_PROBES`] failures, or while
/// probes are void because of the devices.
pub const FAILING_INTERVAL: Duration = Duration::from_secs(2);
/// Number of failed probes in a row that are each judged at once, because each may confirm a fault.
pub const PROMPT_PROBES: u32 = 5;
/// Maximum age of facts about the kernel, such as whether it forwards.
pub const KERNEL_AGE: Duration = Duration::from_secs(15);
/// Minimum time between uncached reads of the sentinel, because every node reads from the same API server.
/// For the same time, a read confirms the state that the watches reported.
pub const UNCACHED_READ_INTERVAL: Duration = Duration::from_secs(10);
/// If reads differ from what the watches reported, the pause doubles this many times, to 160 s.
pub const UNCACHED_READ_DOUBLINGS: u32 = 4;

/// Grace period after the source of the view is back, in which misrouted connections are not judged. The
/// view's resources come back one by one, and kube-proxy may be later than the agent: after some failures,
/// client-go's reflectors pause for 30 s, with jitter up to a minute. Only then does kube-proxy list the
/// objects and write its rules.
pub const CATCH_UP: Duration = Duration::from_secs(90);

/// Intervals between reads of the kernel's connection table: while all is well, and while connections are
/// lost.
pub const TABLE_INTERVAL: Duration = Duration::from_secs(10);
pub const TABLE_LOSING_INTERVAL: Duration = Duration::from_millis(500);
/// Time for which the connection table counts as full after it last dropped a connection. For the same time
/// after a probe that it dropped, a passing probe is no proof, because it may have found room by chance.
pub const TABLE_FULL: Duration = Duration::from_millis(2_500);

/// Interval between lookups of routes and neighbours for clients with lost connections, and maximum number
/// of these clients.
pub const LOOKUP_INTERVAL: Duration = Duration::from_millis(500);
pub const LOST_CLIENTS: usize = 4;
/// Interval between lookups of routes and neighbours for a client whose connections succeed, until an open
/// path was found.
pub const FIRST_LOOKUPS: Duration = Duration::from_secs(5);
/// Minimum time for which a path must be blocked before it counts as a cause.
pub const BLOCKED_FOR: Duration = Duration::from_secs(1);
/// Minimum time for which a neighbour must be silent before it counts as a cause. Linux sends three
/// requests, one a second, before it gives up.
pub const NEIGHBOUR_ASKED: Duration = Duration::from_millis(3_200);

/// The kernel's drop reasons are read until nothing was lost for this long.
pub const DROPS_QUIET: Duration = Duration::from_secs(10);
/// Maximum time for which drop reasons are read without a pause of `DROPS_REST`.
pub const DROPS_WATCHED: Duration = Duration::from_secs(30);
pub const DROPS_REST: Duration = Duration::from_secs(90);
/// A reason is shown for this long after the last packet that was dropped for it.
pub const DROPS_KEPT: Duration = Duration::from_secs(600);

/// Time for which the datapath must be sound before a 503 ends.
pub const SOUND_FOR: Duration = Duration::from_secs(1);
/// If the answer was undecided for longer than this right before a 503, an undecided state can also end
/// that 503: load balancers used the node in that state before. Longer than a confirmation takes.
pub const UNDECIDED_BEFORE: Duration = Duration::from_secs(10);
/// If the answer was undecided for a long time before a 503 ([`UNDECIDED_BEFORE`]), being undecided again for
/// this long ends the 503.
pub const UNDECIDED_ENDS_AFTER: Duration = Duration::from_secs(30);
/// A new failure this soon after 200 is a flap.
pub const FLAP_WINDOW: Duration = Duration::from_secs(30);
/// Longest hold-down after flaps.
pub const DWELL_MAX: Duration = Duration::from_secs(300);
/// After an upgrade, a failure that begins this soon after the agent's start makes the agent not ready.
/// Longer than a rollout waits at each node (minReadySeconds of the manifests, 30 s).
pub const UPGRADE_WATCHED_FOR: Duration = Duration::from_secs(60);
/// Maximum age of the former agent's last verdict with which an upgraded agent compares its verdicts.
/// Replacing a pod and pulling its image takes less.
pub const PREDECESSOR_VERDICT_AGE: Duration = Duration::from_secs(600);

/// A direct connection to a removed endpoint is reported if it arrives this long after the removal: rules
/// are stale, or the client keeps addresses. An earlier one may be a repeated SYN: Linux repeats a SYN
/// after up to 32 s, and if the first one came before the address was watched, the repeated one counts as
/// new.
pub const DIALLED_AFTER: Duration = Duration::from_secs(40);
/// The failures of a Service are forgotten this long after the last one.
pub const TRACK_KEPT_FOR: Duration = Duration::from_secs(30);
/// Failures of real connections count for this long if nothing refutes them, even if no new connection
/// fails: load balancers that received 503 send no clients.
pub const FAILURES_COUNT_FOR: Duration = Duration::from_secs(300);
/// Clients whose last success was at most this long before a fault count as active when it began.
pub const ACTIVE_CLIENT_AGE: Duration = Duration::from_secs(10);
/// Services and families count as in use for this long after their last use. If no sample was taken for
/// longer than this, lanes that worked before have to work again.
pub const IN_USE_FOR: Duration = Duration::from_secs(3_600);
/// A Service is evidence only once its first endpoints are older than this, because a proxy may be late
/// with them.
pub const FIRST_ENDPOINTS: Duration = Duration::from_secs(15);

/// Failures of a Service do not count for this long after another Service began or ceased to use one of its
/// frontends: earlier connections and the proxy's rules may follow the state before that.
pub const CONFLICT_SETTLES: Duration = Duration::from_secs(10);

/// A struct of numbers, each with its default and, if needed, the module that serialises it.
macro_rules! defaults {
    (
        $(#[$of_struct:meta])*
        pub struct $struct:ident {
            $($(#[$attribute:meta])* $name:ident: $type:ty $(as $with:literal)? = $default:expr,)+
        }
    ) => {
        $(#[$of_struct])*
        pub struct $struct {
            $($(#[$attribute])* $(#[serde(with = $with)])? pub $name: $type,)+
        }

        impl Default for $struct {
            fn default() -> Self {
                Self { $($name: $default,)+ }
            }
        }
    };
}

defaults! {
    /// The numbers of the verdict's rules; times are nanoseconds in JSON. The documented detection
    /// times hold for the defaults.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default)]
    pub struct Limits {
        /// Maximum age of a proof, and of a failure that accuses.
        proof_age: Duration as "ns" = Duration::from_secs(30),
        /// Minimum time for which everything must have failed.
        broken_after: Duration as "ns" = Duration::from_secs(3),
        /// By how much the time from the first to the last failure may be shorter than `broken_after` (or
        /// `partial_after`): there may be no connection right before the last reading.
        broken_fresh: Duration as "ns" = Duration::from_secs(2),
        /// Minimum number of failing Services.
        broken_services: usize = 2,
        /// Minimum number of namespaces of the failing Services, unless the node uses Services in fewer.
        broken_namespaces: usize = 2,
        /// Minimum number of current endpoints of the failing Services, together.
        broken_endpoints: u32 = 3,
        /// Minimum number of clients that fail: pods of this node, or clients outside.
        broken_sources: usize = 2,
        /// Failures are suspect once they have lasted for this long, or nothing has got through for this long.
        suspect_after: Duration as "ns" = Duration::from_secs(1),
        /// A cause that affects only part of the traffic accuses once that part has failed for this long.
        partial_after: Duration as "ns" = Duration::from_secs(9),
        /// Connections to a removed endpoint are not reported for this long after its removal.
        left_grace: Duration as "ns" = Duration::from_secs(2),
        /// New connections to an endpoint are stale if it was removed this long ago, or three times the
        /// node's usual lag if that is longer.
        stale_after: Duration as "ns" = Duration::from_secs(15),
        /// Maximum age of the last stale connection of a stale Service.
        stale_fresh: Duration as "ns" = Duration::from_secs(8),
        /// Once connections of a Service get through, it stops being stale after this long without a stale one.
        stale_quiet: Duration as "ns" = Duration::from_millis(2_500),
        /// Minimum number of stale connections, or one less if a generation of the sentinel is late too.
        stale_connections: usize = 3,
        /// A change is late if it is not on the wire this long after its receipt, or after three times the
        /// node's usual lag if that is longer.
        unmet_after: Duration as "ns" = Duration::from_secs(4),
        /// Minimum number of failures of a broken Service.
        service_failures: u32 = 3,
        /// Minimum time between the first and the last refused or lost connection of a broken Service.
        service_spread: Duration as "ns" = Duration::from_secs(1),
        /// How much longer refused clients outside must be refused before their Service counts as broken. Each
        /// node has its own, because a policy may begin to reject them on all nodes at once.
        #[serde(skip_serializing_if = "Duration::is_zero")]
        service_stagger: Duration as "ns" = Duration::ZERO,
        /// Once connections get through again, a Service is repaired after this long without a failure.
        service_quiet: Duration as "ns" = Duration::from_secs(3),
        /// Minimum number of clients whose answers were not delivered.
        unheard_sources: usize = 2,
        /// A longer gap between two samples (a stopped or starved agent, a suspended machine) ends
        /// every unconfirmed run of failures.
        sample_gap: Duration as "ns" = Duration::from_secs(5),
        /// Minimum number of probes that fail in a row.
        probe_failures: u32 = 4,
        /// A failed probe that was sent this long after it was due is void.
        probe_late: Duration as "ns" = Duration::from_millis(200),
        /// A probe that was abandoned this long after it was sent is void. This is more than its timeout.
        probe_overdue: Duration as "ns" = Duration::from_millis(500),
        /// A longer gap without any result of a probe (a stopped or starved agent) ends every
        /// unconfirmed run of failed probes. Several probe intervals.
        probe_gap: Duration as "ns" = Duration::from_secs(1),
        /// Failed probes accuse only if the sentinel has not changed, and its devices were not found
        /// damaged, for this long.
        sentinel_settled: Duration as "ns" = Duration::from_secs(10),
        /// A connection that succeeds within this time after the first failure refutes nothing, because it may
        /// have been forwarded before the fault.
        proof_overlap: Duration as "ns" = Duration::from_secs(1),
        /// A generation is stale if it was received this long ago and is not on the wire.
        lag_after: Duration as "ns" = Duration::from_secs(120),
        /// With a sentinel, a node that has proven nothing is Starting until this long after boot.
        boot_deadline: Duration as "ns" = Duration::from_secs(120),
        /// Whether a lane counts from its first probe, as if it had worked before. Off by default, because a
        /// lane that never worked may fail because of how the cluster is built.
        assume_armed: bool = false,
        /// The proxy that the operator declared. Then a lane that never worked counts from its first
        /// unambiguous failure after the boot deadline, unless another proxy was found.
        declared: Option<Declared> = None,
    }
}

impl Limits {
    /// Limits for a check that takes seconds. It has seen no lane work, so all lanes count, and the devices
    /// it made count at once.
    pub fn one_shot() -> Self {
        Self {
            assume_armed: true,
            sentinel_settled: Duration::ZERO,
            ..Self::default()
        }
    }

    /// Minimum time since an endpoint's removal for a connection to it to be stale.
    pub fn stale_age(&self, usual_lag: Option<Duration>) -> Duration {
        let lag = usual_lag.map_or(Duration::ZERO, |lag| lag.saturating_mul(3));
        self.stale_after.max(lag)
    }
}
