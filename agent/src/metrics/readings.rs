//! Reads the samples of metrics from the last report, and from the process.

use std::collections::BTreeSet;
use std::fs;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use pathproof_facts::cause::{Cause, State, Why};
use pathproof_facts::names;
use pathproof_facts::time::Mono;
use pathproof_facts::trace::ProbePath;
use pathproof_judge::brake::BrakeReason;
use pathproof_judge::eligibility::Eligibility;
use pathproof_judge::verdict::{FamilyVerdict, LaneView};
use pathproof_report::{AnswerReport, Report};
use pathproof_wire::service::Family;

use super::Current;
use super::samples::Samples;
use super::series::ServiceMetrics;

/// Converts a monotonic time of a report to Unix seconds.
pub(super) fn unix(report: &Report, at: Mono) -> f64 {
    let ahead = i128::from(at.0) - i128::from(report.verdict.at.0);
    (report.written.as_nanosecond() + ahead) as f64 / 1e9
}

/// Families of the verdict, with their names.
fn families(report: &Report) -> impl Iterator<Item = (&'static str, &FamilyVerdict)> {
    let families = report.verdict.families.iter();
    families.map(|family| (names::of_family(family.family), family))
}

pub(super) fn states(report: &Report, to: &mut Samples<'_>) {
    for (family, verdict) in families(report) {
        for state in State::ALL {
            to.add(&[family, state.name()], f64::from(state == verdict.state));
        }
    }
}

pub(super) fn causes(report: &Report, to: &mut Samples<'_>) {
    for (family, verdict) in families(report) {
        let cause = verdict.cause.map(Cause::name);
        if let Some(cause) = cause.or(verdict.why.map(Why::name)) {
            to.add(&[family, verdict.state.name(), cause], 1.0);
        }
    }
}

pub(super) fn findings(report: &Report, to: &mut Samples<'_>) {
    for (family, verdict) in families(report) {
        // A rule may find several things, but a series must be unique.
        let found = verdict.findings.iter();
        let rules: BTreeSet<&str> = found.map(|found| found.rule.name()).collect();
        for rule in rules {
            to.add(&[family, rule], 1.0);
        }
    }
}

/// One sample for each health check.
pub(super) fn checks(report: &Report, to: &mut Samples<'_>, holds: fn(&AnswerReport) -> bool) {
    let answers = &report.answers;
    to.by_label([
        ("healthz", f64::from(holds(&answers.healthz))),
        ("livez", f64::from(holds(&answers.livez))),
    ]);
}

pub(super) fn brake(report: &Report, to: &mut Samples<'_>) {
    let held = report.answers.held.map(BrakeReason::name);
    to.by_label(BrakeReason::NAMES.map(|name| (name, f64::from(held == Some(name)))));
}

pub(super) fn eligibility(report: &Report) -> Option<f64> {
    let known = Some(&report.verdict.eligibility).filter(|it| **it != Eligibility::NeverSeen);
    known.map(|known| f64::from(!known.is_leaving()))
}

pub(super) fn last_proofs(report: &Report, to: &mut Samples<'_>) {
    for (family, verdict) in families(report) {
        for path in &verdict.paths {
            if let Some(at) = path.last_proof {
                to.add(&[family, names::of_path(path.path)], unix(report, at));
            }
        }
    }
}

pub(super) fn services_in_trouble(report: &Report, to: &mut Samples<'_>) {
    let verdict = &report.verdict;
    let all = &verdict.services;
    let confirmed = all.iter().filter(|service| service.confirmed).count();
    // The verdict lists the worst Services first, so those that it omits are not confirmed.
    let single = all.len() - confirmed + verdict.services_omitted as usize;
    to.by_label([("true", confirmed as f64), ("false", single as f64)]);
}

