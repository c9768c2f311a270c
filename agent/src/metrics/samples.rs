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
            match (it.source, report, &current.rotating) {
                (Source::Value(read), Some(report), _) => {
                    it.begin(&mut encoder)?.value(read(report));
                }
                (Source::Turn(read), Some(report), _) => read(report, &mut it.begin(&mut encoder)?),
                (Source::Always(read), ..) => read(&current, &mut it.begin(&mut encoder)?),
                (Source::Rotator(read), _, Some(rotating)) => {
                    read(rotating, &mut it.begin(&mut encoder)?);
                }
                (Source::Library(metric), ..) if !metric(counted).is_empty() => {
                    metric(counted).encode(it.begin(&mut encoder)?.encoder)?;
                }
                // It is absent.
                _ => {}
            }
        }
        Ok(())
    }
}

impl Definition {
    /// Writes the description, and returns the place for the samples.
    fn begin<'a>(
        &'static self,
        to: &'a mut DescriptorEncoder<'_>,
    ) -> Result<Samples<'a>, fmt::Error> {
        let encoder = to.encode_descriptor(self.name, self.help, self.unit, self.kind)?;
        Ok(Samples {
            definition: self,
            encoder,
        })
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
