//! What is shipped for clusters: the chart and the kustomizations give the same objects, values that
//! contradict each other are refused in a sentence, and alerts fire when they should.

mod alerts;
mod args;
mod dashboard;
mod find;
mod fleet;
mod gitops;
mod install;
mod listed;
mod many;
mod options;
mod package;
mod records;
mod references;
mod rollout;
mod same;
mod schema;
mod scrape;
mod values;
