//! Writes the metrics at a scrape: definitions on one side, the current values on the other.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use agent_common::evidence::{DELAY_BUCKETS, Delays};
use agent_common::probe::Stage;
use agent_common::service::Family;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::registry;

use super::definitions::{self as define, Definition, Kind, Unit};
use super::http::{ANSWERS, HttpStats, Listener, Turned};
use super::lags::{self, Freshness};
use super::probes::{Probes, stage_name};
use super::process::Usage;
use super::publish::{PublishStats, WriteResult};
use super::{Shared, Snapshot};
use agent_core::answer::Enforcement;
use agent_core::cause::{Cause, State, Why};
use agent_core::drain::DrainView;
use agent_core::eligibility::Eligibility;
use agent_core::names;
use agent_core::report::Report;
use agent_core::time::Mono;
use agent_core::trace::ProbePath;
use agent_core::verdict::{FamilyVerdict, LaneView};

mod counted;
mod datapath;
mod lanes;

#[derive(Debug)]
pub(super) struct Exposition(pub(super) Arc<Shared>);

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(&mut encoder);
        let current = self.0.current();
        if let Some(snapshot) = &current.snapshot {
            page.verdict(&snapshot.report)?;
            page.lanes(&snapshot.report)?;
            page.programming_lag(&snapshot.report)?;
            page.observer(snapshot)?;
            page.view(snapshot)?;
            page.drain(&snapshot.report.drain)?;
        }
        page.connections(&current.connections)?;
        page.datagrams(&current.datagrams)?;
        page.probes(&current.probes)?;
        page.freshness(&current.freshness)?;
        // From here on nothing needs the main loop's values.
        let report = current
            .snapshot
            .as_ref()
            .map(|snapshot| Arc::clone(&snapshot.report));
        drop(current);
        page.listeners(&self.0.http)?;
        page.published(&self.0.publish)?;
        if let Some(report) = report {
            page.agent(&report)?;
        }
        page.process(&Usage::read())
    }
}

/// A scrape being written.
struct Page<'a, 'b>(&'a mut DescriptorEncoder<'b>);

type Labels<'a> = &'a [(&'a str, &'a str)];

/// Series of one metric.
struct Family_<'a>(MetricEncoder<'a>, &'static Definition);

impl Family_<'_> {
    fn gauge(&mut self, labels: Labels<'_>, value: f64) -> fmt::Result {
        self.expect(Kind::Gauge, labels);
        match labels {
            [] => self.0.encode_gauge(&value),
            _ => self.0.encode_family(&labels)?.encode_gauge(&value),
        }
    }

    fn counter(&mut self, labels: Labels<'_>, value: u64) -> fmt::Result {
        self.expect(Kind::Counter, labels);
        match labels {
            [] => self.0.encode_counter::<NoLabelSet, _, u64>(&value, None),
            _ => self
                .0
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&value, None),
        }
    }

    /// A series says what its definition promises.
    fn expect(&self, kind: Kind, labels: Labels<'_>) {
        debug_assert_eq!(self.1.kind, kind, "{}", self.1.name);
        debug_assert!(
            labels.iter().map(|label| &label.0).eq(self.1.labels),
            "{}",
            self.1.name
        );
    }
}