pub(super) fn services_omitted(current: &Current, to: &mut Samples<'_>) {
    if current.which == ServiceMetrics::Trouble {
        let omitted = current.services().omitted + current.udp_services().omitted;
        to.value(Some(omitted as f64));
    }
}

pub(super) fn external_connections(report: &Report, to: &mut Samples<'_>) {
    let families = Family::ALL.map(names::of_family).into_iter();
    let counted = families.zip(report.drain.counted);
    to.by_label(counted.map(|(family, count)| (family, count as f64)));
}

/// Labels (family, path, transport) and state of each kind of probe.
fn lanes(report: &Report) -> impl Iterator<Item = ([&'static str; 3], &LaneView)> {
    families(report).flat_map(|(family, verdict)| {
        let lanes = verdict.lanes.iter();
        lanes.map(move |lane| ([family, lane.path.name(), lane.transport.name()], lane))
    })
}

pub(super) fn armed_probes(report: &Report, to: &mut Samples<'_>) {
    for (labels, lane) in lanes(report) {
        to.add(&labels, f64::from(lane.armed));
    }
}

pub(super) fn failing_probes(report: &Report, to: &mut Samples<'_>) {
    for (labels, lane) in lanes(report).filter(|(_, lane)| lane.failures > 0) {
        to.add(&labels, lane.failures.into());
    }
}

/// The lag of a path is that of its slower transport.
pub(super) fn programming_lags(report: &Report, to: &mut Samples<'_>) {
    for (family, verdict) in families(report) {
        for path in ProbePath::ALL {
            let lanes = verdict.lanes.iter().filter(|lane| lane.path == path);
            if let Some(lag) = lanes.filter_map(LaneView::programming_lag).max() {
                to.add(&[family, path.name()], lag.as_secs_f64());
            }
        }
    }
}

pub(super) fn coverage_losses(report: &Report, to: &mut Samples<'_>) {
    let losses = report.verdict.coverage.losses.iter();
    // Several devices may share a loss, but a series must be unique.
    let losses: BTreeSet<&str> = losses.map(|loss| loss.name()).collect();
    to.by_label(losses.into_iter().map(|loss| (loss, 1.0)));
}

pub(super) fn faults(report: &Report, to: &mut Samples<'_>) {
    let faults = report.faults.iter().filter(|(_, count)| **count > 0);
    to.by_label(faults.map(|(fault, count)| (fault.as_ref(), *count as f64)));
}

pub(super) fn conntrack_full_drops(report: &Report) -> Option<f64> {
    let conntrack = &report.verdict.conntrack;
    conntrack.table.map(|_| conntrack.dropped as f64)
}

pub(super) fn frontend_conflicts(report: &Report, to: &mut Samples<'_>) {
    let conflicts = &report.conflicts;
    to.by_label([
        ("service", conflicts.services as f64),
        ("sentinel", conflicts.sentinel as f64),
        ("node", conflicts.node as f64),
    ]);
}

pub(super) fn unjudged_services(report: &Report, to: &mut Samples<'_>) {
    let unjudged = &report.expectations.unjudged;
    to.by_label([
        ("service", unjudged.service as f64),
        ("namespace", unjudged.namespace as f64),
    ]);
}

pub(super) fn build(report: &Report, to: &mut Samples<'_>) {
    let (version, abi) = (&report.agent.version, report.agent.abi.to_string());
    to.add(&[version, crate::REVISION, &abi], 1.0);
}

pub(super) fn cpu_seconds() -> Option<f64> {
    let time = clock_gettime(ClockId::CLOCK_PROCESS_CPUTIME_ID).ok()?;
    Some(Duration::from(time).as_secs_f64())
}

/// `VmRSS:  1234 kB` of proc_pid_status(5).
pub(super) fn resident_bytes() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let (_, resident) = status.split_once("VmRSS:")?;
    let (kib, _) = resident.split_once("kB")?;
    let kib: f64 = kib.trim().parse().ok()?;
    Some(kib * 1024.0)
}
