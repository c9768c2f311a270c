//! The sentinel's lanes, and how far the datapath lags.

use std::fmt;

use super::*;

impl Page<'_, '_> {
    pub(super) fn lanes(&mut self, report: &Report) -> fmt::Result {
        for of in [define::PROBE_ARMED, define::PROBE_FAILING] {
            let mut series = self.family(of)?;
            for family in &report.verdict.families {
                for lane in &family.lanes {
                    let labels = [
                        ("family", names::of_family(family.family)),
                        ("path", lane.path.name()),
                        ("transport", lane.transport.name()),
                    ];
                    let value = match of.name == define::PROBE_ARMED.name {
                        true => flag(lane.armed),
                        false => f64::from(lane.failures),
                    };
                    series.gauge(&labels, value)?;
                }
            }
        }
        Ok(())
    }

    /// Of each path, by whichever transport lags more.
    pub(super) fn programming_lag(&mut self, report: &Report) -> fmt::Result {
        let mut series = self.family(define::PROGRAMMING_LAG)?;
        for family in &report.verdict.families {
            for path in ProbePath::ALL {
                let lanes = family.lanes.iter().filter(|lane| lane.path == path);
                let Some(lag) = lanes.filter_map(LaneView::programming_lag).max() else {
                    continue;
                };
                let labels = [
                    ("family", names::of_family(family.family)),
                    ("path", path.name()),
                ];
                series.gauge(&labels, lag.as_secs_f64())?;
            }
        }
        Ok(())
    }

    pub(super) fn freshness(&mut self, counted: &Freshness) -> fmt::Result {
        for (of, by_family) in [
            (define::ROTATION_LAG, &counted.rotations),
            (define::LEFT_ENDPOINT, &counted.left),
        ] {
            let mut series = self.family(of)?;
            for (family, lags) in Family::ALL.into_iter().zip(by_family) {
                lag_histogram(&mut series, &[("family", names::of_family(family))], lags)?;
            }
        }
        Ok(())
    }
}

fn lag_histogram(series: &mut Family_<'_>, labels: Labels<'_>, of: &lags::Lags) -> fmt::Result {
    series.expect(Kind::Histogram, labels);
    let bounds = lags::BOUNDS.into_iter().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(of.buckets).collect();
    series
        .0
        .encode_family(&labels)?
        .encode_histogram::<NoLabelSet>(of.sum, of.buckets.iter().sum(), &buckets, None)
}
