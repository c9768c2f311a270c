//! The lease by which several rotators elect a leader.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use pathproof_facts::time::Wall;
use pathproof_rotator::rotation::{LEASE, LeaseSeen, LeaseStep};

use super::{Rotator, Trouble, ask, slices};
use crate::clock;
use crate::metrics::Written;

impl Rotator {
    /// Reads the lease when that is due, and writes it if necessary.
    pub(super) async fn elect(&mut self) -> Result<(), Trouble> {
        let asked = clock::mono();
        if !self.candidate.is_due(asked) {
            return Ok(());
        }
        let name = &self.config.lease;
        let found = ask("read the Lease", self.leases.get_opt(name)).await?;
        let seen = found.as_ref().map(lease_seen);
        let step = self.candidate.step(seen.as_ref(), asked);
        let params = slices::posting();
        let ours = lease_of(found, name, Some(self.candidate.name()), clock::wall());
        let written = match step {
            LeaseStep::Wait => return Ok(()),
            LeaseStep::Create => ask("create the Lease", self.leases.create(&params, &ours)).await,
            LeaseStep::Take | LeaseStep::Seize | LeaseStep::Renew => {
                let replaced = self.leases.replace(name, &params, &ours);
                ask("update the Lease", replaced).await
            }
        };
        self.note(Written::Lease, &written);
        match written {
            Ok(_) => {
                self.candidate.wrote(asked);
                if step == LeaseStep::Seize {
                    tracing::info!(lease = %name, "took over an expired lease; the sentinel's \
                                                   endpoint stays unchanged for 10 min");
                    self.rotation.seized(asked);
                }
            }
            Err(Trouble::Raced { .. }) => self.candidate.lost(),
            Err(other) => return Err(other),
        }
        Ok(())
    }

    /// Releases the lease, so that another rotator leads at once.
    pub(super) async fn give_up(&mut self) {
        if !self.candidate.leads(clock::mono()) {
            return;
        }
        self.candidate.lost();
        let name = &self.config.lease;
        let found = ask("read the Lease", self.leases.get_opt(name)).await;
        let me = Some(self.candidate.name());
        let is_ours = |lease: &Lease| lease_seen(lease).holder.as_deref() == me;
        let Some(found) = found.ok().flatten().filter(is_ours) else {
            return;
        };
        let nobodys = lease_of(Some(found), name, None, clock::wall());
        let params = slices::posting();
        let written = self.leases.replace(name, &params, &nobodys);
        if let Err(error) = ask("release the Lease", written).await {
            tracing::info!(%error, "the lease could not be released: another rotator takes over \
                                    when it expires");
        }
    }
}

fn lease_seen(lease: &Lease) -> LeaseSeen {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.unwrap_or(0);
    LeaseSeen {
        holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
        duration: Duration::from_secs(seconds.try_into().unwrap_or(0)),
    }
}

/// The Lease to write, with this holder or with none: `found`, or a new Lease. Its times are only for people.
/// No rotator compares them with its own clock to decide whether the Lease has expired.
fn lease_of(found: Option<Lease>, name: &str, holder: Option<&str>, now: Wall) -> Lease {
    let mut lease = found.unwrap_or_default();
    lease.metadata.name = Some(name.to_owned());
    let spec = lease.spec.get_or_insert_default();
    let now = now.timestamp();
    if holder.is_some() && spec.holder_identity.as_deref() != holder {
        spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |n| n.saturating_add(1)));
        spec.acquire_time = Some(MicroTime(now));
    }
    spec.holder_identity = holder.map(str::to_owned);
    spec.lease_duration_seconds = i32::try_from(LEASE.as_secs()).ok();
    spec.renew_time = Some(MicroTime(now));
    lease
}
