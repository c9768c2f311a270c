//! Every sentence of `explain`, compared with agent-core/testdata/words.

mod findings;
mod lanes;
mod remedies;
mod stages;