impl Page<'_, '_> {
    fn family(&mut self, of: &'static Definition) -> Result<Family_<'_>, fmt::Error> {
        let unit = of.unit.map(|unit| match unit {
            Unit::Seconds => &registry::Unit::Seconds,
            Unit::Bytes => &registry::Unit::Bytes,
        });
        let encoder = self
            .0
            .encode_descriptor(of.name, of.help, unit, of.kind.into())?;
        Ok(Family_(encoder, of))
    }

    fn value(&mut self, of: &'static Definition, value: f64) -> fmt::Result {
        self.family(of)?.gauge(&[], value)
    }

    fn verdict(&mut self, report: &Report) -> fmt::Result {
        let verdict = &report.verdict;
        let mut states = self.family(define::STATE)?;
        for family in &verdict.families {
            for state in State::ALL {
                let labels = [
                    ("family", names::of_family(family.family)),
                    ("state", state.name()),
                ];
                states.gauge(&labels, flag(state == family.state))?;
            }
        }
        self.causes(&verdict.families)?;
        self.value(define::SINCE, unix(report, verdict.since))?;
        self.value(define::VERDICT_AT, unix(report, verdict.at))?;
        self.answers(report)?;
        match verdict.eligibility {
            Eligibility::NeverSeen => {}
            Eligibility::Eligible => self.value(define::ELIGIBLE, 1.0)?,
            Eligibility::Deleting | Eligibility::Tainted { .. } => {
                self.value(define::ELIGIBLE, 0.0)?;
            }
        }
        self.path_times(report)?;
        let mut troubled = self.family(define::TROUBLED)?;
        for confirmed in [true, false] {
            let count = verdict
                .services
                .iter()
                .filter(|s| s.confirmed == confirmed)
                .count();
            // The verdict shows the worst first: what it leaves out is counted where it ends.
            let rest = if confirmed {
                0
            } else {
                verdict.services_omitted
            };
            let label = if confirmed { "true" } else { "false" };
            troubled.gauge(&[("confirmed", label)], count as f64 + f64::from(rest))?;
        }
        Ok(())
    }

    fn causes(&mut self, families: &[FamilyVerdict]) -> fmt::Result {
        let mut causes = self.family(define::CAUSE)?;
        for family in families {
            let why = family.why.map(Why::name);
            let Some(cause) = family.cause.map(Cause::name).or(why) else {
                continue;
            };
            let labels = [
                ("family", names::of_family(family.family)),
                ("state", family.state.name()),
                ("cause", cause),
            ];
            causes.gauge(&labels, 1.0)?;
        }
        Ok(())
    }

    fn answers(&mut self, report: &Report) -> fmt::Result {
        let answers = [
            ("healthz", report.answers.healthz),
            ("livez", report.answers.livez),
        ];
        let mut given = self.family(define::ANSWER)?;
        for (endpoint, answer) in answers {
            given.gauge(&[("endpoint", endpoint)], flag(answer.status == 200))?;
        }
        let mut would = self.family(define::WOULD_FAIL)?;
        for (endpoint, answer) in answers {
            would.gauge(&[("endpoint", endpoint)], flag(answer.would_fail))?;
        }
        self.value(
            define::ENFORCING,
            flag(report.agent.enforcement == Enforcement::Enforce),
        )
    }

    fn path_times(&mut self, report: &Report) -> fmt::Result {
        for of in [define::LAST_PROOF, define::LAST_FAILURE] {
            let mut times = self.family(of)?;
            for family in &report.verdict.families {
                for path in &family.paths {
                    let proof = of.name == define::LAST_PROOF.name;
                    let Some(at) = (if proof {
                        path.last_proof
                    } else {
                        path.last_failure
                    }) else {
                        continue;
                    };
                    let labels = [
                        ("family", names::of_family(family.family)),
                        ("path", names::of_path(path.path)),
                    ];
                    times.gauge(&labels, unix(report, at))?;
                }
            }
        }
        Ok(())
    }

    fn observer(&mut self, snapshot: &Snapshot) -> fmt::Result {
        let report = &snapshot.report;
        let coverage = &report.verdict.coverage;
        let mut delays = self.family(define::FORWARDING_DELAY)?;
        for (family, of) in Family::ALL.into_iter().zip(&snapshot.delays) {
            let labels = [("family", names::of_family(family))];
            histogram(&mut delays, &labels, of)?;
        }
        self.value(define::DEVICES_WANTED, f64::from(coverage.wanted))?;
        self.value(define::DEVICES_ATTACHED, f64::from(coverage.attached))?;
        self.family(define::REATTACHED)?
            .counter(&[], snapshot.reattached)?;
        let mut losses: Vec<&str> = coverage
            .losses
            .iter()
            .map(|loss| loss.loss.name())
            .collect();
        // Many devices may share a loss, a series must be alone.
        losses.sort_unstable();
        losses.dedup();
        let mut family = self.family(define::COVERAGE_LOSS)?;
        for loss in losses {
            family.gauge(&[("loss", loss)], 1.0)?;
        }
        self.datapath(&report.datapath)?;
        let mut faults = self.family(define::FAULTS)?;
        for (fault, count) in &report.faults {
            faults.counter(&[("fault", fault)], *count)?;
        }
        self.family(define::ANOMALIES)?
            .counter(&[], snapshot.anomalies)
    }

    fn view(&mut self, snapshot: &Snapshot) -> fmt::Result {
        let (view, expected) = (&snapshot.report.cluster, &snapshot.report.expectations);
        self.value(define::VIEW_SYNCED, flag(view.synced))?;
        self.family(define::VIEW_CHANGES)?
            .counter(&[], snapshot.view_changes)?;
        self.value(define::VIEW_PROBLEMS, view.problems.len() as f64)?;
        self.value(define::VIEW_IGNORED, view.ignored as f64)?;
        self.value(define::EXPECTED_SERVICES, expected.services as f64)?;
        self.value(define::EXPECTED_FRONTENDS, expected.frontends as f64)?;
        self.value(define::EXPECTED_ENDPOINTS, expected.endpoints as f64)?;
        self.value(define::EXPECTED_MISSING, expected.missing as f64)
    }

    fn drain(&mut self, known: &DrainView) -> fmt::Result {
        let mut connections = self.family(define::EXTERNAL)?;
        for (family, count) in Family::ALL.into_iter().zip(known.counted) {
            connections.counter(&[("family", names::of_family(family))], count)?;
        }
        let mut quiet = self.family(define::EXTERNAL_QUIET)?;
        match known.quiet() {
            Some(time) => quiet.gauge(&[], time.as_secs_f64()),
            None => Ok(()),
        }
    }

    fn probes(&mut self, counted: &Probes) -> fmt::Result {
        let mut probes = self.family(define::PROBES)?;
        for ((lane, outcome), count) in &counted.counts {
            let labels = [
                ("family", names::of_family(lane.family)),
                ("path", lane.path.name()),
                ("transport", lane.transport.name()),
                ("outcome", outcome),
            ];
            probes.counter(&labels, *count)?;
        }
        let mut stages = self.family(define::PROBE_STAGE)?;
        for (family, of_family) in Family::ALL.into_iter().zip(&counted.stages) {
            for (stage, delays) in Stage::ALL.into_iter().zip(of_family) {
                let labels = [
                    ("family", names::of_family(family)),
                    ("stage", stage_name(stage)),
                ];
                histogram(&mut stages, &labels, delays)?;
            }
        }
        Ok(())
    }

    fn listeners(&mut self, stats: &HttpStats) -> fmt::Result {
        let mut requests = self.family(define::REQUESTS)?;
        for ((endpoint, code), count) in ANSWERS.into_iter().zip(&stats.answers) {
            requests.counter(
                &[("endpoint", endpoint), ("code", code)],
                count.load(Relaxed),
            )?;
        }
        if stats.is_as_kube_proxy() {
            self.as_kube_proxy(stats)?;
        }
        let mut open = self.family(define::OPEN)?;
        for listener in Listener::ALL {
            open.gauge(
                &[("listener", listener.name())],
                stats.open(listener) as f64,
            )?;
        }
        let mut turned = self.family(define::TURNED)?;
        for listener in Listener::ALL {
            for event in Turned::ALL {
                let labels = [("listener", listener.name()), ("event", event.name())];
                let count = stats.turned[listener as usize][event as usize].load(Relaxed);
                turned.counter(&labels, count)?;
            }
        }
        Ok(())
    }

    /// The same answers by the names of kube-proxy's own metrics.
    fn as_kube_proxy(&mut self, stats: &HttpStats) -> fmt::Result {
        let named = [
            (define::PROXY_HEALTHZ, "healthz"),
            (define::PROXY_LIVEZ, "livez"),
        ];
        for (definition, wanted) in named {
            let mut answers = self.family(definition)?;
            let counted = ANSWERS.into_iter().zip(&stats.answers);
            for ((_, code), count) in counted.filter(|((endpoint, _), _)| *endpoint == wanted) {
                answers.counter(&[("code", code)], count.load(Relaxed))?;
            }
        }
        Ok(())
    }

    fn published(&mut self, stats: &PublishStats) -> fmt::Result {
        let mut writes = self.family(define::WRITES)?;
        for (kind, counted) in stats.wanted() {
            for (result, count) in WriteResult::ALL.into_iter().zip(&counted.results) {
                let labels = [("kind", kind.name()), ("result", result.name())];
                writes.counter(&labels, count.load(Relaxed))?;
            }
        }
        let mut written = self.family(define::WRITTEN)?;
        for (kind, counted) in stats.wanted() {
            let at = counted.last_ok.load(Relaxed);
            if at != 0 {
                written.gauge(&[("kind", kind.name())], at as f64 / 1e9)?;
            }
        }
        Ok(())
    }

    fn agent(&mut self, report: &Report) -> fmt::Result {
        let abi = report.agent.abi.to_string();
        let labels = [
            ("version", report.agent.version.as_str()),
            ("abi", abi.as_str()),
        ];
        self.family(define::BUILD)?.gauge(&labels, 1.0)?;
        self.value(
            define::START,
            report.agent.started.as_nanosecond() as f64 / 1e9,
        )
    }

    fn process(&mut self, usage: &Usage) -> fmt::Result {
        let mut cpu = self.family(define::CPU)?;
        cpu.0
            .encode_counter::<NoLabelSet, _, u64>(&usage.cpu_seconds, None)?;
        self.value(define::MEMORY, usage.resident_bytes as f64)?;
        self.value(define::FILES, usage.open_files as f64)
    }
}

/// Delays below this power of two of nanoseconds (1.024 us) share the first bucket: no datapath is
/// that fast.
const FIRST_BUCKET: usize = 9;

fn histogram(delays: &mut Family_<'_>, labels: Labels<'_>, of: &Delays) -> fmt::Result {
    delays.expect(Kind::Histogram, labels);
    let mut buckets = Vec::with_capacity(DELAY_BUCKETS - FIRST_BUCKET);
    buckets.push((
        upper_bound(FIRST_BUCKET),
        of.buckets[..=FIRST_BUCKET].iter().sum(),
    ));
    for (index, count) in of.buckets.iter().enumerate().skip(FIRST_BUCKET + 1) {
        buckets.push((upper_bound(index), *count));
    }
    let count = of.buckets.iter().sum();
    delays
        .0
        .encode_family(&labels)?
        .encode_histogram::<NoLabelSet>(of.sum_ns as f64 / 1e9, count, &buckets, None)
}

/// Seconds. The kernel's last bucket has no bound.
fn upper_bound(index: usize) -> f64 {
    if index + 1 == DELAY_BUCKETS {
        f64::INFINITY
    } else {
        (1u64 << (index + 1)) as f64 / 1e9
    }
}

fn flag(set: bool) -> f64 {
    if set { 1.0 } else { 0.0 }
}

/// A monotonic time of a report as Unix seconds.
fn unix(report: &Report, at: Mono) -> f64 {
    let ahead = i128::from(at.0) - i128::from(report.verdict.at.0);
    (report.written.as_nanosecond() + ahead) as f64 / 1e9
}
