//! A Lease as the API has it.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use agent_core::fleet::rotation::{LEASE, LeaseSeen};
use agent_core::time::Wall;

/// As it was read.
pub(super) fn seen(lease: &Lease) -> LeaseSeen {
    let spec = lease.spec.as_ref();
    let holder = spec.and_then(|spec| spec.holder_identity.clone());
    let seconds = spec.and_then(|spec| spec.lease_duration_seconds);
    let seconds = seconds.and_then(|seconds| u64::try_from(seconds).ok());
    LeaseSeen {
        holder: holder.filter(|holder| !holder.is_empty()),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
        duration: Duration::from_secs(seconds.unwrap_or(0)),
    }
}

/// The same in our name, or a new one. The wall clock is for people who read it: nobody's lease runs
/// out by another machine's clock.
pub(super) fn ours(found: Option<&Lease>, name: &str, me: &str, now: Wall) -> Lease {
    let mut lease = found.cloned().unwrap_or_default();
    lease.metadata.name = Some(name.to_owned());
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    let now = jiff::Timestamp::from_nanosecond(i128::from(now.0)).unwrap_or_default();
    if spec.holder_identity.as_deref() != Some(me) {
        spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |n| n.saturating_add(1)));
        spec.acquire_time = Some(MicroTime(now));
    }
    spec.holder_identity = Some(me.to_owned());
    spec.lease_duration_seconds = i32::try_from(LEASE.as_secs()).ok();
    spec.renew_time = Some(MicroTime(now));
    lease
}

/// The same in nobody's name.
pub(super) fn nobodys(mut lease: Lease) -> Lease {
    if let Some(spec) = &mut lease.spec {
        spec.holder_identity = None;
    }
    lease
}
