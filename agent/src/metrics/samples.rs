//! Writes the samples of a scrape as the definitions describe them.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::Metrics;
use super::definitions::{ALL, Definition, Source};

#[derive(Debug)]
pub(super) struct Exposition(pub(super) Arc<Metrics>);

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (current, counted) = (self.0.current(), &self.0.counted);
        let report = current.report.as_deref();
        for (_, it) in ALL {
            let is_absent = match it.source {
                Source::Value(_) | Source::Turn(_) => report.is_none(),
                Source::Always(_) => false,
                Source::Rotator(_) => current.rotating.is_none(),
                Source::Library(metric) => metric(counted).is_empty(),
            };
            if is_absent {
                continue;
            }
            let encoder = encoder.encode_descriptor(it.name, it.help, it.unit, it.kind)?;
            let mut samples = Samples {
                definition: it,
                encoder,
            };
            match (it.source, report) {
                (Source::Value(read), Some(report)) => samples.value(read(report)),
                (Source::Turn(read), Some(report)) => read(report, &mut samples),
                (Source::Always(read), _) => read(&current, &mut samples),
                (Source::Rotator(read), _) => {
                    if let Some(rotating) = &current.rotating {
                        read(rotating, &mut samples);
                    }
                }
                (Source::Library(metric), _) => metric(counted).encode(samples.encoder)?,
                (_, None) => {}
            }
        }
        Ok(())
    }
}

/// Samples of one metric. Label values are in the order of its definition.
pub(super) struct Samples<'a> {
    definition: &'static Definition,
    encoder: MetricEncoder<'a>,
}

impl Samples<'_> {
    /// The only sample of a metric without labels; none if the value is unknown.
    pub(super) fn value(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.add(&[], value);
        }
    }

    /// Samples of a metric with one label.
    pub(super) fn by_label<'v>(&mut self, samples: impl IntoIterator<Item = (&'v str, f64)>) {
        for (label, value) in samples {
            self.add(&[label], value);
        }
    }

    pub(super) fn add(&mut self, values: &[&str], value: f64) {
        let Definition { name, labels, .. } = self.definition;
        debug_assert_eq!(labels.len(), values.len(), "{name}");
        let labels: Vec<(&str, &str)> = labels.iter().zip(values).map(|(l, v)| (*l, *v)).collect();
        let write = |encoder: &mut MetricEncoder<'_>| match self.definition.kind {
            MetricType::Counter => encoder.encode_counter::<NoLabelSet, _, u64>(&value, None),
            _ => encoder.encode_gauge(&value),
        };
        // Writing to a String cannot fail.
        let _ = match labels.is_empty() {
            true => write(&mut self.encoder),
            false => {
                (self.encoder.encode_family(&labels)).and_then(|mut family| write(&mut family))
            }
        };
    }
}
