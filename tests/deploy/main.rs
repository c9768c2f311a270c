//! The shipped chart, kustomizations, alerts and dashboard. Chart and kustomizations give the same objects.
//! Contradictory values are refused with an explanation. Alerts fire when they should.

mod alerts;
mod args;
mod canary;
mod dashboard;
mod exceptions;
mod find;
mod fleet;
mod gitops;
mod install;
mod labels;
mod listed;
mod many;
mod options;
mod package;
mod records;
mod references;
mod refused;
mod reserve;
mod rollout;
mod same;
mod schema;
mod scrape;
mod values;
